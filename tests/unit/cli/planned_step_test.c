/* planned_step_test.c - what `check` counts and `plan` plans is what a run builds: for the examples
 * and for 60 random jobs (LONGHAUL_TORTURE=1: 200), every rank's call lists and bytes beside those
 * of a trainer that was really opened, its ranks connected; and what one refuses the others do, in
 * the same words. Which jobs these are: sample_jobs.h.
 *
 * Ranks are processes that are forked before any thread starts; those of equal worlds open their
 * jobs one after the other over one control plane. Each writes what it built to a file. */
#include <unit/cli/sample_jobs.h>

#include <inttypes.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include <base/digest.h>
#include <base/log.h>
#include <cli/check.h>
#include <control/control_open.h>
#include <control/world.h>
#include <engine/engine.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <longhaul/dtype.h>
#include <plan/step_plan.h>
#include <train/trainer.h>

/* ---- a model with a loss of its own: llama and the mean square of each block's output ---- */

static bool extra_loss; /* of the job at hand */
static enum { RECORDS_WELL, RECORDS_NOTHING, RECORDS_UNKNOWN_OP } recorded;
static lh_value_t (*record_llama)(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                                  lh_value_t x);

static lh_status_t mean_shape(LH_UNUSED const lh_host_t *h, LH_UNUSED const void *attributes,
                              lh_arg_t *args, LH_UNUSED uint32_t count)
{
    args[1] = (lh_arg_t){.dtype = LH_DTYPE_F32, .rank = 1, .shape = {1}, .stride = {1}};
    return LH_OK;
}

static lh_status_t mean_grad_shape(LH_UNUSED const lh_host_t *h, LH_UNUSED const void *attributes,
                                   lh_arg_t *args, LH_UNUSED uint32_t count)
{
    args[2] = args[1];
    return LH_OK;
}

static void mean_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                          const lh_value_t *from, LH_UNUSED const bool *wanted, lh_value_t *into)
{
    const lh_value_t in[] = {from[0], forward[0]};
    into[0] = g->api->op(g, "test.mean_square_grad", attributes, in, 2, NULL);
}

/* Nothing is run here. */
struct lh_prepared {
    int nothing;
};
static lh_prepared_t prepared;

static lh_status_t mean_prepare(LH_UNUSED const lh_host_t *h, LH_UNUSED lh_device_t *d,
                                LH_UNUSED const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                                lh_prepared_t **out)
{
    LH_FILL(lh_kernel_plan_t, plan, .flags = LH_KERNEL_ORDERED, .name = "mean_square.test");
    *out = &prepared;
    return LH_OK;
}

static lh_status_t mean_launch(LH_UNUSED lh_prepared_t *k, LH_UNUSED const lh_launch_t *call)
{
    return LH_UNSUPPORTED;
}

static void mean_release(LH_UNUSED lh_prepared_t *k)
{
}

static lh_op_t ops[] = {
    {.name = "test.mean_square", .slots = "x -> y", .shape = mean_shape, .gradient = mean_gradient},
    {.name = "test.mean_square_grad", .slots = "gy x -> gx", .shape = mean_grad_shape},
};

static lh_kernel_t kernels[6];

static lh_value_t record(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block, lh_value_t x)
{
    const lh_value_t y = record_llama(m, g, part, block, x);
    if (part == LH_PART_BLOCK && recorded == RECORDS_NOTHING) return 0;
    if (part == LH_PART_HEAD && recorded == RECORDS_UNKNOWN_OP)
        return g->api->op(g, "test.unheard_of", NULL, &y, 1, NULL);
    if (part == LH_PART_BLOCK && extra_loss)
        g->api->loss(g, "square", g->api->op(g, "test.mean_square", NULL, &y, 1, NULL));
    return y;
}

static void add_loss_to_llama(void)
{
    static lh_model_api_t api;
    const plugin_t *plugin;
    OK(registry_load(registry, LH_KIND_MODEL, "llama", &plugin));
    plugin_t *llama = (plugin_t *)(uintptr_t)plugin;
    static const char *const devices[] = {"cpu", "reference", "fake"};
    for (uint32_t i = 0; i < 6; i++)
        kernels[i] = (lh_kernel_t){.op = ops[i % 2].name,
                                   .device = devices[i / 2],
                                   .prepare = mean_prepare,
                                   .launch = mean_launch,
                                   .release = mean_release};
    api = *llama->model;
    record_llama = api.record;
    api.record = record;
    llama->model = &api;
    llama->ops = ops;
    llama->op_count = 2;
    llama->kernels = kernels;
    llama->kernel_count = 6;
}

