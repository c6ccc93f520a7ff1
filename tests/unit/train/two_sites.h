/* two_sites.h - two sites with folders of checkpoints of their own: two ranks as threads, each the only one
 * of its site, which tell each other by a table between them. */
#ifndef TESTS_TWO_SITES_H
#define TESTS_TWO_SITES_H

#include <unit/checkpoint/small_state.h>

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include <base/sys.h>
#include <checkpoint/incarnation.h>
#include <train/train_sites.h>

enum { SITES = 2, ROOM = 64 << 10 };
#define RUN "00112233445566778899aabbccddeeff"
#define OTHER "ffeeddccbbaa99887766554433221100"

/* What the gathers of both go through. */
typedef struct table {
    pthread_barrier_t turn;
    char said[SITES][ROOM];
} table_t;

typedef struct site {
    char folder[96];
    int memory; /* that a launcher holds for the rank */
    job_t job;
    train_how_t how;
    train_ranks_t ranks;
    world_t *world;
    trainer_t trainer;
    lh_status_t status;
    char reason[512];
    bool brought;
} site_t;

typedef struct sites {
    scratch_t *scratch;
    site_t *site; /* [SITES] */
} sites_t;

static table_t table;

static inline lh_status_t table_gather(void *context, const void *mine, size_t bytes, void *all)
{
    const train_ranks_t *own = context;
    if (bytes > ROOM) return fail(LH_INVALID, "%zu bytes", bytes);
    memcpy(table.said[own->rank], mine, bytes);
    (void)pthread_barrier_wait(&table.turn);
    for (uint32_t r = 0; r < SITES; r++)
        memcpy((char *)all + r * bytes, table.said[r], bytes);
    (void)pthread_barrier_wait(&table.turn);
    return LH_OK;
}

/* Scalars of a manifest. Zeros stand for none. */
static inline uint32_t site_scalars(checkpoint_scalar_t out[2], uint32_t incarnation,
                                    uint32_t refused)
{
    uint32_t count = 0;
    if (incarnation > 0) out[count++] = (checkpoint_scalar_t){MANIFEST_INCARNATION, incarnation};
    if (refused > 0) out[count++] = (checkpoint_scalar_t){MANIFEST_REFUSED, refused};
    return count;
}

/* Two of one step have the same manifest where all of this is the same. refused: so many steps before it
 * were not applied. */
static inline void site_save_refused(const site_t *s, uint64_t step, const char *run,
                                     uint32_t incarnation, uint64_t seed, uint32_t refused)
{
    float values[SMALL_MOST] = {0};
    const void *data[SMALL_TENSORS] = {values, values, values, values};
    checkpoint_scalar_t scalars[2];
    const uint32_t count = site_scalars(scalars, incarnation, refused);
    const checkpoint_meta_t meta = {
        .run = run, .step = step, .seed = seed, .scalars = scalars, .scalar_count = count};
    commit_t *c;
    assert_int_equal(commit_begin(s->folder, &meta, "", &c), LH_OK);
    assert_int_equal(commit_write_all(c, 0, small_tensors, data, SMALL_TENSORS, 0), LH_OK);
    assert_int_equal(commit_finish(c, NULL), LH_OK);
}

static inline void site_save(const site_t *s, uint64_t step, const char *run, uint32_t incarnation,
                             uint64_t seed)
{
    site_save_refused(s, step, run, incarnation, seed, 0);
}

/* Whether its folder has this name. */
static inline bool site_has(const site_t *s, const char *head, uint64_t step)
{
    char path[192];
    (void)snprintf(path, sizeof(path), "%s/%sstep-%012llu", s->folder, head,
                   (unsigned long long)step);
    return file_exists(path);
}

/* A failure's sentence is its thread's. */
static inline void *site_note(site_t *s, lh_status_t status)
{
    s->status = status;
    (void)snprintf(s->reason, sizeof(s->reason), "%s", status == LH_OK ? "" : fail_reason());
    return NULL;
}

static inline void *site_find(void *context)
{
    site_t *s = context;
    return site_note(s, train_sites_find(&s->trainer, LH_OK));
}

static inline void in_all(sites_t *s, void *(*body)(void *context))
{
    pthread_t threads[SITES];
    for (uint32_t r = 0; r < SITES; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, body, &s->site[r]), 0);
    for (uint32_t r = 0; r < SITES; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
}

static inline void all_well(const sites_t *s)
{
    for (uint32_t r = 0; r < SITES; r++) {
        assert_string_equal(s->site[r].reason, "");
        assert_int_equal(s->site[r].status, LH_OK);
    }
}

