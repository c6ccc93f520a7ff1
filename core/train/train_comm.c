/* train_comm.c - how the ranks of a run talk. */
#include <train/train_comm.h>

#include <base/memory.h>

static lh_status_t start(void *context, const void *mine, size_t bytes)
{
    train_comm_t *t = context;
    if (t->plan == NULL || bytes > TRAIN_COMM_ROOM)
        return fail(LH_INVALID, "%zu bytes of each rank can't be gathered beside other work",
                    bytes);
    memcpy(t->memory + (size_t)t->ranks.rank * TRAIN_COMM_ROOM, mine, bytes);
    return collective_start(t->plan);
}

static lh_status_t finish(void *context, size_t bytes, void *all)
{
    train_comm_t *t = context;
    const lh_status_t status = collective_wait(t->plan);
    if (status != LH_OK) return status;
    for (uint32_t r = 0; r < t->ranks.size; r++)
        memcpy((char *)all + r * bytes, t->memory + (size_t)r * TRAIN_COMM_ROOM, bytes);
    return LH_OK;
}

static lh_status_t gather(void *context, const void *mine, size_t bytes, void *all)
{
    train_comm_t *t = context;
    if (t->plan == NULL || bytes > TRAIN_COMM_ROOM)
        return control_gather(t->control, mine, bytes, all);
    const lh_status_t status = start(t, mine, bytes);
    return status == LH_OK ? finish(t, bytes, all) : status;
}

lh_status_t train_comm_open(train_comm_t *t, const train_comm_how_t *how)
{
    const comm_how_t comm = {.job = how->job,
                             .registry = how->registry,
                             .world = how->world,
                             .control = how->control,
                             .thread = true,
                             .planned = how->control == NULL};
    *t = (train_comm_t){.ranks = {.rank = how->world->row.rank,
                                  .size = how->world->row.size,
                                  .context = t,
                                  .gather = gather,
                                  .start = start,
                                  .finish = finish},
                        .control = how->control};
    return comm_open(&comm, &t->comm);
}

static lh_status_t plan_numbers(train_comm_t *t, collective_t **out)
{
    const size_t bytes = (size_t)t->ranks.size * TRAIN_COMM_ROOM;
    coll_how_t how = {.name = "numbers of the step",
                      .op = COLL_ALL_GATHER,
                      .group = comm_group(t->comm, LH_GROUP_DATA),
                      .dtype = LH_DTYPE_F32,
                      .elements = bytes / sizeof(float),
                      .service = LH_SERVICE_GRADIENT};
    if (how.group == NULL) return LH_INVALID;
    t->memory = mem_new(bytes);
    if (t->memory == NULL) return LH_NO_MEMORY;
    how.whole.address = t->memory;
    const lh_status_t status = comm_arena(t->comm, t->memory, bytes, -1, 0, &how.whole.arena);
    return status == LH_OK ? collective_new(t->comm, &how, out) : status;
}

static lh_status_t plan_all(train_comm_t *t, collective_t **numbers)
{
    const lh_status_t status = plan_numbers(t, numbers);
    return status == LH_OK ? comm_plan(t->comm, &t->planned_bytes) : status;
}

lh_status_t train_comm_plan(train_comm_t *t)
{
    collective_t *numbers;
    return plan_all(t, &numbers);
}

lh_status_t train_comm_connect(train_comm_t *t)
{
    collective_t *numbers;
    lh_status_t status = plan_all(t, &numbers);
    if (status == LH_OK) status = comm_connect(t->comm);
    if (status == LH_OK) t->plan = numbers; /* until then gathers take the slow way */
    return status;
}

void train_comm_close(train_comm_t *t, bool together)
{
    if (t->comm == NULL) return;
    comm_stop(t->comm);
    if (together && control_barrier(t->control, "the end of training") != LH_OK) {
        /* Somebody failed after all; the control plane tells who. */
    }
    comm_close(t->comm);
    mem_free(t->memory);
    *t = (train_comm_t){0};
}
