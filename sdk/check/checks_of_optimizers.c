/* checks_of_optimizers.c - an optimizer's tables for any number of ranks, and training under them.
 */
#include "check.h"
#include "check_host.h"
#include "check_model.h"
#include "rank_runs.h"

#include <math.h>
#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>
#include <parallel/optimizer_tables.h>
#include <parallel/shards.h>

static const uint32_t worlds[] = {1, 2, 3, 4, 8};
enum { WORLDS = sizeof(worlds) / sizeof(worlds[0]), STEPS = 4 };

/* Another number of ranks sums in another order; a few steps of AdamW at a rate of 1e-2 carry that
 * on. */
static const float tolerance = 2e-4f;

static lh_optimizer_t *open_it(subject_t *s, const void *config)
{
    lh_optimizer_t *o = NULL;
    if (s->plugin->optimizer->open(check_host(), config, &o) != LH_OK)
        check_fault("it can't be opened: %s", check_host_reason());
    return o;
}

/* Of every parameter here. */
static const lh_rule_t by_element = {
    .name = "check", .help = "moves each element by itself", .grain = LH_GRAIN_ELEMENT};

static parameters_t *parameters_open(lh_model_t **model)
{
    parameters_t *p;
    check_ok(check_model.open(check_host(), NULL, model), "model");
    check_ok(parameters_new(&check_model, *model, &p), "model");
    return p;
}

static void parameters_close(parameters_t *p, lh_model_t *model)
{
    parameters_free(p);
    check_model.close(model);
}

/* All that it may be asked for slices of, as the host tells of them. */
static lh_train_param_t *params_told(const parameters_t *p)
{
    lh_train_param_t *rows = check_memory(p->count, sizeof(*rows));
    for (uint32_t i = 0; i < p->count; i++) {
        const parameter_t *it = &p->items[i];
        rows[i] = (lh_train_param_t){
            .name = it->name,
            .rows = it->rows,
            .columns = it->columns,
            .logical_rows = it->rows,
            .logical_columns = it->columns,
            .block = it->part == LH_PART_EMBED  ? 0
                     : it->part == LH_PART_HEAD ? p->blocks + 1
                                                : it->block + 1,
            .dtype = LH_DTYPE_F32,
            .flags = (it->row->flags & LH_PARAM_NO_DECAY) != 0 ? LH_TRAIN_NO_DECAY : 0u};
    }
    return rows;
}

static optimizer_tables_t tables_of(subject_t *s, lh_optimizer_t *o, const parameters_t *p,
                                    uint32_t ranks)
{
    static optimizer_tables_t tables; /* too big for a stack */
    lh_train_param_t *params = params_told(p);
    const lh_family_t family = {.size = {1, ranks, ranks, 1}};
    const lh_train_t train = {.struct_size = sizeof(train),
                              .blocks = p->blocks,
                              .rounds = 1,
                              .param_size = sizeof(params[0]),
                              .param_count = p->count,
                              .family_size = sizeof(family),
                              .family_count = 1,
                              .rule_size = sizeof(by_element),
                              .rule_count = 1,
                              .params = params,
                              .families = &family,
                              .rules = &by_element};
    fail_clear();
    if (optimizer_tables_read(s->plugin->optimizer, o, &train, &tables) != LH_OK)
        check_fault("its tables over %u rank%s are refused: %s%s", ranks, ranks == 1 ? "" : "s",
                    fail_reason(), check_host_reason());
    mem_free(params);
    return tables;
}

static void tables_are_understood(subject_t *s)
{
    void *config = subject_config(s, s->plugin);
    lh_optimizer_t *o = open_it(s, config);
    lh_model_t *model;
    parameters_t *p = parameters_open(&model);
    for (uint32_t i = 0; i < WORLDS; i++)
        (void)tables_of(s, o, p, worlds[i]);
    parameters_close(p, model);
    s->plugin->optimizer->close(o);
    mem_free(config);
}

/* ---- slices ---- */

