/* check.h - what longhaul-check is made of: checks with a name and a sentence, and how one says
 * that something is not so. */
#ifndef CHECK_H
#define CHECK_H

#include <base/status.h>

#include "subject.h"

enum {
    RESULT_PASS,
    RESULT_WARN, /* well, but its author should look */
    RESULT_SKIP,
    RESULT_FAIL,
    RESULT_CRASH,
    RESULT_TIMEOUT,
    RESULTS
};

/* check_t.kinds */
#define CHECK_EVERY_KIND (~0u)
#define CHECK_KIND(k) (1u << LH_KIND_##k)
#define CHECK_SPEC (1u << 31) /* an architecture in the INI, which is no file of code */
#define CHECK_EVERY_PLUGIN (CHECK_EVERY_KIND & ~CHECK_SPEC)

typedef struct check {
    const char *name;          /* "model.gradients"                                            */
    const char *sentence;      /* what holds where it passes                                   */
    uint32_t kinds;            /* CHECK_KIND() of those that it is for                          */
    bool file;                 /* looks at the file alone; the others need the plugin loaded     */
    uint32_t seconds;          /* that it may take in all                                     */
    void (*run)(subject_t *s); /* returns: it holds */
    const struct fact *fact;   /* of transport_rig.h; becomes s->fact */
} check_t;

/* Ended by a row without a name. */
extern const check_t checks_of_file[], checks_of_specs[], checks_of_tables[], checks_of_life[],
    checks_of_models[], checks_of_devices[], checks_of_transports[], checks_of_optimizers[],
    checks_of_ops[], checks_of_rules[];

/* End the check, from whatever process that it has started. */
void check_fault(const char *fmt, ...) LH_PRINTF(1, 2) __attribute__((noreturn));
void check_skip(const char *fmt, ...) LH_PRINTF(1, 2) __attribute__((noreturn));
void check_warn(const char *fmt, ...) LH_PRINTF(1, 2) __attribute__((noreturn));

/* Words that stand behind the sentence of every later fault of this check: which instance it was.
 * NULL: none. */
void check_about(const char *text);
/* Which of the plugin's functions is called now, "record() of block 1", for the sentence of a check
 * that crashes or hangs in it. NULL: none. */
void check_calls(const char *function);
/* Something came back from the plugin: a check in which nothing does for CHECK_HANGS_SECONDS hangs.
 * check_ok calls it. */
void check_alive(void);
enum { CHECK_HANGS_SECONDS = 10 };

/* What the host said no to ends the check with its sentence. */
void check_ok(lh_status_t status, const char *what);
/* Memory of the kit's own; a check without it ends. */
void *check_memory(size_t count, size_t size);

/* What a check came to. */
typedef struct outcome {
    uint32_t result; /* RESULT_* */
    char sentence[2048];
    char said[600]; /* the end of what it printed, where it went wrong */
    double seconds;
} outcome_t;

const char *result_text(uint32_t result); /* "pass" */
/* in_process: no child, for a debugger; what crashes ends the program then. */
void check_run(const check_t *c, subject_t *s, bool in_process, outcome_t *out);

#endif
