/* comm/progress_word.h - what a rank is doing, where others can read it at any time without a lock:
 * its control thread, and the launcher through memory that both map. */
#ifndef COMM_PROGRESS_WORD_H
#define COMM_PROGRESS_WORD_H

#include <stdatomic.h>

#include <longhaul/base.h>

enum { PROGRESS_WORDS = 8, PROGRESS_TEXT = PROGRESS_WORDS * 8 }; /* bytes, with the NUL */

typedef struct progress_word {
    _Atomic uint64_t serial; /* odd while it is written */
    _Atomic uint64_t step;
    _Atomic uint64_t text[PROGRESS_WORDS];
} progress_word_t;

typedef struct progress {
    uint64_t step;
    char text[PROGRESS_TEXT]; /* "" before the first */
} progress_t;

/* [any thread] Of two at the same time one is kept. text NULL: none. */
void progress_write(progress_word_t *w, uint64_t step, const char *text);
void progress_read(const progress_word_t *w, progress_t *out);

/* " in step 41, all-reduce of gradients 3", " in all-reduce ..." before the first step, or "". */
enum { PROGRESS_PHRASE = PROGRESS_TEXT + 32 };
void progress_phrase(const progress_t *p, char out[PROGRESS_PHRASE]);

#endif
