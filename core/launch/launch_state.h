/* launch/launch_state.h - what the parts of a launch share: what the command line told it, the
 * place that a starter gave this process, and the board, memory in which each rank tells its
 * launcher what it is doing and why it ended.
 *
 * It lies under launch.h, which commands include: the launcher (launch_start.h) and a rank
 * (launch_rank.h) are chosen by launch.c and both need what is here. */
#ifndef LAUNCH_LAUNCH_STATE_H
#define LAUNCH_LAUNCH_STATE_H

#include <sched.h>
#include <signal.h>
#include <stdnoreturn.h>
#include <sys/types.h>

#include <config/job.h>
#include <config/members.h>
#include <control/control.h>
#include <control/control_state.h>
#include <plugin/registry.h>

typedef struct launch launch_t;

/* From the command line. All of it outlives the launch. */
typedef struct launch_how {
    const job_t *job;          /* NULL: the command has none, and this process is alone        */
    bool ranks;                /* the command may be one of several ranks                       */
    bool votes;                /* what its machines take part in is remembered (vote_file.h)    */
    bool resume;               /* it goes on with a run: what was remembered before counts      */
    const char *machine;       /* which of [site.*] hosts this machine is; NULL: its own name   */
    host_t *host;              /* plugins ask it for the world that a rank has met              */
    const registry_t *plugins; /* loaded ones are compared between ranks                  */
    /* What a rank checks, and loads, before it meets the others. */
    lh_status_t (*check)(void *context);
    /* Whether this rank could compute: asked before it meets the others of a job whose machines may change
     * (members.h), where its launcher begins with --resume, or a rank of this machine was what ended the ranks
     * before. NULL: nothing is asked. */
    lh_status_t (*ready)(void *context);
    /* Of a launcher, between its ranks: rank 0 is here from now on, or not any more. NULL: nobody
     * need know, as of a command that does not train. */
    void (*leads)(void *context, bool here);
    void *context;
} launch_how_t;

/* ---- the place of this process --------------------------------------------------------------- */

enum { PLACE_ADDRESS = 256, PLACE_MEETING = 96 };
/* The variable by which a launcher of ours tells a rank its place. */
#define PLACE_OURS "LONGHAUL_LAUNCH"

typedef struct launch_place {
    const char *by; /* "torchrun"; NULL: nobody started this process as a rank */
    uint32_t rank, size;
    uint32_t here;               /* ranks on this machine, as the starter says; 0: it does not */
    char address[PLACE_ADDRESS]; /* of rank 0; "": not said                            */
    uint16_t port;               /* 0: not said                                        */
    char meeting[PLACE_MEETING]; /* names this start of the job: the same on all its ranks, another
                                    one the next time; "": address and port are known */
    /* by a launcher of ours */
    bool ours;
    bool skip;  /* this rank leads, and nothing is to be done: it tells the others */
    bool waits; /* stages before this one run on rank 0's machine */
    int board, secret, listener; /* inherited descriptors; listener may be -1 */
    int memory;     /* likewise: of this rank's snapshots, which outlive it; -1: there are none */
    uint32_t row;   /* of the board */
    uint32_t epoch; /* the least that this rank can be of; 1: its launcher has met nobody yet */
    /* Of what this launcher's ranks had found when they met the others last; 0: they have not. */
    uint64_t facts;
    /* Of a job with hosts: which of them take part, "": it has none; where the launcher's ranks have met
     * last, and were to meet after that (control_members_t). */
    char layout[MEMBERS_TEXT], met[MEMBERS_TEXT], tried[MEMBERS_TRIED];
    uint32_t machine, met_epoch;
    bool herald; /* it is no rank, and waits until its machine is to have some */
    bool elects; /* a herald of a machine that has ranks, but could not reach rank 0 */
    bool door;   /* no rank either: it stands where rank 0 will, while stages run (launch_door.h) */
} launch_place_t;

/* From the environment of a launcher of ours, of torchrun, Open MPI, PMIx or Slurm. Refuses what
 * contradicts itself or the INI, with both values. */
lh_status_t launch_place_find(const job_t *job, launch_place_t *out) LH_MUST_CHECK;
/* The value of PLACE_OURS for a rank that is started. */
void launch_place_write(const launch_place_t *p, text_t *out);

/* ---- a process that is started ---------------------------------------------------------------- */

/* A copy of the environment with room for one more variable and the NULL at the end: mem_free. */
lh_status_t launch_copy_environment(char ***out, uint32_t *count) LH_MUST_CHECK;
/* Between fork and exec: this process becomes a rank of `launcher`, or its door, and dies with it. mask: of
 * signals. processors: NULL: all. */
noreturn void launch_become(const launch_place_t *own, char *const *words, char *const *variables,
                            pid_t launcher, const sigset_t *mask, const cpu_set_t *processors);

/* ---- the board ------------------------------------------------------------------------------- */

enum { BOARD_WORDS = 1900, LAUNCH_HOST = 64, LEAVES = 1, LEAVES_SAVED };

