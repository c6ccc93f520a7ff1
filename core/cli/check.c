/* check.c - the files of a job, and its training step recorded without a device.
 *
 * Recording is cheap: it runs the model's plugin once per kind of part, writes the lists of a step,
 * and stops before kernels are chosen. So a mistake of shapes, of a schedule or of the order of
 * transfers is found on a laptop without any of the job's accelerators.
 *
 * The table of bytes is of what lasts from step to step: parameters, gradients, master weights,
 * optimizer state. Activations and buffers need kernels and a plan; `longhaul plan` has them. */
#include <cli/check.h>

#include <fcntl.h>
#include <stdio.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/saver_share.h>
#include <config/job_outputs.h>
#include <config/members.h>
#include <config/options.h>
#include <data/input_lines.h>
#include <data/samples.h>
#include <engine/engine.h>
#include <engine/weights.h>
#include <parallel/shards.h>
#include <parallel/transfer_order.h>
#include <plan/alike.h>
#include <session/link_record.h>
#include <subword/token_pieces.h>
#include <train/train_memory.h>

/* ---- what the job would write over ---- */

/* A file that is not there is somebody else's concern. */
static lh_status_t check_file(const job_outputs_t *outputs, const char *key, const char *path)
{
    struct stat st;
    if (path == NULL || sys()->stat(path, &st) != 0) return LH_OK;
    const job_output_t *o = job_outputs_at(outputs, &st);
    if (o == NULL) return LH_OK;
    return fail(LH_INVALID, "%s: %s would be lost: %s writes over it, as %s", key, path, o->by,
                o->path);
}

/* Patterns are left to the stage itself, which leaves its own outputs out of what they match. */
static lh_status_t check_list(const job_outputs_t *outputs, const char *key, const char *list)
{
    if (list == NULL) return LH_OK;
    char *copy = mem_text(list), *rest = copy;
    lh_status_t status = copy == NULL ? LH_NO_MEMORY : LH_OK;
    while (status == LH_OK && rest != NULL) {
        const char *path = text_trim(strsep(&rest, ","));
        if (!input_files_is_pattern(path)) status = check_file(outputs, key, path);
    }
    mem_free(copy);
    return status;
}

/* The INI may lie in the folder that it names, but not under the name of an output. */
static lh_status_t check_document_files(const job_outputs_t *outputs, const document_t *document)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < document_file_count(document); i++)
        status = check_file(outputs, "[pipeline] folder", document_file(document, i));
    return status;
}

/* Every key that names a file which a stage reads is listed here; a new one must be added. */
lh_status_t check_inputs(const job_t *job)
{
    job_outputs_t outputs;
    lh_status_t status = job_outputs_find(job, &outputs);
    if (status != LH_OK) return status;
    const struct {
        const char *key, *path;
    } files[] = {
        {"[prepare] tokenizer", job->prepare.tokenizer},
        {"[eval] tokenizer", job->eval.tokenizer},
        {"[generate] prompts", job->generate.prompts},
        {"[dpo] reference", job->dpo.reference},
        {"[launch] secret", job->launch.secret},
        {"[parallel] schedule", job->parallel.schedule},
    };
    status = check_document_files(&outputs, job->document);
    if (status == LH_OK) status = check_list(&outputs, "[prepare] input", job->prepare.input);
    for (size_t i = 0; status == LH_OK && i < sizeof(files) / sizeof(files[0]); i++)
        status = check_file(&outputs, files[i].key, files[i].path);
    for (uint32_t i = 0; status == LH_OK && i < job->eval_set_count; i++)
        status = check_file(&outputs, "[eval] data", job->eval_sets[i].data);
    job_outputs_free(&outputs);
    return status;
}

/* ---- there, or made before ---- */

/* Neither may be there yet. Spelled differently the same folder is still the same: first by what
 * the system says, then by text, for what is not there yet. */
static bool path_holds(const char *above, const char *below)
{
    if (folder_holds(above, below)) return true;
    char *a = mem_text(above), *b = mem_text(below);
    bool held = false;
    if (a != NULL && b != NULL) {
        job_path_drop_missing(a);
        job_path_drop_missing(b);
        const size_t length = strlen(a);
        held = strncmp(a, b, length) == 0 && (b[length] == '\0' || b[length] == '/');
    }
    mem_free(a);
    mem_free(b);
    return held;
}

