/* watch/metrics.h - metrics.jsonl: a line per step, evaluation and save, of links and memory once, and of
 * a link that is tuned anew, for scripts; and the same lines read back for the report. Each has its
 * "step" and, as "time", the time of day when it was written (text_time). */
#ifndef WATCH_METRICS_H
#define WATCH_METRICS_H

#include <base/file.h>
#include <base/text.h>
#include <train/train.h>

/* An open file with what has become of it. Zero but for the descriptor before metrics_open. */
typedef struct metrics {
    file_records_t file;
    char path[512];
    text_t line;    /* the one at hand */
    bool gone;      /* the file has lost its name, which is told once */
    uint32_t ranks; /* above 1, steps tell what they waited for; set by who opens */
} metrics_t;

/* Opens folder/metrics.jsonl: a fresh one when the run's first_step is 0, else the old one without the
 * lines of steps after first_step, which a crash left behind and which will be made again, as will the
 * evaluation behind that step where the run begins with it. Where a launcher has started this run before
 * its lines of restarts stay in any case. */
lh_status_t metrics_open(metrics_t *m, const char *folder, const run_start_t *start) LH_MUST_CHECK;
/* {"step": N, "time": T, "restart": {"count": 2, "reason": "rank 3 on ...", "memory_step": N}}, the last
 * only where that step was in memory alone, where the run was
 * started again by its launcher: step is the one that it goes on after. */
void metrics_restart(metrics_t *m, const run_start_t *start);
/* The links between sites, where some are measured: as links.json has them. */
void metrics_links(metrics_t *m, const run_start_t *start);
/* {"step": N, "time": T, "retuned": {"sites": [...], "why": ["rate", "round_trip", "loss"],
 * "bytes_per_second": [there, back], "round_trip_ns": N, "loss": [...], "before": {the last three},
 * "tuned": "...", "text": "..."}}: step is the first with these parameters. */
void metrics_retuned(metrics_t *m, const link_change_t *change);
void metrics_step(metrics_t *m, const step_report_t *step);
void metrics_evaluated(metrics_t *m, const evaluation_report_t *evaluation);
void metrics_saved(metrics_t *m, const save_report_t *save);
/* {"step": N, "time": T, "memory": [{"rank": 0, "planned": {...}, "measured": {...}, ...}, ...]} */
lh_status_t metrics_memory(metrics_t *m, const run_end_t *end) LH_MUST_CHECK;
/* Says how many lines are missing, if any. */
void metrics_close(metrics_t *m);

/* A line that was read back; what it did not have is NAN. */
typedef struct metrics_point {
    uint64_t step;
    double loss, learning_rate, gradient_norm, tokens_per_s, seconds;
    double tokens; /* since step 1 */
    double part_s[STEP_PARTS], exposed_s[STEP_SCOPES];
    bool evaluation; /* then only step and loss mean anything */
} metrics_point_t;

/* Reads a metrics.jsonl back; unknown lines are skipped, a last line cut off too. The caller frees
 * *out with mem_free. A file of any size up to a gigabyte; it is read whole. */
lh_status_t metrics_read(const char *folder, metrics_point_t **out, size_t *count) LH_MUST_CHECK;

/* What the lines of links that were tuned anew say ("text"), each with a new line behind it, in the order
 * of the file. */
lh_status_t metrics_read_changes(const char *folder, text_t *out) LH_MUST_CHECK;

/* A line of a restart. */
typedef struct metrics_again {
    char time[TEXT_TIME];
    uint64_t step;    /* that it went on after */
    bool memory;      /* which was in memory alone */
    char reason[256]; /* as much of it as fits */
} metrics_again_t;

typedef struct metrics_restarts {
    metrics_again_t *rows; /* in the order of the file */
    size_t count, capacity;
} metrics_restarts_t;

/* The caller frees out->rows with mem_free, also where it fails. */
lh_status_t metrics_read_restarts(const char *folder, metrics_restarts_t *out) LH_MUST_CHECK;

extern const char *const step_part_names[STEP_PARTS];
extern const char *const step_scope_names[STEP_SCOPES]; /* by LH_LINK_*; [0] is NULL */

#endif
