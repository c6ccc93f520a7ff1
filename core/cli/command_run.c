/* command_run.c - longhaul run PIPELINE.ini [--resume [STEP]]: the stages in order, but for those whose
 * inputs have not changed since they ended well; and one stage alone, as its own command runs it.
 *
 * Where several processes start the same pipeline (a launcher a machine, or ranks that somebody
 * else started), one of them decides which stages need run; the others go through the same list and
 * meet it where ranks meet.
 *
 * What a stage was made from is a digest of the sections it reads, its input files by size and
 * time, the version of the program, and the digests of the stages before it. Contents of inputs are
 * not read: a data set of terabytes would take longer to hash than some stages take. So a file that
 * is changed without a change of size or time goes unnoticed, and one that is touched runs its
 * stage again; `make` makes the same choice.
 *
 * Files in the pipeline's folder that belong to this file alone: stages.json, {"prepare": digest,
 * ...} of the stages that ended well, and the lock, whose text says who holds the folder. Which
 * process does what:
 *
 *     launcher that leads      decides which stages run, holds the folder, remembers what was done
 *     launchers elsewhere      go through the same list, wait for the leader's word
 *     ranks that were started  run the one stage that they were started for */
#include <cli/command_run.h>

#include <fnmatch.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/folder_lock.h>
#include <checkpoint/manifest.h>
#include <checkpoint/writer.h>
#include <cli/check.h>
#include <cli/command_check.h>
#include <data/input_lines.h>
#include <data/samples.h>
#include <format/json.h>
#include <hf/hf_adapter.h>
#include <launch/launch_door.h>
#include <session/snapshot.h>

enum { STATE_LIMIT = 1 << 20 };

/* output NULL: output_is_there asks more than whether a file exists. */
typedef struct stage_facts {
    const char *sections; /* globs of the sections it reads                   */
    const char *output;   /* in the pipeline's folder: there when it is done  */
} stage_facts_t;

/* A section that is missing in a row does not make the stage run again when it changes: [launch],
 * [comm] and the like are taken to change how a result is reached and not which it is. Evaluation and
 * generation name what the train stage reads, too: a job need not have that stage. */
static const stage_facts_t facts[JOB_STAGES] = {
    [STAGE_PREPARE] = {"prepare,chat,limits", "prepare.json"},
    [STAGE_IMPORT] = {"import,model,spec,spec.*,adapter.*,limits", "import"},
    [STAGE_TRAIN] =
        {"data,model,spec,spec.*,train,dpo,optimizer,group.*,adapter.*,rule.*,hook.*,device,"
         "checkpoint",
         NULL},
    [STAGE_EVAL] = {"eval,eval.*,dpo,device,data,model,spec,spec.*,adapter.*,train", "eval.json"},
    [STAGE_EXPORT] = {"export", NULL},
    [STAGE_GENERATE] = {"generate,chat,device,model,spec,spec.*,adapter.*,train", "generated.json"},
};

/* "process 4711 on t1 since 2026-11-23T08:15:00Z: longhaul run job.ini" This text lies in the
 * lock's file, for whoever is refused. */
static void holder_text(const job_t *job, const char *command, text_t *out)
{
    char host[64] = "", since[32] = "";
    struct tm when;
    const time_t now = (time_t)(sys()->wall_ns() / 1000000000u);
    if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
    if (gmtime_r(&now, &when) != NULL)
        (void)strftime(since, sizeof(since), "%Y-%m-%dT%H:%M:%SZ", &when);
    text_printf(out, "process %d on %s since %s: longhaul %s %.200s", (int)getpid(), host, since,
                command, job->path);
}

/* `.lock` of checkpoints in the same folder is a rank's to take, and it locks the folder. False
 * where the pipeline's folder and that of checkpoints are one. */
static bool has_folder_alone(const job_t *job)
{
    const char *folder = job->pipeline.folder, *checkpoints = job->checkpoint.folder;
    return !(folder_holds(folder, checkpoints) && folder_holds(checkpoints, folder));
}

