/* rank_runs.c - one body for every rank; the weights meet in shared memory. */
#include "rank_runs.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <base/memory.h>
#include <base/philox.h>
#include <config/job_load.h>
#include <engine/engine.h>
#include <engine/model_program.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <graph/op_table.h>
#include <parallel/update.h>
#include <plan/collective_bench.h>
#include <session/snapshot.h>
#include <session/train_comm.h>

#include "check.h"
#include "check_model.h"

enum { SEQUENCES = 8, ROWS = 4, MOST_WEIGHTS = 1 << 18, SESSION = 4711 };

/* AdamW, as ops of the core: no plugin's rule is needed to check an optimizer. */
static lh_value_t rule_record(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                              lh_value_t grad, lh_value_t master, lh_value_t *states,
                              lh_value_t *value)
{
    (void)config;
    const lh_adamw_t how = {sizeof(how), 0, 0.9, 0.95, 1e-6, piece->decay};
    const lh_value_t in[] = {grad, master, states[0], states[1], 0};
    lh_value_t more[3] = {0};
    const lh_value_t updated = g->api->op(g, "adamw", &how, in, 5, more);
    states[0] = more[0];
    states[1] = more[1];
    *value = more[2];
    return updated;
}

static const lh_rule_state_t rule_states[] = {
    {.name = "exp_avg", .dtype = LH_DTYPE_F32, .extent = LH_EXTENT_ELEMENT},
    {.name = "exp_avg_sq", .dtype = LH_DTYPE_F32, .extent = LH_EXTENT_ELEMENT},
};
static const lh_rule_t rule = {.name = "check",
                               .grain = LH_GRAIN_ELEMENT,
                               .states = rule_states,
                               .state_size = sizeof(rule_states[0]),
                               .state_count = 2,
                               .record = rule_record};

typedef struct shared { /* by all ranks */
    uint64_t count;
    float weights[MOST_WEIGHTS];
} shared_t;

typedef struct rank_job {
    subject_t *s;
    const rank_run_t *run;
    const plugin_t *device;
    const void *device_config;
    shared_t *shared;
} rank_job_t;

typedef struct rank_state {
    const rank_job_t *job;
    const bench_rank_t *rank;
    train_comm_t comm;
    op_table_t *ops;
    lh_model_t *model;
    lh_optimizer_t *optimizer;
    engine_t *engine;
    weights_t *weights;
    transfers_t *transfers;
    program_t *train, *update;
    writer_t *writer;
} rank_state_t;

static uint32_t size_of(const rank_state_t *r)
{
    return r->job->run->ranks;
}

static uint32_t self_of(const rank_state_t *r)
{
    return r->rank->world->row.rank;
}

static lh_status_t open_engine(rank_state_t *r)
{
    const rank_job_t *j = r->job;
    lh_status_t status = op_table_new(&r->ops);
    const engine_how_t how = {.host = j->s->plugin->host,
                              .device = j->device,
                              .device_config = j->device_config,
                              .plugins = &j->device,
                              .plugin_count = 1,
                              .ops = r->ops};
    if (status == LH_OK) status = engine_open(&how, &r->engine);
    if (status == LH_OK) status = check_model.open(j->s->plugin->host, NULL, &r->model);
    if (status == LH_OK) status = j->run->api->open(j->run->host, j->run->config, &r->optimizer);
    const weights_how_t weights = {.api = &check_model, .model = r->model, .compute = LH_DTYPE_F32};
    if (status == LH_OK) status = weights_new(r->engine, &weights, &r->weights);
    return status;
}

static lh_status_t make_programs(rank_state_t *r)
{
    static const optimizer_rule_t rules = {&rule, NULL};
    static const optimizer_group_t group = {0, 0.1};
    const bool several = size_of(r) > 1;
    const update_how_t how = {.optimizer = {.api = r->job->run->api,
                                            .optimizer = r->optimizer,
                                            .rules = &rules,
                                            .rule_count = 1,
                                            .groups = &group,
                                            .group_count = 1,
                                            .rounds = 1,
                                            .world = several ? r->rank->world : NULL},
                              .comm = r->comm.comm,
                              .bucket_bytes = r->job->run->bucket_bytes,
                              .transfers = &r->transfers};
    const program_how_t train = {.use = USE_TRAIN,
                                 .sequences = SEQUENCES / size_of(r),
                                 .rows = ROWS,
                                 .replicas = size_of(r)};
    lh_status_t status = update_new(r->engine, r->weights, &how, &r->update);
    if (status == LH_OK) status = program_new(r->engine, r->weights, &train, &r->train);
    if (status == LH_OK) status = engine_build(r->engine);
    if (status == LH_OK && several) status = train_comm_connect(&r->comm);
    return status;
}

