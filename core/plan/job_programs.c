/* job_programs.c - opens a session and states a step's programs. */
#include <plan/job_programs.h>

#include <base/status.h>
#include <data/batch_share.h>

enum { DOCUMENTS_LIMIT = 1 << 20 };

/* Where documents lie apart, how many there are is known from the data; without it, as many as
 * there can be: the difference is 4 bytes each. */
static uint64_t documents_of(const job_t *job, uint64_t sequences)
{
    const job_train_t *train = &job->train;
    if (job->data.documents == DOCUMENTS_JOINED) return sequences;
    if (train->max_documents > 0) return train->max_documents;
    const uint64_t all = train->sequence * sequences;
    return all > DOCUMENTS_LIMIT ? DOCUMENTS_LIMIT : all;
}

static lh_status_t make_programs(const job_t *job, job_programs_t *p)
{
    const job_train_t *train = &job->train;
    session_t *s = p->session;
    const uint32_t rank = s->world == NULL ? 0 : s->world->row.rank;
    const uint32_t ranks = s->world == NULL ? 1 : s->world->row.size;
    const batch_share_t share = batch_share(train->batch, train->micro_batch, rank, ranks);
    const bool breadth = job->parallel.accumulation == ACCUMULATION_BREADTH;
    const program_how_t how = {.use = USE_TRAIN,
                               .sequences = share.rows,
                               .rows = train->sequence,
                               .max_documents = documents_of(job, share.rows),
                               .recompute = train->recompute,
                               .micro_batches = (uint32_t)share.passes,
                               .lanes = breadth ? (uint32_t)share.passes : 1,
                               .head_chunk = train->head_chunk};
    const evaluation_how_t evaluation = {.session = s,
                                         .sequences = train->micro_batch,
                                         .rows = train->sequence,
                                         .max_documents = documents_of(job, train->micro_batch)};
    p->micro_batches = share.passes / how.lanes;
    p->rows = share.rows;
    p->lanes = how.lanes;
    lh_status_t status = session_update(s, (uint32_t)p->micro_batches, &p->update);
    if (status == LH_OK) status = program_new(s->engine, s->weights, &how, &p->pass);
    if (status == LH_OK && train->evaluate_every > 0)
        status = evaluation_new(&evaluation, &p->evaluation);
    if (status == LH_OK) status = engine_plan(s->engine);
    if (status == LH_OK && s->transfers != NULL) status = transfers_plan(s->transfers);
    if (status == LH_OK && s->transfers != NULL) status = train_comm_plan(&p->comm);
    return status;
}

static lh_status_t open_comm(const session_how_t *how, job_programs_t *p)
{
    if (how->world == NULL || how->world->row.size == 1) return LH_OK;
    const train_comm_how_t comm = {.job = how->job, .registry = how->registry, .world = how->world};
    return train_comm_open(&p->comm, &comm);
}

lh_status_t job_programs_open(const session_how_t *how, job_programs_t *out)
{
    *out = (job_programs_t){0};
    session_how_t own = *how;
    lh_status_t status = open_comm(how, out);
    own.comm = out->comm.comm;
    if (status == LH_OK) status = session_open(&own, &out->session);
    if (status == LH_OK) status = make_programs(how->job, out);
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
    evaluation_free(p->evaluation);
    session_close(p->session);
    *p = (job_programs_t){0};
}
