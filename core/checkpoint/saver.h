/* checkpoint/saver.h - the process that saves, alone or with those of other ranks, another one in
 * reserve, and what passes between them and the trainer.
 *
 * Both are forked before the trainer has threads, plugins or devices, and each has a socket to the
 * trainer. Only the one that was asked for a save writes; the reserve does nothing. When the saver
 * dies or is killed, the trainer turns to the reserve, which forks the next reserve: a process that
 * never had a thread can do that safely at any time. The end of a process is the end of its socket.
 *
 * A process and not a thread: a file system that hangs holds a thread for ever, and with it the
 * trainer's exit; and a trainer that is killed takes its threads along, while a save of a process
 * goes on to its commit.
 *
 * A save is described by structs in memory that all of them share at one address, so that pointers
 * in it are pointers everywhere; the tensors' bytes lie in the arena. */
#ifndef CHECKPOINT_SAVER_H
#define CHECKPOINT_SAVER_H

#include <sys/types.h>

#include <checkpoint/saver_share.h>

/* What a saver knows from its fork on. The trainer's strings: each process has its copy. */
/* What a saver without a trainer gets beyond its deadline, and the others' shares beyond the time of its own. */
enum { SAVER_ORPHAN_MS = 1000 };

typedef struct saver_how {
    const char *folder;
    checkpoint_keep_t keep;
    uint64_t shard_bytes;
    uint32_t rank, ranks; /* ranks > 1: each saves what it owns: saver_share.h */
    bool leads;           /* it commits: of several ranks one in each folder */
    bool apart;           /* see saver_share_t */
    uint64_t deadline_ns;
    const save_job_t *job;
    int arena_fd;
} saver_how_t;

/* The trainer's view of one. */
typedef struct saver {
    int socket; /* -1: there is none */
    pid_t pid;  /* 0: it has not told yet, which it does first of all */
    bool child; /* of the trainer, and so to be waited for */
} saver_t;

/* Requests of the trainer, a number each. SAVE, COMMIT and DESCRIBE are answered. SAVE is a whole
 * checkpoint where a rank is alone, else its share; COMMIT and ABANDON are for rank 0 of several.
 * DESCRIBE: the snapshot stays in memory (memory_image.h). FORK and LOCK bring descriptors. */
enum { SAVER_SAVE = 1, SAVER_COMMIT, SAVER_ABANDON, SAVER_FORK, SAVER_LOCK, SAVER_DESCRIBE };

/* One message of a socket that keeps messages whole. */
typedef struct saver_answer {
    pid_t pid; /* > 0: a new saver says who it is, and no more */
    lh_status_t status;
    bool goes_on;  /* it is committed; older ones go before the answer that ends the save */
    bool has_room; /* it knows what is left where checkpoints lie: who commits does */
    uint64_t free_bytes;
    char self[SHA256_TEXT]; /* of the manifest */
    char reason[512];
} saver_answer_t;

/* Forks one; `before` is the saver whose reserve it is, NULL: none. Before the trainer has a
 * thread: a child of a process with threads may call little, and this one lives as long as the run.
 */
lh_status_t saver_start(const saver_how_t *how, const saver_t *before, saver_t *out) LH_MUST_CHECK;
/* From now on it holds the folder's lock, too, as long as it lives: the descriptors travel to it.
 * folder_fd may be -1. A saver that is gone hears nothing. */
void saver_lock(const saver_t *s, int lock_fd, int folder_fd);
/* A new reserve, forked by the saver s; out->socket is -1 where that can't be. */
void saver_fork(const saver_t *s, saver_t *out);
/* False: it is not there any more. */
bool saver_ask(const saver_t *s, uint32_t task);
bool saver_gone(const saver_t *s);
/* Waits at most so long until a child has ended whose socket has, and reaps it; *how is as waitpid tells it.
 * False: it is no child, or it has not ended: its socket is closed before files that a file system may hold. */
bool saver_reap(saver_t *s, int timeout_ms, int *how);
/* The trainer's end of it is closed; the process ends once it has done what it does. */
void saver_leave(saver_t *s);
/* As saver_leave, and waits until the process has ended: for most_ns, then it is killed; once its socket has ended, for a
 * second at most. */
void saver_end(saver_t *s, uint64_t most_ns);

#endif
