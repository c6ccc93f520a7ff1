/* rank_world.h - ranks as forked processes that save one state together: every element follows from
 * (step, tensor, index), and who owns which is computed here. */
#ifndef TESTS_RANK_WORLD_H
#define TESTS_RANK_WORLD_H

#include <unit/base/scratch_files.h>

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include <base/log.h>
#include <base/sys.h>
#include <checkpoint/checkpoint.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/writer.h>

enum { WORLD_TENSORS = 8, WORLD_MOST = 256, WORLD_RANKS = 8, WORLD_REASON = 512 };
#define MS ((uint64_t)1000000)

typedef struct world_tensor {
    const char *name;
    uint32_t rank;
    uint64_t shape[2];
    bool whole; /* one rank has all of it: a state a row, a scale */
} world_tensor_t;

/* Uneven sizes, and smaller ones than the world. */
static const world_tensor_t world_tensors[WORLD_TENSORS] = {
    {"embed", 2, {50, 3}, false},         {"blocks.0.wq", 2, {7, 5}, false},
    {"blocks.0.bias", 1, {3}, false},     {"norm", 1, {1}, false},
    {"exp_avg/embed", 2, {50, 3}, false}, {"exp_avg/blocks.0.wq", 2, {7, 5}, false},
    {"row/blocks.0.wq", 1, {7}, true},    {"scale/blocks.0.wq", 1, {1}, true},
};

static inline uint64_t world_elements(uint32_t t)
{
    return world_tensors[t].shape[0] * (world_tensors[t].rank == 2 ? world_tensors[t].shape[1] : 1);
}

static inline float world_value(uint64_t step, uint32_t t, uint64_t i)
{
    return (float)(step * 8192 + t * 512 + i) + 0.125f;
}

/* Elements [*begin, *end) of tensor t that `rank` of `ranks` owns: places go round, so that small
 * tensors don't all lie on rank 0. */
static inline void world_owned(uint32_t t, uint32_t rank, uint32_t ranks, uint64_t *begin,
                               uint64_t *end)
{
    const uint64_t n = world_elements(t), place = (rank + t) % ranks;
    *begin = n * place / ranks;
    *end = n * (place + 1) / ranks;
    if (!world_tensors[t].whole) return;
    *begin = 0;
    *end = place == 0 ? n : 0;
}

/* The tensors that a rank saves; returns how many. */
static inline uint32_t world_share(uint32_t rank, uint32_t ranks,
                                   checkpoint_tensor_t out[WORLD_TENSORS],
                                   uint32_t which[WORLD_TENSORS])
{
    uint32_t count = 0;
    for (uint32_t t = 0; t < WORLD_TENSORS; t++) {
        const world_tensor_t *w = &world_tensors[t];
        uint64_t begin, end;
        world_owned(t, rank, ranks, &begin, &end);
        if (begin == end) continue;
        out[count] = (checkpoint_tensor_t){.name = w->name, .dtype = LH_DTYPE_F32, .rank = w->rank};
        memcpy(out[count].shape, w->shape, sizeof(w->shape));
        out[count].part = tensor_part_range(w->rank, w->shape, begin, end - begin);
        which[count++] = t;
    }
    return count;
}

typedef struct world_outcome { /* of one rank, told to the test and to the other ranks */
    uint64_t opened;           /* 1: it is */
    /* Steps: its share is written, or is not; on rank 0: the save has ended well. */
    uint64_t wrote, failed, ended;
    lh_status_t status;
    uint32_t saves;
    uint64_t ns;
    char reason[WORLD_REASON];
} world_outcome_t;

typedef struct world_place { /* a rank's view */
    const char *folder;
    uint32_t rank, ranks;
    uint64_t session, deadline_ns, keep;
    world_outcome_t *outcome; /* shared with the test: of this rank, in */
    world_outcome_t *all;     /* those of all */
    checkpoint_tensor_t tensors[WORLD_TENSORS];
    uint32_t which[WORLD_TENSORS], count;
} world_place_t;