/* Who holds the folder hears what is asked of the run there. A launcher takes no saves: rank 0, which
 * it starts, does. */
static void hear_requests(cli_t *cli)
{
    if (cli->requests != NULL) return;
    const uint32_t which = launch_starts(cli->launch) ? REQUEST_STOP | REQUEST_PASSES
                                                      : REQUEST_STOP | REQUEST_SAVE;
    if (request_serve(cli->job->pipeline.folder, which, &cli->requests) == LH_OK) return;
    log_line(LH_LOG_WARN, "%s; `longhaul stop` can't reach this run", fail_reason());
    fail_clear();
}

/* The folder is this process's: what is asked in it is heard, and its log has why a signal ends this. */
static void run_folder_heed(cli_t *cli)
{
    hear_requests(cli);
    launch_note_signals(cli->launch, true);
}

/* Takes the pipeline's folder for this process, until cli_close: before anything in it is changed,
 * as another run may read there what this one would write anew. Refused at once where another has
 * it, with who that is. Does nothing where it is held already. The lock is the kernel's and ends
 * with the process, however that ends. */
static lh_status_t run_folder_take(cli_t *cli)
{
    text_t holder = {0};
    const job_t *job = cli->job;
    const char *folder = job->pipeline.folder;
    if (cli->holds_folder) return LH_OK;
    holder_text(job, cli->command->name, &holder);
    lh_status_t status = text_status(&holder);
    if (status == LH_OK)
        status = folder_lock_hold(folder, holder.data, has_folder_alone(job), &cli->folder_lock);
    text_free(&holder);
    cli->holds_folder = status == LH_OK;
    if (status == LH_OK) run_folder_heed(cli);
    if (status != LH_UNSUPPORTED && status != LH_IO) return status;
    /* A system without locks is no reason not to run. Where not even the lock's file can be made,
     * no stage can write either, and says so if it wants to. */
    if (status == LH_UNSUPPORTED)
        log_line(LH_LOG_WARN, "%s; a second run in this folder would not be refused",
                 fail_reason());
    if (status == LH_UNSUPPORTED) run_folder_heed(cli);
    fail_clear();
    return LH_OK;
}

static void run_folder_give(cli_t *cli)
{
    request_end(cli->requests);
    cli->requests = NULL;
    launch_note_signals(cli->launch, false);
    if (cli->holds_folder) folder_lock_undo(&cli->folder_lock, cli->job->pipeline.folder);
    cli->holds_folder = false;
}

/* The folder is the launcher's that starts rank 0. The one before gives it back at the same time, if it
 * is alive; one that is cut off may still have it, and then only what is asked of the run is heard. */
void command_run_leads(void *context, bool here)
{
    const struct timespec pause = {.tv_nsec = 100000000};
    enum { PAUSES = 50 };
    cli_t *cli = context;
    lh_status_t status = LH_INVALID;
    if (!here) {
        run_folder_give(cli);
        cli->follows = false;
        return;
    }
    for (uint32_t i = 0; status != LH_OK && i < (cli->follows ? 1u : PAUSES); i++) {
        status = run_folder_take(cli);
        if (status != LH_OK && !cli->follows) (void)nanosleep(&pause, NULL);
    }
    if (status != LH_OK && !cli->follows) log_line(LH_LOG_WARN, "%s", fail_reason());
    if (status != LH_OK && !cli->follows) hear_requests(cli);
    fail_clear();
}

/* The globs are this file's own constants, so their length is known; a section is read by a stage
 * if one of them matches its name. */
static bool section_is_read(const char *globs, const char *section)
{
    char list[256], *rest = NULL;
    lh_assert(strlen(globs) < sizeof(list));
    (void)snprintf(list, sizeof(list), "%s", globs);
    for (char *glob = strtok_r(list, ",", &rest); glob != NULL; glob = strtok_r(NULL, ",", &rest))
        if (fnmatch(glob, section, 0) == 0) return true;
    return false;
}

