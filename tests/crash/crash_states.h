/* crash_states.h - every state that a power loss may leave, from a journal of changes.
 *
 * The model is POSIX without any kindness of a real file system: what an fsync of the file (its
 * bytes and size) or of the folder (its names) has covered is on the disk; of all that came since,
 * any part may be there and any part not, in any order: a name without its file's bytes, a size
 * without bytes (then zeros or junk stand there), one sector of a write without the next. Two
 * changes of the same thing in reversed order are the earlier one without the later. A process that
 * is killed without a power loss is the case in which all of it is there. */
#ifndef TESTS_CRASH_STATES_H
#define TESTS_CRASH_STATES_H

#include <crash/mem_fs.h>

/* Marks that a test sets in the journal; added to a step. */
#define MARK_BEGUN UINT64_C(0x100000000)    /* a save of it may be found from now on         */
#define MARK_RETURNED UINT64_C(0x200000000) /* its save said that it is saved: it must be      */

typedef struct crash_expect {
    uint64_t floor;  /* no older step may be found; 0: none was saved yet */
    uint64_t newest; /* no newer one either                               */
    uint64_t said;   /* the last step of this journal that was said to be saved; 0: none */
} crash_expect_t;

/* Looks at the file system in force (mem_fs_used) as a program after the crash does. NULL: all is
 * well; else what is not, valid until the next call. */
typedef const char *(*crash_look_t)(void *context, const crash_expect_t *expect);

typedef struct crash_walk_how {
    uint32_t whole_bits; /* up to 2^this many states at one moment are built all, else sampled */
    uint32_t samples;    /* at such a moment                                                 */
    uint64_t seed;
    crash_expect_t expect; /* at the beginning of the journal */
    crash_look_t look;
    void *context;
    /* Every so often the tree itself is handed out as well; 0: never. */
    uint32_t pick_every;
    void (*pick)(void *context, const mem_tree_t *tree, const crash_expect_t *expect);
} crash_walk_how_t;

typedef struct crash_count {
    uint64_t moments; /* places in the journal              */
    uint64_t states;  /* built                              */
    uint64_t looks;   /* at states that looked different    */
    uint64_t faults;  /* states in which look found a fault */
    char first[512];  /* what it said of the first          */
} crash_count_t;

void crash_count_add(crash_count_t *sum, const crash_count_t *count);
/* Adds to *count. */
void crash_walk(const mem_fs_t *fs, const crash_walk_how_t *how, crash_count_t *count);

uint64_t crash_random(uint64_t *seed); /* splitmix64 */

#endif
