/* step_plan.c - adds up the calls of a step.
 *
 * A step is three lists: the pass's first round, its later rounds, the update. Each call of a list
 * is counted as often as its list is run; calls that are made in the last round only are counted
 * once. So the sum is exact, without a second description of a step that could differ from the
 * first. */
#include <plan/step_plan.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/status.h>
#include <base/sys.h>
#include <engine/engine.h>
#include <format/json.h>
#include <parallel/transfer_order.h>
#include <parallel/transfer_plan.h>
#include <plan/alike.h>
#include <program/transfer.h>

/* ---- the programs of a step, planned ---- */

/* No token of the data is read for this, so any vocabulary will do. The evaluation's split matters
 * too, as both programs take tables of the same size. */
static lh_status_t read_documents(const job_t *job, int32_t eod, uint64_t *per_sample)
{
    uint64_t samples;
    batches_t *train = NULL, *valid = NULL;
    lh_status_t status = step_samples(job, 0, 0, NULL, &samples);
    if (status == LH_OK)
        status = step_batches_open(job, SPLIT_TRAIN, samples, INT32_MAX, eod, NULL, &train);
    if (status == LH_OK && job->train.evaluate_every > 0)
        status = step_batches_open(job, SPLIT_VALID, 0, INT32_MAX, eod, train, &valid);
    if (status == LH_OK) *per_sample = step_documents(job, train, valid, eod);
    batches_close(valid);
    batches_close(train);
    return status;
}

/* A plan of data that is not prepared yet is still a plan: a failure leaves the bound. */
plan_documents_t plan_documents(const job_t *job, int32_t eod)
{
    plan_documents_t d = {0};
    if (!step_asks_data(job)) return d;
    const lh_status_t status = read_documents(job, eod, &d.per_sample);
    d.from_files = status == LH_OK && d.per_sample > 0;
    if (status != LH_OK) {
        log_line(LH_LOG_INFO, "planned for as many documents as there are tokens: %s",
                 fail_reason());
        fail_clear();
    }
    return d;
}

const char *plan_documents_text(const job_t *job, const plan_documents_t *documents)
{
    if (job->data.documents == DOCUMENTS_JOINED) return "one in a sequence, as they are joined";
    if (job->train.max_documents > 0) return "as [train] max_documents says";
    return documents->from_files ? "as the token files say" : "as many as there can be";
}

/* The clock covers all that a start of training would spend on planning. */
static lh_status_t plan_make_programs(const plan_programs_how_t *how, plan_programs_t *p)
{
    session_t *s = p->session;
    const uint32_t rank = s->world == NULL ? 0 : s->world->row.rank;
    const uint32_t ranks = s->world == NULL ? 1 : s->world->row.size;
    const uint64_t begun = sys()->now_ns();
    p->layout = step_layout(s->job, rank, ranks, how->documents.per_sample);
    lh_status_t status = step_programs_new(s, &p->layout, NULL, &p->programs);
    if (s->job->device.tune) engine_bound(s->engine);
    if (status == LH_OK) status = engine_plan(s->engine);
    if (status == LH_OK && s->transfers != NULL) status = transfer_plan(s->transfers);
    if (status == LH_OK && s->transfers != NULL) status = train_comm_plan(&p->comm);
    p->planned_ns = sys()->now_ns() - begun;
    return status;
}

/* Without a control plane: planned only, no peer is ever asked. */
static lh_status_t plan_open_comm(const plan_programs_how_t *how, plan_programs_t *p)
{
    const session_how_t *s = &how->session;
    if (s->world == NULL || s->world->row.size == 1) return LH_OK;
    const train_comm_how_t comm = {.job = s->job, .registry = s->registry, .world = s->world};
    const lh_status_t status = train_comm_open(&p->comm, &comm);
    if (status == LH_OK) comm_known_links(p->comm.comm, how->links, how->link_count);
    return status;
}

