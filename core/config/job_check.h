/* config/job_check.h - what a job's values must be beyond the ranges of their option rows. */
#ifndef CONFIG_JOB_CHECK_H
#define CONFIG_JOB_CHECK_H

#include <config/job.h>

/* [train] micro_batch gets its default here. */
lh_status_t job_check(job_t *job) LH_MUST_CHECK;
/* Where the job writes, once paths are absolute. */
lh_status_t job_check_written(const job_t *job) LH_MUST_CHECK;

/* Whether a text that should name a key's file is a key itself: bytes of a key as people write them: hexadecimal, alone or with colons, behind 0x or ./, in
 * quotes, as the last name of a path; base64 of 32 bytes or more. folder: against which a path is
 * taken. A name with a dot in it ("job.key") is none, nor is one of a file that is there, unless it
 * is hexadecimal: a key that was pasted once has made such a file. */
bool job_pasted_key(const char *text, const char *folder);

#endif