/* Named by section and key, as the sentence begins with where they stand. */
static lh_status_t need_file(const job_t *job, const char *section, const char *key,
                             const char *path)
{
    if (path == NULL || file_exists(path)) return LH_OK;
    JOB_REFUSE(job, section, key, "%s: not there", path);
}

/* Position among the stages; stage_count: not one of them. */
static uint32_t turn_of(const job_t *job, uint32_t stage)
{
    uint32_t i = 0;
    lh_assert(stage < JOB_STAGES);
    while (i < job->stage_count && job->stages[i] != stage)
        i++;
    return i;
}

/* A data set that `reader` reads: the pair is there, or prepare makes it before. The index stands
 * for the pair. A set that an earlier run has left is good as well. */
static lh_status_t need_set(const job_t *job, const char *key, const char *name, uint32_t reader)
{
    char *path = path_join(job->pipeline.folder, name);
    char *made = path_join(job->pipeline.folder, job->prepare.output);
    text_t index = {0};
    char where[JOB_WHERE_BYTES];
    text_printf(&index, "%s.idx", path);
    lh_status_t status = path == NULL || made == NULL ? LH_NO_MEMORY : text_status(&index);
    if (status == LH_OK) job_where(job, "data", key, where);
    /* prepare makes this very set: the same path, and the stage is in the job. */
    const bool is_made = status == LH_OK && strcmp(path, made) == 0 &&
                         job_has_stage(job, STAGE_PREPARE);
    /* Three cases: made by an earlier stage, made by a later one, or by nobody. A set that is there
     * already passes in any of them. */
    if (is_made && turn_of(job, STAGE_PREPARE) > turn_of(job, reader) && !file_exists(index.data))
        status = fail(LH_INVALID, "%s: %s = %s is read by %s, which comes before prepare", where,
                      key, name, job_stage_names[reader]);
    else if (status == LH_OK && !is_made && !file_exists(index.data))
        status = fail(LH_INVALID, "%s: %s = %s: %s is not there, and no stage makes it", where, key,
                      name, index.data);
    text_free(&index);
    mem_free(made);
    mem_free(path);
    return status;
}

/* Each set of a blend by itself; the weights do not matter. */
static lh_status_t need_sets(const job_t *job, const char *key, const char *list, uint32_t reader)
{
    samples_blend_list_t parts;
    if (list == NULL) return LH_OK;
    lh_status_t status = samples_blend_parse(list, &parts);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; status == LH_OK && i < parts.count; i++)
        status = need_set(job, key, parts.parts[i].name, reader);
    samples_blend_list_free(&parts);
    return status;
}

/* A split without a set of its own is a part of `train`. */
static lh_status_t need_split(const job_t *job, const char *split, uint32_t reader)
{
    const job_data_t *data = &job->data;
    if (strcmp(split, "valid") == 0 && data->valid != NULL)
        return need_sets(job, "valid", data->valid, reader);
    if (strcmp(split, "test") == 0 && data->test != NULL)
        return need_sets(job, "test", data->test, reader);
    return need_sets(job, "train", data->train, reader);
}

/* An import brings one as well. */
static lh_status_t need_tokenizer_of(const job_t *job, const char *section, const char *path,
                                     uint32_t reader)
{
    char *imported = job_path(job, "import");
    if (imported == NULL) return LH_NO_MEMORY;
    const bool made = path != NULL && path_holds(imported, path) &&
                      turn_of(job, STAGE_IMPORT) < turn_of(job, reader);
    mem_free(imported);
    return made ? LH_OK : need_file(job, section, "tokenizer", path);
}

/* The one that a stage takes which reads or writes text: the first that is named counts. */
static lh_status_t need_tokenizer(const job_t *job, uint32_t reader)
{
    return job->prepare.tokenizer != NULL
               ? need_tokenizer_of(job, "prepare", job->prepare.tokenizer, reader)
               : need_tokenizer_of(job, "eval", job->eval.tokenizer, reader);
}

/* What was imported is there, or an earlier stage imports. A job imports where [import] from is set,
 * whether or not it has that stage. */
static lh_status_t need_import(const job_t *job, uint32_t reader)
{
    if (job->import.from == NULL || turn_of(job, STAGE_IMPORT) < turn_of(job, reader)) return LH_OK;
    char *made = job_path(job, "import/config.json");
    if (made == NULL) return LH_NO_MEMORY;
    const bool there = file_exists(made);
    mem_free(made);
    if (there) return LH_OK;
    JOB_REFUSE(job, "import", "from",
               "%s: nothing is imported yet, and no stage before %s imports it", job->import.from,
               job_stage_names[reader]);
}