/* ---- what was made, as text ---- */

static void write_call(const program_call_t *call, text_t *out)
{
    text_printf(out, "  %s %u %s %s %s %g %g", call->part, call->block,
                call->backward ? "backward" : "forward",
                call->op == NULL ? "-" : call->op->row.name, call->kernel, call->flops,
                call->bytes);
    if (call->attributes != NULL)
        text_printf(out, " %016" PRIx64,
                    digest_xxh3(call->attributes, call->op->row.attributes_bytes));
    for (uint32_t i = 0; i < call->arg_count; i++) {
        const lh_arg_t *a = &call->args[i];
        text_printf(out, " %s", lh_dtype_name(a->dtype));
        for (uint32_t d = 0; d < a->rank; d++)
            text_printf(out, "%c%" PRIu64 "/%" PRIu64, d == 0 ? '[' : ',', a->shape[d],
                        a->stride[d]);
        text_printf(out, "] %x %u", a->flags, a->alias_slot);
    }
    text_append(out, "\n");
}

static void write_made(const session_t *s, const step_layout_t *layout, const schedule_t *schedule,
                       const memory_report_t *memory, text_t *out)
{
    const engine_t *e = s->engine;
    text_printf(out, "%" PRIu64 " micro-batches of %" PRIu64 " from %" PRIu64 ", %u runs\n",
                layout->share.micro_batches, layout->share.rows, layout->share.first,
                schedule->rounds);
    for (uint32_t k = 0; k < MEMORY_KINDS; k++)
        text_printf(out, "%s %" PRIu64 "\n", engine_memory_text(k), memory->bytes[k]);
    text_printf(out, "saved %" PRIu64 "\ntotal %" PRIu64 "\n", memory->saved_bytes,
                memory->total_bytes);
    for (uint32_t i = 0; i < e->program_count; i++) {
        program_call_t call;
        for (uint32_t later = 0; later < 2; later++) {
            text_printf(out, "program %u, use %u%s\n", i, e->programs[i]->how.use,
                        later ? ", later" : "");
            for (uint32_t c = 0; program_call(e->programs[i], later, c, &call); c++)
                write_call(&call, out);
        }
    }
    OK(text_status(out));
}

/* ---- a run ---- */

typedef struct meeting {
    secret_t *secret;
    int listener;
    uint16_t port;
} meeting_t;

static void open_control(const meeting_t *m, const shape_t *shape, uint32_t rank,
                         control_t **control, world_t **world)
{
    char site[16], name[16];
    const uint32_t in_site = shape->ranks / shape->sites;
    (void)snprintf(site, sizeof(site), "s%u", rank / in_site);
    (void)snprintf(name, sizeof(name), "host%u", rank % in_site / ranks_of_host(shape));
    const control_how_t how = {.rank = rank,
                               .size = shape->ranks,
                               .host = has_sites(shape) ? name : "localhost",
                               .site = has_sites(shape) ? site : "",
                               .address = "127.0.0.1",
                               .port = m->port,
                               .listener = rank == 0 ? m->listener : -1,
                               .port_fd = -1,
                               .join_ns = UINT64_C(60000000000),
                               .secret = m->secret};
    OK(control_open(&how, control, world));
}

static void show_job(uint32_t index)
{
    char *ini;
    size_t length;
    OK(file_read(jobs[index].job->path, 1 << 16, &ini, &length));
    print_error("%s\n", ini);
    mem_free(ini);
}

static void run_job(uint32_t index, uint32_t rank, control_t *control, const world_t *world)
{
    one_job_t *j = &jobs[index];
    const train_how_t how = {.job = j->job,
                             .registry = registry_of(j),
                             .vocab = j->source.vocab,
                             .given = j->source.given,
                             .given_count = j->source.given_count,
                             .eod = j->eod,
                             .control = control,
                             .world = world};
    trainer_t t;
    text_t made = {0};
    extra_loss = j->extra_loss;
    const lh_status_t status = trainer_open(&t, &how);
    if (status == LH_OK) {
        OK(trainer_memory(&t));
        write_made(t.session, &t.layout, t.programs.schedule, &t.ranks_memory[rank].planned, &made);
    } else {
        print_error("job %u, rank %u: %s\n", index, rank, fail_reason());
        show_job(index);
        abort();
    }
    trainer_close(&t);
    OK(file_replace(in_folder("job%u.rank%u", index, rank), made.data, made.length));
    text_free(&made);
}