lh_status_t plan_programs_open(const plan_programs_how_t *how, plan_programs_t *out)
{
    *out = (plan_programs_t){0};
    session_how_t own = how->session;
    lh_status_t status = plan_open_comm(how, out);
    own.comm = out->comm.comm;
    if (status == LH_OK) status = session_open(&own, &out->session);
    if (status == LH_OK) status = plan_make_programs(how, out);
    if (status != LH_OK) plan_programs_close(out);
    return status;
}

void plan_programs_memory(const plan_programs_t *p, memory_report_t *out)
{
    engine_memory(p->session->engine, out);
    out->bytes[MEMORY_TRANSFERS] += p->comm.planned_bytes;
    out->total_bytes += p->comm.planned_bytes;
}

void plan_programs_close(plan_programs_t *p)
{
    train_comm_close(&p->comm, false);
    step_programs_free(&p->programs);
    session_close(p->session);
    *p = (plan_programs_t){0};
}

void plan_ranks_free(plan_ranks_t *ranks)
{
    mem_free(ranks->memory);
    mem_free(ranks->border_bytes);
    mem_free(ranks->crosses);
    mem_free(ranks->by_itself);
    *ranks = (plan_ranks_t){0};
}

static uint32_t sites_of(const job_t *job)
{
    return job->site_count > 0 ? job->site_count : 1;
}

/* By the lists of one rank's step, as often as each is run: all ranks have transfers that are alike, and
 * each knows the pieces of all. */
static lh_status_t borders_count(const plan_programs_t *p, plan_ranks_t *out)
{
    const transfers_t *moved = p->session->transfers;
    step_plan_t plan = {0};
    if (moved == NULL || moved->world->row.sites == 1) return LH_OK;
    const size_t cells = CROSSINGS * (size_t)moved->world->row.sites * moved->world->row.sites;
    uint64_t *between = mem_array(cells / CROSSINGS * (CROSSINGS + 1), sizeof(*between));
    lh_status_t status = between == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK)
        status = step_plan_new(p->programs.train, p->programs.update, p->programs.schedule->rounds,
                               moved, NULL, &plan);
    if (status == LH_OK)
        status = step_plan_scores(&plan, p->programs.preference, p->layout.share.micro_batches,
                                  NULL);
    if (status == LH_OK)
        status = transfer_plan_crossings(moved, plan.starts, out->border_bytes, between);
    for (size_t i = 0; status == LH_OK && i < cells; i++)
        out->crosses[i] = (double)between[i];
    step_plan_free(&plan);
    mem_free(between);
    return status;
}

/* All ranks of a job while they are planned. */
typedef struct planning {
    const plan_programs_how_t *how;
    world_t *world; /* as rank 0 sees it */
    plan_ranks_t *out;
    transfer_list_t *lists;    /* [ranks] borrowed; rows NULL: the rank is still to come */
    transfer_list_t *recorded; /* [out->planned] */
    bool shared;               /* some ranks stand for those that are alike */
    bool apart;                /* but none any more, as a rank sends to another or receives */
} planning_t;

/* The place of a rank in its group of a kind. */
static lh_status_t place_in_group(const world_t *world, uint32_t kind, uint32_t rank, uint32_t *out)
{
    world_t seen = *world;
    group_t *g;
    seen.row.rank = rank;
    const lh_status_t status = world_group_new(&seen, kind, &g);
    if (status != LH_OK) return status;
    *out = g->self;
    world_group_free(g);
    return LH_OK;
}

/* Memory of a rank that is alike: less what the other one holds from step to step, and what this one does. */
static void memory_exchange(memory_report_t *m, const memory_report_t *less,
                            const memory_report_t *more)
{
    for (uint32_t k = 0; k < MEMORY_KINDS; k++)
        m->bytes[k] += more->bytes[k] - less->bytes[k];
    m->total_bytes += more->total_bytes - less->total_bytes;
}

