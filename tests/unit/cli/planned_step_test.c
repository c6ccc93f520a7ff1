/* planned_step_test.c - what `check` counts and `plan` plans is what a run builds: for the examples
 * and for 60 random jobs (LONGHAUL_TORTURE=1: 200), every rank's call lists and bytes beside those
 * of a trainer that was really opened, its ranks connected; and what one refuses the others do, in
 * the same words.
 *
 * Examples are run as they are. Recipes and specs are what other jobs include, at sizes that take
 * hundreds of GiB: they are included here, with a small model's numbers over theirs. A sample has
 * the examples and one of the recipes and specs; the long list has all.
 *
 * Ranks are processes that are forked before any thread starts; those of equal worlds open their
 * jobs one after the other over one control plane. Each writes what it built to a file. */
#include <dirent.h>
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
#include <cli/cli.h>
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
#include <train/trainer.h>

#include <cmocka.h>
#include <torture.h>
#undef fail

enum { RANDOM_JOBS = 200, SAMPLE = 60, MOST_EXAMPLES = 32, JOBS = RANDOM_JOBS + MOST_EXAMPLES };
enum { MOST = 4, SETS = 12 };
enum { CORPUS_VOCAB = 64 };

typedef struct shape { /* of a world; hosts: of each site, that its ranks are shared out over */
    uint32_t ranks, sites, hosts;
} shape_t;

static const shape_t shapes[] = {{1, 1, 1}, {2, 1, 1}, {2, 2, 1}, {3, 1, 1},
                                 {4, 1, 1}, {4, 2, 1}, {4, 1, 2}, {3, 3, 1}};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

typedef struct one_job {
    uint32_t shape;
    bool extra_loss; /* the model adds a loss of its own */
    int32_t eod;
    job_t *job;
    registry_t *registry; /* of a spec, which is one of its registry's plugins; NULL: the others' */
    model_source_t source;
} one_job_t;

static char folder[] = "/tmp/planned_step_test_XXXXXX";
static host_t *host;
static registry_t *registry;
static one_job_t jobs[JOBS];
static uint32_t job_count;

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

