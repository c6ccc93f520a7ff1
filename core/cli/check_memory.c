/* check_memory.c - parameters, gradients, master weights and optimizer state of each rank: the list
 * that the run makes its memory from, added up. */
#include <cli/check_memory.h>

#include <base/memory.h>
#include <data/batch_share.h>
#include <parallel/holdings.h>
#include <train/groups.h>

/* Above this many ranks only rank 0 is counted: pieces differ by one unit at most. */
enum { RANKS_COUNTED = 64, RANKS_SHOWN = 8 };

static const uint32_t kinds[] = {MEMORY_PARAMETERS, MEMORY_GRADIENTS, MEMORY_MASTER, MEMORY_STATE};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

typedef struct counting { /* all that does not depend on the rank */
    const check_memory_how_t *how;
    lh_model_t *model;
    lh_optimizer_t *optimizer;
    parameters_t *parameters;
    groups_t groups;
    memory_report_t ranks[RANKS_COUNTED];
    uint32_t count;
} counting_t;

static uint32_t runs_of(const job_t *job, uint32_t ranks)
{
    const batch_share_t share = batch_share(job->train.batch, job->train.micro_batch, 0, ranks);
    return job->parallel.accumulation == ACCUMULATION_BREADTH ? 1 : (uint32_t)share.passes;
}

static lh_status_t count_rank(counting_t *c, uint32_t rank)
{
    const check_memory_how_t *how = c->how;
    const update_rule_t rule = {how->rule, how->rule_config};
    const bool bf16 = how->job->train.precision == PRECISION_BF16;
    world_t *world;
    holdings_t *h = NULL;
    lh_status_t status = world_plan(how->job, rank, &world);
    if (status != LH_OK) return status;
    const update_how_t update = {.api = how->optimizer->optimizer,
                                 .optimizer = c->optimizer,
                                 .rules = &rule,
                                 .rule_count = 1,
                                 .groups = c->groups.list,
                                 .group_count = c->groups.count,
                                 .group_of = c->groups.of,
                                 .micro_batches = runs_of(how->job, world->row.size),
                                 .world = world};
    const holdings_how_t held = {.parameters = c->parameters,
                                 .frozen = c->groups.frozen,
                                 .compute = bf16 ? LH_DTYPE_BF16 : LH_DTYPE_F32,
                                 .update = &update};
    status = holdings_new(&held, &h);
    if (status == LH_OK) status = holdings_memory(h, ENGINE_ALIGNMENT, &c->ranks[rank]);
    holdings_free(h);
    world_free(world);
    return status;
}

static lh_status_t count_all(counting_t *c)
{
    const check_memory_how_t *how = c->how;
    const uint32_t ranks = job_ranks(how->job);
    c->count = ranks <= RANKS_COUNTED ? ranks : 1;
    lh_status_t status = how->model->model->open(how->model->host, how->model_config, &c->model);
    if (status == LH_OK)
        status = how->optimizer->optimizer->open(how->optimizer->host, how->optimizer_config,
                                                 &c->optimizer);
    if (status == LH_OK) status = parameters_new(how->model->model, c->model, &c->parameters);
    if (status == LH_OK) status = groups_new(how->job, c->parameters, &c->groups);
    for (uint32_t r = 0; status == LH_OK && r < c->count; r++)
        status = count_rank(c, r);
    return status;
}

static void write_row(const counting_t *c, uint32_t rank, text_t *out)
{
    const memory_report_t *m = &c->ranks[rank];
    text_printf(out, "; %6u", rank);
    for (uint32_t k = 0; k < KINDS; k++)
        text_printf(out, " %17llu", (unsigned long long)m->bytes[kinds[k]]);
    text_printf(out, " %17llu\n", (unsigned long long)m->total_bytes);
}

static void write_table(const counting_t *c, text_t *out)
{
    const uint32_t ranks = job_ranks(c->how->job);
    uint32_t most = 0;
    text_append(out, "; bytes that a rank holds from step to step; longhaul plan says the rest\n"
                     ";   rank");
    for (uint32_t k = 0; k < KINDS; k++)
        text_printf(out, " %17s", memory_kind_text(kinds[k]));
    text_printf(out, " %17s\n", "total");
    for (uint32_t r = 0; r < c->count; r++) {
        if (c->ranks[r].total_bytes > c->ranks[most].total_bytes) most = r;
        if (ranks <= RANKS_SHOWN) write_row(c, r, out);
    }
    if (ranks > RANKS_SHOWN) {
        write_row(c, 0, out);
        if (most != 0) write_row(c, most, out);
        text_printf(out, "; of %u ranks%s\n", ranks,
                    c->count < ranks ? ", which differ by little" : ": the first and the largest");
    }
    if (c->how->guessed_vocab > 0)
        text_printf(out,
                    "; with an embedding of %llu rows: how many there are, the tokenizer says\n",
                    (unsigned long long)c->how->guessed_vocab);
    text_append(out, "\n");
}

lh_status_t check_memory(const check_memory_how_t *how, text_t *out)
{
    counting_t *c = mem_new(sizeof(*c));
    if (c == NULL) return LH_NO_MEMORY;
    c->how = how;
    const lh_status_t status = count_all(c);
    if (status == LH_OK) write_table(c, out);
    groups_free(&c->groups);
    parameters_free(c->parameters);
    if (c->optimizer != NULL) how->optimizer->optimizer->close(c->optimizer);
    if (c->model != NULL) how->model->model->close(c->model);
    mem_free(c);
    return status;
}