/* The rest of the memory, of which no bound is known but what others need. */
static void memory_raise(memory_report_t *m, const memory_report_t *other)
{
    for (uint32_t k = 0; k < MEMORY_KINDS; k++) {
        const bool held = k == MEMORY_PARAMETERS || k == MEMORY_GRADIENTS || k == MEMORY_MASTER ||
                          k == MEMORY_STATE;
        if (held || other->bytes[k] <= m->bytes[k]) continue;
        if (k != MEMORY_PINNED) m->total_bytes += other->bytes[k] - m->bytes[k];
        m->bytes[k] = other->bytes[k];
    }
}

/* All ranks that are alike to `rank`, whose programs are there. */
static lh_status_t others_take(const planning_t *p, const plan_programs_t *programs, uint32_t rank)
{
    session_t *s = programs->session;
    const job_t *job = p->how->session.job;
    const alike_t own = alike_of(job, p->world, rank);
    const update_how_t update = session_update_how(s, s->world,
                                                   programs->programs.schedule->rounds);
    const shards_how_t how = {.parameters = weights_parameters(s->weights),
                              .frozen = s->groups.frozen,
                              .compute = s->compute,
                              .optimizer = &update.optimizer};
    const uint64_t alignment = engine_alignment(s->engine);
    shards_t *h = NULL;
    memory_report_t less, more;
    uint32_t member = 0;
    lh_status_t status = shards_new(&how, &h);
    if (status == LH_OK) status = shards_memory(h, alignment, &less);
    for (uint32_t r = rank + 1; status == LH_OK && r < p->out->count; r++) {
        const alike_t theirs = alike_of(job, p->world, r);
        if (p->lists[r].rows != NULL || !alike_same(&own, &theirs)) continue;
        p->lists[r] = p->lists[rank];
        p->out->memory[r] = p->out->memory[rank];
        if (h->tables.cut == LH_GROUP_SELF) continue;
        status = place_in_group(p->world, h->tables.cut, r, &member);
        if (status == LH_OK) status = shards_turn(h, &how, member);
        if (status == LH_OK) status = shards_memory(h, alignment, &more);
        if (status == LH_OK) memory_exchange(&p->out->memory[r], &less, &more);
    }
    shards_free(h);
    return status;
}

/* What a rank sends to one other over a border its own list says alone. */
static lh_status_t rank_sends_count(const plan_programs_t *p, uint32_t rank, plan_ranks_t *out)
{
    const transfers_t *moved = p->session->transfers;
    step_plan_t plan = {0};
    if (moved->world->row.sites == 1) return LH_OK;
    const lh_status_t status = step_plan_new(p->programs.train, p->programs.update,
                                             p->programs.schedule->rounds, moved, NULL, &plan);
    if (status != LH_OK) return status;
    out->border_bytes[rank] += transfer_plan_pairs(moved, plan.starts);
    step_plan_free(&plan);
    return LH_OK;
}

/* Where ranks share lists, sizes of what sites sum again differ. */
static lh_status_t list_take(planning_t *p, const engine_t *engine, uint32_t rank)
{
    transfer_list_t *list = &p->recorded[p->out->planned];
    const lh_status_t status = transfer_rows(engine, &list->rows, &list->count);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; p->shared && i < list->count; i++)
        if (list->rows[i].transfer.group == LH_GROUP_ACROSS) list->rows[i].transfer.elements = 0;
    p->apart = p->apart || transfer_rows_pair(list->rows, list->count);
    p->lists[rank] = *list;
    p->out->by_itself[rank] = true;
    p->out->planned++;
    return LH_OK;
}

/* Its memory is kept, and the transfers that it starts and waits for. A copy of the request, as world
 * differs by rank. first: of those that are alike. */
static lh_status_t rank_plan(planning_t *p, uint32_t rank, bool first)
{
    world_t *world;
    plan_programs_how_t own = *p->how;
    plan_programs_t programs = {0};
    lh_status_t status = world_plan(own.session.job, rank, &world);
    if (status != LH_OK) return status;
    lh_assert(world->row.sites == sites_of(own.session.job));
    own.session.world = world;
    status = plan_programs_open(&own, &programs);
    if (status == LH_OK) plan_programs_memory(&programs, &p->out->memory[rank]);
    if (status == LH_OK && rank == 0) status = borders_count(&programs, p->out);
    if (status == LH_OK) status = list_take(p, programs.session->engine, rank);
    if (status == LH_OK && p->apart) status = rank_sends_count(&programs, rank, p->out);
    if (status == LH_OK && p->shared && !p->apart && first)
        status = others_take(p, &programs, rank);
    plan_programs_close(&programs);
    world_free(world);
    return status;
}

