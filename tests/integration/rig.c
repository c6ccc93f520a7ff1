/* rig.c - a whole engine for a test. */
#include "rig.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/memory.h>
#include <config/job_load.h>
#include <control/control_open.h>
#include <engine/model_program.h>
#include <engine/program.h>
#include <engine/weights.h>

void rig_ok(lh_status_t status, const char *what, const char *file, int line)
{
    if (status == LH_OK) return;
    print_error("%s: %s: %s\n", what, status_text(status), fail_reason());
    _fail(file, line);
}

const char *rig_device(void)
{
    const char *name = getenv("LH_TEST_DEVICE");
    return name != NULL ? name : "reference";
}

const char *rig_folder(const char *name, const char *built)
{
    const char *given = getenv(name);
    return given != NULL ? given : built;
}

static void configure(const lh_option_t *rows, uint32_t count, const rig_option_t *options,
                      void *config)
{
    for (uint32_t i = 0; i < count; i++) {
        const char *value = rows[i].fallback;
        for (uint32_t o = 0; options != NULL && options[o].key != NULL; o++)
            if (strcmp(options[o].key, rows[i].key) == 0) value = options[o].value;
        if (value != NULL) OK(option_set(&rows[i], value, rows[i].key, "/", config));
    }
}

/* What is named is set anew; all else stays. */
static void configure_more(const lh_option_t *rows, uint32_t count, const rig_option_t *options,
                           void *config)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t o = 0; options[o].key != NULL; o++)
            if (strcmp(options[o].key, rows[i].key) == 0)
                OK(option_set(&rows[i], options[o].value, rows[i].key, "/", config));
}

static void plugin_ops(rig_t *rig, const plugin_t *plugin)
{
    OK(op_table_add(rig->ops, plugin->ops, sizeof(*plugin->ops), plugin->op_count, plugin->name));
}

/* Hosts with their plugins, which stay loaded for as long as the process lives: a rig takes one
 * that no other uses. */
typedef struct plugins {
    host_t *host;
    registry_t *registry;
    struct plugins *next;
} plugins_t;

static plugins_t *idle_plugins;
static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;

static void take_plugins(rig_t *rig)
{
    (void)pthread_mutex_lock(&idle_lock);
    plugins_t *p = idle_plugins;
    if (p != NULL) idle_plugins = p->next;
    (void)pthread_mutex_unlock(&idle_lock);
    if (p == NULL) {
        p = mem_new(sizeof(*p));
        assert_non_null(p);
        OK(host_new(&p->host));
        OK(registry_new(rig_folder("LH_TEST_PLUGINS", LH_TEST_PLUGINS), p->host, &p->registry));
    }
    rig->plugins = p;
    rig->host = p->host;
    rig->registry = p->registry;
}

static void give_plugins_back(rig_t *rig)
{
    (void)pthread_mutex_lock(&idle_lock);
    rig->plugins->next = idle_plugins;
    idle_plugins = rig->plugins;
    (void)pthread_mutex_unlock(&idle_lock);
}

void rig_open(rig_t *rig, const char *model, const rig_option_t *options, lh_dtype_t compute)
{
    const rig_how_t how = {.model = model, .options = options, .compute = compute};
    rig_open_how(rig, &how);
}

/* The device's plugin in a copy without its kernels of one op. */
static void device_lacks(rig_t *rig, const char *op)
{
    const plugin_t *whole = rig->device;
    rig->lean = *whole;
    rig->lean.kernels = rig->lean_kernels;
    rig->lean.kernel_count = 0;
    assert_true(whole->kernel_count <= RIG_KERNELS);
    for (uint32_t i = 0; i < whole->kernel_count; i++)
        if (strcmp(whole->kernels[i].op, op) != 0)
            rig->lean_kernels[rig->lean.kernel_count++] = whole->kernels[i];
    rig->device = &rig->lean;
}

