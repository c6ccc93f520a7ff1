/* job.c - a pipeline's INI as one struct: parse each section, then check what crosses sections. */
#include <config/job.h>

#include <ctype.h>
#include <math.h>
#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>
#include <config/job_sites.h>
#include <config/quantity.h>

enum { WHERE_BYTES = 600, LAUNCH_ADDRESS = 256 };

static void where_is(const job_t *job, const char *section, const char *key, char out[WHERE_BYTES])
{
    const document_section_t *s = document_find(job->document, section);
    const document_entry_t *e = section_find(s, key);
    if (e != NULL)
        document_where(e->file, e->line, out, WHERE_BYTES);
    else
        (void)snprintf(out, WHERE_BYTES, "%s", job->path);
}

/* The sentence begins with where the key stands. */
#define REFUSE(job, section, key, fmt, ...)                                               \
    do {                                                                                  \
        char where_[WHERE_BYTES];                                                         \
        where_is(job, section, key, where_);                                              \
        return fail(LH_INVALID, "%s: %s = " fmt, where_, key __VA_OPT__(, ) __VA_ARGS__); \
    } while (0)

bool job_has_stage(const job_t *job, uint32_t stage)
{
    for (uint32_t i = 0; i < job->stage_count; i++)
        if (job->stages[i] == stage) return true;
    return false;
}

static bool matches(const char *pattern, const char *name)
{
    const size_t length = strlen(pattern);
    if (length < 2 || strcmp(pattern + length - 2, ".*") != 0) return strcmp(pattern, name) == 0;
    return strncmp(pattern, name, length - 1) == 0 && name[length - 1] != '\0';
}

/* One struct of job_t, not one for each section that matches "group.*". */
static bool has_struct(const job_section_t *s)
{
    return s->rows != NULL && !text_ends(s->name, ".*");
}

static lh_status_t check_section_name(const document_section_t *s)
{
    char where[WHERE_BYTES];
    uint32_t count;
    const job_section_t *known = job_sections(&count);
    nearest_t near = {.typed = s->name};

    for (uint32_t i = 0; i < count; i++) {
        if (matches(known[i].name, s->name)) return LH_OK;
        nearest_offer(&near, known[i].name);
    }
    document_where(s->file, s->line, where, sizeof(where));
    const char *best = nearest_name(&near);
    if (best == NULL) return fail(LH_INVALID, "%s: unknown section [%s]", where, s->name);
    return fail(LH_INVALID, "%s: unknown section [%s]; did you mean [%s]?", where, s->name, best);
}

static options_how_t how_of(const job_t *job, const job_section_t *s, const option_table_t *table,
                            uint32_t stages)
{
    return (options_how_t){
        .document = job->document,
        .section = s->name,
        .tables = table,
        .table_count = 1,
        .optional = (s->stages & stages) == 0,
        .open = s->plugin_key != NULL,
        .folder = job->base,
    };
}

static option_table_t table_of(const job_section_t *s, void *config)
{
    return (option_table_t){
        .rows = s->rows,
        .count = s->count,
        .owner = "the core",
        .config_size = s->config_size,
        .config = config,
    };
}

static uint32_t stage_bits(const job_t *job)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < job->stage_count; i++)
        bits |= 1u << job->stages[i];
    return bits;
}

static lh_status_t parse_section(job_t *job, const job_section_t *s, uint32_t stages)
{
    const option_table_t table = table_of(s, (char *)job + s->offset);
    options_how_t how = how_of(job, s, &table, stages);
    /* A hook that is written down must say what to call. */
    if (matches("hook.*", s->name)) how.optional = document_find(job->document, s->name) == NULL;
    return options_parse(&how);
}

