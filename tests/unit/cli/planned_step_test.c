/* planned_step_test.c - what `check` counts and `plan` plans is what a run builds: for the examples
 * and for 60 random jobs (LONGHAUL_TORTURE=1: 200), every rank's call lists and bytes beside those
 * of a trainer that was really opened, its ranks connected; and what one refuses the others do, in
 * the same words.
 *
 * Ranks are processes that are forked before any thread starts; those of equal worlds open their
 * jobs one after the other over one control plane. Each writes what it built to a file. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <base/digest.h>
#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <cli/check.h>
#include <cli/model_source.h>
#include <config/job_load.h>
#include <control/control_open.h>
#include <control/world.h>
#include <data/indexed.h>
#include <engine/engine.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <longhaul/dtype.h>
#include <plan/step_plan.h>
#include <plugin/host.h>
#include <train/train_save.h>

#include <cmocka.h>
#include <torture.h>
#undef fail

enum { RANDOM_JOBS = 200, SAMPLE = 60, EXAMPLES = 4, JOBS = RANDOM_JOBS + EXAMPLES };
enum { INI_BYTES = 2048, MOST = 4 };
enum { CORPUS_VOCAB = 64 };

typedef struct shape { /* of a world */
    uint32_t ranks, sites;
} shape_t;

static const shape_t shapes[] = {{1, 1}, {2, 1}, {2, 2}, {3, 1}, {4, 1}, {4, 2}};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

typedef struct one_job {
    uint32_t shape;
    bool extra_loss; /* the model adds a loss of its own */
    int32_t eod;
    job_t *job;
    model_source_t source;
} one_job_t;

static char folder[] = "/tmp/planned_step_test_XXXXXX";
static host_t *host;
static registry_t *registry;
static one_job_t jobs[JOBS];
static uint32_t job_count = EXAMPLES + SAMPLE; /* LONGHAUL_TORTURE=1: JOBS */

static void ok_at(lh_status_t status, const char *what, int line)
{
    if (status == LH_OK) return;
    print_error("line %d: %s: %s\n", line, what, fail_reason());
    abort();
}
#define OK(call) ok_at(call, #call, __LINE__)

static char *in_folder(const char *fmt, ...)
{
    static char path[8][256];
    static uint32_t turn;
    char *out = path[turn++ % 8], name[128];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(name, sizeof(name), fmt, args);
    va_end(args);
    (void)snprintf(out, sizeof(path[0]), "%s/%s", folder, name);
    return out;
}

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

/* ---- jobs ---- */

static uint64_t dice;

static uint64_t roll(uint64_t sides)
{
    dice += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t z = dice;
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (z ^ (z >> 31)) % sides;
}