/* How much staging memory transfers take depends on a rank's place in its site, through which sums go round.
 * Some places of one site are planned, and all others get the most that one of them takes. */
static lh_status_t alike_plan(planning_t *p, uint32_t first)
{
    const world_rank_t *at = &p->world->ranks[first];
    const uint32_t size = world_site_size(p->world, at->site);
    const uint32_t places[] = {at->place + 1, (at->place + size) / 2, size - 1};
    const alike_t own = alike_of(p->how->session.job, p->world, first);
    memory_report_t most = p->out->memory[first];
    lh_status_t status = LH_OK;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && status == LH_OK; i++) {
        if (places[i] >= size) continue;
        const uint32_t rank = world_site_rank(p->world, at->site, places[i]);
        const alike_t facts = alike_of(p->how->session.job, p->world, rank);
        if (p->out->by_itself[rank] || !alike_same(&own, &facts)) continue;
        status = rank_plan(p, rank, false);
        memory_raise(&most, &p->out->memory[rank]);
    }
    for (uint32_t r = first + 1; status == LH_OK && r < p->out->count; r++) {
        const alike_t facts = alike_of(p->how->session.job, p->world, r);
        if (!p->out->by_itself[r] && alike_same(&own, &facts))
            memory_raise(&p->out->memory[r], &most);
    }
    return status;
}

/* The world as rank 0 sees it has all ranks' groups. */
static lh_status_t ranks_plan(planning_t *p)
{
    const uint32_t count = p->out->count;
    lh_status_t status = world_plan(p->how->session.job, 0, &p->world);
    for (uint32_t r = 0; status == LH_OK && r < count; r++) {
        if (p->lists[r].rows != NULL) continue;
        status = rank_plan(p, r, true);
        if (status == LH_OK && p->shared && !p->apart) status = alike_plan(p, r);
    }
    if (status == LH_OK && count > 1) status = transfer_order_check(p->world, p->lists);
    transfer_lists_free(p->recorded, p->out->planned);
    world_free(p->world);
    return status;
}

lh_status_t plan_programs_of_ranks(const plan_programs_how_t *how, plan_ranks_t *out)
{
    const job_t *job = how->session.job;
    const uint32_t count = job_ranks(job);
    const size_t sites = sites_of(job);
    plan_ranks_t all = {.memory = mem_array(count, sizeof(*all.memory)),
                        .border_bytes = mem_array(count, sizeof(*all.border_bytes)),
                        .crosses = mem_array(CROSSINGS * sites * sites, sizeof(*all.crosses)),
                        .by_itself = mem_array(count, sizeof(*all.by_itself)),
                        .count = count};
    planning_t p = {.how = how,
                    .out = &all,
                    .lists = mem_array(count, sizeof(*p.lists)),
                    .recorded = mem_array(count, sizeof(*p.recorded)),
                    .shared = count > PLAN_RANKS_EACH};
    const bool room = all.memory != NULL && all.border_bytes != NULL && all.crosses != NULL &&
                      all.by_itself != NULL && p.lists != NULL && p.recorded != NULL;
    lh_status_t status = LH_NO_MEMORY;
    if (room)
        status = ranks_plan(&p);
    else
        mem_free(p.recorded);
    mem_free(p.lists);
    if (status == LH_OK)
        *out = all;
    else
        plan_ranks_free(&all);
    return status;
}

/* ---- what they add up to ---- */

const char *const step_plan_part_names[STEP_PLAN_PARTS] = {
    [STEP_FORWARD] = "forward",
    [STEP_BACKWARD] = "backward",
    [STEP_HEAD] = "head",
    [STEP_UPDATE] = "update",
};

