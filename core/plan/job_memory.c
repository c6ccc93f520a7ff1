/* job_memory.c - plans the programs of one rank after the other. */
#include <plan/job_memory.h>

#include <base/memory.h>

static lh_status_t rank_plan(const session_how_t *how, uint32_t rank, memory_report_t *out)
{
    world_t *world;
    session_how_t own = *how;
    job_programs_t programs;
    lh_status_t status = world_plan(how->job, rank, &world);
    if (status != LH_OK) return status;
    own.world = world;
    status = job_programs_open(&own, &programs);
    if (status == LH_OK) {
        job_programs_memory(&programs, out);
        job_programs_close(&programs);
    }
    world_free(world);
    return status;
}

lh_status_t job_memory_new(const session_how_t *how, memory_report_t **out, uint32_t *ranks)
{
    const uint32_t count = job_ranks(how->job);
    memory_report_t *all = mem_array(count, sizeof(*all));
    lh_status_t status = all == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint32_t r = 0; status == LH_OK && r < count; r++)
        status = rank_plan(how, r, &all[r]);
    if (status != LH_OK) {
        mem_free(all);
        return status;
    }
    *out = all;
    *ranks = count;
    return LH_OK;
}
