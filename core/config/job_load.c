/* job_load.c - a pipeline's INI as one struct: each section is parsed by its table; job_check.c
 * holds what crosses keys. */
#include <config/job_load.h>

#include <ctype.h>
#include <math.h>
#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>
#include <config/job_check.h>
#include <config/job_sites.h>
#include <config/quantity.h>

/* A known section's name stands for itself, or with ".*" for all that begin with it. "group.*" does
 * not match "group." itself: a name must follow. */
static bool section_matches(const char *pattern, const char *name)
{
    const size_t length = strlen(pattern);
    if (length < 2 || strcmp(pattern + length - 2, ".*") != 0) return strcmp(pattern, name) == 0;
    return strncmp(pattern, name, length - 1) == 0 && name[length - 1] != '\0';
}

/* One struct of job_t, not one for each section that matches "group.*", nor one apart. */
static bool has_struct(const job_section_t *s)
{
    return s->rows != NULL && s->offset != JOB_APART && !text_ends(s->name, ".*");
}

/* Before any section is parsed, so that [trian] is not first told as a missing [train]. */
static lh_status_t check_section_name(const document_section_t *s)
{
    char where[JOB_WHERE_BYTES];
    uint32_t count;
    const job_section_t *known = job_sections(&count);
    text_nearest_t near = {.typed = s->name};

    for (uint32_t i = 0; i < count; i++) {
        if (section_matches(known[i].name, s->name)) return LH_OK;
        text_nearest_offer(&near, known[i].name);
    }
    document_where(s->file, s->line, where, sizeof(where));
    const char *best = text_nearest_name(&near);
    if (best == NULL) return fail(LH_INVALID, "%s: unknown section [%s]", where, s->name);
    return fail(LH_INVALID, "%s: unknown section [%s]; did you mean [%s]?", where, s->name, best);
}

/* Required keys are asked for where one of these stages (a bit each) needs the section. open: keys
 * that the plugin of this section will read are not known here. */
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

/* As job_section_t.stages has them. */
static uint32_t stage_bits(const job_t *job)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < job->stage_count; i++)
        bits |= 1u << job->stages[i];
    return bits;
}

/* The struct lies inside of job_t, at the row's offset. */
static lh_status_t parse_section(job_t *job, const job_section_t *s, uint32_t stages)
{
    lh_assert(s != NULL && s->offset + s->config_size <= sizeof(*job));
    const option_table_t table = job_section_table(s, (char *)job + s->offset);
    options_how_t how = how_of(job, s, &table, stages);
    /* A hook that is written down must say what to call. */
    if (section_matches("hook.*", s->name))
        how.optional = document_find(job->document, s->name) == NULL;
    return options_parse(&how);
}

