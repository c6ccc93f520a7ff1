/* checkpoint/writer_arena.h - the shared memory that holds one save: the trainer copies into it, a saver
 * reads it.
 *
 * A page costs most when it is touched for the first time, some 0.6 ms a MB. So that the first save
 * does not stand still for that, a thread takes the pages ahead, in time that nothing else wants of
 * a processor: on a machine whose processors train it may get little done, and the save takes the
 * rest. [serial] */
#ifndef CHECKPOINT_WRITER_ARENA_H
#define CHECKPOINT_WRITER_ARENA_H

#include <pthread.h>
#include <stdatomic.h>

#include <base/status.h>

typedef struct writer_arena {
    int fd;         /* -1: not open           */
    char *memory;   /* NULL: it has no size   */
    uint64_t bytes; /* of a save              */
    uint64_t taken; /* bytes from the begin on whose pages are there; the thread's while it runs */
    bool ahead;     /* there is a thread to be joined */
    atomic_bool stop;
    pthread_t thread;
} writer_arena_t;

lh_status_t writer_arena_open(writer_arena_t *a) LH_MUST_CHECK;
/* Room for saves of so many bytes, at least 1; none of it counts as taken. Once, or again. */
lh_status_t writer_arena_size(writer_arena_t *a, uint64_t bytes) LH_MUST_CHECK;
void writer_arena_unsize(writer_arena_t *a);
/* Begins to take the pages beside the caller. Where that cannot be, the next save takes them. */
void writer_arena_ahead(writer_arena_t *a);
/* Takes all pages that are still missing: one that could not be had later would end the trainer by
 * a signal. */
lh_status_t writer_arena_take(writer_arena_t *a) LH_MUST_CHECK;
/* As writer_arena_take, for a part of the arena. */
lh_status_t writer_arena_take_part(writer_arena_t *a, uint64_t begin, uint64_t bytes) LH_MUST_CHECK;
void writer_arena_close(writer_arena_t *a);

#endif
