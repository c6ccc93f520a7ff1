/* train_memory.c - the memory of every rank, planned and measured, told to all at the end. */
#include <train/trainer.h>

#include <sys/resource.h>

#include <base/memory.h>

static rank_memory_t own_memory(const trainer_t *t)
{
    struct rusage usage = {0};
    lh_device_memory_t device;
    const engine_t *e = t->session->engine;
    rank_memory_t m = {.rank = agree_rank(&t->agree)};
    engine_memory(e, &m.planned);
    engine_memory_measured(e, &m.measured);
    if (t->comm.comm != NULL) {
        m.planned.bytes[MEMORY_TRANSFERS] = t->comm.planned_bytes;
        m.planned.total_bytes += t->comm.planned_bytes;
        m.measured.bytes[MEMORY_TRANSFERS] = comm_bytes(t->comm.comm);
        m.measured.total_bytes += m.measured.bytes[MEMORY_TRANSFERS];
    }
    if (engine_device_memory(e, &device)) m.device_bytes = device.process_bytes;
    if (getrusage(RUSAGE_SELF, &usage) == 0) m.resident_bytes = (uint64_t)usage.ru_maxrss * 1024;
    return m;
}

lh_status_t trainer_memory(trainer_t *t)
{
    const uint32_t size = agree_size(&t->agree);
    if (t->memory != NULL) return LH_OK; /* the last save has asked before */
    const rank_memory_t mine = own_memory(t);
    rank_memory_t *all = mem_array(size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    all[0] = mine;
    if (size > 1) {
        const train_ranks_t *ranks = t->agree.ranks;
        status = ranks->gather(ranks->context, &mine, sizeof(mine), all);
    }
    if (status != LH_OK) {
        mem_free(all);
        return status;
    }
    t->memory = all;
    return LH_OK;
}