static const char *one_of(const char *const *list, uint32_t count)
{
    return list[roll(count)];
}
#define ONE_OF(...)                            \
    one_of((const char *const[]){__VA_ARGS__}, \
           sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

/* Documents of 1 to 40 tokens. */
static void make_corpus(void)
{
    indexed_writer_t *w;
    int32_t ids[40];
    OK(indexed_writer_open(in_folder("corpus"), CORPUS_VOCAB, &w));
    for (uint32_t i = 0; i < 1500; i++) {
        const uint64_t count = 1 + roll(40);
        for (uint64_t k = 0; k < count; k++)
            ids[k] = (int32_t)roll(CORPUS_VOCAB);
        OK(indexed_writer_add(w, ids, count));
    }
    OK(indexed_writer_commit(w));
}

static void write_world(const shape_t *shape, text_t *ini)
{
    if (shape->sites == 1) {
        text_printf(ini, "[launch]\nranks_per_node = %u\n", shape->ranks);
        return;
    }
    for (uint32_t i = 0; i < shape->sites; i++)
        text_printf(ini, "[site.s%u]\nhosts = localhost:%u\n", i, shape->ranks / shape->sites);
}

static void write_model(bool llama, uint64_t sequence, text_t *ini)
{
    const unsigned heads = 1u << roll(3), width = 8u << roll(2);
    text_printf(ini,
                "[model]\nplugin = %s\nvocab = %u\nblocks = %u\nhidden = %u\nheads = %u\n"
                "ffn = %u\ntied = %s\nmax_tokens = %u\n",
                llama ? "llama" : "gpt2", CORPUS_VOCAB + 8 * (unsigned)roll(9),
                1 + (unsigned)roll(3), heads * width, heads, 24 + 8 * (unsigned)roll(6),
                ONE_OF("yes", "no"), (unsigned)(sequence + 8 * roll(2)));
    if (llama && heads > 1 && roll(2) == 0) text_append(ini, "kv_heads = 1\n");
    if (roll(4) == 0)
        text_printf(ini, "[group.still]\nmatch = %s\nfrozen = yes\n",
                    ONE_OF("embed*", "blocks.0.*", "*norm*"));
}

static void write_train(const shape_t *shape, uint64_t sequence, text_t *ini)
{
    const unsigned micro = 1 + (unsigned)roll(3), batch = micro * (1 + (unsigned)roll(6));
    const bool apart = roll(2) == 0;
    text_printf(ini,
                "[train]\nsequence = %u\nbatch = %u\nmicro_batch = %u\nsteps = 3\n"
                "precision = %s\nrecompute = %s\nevaluate_every = %u\n",
                (unsigned)sequence, batch, micro, ONE_OF("bf16", "f32"),
                ONE_OF("none", "selective", "full"), (unsigned)roll(2));
    text_printf(ini, "logits = %s\n", ONE_OF("f32", "compute"));
    if (roll(3) == 0) text_printf(ini, "head_chunk = %u\n", 4 + 4 * (unsigned)roll(8));
    if (apart && roll(4) == 0) text_printf(ini, "max_documents = %u\n", micro * (unsigned)sequence);
    text_printf(ini, "[data]\ntrain = %s\nsplit = 8,1,1\ndocuments = %s\n", in_folder("corpus"),
                apart ? "apart" : "joined");
    text_printf(ini, "[parallel]\naccumulation = %s\n", ONE_OF("depth", "breadth"));
    if (roll(3) == 0) text_printf(ini, "[comm]\nbucket = %uKiB\n", 1u << roll(6));
    const unsigned stage = (unsigned)roll(4);
    text_printf(ini, "[optimizer]\nplugin = zero%u\nrule = rules:%s\nlearning_rate = 1e-3\n", stage,
                ONE_OF("adamw", "adamw", "sgd"));
    if (stage > 0 && shape->sites > 1 && roll(2) == 0) text_append(ini, "cut = site\n");
}

static void load(one_job_t *j, const char *path, const char *own, bool threads)
{
    char sets[4][300];
    const char *const list[] = {sets[0], sets[1], sets[2], sets[3]};
    (void)snprintf(sets[0], sizeof(sets[0]), "pipeline.folder=%s", own);
    (void)snprintf(sets[1], sizeof(sets[1]), "data.train=%s", in_folder("corpus"));
    (void)snprintf(sets[2], sizeof(sets[2]), "data.split=8,1,1");
    (void)snprintf(sets[3], sizeof(sets[3]), "device.threads=1");
    OK(job_load(path, list, threads ? 4 : 3, &j->job));
}

static void make_random(one_job_t *j, uint32_t index)
{
    text_t ini = {0};
    const bool llama = roll(3) > 0;
    const uint64_t sequence = 8 * (1 + roll(4));
    /* Most of them alone, as that takes the least. */
    j->shape = roll(5) < 3 ? 0 : 1 + (uint32_t)roll(SHAPES - 1);
    j->extra_loss = llama && roll(3) == 0;
    j->eod = roll(4) == 0 ? 3 : -1;
    text_append(&ini, "[pipeline]\nname = random\nstages = train\n[checkpoint]\nevery = 0\n");
    write_model(llama, sequence, &ini);
    write_train(&shapes[j->shape], sequence, &ini);
    /* Every other one where kernels are the cpu's joins products that share an input. */
    const char *device = shapes[j->shape].ranks == 1 ? ONE_OF("cpu", "reference") : "cpu";
    const bool packs = strcmp(device, "cpu") == 0 && index % 2 == 1;
    if (packs) device = "fake";
    text_printf(&ini, "[device]\nplugin = %s\n%s", device, packs ? "packs = yes\n" : "");
    write_world(&shapes[j->shape], &ini);
    OK(text_status(&ini));
    const char *path = in_folder("job%u.ini", index);
    OK(file_replace(path, ini.data, ini.length));
    text_free(&ini);
    load(j, path, in_folder("job%u", index), strcmp(device, "reference") != 0);
    OK(model_source_open(j->job, registry, TOKENIZER_IF_NAMED, &j->source));
}

static void copy_file(const char *from, const char *to)
{
    char *text;
    size_t length;
    OK(file_read(from, 1 << 20, &text, &length));
    OK(file_replace(to, text, length));
    mem_free(text);
}

/* The import stage leaves the config.json of what it imported. */
static void make_example(one_job_t *j, uint32_t index, const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s.ini", LH_EXAMPLES, name);
    load(j, path, in_folder("job%u", index), true);
    if (j->job->import.from != NULL) {
        (void)snprintf(path, sizeof(path), "%s/config.json", j->job->import.from);
        OK(folder_make(in_folder("job%u/import", index)));
        copy_file(path, in_folder("job%u/import/config.json", index));
    }
    OK(model_source_open(j->job, registry, TOKENIZER_IF_NAMED, &j->source));
    j->eod = tokenizer_special(j->source.tokenizer)->eod;
    const uint32_t ranks = job_ranks(j->job), sites = j->job->site_count;
    while (shapes[j->shape].ranks != ranks || shapes[j->shape].sites != (sites == 0 ? 1 : sites))
        j->shape++;
}

static void make_jobs(void)
{
    static const char *const examples[EXAMPLES] = {"shakespeare", "stories", "continued",
                                                   "two-sites"};
    if (torture_wanted()) job_count = JOBS;
    dice = 20260101;
    make_corpus();
    for (uint32_t i = 0; i < EXAMPLES; i++)
        make_example(&jobs[i], i, examples[i]);
    for (uint32_t i = EXAMPLES; i < job_count; i++)
        make_random(&jobs[i], i);
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
                layout->share.passes, layout->share.rows, layout->share.first, schedule->rounds);
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
    char site[16];
    const uint32_t in_site = shape->ranks / shape->sites;
    (void)snprintf(site, sizeof(site), "%s%u", shape->sites > 1 ? "s" : "", rank / in_site);
    const control_how_t how = {.rank = rank,
                               .size = shape->ranks,
                               .host = "localhost",
                               .site = shape->sites > 1 ? site : "",
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
                             .registry = registry,
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
    for (uint32_t i = 0; i < job_count; i++)
        if (jobs[i].shape == shape) run_job(i, rank, control, world);
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
                                                 .registry = registry,
                                                 .vocab = j->source.vocab,
                                                 .given = j->source.given,
                                                 .given_count = j->source.given_count,
                                                 .world = world},
                                     .documents = plan_documents(j->job, j->eod)};
    const bool apart = j->job->data.documents == DOCUMENTS_APART;
    assert_int_equal(how.documents.from_files,
                     apart && j->job->train.max_documents == 0 && j->eod < 0);
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
                                    .registry = registry,
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