static void count_owners(const shares_t *shares, const parameters_t *p, uint32_t index)
{
    const uint64_t n = p->items[index].elements;
    uint8_t *owners = check_memory(n, 1);
    for (uint32_t m = 0; m < shares->ways; m++) {
        const lh_slice_t slice = shard_shares_slice(shares, index, m);
        for (uint64_t i = slice.begin; i < slice.end && i < n; i++)
            owners[i]++;
    }
    for (uint64_t i = 0; i < n; i++)
        if (owners[i] != 1)
            check_fault("over %u ranks element %llu of %llu of '%s' is held by %u of them",
                        shares->ways, (unsigned long long)i, (unsigned long long)n,
                        p->items[index].name, owners[i]);
    mem_free(owners);
}

static void slices_partition(subject_t *s)
{
    void *config = subject_config(s, s->plugin);
    lh_optimizer_t *o = open_it(s, config);
    lh_model_t *model;
    parameters_t *p = parameters_open(&model);
    const lh_rule_t **rules = check_memory(p->count, sizeof(*rules));
    for (uint32_t i = 0; i < p->count; i++)
        rules[i] = &by_element;
    for (uint32_t w = 0; w < WORLDS; w++) {
        const optimizer_tables_t t = tables_of(s, o, p, worlds[w]);
        for (uint32_t space = 0; space < t.space_count; space++) {
            if (t.spaces[space].cut == LH_GROUP_SELF) continue;
            shares_t shares;
            const shares_how_t how = {.parameters = p,
                                      .rule_of = rules,
                                      .ways = worlds[w],
                                      .api = s->plugin->optimizer,
                                      .optimizer = o,
                                      .space = space};
            if (shard_shares_new(&how, &shares) != LH_OK)
                check_fault("over %u ranks: %s", worlds[w], fail_reason());
            for (uint32_t i = 0; i < p->count; i++)
                count_owners(&shares, p, i);
            shard_shares_free(&shares);
        }
    }
    mem_free(rules);
    parameters_close(p, model);
    s->plugin->optimizer->close(o);
    mem_free(config);
}

/* ---- training ---- */

/* All whole on the one rank that there is: what any optimizer must come to. */
enum { VALUE, GRAD, MASTER, STATE };
static const lh_space_t whole_spaces[] = {
    {.name = "value", .holds = LH_HOLDS_VALUE, .place = LH_ON_DEVICE, .lives = LH_LIVES_ALWAYS},
    {.name = "grad",
     .holds = LH_HOLDS_GRAD,
     .dtype = LH_DTYPE_F32,
     .place = LH_ON_DEVICE,
     .lives = LH_LIVES_STEP},
    {.name = "master",
     .holds = LH_HOLDS_MASTER,
     .dtype = LH_DTYPE_F32,
     .place = LH_ON_DEVICE,
     .lives = LH_LIVES_ALWAYS,
     .flags = LH_KEEP_SAVED | LH_KEEP_FROM_VALUE},
    {.name = "state",
     .holds = LH_HOLDS_STATE,
     .place = LH_ON_DEVICE,
     .lives = LH_LIVES_ALWAYS,
     .flags = LH_KEEP_SAVED},
};
static const lh_move_t whole_moves[] = {
    {.when = LH_AT_STEP, .what = LH_MOVE_UPDATE, .from = GRAD, .to = MASTER},
    {.when = LH_AT_STEP, .what = LH_MOVE_COPY, .from = MASTER, .to = VALUE},
};
static char whole_object;

static lh_status_t whole_open(const lh_host_t *host, const void *config, lh_optimizer_t **out)
{
    (void)host, (void)config;
    *out = (lh_optimizer_t *)(void *)&whole_object;
    return LH_OK;
}

static void whole_close(lh_optimizer_t *o)
{
    (void)o;
}

static lh_status_t whole_describe(lh_optimizer_t *o, const lh_train_t *train, lh_description_t *out)
{
    (void)o, (void)train;
    LH_FILL(lh_description_t, out, .spaces = whole_spaces, .space_size = sizeof(whole_spaces[0]),
            .space_count = sizeof(whole_spaces) / sizeof(whole_spaces[0]), .moves = whole_moves,
            .move_size = sizeof(whole_moves[0]),
            .move_count = sizeof(whole_moves) / sizeof(whole_moves[0]));
    return LH_OK;
}

