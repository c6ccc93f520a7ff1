/* cli/prepare_progress.h - what a person sees while text is tokenized: one line that renews itself
 * on a terminal, plain lines elsewhere. */
#ifndef CLI_PREPARE_PROGRESS_H
#define CLI_PREPARE_PROGRESS_H

#include <data/prepare.h>

typedef struct prepare_progress {
    bool terminal; /* stderr is one */
    uint64_t start_ns, shown_ns;
} prepare_progress_t;

void prepare_progress_begin(prepare_progress_t *p);
/* As prepare_how_t.progress: context is a prepare_progress_t. */
void prepare_progress_show(void *context, const prepare_counts_t *counts);
/* Clears the line. */
void prepare_progress_end(prepare_progress_t *p);
/* Seconds since begin. */
double prepare_progress_seconds(const prepare_progress_t *p);

#endif