/* The head is its own part, as it goes there and back in one row of the schedule. */
static uint32_t step_part_of(const program_call_t *call)
{
    if (strcmp(call->part, "update") == 0) return STEP_UPDATE;
    if (strcmp(call->part, "head") == 0) return STEP_HEAD;
    return call->backward ? STEP_BACKWARD : STEP_FORWARD;
}

/* Kinds are some dozens, so they are searched one by one. */
static step_kind_t *kind_find(step_plan_t *plan, const char *kind)
{
    for (uint32_t i = 0; i < plan->kind_count; i++)
        if (strcmp(plan->kinds[i].kind, kind) == 0) return &plan->kinds[i];
    step_kind_t *kinds = mem_grow(plan->kinds, &plan->kind_capacity, (size_t)plan->kind_count + 1,
                                  sizeof(*kinds));
    if (kinds == NULL) return NULL;
    plan->kinds = kinds;
    step_kind_t *made = &plan->kinds[plan->kind_count++];
    (void)snprintf(made->kind, sizeof(made->kind), "%s", kind);
    return made;
}

/* All three figures of a call are scaled by how often it is made. */
static void step_sum_add(step_sum_t *sum, const program_call_t *call, uint64_t times,
                         double seconds)
{
    sum->calls += times;
    sum->flops += call->flops * (double)times;
    sum->bytes += call->bytes * (double)times;
    sum->seconds += seconds * (double)times;
}

/* Sums are started in the order in which gradients are complete, values in that in which they are
 * needed. */
static void crossing_add(step_plan_t *plan, const transfer_t *t, uint64_t times)
{
    const uint64_t bytes = transfers_border_bytes(plan->moved, t);
    const uint32_t what = transfers_crossing(plan->moved, t);
    plan->border_bytes += times * bytes;
    plan->starts[t->number] += times;
    if (what == CROSSINGS) return;
    transfers_sent_to(plan->moved, t, (double)times,
                      plan->crosses + (size_t)what * plan->moved->world->row.sites);
    plan->trips[what] = fmax(plan->trips[what], transfers_trips(plan->moved, t));
    if (what == CROSSING_SUMS || plan->edge[what] <= 0) plan->edge[what] = (double)bytes;
}

/* A transfer is a call that starts it and one that waits for it; only the start counts. Rows are
 * told apart by what moves in which group, not by bucket. */
static lh_status_t transfer_add(step_plan_t *plan, const program_call_t *call, uint64_t times)
{
    const transfer_t *t = call->transfer;
    if (call->waits) return LH_OK;
    uint32_t i = 0;
    for (; i < plan->transfer_count; i++) {
        const step_transfers_t *row = &plan->transfers[i];
        if (row->op == t->op && row->group == t->group && row->dtype == t->dtype) break;
    }
    if (i == plan->transfer_count) {
        step_transfers_t *rows = mem_grow(plan->transfers, &plan->transfer_capacity, i + 1u,
                                          sizeof(*rows));
        if (rows == NULL) return LH_NO_MEMORY;
        plan->transfers = rows;
        rows[plan->transfer_count++] = (step_transfers_t){
            .op = t->op, .group = t->group, .ways = t->ways, .dtype = t->dtype};
    }
    plan->transfers[i].starts += times;
    plan->transfers[i].bytes += (double)times * (double)transfer_bytes(t);
    if (plan->moved != NULL) crossing_add(plan, t, times);
    return LH_OK;
}

lh_status_t step_plan_add(step_plan_t *plan, const program_call_t *call, uint64_t times,
                          const device_rate_t *rate)
{
    char kind[CALL_KIND];
    bool measured = false;
    if (call->transfer != NULL) return transfer_add(plan, call, times);
    const double seconds = rate == NULL ? 0 : device_rate_seconds(rate, call, &measured);
    device_rate_kind(call, kind);
    /* kind_find makes a row where there is none: then the count has grown. */
    const uint32_t before = plan->kind_count;
    step_kind_t *row = kind_find(plan, kind);
    if (row == NULL) return LH_NO_MEMORY;
    if (plan->kind_count > before && rate != NULL && !measured) plan->unmeasured++;
    row->measured = measured;
    step_sum_add(&row->sum, call, times, seconds);
    step_sum_add(&plan->parts[step_part_of(call)], call, times, seconds);
    step_sum_add(&plan->all, call, times, seconds);
    return LH_OK;
}