/* Keys and values as they are in force, in the order of the document; comments of the INI do not
 * count. */
static void add_sections(const job_t *job, const char *globs, text_t *out)
{
    for (uint32_t i = 0; i < document_section_count(job->document); i++) {
        const document_section_t *s = document_section(job->document, i);
        if (!section_is_read(globs, s->name)) continue;
        for (uint32_t k = 0; k < s->entry_count; k++)
            text_printf(out, "%s.%s=%s\n", s->name, s->entries[k]->key, s->entries[k]->value);
    }
}

/* Size and time of modification, with nanoseconds; what is not there has no line. */
static int digest_add_file(void *context, const char *path)
{
    struct stat st;
    text_t *out = context;
    if (sys()->stat(path, &st) != 0) return 0;
    if (S_ISDIR(st.st_mode)) {
        text_printf(out, "folder %s\n", path);
        return 0;
    }
    text_printf(out, "file %s %lld %lld.%09ld\n", path, (long long)st.st_size,
                (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    return 0;
}

/* Context of add_entry. */
typedef struct listing {
    const char *folder;
    text_t *out;
} listing_t;

/* A folder's files come in the order of sys()->list. */
static int add_entry(void *context, const char *name)
{
    const listing_t *l = context;
    char *path = path_join(l->folder, name);
    if (path == NULL) return -1;
    (void)digest_add_file(l->out, path);
    mem_free(path);
    return 0;
}

/* A file, or every file of a folder. NULL and what is not there add nothing: what the stage says
 * about that is the better sentence. */
static void add_input(const char *path, text_t *out)
{
    struct stat st;
    if (path == NULL || sys()->stat(path, &st) != 0) return;
    if (!S_ISDIR(st.st_mode)) {
        (void)digest_add_file(out, path);
        return;
    }
    listing_t listing = {path, out};
    (void)sys()->list(path, add_entry, &listing);
}

/* Context is a listing. Ends of the names of what tokenizer_load reads beside the file that is
 * named. */
static int add_tokenizer_entry(void *context, const char *name)
{
    static const char *const ends[] = {"merges.txt", "vocab.bpe", "vocab.json", "encoder.json",
                                       "tokenizer_config.json"};
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (text_ends(name, ends[i])) return add_entry(context, name);
    return 0;
}

/* A tokenizer may be several files, of which one is named. */
static lh_status_t add_tokenizer(const char *path, text_t *out)
{
    struct stat st;
    add_input(path, out);
    if (path == NULL || sys()->stat(path, &st) != 0 || S_ISDIR(st.st_mode)) return LH_OK;
    char *folder = path_folder(path);
    if (folder == NULL) return LH_NO_MEMORY;
    listing_t listing = {folder, out};
    (void)sys()->list(folder, add_tokenizer_entry, &listing);
    mem_free(folder);
    return LH_OK;
}

/* Token files that no stage of this pipeline makes: for the set that prepare writes its digest
 * stands. The index is enough, as it is written anew with its data. */
static lh_status_t add_data(const job_t *job, const char *list, text_t *out)
{
    samples_blend_list_t sets;
    const bool prepares = job_has_stage(job, STAGE_PREPARE);
    if (list == NULL) return LH_OK;
    lh_status_t status = samples_blend_parse(list, &sets);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < sets.count && status == LH_OK; i++) {
        text_t index = {0};
        char *path = job_path(job, sets.parts[i].name);
        const bool made = prepares && text_equal(path, job->prepare.output);
        text_printf(&index, "%s.idx", path == NULL ? "" : path);
        status = path == NULL ? LH_NO_MEMORY : text_status(&index);
        if (status == LH_OK && !made) add_input(index.data, out);
        text_free(&index);
        mem_free(path);
    }
    samples_blend_list_free(&sets);
    return status;
}

/* All that [data] names. */
static lh_status_t add_all_data(const job_t *job, text_t *out)
{
    lh_status_t status = add_data(job, job->data.train, out);
    if (status == LH_OK) status = add_data(job, job->data.valid, out);
    if (status == LH_OK) status = add_data(job, job->data.test, out);
    return status;
}

/* The tokenizer that a stage behind training takes ([prepare], then [eval]), where no stage of this
 * pipeline has prepared with it. An export of a model that was imported has the import's. Training goes
 * by its tokens, and keeps what it has made where a tokenizer's file was touched. */
static lh_status_t add_source_tokenizer(const job_t *job, uint32_t stage, text_t *out)
{
    const char *path = job->prepare.tokenizer;
    if (job_has_stage(job, STAGE_PREPARE)) return LH_OK;
    if (stage == STAGE_EXPORT && job->import.from != NULL) return LH_OK;
    /* Evaluation has that of [eval] among its inputs already. */
    if (path == NULL && stage != STAGE_EVAL) path = job->eval.tokenizer;
    return add_tokenizer(path, out);
}

/* Of stages behind training, what no stage of this pipeline makes: else the digests of those stages
 * stand for it. The pointer is written anew with each checkpoint. */
static lh_status_t add_foreign(const job_t *job, uint32_t stage, text_t *out)
{
    if (stage < STAGE_EVAL) return LH_OK;
    const bool trains = job_has_stage(job, STAGE_TRAIN);
    if (!trains) {
        char *latest = path_join(job->checkpoint.folder, CHECKPOINT_POINTER);
        if (latest == NULL) return LH_NO_MEMORY;
        add_input(latest, out);
        mem_free(latest);
    }
    const lh_status_t status = add_source_tokenizer(job, stage, out);
    return status == LH_OK && stage == STAGE_EVAL && !trains ? add_all_data(job, out) : status;
}

/* An export reads weights, and a tokenizer that it carries along. */
static lh_status_t add_inputs(const job_t *job, uint32_t stage, text_t *out)
{
    if (stage == STAGE_IMPORT) add_input(job->import.from, out);
    if (stage == STAGE_IMPORT) add_input(job->import.adapter, out);
    for (uint32_t i = 0; stage == STAGE_EVAL && i < job->eval_set_count; i++)
        add_input(job->eval_sets[i].data, out);
    if (stage == STAGE_GENERATE) add_input(job->generate.prompts, out);
    if (stage == STAGE_TRAIN || stage == STAGE_EVAL) add_input(job->dpo.reference, out);
    if (stage == STAGE_TRAIN) return add_all_data(job, out);
    lh_status_t status = LH_OK;
    if (stage == STAGE_EVAL) status = add_tokenizer(job->eval.tokenizer, out);
    if (stage != STAGE_PREPARE) return status == LH_OK ? add_foreign(job, stage, out) : status;

    input_files_t files;
    status = add_tokenizer(job->prepare.tokenizer, out);
    if (status == LH_OK) status = input_files_of(job, &files);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < files.count; i++)
        (void)digest_add_file(out, files.paths[i]);
    input_files_free(&files);
    return LH_OK;
}