/* Parses once more, without keeping anything, as if the job had that stage. */
lh_status_t job_require(const job_t *job, uint32_t stage)
{
    lh_assert(stage < JOB_STAGES);
    uint32_t count;
    const job_section_t *all = job_sections(&count);
    for (uint32_t i = 0; i < count; i++) {
        if ((all[i].stages & (1u << stage)) == 0) continue;
        const option_table_t table = job_section_table(&all[i], NULL);
        const options_how_t how = how_of(job, &all[i], &table, 1u << stage);
        const lh_status_t status = options_parse(&how);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* In the order in which the INI names them, each once. job->stages is in the order of running,
 * which need not be that of the enum. */
static lh_status_t add_stage(job_t *job, const char *name)
{
    text_nearest_t near = {.typed = name};
    for (uint32_t i = 0; i < JOB_STAGES; i++) {
        text_nearest_offer(&near, job_stage_names[i]);
        if (strcmp(job_stage_names[i], name) != 0) continue;
        if (job_has_stage(job, i))
            JOB_REFUSE(job, "pipeline", "stages", "... %s: named twice", name);
        lh_assert(job->stage_count < JOB_STAGES);
        job->stages[job->stage_count++] = i;
        return LH_OK;
    }
    const char *best = text_nearest_name(&near);
    if (best != NULL)
        JOB_REFUSE(job, "pipeline", "stages", "... %s: no such stage; did you mean '%s'?", name,
                   best);
    JOB_REFUSE(job, "pipeline", "stages",
               "... %s: no such stage; they are prepare import train eval export generate", name);
}

/* Blanks and commas both separate, as people write either. */
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
        JOB_REFUSE(job, "pipeline", "stages", "nothing: name at least one stage");
    return status;
}

/* First of all sections: the others are required or not by the stages that it names. The name
 * becomes part of paths, pages and sentences, hence the characters that it may not have. */
static lh_status_t parse_pipeline(job_t *job)
{
    lh_status_t status = parse_section(job, job_section("pipeline"), 1u);
    if (status != LH_OK) return status;
    if (text_equal(job->pipeline.name, ".") || text_equal(job->pipeline.name, ".."))
        JOB_REFUSE(job, "pipeline", "name", "%s: it names a folder of out/", job->pipeline.name);
    for (const char *c = job->pipeline.name; *c != '\0'; c++)
        if (strchr("/\\<>&\"'", *c) != NULL || (unsigned char)*c < 0x20)
            JOB_REFUSE(job, "pipeline", "name", "%s: a name holds no '%c'", job->pipeline.name, *c);

    if (job->pipeline.folder == NULL) {
        text_t folder = {0};
        text_printf(&folder, "%s/out/%s", job->base, job->pipeline.name);
        if (folder.failed) text_free(&folder);
        job->pipeline.folder = folder.data;
        if (folder.data == NULL) return LH_NO_MEMORY;
    }
    return parse_stages(job);
}

/* decay may be unset, which no number says: it is read as text and parsed here. The texts of `text`
 * go over to the group, so only decay is freed. */
static lh_status_t parse_group(job_t *job, const document_section_t *s, job_group_t *group)
{
    char where[JOB_WHERE_BYTES];
    job_group_text_t text = {0};
    const job_section_t *section = job_section("group.*");
    const option_table_t table = job_section_table(section, &text);
    const options_how_t how = {.document = job->document,
                               .section = s->name,
                               .tables = &table,
                               .table_count = 1,
                               .folder = job->base};
    lh_status_t status = options_parse(&how);
    if (status != LH_OK) return status;

    group->match = text.match;
    group->rule = text.rule;
    group->rate = text.rate;
    group->frozen = text.frozen;
    group->decay = NAN;
    if (text.decay != NULL && (!quantity_f64(text.decay, &group->decay) || group->decay < 0)) {
        job_where(job, s->name, "decay", where);
        status = fail(LH_INVALID, "%s: decay = %s: expected a number from 0 on", where, text.decay);
    }
    mem_free(text.decay);
    group->name = mem_text(s->name + strlen("group."));
    return group->name == NULL ? LH_NO_MEMORY : status;
}

/* The group is counted before it is parsed: job_free then frees what a failure left in it. */
static lh_status_t parse_groups(job_t *job)
{
    const uint32_t count = document_section_count(job->document);
    size_t capacity = 0;
    for (uint32_t i = 0; i < count; i++) {
        const document_section_t *s = document_section(job->document, i);
        if (!section_matches("group.*", s->name)) continue;
        job_group_t *groups = mem_grow(job->groups, &capacity, job->group_count + 1u,
                                       sizeof(*groups));
        if (groups == NULL) return LH_NO_MEMORY;
        job->groups = groups;
        const lh_status_t status = parse_group(job, s, &groups[job->group_count++]);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* One adapter a job: all of it trains. */
static lh_status_t parse_adapter(job_t *job)
{
    for (uint32_t i = 0; i < document_section_count(job->document); i++) {
        const document_section_t *s = document_section(job->document, i);
        if (!section_matches("adapter.*", s->name)) continue;
        if (job->adapter.name != NULL) {
            char where[JOB_WHERE_BYTES];
            document_where(s->file, s->line, where, sizeof(where));
            return fail(LH_INVALID,
                        "%s: [%s] is the second adapter; expected one beside [adapter.%s]", where,
                        s->name, job->adapter.name);
        }
        const option_table_t table = job_section_table(job_section("adapter.*"), &job->adapter);
        const options_how_t how = {
            .document = job->document, .section = s->name, .tables = &table, .table_count = 1};
        const lh_status_t status = options_parse(&how);
        if (status != LH_OK) return status;
        job->adapter.name = mem_text(s->name + strlen("adapter."));
        if (job->adapter.name == NULL) return LH_NO_MEMORY;
    }
    if (job->import.adapter != NULL && job->adapter.name == NULL)
        JOB_REFUSE(job, "import", "adapter",
                   "%s: the job has no [adapter.NAME]; expected one that "
                   "says which matrices it changes",
                   job->import.adapter);
    if (job->export.adapter == EXPORT_ADAPTER_SEPARATE && job->adapter.name == NULL)
        JOB_REFUSE(job, "export", "adapter", "separate: the job has no [adapter.NAME]");
    return LH_OK;
}

/* Of [eval] beside sets, which have these keys themselves. `check` writes out every key: one that has
 * its default is no demand. */
static lh_status_t check_beside_sets(const job_t *job)
{
    const job_section_t *eval = job_section("eval");
    for (uint32_t i = 0; i < eval->count; i++) {
        char buffer[OPTION_TEXT];
        const lh_option_t *row = &eval->rows[i];
        if (strcmp(row->key, "tokenizer") == 0) continue;
        if (option_is_default(row, &job->eval)) continue;
        const char *value = option_text(row, &job->eval, buffer);
        JOB_REFUSE(job, "eval", row->key,
                   "%s: what is scored are the sets [eval.NAME] of this job; expected no %s "
                   "beside them",
                   value == NULL ? "" : value, row->key);
    }
    return LH_OK;
}

/* A set is counted before it is parsed, as a group. */
static lh_status_t parse_eval_sets(job_t *job)
{
    size_t capacity = 0;
    for (uint32_t i = 0; i < document_section_count(job->document); i++) {
        const document_section_t *s = document_section(job->document, i);
        if (!section_matches("eval.*", s->name)) continue;
        const lh_status_t beside = check_beside_sets(job);
        if (beside != LH_OK) return beside;
        job_eval_set_t *sets = mem_grow(job->eval_sets, &capacity, job->eval_set_count + 1u,
                                        sizeof(*sets));
        if (sets == NULL) return LH_NO_MEMORY;
        job->eval_sets = sets;
        job_eval_set_t *set = &sets[job->eval_set_count++];
        const option_table_t table = job_section_table(job_section("eval.*"), set);
        const options_how_t how = {
            .document = job->document, .section = s->name, .tables = &table, .table_count = 1};
        const lh_status_t status = options_parse(&how);
        if (status != LH_OK) return status;
        set->name = mem_text(s->name + strlen("eval."));
        if (set->name == NULL) return LH_NO_MEMORY;
        if (set->kind == EVAL_CHOICE &&
            quantity_choice(set->data, "train|valid|test", &(uint32_t){0}))
            JOB_REFUSE(job, s->name, "data", "%s: expected a JSONL file of prompts and choices",
                       set->data);
    }
    return LH_OK;
}

static bool is_sha256(const char *text)
{
    return strlen(text) == 64 && strspn(text, "0123456789abcdefABCDEF") == 64;
}

/* Digits are made small letters, as digests are written here. */
static lh_status_t parse_pin(job_t *job, const document_section_t *s, job_pin_t *pin)
{
    const option_table_t table = job_section_table(job_section("plugin.*"), pin);
    const options_how_t how = {
        .document = job->document, .section = s->name, .tables = &table, .table_count = 1};
    const lh_status_t status = options_parse(&how);
    if (status != LH_OK) return status;
    pin->name = mem_text(s->name + strlen("plugin."));
    if (pin->name == NULL) return LH_NO_MEMORY;
    if (pin->sha256 != NULL && !is_sha256(pin->sha256))
        JOB_REFUSE(job, s->name, "sha256", "%s: expected 64 hexadecimal digits", pin->sha256);
    for (char *c = pin->sha256; c != NULL && *c != '\0'; c++)
        *c = (char)tolower((unsigned char)*c);
    return LH_OK;
}

/* A pin of a plugin that the job does not use is no mistake; `check` refuses one of a plugin that
 * is not installed. */
static lh_status_t parse_pins(job_t *job)
{
    size_t capacity = 0;
    for (uint32_t i = 0; i < document_section_count(job->document); i++) {
        const document_section_t *s = document_section(job->document, i);
        if (!section_matches("plugin.*", s->name)) continue;
        job_pin_t *pins = mem_grow(job->pins, &capacity, job->pin_count + 1u, sizeof(*pins));
        if (pins == NULL) return LH_NO_MEMORY;
        job->pins = pins;
        const lh_status_t status = parse_pin(job, s, &pins[job->pin_count++]);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* Whether [site.*] hosts and spares are of more than one machine, by their names. */
static bool has_machines(const job_t *job)
{
    for (uint32_t i = 0; i < job->site_count; i++)
        if (job->sites[i].spare_count > 0) return true;
    for (uint32_t i = 0; i < job->site_count; i++)
        for (uint32_t k = 0; k < job->sites[i].host_count; k++)
            if (strcmp(job->sites[i].hosts[k].name, job->sites[0].hosts[0].name) != 0) return true;
    return false;
}

/* Over several machines somebody is lost every few hours, and nobody watches; on one machine whoever
 * started the job mostly does. */
static lh_status_t parse_restart(job_t *job)
{
    enum { BY_ITSELF = 3 };
    uint64_t most;
    if (strcmp(job->launch.restart, "auto") == 0)
        most = has_machines(job) ? BY_ITSELF : 0;
    else if (!quantity_u64(job->launch.restart, &most) || most > JOB_RESTARTS)
        JOB_REFUSE(job, "launch", "restart", "%s: expected auto or a whole number from 0 to %d",
                   job->launch.restart, JOB_RESTARTS);
    job->launch.restarts = most;
    return LH_OK;
}

/* Each of a comma-separated list, against a folder. Takes *list apart in place and puts a new text
 * there. */
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

/* An absolute path stays as it is (path_join). */
static lh_status_t resolve_path(const char *folder, char **path)
{
    if (*path == NULL) return LH_OK;
    char *joined = path_join(folder, *path);
    if (joined == NULL) return LH_NO_MEMORY;
    mem_free(*path);
    *path = joined;
    return LH_OK;
}

/* The folder that a key's relative paths are taken against. mem_free; NULL after fail(). */
static char *folder_of(const job_t *job, const char *section, const char *key)
{
    return document_folder(document_entry(document_find(job->document, section), key), job->base);
}

/* A list of paths and patterns; the folder that they are taken against must not read as one. The
 * folder becomes part of each pattern, where its own brackets and stars would be read as such. */
static lh_status_t resolve_input(job_t *job)
{
    char *folder = folder_of(job, "prepare", "input");
    lh_status_t status = folder == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK && strpbrk(folder, ",*?[") != NULL)
        status = fail(LH_INVALID,
                      "%s: the folder's name holds one of ,*?[ which mean something "
                      "in [prepare] input",
                      folder);
    if (status == LH_OK) status = resolve_list(folder, &job->prepare.input);
    mem_free(folder);
    return status;
}

/* A name of a split is no path. */
static lh_status_t resolve_eval_data(const job_t *job, const char *section, char **data)
{
    uint32_t index;
    if (quantity_choice(*data, "train|valid|test", &index)) return LH_OK;
    char *folder = folder_of(job, section, "data");
    const lh_status_t status = folder == NULL ? LH_NO_MEMORY : resolve_path(folder, data);
    mem_free(folder);
    return status;
}

/* Where no set is named, [eval] is the only one. */
static lh_status_t resolve_eval(job_t *job)
{
    lh_status_t status = resolve_eval_data(job, "eval", &job->eval.data);
    for (uint32_t i = 0; status == LH_OK && i < job->eval_set_count; i++) {
        char section[128];
        (void)snprintf(section, sizeof(section), "eval.%s", job->eval_sets[i].name);
        status = resolve_eval_data(job, section, &job->eval_sets[i].data);
    }
    if (status != LH_OK || job->eval_set_count > 0) return status;
    job->eval_sets = mem_new(sizeof(*job->eval_sets));
    if (job->eval_sets == NULL) return LH_NO_MEMORY;
    job->eval_set_count = 1;
    *job->eval_sets = (job_eval_set_t){.data = mem_text(job->eval.data),
                                       .tokens_per_document = job->eval.tokens_per_document,
                                       .bos = job->eval.bos,
                                       .key = mem_text(job->eval.key)};
    return job->eval_sets->data == NULL || job->eval_sets->key == NULL ? LH_NO_MEMORY : LH_OK;
}

/* Last, once values are checked as they were typed: sentences then show what stands in the file.
 * PATH options were made absolute when they were parsed; these are the keys that are lists, or that
 * are taken against the pipeline's folder. */
static lh_status_t resolve_paths(job_t *job)
{
    char **const inside[] = {&job->prepare.output, &job->checkpoint.folder, &job->export.folder};
    for (size_t i = 0; i < sizeof(inside) / sizeof(inside[0]); i++) {
        const lh_status_t status = resolve_path(job->pipeline.folder, inside[i]);
        if (status != LH_OK) return status;
    }
    for (uint32_t i = 0; i < job->site_count; i++) {
        char **folder = &job->sites[i].checkpoint_folder;
        if (*folder == NULL || **folder == '\0') continue;
        const lh_status_t resolved = resolve_path(job->pipeline.folder, folder);
        if (resolved != LH_OK) return resolved;
    }
    const lh_status_t status = job->prepare.input == NULL ? LH_OK : resolve_input(job);
    return status == LH_OK ? resolve_eval(job) : status;
}

/* The order matters: stages decide what is required, sites how many ranks there are, and values
 * that cross sections are checked when all are there. only: the one stage that counts of those that
 * are named, or JOB_STAGES. */
static lh_status_t parse_all(job_t *job, uint32_t only)
{
    uint32_t count;
    const job_section_t *all = job_sections(&count);
    for (uint32_t i = 0; i < document_section_count(job->document); i++) {
        const lh_status_t status = check_section_name(document_section(job->document, i));
        if (status != LH_OK) return status;
    }
    lh_status_t status = parse_pipeline(job);
    if (only < JOB_STAGES) {
        job->stages[0] = only;
        job->stage_count = 1;
    }
    for (uint32_t i = 1; status == LH_OK && i < count; i++)
        if (has_struct(&all[i])) status = parse_section(job, &all[i], stage_bits(job));
    if (status == LH_OK) status = job_watch_parse(job, NULL);
    if (status == LH_OK) status = parse_groups(job);
    if (status == LH_OK) status = parse_adapter(job);
    if (status == LH_OK) status = parse_eval_sets(job);
    if (status == LH_OK) status = parse_pins(job);
    if (status == LH_OK) status = job_sites_parse(job);
    if (status == LH_OK) status = parse_restart(job);
    if (status == LH_OK) status = job_check(job);
    if (status == LH_OK) status = resolve_paths(job);
    if (status == LH_OK) status = job_check_written(job);
    return status;
}

/* The folder of the INI counts, not the one that the program was started in. */
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

/* Nothing of a job that fails is left behind. */
static lh_status_t load_stages(const char *path, const char *const *sets, uint32_t set_count,
                               uint32_t only, job_t **out)
{
    job_t *job = mem_new(sizeof(*job));
    if (job == NULL) return LH_NO_MEMORY;

    lh_status_t status = load_text(job, path, sets, set_count);
    if (status == LH_OK) status = parse_all(job, only);
    if (status != LH_OK) {
        job_free(job);
        return status;
    }
    *out = job;
    return LH_OK;
}

lh_status_t job_load(const char *path, const char *const *sets, uint32_t set_count, job_t **out)
{
    return load_stages(path, sets, set_count, JOB_STAGES, out);
}

lh_status_t job_load_for(const char *path, const char *const *sets, uint32_t set_count,
                         uint32_t stage, job_t **out)
{
    lh_assert(stage < JOB_STAGES);
    return load_stages(path, sets, set_count, stage, out);
}

/* Structs of job_t are freed by their tables, lists by hand. */
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
        mem_free(job->groups[i].rule);
    }
    mem_free(job->groups);
    mem_free(job->adapter.name);
    mem_free(job->adapter.match);
    for (uint32_t i = 0; i < job->eval_set_count; i++) {
        mem_free(job->eval_sets[i].name);
        const option_table_t table = job_section_table(job_section("eval.*"), &job->eval_sets[i]);
        options_free(table.rows, table.count, &job->eval_sets[i]);
    }
    mem_free(job->eval_sets);
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
