/* writer_arena.c - a memfd, its mapping, and the thread that takes its pages. */
#include <checkpoint/writer_arena.h>

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <base/thread.h>

/* The lock of the process's mappings is held for a piece, and free in between. */
enum { PIECE_BYTES = 1 << 20, PAUSE_NS = 500000 };

lh_status_t writer_arena_open(writer_arena_t *a)
{
    *a = (writer_arena_t){.fd = memfd_create("longhaul-checkpoint", MFD_CLOEXEC)};
    return a->fd >= 0 ? LH_OK : fail_io(errno, "shared memory for checkpoints");
}

/* Takes the pages of a range; they begin at a page's begin. EINVAL: a kernel before 5.14 has no
 * such advice, and takes pages one by one as they are touched. */
static bool arena_populate(const writer_arena_t *a, uint64_t begin, uint64_t bytes)
{
    const uint64_t into = begin % (uint64_t)sysconf(_SC_PAGESIZE);
    return bytes == 0 ||
           madvise(a->memory + begin - into, into + bytes, MADV_POPULATE_WRITE) == 0 ||
           errno == EINVAL;
}

/* The thread that takes pages: of the lowest priority, a piece at a time with pauses, as the kernel
 * holds a lock of the process's memory for each. It ends when all are taken, when it is told to, or
 * when one can't be had: the save finds out then. */
static void *take_ahead(void *context)
{
    writer_arena_t *a = context;
    const struct sched_param none = {0};
    (void)sched_setscheduler(0, SCHED_IDLE, &none); /* of this thread */
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    while (a->taken < a->bytes && !atomic_load(&a->stop)) {
        const uint64_t left = a->bytes - a->taken, n = left < PIECE_BYTES ? left : PIECE_BYTES;
        if (!arena_populate(a, a->taken, n)) break;
        a->taken += n;
        (void)nanosleep(&pause, NULL);
    }
    return NULL;
}

void writer_arena_ahead(writer_arena_t *a)
{
    if (a->ahead) return;
    atomic_store(&a->stop, false);
    a->ahead = thread_start(&a->thread, "lh-arena", take_ahead, a) == 0;
}

/* Waits for the thread to end its piece. From then on `taken` is the caller's. */
static void end_ahead(writer_arena_t *a)
{
    if (!a->ahead) return;
    atomic_store(&a->stop, true);
    (void)pthread_join(a->thread, NULL);
    a->ahead = false;
}

/* The file grows or shrinks without pages; mapping it takes none either. */
lh_status_t writer_arena_size(writer_arena_t *a, uint64_t bytes)
{
    lh_assert(a->fd >= 0 && bytes > 0);
    writer_arena_unsize(a);
    if (ftruncate(a->fd, (off_t)bytes) == 0) {
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0);
        if (memory != MAP_FAILED) {
            a->memory = memory;
            a->bytes = bytes;
            return LH_OK;
        }
    }
    return fail_io(errno, "%llu bytes of shared memory for checkpoints", (unsigned long long)bytes);
}

void writer_arena_unsize(writer_arena_t *a)
{
    end_ahead(a);
    if (a->memory != NULL) (void)munmap(a->memory, a->bytes);
    a->memory = NULL;
    a->bytes = a->taken = 0;
}

/* A page that can't be had would end the trainer by SIGBUS at the copy; asked for here it is a
 * failure with a sentence. Parts that are taken in order move `taken` on. */
lh_status_t writer_arena_take_part(writer_arena_t *a, uint64_t begin, uint64_t bytes)
{
    lh_assert(a->memory != NULL);
    lh_assert(begin <= a->bytes && bytes <= a->bytes - begin);
    end_ahead(a);
    if (begin + bytes <= a->taken) return LH_OK;
    if (!arena_populate(a, begin, bytes))
        return fail_io(errno, "%llu bytes of shared memory for a checkpoint",
                       (unsigned long long)bytes);
    if (begin <= a->taken) a->taken = begin + bytes;
    return LH_OK;
}

lh_status_t writer_arena_take(writer_arena_t *a)
{
    end_ahead(a);
    return writer_arena_take_part(a, a->taken, a->bytes - a->taken);
}

void writer_arena_close(writer_arena_t *a)
{
    writer_arena_unsize(a);
    if (a->fd >= 0) (void)close(a->fd);
    a->fd = -1;
}