/* Digest of a stage: the sections it reads as they were typed, the size and time of its input
 * files, the program's version, and the digests of the stages before it. Recursive over the stages
 * before; of a pipeline of six that is cheap. */
static lh_status_t stage_digest(const job_t *job, uint32_t stage, char out[SHA256_TEXT])
{
    lh_assert(stage < JOB_STAGES);
    text_t all = {0};
    lh_status_t status = LH_OK;
    text_printf(&all, "longhaul %s %s\n", LH_VERSION, job_stage_names[stage]);
    for (uint32_t i = 0; i < job->stage_count && job->stages[i] != stage && status == LH_OK; i++) {
        char before[SHA256_TEXT];
        /* What one stage makes of the data, the model or the weights the next ones read;
         * evaluation, export and generation leave nothing behind that another stage reads. */
        if (job->stages[i] >= STAGE_EVAL) continue;
        status = stage_digest(job, job->stages[i], before);
        text_printf(&all, "after %s %s\n", job_stage_names[job->stages[i]], before);
    }
    if (status == LH_OK) {
        add_sections(job, facts[stage].sections, &all);
        status = add_inputs(job, stage, &all);
    }
    if (status == LH_OK) status = text_status(&all);
    if (status == LH_OK) status = digest_of(all.data, all.length, out);
    text_free(&all);
    return status;
}