lh_status_t job_require(const job_t *job, uint32_t stage)
{
    uint32_t count;
    const job_section_t *all = job_sections(&count);
    for (uint32_t i = 0; i < count; i++) {
        if ((all[i].stages & (1u << stage)) == 0) continue;
        const option_table_t table = table_of(&all[i], NULL);
        const options_how_t how = how_of(job, &all[i], &table, 1u << stage);
        const lh_status_t status = options_parse(&how);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

static lh_status_t add_stage(job_t *job, const char *name)
{
    nearest_t near = {.typed = name};
    for (uint32_t i = 0; i < JOB_STAGES; i++) {
        nearest_offer(&near, job_stage_names[i]);
        if (strcmp(job_stage_names[i], name) != 0) continue;
        if (job_has_stage(job, i)) REFUSE(job, "pipeline", "stages", "... %s: named twice", name);
        job->stages[job->stage_count++] = i;
        return LH_OK;
    }
    const char *best = nearest_name(&near);
    if (best != NULL)
        REFUSE(job, "pipeline", "stages", "... %s: no such stage; did you mean '%s'?", name, best);
    REFUSE(job, "pipeline", "stages",
           "... %s: no such stage; they are prepare import train eval export generate", name);
}

static lh_status_t parse_stages(job_t *job)
{
    char *copy = mem_text(job->pipeline.stages);
    if (copy == NULL) return LH_NO_MEMORY;

    lh_status_t status = LH_OK;
    char *rest = copy;
    while (status == LH_OK && rest != NULL) {
        const char *name = strsep(&rest, " \t,");
        if (*name != '\0') status = add_stage(job, name);
    }
    mem_free(copy);
    if (status == LH_OK && job->stage_count == 0)
        REFUSE(job, "pipeline", "stages", "nothing: name at least one stage");
    return status;
}

static lh_status_t parse_pipeline(job_t *job)
{
    lh_status_t status = parse_section(job, job_section("pipeline"), 1u);
    if (status != LH_OK) return status;
    if (text_equal(job->pipeline.name, ".") || text_equal(job->pipeline.name, ".."))
        REFUSE(job, "pipeline", "name", "%s: it names a folder of out/", job->pipeline.name);
    for (const char *c = job->pipeline.name; *c != '\0'; c++)
        if (strchr("/\\<>&\"'", *c) != NULL || (unsigned char)*c < 0x20)
            REFUSE(job, "pipeline", "name", "%s: a name holds no '%c'", job->pipeline.name, *c);

    if (job->pipeline.folder == NULL) {
        text_t folder = {0};
        text_printf(&folder, "%s/out/%s", job->base, job->pipeline.name);
        if (folder.failed) text_free(&folder);
        job->pipeline.folder = folder.data;
        if (folder.data == NULL) return LH_NO_MEMORY;
    }
    return parse_stages(job);
}

static lh_status_t parse_group(job_t *job, const document_section_t *s, job_group_t *group)
{
    char where[WHERE_BYTES];
    job_group_text_t text = {0};
    const job_section_t *section = job_section("group.*");
    const option_table_t table = table_of(section, &text);
    const options_how_t how = {.document = job->document,
                               .section = s->name,
                               .tables = &table,
                               .table_count = 1,
                               .folder = job->base};
    lh_status_t status = options_parse(&how);
    if (status != LH_OK) return status;

    group->match = text.match;
    group->rate = text.rate;
    group->frozen = text.frozen;
    group->decay = NAN;
    if (text.decay != NULL && (!quantity_f64(text.decay, &group->decay) || group->decay < 0)) {
        where_is(job, s->name, "decay", where);
        status = fail(LH_INVALID, "%s: decay = %s: expected a number from 0 on", where, text.decay);
    }
    mem_free(text.decay);
    group->name = mem_text(s->name + strlen("group."));
    return group->name == NULL ? LH_NO_MEMORY : status;
}

static lh_status_t parse_groups(job_t *job)
{
    const uint32_t count = document_section_count(job->document);
    size_t capacity = 0;
    for (uint32_t i = 0; i < count; i++) {
        const document_section_t *s = document_section(job->document, i);
        if (!matches("group.*", s->name)) continue;
        job_group_t *groups = mem_grow(job->groups, &capacity, job->group_count + 1u,
                                       sizeof(*groups));
        if (groups == NULL) return LH_NO_MEMORY;
        job->groups = groups;
        const lh_status_t status = parse_group(job, s, &groups[job->group_count++]);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

static bool is_sha256(const char *text)
{
    return strlen(text) == 64 && strspn(text, "0123456789abcdefABCDEF") == 64;
}

static lh_status_t parse_pin(job_t *job, const document_section_t *s, job_pin_t *pin)
{
    const option_table_t table = table_of(job_section("plugin.*"), pin);
    const options_how_t how = {
        .document = job->document, .section = s->name, .tables = &table, .table_count = 1};
    const lh_status_t status = options_parse(&how);
    if (status != LH_OK) return status;
    pin->name = mem_text(s->name + strlen("plugin."));
    if (pin->name == NULL) return LH_NO_MEMORY;
    if (pin->sha256 != NULL && !is_sha256(pin->sha256))
        REFUSE(job, s->name, "sha256", "%s: expected 64 hexadecimal digits", pin->sha256);
    for (char *c = pin->sha256; c != NULL && *c != '\0'; c++)
        *c = (char)tolower((unsigned char)*c);
    return LH_OK;
}

static lh_status_t parse_pins(job_t *job)
{
    size_t capacity = 0;
    for (uint32_t i = 0; i < document_section_count(job->document); i++) {
        const document_section_t *s = document_section(job->document, i);
        if (!matches("plugin.*", s->name)) continue;
        job_pin_t *pins = mem_grow(job->pins, &capacity, job->pin_count + 1u, sizeof(*pins));
        if (pins == NULL) return LH_NO_MEMORY;
        job->pins = pins;
        const lh_status_t status = parse_pin(job, s, &pins[job->pin_count++]);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

enum { SMALLEST_CHUNK = 1024 }; /* smaller ones are all overhead: a step would take minutes */

static lh_status_t check_parallel(const job_t *job)
{
    if (job->comm.chunk_bytes != 0 && job->comm.chunk_bytes < SMALLEST_CHUNK)
        REFUSE(job, "comm", "chunk", "%llu: expected 0, which chooses, or %d on",
               (unsigned long long)job->comm.chunk_bytes, SMALLEST_CHUNK);
    if (job->parallel.tensor != 1)
        REFUSE(job, "parallel", "tensor", "%llu: tensor parallelism is not built yet; expected 1",
               (unsigned long long)job->parallel.tensor);
    if (job->parallel.pipeline != 1)
        REFUSE(job, "parallel", "pipeline",
               "%llu: pipeline parallelism is not built yet; expected 1",
               (unsigned long long)job->parallel.pipeline);
    return LH_OK;
}

static lh_status_t check_train(job_t *job)
{
    job_train_t *t = &job->train;
    if (t->micro_batch == 0) t->micro_batch = t->batch;
    if (t->micro_batch != 0 && t->batch % t->micro_batch != 0)
        REFUSE(job, "train", "batch", "%llu: expected a multiple of micro_batch = %llu",
               (unsigned long long)t->batch, (unsigned long long)t->micro_batch);
    const uint64_t tokens = t->micro_batch *
                            t->sequence; /* 2^48 at most; 0: not a job that trains */
    if (tokens != 0 && t->max_documents > tokens)
        REFUSE(job, "train", "max_documents",
               "%llu: expected at most the %llu tokens of a micro-batch",
               (unsigned long long)t->max_documents, (unsigned long long)tokens);
    const char *rule = job->optimizer.rule;
    const char *colon = rule == NULL ? NULL : strchr(rule, ':');
    if (rule != NULL && (colon == NULL || colon == rule || colon[1] == '\0'))
        REFUSE(job, "optimizer", "rule", "%s: expected plugin:rule, such as rules:adamw", rule);
    return LH_OK;
}

/* Three numbers from 0 to JOB_SPLIT_MOST, not all 0. */
static bool is_split(const char *text)
{
    char copy[128], *rest = copy;
    double sum = 0, part;
    uint32_t parts = 0;
    if (strlen(text) >= sizeof(copy)) return false;
    strcpy(copy, text);
    for (; rest != NULL; parts++, sum += part)
        if (!quantity_f64(text_trim(strsep(&rest, ",")), &part) || part < 0 ||
            part > JOB_SPLIT_MOST)
            return false;
    return parts == 3 && sum > 0;
}

static lh_status_t check_split(const job_t *job)
{
    if (!is_split(job->data.split != NULL ? job->data.split : ""))
        REFUSE(job, "data", "split", "%s: expected three parts such as 969,30,1, of at most %g",
               job->data.split != NULL ? job->data.split : "", JOB_SPLIT_MOST);
    return LH_OK;
}

static bool has_empty_item(const char *list)
{
    for (const char *at = list;; at++) {
        at += strspn(at, " \t");
        if (*at == ',' || *at == '\0') return true;
        at += strcspn(at, ",");
        if (*at == '\0') return false;
    }
}

static lh_status_t check_prepare(const job_t *job)
{
    const char *input = job->prepare.input;
    if (input != NULL && has_empty_item(input))
        REFUSE(job, "prepare", "input", "%s: a path is empty; expected paths with commas between",
               input);
    uint64_t number;
    const char *text = job->prepare.on_error;
    const bool counted = text != NULL && text_starts(text, "max:") &&
                         quantity_u64(text + 4, &number);
    if (text != NULL && !counted && strcmp(text, "fail") != 0 && strcmp(text, "skip") != 0)
        REFUSE(job, "prepare", "on_error", "%s: expected fail, skip or max:N", text);
    return LH_OK;
}

static lh_status_t check_model(const job_t *job)
{
    uint64_t number;
    const char *vocab = job->model.vocab;
    if (vocab == NULL || strcmp(vocab, "from_tokenizer") == 0 || strcmp(vocab, "from_import") == 0)
        return LH_OK;
    if (!quantity_u64(vocab, &number) || number == 0)
        REFUSE(job, "model", "vocab", "%s: expected from_tokenizer, from_import or a number",
               vocab);
    return LH_OK;
}

/* A key pasted where its file belongs would end up in logs, reports and checkpoints. It is not
 * repeated here. */
static lh_status_t check_secret(const job_t *job)
{
    enum { KEY_LIKE = 32 };
    char where[WHERE_BYTES];
    const document_entry_t *e = section_find(document_find(job->document, "launch"), "secret");
    if (e == NULL || strlen(e->value) < KEY_LIKE ||
        e->value[strspn(e->value, "0123456789abcdefABCDEF")] != '\0')
        return LH_OK;
    where_is(job, "launch", "secret", where);
    return fail(
        LH_INVALID,
        "%s: secret is a key; name a file of mode 0600 that holds it, and make a new key, as "
        "this one has been written down",
        where);
}

/* The numbers of an address too, of IPv6 with its card: fe80::1%eth0. */
static lh_status_t check_address(const job_t *job)
{
    const char *address = job->launch.address;
    if (address == NULL) return LH_OK;
    bool good = *address != '-' && strlen(address) < LAUNCH_ADDRESS;
    for (const char *c = address; *c != '\0'; c++)
        good = good && (isalnum((unsigned char)*c) || strchr(".-_:%", *c) != NULL);
    if (!good)
        REFUSE(job, "launch", "address", "%s: expected a host's name or an address", address);
    return LH_OK;
}

static lh_status_t check_generate(const job_t *job)
{
    if (job->generate.prompt != NULL && job->generate.ids != NULL)
        REFUSE(job, "generate", "ids", "%s: a prompt is set too; only one of them is read",
               job->generate.ids);
    return LH_OK;
}

/* Each of a comma-separated list, against a folder. */
static lh_status_t resolve_list(const char *folder, char **list)
{
    text_t joined = {0};
    char *rest = *list;
    while (rest != NULL) {
        char *path = path_join(folder, text_trim(strsep(&rest, ",")));
        if (path == NULL) joined.failed = true;
        if (path != NULL) text_printf(&joined, "%s%s", joined.length > 0 ? "," : "", path);
        mem_free(path);
    }
    if (joined.failed) {
        text_free(&joined);
        return LH_NO_MEMORY;
    }
    mem_free(*list);
    *list = joined.data;
    return LH_OK;
}

static lh_status_t resolve(const char *folder, char **path)
{
    if (*path == NULL) return LH_OK;
    char *joined = path_join(folder, *path);
    if (joined == NULL) return LH_NO_MEMORY;
    mem_free(*path);
    *path = joined;
    return LH_OK;
}

static lh_status_t resolve_paths(job_t *job)
{
    uint32_t index;
    char **const inside[] = {&job->prepare.output, &job->checkpoint.folder, &job->export.folder};
    for (size_t i = 0; i < sizeof(inside) / sizeof(inside[0]); i++) {
        const lh_status_t status = resolve(job->pipeline.folder, inside[i]);
        if (status != LH_OK) return status;
    }
    if (job->prepare.input != NULL) {
        if (strpbrk(job->base, ",*?[") != NULL)
            return fail(LH_INVALID,
                        "%s: the folder's name holds one of ,*?[ which mean something "
                        "in [prepare] input",
                        job->base);
        const lh_status_t status = resolve_list(job->base, &job->prepare.input);
        if (status != LH_OK) return status;
    }
    if (!quantity_choice(job->eval.data, "train|valid|test", &index))
        return resolve(job->base, &job->eval.data);
    return LH_OK;
}

static bool is_utf8(const char *text)
{
    size_t size;
    for (; *text != '\0'; text += size) {
        size = text_character(text);
        if (size == 0) return false;
    }
    return true;
}

/* Where the job writes stands in JSON files, which hold UTF-8. */
static lh_status_t check_written(const job_t *job)
{
    const char *const written[] = {job->pipeline.folder, job->prepare.output,
                                   job->checkpoint.folder, job->export.folder};
    for (size_t i = 0; i < sizeof(written) / sizeof(written[0]); i++)
        if (!is_utf8(written[i]))
            return fail(LH_INVALID,
                        "%s: the path is not UTF-8; rename its folder, or name another in "
                        "[pipeline] folder",
                        written[i]);
    return LH_OK;
}

static lh_status_t parse_all(job_t *job)
{
    uint32_t count;
    const job_section_t *all = job_sections(&count);
    for (uint32_t i = 0; i < document_section_count(job->document); i++) {
        const lh_status_t status = check_section_name(document_section(job->document, i));
        if (status != LH_OK) return status;
    }
    lh_status_t status = parse_pipeline(job);
    for (uint32_t i = 1; status == LH_OK && i < count; i++)
        if (has_struct(&all[i])) status = parse_section(job, &all[i], stage_bits(job));
    if (status == LH_OK) status = parse_groups(job);
    if (status == LH_OK) status = parse_pins(job);
    if (status == LH_OK) status = job_sites_parse(job);
    if (status == LH_OK) status = check_parallel(job);
    if (status == LH_OK) status = check_train(job);
    if (status == LH_OK) status = check_split(job);
    if (status == LH_OK) status = check_prepare(job);
    if (status == LH_OK) status = check_model(job);
    if (status == LH_OK) status = check_secret(job);
    if (status == LH_OK) status = check_address(job);
    if (status == LH_OK) status = check_generate(job);
    if (status == LH_OK) status = resolve_paths(job);
    if (status == LH_OK) status = check_written(job);
    return status;
}

static lh_status_t load_text(job_t *job, const char *path, const char *const *sets,
                             uint32_t set_count)
{
    char *folder = path_folder(path);
    job->path = mem_text(path);
    job->base = folder == NULL ? NULL : path_absolute(folder);
    mem_free(folder);
    if (job->path == NULL || job->base == NULL) return LH_NO_MEMORY;

    lh_status_t status = document_load(path, &job->document);
    for (uint32_t i = 0; status == LH_OK && i < set_count; i++)
        status = document_set(job->document, sets[i]);
    return status;
}

lh_status_t job_load(const char *path, const char *const *sets, uint32_t set_count, job_t **out)
{
    job_t *job = mem_new(sizeof(*job));
    if (job == NULL) return LH_NO_MEMORY;

    lh_status_t status = load_text(job, path, sets, set_count);
    if (status == LH_OK) status = parse_all(job);
    if (status != LH_OK) {
        job_free(job);
        return status;
    }
    *out = job;
    return LH_OK;
}

void job_free(job_t *job)
{
    uint32_t count;
    if (job == NULL) return;
    const job_section_t *all = job_sections(&count);
    for (uint32_t i = 0; i < count; i++)
        if (has_struct(&all[i]))
            options_free(all[i].rows, all[i].count, (char *)job + all[i].offset);
    for (uint32_t i = 0; i < job->group_count; i++) {
        mem_free(job->groups[i].name);
        mem_free(job->groups[i].match);
    }
    mem_free(job->groups);
    for (uint32_t i = 0; i < job->pin_count; i++) {
        mem_free(job->pins[i].name);
        mem_free(job->pins[i].sha256);
    }
    mem_free(job->pins);
    job_sites_free(job);
    document_free(job->document);
    mem_free(job->path);
    mem_free(job->base);
    mem_free(job);
}

char *job_path(const job_t *job, const char *name)
{
    return path_join(job->pipeline.folder, name);
}

options_how_t job_plugin_how(const job_t *job, const char *section, option_table_t tables[2],
                             const option_given_t *given, uint32_t given_count)
{
    const job_section_t *core = job_section(section);
    const bool shared = core != NULL && core->rows != NULL;
    if (shared)
        tables[0] = table_of(core, NULL);
    else
        tables[0] = tables[1];
    return (options_how_t){.document = job->document,
                           .section = section,
                           .tables = tables,
                           .table_count = shared ? 2 : 1,
                           .given = given,
                           .given_count = given_count,
                           .folder = job->base};
}

lh_status_t job_parse_plugin(const job_t *job, const char *section, const option_table_t *table,
                             const option_given_t *given, uint32_t given_count, void **out)
{
    option_table_t tables[2] = {{0}, *table};
    void *config = mem_new(table->config_size);
    if (config == NULL) return LH_NO_MEMORY;

    tables[1].config = config;
    const options_how_t how = job_plugin_how(job, section, tables, given, given_count);
    const lh_status_t status = options_parse(&how);
    if (status != LH_OK) {
        mem_free(config);
        return status;
    }
    *out = config;
    return LH_OK;
}

lh_status_t job_parse_transport(const job_t *job, uint32_t scope, const option_table_t *table,
                                const option_table_t *other, void **out)
{
    char section[32];
    (void)snprintf(section, sizeof(section), "transport.%s", job_scope_names[scope]);
    void *config = mem_new(table->config_size);
    if (config == NULL) return LH_NO_MEMORY;

    option_table_t tables[2] = {{0}, *table};
    tables[1].config = config;
    options_how_t how = job_plugin_how(job, section, tables, NULL, 0);
    how.other = other;
    const lh_status_t status = options_parse(&how);
    if (status != LH_OK) {
        mem_free(config);
        return status;
    }
    *out = config;
    return LH_OK;
}

void job_free_config(const option_table_t *table, void *config)
{
    options_free(table->rows, table->count, config);
    mem_free(config);
}
