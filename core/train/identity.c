/* identity.c - a run's identity as lines of text. */
#include <train/identity.h>

#include <stdio.h>

void identity_model(const job_t *job, const plugin_t *plugin, const void *config, text_t *out)
{
    const option_table_t table = plugin_options(plugin);
    text_printf(out, "model.plugin = %s\n", job->model.plugin);
    for (uint32_t i = 0; i < table.count; i++) {
        char buffer[OPTION_TEXT];
        const char *value = option_text(&table.rows[i], config, buffer);
        text_printf(out, "model.%s = %s\n", table.rows[i].key, value == NULL ? "" : value);
    }
}

void identity_tokenizer(uint64_t digest, text_t *out)
{
    if (digest != 0) text_printf(out, "tokenizer.content = %016llx\n", (unsigned long long)digest);
}

static const char *set_or_empty(const char *text)
{
    return text == NULL ? "" : text;
}

void identity_text(const session_t *s, text_t *out)
{
    const job_t *job = s->job;
    identity_model(job, s->model_plugin, s->model_config, out);
    text_printf(out, "data.train = %s\n", set_or_empty(job->data.train));
    text_printf(out, "data.split = %s\n", set_or_empty(job->data.split));
    text_printf(out, "data.documents = %s\n",
                job->data.documents == DOCUMENTS_APART ? "apart" : "joined");
    text_printf(out, "data.seed = %llu\n", (unsigned long long)job->data.seed);
    text_printf(out, "train.sequence = %llu\n", (unsigned long long)job->train.sequence);
    text_printf(out, "train.batch = %llu\n", (unsigned long long)job->train.batch);
    text_printf(out, "train.micro_batch = %llu\n", (unsigned long long)job->train.micro_batch);
    text_printf(out, "train.head_chunk = %llu\n", (unsigned long long)job->train.head_chunk);
    text_printf(out, "train.seed = %llu\n", (unsigned long long)job->train.seed);
    text_printf(out, "train.precision = %s\n",
                job->train.precision == PRECISION_BF16 ? "bf16" : "f32");
    text_printf(out, "optimizer.plugin = %s\n", job->optimizer.plugin);
    text_printf(out, "optimizer.rule = %s\n", job->optimizer.rule);
}

/* The line of a text that begins with these bytes; NULL: none. */
static const char *find_line(const char *text, const char *head, size_t length)
{
    while (*text != '\0') {
        if (strncmp(text, head, length) == 0) return text;
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    return NULL;
}

static bool of_model(const char *line)
{
    return text_starts(line, "model.") || text_starts(line, "tokenizer.");
}

/* The first value that differs of those that both texts name: two lines. */
static bool find_difference(const char *then, const char *now, bool model, const char **then_line,
                            const char **now_line)
{
    while (*then != '\0') {
        const size_t length = strcspn(then, "\n"), key = strcspn(then, "=\n");
        const char *found = !model || of_model(then) ? find_line(now, then, key + 1) : NULL;
        *then_line = then;
        *now_line = found;
        if (found != NULL && (length != strcspn(found, "\n") || memcmp(then, found, length) != 0))
            return true;
        then += length + (then[length] == '\n');
    }
    return false;
}

static lh_status_t compare(const char *path, const char *then, const char *now, bool model,
                           const char *what)
{
    const char *a, *b;
    if (then == NULL || !find_difference(then, now, model, &a, &b)) return LH_OK;
    return fail(LH_MISMATCH, "%s was made with '%.*s', now it is '%.*s': %s", path,
                (int)strcspn(a, "\n"), a, (int)strcspn(b, "\n"), b, what);
}

lh_status_t identity_compare(const char *path, const char *then, const char *now)
{
    return compare(path, then, now, false,
                   "that would be another run; set [train] same_bits = no to go on");
}

lh_status_t identity_compare_model(const char *path, const char *then, const char *now)
{
    return compare(path, then, now, true,
                   "that would be another model; give it the options and the tokenizer that it was "
                   "trained with");
}