static inline uint64_t world_heard(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline void world_tell(uint64_t *word, uint64_t step)
{
    __atomic_store_n(word, step, __ATOMIC_RELEASE);
}

static inline lh_status_t world_open(world_place_t *p, writer_t **w)
{
    const writer_how_t how = {.folder = p->folder,
                              .keep = {.newest = p->keep},
                              .shard_bytes = 128,
                              .deadline_ns = p->deadline_ns,
                              .lock_ns = 10000 * MS,
                              .rank = p->rank,
                              .ranks = p->ranks};
    lh_status_t status = writer_start(&how, w);
    if (status == LH_OK) status = writer_open(*w);
    if (status != LH_OK) return status;
    /* Nobody writes before rank 0 has made the folder and swept it: a run's start sees to that. */
    const struct timespec nap = {.tv_nsec = MS};
    world_tell(&p->outcome->opened, 1);
    while (world_heard(&p->all[0].opened) == 0)
        (void)nanosleep(&nap, NULL);
    writer_session(*w, p->session);
    return writer_layout(*w, p->tensors, p->count);
}

static inline lh_status_t world_submit(world_place_t *p, writer_t *w, uint64_t step)
{
    const checkpoint_meta_t meta = {
        .run = "test", .step = step, .seed = UINT64_MAX, .cursor = 10 * step};
    lh_status_t status = writer_begin(w);
    for (uint32_t i = 0; i < p->count && status == LH_OK; i++) {
        void *place;
        status = writer_place(w, i, &place);
        for (uint64_t k = 0; status == LH_OK && k < p->tensors[i].part.count; k++)
            ((float *)place)[k] = world_value(step, p->which[i], p->tensors[i].part.first + k);
    }
    return status == LH_OK ? writer_submit(w, &meta) : status;
}

/* As the trainers do: all have written, or one has failed. */
static inline bool world_all_wrote(const world_place_t *p, uint64_t step)
{
    const struct timespec nap = {.tv_nsec = MS};
    bool wrote = true;
    for (uint32_t r = 0; r < p->ranks; r++) {
        while (world_heard(&p->all[r].wrote) < step && world_heard(&p->all[r].failed) < step)
            (void)nanosleep(&nap, NULL);
        wrote = wrote && world_heard(&p->all[r].failed) < step;
    }
    return wrote;
}

static inline lh_status_t world_agree(const world_place_t *p, writer_t *w, uint64_t step,
                                      writer_result_t *result)
{
    const struct timespec nap = {.tv_nsec = MS};
    world_outcome_t *leader = &p->all[0];
    bool wrote = world_all_wrote(p, step);
    if (p->rank == 0 && wrote) {
        writer_commit(w);
        const lh_status_t status = writer_wait(w, result);
        if (status != LH_OK) return status;
        wrote = result->status == LH_OK;
    }
    writer_settle(w, wrote);
    if (p->rank == 0) world_tell(wrote ? &leader->ended : &leader->failed, step);
    while (world_heard(&leader->ended) < step && world_heard(&leader->failed) < step)
        (void)nanosleep(&nap, NULL);
    if (result->status != LH_OK || world_heard(&leader->failed) < step) return LH_OK;
    result->status = LH_IO;
    (void)snprintf(result->reason, sizeof(result->reason), "another rank failed");
    return LH_OK;
}

/* Submits, waits and agrees; what became of it is the rank's outcome. */
static inline lh_status_t world_save(world_place_t *p, writer_t *w, uint64_t step)
{
    writer_result_t result = {.status = LH_OK};
    const uint64_t since = sys()->now_ns();
    lh_status_t status = world_submit(p, w, step);
    if (status == LH_OK) status = writer_wait(w, &result);
    if (status == LH_OK && p->ranks > 1) {
        world_tell(result.status == LH_OK ? &p->outcome->wrote : &p->outcome->failed, step);
        status = world_agree(p, w, step, &result);
    }
    if (status == LH_OK) status = result.status;
    p->outcome->status = status;
    p->outcome->ns = sys()->now_ns() - since;
    p->outcome->saves += status == LH_OK;
    (void)snprintf(p->outcome->reason, WORLD_REASON, "%s", result.reason);
    return status;
}

/* Every rank of a world lives its life in a process of its own. */
typedef struct world_run {
    const char *folder;
    uint32_t ranks;
    uint64_t deadline_ns, keep;
    world_outcome_t *outcomes; /* [WORLD_RANKS], shared */
    pid_t pids[WORLD_RANKS];
} world_run_t;

static inline void world_start(world_run_t *run, void (*life)(world_place_t *p))
{
    static uint64_t session = 1000;
    session++;
    run->outcomes = mmap(NULL, WORLD_RANKS * sizeof(world_outcome_t), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(run->outcomes != MAP_FAILED);
    for (uint32_t r = 0; r < run->ranks; r++) {
        run->outcomes[r].status = LH_AGAIN;
        run->pids[r] = fork();
        assert_true(run->pids[r] >= 0);
        if (run->pids[r] > 0) continue;
        (void)setenv("CMOCKA_TEST_ABORT", "1", 1); /* a rank that fails runs no other tests */
        world_place_t place = {.folder = run->folder,
                               .rank = r,
                               .ranks = run->ranks,
                               .session = session,
                               .deadline_ns = run->deadline_ns,
                               .keep = run->keep,
                               .outcome = &run->outcomes[r],
                               .all = run->outcomes};
        place.count = world_share(r, run->ranks, place.tensors, place.which);
        life(&place);
        _exit(0);
    }
}

static inline void world_end(world_run_t *run)
{
    for (uint32_t r = 0; r < run->ranks; r++)
        assert_int_equal(waitpid(run->pids[r], NULL, 0), run->pids[r]);
}

static inline void world_forget(world_run_t *run)
{
    assert_int_equal(munmap(run->outcomes, WORLD_RANKS * sizeof(world_outcome_t)), 0);
}

/* One rank of `ranks` reads what it would hold: bit for bit what was saved. */
static inline void world_check(const char *folder, uint64_t step, uint32_t ranks)
{
    checkpoint_t *c = NULL;
    assert_int_equal(checkpoint_open_latest(folder, &c), LH_OK);
    assert_non_null(c);
    assert_int_equal(c->manifest->meta.step, step);
    assert_int_equal(c->manifest->meta.cursor, 10 * step);
    assert_int_equal(c->manifest->tensor_count, WORLD_TENSORS);
    for (uint32_t r = 0; r < ranks; r++)
        for (uint32_t t = 0; t < WORLD_TENSORS; t++) {
            const world_tensor_t *w = &world_tensors[t];
            float values[WORLD_MOST];
            uint64_t begin, end;
            world_owned(t, r, ranks, &begin, &end);
            if (begin == end) continue;
            const tensor_part_t want = tensor_part_range(w->rank, w->shape, begin, end - begin);
            const manifest_tensor_t *m = checkpoint_find(c, w->name);
            assert_non_null(m);
            assert_int_equal(m->rank, w->rank);
            assert_int_equal(checkpoint_read(c, m, &want, values), LH_OK);
            for (uint64_t i = 0; i < end - begin; i++)
                assert_true(values[i] == world_value(step, t, begin + i));
        }
    checkpoint_close(c);
}

#endif