/* Weights: a folder of checkpoints, whatever it holds, or what an earlier stage trains or imports. */
static lh_status_t need_weights(const job_t *job, uint32_t reader)
{
    const uint32_t turn = turn_of(job, reader);
    lh_status_t status = need_import(job, reader);
    if (status != LH_OK || job->import.from != NULL || turn_of(job, STAGE_TRAIN) < turn ||
        file_exists(job->checkpoint.folder))
        return status;
    JOB_REFUSE(
        job, "pipeline", "stages",
        "... %s: it reads a checkpoint; %s is not there, and no stage before trains or imports",
        job_stage_names[reader], job->checkpoint.folder);
}

/* Finding the files is all: nothing of them is read. */
static lh_status_t need_prepare(const job_t *job)
{
    input_files_t files;
    const lh_status_t status = input_files_of(job, &files);
    if (status != LH_OK) return status;
    input_files_free(&files);
    return need_tokenizer_of(job, "prepare", job->prepare.tokenizer, STAGE_PREPARE);
}

/* The tokenizer gives the vocabulary, so training needs it, too. */
static lh_status_t need_train(const job_t *job)
{
    lh_status_t status = need_tokenizer(job, STAGE_TRAIN);
    if (status == LH_OK) status = need_import(job, STAGE_TRAIN);
    if (status == LH_OK) status = need_split(job, "train", STAGE_TRAIN);
    if (status == LH_OK && job->train.evaluate_every > 0)
        status = need_split(job, "valid", STAGE_TRAIN);
    if (status == LH_OK && job->train.phase == PHASE_DPO)
        status = need_file(job, "dpo", "reference", job->dpo.reference);
    return status;
}

static bool eval_data_is_split(const char *data)
{
    return text_equal(data, "train") || text_equal(data, "valid") || text_equal(data, "test");
}

/* data is the name of a split, or a file. */
static lh_status_t need_eval_set(const job_t *job, const job_eval_set_t *set)
{
    const char *data = set->data;
    char section[128] = "eval";
    if (set->name != NULL) (void)snprintf(section, sizeof(section), "eval.%s", set->name);
    return eval_data_is_split(data) ? need_split(job, data, STAGE_EVAL)
                                    : need_file(job, section, "data", data);
}

/* Splits of pairs are scored beside the reference. */
static lh_status_t need_eval(const job_t *job)
{
    lh_status_t status = need_tokenizer_of(job, "eval", job->eval.tokenizer, STAGE_EVAL);
    if (status == LH_OK) status = need_tokenizer(job, STAGE_EVAL);
    if (status == LH_OK) status = need_weights(job, STAGE_EVAL);
    for (uint32_t i = 0; status == LH_OK && i < job->eval_set_count; i++)
        status = need_eval_set(job, &job->eval_sets[i]);
    for (uint32_t i = 0; status == LH_OK && i < job->eval_set_count; i++)
        if (eval_data_is_split(job->eval_sets[i].data) && job->train.phase == PHASE_DPO)
            status = need_file(job, "dpo", "reference", job->dpo.reference);
    return status;
}

/* Prompts are read, and ids where these are given instead; a chat needs a format. */
static lh_status_t need_generate(const job_t *job)
{
    const job_generate_t *g = &job->generate;
    token_ids_t ids = {0};
    lh_status_t status = need_tokenizer(job, STAGE_GENERATE);
    if (status == LH_OK) status = need_file(job, "generate", "prompts", g->prompts);
    if (status == LH_OK) status = need_weights(job, STAGE_GENERATE);
    if (status != LH_OK) return status;
    const bool by_ids = g->ids != NULL && g->prompts == NULL;
    if (g->chat && !by_ids && job->chat.format == CHAT_NONE)
        JOB_REFUSE(job, "generate", "chat", "yes: [chat] format is not set; longhaul help chat");
    if (by_ids && token_ids_parse(g->ids, &ids) != LH_OK) {
        char why[256];
        (void)snprintf(why, sizeof(why), "%s", fail_reason());
        token_ids_free(&ids);
        return fail(LH_INVALID, "%s: [generate] %s", job->path, why);
    }
    token_ids_free(&ids);
    return LH_OK;
}

