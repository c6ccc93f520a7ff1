/* config/job_check.h - what a job's values must be beyond the ranges of their option rows. */
#ifndef CONFIG_JOB_CHECK_H
#define CONFIG_JOB_CHECK_H

#include <config/job.h>

enum { JOB_WHERE_BYTES = 600 };

/* File and line of a key, or the INI's path where it is not set. */
void job_where(const job_t *job, const char *section, const char *key, char out[JOB_WHERE_BYTES]);

/* The sentence begins with where the key stands. */
#define JOB_REFUSE(job, section, key, fmt, ...)                                           \
    do {                                                                                  \
        char where_[JOB_WHERE_BYTES];                                                     \
        job_where(job, section, key, where_);                                             \
        return fail(LH_INVALID, "%s: %s = " fmt, where_, key __VA_OPT__(, ) __VA_ARGS__); \
    } while (0)

/* [train] micro_batch gets its default here. */
lh_status_t job_check(job_t *job) LH_MUST_CHECK;
/* Where the job writes, once paths are absolute. */
lh_status_t job_check_written(const job_t *job) LH_MUST_CHECK;

#endif
