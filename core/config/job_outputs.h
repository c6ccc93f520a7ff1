/* config/job_outputs.h - the files that a job writes over, as they stand now. What it reads is none
 * of them. */
#ifndef CONFIG_JOB_OUTPUTS_H
#define CONFIG_JOB_OUTPUTS_H

#include <sys/stat.h>

#include <config/job.h>

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
void path_drop_missing(char *path);

#endif
