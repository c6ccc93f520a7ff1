/* check_step.c - records a job's step without a device, and counts parameters, gradients, master
 * weights and optimizer state of each rank: the list that the run makes its memory from. */
#include <cli/check_step.h>

#include <base/memory.h>
#include <engine/engine_profile.h>
#include <engine/weights.h>
#include <parallel/shards.h>
#include <parallel/transfer_order.h>

/* Above this many ranks only rank 0 is counted: pieces differ by one unit at most. */
enum { RANKS_COUNTED = 64, RANKS_SHOWN = 8 };

static const uint32_t kinds[] = {MEMORY_PARAMETERS, MEMORY_GRADIENTS, MEMORY_MASTER, MEMORY_STATE};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

typedef struct counting {
    const check_step_t *step;
    memory_report_t ranks[RANKS_COUNTED];
    uint32_t count;
} counting_t;

bool check_step_is_told(const job_t *job)
{
    return job->model.plugin != NULL && job->optimizer.plugin != NULL &&
           job->optimizer.rule != NULL && job->train.batch > 0 && job->train.sequence > 0;
}

/* Records what a rank runs; it is closed by the caller whatever is returned. */
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

lh_status_t check_step_open(const check_step_how_t *how, check_step_t *out)
{
    recorded_rank_t first;
    const lh_status_t status = rank_record(how, 0, &first);
    *out = (check_step_t){
        .how = *how, .world = first.world, .session = first.session, .programs = first.programs};
    return status;
}

lh_status_t check_step_order(const check_step_t *s)
{
    const uint32_t ranks = s->world->row.size, walked = ranks <= CHECK_STEP_RANKS ? ranks : 1;
    if (ranks == 1) return LH_OK;
    transfer_list_t *lists = mem_array(ranks, sizeof(*lists));
    lh_status_t status = lists == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint32_t r = 0; status == LH_OK && r < walked; r++) {
        recorded_rank_t own = {0};
        if (r > 0) status = rank_record(&s->how, r, &own);
        const session_t *session = r > 0 ? own.session : s->session;
        if (status == LH_OK)
            status = transfer_rows(session->engine, &lists[r].rows, &lists[r].count);
        rank_free(&own);
    }
    if (status == LH_OK && walked == ranks) status = transfer_order_check(s->world, lists);
    transfer_lists_free(lists, ranks);
    return status;
}

void check_step_close(check_step_t *s)
{
    step_programs_free(&s->programs);
    session_close(s->session);
    world_free(s->world);
    *s = (check_step_t){0};
}

static lh_status_t count_rank(counting_t *c, uint32_t rank)
{
    session_t *session = c->step->session;
    world_t *world;
    shards_t *h = NULL;
    lh_status_t status = world_plan(session->job, rank, &world);
    if (status != LH_OK) return status;
    const update_how_t update = session_update_how(session, world,
                                                   c->step->programs.schedule->rounds);
    const shards_how_t held = {.parameters = weights_parameters(session->weights),
                               .frozen = session->groups.frozen,
                               .compute = session->compute,
                               .update = &update};
    status = shards_new(&held, &h);
    if (status == LH_OK) status = shards_memory(h, ENGINE_ALIGNMENT, &c->ranks[rank]);
    shards_free(h);
    world_free(world);
    return status;
}

static lh_status_t count_all(counting_t *c)
{
    const uint32_t ranks = job_ranks(c->step->how.job);
    lh_status_t status = LH_OK;
    c->count = ranks <= RANKS_COUNTED ? ranks : 1;
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
    const uint32_t ranks = job_ranks(c->step->how.job);
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
    if (c->step->how.guessed_vocab > 0)
        text_printf(out,
                    "; with an embedding of %llu rows: how many there are, the tokenizer says\n",
                    (unsigned long long)c->step->how.guessed_vocab);
    text_append(out, "\n");
}

lh_status_t check_step_memory(const check_step_t *s, text_t *out)
{
    counting_t *c = mem_new(sizeof(*c));
    if (c == NULL) return LH_NO_MEMORY;
    c->step = s;
    const lh_status_t status = count_all(c);
    if (status == LH_OK) write_table(c, out);
    mem_free(c);
    return status;
}