static inline void forget_found(site_t *s)
{
    checkpoint_close(s->trainer.resumed);
    s->trainer.resumed = NULL;
    train_sites_close(&s->trainer);
}

static inline void find_all(sites_t *s)
{
    for (uint32_t r = 0; r < SITES; r++)
        forget_found(&s->site[r]);
    in_all(s, site_find);
}

/* Both go on from the one with this seed. */
static inline void check_found(sites_t *s, uint64_t step, uint64_t seed)
{
    find_all(s);
    all_well(s);
    for (uint32_t r = 0; r < SITES; r++) {
        assert_non_null(s->site[r].trainer.resumed);
        assert_int_equal(s->site[r].trainer.resumed->manifest->meta.step, step);
        assert_int_equal(s->site[r].trainer.resumed->manifest->meta.seed, seed);
    }
}

/* What was saved does not stay for the next case. */
static inline void empty_sites(sites_t *s)
{
    for (uint32_t r = 0; r < SITES; r++) {
        forget_found(&s->site[r]);
        assert_int_equal(folder_remove(s->site[r].folder), LH_OK);
    }
}

static uint32_t opened_well; /* still to be opened before one fails */
static bool has_failed;

static inline int open_that_fails_once(const char *path, int flags, mode_t mode)
{
    if (strstr(path, "/osaka/step-") == NULL || has_failed) return sys_real.open(path, flags, mode);
    if (opened_well > 0 && opened_well--) return sys_real.open(path, flags, mode);
    has_failed = true;
    errno = EIO;
    return -1;
}

/* Of the files of osaka's checkpoints the one that is opened behind so many others can't be read, and then can. */
static inline void disk_fails_once(uint32_t behind)
{
    opened_well = behind;
    static sys_t calls;
    calls = sys_real;
    calls.open = open_that_fails_once;
    has_failed = false;
    sys_use(&calls);
}

/* Whether it has failed. */
static inline bool disk_is_well(void)
{
    sys_use(NULL);
    return has_failed;
}

/* Savers are forked while there is one thread. */
static inline void open_site(sites_t *all, uint32_t rank)
{
    static const char *const names[SITES] = {"tokyo", "osaka"};
    site_t *s = &all->site[rank];
    (void)snprintf(s->folder, sizeof(s->folder), "%s/%s", all->scratch->folder, names[rank]);
    s->job.checkpoint.folder = s->folder;
    s->job.checkpoint.apart = true;
    assert_int_equal(world_new(rank, SITES, &s->world), LH_OK);
    for (uint32_t r = 0; r < SITES; r++) {
        (void)snprintf(s->world->ranks[r].host, WORLD_HOST_NAME, "%s", names[r]);
        (void)snprintf(s->world->ranks[r].site_name, WORLD_SITE_NAME, "%s", names[r]);
    }
    world_number(s->world);
    s->ranks = (train_ranks_t){
        .rank = rank, .size = SITES, .context = &s->ranks, .gather = table_gather};
    s->how = (train_how_t){.job = &s->job, .world = s->world, .resume = true};
    s->trainer = (trainer_t){.how = &s->how, .job = &s->job, .run = RUN, .below = CHECKPOINT_ALL};
    assert_int_equal(train_agree_new(&s->ranks, &s->trainer.agree), LH_OK);
    s->memory = memfd_create("snapshots", MFD_CLOEXEC);
    assert_true(s->memory >= 0);
    const writer_how_t how = {.folder = s->folder,
                              .rank = rank,
                              .ranks = SITES,
                              .apart = true,
                              .leads = true,
                              .memory = true,
                              .memory_fd = dup(s->memory)};
    assert_int_equal(writer_start(&how, &s->trainer.writer), LH_OK);
}

static inline int sites_setup(void **state)
{
    void *scratch = NULL;
    sites_t *s = calloc(1, sizeof(*s));
    if (s == NULL || scratch_setup(&scratch) != 0) return -1;
    s->scratch = scratch;
    s->site = calloc(SITES, sizeof(*s->site));
    if (s->site == NULL || pthread_barrier_init(&table.turn, NULL, SITES) != 0) return -1;
    for (uint32_t r = 0; r < SITES; r++)
        open_site(s, r);
    *state = s;
    return 0;
}

static inline int sites_teardown(void **state)
{
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++) {
        forget_found(&s->site[r]);
        writer_close(s->site[r].trainer.writer);
        (void)close(s->site[r].memory);
        train_agree_free(&s->site[r].trainer.agree);
        world_free(s->site[r].world);
    }
    (void)pthread_barrier_destroy(&table.turn);
    void *scratch = s->scratch;
    free(s->site);
    free(s);
    return scratch_teardown(&scratch);
}

#endif