static lh_status_t give_batch(rank_state_t *r, uint32_t step)
{
    enum { MOST = SEQUENCES * ROWS };
    const uint32_t sequences = SEQUENCES / size_of(r), tokens = sequences * ROWS;
    int32_t ids[MOST], labels[MOST], positions[MOST], starts[SEQUENCES + 1];
    float weights[MOST];
    for (uint32_t i = 0; i < tokens; i++) {
        const uint64_t at = self_of(r) * tokens + i;
        ids[i] = (int32_t)(philox_uniform(step, 1, at) * CHECK_MODEL_VOCAB);
        labels[i] = (int32_t)(philox_uniform(step, 2, at) * CHECK_MODEL_VOCAB);
        positions[i] = (int32_t)(i % ROWS);
        weights[i] = 1.0f / MOST;
    }
    for (uint32_t i = 0; i <= sequences; i++)
        starts[i] = (int32_t)(i * ROWS);
    const size_t bytes = tokens * sizeof(int32_t);
    lh_status_t status = program_input(r->train, LH_INPUT_TOKENS, ids, bytes);
    if (status == LH_OK) status = program_input(r->train, LH_INPUT_LABELS, labels, bytes);
    if (status == LH_OK) status = program_input(r->train, LH_INPUT_POSITIONS, positions, bytes);
    if (status == LH_OK) status = program_input(r->train, LH_INPUT_WEIGHTS, weights, bytes);
    if (status == LH_OK)
        status = program_input(r->train, LH_INPUT_STARTS, starts,
                               (sequences + 1) * sizeof(int32_t));
    return status;
}

static lh_status_t run_step(rank_state_t *r, uint32_t step)
{
    float words[LH_STEP_WORDS] = {[LH_STEP_LEARNING_RATE] = 1e-2f,
                                  [LH_STEP_GRAD_SCALE] = 1,
                                  [LH_STEP_NUMBER] = (float)step,
                                  [LH_STEP_APPLY] = 1,
                                  [LH_STEP_MAX_NORM] = 1};
    lh_status_t status = give_batch(r, step);
    if (status == LH_OK) status = program_run(r->train, 0);
    if (status == LH_OK) status = program_input(r->update, LH_INPUT_STEP, words, sizeof(words));
    if (status == LH_OK) status = program_run(r->update, 0);
    if (status == LH_OK) status = program_output(r->update, OUTPUT_STEP, words, sizeof(words));
    if (status == LH_OK && words[LH_STEP_APPLY] == 0)
        status = fail(LH_INVALID, "step %u was not applied", step);
    return status;
}

/* What this rank holds of every parameter, where all ranks find it. */
static lh_status_t show_weights(rank_state_t *r)
{
    const parameters_t *p = weights_parameters(r->weights);
    uint64_t at = 0;
    for (uint32_t i = 0; i < p->count; at += p->items[i++].elements) {
        weights_shard_t e;
        if (p->items[i].storage != i || !weights_shard(r->weights, SPACE_PARAMETER, i, &e) ||
            e.slice.end == e.slice.begin)
            continue;
        const lh_status_t status = weights_read(r->weights, SPACE_PARAMETER, i, e.slice.begin,
                                                e.slice.end - e.slice.begin, LH_DTYPE_F32,
                                                r->job->shared->weights + at + e.slice.begin);
        if (status != LH_OK) return status;
    }
    r->job->shared->count = at;
    return LH_OK;
}

static lh_status_t begin_weights(rank_state_t *r, snapshot_t *snapshot)
{
    const char *from = r->job->run->load;
    checkpoint_t *c = NULL;
    lh_status_t status = weights_initialize(r->weights, r->job->s->seed, 0.1);
    if (status == LH_OK && from != NULL) {
        status = checkpoint_open_latest(from, &c);
        if (status == LH_OK && c == NULL) status = fail(LH_INVALID, "%s is empty", from);
        if (status == LH_OK) status = snapshot_load(snapshot, c, true);
        checkpoint_close(c);
    }
    if (status == LH_OK && r->transfers != NULL) status = transfers_value_gather(r->transfers);
    return status;
}

