/* test_hooks.c - a third party's plugin whose functions an INI calls: hooks, a learning rate, a filter
 * of documents and a transform of weights. */
#include <string.h>

#include <dlfcn.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>

#include <longhaul/plugin.h>

/* The steps between which allocation_counter.so counts; without it nothing happens. */
LH_FUNCTION(status, count_allocations, (u64, step), (u64, first), (u64, last))
{
    void (*window)(int) = NULL;
    *(void **)&window = dlsym(RTLD_DEFAULT, "allocation_window");
    if (window != NULL && (step == first || step == last)) window(step == first);
    return LH_OK;
}

LH_FUNCTION(status, note_step, (str, path), (u64, step), (f64, loss), (f64, learning_rate),
            (f64, norm), (u64, tokens))
{
    FILE *f = fopen(path, "a");
    if (f == NULL) return call->host->fail(call->host, LH_IO, "cannot open %s", path);
    (void)fprintf(f,
                  "{\"step\": %llu, \"loss\": %.17g, \"rate\": %.17g, \"norm\": %.17g, "
                  "\"tokens\": %llu}\n",
                  (unsigned long long)step, loss, learning_rate, norm, (unsigned long long)tokens);
    return fclose(f) == 0 ? LH_OK : LH_IO;
}

LH_FUNCTION(status, note_save, (str, path), (u64, step), (f64, loss))
{
    return note_step(call, path, step, loss, 0, 0, 0);
}

LH_FUNCTION(status, refuse, (u64, step), (u64, at))
{
    if (step != at) return LH_OK;
    return call->host->fail(call->host, LH_INVALID, "step %llu is one too many",
                            (unsigned long long)step);
}

LH_FUNCTION(status, stop, (u64, step), (u64, at))
{
    if (step == at) (void)raise(SIGTERM);
    return LH_OK;
}

LH_FUNCTION(status, stop_seen, (u64, step), (f64, loss), (u64, at))
{
    return loss > 0 ? stop(call, step, at) : LH_OK;
}

/* As a library that a plugin brings may do. */
LH_FUNCTION(status, speak, (str, locale))
{
    if (setlocale(LC_ALL, locale) != NULL) return LH_OK;
    return call->host->fail(call->host, LH_INVALID, "there is no locale %s", locale);
}

LH_FUNCTION(f64, stairs, (u64, step), (f64, height))
{
    return height / (double)(1 + step / 2);
}

LH_FUNCTION(f64, slide, (u64, step), (f64, height))
{
    return height - (double)step;
}

LH_FUNCTION(u64, shorter_than, (u64, tokens), (u64, limit))
{
    return tokens < limit;
}

/* The last row first; its own inverse. */
LH_FUNCTION(status, upside_down, (tensor, source), (tensor, out))
{
    const uint64_t rows = source->shape[0], columns = source->shape[1];
    const float *from = source->data;
    float *to = out->data;
    if (source->rank != 2 || out->rank != 2 || out->shape[0] != rows || out->shape[1] != columns)
        return call->host->fail(call->host, LH_INVALID, "two matrices of one shape were expected");
    for (uint64_t i = 0; i < rows; i++)
        memcpy(to + i * columns, from + (rows - 1 - i) * columns, columns * sizeof(float));
    return LH_OK;
}

static const lh_function_t functions[] = {
    LH_FUNCTION_ENTRY(count_allocations, "opens and closes the counter's window"),
    LH_FUNCTION_ENTRY(note_step, "appends a line of JSON"),
    LH_FUNCTION_ENTRY(note_save, "appends a line of JSON"),
    LH_FUNCTION_ENTRY(refuse, "fails at one step"),
    LH_FUNCTION_ENTRY(stop, "asks the run to stop after one step"),
    LH_FUNCTION_ENTRY(stop_seen, "the same for one that reads the step's loss"),
    LH_FUNCTION_ENTRY(speak, "sets the locale of the process"),
    LH_FUNCTION_ENTRY(stairs, "falls every other step"),
    LH_FUNCTION_ENTRY(slide, "falls by 1 a step, below 0 too"),
    LH_FUNCTION_ENTRY(shorter_than, "keeps documents of fewer tokens"),
    LH_FUNCTION_ENTRY(upside_down, "rows from the last to the first"),
};

/* A rule that goes by names: what is called embed stays as it is, all else descends. */
static lh_value_t spare_record(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                               lh_value_t grad, lh_value_t master, lh_value_t *states,
                               lh_value_t *value)
{
    (void)config, (void)states;
    if (strcmp(piece->name, "embed") == 0) return master;
    const lh_sgd_t how = {.struct_size = sizeof(how), .decay = piece->decay};
    const lh_value_t in[] = {grad, master};
    lh_value_t more[2] = {0};
    const lh_value_t updated = g->api->op(g, "sgd", &how, in, 2, more);
    *value = more[1];
    return updated;
}

static const lh_rule_t rules[] = {{
    .name = "spare",
    .help = "leaves embed as it is",
    .grain = LH_GRAIN_ELEMENT,
    .record = spare_record,
}};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_PARTS,
    .name = "test_hooks",
    .version = "1.0.0",
    .summary = "functions that tests call from an INI",
    LH_TABLE_FUNCTIONS(functions),
    LH_TABLE_RULES(rules),
};