static lh_status_t need_export(const job_t *job)
{
    const lh_status_t status = need_tokenizer(job, STAGE_EXPORT);
    return status == LH_OK ? need_weights(job, STAGE_EXPORT) : status;
}

/* A share of 0 of `train` has no sample, however many documents there are; how few are too few for
 * another share, the data say. */
static lh_status_t need_share(const job_t *job, const char *split, uint32_t reader)
{
    static const char *const names[] = {"train", "valid", "test"};
    static const uint64_t many = UINT64_C(1) << 50;
    const char *own[] = {NULL, job->data.valid, job->data.test};
    uint64_t bounds[3][2];
    uint32_t which = 0;
    while (which < 3 && strcmp(split, names[which]) != 0)
        which++;
    if (which == 3 || own[which] != NULL) return LH_OK;
    const lh_status_t status = samples_split(job->data.split, many, bounds);
    if (status != LH_OK || bounds[which][0] < bounds[which][1]) return status;
    JOB_REFUSE(job, "data", "split", "%s: %s reads the %s split, whose share is 0", job->data.split,
               job_stage_names[reader], split);
}

/* Of all that training and evaluation read. */
static lh_status_t need_shares(const job_t *job)
{
    const bool trains = job_has_stage(job, STAGE_TRAIN), evals = job_has_stage(job, STAGE_EVAL);
    lh_status_t status = trains ? need_share(job, "train", STAGE_TRAIN) : LH_OK;
    if (status == LH_OK && trains && job->train.evaluate_every > 0)
        status = need_share(job, "valid", STAGE_TRAIN);
    for (uint32_t i = 0; status == LH_OK && evals && i < job->eval_set_count; i++)
        status = need_share(job, job->eval_sets[i].data, STAGE_EVAL);
    return status;
}

/* In the order of a whole pipeline, whatever the order of the INI. */
lh_status_t check_inputs_there(const job_t *job)
{
    lh_status_t status = LH_OK;
    if (job_has_stage(job, STAGE_PREPARE)) status = need_prepare(job);
    if (status == LH_OK && job_has_stage(job, STAGE_IMPORT))
        status = need_file(job, "import", "adapter", job->import.adapter);
    if (status == LH_OK && job_has_stage(job, STAGE_TRAIN)) status = need_train(job);
    if (status == LH_OK && job_has_stage(job, STAGE_EVAL)) status = need_eval(job);
    if (status == LH_OK && job_has_stage(job, STAGE_EXPORT)) status = need_export(job);
    if (status == LH_OK && job_has_stage(job, STAGE_GENERATE)) status = need_generate(job);
    return status == LH_OK ? need_shares(job) : status;
}

/* ---- an export ---- */

/* folder NULL: the job has none of that kind. */
static lh_status_t refuse_holding(const char *target, const char *folder, const char *what)
{
    if (folder == NULL || !path_holds(target, folder)) return LH_OK;
    return fail(LH_INVALID, "[export] folder %s is or holds %s, %s: name a folder of its own",
                target, what, folder);
}

/* An export takes the place of an earlier one as a whole, so nothing else may lie in its folder. */
lh_status_t check_export_target(const job_t *job, const char *import_folder)
{
    const char *target = job->export.folder;
    const struct {
        const char *folder, *what;
    } kept[] = {
        {job->pipeline.folder, "the pipeline's folder"},
        {job->checkpoint.folder, "the checkpoints"},
        {import_folder, "what was imported"},
        {job->import.from, "the model that is imported"},
        {job->import.adapter, "the adapter that is imported"},
    };
    lh_status_t status = LH_OK;
    for (size_t i = 0; status == LH_OK && i < sizeof(kept) / sizeof(kept[0]); i++)
        status = refuse_holding(target, kept[i].folder, kept[i].what);
    if (status != LH_OK || job->prepare.tokenizer == NULL) return status;

    char *folder = path_folder(job->prepare.tokenizer);
    if (folder == NULL) return LH_NO_MEMORY;
    status = refuse_holding(target, folder, "the folder of the tokenizer");
    mem_free(folder);
    return status == LH_OK ? refuse_holding(target, job->prepare.tokenizer, "the tokenizer")
                           : status;
}

/* ---- the training step ---- */

/* Above this many ranks only rank 0 is counted: slices differ by one unit at most. */
enum { RANKS_COUNTED = 64, RANKS_SHOWN = 8 };

