/* cli/pipeline.h - which stages of a pipeline are done: folder/stages.json holds, per stage, a
 * digest of all that went into it. */
#ifndef CLI_PIPELINE_H
#define CLI_PIPELINE_H

#include <base/digest.h>
#include <config/job.h>

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
