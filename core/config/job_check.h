/* config/job_check.h - what a job's values must be beyond the ranges of their option rows.
 *
 * Everything here needs the parsed job and at most a look at which files exist. What needs a
 * plugin, a device or the contents of data is checked by `longhaul check` (cli/check.h). */
#ifndef CONFIG_JOB_CHECK_H
#define CONFIG_JOB_CHECK_H

#include <config/job.h>

/* [train] micro_batch gets its default here. Before paths are made absolute, so that sentences
 * repeat what was typed. */
lh_status_t job_check(job_t *job) LH_MUST_CHECK;
/* Where the job writes, once paths are absolute. */
lh_status_t job_check_written(const job_t *job) LH_MUST_CHECK;

/* Whether a text that should name a key's file is a key itself, in one of the ways in which people
 * write the bytes of a key: hexadecimal, alone or with colons, behind 0x or ./, in quotes, as the
 * last name of a path; base64 of 32 bytes or more. folder: against which a path is taken. A name
 * with a dot in it ("job.key") is no key, nor is that of a file that is there, unless it is
 * hexadecimal: a key that was pasted once has made such a file. */
bool job_pasted_key(const char *text, const char *folder);

#endif