static const uint32_t kinds[] = {MEMORY_PARAMETERS, MEMORY_GRADIENTS, MEMORY_MASTER, MEMORY_STATE,
                                 MEMORY_REFERENCE};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* What count_all fills and counting_write_table prints. */
typedef struct counting {
    const check_step_t *step;
    memory_report_t ranks[RANKS_COUNTED];
    uint32_t count;
} counting_t;

/* What a training step can't be without; the rest has defaults. */
bool check_step_is_told(const job_t *job)
{
    return job->model.plugin != NULL && job->optimizer.plugin != NULL &&
           job->optimizer.rule != NULL && job->train.batch > 0 && job->train.sequence > 0;
}

/* World, session and programs of one rank, recorded. The caller frees it whatever rank_record
 * returns. */
typedef struct recorded_rank {
    world_t *world;
    session_t *session;
    step_programs_t programs;
} recorded_rank_t;

static void rank_free(recorded_rank_t *r)
{
    step_programs_free(&r->programs);
    session_close(r->session);
    world_free(r->world);
    *r = (recorded_rank_t){0};
}

/* documents_per_sample is 0: no data is opened, so the bound counts. */
static lh_status_t rank_record(const check_step_how_t *how, uint32_t rank, recorded_rank_t *out)
{
    *out = (recorded_rank_t){0};
    lh_status_t status = world_plan(how->job, rank, &out->world);
    if (status != LH_OK) return status;
    const session_how_t session = {.job = how->job,
                                   .registry = how->registry,
                                   .given = how->given,
                                   .given_count = how->given_count,
                                   .recorded = true,
                                   .world = out->world};
    status = session_open(&session, &out->session);
    if (status != LH_OK) return status;
    const step_layout_t layout = step_layout(how->job, rank, out->world->row.size, 0);
    status = step_programs_new(out->session, &layout, NULL, &out->programs);
    return status == LH_OK ? engine_arrange(out->session->engine) : status;
}

/* *out gets what was made before a failure, for check_step_close. */
lh_status_t check_step_open(const check_step_how_t *how, check_step_t *out)
{
    recorded_rank_t first;
    const lh_status_t status = rank_record(how, 0, &first);
    *out = (check_step_t){
        .how = *how, .world = first.world, .session = first.session, .programs = first.programs};
    return status;
}

/* Ranks that are alike (plan/alike.h) have lists that are, but for the size of what sites sum again. Sizes are
 * compared by all ranks of a run anyway, group by group (comm_agree.c). */
typedef struct rank_lists {
    transfer_list_t *of_rank; /* [ranks] those of ranks that are alike are one */
    alike_t *facts;           /* [count] of the lists that were recorded */
    transfer_list_t *recorded;
    uint32_t count;
    bool shared; /* ranks may share lists */
    bool apart;  /* but none any more, as one sends to another or receives */
} rank_lists_t;

/* Records a rank, unless it is rank 0, whose step is there, and keeps its list. */
static lh_status_t list_record(const check_step_t *s, uint32_t rank, rank_lists_t *l)
{
    recorded_rank_t own = {0};
    transfer_list_t *list = &l->recorded[l->count];
    lh_status_t status = rank > 0 ? rank_record(&s->how, rank, &own) : LH_OK;
    const session_t *session = rank > 0 ? own.session : s->session;
    if (status == LH_OK) status = transfer_rows(session->engine, &list->rows, &list->count);
    rank_free(&own);
    if (status != LH_OK) return status;
    l->facts[l->count++] = alike_of(s->how.job, s->world, rank);
    l->apart = l->apart || transfer_rows_pair(list->rows, list->count);
    for (uint32_t i = 0; l->shared && i < list->count; i++)
        if (list->rows[i].transfer.group == LH_GROUP_ACROSS) list->rows[i].transfer.elements = 0;
    return LH_OK;
}

/* The list of a rank: that of one which is alike, or one of its own. */
static lh_status_t list_find(const check_step_t *s, uint32_t rank, rank_lists_t *l)
{
    const alike_t facts = alike_of(s->how.job, s->world, rank);
    uint32_t i = 0;
    while (i < l->count && (!l->shared || l->apart || !alike_same(&l->facts[i], &facts)))
        i++;
    const lh_status_t status = i < l->count ? LH_OK : list_record(s, rank, l);
    if (status == LH_OK) l->of_rank[rank] = l->recorded[i];
    return status;
}