/* What any later round moves was moved in the first, too, however few rounds there are. */
static void repeats_add(step_plan_t *plan, const program_call_t *call)
{
    if (call->transfer == NULL || call->waits || plan->moved == NULL) return;
    const uint32_t what = transfers_crossing(plan->moved, call->transfer);
    if (what != CROSSINGS) plan->repeated[what] = true;
}

/* last: the last of the step's runs is one of these. Programs give their calls one by one, the
 * later list by a flag. */
static lh_status_t list_add(step_plan_t *plan, const program_t *p, bool later, uint64_t times,
                            bool last, const device_rate_t *rate)
{
    lh_assert(!later || times == 0 || last);
    program_call_t call;
    for (uint32_t i = 0; times > 0 && program_call(p, later, i, &call); i++) {
        const uint64_t runs = !call.last_only ? times : last ? 1 : 0;
        const lh_status_t status = runs == 0 ? LH_OK : step_plan_add(plan, &call, runs, rate);
        if (status != LH_OK) return status;
        if (runs > 0 && later && !call.last_only) repeats_add(plan, &call);
    }
    return LH_OK;
}

/* Without a record all seconds are 0, and bytes decide; names at last, so that the order is the
 * same everywhere. */
static int kinds_slower_first(const void *a, const void *b)
{
    const step_sum_t *x = &((const step_kind_t *)a)->sum, *y = &((const step_kind_t *)b)->sum;
    if (x->seconds != y->seconds) return x->seconds > y->seconds ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return strcmp(((const step_kind_t *)a)->kind, ((const step_kind_t *)b)->kind);
}

/* Later rounds are one fewer than rounds; their list adds to gradients and so may have other calls
 * than the first round's. */
lh_status_t step_plan_new(const program_t *pass, const program_t *update, uint64_t rounds,
                          const transfers_t *moved, const device_rate_t *rate, step_plan_t *out)
{
    lh_assert(rounds > 0);
    step_plan_t plan = {.moved = moved};
    if (moved != NULL) {
        plan.crosses = mem_array(CROSSINGS * (size_t)moved->world->row.sites,
                                 sizeof(*plan.crosses));
        plan.starts = mem_array(transfers_count(moved), sizeof(*plan.starts));
    }
    const bool room = moved == NULL || (plan.crosses != NULL && plan.starts != NULL);
    lh_status_t status = room ? LH_OK : LH_NO_MEMORY;
    if (status == LH_OK) status = list_add(&plan, pass, false, 1, rounds == 1, rate);
    if (status == LH_OK) status = list_add(&plan, pass, true, rounds - 1, true, rate);
    if (status == LH_OK) status = list_add(&plan, update, false, 1, true, rate);
    if (status != LH_OK) {
        step_plan_free(&plan);
        return status;
    }
    if (plan.kind_count > 0)
        qsort(plan.kinds, plan.kind_count, sizeof(*plan.kinds), kinds_slower_first);
    *out = plan;
    return LH_OK;
}

lh_status_t step_plan_scores(step_plan_t *plan, const preference_t *scores, uint64_t micro_batches,
                             const device_rate_t *rate)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; scores != NULL && status == LH_OK && i < 2; i++)
        status = list_add(plan, preference_program(scores, i), false, micro_batches, true, rate);
    if (plan->kind_count > 0)
        qsort(plan->kinds, plan->kind_count, sizeof(*plan->kinds), kinds_slower_first);
    return status;
}

void step_plan_free(step_plan_t *plan)
{
    mem_free(plan->kinds);
    mem_free(plan->transfers);
    mem_free(plan->crosses);
    mem_free(plan->starts);
    *plan = (step_plan_t){0};
}

