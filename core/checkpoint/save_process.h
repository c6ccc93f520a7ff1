/* checkpoint/save_process.h - the processes behind writer.h and what passes between them. */
#ifndef CHECKPOINT_SAVE_PROCESS_H
#define CHECKPOINT_SAVE_PROCESS_H

#include <stdnoreturn.h>

#include <base/text.h>
#include <checkpoint/manifest.h>

typedef struct writer_shared { /* inherited by fork */
    const char *folder;
    uint64_t keep, shard_bytes;
    uint32_t rank, ranks; /* ranks > 1: rank_save.h       */
    uint64_t deadline_ns;
    int arena_fd; /* the tensors, at the offsets that the job names */
    int job_fd;   /* the job's text                                */
    int lock_fd;  /* held as long as one of the processes lives    */
} writer_shared_t;

typedef struct writer_request {
    uint64_t job_bytes, arena_bytes;
    uint64_t session; /* rank_save.h            */
    uint32_t attempt; /* which save, from 1     */
    bool kill;        /* the helper that is at work */
} writer_request_t;

typedef struct writer_answer {
    lh_status_t status;
    char self[SHA256_TEXT]; /* of the manifest */
    char reason[512];
} writer_answer_t;

/* A job in the words of a manifest: each tensor is a part whose file is the place in shared memory.
 */
lh_status_t writer_job_text(text_t *out, const checkpoint_meta_t *meta, const char *parent,
                            const checkpoint_tensor_t *tensors, const uint64_t *offset,
                            uint32_t count) LH_MUST_CHECK;

/* The keeper's life; ends the process when the trainer's end of the socket closes. */
noreturn void writer_keep(const writer_shared_t *shared, int socket);

#endif