lh_status_t check_step_order(const check_step_t *s)
{
    const uint32_t ranks = s->world->row.size;
    if (ranks == 1) return LH_OK;
    rank_lists_t l = {.of_rank = mem_array(ranks, sizeof(*l.of_rank)),
                      .facts = mem_array(ranks, sizeof(*l.facts)),
                      .recorded = mem_array(ranks, sizeof(*l.recorded)),
                      .shared = ranks > CHECK_STEP_RECORDED};
    const bool room = l.of_rank != NULL && l.facts != NULL && l.recorded != NULL;
    lh_status_t status = room ? LH_OK : LH_NO_MEMORY;
    for (uint32_t r = 0; status == LH_OK && r < ranks; r++)
        status = list_find(s, r, &l);
    if (status == LH_OK) status = transfer_order_check(s->world, l.of_rank);
    transfer_lists_free(l.recorded, l.count);
    mem_free(l.of_rank);
    mem_free(l.facts);
    return status;
}

/* Each value is gathered for the pass forward and for the pass back. */
void check_borders(const session_t *s)
{
    if (s->transfers == NULL || !transfers_values_cross(s->transfers)) return;
    log_line(
        LH_LOG_WARN,
        "values are cut over the ranks of %u sites: each pass gathers them over borders, forward "
        "and backward, %llu bytes a parameter; cut inside sites they would not cross",
        s->world->row.sites, 2 * (unsigned long long)lh_dtype_bytes(s->compute));
}

static void warn_of_half(const char *kind, const char *name)
{
    log_line(LH_LOG_WARN,
             "[launch] neither prefer nor witness is set: if %s %s is lost, the others are half of "
             "the ranks, which may not go on, and wait for it",
             kind, name);
}

/* A site is a half, or else a host; the others are the other one. What is lost without anything to take its
 * place ends the job, whoever is left. */
void check_halves(const job_t *job)
{
    const job_launch_t *how = &job->launch;
    const char *half = NULL;
    if (!members_change(job) || how->prefer != NULL || how->witness != NULL) return;
    for (uint32_t i = 0; i < job->site_count; i++) {
        const job_site_t *site = &job->sites[i];
        uint32_t ranks = 0;
        if (how->go_on_with == GO_ON_NONE && site->spare_count == 0) continue;
        for (uint32_t k = 0; k < site->host_count; k++) {
            ranks += site->hosts[k].ranks;
            if (2 * site->hosts[k].ranks == job->site_ranks) half = site->hosts[k].name;
        }
        if (2 * ranks != job->site_ranks) continue;
        warn_of_half("site", site->name);
        return;
    }
    if (half != NULL) warn_of_half("host", half);
}

static bool is_site(const job_t *job, const char *name)
{
    for (uint32_t s = 0; s < job->site_count; s++)
        if (strcmp(job->sites[s].name, name) == 0) return true;
    return false;
}

void check_links(const job_t *job, text_t *out)
{
    char line[512];
    probe_pair_t *rows;
    uint32_t count;
    if (job->site_count < 2) return;
    link_record_load(job, &rows, &count);
    for (uint32_t i = 0; i < count; i++) {
        if (!is_site(job, rows[i].site[0]) || !is_site(job, rows[i].site[1])) continue;
        link_probe_text(&rows[i], line, sizeof(line));
        text_t measured = {0};
        text_printf(&measured, "as measured before, %s", line);
        options_append_comment(&measured, out);
        text_free(&measured);
    }
    mem_free(rows);
}

void check_step_close(check_step_t *s)
{
    step_programs_free(&s->programs);
    session_close(s->session);
    world_free(s->world);
    *s = (check_step_t){0};
}

/* What a rank of such a world holds from step to step. Shards follow from any rank's session and the
 * world; nothing is recorded again. */
static lh_status_t held_bytes(session_t *session, const world_t *world, uint32_t rounds,
                              memory_report_t *out)
{
    shards_t *h = NULL;
    const update_how_t update = session_update_how(session, world, rounds);
    const shards_how_t held = {.parameters = weights_parameters(session->weights),
                               .frozen = session->groups.frozen,
                               .compute = session->compute,
                               .optimizer = &update.optimizer};
    lh_status_t status = shards_new(&held, &h);
    if (status == LH_OK) status = shards_memory(h, ENGINE_ALIGNMENT, out);
    shards_free(h);
    return status;
}