/* mem_free; NULL without memory. */
static char *state_path(const job_t *job)
{
    return path_join(job->pipeline.folder, "stages.json");
}

/* With what inputs each stage ended well; "" where none did. */
typedef struct stages {
    /* In the order of STAGE_*, as the file has names. */
    char digest[JOB_STAGES][SHA256_TEXT];
} stages_t;

/* A file that cannot be read tells of nothing: the stages run again. */
static void read_state(const char *path, stages_t *out)
{
    json_document_t *file = NULL;
    *out = (stages_t){0};
    if (!file_exists(path)) return;
    if (json_read(path, STATE_LIMIT, UINT64_MAX, &file) != LH_OK) fail_clear();
    for (uint32_t s = 0; s < JOB_STAGES; s++) {
        const char *digest = json_text(json_member(json_root(file), job_stage_names[s]));
        if (digest != NULL && strlen(digest) < SHA256_TEXT)
            memcpy(out->digest[s], digest, strlen(digest) + 1);
    }
    json_free(file);
}

/* What a run ended with is the step that the pointer names: an older one is not its result. The
 * pointer file names a folder; that folder must have a manifest. Whether its data is whole is found
 * out by who reads it. */
static bool last_step_is_there(const char *folder)
{
    enum { POINTER_MOST = 256 };
    uint64_t step;
    size_t length;
    char *latest = path_join(folder, CHECKPOINT_POINTER), *text = NULL;
    if (latest == NULL || !file_exists(latest) ||
        file_read(latest, POINTER_MOST, &text, &length) != LH_OK) {
        mem_free(latest);
        return false;
    }
    text[strcspn(text, " \n")] = '\0';
    char *path = checkpoint_name_parse(text, &step) ? path_join(folder, text) : NULL;
    char *manifest = path == NULL ? NULL : path_join(path, MANIFEST_NAME);
    const bool there = manifest != NULL && file_exists(manifest);
    mem_free(manifest);
    mem_free(path);
    mem_free(text);
    mem_free(latest);
    return there;
}

/* A result that somebody has deleted is made again, whatever stages.json says. */
static bool output_is_there(const job_t *job, uint32_t stage)
{
    lh_assert(stage < JOB_STAGES);
    if (stage == STAGE_TRAIN) return last_step_is_there(job->checkpoint.folder);
    const bool alone = job->export.adapter == EXPORT_ADAPTER_SEPARATE;
    char *path = stage == STAGE_EXPORT
                     ? path_join(job->export.folder, alone ? HF_ADAPTER_CONFIG : "config.json")
                     : path_join(job->pipeline.folder, facts[stage].output);
    const bool there = path != NULL && file_exists(path);
    mem_free(path);
    if (stage != STAGE_PREPARE || !there) return there;

    text_t index = {0}, tokens = {0};
    text_printf(&index, "%s.idx", job->prepare.output);
    text_printf(&tokens, "%s.bin", job->prepare.output);
    const bool corpus = !index.failed && !tokens.failed && file_exists(index.data) &&
                        file_exists(tokens.data);
    text_free(&tokens);
    text_free(&index);
    return corpus;
}