/* A row of the board: one for each rank of this machine, mapped by the launcher and by that rank.
 * The rank alone writes it, the launcher alone reads it, also after the rank has died: so nothing
 * in it is under a lock that a dead process could hold. The first five are the other way round, but for
 * asked.heeds; all but asked are there before the rank is. To `ready` all ranks add. */
typedef struct board_row {
    bool follows;              /* launch_t.follows */
    uint32_t restarts;         /* how often this rank's training was started again before */
    char before[BOARD_WORDS];  /* why the ranks before this one ended; "": there were none */
    control_asked_t asked;     /* what the others are to hear from here */
    uint32_t asked_ready;      /* in the first row: ranks here that are to ask launch_how_t.ready */
    _Atomic uint32_t ready;    /* likewise: how many of them can compute */
    progress_word_t word;      /* what the rank is doing */
    _Atomic uint32_t began;    /* its training has, and train.log is open */
    uint64_t facts;            /* facts_digest (launch_rank.c); written before what follows */
    _Atomic uint32_t met;      /* the epoch in which it has met the others; 0: it has not */
    control_culprit_t culprit; /* whom the job's end was about */
    control_told_t told;       /* that all go on as others */
    _Atomic uint32_t leaves;   /* LEAVES*: it ended as some machine was told to leave */
    _Atomic uint32_t closed;   /* it has come to its end; else exit code 0 is no success */
    _Atomic uint32_t has_words; /* what follows is written before it */
    bool died;                  /* it says no goodbye: others take it for lost */
    int32_t code;               /* its exit code, as it knew it when it wrote the words */
    char words[BOARD_WORDS];    /* why it ends */
} board_row_t;

/* Of a rank: why it was started, where that was not the first time. */
typedef struct launch_again {
    uint32_t
        restarts; /* of its training by its launcher, with this one; 0: it is the first start */
    const char *reason; /* why the ranks before it ended; valid until launch_close */
} launch_again_t;

/* In a launcher, while stages before the ranks run: the process that keeps the door. */
typedef struct launch_door {
    pid_t pid; /* 0: there is none */
    board_row_t *row;
} launch_door_t;

struct launch {
    launch_how_t how;
    launch_place_t place;
    char host[LAUNCH_HOST]; /* of this machine: --host, or its own name */
    bool starts; /* nobody has started the ranks that the INI asks for: this process does */
    bool leads;
    bool skip;  /* the stage at hand need not run: the others are told */
    bool waits; /* stages before this one run on rank 0's machine      */
    bool quiet; /* another rank prints why the job ended               */
    bool logs;  /* rank-N.log is open                                  */
    bool began; /* a training, here or, of a launcher, in its rank 0   */
    bool meets; /* of a launcher: it starts ranks by now                */
    /* Likewise: another one has the folder, and leads. By what this machine remembers rank 0 may be here all
     * the same, until it hears of that. */
    bool follows;
    launch_again_t again;
    board_row_t *row; /* of this rank, or NULL */
    /* Of a launcher: the job's key, as it was when it was needed first. Whoever starts again has the
     * same. */
    secret_t *secret;
    launch_door_t door;
    /* Where this process is a rank of several, between meeting and goodbye. */
    control_t *control;
    world_t *world;
};

lh_status_t launch_map_board(int fd, uint32_t rows, board_row_t **out) LH_MUST_CHECK;
/* Writes into the row of a rank why it ends: the first words count. */
void launch_write_row(board_row_t *row, int code, bool died, const char *sentence);

/* Whether [site.*] hosts means this machine. asked: the machine was named by --host. */
bool launch_is_here(const launch_t *l, const char *host, bool asked);
/* How this machine's ranks reach rank 0 of the layout. */
const char *launch_address(const launch_t *l, const char *layout);
/* Nanoseconds that rank 0 waits for the others to come: [launch] join_timeout, or rejoin in an epoch
 * after the first; and that the others wait for rank 0. */
uint64_t launch_join_ns(const launch_t *l);
uint64_t launch_patience(const launch_t *l);

/* ---- why this process ends ------------------------------------------------------------------- */

/* Adds the sentence to train.log where the training of this process has begun, or an earlier one that its
 * ranks were to go on with. What is printed to stderr as well is printed by the caller. l may be NULL, here
 * and below. */
void launch_note_end(const launch_t *l, const char *sentence);
/* Likewise, of ranks that end and will be started again. */
void launch_note_restart(const launch_t *l, const char *sentence);
/* For who leads: lines go to train.log, too, while ranks meet to go on with a training, so that it says for
 * whom they wait. Until launch_log_close. -1: they don't. */
int launch_log_open(const launch_t *l);
void launch_log_close(int fd);
/* For the launcher, which prints one line for all. False: nobody listens, print it. */
bool launch_last_words(const launch_t *l, int code, const char *sentence);
/* As launch_last_words, of a process that ends at once, without a goodbye to the other ranks. */
bool launch_died(const launch_t *l, int code, const char *sentence);

#endif