static void be_rank(const meeting_t *m, uint32_t shape, uint32_t rank)
{
    control_t *control = NULL;
    world_t *world = NULL;
    published_t *published = NULL;
    if (shapes[shape].ranks > 1) {
        open_control(m, &shapes[shape], rank, &control, &world);
        OK(world_publish(host, world, m->secret, &published));
    }
    for (uint32_t i = 0; i < job_count; i++) {
        if (jobs[i].shape != shape) continue;
        /* as the launcher does, once a rank's job is known */
        if (world != NULL) world->inside_nodes = jobs[i].job->parallel.inside == INSIDE_NODE;
        run_job(i, rank, control, world);
    }
    if (control == NULL) return;
    world_unpublish(host, published);
    OK(control_close(control, LH_OK, ""));
    world_free(world);
}

typedef struct crowd { /* the ranks of a world */
    pid_t pids[MOST];
    secret_t *secret;
} crowd_t;

static void crowd_start(crowd_t *c, uint32_t shape)
{
    meeting_t m = {.listener = -1};
    OK(secret_random(&m.secret));
    OK(control_listen("127.0.0.1", 0, &m.listener, &m.port));
    c->secret = m.secret;
    for (uint32_t r = 0; r < shapes[shape].ranks; r++) {
        c->pids[r] = fork();
        if (c->pids[r] != 0) continue;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_rank(&m, shape, r);
        _exit(0);
    }
    (void)close(m.listener);
}