/* True if the stage ended well with this digest and what it made is still there. */
static bool stage_is_done(const job_t *job, uint32_t stage, const char *digest)
{
    lh_assert(stage < JOB_STAGES);
    char *path = state_path(job);
    if (path == NULL) return false;
    stages_t state;
    read_state(path, &state);
    const bool done = text_equal(state.digest[stage], digest) && output_is_there(job, stage);
    mem_free(path);
    return done;
}

/* The file is replaced as a whole, under the folder's lock. */
static lh_status_t write_state(const char *path, const stages_t *state)
{
    text_t text = {0};
    json_writer_t w = {.to = &text, .style = 1};
    json_open(&w, NULL, '{');
    for (uint32_t s = 0; s < JOB_STAGES; s++)
        if (state->digest[s][0] != '\0') json_put_text(&w, job_stage_names[s], state->digest[s]);
    json_close(&w);
    lh_status_t status = text_status(&text);
    if (status == LH_OK) status = file_replace(path, text.data, text.length);
    text_free(&text);
    return status;
}

/* Before a stage starts. Writes nothing where nothing is remembered. */
static lh_status_t stage_forget(const job_t *job, uint32_t stage)
{
    lh_assert(stage < JOB_STAGES);
    char *path = state_path(job);
    if (path == NULL) return LH_NO_MEMORY;
    stages_t state;
    read_state(path, &state);
    const bool known = state.digest[stage][0] != '\0';
    state.digest[stage][0] = '\0';
    const lh_status_t status = known ? write_state(path, &state) : LH_OK;
    mem_free(path);
    return status;
}

/* Remembers that it ended well. */
static lh_status_t stage_mark(const job_t *job, uint32_t stage, const char *digest)
{
    lh_assert(stage < JOB_STAGES && strlen(digest) < SHA256_TEXT);
    char *path = state_path(job);
    if (path == NULL) return LH_NO_MEMORY;
    stages_t state;
    read_state(path, &state);
    memcpy(state.digest[stage], digest, strlen(digest) + 1);
    lh_status_t status = folder_make(job->pipeline.folder);
    if (status == LH_OK) status = write_state(path, &state);
    mem_free(path);
    return status;
}

/* A stage and its command have one name. */
static const command_t *command_of_stage(uint32_t stage)
{
    uint32_t count;
    lh_assert(stage < JOB_STAGES);
    const command_t *const *all = cli_commands(&count);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(all[i]->name, job_stage_names[stage]) == 0) return all[i];
    return NULL;
}

/* Stages without ranks run in the launcher's process alone. */
static bool has_ranks(const command_t *c)
{
    return (c->needs & CLI_HAS_RANKS) != 0;
}

/* Context of stage_body, which launch_ranks calls in each rank. */
typedef struct stage_run {
    cli_t *cli;
    const command_t *command;
} stage_run_t;

static int stage_body(void *context)
{
    const stage_run_t *s = context;
    return s->command->stage(s->cli);
}

/* In this process, or in the ranks that it starts or is one of. launch_ranks returns in this
 * process when all of its ranks have ended. */
static int run_body(cli_t *cli, const command_t *c)
{
    char **words;
    stage_run_t run = {cli, c};
    if (!has_ranks(c)) return c->stage(cli);
    const lh_status_t status = cli_words(cli, c, &words);
    if (status != LH_OK) return status;
    const int code = launch_ranks(cli->launch, words, stage_body, &run);
    cli_words_free(words);
    return code;
}

/* What a launcher has started does not take the folder: the launcher has it, as rank 0's process
 * has it for launchers of other machines. Taken once for a whole pipeline, and by each of the first
 * three stages that runs alone. A machine that comes back may find that another one leads by now, which
 * has the folder: it follows that, and decides on no stage. */