void rig_open_how(rig_t *rig, const rig_how_t *how)
{
    memset(rig, 0, sizeof(*rig));
    take_plugins(rig);
    OK(op_table_new(&rig->ops));
    OK(registry_load(rig->registry, LH_KIND_DEVICE, rig_device(), &rig->device));
    if (how->lacking != NULL) device_lacks(rig, how->lacking);
    rig->model_plugin = how->made;
    if (how->made == NULL)
        OK(registry_load(rig->registry, LH_KIND_MODEL, how->model, &rig->model_plugin));
    plugin_ops(rig, rig->device);
    plugin_ops(rig, rig->model_plugin);
    if (how->parts != NULL) plugin_ops(rig, how->parts);

    const char *threads = getenv("LH_TEST_THREADS");
    const rig_option_t for_device[] = {{"threads", threads != NULL ? threads : "2"}, {NULL, NULL}};
    configure(rig->device->options, rig->device->option_count, for_device, rig->device_config);
    if (how->device_options != NULL)
        configure_more(rig->device->options, rig->device->option_count, how->device_options,
                       rig->device_config);
    configure(rig->model_plugin->options, rig->model_plugin->option_count, how->options,
              rig->model_config);
    OK(rig->model_plugin->model->open(rig->model_plugin->host, rig->model_config, &rig->model));

    const plugin_t *const plugins[] = {rig->device, rig->model_plugin, how->parts};
    const lh_host_t *host;
    OK(host_for(rig->host, "core", &host));
    const engine_how_t engine = {.host = host,
                                 .device = rig->device,
                                 .device_config = rig->device_config,
                                 .plugins = plugins,
                                 .plugin_count = how->parts != NULL ? 3 : 2,
                                 .ops = rig->ops,
                                 .unordered = how->unordered,
                                 .variants = how->variants};
    OK(engine_open(&engine, &rig->engine));
    const weights_how_t weights = {.api = how->api != NULL ? how->api : rig->model_plugin->model,
                                   .model = rig->model,
                                   .compute = how->compute};
    OK(weights_new(rig->engine, &weights, &rig->weights));
    rig->parameters = weights_parameters(rig->weights);
}

void rig_close(rig_t *rig)
{
    engine_close(rig->engine);
    rig->model_plugin->model->close(rig->model);
    if (rig->optimizer != NULL) rig->optimizer_plugin->optimizer->close(rig->optimizer);
    options_free(rig->model_plugin->options, rig->model_plugin->option_count, rig->model_config);
    options_free(rig->device->options, rig->device->option_count, rig->device_config);
    op_table_free(rig->ops);
    give_plugins_back(rig);
}

program_t *rig_update(rig_t *rig, double decay)
{
    return rig_update_over(rig, decay, "zero0", 1, NULL, NULL);
}

program_t *rig_update_over(rig_t *rig, double decay, const char *optimizer, uint32_t rounds,
                           comm_t *comm, transfers_t **transfers)
{
    OK(registry_load(rig->registry, LH_KIND_OPTIMIZER, optimizer, &rig->optimizer_plugin));
    OK(registry_load(rig->registry, LH_KIND_PARTS, "rules", &rig->rules));
    const lh_rule_t *adamw = plugin_rule(rig->rules, "adamw");
    assert_non_null(adamw);
    const rig_option_t options[] = {
        {"beta1", "0.9"}, {"beta2", "0.95"}, {"epsilon", "1e-8"}, {NULL, NULL}};
    configure(adamw->options, adamw->option_count, options, rig->rule_config);
    const lh_optimizer_api_t *api = rig->optimizer_plugin->optimizer;
    OK(api->open(rig->optimizer_plugin->host, rig->optimizer_config, &rig->optimizer));

    const optimizer_rule_t rule = {adamw, rig->rule_config};
    const optimizer_group_t group = {0, decay};
    const update_how_t how = {.optimizer = {.api = api,
                                            .optimizer = rig->optimizer,
                                            .rules = &rule,
                                            .rule_count = 1,
                                            .groups = &group,
                                            .group_count = 1,
                                            .rounds = rounds,
                                            .world = comm == NULL ? NULL : comm_world(comm)},
                              .comm = comm,
                              .transfers = transfers};
    program_t *p = NULL;
    OK(update_new(rig->engine, rig->weights, &how, &p));
    return p;
}