static bool crowd_end(crowd_t *c, uint32_t ranks)
{
    bool well = true;
    for (uint32_t r = 0; r < ranks; r++) {
        int status;
        assert_int_equal(waitpid(c->pids[r], &status, 0), c->pids[r]);
        well = well && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    secret_free(c->secret);
    return well;
}

static void run_jobs(void)
{
    crowd_t crowds[SHAPES];
    bool well = true;
    for (uint32_t s = 0; s < SHAPES; s++)
        crowd_start(&crowds[s], s);
    for (uint32_t s = 0; s < SHAPES; s++)
        well = crowd_end(&crowds[s], shapes[s].ranks) && well;
    assert_true(well);
}

/* ---- the plan ---- */

/* A row of check's table. */
static void compare_check(const check_step_t *checked, uint32_t rank,
                          const memory_report_t *planned)
{
    static const uint32_t kinds[] = {MEMORY_PARAMETERS, MEMORY_GRADIENTS, MEMORY_MASTER,
                                     MEMORY_STATE};
    text_t table = {0}, row = {0};
    text_printf(&row, "; %6u", rank);
    for (uint32_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        text_printf(&row, " %17" PRIu64, planned->bytes[kinds[i]]);
    OK(check_step_memory(checked, &table));
    if (strstr(table.data, row.data) == NULL)
        print_error("check says\n%splan says\n%s\n", table.data, row.data);
    assert_non_null(strstr(table.data, row.data));
    text_free(&table);
    text_free(&row);
}

static void plan_job(const one_job_t *j, uint32_t rank, text_t *out)
{
    world_t *world;
    plan_programs_t p;
    memory_report_t memory;
    OK(world_plan(j->job, rank, &world));
    const plan_programs_how_t how = {.session = {.job = j->job,
                                                 .registry = registry_of(j),
                                                 .vocab = j->source.vocab,
                                                 .given = j->source.given,
                                                 .given_count = j->source.given_count,
                                                 .world = world},
                                     .documents = plan_documents(j->job, j->eod)};
    const bool apart = j->job->data.documents == DOCUMENTS_APART;
    const bool cut = j->eod >= 0 && j->job->train.phase == PHASE_PRETRAIN;
    assert_int_equal(how.documents.from_files, apart && j->job->train.max_documents == 0 && !cut);
    extra_loss = j->extra_loss;
    OK(plan_programs_open(&how, &p));
    plan_programs_memory(&p, &memory);
    write_made(p.session, &p.layout, p.programs.schedule, &memory, out);

    check_step_t checked;
    char vocab[24];
    (void)snprintf(vocab, sizeof(vocab), "%" PRIu64, weights_parameters(p.session->weights)->vocab);
    const option_given_t rows = {"vocab", vocab, "test", true};
    const bool imports = j->source.given_count > 0;
    const check_step_how_t check = {.job = j->job,
                                    .registry = registry_of(j),
                                    .given = imports ? j->source.given : &rows,
                                    .given_count = imports ? j->source.given_count : 1};
    OK(check_step_open(&check, &checked));
    compare_check(&checked, rank, &memory);
    check_step_close(&checked);
    plan_programs_close(&p);
    world_free(world);
}

static void show_difference(uint32_t index, uint32_t rank, const char *planned, const char *made)
{
    size_t line = 0;
    for (size_t i = 0; planned[i] == made[i]; i++)
        if (planned[i] == '\n') line = i + 1;
    print_error("job %u, rank %u\n  planned: %.*s\n  made:    %.*s\n", index, rank,
                (int)strcspn(planned + line, "\n"), planned + line, (int)strcspn(made + line, "\n"),
                made + line);
    show_job(index);
}

static void the_plan_is_what_runs(void **state)
{
    (void)state;
    uint32_t different = 0, ranks = 0;
    run_jobs();
    for (uint32_t i = 0; i < job_count; i++) {
        for (uint32_t r = 0; r < shapes[jobs[i].shape].ranks; r++) {
            text_t planned = {0};
            char *made;
            size_t length;
            plan_job(&jobs[i], r, &planned);
            OK(file_read(in_folder("job%u.rank%u", i, r), 1 << 24, &made, &length));
            ranks++;
            if (strcmp(planned.data, made) != 0) {
                different++;
                show_difference(i, r, planned.data, made);
            }
            mem_free(made);
            text_free(&planned);
        }
    }
    print_message("%u jobs, %u ranks: %u differ\n", job_count, ranks, different);
    assert_int_equal(different, 0);
}

/* In processor time, of which a loaded machine takes no more. */
static void the_lists_of_a_thousand_ranks_are_compared(void **state)
{
    (void)state;
    static const char *const cuts[][2] = {
        {"optimizer.plugin=zero0", "optimizer.learning_rate=1e-3"},
        {"optimizer.plugin=zero3", "optimizer.cut=site"}};
    const option_given_t rows = {"vocab", "64", "test", true};
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/shakespeare.ini", LH_EXAMPLES);
    for (uint32_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        const char *const sets[] = {"site.a.hosts=a1:512",
                                    "site.b.hosts=b1:512",
                                    "train.batch=1024",
                                    "train.micro_batch=1",
                                    cuts[i][0],
                                    cuts[i][1]};
        job_t *job;
        check_step_t checked;
        OK(job_load(path, sets, sizeof(sets) / sizeof(sets[0]), &job));
        const check_step_how_t check = {
            .job = job, .registry = registry, .given = &rows, .given_count = 1};
        const clock_t begun = clock();
        OK(check_step_open(&check, &checked));
        assert_int_equal(checked.world->row.size, 1024);
        OK(check_step_order(&checked));
        const double seconds = (double)(clock() - begun) / CLOCKS_PER_SEC;
        print_message("%s: %.3f s\n", cuts[i][0], seconds);
        assert_true(seconds < 5);
        check_step_close(&checked);
        job_free(job);
    }
}

/* The largest step that anybody has in mind, which `longhaul plan` shows in the same words: all of it is
 * one round. In processor time, with room for sanitizers; how the planner's work grows is arena_plan_test's
 * to say. */
static void a_step_of_80_blocks_and_64_micro_batches_is_planned(void **state)
{
    (void)state;
    static const char *const sets[] = {
        "model.blocks=80",       "model.hidden=8192",    "model.ffn=28672",
        "model.heads=64",        "model.kv_heads=8",     "model.max_tokens=4096",
        "train.sequence=4096",   "train.batch=64",       "train.micro_batch=1",
        "train.precision=bf16",  "train.recompute=full", "parallel.accumulation=breadth",
        "train.evaluate_every=0"};
    const option_given_t rows = {"vocab", "32000", "test", true};
    char path[256], calls[16], activations[16];
    job_t *job;
    plan_programs_t p;
    memory_report_t memory;
    program_call_t call;
    uint32_t count = 0;
    (void)snprintf(path, sizeof(path), "%s/shakespeare.ini", LH_EXAMPLES);
    OK(job_load(path, sets, sizeof(sets) / sizeof(sets[0]), &job));
    const plan_programs_how_t how = {
        .session = {.job = job, .registry = registry, .given = &rows, .given_count = 1}};
    const clock_t begun = clock();
    OK(plan_programs_open(&how, &p));
    const double seconds = (double)(clock() - begun) / CLOCKS_PER_SEC;
    plan_programs_memory(&p, &memory);
    assert_int_equal(p.programs.schedule->rounds, 1);
    assert_int_equal(p.programs.schedule->frames, 64);
    while (program_call(p.programs.train, false, count, &call))
        count++;
    assert_true(count > 64 * 80 * 20);
    /* A frame is a block's input, of each micro-batch. */
    assert_true(memory.bytes[MEMORY_ACTIVATIONS] > UINT64_C(64) * 80 * 4096 * 8192 * 2);
    text_count(count, calls);
    text_bytes((double)memory.bytes[MEMORY_ACTIVATIONS], activations);
    print_message("%s calls planned in %.2f s (%.2f s of a processor); activations: %s\n", calls,
                  (double)p.planned_ns * 1e-9, seconds, activations);
    assert_true(seconds < 8);
    plan_programs_close(&p);
    job_free(job);
}

/* What was just refused, for comparing. */
static void refused_as(lh_status_t status, const char *who, const char *sentence, char out[512])
{
    if (status == LH_OK || strstr(fail_reason(), sentence) == NULL)
        print_error("%s: %s\n", who, fail_reason());
    assert_int_not_equal(status, LH_OK);
    assert_non_null(strstr(fail_reason(), sentence));
    (void)snprintf(out, 512, "%s", fail_reason());
    fail_clear();
}

/* check, plan and train refuse it, and say the same. more: another setting, or NULL. */
static void refused_with(const char *set, const char *more, const char *sentence)
{
    job_t *job;
    plan_programs_t p;
    check_step_t checked;
    trainer_t t;
    char path[256], data[300], own[300], said[3][512];
    const option_given_t rows = {"vocab", "64", "test", true};
    (void)snprintf(path, sizeof(path), "%s/shakespeare.ini", LH_EXAMPLES);
    (void)snprintf(data, sizeof(data), "data.train=%s", in_folder("corpus"));
    (void)snprintf(own, sizeof(own), "pipeline.folder=%s", in_folder("refused"));
    const char *const sets[] = {data, own, "data.split=8,1,1", "device.threads=1", set, more};
    OK(job_load(path, sets, set == NULL ? 4 : more == NULL ? 5 : 6, &job));
    const check_step_how_t check = {
        .job = job, .registry = registry, .given = &rows, .given_count = 1};
    const plan_programs_how_t plan = {
        .session = {.job = job, .registry = registry, .given = &rows, .given_count = 1}};
    const train_how_t train = {
        .job = job, .registry = registry, .given = &rows, .given_count = 1, .eod = -1};
    const lh_status_t status = check_step_open(&check, &checked);
    check_step_close(&checked);
    refused_as(status, "check", sentence, said[0]);
    refused_as(plan_programs_open(&plan, &p), "plan", sentence, said[1]);
    refused_as(trainer_open(&t, &train), "train", sentence, said[2]);
    trainer_close(&t);
    fail_clear();
    assert_string_equal(said[1], said[0]);
    assert_string_equal(said[2], said[0]);
    job_free(job);
}

static void refused(const char *set, const char *sentence)
{
    refused_with(set, NULL, sentence);
}

static void what_the_plan_refuses_is_refused_without_a_device(void **state)
{
    (void)state;
    refused("train.sequence=257", "sequence = 257, the model is made for 256 tokens");
    refused("group.none.match=nothing.*", "matches no parameter of the model");
    refused_with("group.norms.match=*norm*", "group.norms.decay=0.1",
                 "[group.norms] decay = 0.1: no parameter that it matches decays");
    refused("optimizer.rule=rules:nothing", "nothing");
    recorded = RECORDS_NOTHING;
    refused(NULL, "the model records nothing for part");
    recorded = RECORDS_UNKNOWN_OP;
    refused(NULL, "test.unheard_of");
    recorded = RECORDS_WELL;
}

static int start(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL) return 1;
    log_threshold(LH_LOG_WARN); /* hundreds of links tell how they are */
    OK(host_new(&host));
    OK(registry_new(LH_TEST_PLUGINS, host, &registry));
    add_loss_to_llama();
    jobs_make();
    return 0;
}

static int stop(void **state)
{
    (void)state;
    jobs_free();
    registry_free(registry);
    host_free(host);
    return folder_remove(folder) != LH_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_is_what_runs),
        cmocka_unit_test(the_lists_of_a_thousand_ranks_are_compared),
        cmocka_unit_test(a_step_of_80_blocks_and_64_micro_batches_is_planned),
        cmocka_unit_test(what_the_plan_refuses_is_refused_without_a_device),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
