/* spec_fuzz.c - an INI with an architecture: read, opened with the defaults of its options, and
 * every class of its parts recorded. Options without a default are the smallest number that they
 * take. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <base/memory.h>
#include <graph/op_table.h>
#include <graph/recorder.h>
#include <plugin/host.h>
#include <spec/spec.h>
#include <spec/spec_record.h>

enum { TOKENS = 8 };

static lh_status_t row_shape(void *context, const char *name, uint64_t *shape, uint32_t *rank)
{
    const lh_model_t *m = context;
    for (uint32_t i = 0; i < m->row_count; i++) {
        if (strcmp(m->rows[i].name, name) != 0) continue;
        for (*rank = 0; *rank < 3 && m->rows[i].shape[*rank] != 0; ++*rank)
            shape[*rank] = m->rows[i].shape[*rank];
        return LH_OK;
    }
    return fail(LH_INVALID, "no parameter %s", name);
}

static void record_part(lh_model_t *m, const op_table_t *ops, const lh_host_t *host, uint32_t part,
                        uint32_t block)
{
    const recording_how_t how = {.ops = ops,
                                 .host = host,
                                 .tokens = TOKENS,
                                 .sequences = 2,
                                 .max_documents = 2,
                                 .compute = LH_DTYPE_F32,
                                 .accumulate = LH_DTYPE_F32,
                                 .param = row_shape,
                                 .context = m};
    const uint64_t shape[] = {TOKENS, m->hidden};
    recording_t *r;
    FUZZ_ASSERT(recorder_new(&how, &r) == LH_OK);
    const lh_value_t input = part == LH_PART_EMBED ? r->graph.api->input(&r->graph, LH_INPUT_TOKENS)
                                                   : recording_argument(r, LH_DTYPE_F32, 2, shape);
    const lh_value_t output = spec_record(m, &r->graph, part, block, input);
    if (fuzz_accepted(recording_status(r))) FUZZ_ASSERT(output != 0 && output < r->value_count);
    recording_free(r);
}

static void record_all(lh_model_t *m, const lh_host_t *host)
{
    static op_table_t *ops;
    lh_model_info_t info = {.struct_size = sizeof(info)};
    if (ops == NULL) FUZZ_ASSERT(op_table_new(&ops) == LH_OK);
    FUZZ_ASSERT(spec_model_describe(m, &info) == LH_OK);
    FUZZ_ASSERT(info.blocks > 0 && info.hidden > 0 && info.vocab > 0 && info.max_tokens > 0);
    record_part(m, ops, host, LH_PART_EMBED, 0);
    for (uint32_t b = 0; b < info.blocks && b < 4; b++)
        record_part(m, ops, host, LH_PART_BLOCK, b);
    record_part(m, ops, host, LH_PART_HEAD, 0);
}

static void open_with_defaults(spec_t *s)
{
    static host_t *host;
    const lh_host_t *services;
    lh_model_t *m;
    if (host == NULL) FUZZ_ASSERT(host_new(&host) == LH_OK);
    FUZZ_ASSERT(host_for(host, "spec", &services) == LH_OK);
    host_keep(services, s);
    char *config = mem_new(8 * s->option_count);
    FUZZ_ASSERT(config != NULL);
    for (uint32_t i = 0; i < s->option_count; i++) {
        const lh_option_t *row = &s->rows[i];
        char least[32] = "1";
        if (row->range != NULL && strlen(row->range) < sizeof(least))
            (void)snprintf(least, sizeof(least), "%.*s", (int)strcspn(row->range, ".|"),
                           row->range);
        if (row->type == LH_OPT_BOOL) (void)snprintf(least, sizeof(least), "no");
        (void)fuzz_accepted(
            option_set(row, row->fallback != NULL ? row->fallback : least, "a", NULL, config));
    }
    if (fuzz_accepted(spec_model_open(services, config, &m))) {
        record_all(m, services);
        spec_model_close(m);
    }
    options_free(s->rows, s->option_count, config);
    mem_free(config);
    host_keep(services, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    document_t *d;
    spec_t *s;
    fuzz_file("/fuzz/job.ini", bytes, size);
    if (fuzz_accepted(document_load("/fuzz/job.ini", &d))) {
        if (fuzz_accepted(spec_read(d, &s))) {
            open_with_defaults(s);
            spec_free(s);
        }
        document_free(d);
    }
    fuzz_files_clear();
    return 0;
}
