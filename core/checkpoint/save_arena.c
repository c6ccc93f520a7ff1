/* save_arena.c - a memfd, its mapping, and the thread that takes its pages. */
#include <checkpoint/save_arena.h>

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The lock of the process's mappings is held for a piece, and free in between. */
enum { PIECE_BYTES = 1 << 20, PAUSE_NS = 500000 };

lh_status_t save_arena_open(save_arena_t *a)
{
    *a = (save_arena_t){.fd = memfd_create("longhaul-checkpoint", MFD_CLOEXEC)};
    return a->fd >= 0 ? LH_OK : fail(LH_IO, "shared memory for checkpoints");
}

/* EINVAL: a kernel before 5.14, which takes the pages one by one. */
static bool populate(const save_arena_t *a, uint64_t begin, uint64_t bytes)
{
    const uint64_t into = begin % (uint64_t)sysconf(_SC_PAGESIZE);
    return bytes == 0 ||
           madvise(a->memory + begin - into, into + bytes, MADV_POPULATE_WRITE) == 0 ||
           errno == EINVAL;
}

static void *take_ahead(void *context)
{
    save_arena_t *a = context;
    const struct sched_param none = {0};
    (void)sched_setscheduler(0, SCHED_IDLE, &none); /* of this thread */
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    while (a->taken < a->bytes && !atomic_load(&a->stop)) {
        const uint64_t left = a->bytes - a->taken, n = left < PIECE_BYTES ? left : PIECE_BYTES;
        if (!populate(a, a->taken, n)) break;
        a->taken += n;
        (void)nanosleep(&pause, NULL);
    }
    return NULL;
}

void save_arena_ahead(save_arena_t *a)
{
    sigset_t all, before;
    if (a->ahead) return;
    atomic_store(&a->stop, false);
    (void)sigfillset(&all); /* signals are the trainer's to answer */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    a->ahead = pthread_create(&a->thread, NULL, take_ahead, a) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void end_ahead(save_arena_t *a)
{
    if (!a->ahead) return;
    atomic_store(&a->stop, true);
    (void)pthread_join(a->thread, NULL);
    a->ahead = false;
}

lh_status_t save_arena_size(save_arena_t *a, uint64_t bytes)
{
    save_arena_unsize(a);
    if (ftruncate(a->fd, (off_t)bytes) == 0) {
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0);
        if (memory != MAP_FAILED) {
            a->memory = memory;
            a->bytes = bytes;
            return LH_OK;
        }
    }
    return fail(LH_IO, "%llu bytes of shared memory for checkpoints", (unsigned long long)bytes);
}

void save_arena_unsize(save_arena_t *a)
{
    end_ahead(a);
    if (a->memory != NULL) (void)munmap(a->memory, a->bytes);
    a->memory = NULL;
    a->bytes = a->taken = 0;
}

lh_status_t save_arena_take_part(save_arena_t *a, uint64_t begin, uint64_t bytes)
{
    end_ahead(a);
    if (begin + bytes <= a->taken) return LH_OK;
    if (!populate(a, begin, bytes))
        return fail(LH_IO, "%llu bytes of shared memory for a checkpoint",
                    (unsigned long long)bytes);
    if (begin <= a->taken) a->taken = begin + bytes;
    return LH_OK;
}

lh_status_t save_arena_take(save_arena_t *a)
{
    end_ahead(a);
    return save_arena_take_part(a, a->taken, a->bytes - a->taken);
}

void save_arena_close(save_arena_t *a)
{
    save_arena_unsize(a);
    if (a->fd >= 0) (void)close(a->fd);
    a->fd = -1;
}