static lh_status_t hold_folder(cli_t *cli)
{
    if (!launch_leads(cli->launch) || launch_is_started(cli->launch)) return LH_OK;
    const lh_status_t status = run_folder_take(cli);
    if (status != LH_INVALID || !launch_starts(cli->launch) || cli_flag(cli, "resume") == NULL ||
        !members_change(cli->job) || !launch_is_spread(cli->launch))
        return status;
    log_line(LH_LOG_INFO, "%s; this machine follows it, if it is the same job", fail_reason());
    fail_clear();
    launch_follow(cli->launch);
    cli->follows = true;
    return LH_OK;
}

/* Of what a stage is about to read, so that an input which changes while it runs makes the next
 * digest differ. "": an input is not there, be it of an earlier stage, as raw text need not be once
 * it is prepared; then nothing is remembered. */
static lh_status_t digest_before(const job_t *job, uint32_t stage, char out[SHA256_TEXT])
{
    const bool named = stage != STAGE_PREPARE || job->prepare.input != NULL;
    const lh_status_t status = named ? stage_digest(job, stage, out) : LH_INVALID;
    if (status == LH_OK || status == LH_NO_MEMORY) return status;
    fail_clear();
    out[0] = '\0';
    return LH_OK;
}

/* What a stage has done is remembered by one process of the job. Forgotten before it starts and
 * remembered after it ended, so that a stage which was interrupted runs again. */
static int run_stage(cli_t *cli, const command_t *c, uint32_t stage)
{
    char digest[SHA256_TEXT] = "";
    /* One process writes stages.json: the leading launcher, not the ranks that it started. */
    const bool started = launch_is_started(cli->launch);
    const bool remembers = launch_leads(cli->launch) && !started;
    lh_status_t status = check_inputs(cli->job);
    /* What evaluation, export and generation read, and where they write, others may too. */
    if (status == LH_OK && stage < STAGE_EVAL) status = hold_folder(cli);
    if (status == LH_OK && !started) status = digest_before(cli->job, stage, digest);
    if (status == LH_OK && remembers) status = stage_forget(cli->job, stage);
    if (status != LH_OK) return status;

    const int code = run_body(cli, c);
    /* Rank 0 may have come to another machine meanwhile, and the stages behind it with it. */
    if (code != EXIT_DONE || !launch_leads(cli->launch) || launch_is_started(cli->launch) ||
        digest[0] == '\0')
        return code;
    return stage_mark(cli->job, stage, digest);
}

/* Forks the processes that write checkpoints, in a process that will train: before it loads a
 * plugin, meets other ranks or starts a thread. A process that starts ranks does not train. */
static lh_status_t start_writer(cli_t *cli)
{
    lh_assert(cli->writer == NULL);
    const job_t *job = cli->job;
    const job_site_t *site = launch_site(cli->launch);
    const bool apart = job->checkpoint.apart && job->site_count > 1 &&
                       launch_size(cli->launch) > 1 && site != NULL;
    const writer_how_t how = {.folder = job->checkpoint.folder,
                              .keep = snapshot_keep(job),
                              .deadline_ns = job->checkpoint.deadline_ns,
                              .rank = launch_rank(cli->launch),
                              .ranks = launch_size(cli->launch),
                              .apart = apart,
                              .leads = apart &&
                                       launch_rank(cli->launch) == site->hosts[0].first_rank,
                              .memory = apart || launch_memory(cli->launch) >= 0,
                              .memory_fd = launch_memory(cli->launch)};
    return launch_starts(cli->launch) || launch_is_herald(cli->launch)
               ? LH_OK
               : writer_start(&how, &cli->writer);
}

int command_run_stage(cli_t *cli)
{
    uint32_t stage = 0;
    while (strcmp(job_stage_names[stage], cli->command->name) != 0) {
        stage++;
        lh_assert(stage < JOB_STAGES);
    }
    const lh_status_t status = stage == STAGE_TRAIN ? start_writer(cli) : LH_OK;
    if (status != LH_OK) return status;
    return run_stage(cli, cli->command, stage);
}

/* Launchers on other machines go through the same list and wait where ranks meet: they are told to
 * skip a stage that has ranks, too. */