static const lh_optimizer_api_t whole = {.struct_size = sizeof(whole),
                                         .open = whole_open,
                                         .close = whole_close,
                                         .describe = whole_describe};

static float *train_whole(subject_t *s, uint32_t steps, uint64_t *count)
{
    const rank_run_t run = {
        .api = &whole, .host = check_host(), .ranks = 1, .sites = 1, .steps = steps};
    return rank_run(s, &run, count);
}

static rank_run_t its_run(const subject_t *s, const void *config, uint32_t ranks)
{
    return (rank_run_t){.api = s->plugin->optimizer,
                        .host = s->plugin->host,
                        .config = config,
                        .ranks = ranks,
                        .sites = 1,
                        .steps = STEPS};
}

static void compare(const float *got, const float *want, uint64_t count, float limit,
                    const char *what)
{
    for (uint64_t i = 0; i < count; i++)
        if (!(fabsf(got[i] - want[i]) <= limit * (1 + fabsf(want[i]))))
            check_fault("%s: weight %llu of %llu is %.9g, expected %.9g", what,
                        (unsigned long long)i, (unsigned long long)count, (double)got[i],
                        (double)want[i]);
}

static void ranks_train_as_one(subject_t *s)
{
    static const uint32_t ranks[] = {1, 2, 4};
    uint64_t count = 0, same = 0;
    char what[64];
    void *config = subject_config(s, s->plugin);
    float *want = train_whole(s, STEPS, &count);
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        const rank_run_t run = its_run(s, config, ranks[i]);
        float *got = rank_run(s, &run, &same);
        (void)snprintf(what, sizeof(what), "after %d steps on %u ranks", STEPS, ranks[i]);
        compare(got, want, count, tolerance, what);
        mem_free(got);
    }
    mem_free(want);
    mem_free(config);
}

/* Buckets are ready in another order, and hold other gradients, where they are small. */
static void buckets_change_no_bit(subject_t *s)
{
    uint64_t count = 0;
    void *config = subject_config(s, s->plugin);
    rank_run_t run = its_run(s, config, 2);
    float *want = rank_run(s, &run, &count);
    run.bucket_bytes = 16384;
    float *got = rank_run(s, &run, &count);
    compare(got, want, count, 0, "with buckets of 16 KiB");
    mem_free(got);
    mem_free(want);
    mem_free(config);
}

static void saves_load_elsewhere(subject_t *s)
{
    uint64_t count = 0;
    void *config = subject_config(s, s->plugin);
    char *folder = path_join(s->scratch, "saves");
    check_ok(folder == NULL ? LH_NO_MEMORY : folder_make(folder), "folder");
    float *want = train_whole(s, 2 * STEPS, &count);
    rank_run_t run = its_run(s, config, 4);
    run.save = folder;
    mem_free(rank_run(s, &run, &count));
    run = its_run(s, config, 2);
    run.first = STEPS;
    run.load = folder;
    float *got = rank_run(s, &run, &count);
    compare(got, want, count, 2 * tolerance, "saved by 4 ranks and continued by 2");
    mem_free(got);
    mem_free(want);
    mem_free(folder);
    mem_free(config);
}

#define OPTIMIZER(name, sentence, seconds, run)                          \
    {                                                                    \
        name, sentence, CHECK_KIND(OPTIMIZER), false, seconds, run, NULL \
    }
const check_t checks_of_optimizers[] = {
    OPTIMIZER("optimizer.tables", "the host can build its tables over 1, 2, 3, 4 and 8 ranks", 20,
              tables_are_understood),
    OPTIMIZER("optimizer.slices", "every element of what it cuts is held by exactly one rank", 20,
              slices_partition),
    OPTIMIZER("optimizer.steps", "1, 2 and 4 ranks train to the weights of one that cuts nothing",
              120, ranks_train_as_one),
    /* The schedule is the host's: tables that it takes and that train well fail neither of the next
     * two. They run what was made of this plugin's tables through both. */
    OPTIMIZER("optimizer.buckets", "the order in which gradients are ready changes no bit", 60,
              buckets_change_no_bit),
    OPTIMIZER("optimizer.saves", "what 4 ranks saved 2 ranks load and go on with", 120,
              saves_load_elsewhere),
    {0},
};