float rig_step(program_t *update, uint64_t step, double rate, double clip, bool *applied)
{
    float words[LH_STEP_WORDS] = {0};
    words[LH_STEP_LEARNING_RATE] = (float)rate;
    words[LH_STEP_GRAD_SCALE] = 1;
    words[LH_STEP_NUMBER] = (float)step;
    words[LH_STEP_APPLY] = 1;
    words[LH_STEP_MAX_NORM] = (float)clip;
    OK(program_input(update, LH_INPUT_STEP, words, sizeof(words)));
    OK(program_run(update, 0));
    OK(program_output(update, OUTPUT_STEP, words, sizeof(words)));
    if (applied != NULL) *applied = words[LH_STEP_APPLY] != 0;
    return words[LH_STEP_NORM];
}

/* ---- several ranks ---- */

typedef struct meeting { /* where the ranks of a test find each other */
    secret_t *secret;
    int listener;
    uint16_t port;
    char ini[64];
} meeting_t;

static void meeting_open(meeting_t *m)
{
    static const char ini[] = "[pipeline]\nname = ranks\nstages = prepare\nfolder = out\n"
                              "[prepare]\ninput = a.jsonl\ntokenizer = t.json\n";
    *m = (meeting_t){.listener = -1};
    (void)snprintf(m->ini, sizeof(m->ini), "/tmp/longhaul-ranks-%d.ini", (int)getpid());
    FILE *f = fopen(m->ini, "w");
    assert_non_null(f);
    (void)fputs(ini, f);
    (void)fclose(f);
    OK(secret_random(&m->secret));
    OK(control_listen("127.0.0.1", 0, &m->listener, &m->port));
}

static void meeting_join(const meeting_t *m, rig_rank_t *r)
{
    const control_how_t how = {.rank = r->rank,
                               .size = r->ranks,
                               .host = "here",
                               .site = "",
                               .address = "127.0.0.1",
                               .port = m->port,
                               .listener = r->rank == 0 ? m->listener : -1,
                               .port_fd = -1,
                               .join_ns = 60000000000,
                               .secret = m->secret};
    OK(control_open(&how, &r->control, &r->world));
    OK(job_load(m->ini, NULL, 0, &r->job));
}

static const meeting_t *met; /* in a rank's process */