/* The sentences of check and plan; both refuse. */
static void refused(const char *set, const char *sentence)
{
    job_t *job;
    plan_programs_t p;
    check_step_t checked;
    char path[256];
    const option_given_t rows = {"vocab", "64", "test", true};
    (void)snprintf(path, sizeof(path), "%s/shakespeare.ini", LH_EXAMPLES);
    OK(job_load(path, &set, set == NULL ? 0 : 1, &job));
    const check_step_how_t check = {
        .job = job, .registry = registry, .given = &rows, .given_count = 1};
    const plan_programs_how_t plan = {
        .session = {.job = job, .registry = registry, .given = &rows, .given_count = 1}};
    assert_int_not_equal(check_step_open(&check, &checked), LH_OK);
    check_step_close(&checked);
    if (strstr(fail_reason(), sentence) == NULL) print_error("check: %s\n", fail_reason());
    assert_non_null(strstr(fail_reason(), sentence));
    fail_clear();
    assert_int_not_equal(plan_programs_open(&plan, &p), LH_OK);
    if (strstr(fail_reason(), sentence) == NULL) print_error("plan: %s\n", fail_reason());
    assert_non_null(strstr(fail_reason(), sentence));
    job_free(job);
}

static void what_the_plan_refuses_is_refused_without_a_device(void **state)
{
    (void)state;
    refused("train.sequence=257", "sequence = 257, the model is made for 256 tokens");
    refused("group.none.match=nothing.*", "matches no parameter of the model");
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
    make_jobs();
    return 0;
}

static int stop(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < job_count; i++) {
        model_source_close(&jobs[i].source);
        job_free(jobs[i].job);
    }
    registry_free(registry);
    host_free(host);
    return folder_remove(folder) != LH_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_is_what_runs),
        cmocka_unit_test(the_lists_of_a_thousand_ranks_are_compared),
        cmocka_unit_test(what_the_plan_refuses_is_refused_without_a_device),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