static lh_status_t save(rank_state_t *r, snapshot_t *snapshot)
{
    const checkpoint_meta_t meta = {.run = "check",
                                    .step = r->job->run->first + r->job->run->steps};
    writer_result_t result = {0};
    lh_status_t status = writer_layout(r->writer, snapshot->tensors, snapshot->count);
    if (status == LH_OK) status = writer_begin(r->writer);
    if (status == LH_OK) status = snapshot_take(snapshot, r->writer);
    if (status == LH_OK) status = writer_submit(r->writer, &meta);
    if (status == LH_OK) status = writer_wait(r->writer, &result);
    if (status == LH_OK && result.status != LH_OK)
        status = fail(result.status, "the save failed: %s", result.reason);
    return status;
}

static lh_status_t run_steps(rank_state_t *r)
{
    const rank_run_t *run = r->job->run;
    snapshot_t *snapshot = NULL;
    lh_status_t status = make_programs(r);
    if (status == LH_OK) status = snapshot_new(r->weights, r->transfers, &snapshot);
    if (status == LH_OK) status = begin_weights(r, snapshot);
    for (uint32_t i = 1; i <= run->steps && status == LH_OK; i++)
        status = run_step(r, run->first + i);
    if (status == LH_OK && r->transfers != NULL) status = transfers_finish(r->transfers);
    if (status == LH_OK) status = engine_wait(r->engine);
    if (status == LH_OK) status = show_weights(r);
    if (status == LH_OK && r->writer != NULL) status = save(r, snapshot);
    snapshot_free(snapshot);
    return status;
}

static lh_status_t open_rank(rank_state_t *r)
{
    const rank_run_t *run = r->job->run;
    lh_status_t status = LH_OK;
    if (run->save != NULL) {
        const writer_how_t writer = {.folder = run->save, .rank = self_of(r), .ranks = run->ranks};
        status = writer_start(&writer, &r->writer);
        if (status == LH_OK) status = writer_open(r->writer);
        if (status == LH_OK && run->ranks > 1) writer_session(r->writer, SESSION);
    }
    if (status == LH_OK && run->ranks > 1) {
        const train_comm_how_t comm = {.job = r->rank->job,
                                       .registry = r->job->s->installed,
                                       .world = r->rank->world,
                                       .control = r->rank->control};
        status = train_comm_open(&r->comm, &comm);
    }
    return status == LH_OK ? open_engine(r) : status;
}

static lh_status_t be_rank(const bench_rank_t *rank)
{
    const rank_job_t *job = rank->context;
    rank_state_t r = {.job = job, .rank = rank};
    lh_status_t status = open_rank(&r);
    if (status == LH_OK) status = run_steps(&r);
    train_comm_close(&r.comm, status == LH_OK);
    if (status == LH_OK)
        writer_close(r.writer);
    else
        writer_leave(r.writer);
    engine_close(r.engine);
    transfers_free(r.transfers);
    if (r.optimizer != NULL) job->run->api->close(r.optimizer);
    if (r.model != NULL) check_model.close(r.model);
    op_table_free(r.ops);
    return status;
}

/* Every default; the transports are those that the plugins' folder names. */
static job_t *default_job(void)
{
    static const char text[] = "[pipeline]\nname = check\nstages = prepare\n"
                               "[prepare]\ninput = none\ntokenizer = none\n";
    char path[64];
    job_t *job = NULL;
    const int fd = memfd_create("check.ini", MFD_CLOEXEC);
    if (fd < 0 || write(fd, text, sizeof(text) - 1) != (ssize_t)sizeof(text) - 1)
        check_skip("no memory for an INI");
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    check_ok(job_load(path, NULL, 0, &job), "INI");
    (void)close(fd);
    return job;
}

float *rank_run(subject_t *s, const rank_run_t *run, uint64_t *count)
{
    rank_job_t job = {.s = s, .run = run, .device = subject_reference(s)};
    if (job.device == NULL) check_skip("no reference device: %s", fail_reason());
    void *config = subject_config(s, job.device);
    job.device_config = config;
    job.shared = mmap(NULL, sizeof(*job.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                      -1, 0);
    if (job.shared == MAP_FAILED) check_skip("no shared memory");
    job_t *ini = default_job();
    fail_clear();
    if (bench_ranks(s->installed, ini, run->ranks, run->sites, be_rank, &job) != LH_OK)
        check_fault("%u steps on %u rank%s: %s", run->steps, run->ranks, run->ranks == 1 ? "" : "s",
                    fail_reason());
    *count = job.shared->count;
    float *weights = check_memory(*count, sizeof(*weights));
    memcpy(weights, job.shared->weights, *count * sizeof(*weights));
    (void)munmap(job.shared, sizeof(*job.shared));
    job_free(ini);
    mem_free(config);
    return weights;
}