void rig_over_ranks(uint32_t ranks, void (*body)(rig_rank_t *r, void *context), void *context)
{
    meeting_t m;
    pid_t pids[RIG_RANKS];
    bool well = true;
    assert_true(ranks <= RIG_RANKS);
    assert_int_equal(setenv("LH_TEST_THREADS", "1", 1), 0);
    meeting_open(&m);
    for (uint32_t i = 0; i < ranks; i++) {
        pids[i] = fork();
        if (pids[i] != 0) continue;
        /* A rank that fails ends: it must not go on with the tests that follow, and fork ranks. */
        (void)setenv("CMOCKA_TEST_ABORT", "1", 1);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        rig_rank_t r = {.rank = i, .ranks = ranks};
        met = &m;
        meeting_join(&m, &r);
        body(&r, context);
        _exit(0);
    }
    (void)close(m.listener);
    for (uint32_t i = 0; i < ranks; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        well = well && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    (void)unlink(m.ini);
    secret_free(m.secret);
    assert_true(well);
}

void rig_rank_transport(rig_rank_t *r, const char *plugin)
{
    char set[64];
    const char *const sets[] = {set};
    (void)snprintf(set, sizeof(set), "transport.node.plugin=%s", plugin);
    job_free(r->job);
    OK(job_load(met->ini, sets, 1, &r->job));
}

void rig_rank_open(rig_rank_t *r, rig_t *rig)
{
    const comm_how_t how = {.job = r->job,
                            .registry = rig->registry,
                            .world = r->world,
                            .control = r->control,
                            .thread = true};
    OK(world_publish(rig->host, r->world, met->secret, &r->published));
    OK(comm_open(&how, &r->comm));
}

program_t *rig_rank_update(rig_rank_t *r, rig_t *rig, double decay, const char *optimizer)
{
    return rig_update_over(rig, decay, optimizer, 1, r->comm, &r->transfers);
}

void rig_rank_close(rig_rank_t *r, rig_t *rig)
{
    if (r->transfers != NULL) OK(transfers_finish(r->transfers));
    comm_stop(r->comm);
    OK(control_barrier(r->control, "the end"));
    comm_close(r->comm);
    world_unpublish(rig->host, r->published);
    rig_close(rig);
    transfers_free(r->transfers);
    job_free(r->job);
    OK(control_close(r->control, LH_OK, ""));
    world_free(r->world);
}

/* An F64 program takes its weights in F64. */
static void weights_give(program_t *p, const float *weights, uint64_t tokens)
{
    if (program_input_bytes(p, LH_INPUT_WEIGHTS) == tokens * 4) {
        OK(program_input(p, LH_INPUT_WEIGHTS, weights, tokens * 4));
        return;
    }
    double *wide = mem_array(tokens, 8);
    for (uint64_t t = 0; t < tokens; t++)
        wide[t] = (double)weights[t];
    OK(program_input(p, LH_INPUT_WEIGHTS, wide, tokens * 8));
    mem_free(wide);
}

/* Each micro-batch has a table of starts of its own, which counts its own rows. */
void rig_batches(program_t *p, const int32_t *rows, uint64_t micro_batches, uint64_t sequences,
                 uint64_t sequence, double weight_sum)
{
    const uint64_t all = micro_batches * sequences, tokens = all * sequence;
    const uint64_t tables = micro_batches * (sequences + 1);
    int32_t *ids = mem_array(tokens, 4), *labels = mem_array(tokens, 4);
    int32_t *positions = mem_array(tokens, 4), *starts = mem_array(tables, 4);
    float *weights = mem_array(tokens, 4);
    for (uint64_t i = 0; i < tables; i++)
        starts[i] = (int32_t)(i % (sequences + 1) * sequence);
    for (uint64_t s = 0; s < all; s++) {
        for (uint64_t t = 0; t < sequence; t++) {
            ids[s * sequence + t] = rows[s * (sequence + 1) + t];
            labels[s * sequence + t] = rows[s * (sequence + 1) + t + 1];
            positions[s * sequence + t] = (int32_t)t;
            weights[s * sequence + t] = (float)(1 / weight_sum);
        }
    }
    OK(program_input(p, LH_INPUT_TOKENS, ids, tokens * 4));
    OK(program_input(p, LH_INPUT_POSITIONS, positions, tokens * 4));
    OK(program_input(p, LH_INPUT_LABELS, labels, tokens * 4));
    OK(program_input(p, LH_INPUT_STARTS, starts, tables * 4));
    weights_give(p, weights, tokens);
    mem_free(ids);
    mem_free(labels);
    mem_free(positions);
    mem_free(starts);
    mem_free(weights);
}

void rig_batch(program_t *p, const int32_t *rows, uint64_t sequences, uint64_t sequence,
               double weight_sum)
{
    rig_batches(p, rows, 1, sequences, sequence, weight_sum);
}

float rig_loss(program_t *p)
{
    float loss[2];
    OK(program_output(p, OUTPUT_LOSS, loss, sizeof(loss)));
    return loss[0];
}

program_t *rig_program(rig_t *rig, const program_how_t *how)
{
    program_t *p = NULL;
    OK(program_new(rig->engine, rig->weights, how, &p));
    return p;
}

float *rig_gradients(const rig_t *rig)
{
    float *all = mem_array(rig->parameters->elements, sizeof(float));
    assert_non_null(all);
    uint64_t at = 0;
    for (uint32_t i = 0; i < rig->parameters->count; i++) {
        const parameter_t *p = &rig->parameters->items[i];
        if (p->storage != i) continue;
        OK(weights_read(rig->weights, SPACE_GRAD, i, 0, p->elements, LH_DTYPE_F32, all + at));
        at += p->elements;
    }
    return all;
}