static int skip_stage(cli_t *cli, const command_t *c)
{
    log_line(LH_LOG_INFO, "-- %s: nothing has changed, skipped", c->name);
    if (!has_ranks(c) || !launch_is_spread(cli->launch)) return EXIT_DONE;
    /* The stage is gone through for the others' sake, with nothing done. */
    launch_tell_skip(cli->launch, true);
    const int code = run_body(cli, c);
    launch_tell_skip(cli->launch, false);
    return code;
}

/* While a stage without ranks runs, machines that wait for one with ranks hear of a stop. */
static lh_status_t open_door(cli_t *cli, uint32_t stage)
{
    const command_t *next = NULL;
    bool after = false;
    char **words;
    for (uint32_t i = 0; i < cli->job->stage_count && next == NULL; i++) {
        const command_t *c = command_of_stage(cli->job->stages[i]);
        if (after && has_ranks(c)) next = c;
        after = after || cli->job->stages[i] == stage;
    }
    if (next == NULL || !launch_starts(cli->launch) || !launch_is_spread(cli->launch)) return LH_OK;
    lh_status_t status = cli_words(cli, next, &words);
    if (status != LH_OK) return status;
    status = launch_door_open(cli->launch, words);
    cli_words_free(words);
    return status;
}

/* One launcher leads and decides; the others wait for its word at each stage that has ranks, or for
 * the end of one that has none. */
static int run_or_skip(cli_t *cli, uint32_t stage)
{
    char digest[SHA256_TEXT];
    const command_t *c = command_of_stage(stage);
    lh_assert(c != NULL && c->stage != NULL);
    if (!launch_leads(cli->launch)) {
        if (has_ranks(c)) return run_stage(cli, c, stage);
        launch_waits(cli->launch);
        return EXIT_DONE;
    }
    lh_status_t status = stage_digest(cli->job, stage, digest);
    if (status != LH_OK) return status;
    /* Whoever names a step wants the steps behind it made again. */
    const char *step = stage == STAGE_TRAIN ? cli_flag(cli, "resume") : NULL;
    const bool again = step != NULL && *step != '\0';
    if (!again && stage_is_done(cli->job, stage, digest)) return skip_stage(cli, c);
    log_line(LH_LOG_INFO, "-- %s", c->name);
    if (!has_ranks(c)) status = open_door(cli, stage);
    return status == LH_OK ? run_stage(cli, c, stage) : status;
}

/* A launcher of each machine comes through here, each with the same INI. */
static int run_pipeline(cli_t *cli)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < cli->job->stage_count && status == LH_OK; i++)
        if (cli->job->stages[i] == STAGE_TRAIN) status = start_writer(cli);
    /* A mistake in a late stage is told before an early one takes an hour. */
    if (status == LH_OK) status = check_job(cli);
    if (status == LH_OK) status = hold_folder(cli);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < cli->job->stage_count; i++) {
        const uint32_t stage = cli->job->stages[i];
        int code = run_or_skip(cli, stage);
        /* It came when the stage had nothing more to do that looks for it. */
        if (code == EXIT_DONE && i + 1 < cli->job->stage_count && sys_stop_requested())
            code = fail(LH_CANCELLED, "stopped behind %s, as asked", job_stage_names[stage]);
        if (code != EXIT_DONE) return launch_door_shut(cli->launch, code);
    }
    return EXIT_DONE;
}

const command_t command_run = {
    .name = "run",
    .summary = "run the pipeline's stages in order; skip those whose inputs have not changed",
    .needs = CLI_NEEDS_JOB | CLI_NEEDS_PLUGINS | CLI_NEEDS_MODEL | CLI_HAS_RANKS,
    .run = run_pipeline,
    .check = check_job_options,
    .leads = command_run_leads,
    .flags = {CLI_FLAG_RESUME, CLI_FLAG_HOST},
};