static lh_status_t count_rank(counting_t *c, uint32_t rank)
{
    lh_assert(rank < RANKS_COUNTED);
    session_t *session = c->step->session;
    world_t *world;
    lh_status_t status = world_plan(session->job, rank, &world);
    if (status != LH_OK) return status;
    memory_report_t *held = &c->ranks[rank];
    status = held_bytes(session, world, c->step->programs.schedule->rounds, held);
    world_free(world);
    if (session->reference != NULL) { /* whole on each */
        held->bytes[MEMORY_REFERENCE] = session->reference->value->allocation.bytes;
        held->total_bytes += held->bytes[MEMORY_REFERENCE];
    }
    return status;
}

/* Where ranks are too many, rank 0 stands for all. */
static lh_status_t count_all(counting_t *c)
{
    const uint32_t ranks = job_ranks(c->step->how.job);
    lh_status_t status = LH_OK;
    c->count = ranks <= RANKS_COUNTED ? ranks : 1;
    for (uint32_t r = 0; status == LH_OK && r < c->count; r++)
        status = count_rank(c, r);
    return status;
}

/* The last is of phase dpo alone. */
static uint32_t kinds_shown(const counting_t *c)
{
    return c->step->session->reference != NULL ? KINDS : KINDS - 1;
}

/* Bytes, unrounded: this is for comparing. */
static void counting_write_row(const counting_t *c, uint32_t rank, text_t *out)
{
    lh_assert(rank < c->count);
    const memory_report_t *m = &c->ranks[rank];
    text_printf(out, "; %6u", rank);
    for (uint32_t k = 0; k < kinds_shown(c); k++)
        text_printf(out, " %17llu", (unsigned long long)m->bytes[kinds[k]]);
    text_printf(out, " %17llu\n", (unsigned long long)m->total_bytes);
}

/* Lines begin with a semicolon, so that the whole output of `check` is still an INI. */
static void counting_write_table(const counting_t *c, text_t *out)
{
    const uint32_t ranks = job_ranks(c->step->how.job);
    uint32_t most = 0;
    text_append(out, "; bytes that a rank holds from step to step; longhaul plan says the rest\n"
                     ";   rank");
    for (uint32_t k = 0; k < kinds_shown(c); k++)
        text_printf(out, " %17s", engine_memory_text(kinds[k]));
    text_printf(out, " %17s\n", "total");
    for (uint32_t r = 0; r < c->count; r++) {
        if (c->ranks[r].total_bytes > c->ranks[most].total_bytes) most = r;
        if (ranks <= RANKS_SHOWN) counting_write_row(c, r, out);
    }
    /* Rank 0, and the one with the most if that is another. */
    if (ranks > RANKS_SHOWN) {
        counting_write_row(c, 0, out);
        if (most != 0) counting_write_row(c, most, out);
        text_printf(out, "; of %u ranks%s\n", ranks,
                    c->count < ranks ? ", which differ by little" : ": the first and the largest");
    }
    if (c->step->how.guessed_vocab > 0)
        text_printf(out,
                    "; with an embedding of %llu rows: how many there are, the tokenizer says\n",
                    (unsigned long long)c->step->how.guessed_vocab);
    text_append(out, "\n");
}

/* After check_step_open. */
lh_status_t check_step_memory(const check_step_t *s, text_t *out)
{
    counting_t *c = mem_new(sizeof(*c));
    if (c == NULL) return LH_NO_MEMORY;
    c->step = s;
    const lh_status_t status = count_all(c);
    if (status == LH_OK) counting_write_table(c, out);
    mem_free(c);
    return status;
}

/* ---- what checkpoints take ---- */

/* Of the folder, or of the nearest above it that is there. */
static uint64_t room_free(const char *folder)
{
    struct statvfs found;
    uint64_t bytes = UINT64_MAX;
    char *path = mem_text(folder);
    while (path != NULL) {
        const int fd = sys_open(path, O_RDONLY | O_DIRECTORY, 0);
        if (fd >= 0) {
            if (sys()->fstatvfs(fd, &found) == 0) bytes = (uint64_t)found.f_bavail * found.f_frsize;
            (void)sys()->close(fd);
        }
        char *above = fd >= 0 || strcmp(path, "/") == 0 || strcmp(path, ".") == 0
                          ? NULL
                          : path_folder(path);
        mem_free(path);
        path = above;
    }
    return bytes;
}

