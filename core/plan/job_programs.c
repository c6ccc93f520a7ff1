/* job_programs.c - opens a session and states a step's programs. */
#include <plan/job_programs.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/status.h>
#include <base/sys.h>
#include <engine/engine_profile.h>
#include <parallel/transfer_order.h>

/* No token of the data is read for this, so any vocabulary will do. */
static lh_status_t read_documents(const job_t *job, int32_t eod, uint64_t *per_sample)
{
    batches_t *train = NULL, *valid = NULL;
    lh_status_t status = step_batches_open(job, SPLIT_TRAIN, INT32_MAX, eod, NULL, &train);
    if (status == LH_OK && job->train.evaluate_every > 0)
        status = step_batches_open(job, SPLIT_VALID, INT32_MAX, eod, train, &valid);
    if (status == LH_OK) *per_sample = step_documents(job, train, valid, eod);
    batches_close(valid);
    batches_close(train);
    return status;
}

job_documents_t job_documents(const job_t *job, int32_t eod)
{
    job_documents_t d = {0};
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

const char *job_documents_text(const job_t *job, const job_documents_t *documents)
{
    if (job->data.documents == DOCUMENTS_JOINED) return "one in a sequence, as they are joined";
    if (job->train.max_documents > 0) return "as [train] max_documents says";
    return documents->from_files ? "as the token files say" : "as many as there can be";
}

static lh_status_t make_programs(const job_programs_how_t *how, job_programs_t *p)
{
    session_t *s = p->session;
    const uint32_t rank = s->world == NULL ? 0 : s->world->row.rank;
    const uint32_t ranks = s->world == NULL ? 1 : s->world->row.size;
    const uint64_t begun = sys()->now_ns();
    p->layout = step_layout(s->job, rank, ranks, how->documents.per_sample);
    lh_status_t status = step_programs_new(s, &p->layout, NULL, &p->programs);
    if (status == LH_OK) status = engine_plan(s->engine);
    if (status == LH_OK && s->transfers != NULL) status = transfers_plan(s->transfers);
    if (status == LH_OK && s->transfers != NULL) status = train_comm_plan(&p->comm);
    p->planned_ns = sys()->now_ns() - begun;
    return status;
}

static lh_status_t open_comm(const session_how_t *how, job_programs_t *p)
{
    if (how->world == NULL || how->world->row.size == 1) return LH_OK;
    const train_comm_how_t comm = {.job = how->job, .registry = how->registry, .world = how->world};
    return train_comm_open(&p->comm, &comm);
}

lh_status_t job_programs_open(const job_programs_how_t *how, job_programs_t *out)
{
    *out = (job_programs_t){0};
    session_how_t own = how->session;
    lh_status_t status = open_comm(&how->session, out);
    own.comm = out->comm.comm;
    if (status == LH_OK) status = session_open(&own, &out->session);
    if (status == LH_OK) status = make_programs(how, out);
    if (status != LH_OK) job_programs_close(out);
    return status;
}

void job_programs_memory(const job_programs_t *p, memory_report_t *out)
{
    engine_memory(p->session->engine, out);
    out->bytes[MEMORY_TRANSFERS] = p->comm.planned_bytes;
    out->total_bytes += p->comm.planned_bytes;
}

void job_programs_close(job_programs_t *p)
{
    train_comm_close(&p->comm, false);
    step_programs_free(&p->programs);
    session_close(p->session);
    *p = (job_programs_t){0};
}

/* Each rank is planned after the other; its memory is kept, and the transfers that it starts and
 * waits for. */
static lh_status_t rank_plan(const job_programs_how_t *how, uint32_t rank, memory_report_t *memory,
                             transfer_list_t *list)
{
    world_t *world;
    job_programs_how_t own = *how;
    job_programs_t programs;
    lh_status_t status = world_plan(how->session.job, rank, &world);
    if (status != LH_OK) return status;
    own.session.world = world;
    status = job_programs_open(&own, &programs);
    if (status == LH_OK) {
        job_programs_memory(&programs, memory);
        status = transfer_rows(programs.session->engine, &list->rows, &list->count);
        job_programs_close(&programs);
    }
    world_free(world);
    return status;
}

static lh_status_t order_check(const job_t *job, const transfer_list_t *lists)
{
    world_t *world;
    lh_status_t status = world_plan(job, 0, &world);
    if (status != LH_OK) return status;
    status = transfer_order_check(world, lists);
    world_free(world);
    return status;
}

lh_status_t job_programs_of_ranks(const job_programs_how_t *how, memory_report_t **out,
                                  uint32_t *ranks)
{
    const uint32_t count = job_ranks(how->session.job);
    memory_report_t *all = mem_array(count, sizeof(*all));
    transfer_list_t *lists = mem_array(count, sizeof(*lists));
    lh_status_t status = all == NULL || lists == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint32_t r = 0; status == LH_OK && r < count; r++)
        status = rank_plan(how, r, &all[r], &lists[r]);
    if (status == LH_OK && count > 1) status = order_check(how->session.job, lists);
    transfer_lists_free(lists, count);
    if (status != LH_OK) {
        mem_free(all);
        return status;
    }
    *out = all;
    *ranks = count;
    return LH_OK;
}
