/* sample_jobs.h - jobs to plan, to check and to run: every INI of examples/, and random ones that
 * take each option which changes a step.
 *
 * Examples are run as they are. Recipes and specs are what other jobs include, at sizes that take
 * hundreds of GiB: they are included here, with a small model's numbers over theirs. A sample has
 * the examples, some of the recipes and specs, and 60 random jobs; the long list
 * (LONGHAUL_TORTURE=1) has all of them, and 200. All random jobs are drawn from one seed.
 *
 * jobs_make fills `jobs` once `folder` is there and `host` and `registry` are open; jobs_free
 * releases them. */
#ifndef TESTS_SAMPLE_JOBS_H
#define TESTS_SAMPLE_JOBS_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail /* cmocka's; base/status.h has a function of that name */

#include <base/file.h>
#include <base/memory.h>
#include <base/text.h>
#include <cli/cli.h>
#include <cli/model_source.h>
#include <config/job_load.h>
#include <data/batches.h>
#include <data/indexed.h>
#include <plugin/host.h>
#include <torture.h>

enum { RANDOM_JOBS = 200, SAMPLE = 60, MOST_EXAMPLES = 32, JOBS = RANDOM_JOBS + MOST_EXAMPLES };
enum { MOST = 4 }; /* ranks of a world */
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

static char folder[] = "/tmp/sample_jobs_XXXXXX";
static host_t *host;
static registry_t *registry;
static one_job_t jobs[JOBS];
static uint32_t job_count;

static inline void ok_at(lh_status_t status, const char *what, int line)
{
    if (status == LH_OK) return;
    print_error("line %d: %s: %s\n", line, what, fail_reason());
    abort();
}
#define OK(call) ok_at(call, #call, __LINE__)

static inline char *in_folder(const char *fmt, ...)
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

static inline registry_t *registry_of(const one_job_t *j)
{
    return j->registry != NULL ? j->registry : registry;
}

static uint64_t dice;

static inline uint64_t roll(uint64_t sides)
{
    dice += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t z = dice;
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (z ^ (z >> 31)) % sides;
}

static inline const char *one_of(const char *const *list, uint32_t count)
{
    return list[roll(count)];
}
#define ONE_OF(...)                            \
    one_of((const char *const[]){__VA_ARGS__}, \
           sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

/* Documents of 1 to 40 tokens. */
static inline void corpus_make(void)
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
static inline void talks_make(const char *name, bool pairs)
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

static inline void copy_file(const char *from, const char *to)
{
    char *text;
    size_t length;
    OK(file_read(from, 1 << 20, &text, &length));
    OK(file_replace(to, text, length));
    mem_free(text);
}

/* The model that the examples import, as `longhaul import` leaves it in FOLDER/imported: what phase
 * dpo compares with. A process of its own does it, as it may start threads. */
static inline void model_import(void)
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

static inline uint32_t ranks_of_host(const shape_t *shape)
{
    return shape->ranks / shape->sites / shape->hosts;
}

static inline bool has_sites(const shape_t *shape)
{
    return shape->sites > 1 || shape->hosts > 1;
}

/* Machines are names alone: ranks meet by address. */
static inline void write_world(const shape_t *shape, text_t *ini)
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

static inline void write_adapter(const draw_t *d, text_t *ini)
{
    if (d->adapts)
        text_printf(ini, "[adapter.small]\nkind = %s\nmatch = %s\nrank = %u\nalpha = 4\n",
                    ONE_OF("lora", "dora"), ONE_OF("blocks.*.wq", "blocks.*.wq, blocks.*.wo"),
                    1 + (unsigned)roll(4));
}

/* Frozen, or with a rate, a decay or a rule of their own. With an adapter all else is frozen. A
 * parameter is of the first group that matches it, and a group of none is refused. */
static inline void write_groups(const draw_t *d, text_t *ini)
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
static inline void write_model(const draw_t *d, text_t *ini, const char **included)
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
static inline void write_table(const draw_t *d, const char *path)
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

static inline void write_optimizer(const shape_t *shape, text_t *ini)
{
    const unsigned stage = (unsigned)roll(4);
    text_printf(ini, "[optimizer]\nplugin = zero%u\nrule = rules:%s\nlearning_rate = 1e-3\n", stage,
                ONE_OF("adamw", "adamw", "sgd"));
    if (stage > 0 && has_sites(shape) && roll(2) == 0) text_append(ini, "cut = site\n");
}

static inline void write_train(draw_t *d, const shape_t *shape, const char *table, text_t *ini)
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

static inline void load(one_job_t *j, const char *path, const char *const *own, uint32_t count)
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
static inline void source_open(one_job_t *j)
{
    if (strcmp(j->job->model.plugin, "spec") == 0) {
        OK(registry_new(LH_TEST_PLUGINS, host, &j->registry));
        OK(model_source_choose(j->job, j->registry));
    }
    OK(model_source_open(j->job, registry_of(j), TOKENIZER_IF_NAMED, &j->source));
}

static inline void make_random(one_job_t *j, uint32_t index)
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
static inline uint32_t inis_in(const char *below)
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
static inline void write_including(uint32_t e, const char *path)
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

static inline void make_example(one_job_t *j, uint32_t index, uint32_t e)
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

static inline void jobs_make(void)
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

static inline void jobs_free(void)
{
    for (uint32_t i = 0; i < job_count; i++) {
        model_source_close(&jobs[i].source);
        registry_free(jobs[i].registry);
        job_free(jobs[i].job);
    }
}

#endif
