/* config/job_check.h - what a job's values must be beyond the ranges of their option rows. */
#ifndef CONFIG_JOB_CHECK_H
#define CONFIG_JOB_CHECK_H

#include <sys/stat.h>

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

/* ---- the files that a job writes over ---- */

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

/* Those of all stages, whether the job names them or not. *out is overwritten. */
lh_status_t job_outputs_find(const job_t *job, job_outputs_t *out) LH_MUST_CHECK;
/* The one that is this very file, under whatever name; or NULL. */
const job_output_t *job_outputs_at(const job_outputs_t *outputs, const struct stat *file);
void job_outputs_free(job_outputs_t *outputs);

/* Shortens a path in place as the system would read it if folders that are not there yet were:
 * "a/./b//c" is "a/b/c", "missing/../a" is "a". */
void job_path_drop_missing(char *path);

#endif
