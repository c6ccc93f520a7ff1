/* control_ranks.h - ranks of a control plane for tests: as threads of this process, or as processes
 * of their own that can be killed. */
#ifndef TESTS_CONTROL_RANKS_H
#define TESTS_CONTROL_RANKS_H

#include <pthread.h>
#include <unistd.h>

#include <base/log.h>
#include <base/sys.h>
#include <control/control_open.h>
#include <unit/base/scratch_files.h>

enum { RANKS = 4 };

typedef struct rank_run {
    control_how_t how;
    control_t *control;
    world_t *world;
    lh_status_t status;
    char reason[2048];
    pthread_t thread;
} rank_run_t;

typedef struct star { /* what all ranks are told */
    secret_t *secret;
    int listener;
    uint16_t port;
} star_t;

static inline lh_status_t star_open(star_t *s)
{
    lh_status_t status = secret_random(&s->secret);
    if (status == LH_OK) status = control_listen("127.0.0.1", 0, &s->listener, &s->port);
    return status;
}

static inline control_how_t star_how(const star_t *s, uint32_t rank, uint32_t size)
{
    return (control_how_t){.rank = rank,
                           .size = size,
                           .host = rank < 2 ? "t1" : "o1",
                           .site = rank < 2 ? "tokyo" : "osaka",
                           .address = "127.0.0.1",
                           .port = s->port,
                           .listener = rank == 0 ? s->listener : -1,
                           .port_fd = -1,
                           .join_ns = UINT64_C(20000000000),
                           .secret = s->secret};
}

static inline void *rank_open_thread(void *argument)
{
    rank_run_t *r = argument;
    r->status = control_open(&r->how, &r->control, &r->world);
    if (r->status != LH_OK) (void)snprintf(r->reason, sizeof(r->reason), "%s", fail_reason());
    return NULL;
}

/* Opens all at once and waits until each has or has not. */
static inline void ranks_open(rank_run_t *ranks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        (void)pthread_create(&ranks[i].thread, NULL, rank_open_thread, &ranks[i]);
    for (uint32_t i = 0; i < count; i++)
        (void)pthread_join(ranks[i].thread, NULL);
}

static inline void *rank_close_thread(void *argument)
{
    rank_run_t *r = argument;
    if (r->control == NULL) return NULL;
    r->status = control_close(r->control, r->status, r->reason);
    if (r->status != LH_OK) (void)snprintf(r->reason, sizeof(r->reason), "%s", fail_reason());
    world_free(r->world);
    return NULL;
}

static inline void ranks_close(rank_run_t *ranks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        (void)pthread_create(&ranks[i].thread, NULL, rank_close_thread, &ranks[i]);
    for (uint32_t i = 0; i < count; i++)
        (void)pthread_join(ranks[i].thread, NULL);
}

/* True once the control plane has failed; at most so long, whatever clock the test has. */
static inline bool fails_within(const control_t *c, double seconds)
{
    const uint64_t end = sys_real.now_ns() + (uint64_t)(seconds * 1e9);
    while (control_status(c) == LH_OK && sys_real.now_ns() < end)
        (void)usleep(1000);
    return control_status(c) != LH_OK;
}

static inline double seconds_since(uint64_t begin)
{
    return (double)(sys()->now_ns() - begin) * 1e-9;
}

/* What is logged from here on. */
static inline FILE *listen_to_logs(void)
{
    FILE *said = tmpfile();
    assert_non_null(said);
    log_also(fileno(said), "what was said");
    return said;
}

static inline void was_logged(FILE *said, const char *sentence)
{
    char text[8192] = "";
    log_also(-1, "");
    assert_true(pread(fileno(said), text, sizeof(text) - 1, 0) > 0);
    (void)fclose(said);
    if (strstr(text, sentence) == NULL) FAIL_TEST("'%s' is not in:\n%s\n", sentence, text);
}

#endif