/* Checkpoints that keep_every leaves and keep would not, when the last one of a whole training is saved:
 * those of steps that are a multiple of `every` too, up to the newest that is none of `keep` and the
 * last. Those that are asked for besides are not known. */
static uint64_t kept_for_good(const job_t *job, uint64_t keep)
{
    const job_checkpoint_t *c = &job->checkpoint;
    const uint64_t steps = job->train.steps;
    if (c->every == 0 || c->keep_every == 0) return 0;
    const uint64_t saves = steps / c->every, newest = keep + (steps % c->every == 0);
    const uint64_t parts = c->keep_every / greatest_divisor(c->every, c->keep_every);
    return saves <= newest ? 0 : (saves - newest) / parts;
}

/* Never 0, which a sum of what an INI may say could come to: what is beyond any disk is cut. */
static uint64_t kept_at_once(const job_t *job)
{
    const job_checkpoint_t *c = &job->checkpoint;
    const uint64_t most = UINT64_MAX / 4, keep = c->keep < most ? c->keep : most;
    const uint64_t good = kept_for_good(job, keep);
    return keep + 1 + (good < most ? good : most) + c->keep_best;
}

/* Of what is trained, as FP32. */
static uint64_t updated_bytes(const session_t *session)
{
    const parameters_t *p = weights_parameters(session->weights);
    uint64_t elements = 0;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->items[i].storage == i &&
            !(session->groups.frozen != NULL && session->groups.frozen[i]))
            elements += p->items[i].elements;
    return elements * sizeof(float);
}

/* A job of one rank holds each state once and whole, whatever the optimizer cuts for several. Errors of INT8
 * borders, of each element one a site (core/session/snapshot.c), it has none. */
lh_status_t check_disk(session_t *session, uint32_t rounds, check_disk_t *out)
{
    world_t *alone;
    memory_report_t held;
    lh_status_t status = world_new(0, 1, &alone);
    if (status != LH_OK) return status;
    world_number(alone);
    memset(&held, 0, sizeof(held));
    status = held_bytes(session, alone, rounds, &held);
    world_free(alone);
    if (status != LH_OK) return status;
    const job_t *job = session->job;
    const uint64_t weights = weights_parameters(session->weights)->elements * sizeof(float);
    const bool rounds_sums = job->comm.border == BORDER_INT8 && job->site_count > 1;
    const uint64_t errors = rounds_sums ? job->site_count * updated_bytes(session) : 0;
    const uint64_t bytes = weights + held.bytes[MEMORY_STATE] + errors, ranks = job_ranks(job);
    const bool apart = job->checkpoint.apart && job->site_count > 1;
    const bool keeps = (job->checkpoint.memory_every > 0 || apart) && ranks > 1;
    const uint64_t guests = keeps ? train_memory_guests(job, apart) : 0;
    if (guests > SAVER_GUESTS)
        return fail(
            LH_INVALID,
            "[checkpoint] %s: a rank would keep the snapshots of %llu ranks of other machines, "
            "%d are the most",
            apart ? "folder of each site" : "memory_every", (unsigned long long)guests,
            SAVER_GUESTS);
    *out = (check_disk_t){.bytes = bytes,
                          .snapshot_bytes = keeps ? (bytes + ranks - 1) / ranks : 0,
                          .snapshots = keeps ? 2 + 2 * guests : 0,
                          .count = kept_at_once(job),
                          .free_bytes = room_free(job->checkpoint.folder)};
    return LH_OK;
}

void check_disk_text(const job_t *job, const check_disk_t *room, text_t *out)
{
    char each[16], all[16], left[16];
    text_bytes((double)room->bytes, each);
    text_bytes((double)room->bytes * (double)room->count, all);
    text_bytes((double)room->free_bytes, left);
    text_printf(out, "checkpoints: %s each, %llu at once: %s", each,
                (unsigned long long)room->count, all);
    if (room->free_bytes != UINT64_MAX)
        text_printf(out, ", of %s free in %s", left, job->checkpoint.folder);
    if (room->snapshots == 0) return;
    text_bytes((double)room->snapshot_bytes, each);
    text_printf(out, "; snapshots: %llu of %s in the memory of each rank",
                (unsigned long long)room->snapshots, each);
}