/* Writes the profile of a step. Takes the text, whatever happens. */
static lh_status_t write_profile(const char *folder, const char *name, text_t *text)
{
    char *path = path_join(folder, name);
    lh_status_t status = path == NULL ? LH_NO_MEMORY : text_status(text);
    if (status == LH_OK) status = file_replace(path, text->data, text->length);
    mem_free(path);
    text_free(text);
    return status;
}

lh_status_t step_profile_write(const char *folder, const profile_row_t *rows, uint32_t count,
                               double peak_flops, double bytes_per_second)
{
    double total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += (double)rows[i].ns;
    text_t text = {0};
    json_writer_t w = {.to = &text, .style = 1};
    json_open(&w, NULL, '[');
    for (uint32_t i = 0; i < count; i++) {
        const profile_row_t *r = &rows[i];
        json_open(&w, NULL, '{');
        json_put_text(&w, "part", r->part);
        json_put_flag(&w, "backward", r->backward);
        json_put_text(&w, "op", r->op);
        json_put_text(&w, "kernel", r->kernel);
        json_put_u64(&w, "calls", r->calls);
        json_put_u64(&w, "ns", r->ns);
        json_put_real(&w, "flops", r->flops);
        json_put_real(&w, "bytes", r->bytes);
        json_put_real(&w, "share", total > 0 ? (double)r->ns / total : 0.0);
        json_put_real(&w, "of_limit", engine_profile_of_limit(r, peak_flops, bytes_per_second));
        json_close(&w);
    }
    json_close(&w);
    return write_profile(folder, "profile.json", &text);
}

/* For a person who looks at the time line. */
static const char *call_name(const program_call_t *call)
{
    if (call->transfer != NULL) return call->transfer->name;
    return call->op == NULL ? "fill" : call->op->row.name;
}

/* Calls follow one another from at_us on, which moves to their end. Chrome's trace events of the
 * kind "complete": ts and dur in microseconds. A call of no time was not profiled. */
static void put_calls(json_writer_t *w, const program_t *p, bool later, const char *phase,
                      double *at_us)
{
    program_call_t call;
    for (uint32_t i = 0; program_call(p, later, i, &call); i++) {
        if (call.ns == 0) continue;
        const double us = (double)call.ns * 1e-3;
        json_open(w, NULL, '{');
        json_put_text(w, "name", call_name(&call));
        json_put_text(w, "cat", phase);
        json_put_text(w, "ph", "X");
        json_put_real(w, "ts", *at_us);
        json_put_real(w, "dur", us);
        json_put_u64(w, "pid", 0);
        json_put_u64(w, "tid", 0);
        json_open(w, "args", '{');
        json_put_text(w, "kernel", call.kernel);
        json_put_text(w, "part", call.part);
        json_put_u64(w, "block", call.block);
        json_put_flag(w, "backward", call.backward);
        json_put_real(w, "flops", call.flops);
        json_put_real(w, "bytes", call.bytes);
        if (call.transfer != NULL) {
            json_put_text(w, "collective", collective_names[call.transfer->op]);
            json_put_text(w, "group", collective_groups[call.transfer->group]);
            json_put_u64(w, "ranks", call.transfer->ways);
        }
        json_close(w);
        json_close(w);
        *at_us += us;
    }
}

/* JSON_TIGHT, as a trace of a large model has a hundred thousand events. */
lh_status_t step_trace_write(const char *folder, const program_t *pass, const program_t *update)
{
    text_t text = {0};
    json_writer_t w = {.to = &text, .style = JSON_TIGHT};
    double at_us = 0;
    json_open(&w, NULL, '{');
    json_put_text(&w, "displayTimeUnit", "ms");
    json_open(&w, "traceEvents", '[');
    put_calls(&w, pass, false, "first micro-batch", &at_us);
    put_calls(&w, pass, true, "later micro-batches", &at_us);
    put_calls(&w, update, false, "update", &at_us);
    json_close(&w);
    json_close(&w);
    return write_profile(folder, "profile.trace.json", &text);
}
