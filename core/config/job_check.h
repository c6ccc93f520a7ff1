/* config/job_check.h - what a job's values must be beyond the ranges of their option rows.
 *
 * Everything here needs the parsed job and at most a look at which files exist. What needs a
 * plugin, a device or the contents of data is checked by `longhaul check` (cli/check.h). */
#ifndef CONFIG_JOB_CHECK_H
#define CONFIG_JOB_CHECK_H

#include <sys/stat.h>

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

/* ---- the files that a job writes over ---- */

/* A file is known by device and inode, so that no link or other spelling of its path hides it. */
typedef struct job_output {
    dev_t device;
    ino_t inode;
    const char *by; /* the stage that writes it */
    char *path;
} job_output_t;

typedef struct job_outputs {
    job_output_t *rows;
    uint32_t count;
    size_t capacity;
    bool ran; /* a stage of the pipeline has ended well: they are its own and not a stranger's */
} job_outputs_t;

/* Those of all stages, whether the job names them or not. *out is overwritten. Only files that
 * exist now: one that is yet to be made can't be an input. */
lh_status_t job_outputs_find(const job_t *job, job_outputs_t *out) LH_MUST_CHECK;
/* The one that is this very file, now and under whatever name; or NULL. */
const job_output_t *job_outputs_at(const job_outputs_t *outputs, const struct stat *file);
void job_outputs_free(job_outputs_t *outputs);

/* Shortens a path in place as the system would read it if folders that are not there yet were:
 * "a/./b//c" is "a/b/c", "missing/../a" is "a". */
void job_path_drop_missing(char *path);

#endif
