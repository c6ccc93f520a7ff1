/* session/pipeline.h - whose a pipeline's folder is, and which of its stages are done:
 * folder/stages.json holds, per stage, a digest of all that went into it. */
#ifndef SESSION_PIPELINE_H
#define SESSION_PIPELINE_H

#include <base/digest.h>
#include <checkpoint/folder_lock.h>
#include <config/job.h>

typedef struct pipeline_hold {
    bool holds;
    folder_lock_t lock;
} pipeline_hold_t;

/* Takes the pipeline's folder for this process, until pipeline_release: before anything in it is
 * changed, as another run may read there what this one would write anew. Refused at once where
 * another has it, with who that is: command stands in that sentence. Does nothing where it is held
 * already. */
lh_status_t pipeline_hold(pipeline_hold_t *hold, const job_t *job,
                          const char *command) LH_MUST_CHECK;
void pipeline_release(pipeline_hold_t *hold, const job_t *job);

/* Digest of a stage: the sections it reads as they were typed, the size and time of its input
 * files, the program's version, and the digests of the stages before it. */
lh_status_t stage_digest(const job_t *job, uint32_t stage, char out[SHA256_TEXT]) LH_MUST_CHECK;

/* True if the stage ended well with this digest and what it made is still there. */
bool stage_is_done(const job_t *job, uint32_t stage, const char *digest);
/* Before a stage starts. Writes nothing where nothing is remembered. */
lh_status_t stage_forget(const job_t *job, uint32_t stage) LH_MUST_CHECK;
/* Remembers that it ended well. */
lh_status_t stage_mark(const job_t *job, uint32_t stage, const char *digest) LH_MUST_CHECK;

#endif