static registry_t *registry_of(const one_job_t *j)
{
    return j->registry != NULL ? j->registry : registry;
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
static void corpus_make(void)
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

/* A question of 1 to 3 tokens and an answer of 1 to 12, once or twice; of pairs, the same question
 * with either answer (data/packs.h). */
static void talks_make(const char *name, bool pairs)
{
    indexed_writer_t *w;
    int32_t ids[40];
    OK(indexed_writer_open(in_folder("%s", name), CORPUS_VOCAB, &w));
    for (uint32_t i = 0; i < 400; i++) {
        const int32_t question = 1 + (int32_t)roll(3);
        int32_t lengths[5] = {question, 1 + (int32_t)roll(12)};
        uint64_t parts = 2, count = 0;
        if (pairs) lengths[parts++] = 0;
        if (pairs || roll(2) == 0) {
            lengths[parts++] = question;
            lengths[parts++] = 1 + (int32_t)roll(12);
        }
        for (uint64_t k = 0; k < parts; k++)
            for (int32_t n = 0; n < lengths[k]; n++)
                ids[count++] = (int32_t)roll(CORPUS_VOCAB);
        OK(indexed_writer_add_parts(w, ids, lengths, parts));
    }
    OK(indexed_writer_commit(w));
}

static void copy_file(const char *from, const char *to)
{
    char *text;
    size_t length;
    OK(file_read(from, 1 << 20, &text, &length));
    OK(file_replace(to, text, length));
    mem_free(text);
}

/* The model that the examples import, as `longhaul import` leaves it in FOLDER/imported: what phase
 * dpo compares with. A process of its own does it, as it may start threads. */
static void model_import(void)
{
    int status;
    char ini[512], *path = in_folder("imported.ini"), plugins[] = LH_TEST_PLUGINS;
    char program[] = "longhaul", command[] = "import", option[] = "--plugins";
    char *argv[] = {program, command, path, option, plugins, NULL};
    (void)snprintf(ini, sizeof(ini),
                   "[pipeline]\nname = imported\nstages = import\nfolder = %s\n"
                   "[import]\nfrom = %s/data/stories260K\n"
                   "[model]\nplugin = llama\nvocab = from_import\n",
                   in_folder("imported"), LH_EXAMPLES);
    OK(file_replace(path, ini, strlen(ini)));
    const pid_t child = fork();
    if (child == 0) {
        cli_t cli = {0};
        int code = cli_parse(5, argv, &cli);
        if (freopen("/dev/null", "w", stdout) == NULL) _exit(1);
        if (code == LH_OK) code = cli_open(&cli);
        if (code == LH_OK) code = cli.command->run(&cli);
        if (code != 0) print_error("import: %s\n", fail_reason());
        _exit(code == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static uint32_t ranks_of_host(const shape_t *shape)
{
    return shape->ranks / shape->sites / shape->hosts;
}

static bool has_sites(const shape_t *shape)
{
    return shape->sites > 1 || shape->hosts > 1;
}

/* Machines are names alone: ranks meet by address. */
static void write_world(const shape_t *shape, text_t *ini)
{
    if (!has_sites(shape)) {
        text_printf(ini, "[launch]\nranks_per_node = %u\n", shape->ranks);
        return;
    }
    for (uint32_t i = 0; i < shape->sites; i++) {
        text_printf(ini, "[site.s%u]\nhosts = ", i);
        for (uint32_t h = 0; h < shape->hosts; h++)
            text_printf(ini, "%shost%u:%u", h > 0 ? ", " : "", h, ranks_of_host(shape));
        text_append(ini, "\n");
    }
}

/* What a random job is of; the rest of it is drawn where it is written. */
typedef struct draw {
    uint32_t model, phase; /* PHASE_* */
    bool imported, adapts, tabled;
    uint64_t sequence;
    uint32_t blocks, micro_batches; /* of a rank */
} draw_t;

enum { LLAMA, GPT2, SPEC, MODELS };

static void write_adapter(const draw_t *d, text_t *ini)
{
    if (d->adapts)
        text_printf(ini, "[adapter.small]\nkind = %s\nmatch = %s\nrank = %u\nalpha = 4\n",
                    ONE_OF("lora", "dora"), ONE_OF("blocks.*.wq", "blocks.*.wq, blocks.*.wo"),
                    1 + (unsigned)roll(4));
}

/* Frozen, or with a rate, a decay or a rule of their own. With an adapter all else is frozen. A
 * parameter is of the first group that matches it, and a group of none is refused. */
static void write_groups(const draw_t *d, text_t *ini)
{
    if (d->adapts || roll(2) == 0) return;
    const char *match = ONE_OF("embed*", "blocks.0.*", "*norm*");
    text_printf(ini, "[group.one]\nmatch = %s\n%s\n", match,
                ONE_OF("frozen = yes", "rate = 0.5", "decay = 0", "rule = rules:sgd",
                       "rule = rules:adamw\nrate = 2"));
    if (roll(2) == 0 && strcmp(match, "blocks.0.*") != 0)
        text_append(ini, "[group.two]\nmatch = blocks.*.wo\nrule = rules:sgd\n");
}

/* The model's section; what a spec includes is told to the file's first line. */
static void write_model(const draw_t *d, text_t *ini, const char **included)
{
    const unsigned heads = 1u << roll(3), width = 8u << roll(2);
    *included = NULL;
    if (d->imported) {
        text_printf(ini,
                    "[import]\nfrom = %s/data/stories260K\n"
                    "[model]\nplugin = llama\nvocab = from_import\n",
                    LH_EXAMPLES);
        return;
    }
    text_printf(ini, "[model]\nvocab = %u\nblocks = %u\nhidden = %u\nheads = %u\nffn = %u\n",
                CORPUS_VOCAB + 8 * (unsigned)roll(9), d->blocks, heads * width, heads,
                24 + 8 * (unsigned)roll(6));
    text_printf(ini, "tied = %s\nmax_tokens = %u\n", ONE_OF("yes", "no"),
                (unsigned)(d->sequence + 8 * roll(2)));
    if (d->model == LLAMA) {
        text_append(ini, "plugin = llama\n");
        if (heads > 1 && roll(2) == 0) text_append(ini, "kv_heads = 1\n");
    } else if (d->model == GPT2) {
        text_append(ini, "plugin = gpt2\n");
    } else {
        *included = ONE_OF("gpt2", "qwen3", "mixtral", "falcon-7b");
        if (strcmp(*included, "qwen3") == 0) text_append(ini, "head_dim = 8\n");
        if (strcmp(*included, "mixtral") == 0)
            text_printf(ini, "experts = 4\nchosen = 2\nbalanced = %s\n", ONE_OF("yes", "no"));
    }
}

/* Two chunks where there are so many blocks; every micro-batch there before the one before it goes
 * back, or not; the way back whole or in halves. */
static void write_table(const draw_t *d, const char *path)
{
    text_t t = {0};
    const uint32_t chunks = d->blocks > 1 ? 2 : 1, most = d->micro_batches;
    const uint32_t ahead = roll(2) == 0 || most == 1 ? 0 : 1, frames = ahead + 1;
    const bool halves = roll(2) == 0;
    text_append(&t, "program,chunk,micro_batch,frame\n");
    for (uint32_t m = 0; m < most + ahead; m++) {
        for (uint32_t c = 0; c < chunks && m < most; c++)
            text_printf(&t, "forward,%u,%u,%u\n", c, m, m % frames);
        if (m < ahead) continue;
        const uint32_t back = m - ahead;
        for (uint32_t c = 0; c < chunks; c++)
            text_printf(&t, "backward%s,%u,%u,%u\n", halves ? "_input" : "", chunks - 1 - c, back,
                        back % frames);
        for (uint32_t c = 0; c < chunks && halves; c++)
            text_printf(&t, "backward_weights,%u,%u,%u\n", c, back, back % frames);
    }
    OK(text_status(&t));
    OK(file_replace(path, t.data, t.length));
    text_free(&t);
}

static void write_optimizer(const shape_t *shape, text_t *ini)
{
    const unsigned stage = (unsigned)roll(4);
    text_printf(ini, "[optimizer]\nplugin = zero%u\nrule = rules:%s\nlearning_rate = 1e-3\n", stage,
                ONE_OF("adamw", "adamw", "sgd"));
    if (stage > 0 && has_sites(shape) && roll(2) == 0) text_append(ini, "cut = site\n");
}

static void write_train(draw_t *d, const shape_t *shape, const char *table, text_t *ini)
{
    static const char *const phases[] = {"pretrain", "sft", "dpo"};
    static const char *const sets[] = {"corpus", "talks", "pairs"};
    const unsigned micro = 1 + (unsigned)roll(3), batch = micro * (1 + (unsigned)roll(6));
    const bool apart = d->phase != PHASE_PRETRAIN || roll(2) == 0;
    text_printf(ini,
                "[train]\nphase = %s\nsequence = %u\nbatch = %u\nmicro_batch = %u\nsteps = 3\n"
                "precision = %s\nrecompute = %s\nevaluate_every = %u\n",
                phases[d->phase], (unsigned)d->sequence, batch, micro, ONE_OF("bf16", "f32"),
                ONE_OF("none", "selective", "full"), (unsigned)roll(2));
    text_printf(ini, "logits = %s\n", ONE_OF("f32", "compute"));
    if (roll(3) == 0) text_printf(ini, "head_chunk = %u\n", 4 + 4 * (unsigned)roll(8));
    if (apart && roll(4) == 0)
        text_printf(ini, "max_documents = %u\n", micro * (unsigned)d->sequence);
    text_printf(ini, "[data]\ntrain = %s\nsplit = 8,1,1\ndocuments = %s\n",
                in_folder("%s", sets[d->phase]), apart ? "apart" : "joined");
    if (d->phase != PHASE_PRETRAIN)
        text_printf(ini, "too_long = %s\npacking = %s\n", ONE_OF("cut", "skip"),
                    ONE_OF("yes", "no"));
    if (d->phase == PHASE_DPO && !d->adapts)
        text_printf(ini, "[dpo]\nreference = %s\n", in_folder("imported/import/checkpoints"));
    d->micro_batches = (uint32_t)batch_share(batch, micro, 0, shape->ranks).micro_batches;
    text_append(ini, "[parallel]\n");
    if (d->tabled) {
        write_table(d, table);
        text_printf(ini, "schedule = %s\n", table);
    } else {
        text_printf(ini, "accumulation = %s\n", ONE_OF("depth", "breadth"));
    }
    if (shape->hosts > 1) text_printf(ini, "inside = %s\n", ONE_OF("node", "node", "site"));
    if (roll(3) == 0) text_printf(ini, "[comm]\nbucket = %uKiB\n", 1u << roll(6));
    write_optimizer(shape, ini);
}

static void load(one_job_t *j, const char *path, const char *const *own, uint32_t count)
{
    OK(job_load(path, own, count, &j->job));
    if (j->job->import.from == NULL) return;
    /* The import stage leaves the config.json of what it imported. */
    char config[256], *kept = path_join(j->job->pipeline.folder, "import");
    (void)snprintf(config, sizeof(config), "%s/config.json", j->job->import.from);
    OK(folder_make(kept));
    char *to = path_join(kept, "config.json");
    copy_file(config, to);
    mem_free(to);
    mem_free(kept);
}

/* Once the job is loaded. */
static void source_open(one_job_t *j)
{
    if (strcmp(j->job->model.plugin, "spec") == 0) {
        OK(registry_new(LH_TEST_PLUGINS, host, &j->registry));
        OK(model_source_choose(j->job, j->registry));
    }
    OK(model_source_open(j->job, registry_of(j), TOKENIZER_IF_NAMED, &j->source));
}

static void make_random(one_job_t *j, uint32_t index)
{
    text_t body = {0}, ini = {0};
    char own[300];
    const char *const sets[] = {own}, *included;
    draw_t d = {.sequence = 8 * (1 + roll(4)), .blocks = 1 + (uint32_t)roll(3)};
    d.model = (uint32_t[]){LLAMA, LLAMA, LLAMA, GPT2, SPEC}[roll(5)];
    d.phase = (uint32_t[]){PHASE_PRETRAIN, PHASE_PRETRAIN, PHASE_SFT, PHASE_DPO}[roll(4)];
    d.adapts = roll(4) == 0;
    d.imported = d.phase == PHASE_DPO && !d.adapts;
    d.tabled = roll(4) == 0;
    if (d.imported) d.model = LLAMA, d.blocks = 5; /* stories260K */
    /* Most of them alone, as that takes the least. */
    j->shape = roll(5) < 3 ? 0 : 1 + (uint32_t)roll(SHAPES - 1);
    j->extra_loss = d.model == LLAMA && roll(3) == 0;
    j->eod = roll(4) == 0 ? 3 : -1;
    const shape_t *shape = &shapes[j->shape];
    text_append(&body, "[pipeline]\nname = random\nstages = train\n[checkpoint]\nevery = 0\n");
    write_model(&d, &body, &included);
    write_adapter(&d, &body);
    write_groups(&d, &body);
    write_train(&d, shape, in_folder("job%u.csv", index), &body);
    /* Every other one where kernels are the cpu's joins products that share an input. */
    const char *device = shape->ranks == 1 ? ONE_OF("cpu", "reference") : "cpu";
    const bool packs = strcmp(device, "cpu") == 0 && index % 2 == 1;
    if (packs) device = "fake";
    text_printf(&body, "[device]\nplugin = %s\n%s%s", device, packs ? "packs = yes\n" : "",
                strcmp(device, "reference") != 0 ? "threads = 1\n" : "");
    write_world(shape, &body);
    if (included != NULL) text_printf(&ini, "include = %s/specs/%s.ini\n", LH_EXAMPLES, included);
    OK(text_status(&body));
    text_append(&ini, body.data);
    OK(text_status(&ini));
    const char *path = in_folder("job%u.ini", index);
    OK(file_replace(path, ini.data, ini.length));
    text_free(&ini);
    text_free(&body);
    (void)snprintf(own, sizeof(own), "pipeline.folder=%s", in_folder("job%u", index));
    load(j, path, sets, 1);
    source_open(j);
}

/* Every INI of examples/. What is no job of its own is included by one of a small model; {sft} and the
 * like have data of their own phase. */
#define SMALL "blocks = 2\nhidden = 32\nheads = 2\nvocab = 64\nmax_tokens = 64\n"
static const struct {
    const char *name;
    const char *phase; /* the recipe of a phase beside it; NULL: it is a job */
    const char *model; /* of the model that is included */
    uint32_t data;     /* PHASE_* that its token files are of */
    bool always;       /* in a sample, too */
} examples[] = {
    {"shakespeare", NULL, NULL, PHASE_PRETRAIN, true},
    {"stories", NULL, NULL, PHASE_PRETRAIN, true},
    {"continued", NULL, NULL, PHASE_PRETRAIN, true},
    {"two-sites", NULL, NULL, PHASE_PRETRAIN, true},
    {"two-sites-rdma", NULL, NULL, PHASE_PRETRAIN, false},
    {"three-sites", NULL, NULL, PHASE_PRETRAIN, true},
    {"chat", NULL, NULL, PHASE_SFT, true},
    {"lora", NULL, NULL, PHASE_SFT, true},
    {"dpo", NULL, NULL, PHASE_DPO, true},
    {"recipes/pretrain", "recipes/small", "hidden = 64\nvocab = 64\n", PHASE_PRETRAIN, false},
    {"recipes/small", "recipes/sft", "hidden = 64\nvocab = 64\n", PHASE_SFT, false},
    {"recipes/sft", "recipes/small", "hidden = 64\nvocab = 64\n", PHASE_SFT, false},
    {"recipes/dpo", "recipes/sft", "plugin = llama\nvocab = from_import\n", PHASE_DPO, false},
    {"recipes/llama-3-8b", "recipes/pretrain", SMALL "ffn = 48\nkv_heads = 1\n", PHASE_PRETRAIN,
     false},
    {"recipes/mistral-7b", "recipes/pretrain", SMALL "ffn = 48\nkv_heads = 1\n", PHASE_PRETRAIN,
     false},
    {"recipes/qwen3-8b", "recipes/pretrain", SMALL "ffn = 48\nkv_heads = 1\nhead_dim = 16\n",
     PHASE_PRETRAIN, false},
    {"recipes/gemma-2-9b", "recipes/pretrain",
     SMALL "ffn = 48\nkv_heads = 1\nhead_dim = 16\nwindow = 16\nquery_scale = 16\n", PHASE_PRETRAIN,
     false},
    {"recipes/falcon-7b", "recipes/pretrain", SMALL, PHASE_PRETRAIN, false},
    {"recipes/mixtral-8x7b", "recipes/pretrain", SMALL "ffn = 48\nkv_heads = 1\nexperts = 4\n",
     PHASE_PRETRAIN, true},
    {"specs/gpt2", "recipes/pretrain", SMALL, PHASE_PRETRAIN, false},
    {"specs/qwen3", "recipes/pretrain", SMALL "ffn = 48\nhead_dim = 16\n", PHASE_PRETRAIN, true},
    {"specs/mixtral", "recipes/pretrain", SMALL "ffn = 48\nexperts = 4\n", PHASE_PRETRAIN, false},
    {"specs/falcon-7b", "recipes/pretrain", SMALL, PHASE_PRETRAIN, false},
    {"specs/phi3", "recipes/pretrain", SMALL "ffn = 48\nkv_heads = 1\n", PHASE_PRETRAIN, false},
    {"specs/mla", "recipes/pretrain",
     SMALL "ffn = 48\nq_rank = 24\nkv_rank = 16\nstill = 8\nturning = 8\nvalue_dim = 8\n",
     PHASE_PRETRAIN, true},
};
enum { EXAMPLES = sizeof(examples) / sizeof(examples[0]) };

/* A new example must be told here. */
static uint32_t inis_in(const char *below)
{
    char path[256];
    uint32_t count = 0;
    (void)snprintf(path, sizeof(path), "%s/%s", LH_EXAMPLES, below);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        const char *dot = strrchr(e->d_name, '.');
        count += dot != NULL && strcmp(dot, ".ini") == 0 ? 1 : 0;
    }
    (void)closedir(d);
    return count;
}

/* A job that includes what is none. */
static void write_including(uint32_t e, const char *path)
{
    char ini[1024];
    const bool imports = strstr(examples[e].model, "from_import") != NULL;
    (void)snprintf(ini, sizeof(ini),
                   "include = %s/%s.ini, %s/%s.ini\n[pipeline]\nname = included\nstages = %strain\n"
                   "[model]\n%s[train]\nsequence = 32\nbatch = 4\nmicro_batch = 1\n"
                   "[import]\n%s%s%s\n",
                   LH_EXAMPLES, examples[e].phase, LH_EXAMPLES, examples[e].name,
                   imports ? "import " : "", examples[e].model, imports ? "from = " : "",
                   imports ? LH_EXAMPLES : "", imports ? "/data/stories260K" : "");
    OK(file_replace(path, ini, strlen(ini)));
}

static void make_example(one_job_t *j, uint32_t index, uint32_t e)
{
    static const char *const data[] = {"corpus", "talks", "pairs"};
    char path[256], sets[6][300];
    const char *list[6];
    uint32_t count = 0;
    (void)snprintf(path, sizeof(path), "%s/%s.ini", LH_EXAMPLES, examples[e].name);
    if (examples[e].phase != NULL) {
        (void)snprintf(path, sizeof(path), "%s", in_folder("job%u.ini", index));
        write_including(e, path);
    }
#define SET(...) (void)snprintf(sets[count++], sizeof(sets[0]), __VA_ARGS__)
    SET("pipeline.folder=%s", in_folder("job%u", index));
    SET("data.train=%s", in_folder("%s", data[examples[e].data]));
    SET("data.split=8,1,1");
    SET("device.threads=1");
    if (examples[e].data == PHASE_DPO)
        SET("dpo.reference=%s", in_folder("imported/import/checkpoints"));
#undef SET
    for (uint32_t i = 0; i < count; i++)
        list[i] = sets[i];
    load(j, path, list, count);
    source_open(j);
    j->eod = -1;
    if (j->source.tokenizer != NULL) j->eod = tokenizer_special(j->source.tokenizer)->eod;
    const uint32_t ranks = job_ranks(j->job), sites = j->job->site_count;
    while (shapes[j->shape].ranks != ranks || shapes[j->shape].sites != (sites == 0 ? 1 : sites) ||
           shapes[j->shape].hosts != 1)
        j->shape++;
}

static void make_jobs(void)
{
    const bool whole = torture_wanted();
    dice = 20260101;
    corpus_make();
    talks_make("talks", false);
    talks_make("pairs", true);
    model_import();
    assert_int_equal(inis_in("") + inis_in("recipes") + inis_in("specs"), EXAMPLES);
    for (uint32_t e = 0; e < EXAMPLES; e++) {
        if (!whole && !examples[e].always) continue;
        make_example(&jobs[job_count], job_count, e);
        job_count++;
    }
    for (uint32_t i = 0; i < (whole ? RANDOM_JOBS : SAMPLE); i++, job_count++)
        make_random(&jobs[job_count], job_count);
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
 * one round. How the planner's work grows is arena_plan_test's to say. */
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
    OK(plan_programs_open(&how, &p));
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
    print_message("%s calls planned in %.2f s; activations: %s\n", calls,
                  (double)p.planned_ns * 1e-9, activations);
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

/* check, plan and train refuse it, and say the same. */
static void refused(const char *set, const char *sentence)
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
    const char *const sets[] = {data, own, "data.split=8,1,1", "device.threads=1", set};
    OK(job_load(path, sets, set == NULL ? 4 : 5, &job));
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
        registry_free(jobs[i].registry);
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
        cmocka_unit_test(a_step_of_80_blocks_and_64_micro_batches_is_planned),
        cmocka_unit_test(what_the_plan_refuses_is_refused_without_a_device),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
