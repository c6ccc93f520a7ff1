/* launch/launch_members.h - a launcher's ranks, and which they are: those that the job's layout gives
 * this machine now (config/members.h), or a herald where it gives none. */
#ifndef LAUNCH_LAUNCH_MEMBERS_H
#define LAUNCH_LAUNCH_MEMBERS_H

#include <signal.h>

#include <launch/launch_state.h>
#include <launch/machine.h>
#include <launch/restart.h>
#include <launch/vote_file.h>

/* A rank that this launcher has started. The order is that of the board's rows. */
typedef struct started {
    uint32_t rank;
    const char *host, *site;
    pid_t pid; /* 0: it has ended */
    int pidfd, how;
    bool failed, killed; /* killed: by this launcher */
    uint64_t killed_at;  /* the first time */
    pid_t stuck;         /* its process, which can't be ended and was left behind; 0: none is */
    bool stopped;        /* it was sent the signal that asks for a stop */
    uint32_t machine;    /* members.h; 0 where the job has no hosts */
    int memory;          /* of its snapshots, for the ranks that start after it; -1: none */
} started_t;

enum {
    STARTER_GRACE_MS = 3000,  /* ranks end by themselves after the first has failed */
    STARTER_NOTICE_REST = 10, /* this part of [launch] notice is left for the end of what runs on */
    STARTER_STUCK = 64,       /* processes that can't be ended: so many are known at the most */
};

/* The launcher's state, on the stack of launch_start. */
typedef struct starter {
    launch_t *launch;
    char *const *words;   /* the command line of a rank */
    launch_place_t place; /* as each rank is told, but for its own numbers */
    /* [most] of them `count` now: which ranks are this machine's may change. `left` are alive. */
    started_t *ranks;
    uint32_t most, count, left;
    board_row_t *board; /* [most] */
    int signals;        /* signalfd */
    sigset_t before;
    uint32_t stops;    /* signals that ask to stop, but for SIGHUP */
    bool hung_up;      /* that came */
    bool own_end;      /* an end at once was asked for through the folder */
    bool late;         /* the first came when the ranks had ended, and asks nothing of them */
    int first_stop;    /* which signal came first  */
    int last_stop;     /* which but SIGHUP came last */
    uint64_t deadline; /* 0: none has failed      */
    uint64_t leave_by; /* this machine leaves, and its ranks by then; 0: it does not */
    bool job_stops;    /* as it leaves: `longhaul stop` was asked for behind that    */
    uint64_t end_by;   /* the job ends at once: ranks here that live then are killed */
    started_t *first;  /* that failed              */
    uint64_t ask_at;   /* a stop is told to other machines from then on; 0: none is */
    bool own_loss; /* ranks look at their devices: one of them ended those before, or --resume */
    bool tells;    /* ranks were started to tell others that this machine is to stop */
    machine_kills_t kills; /* before the first was started */
    restarts_t restarts;
    text_t ended;      /* why the ranks before ended, where these were started again */
    uint32_t regroups; /* starts again as others: with other machines */
    bool followed;     /* rank 0 was elsewhere before: training may have begun there */
    uint32_t vain;     /* so often a spare was to lead and the others did not come */
    vote_file_t votes; /* what of `place` is remembered where this process ends */
    char **variables;  /* the environment; the last but one is the rank's own */
    uint32_t variable_count;
    /* What ranks left at work, of this epoch or an earlier one, and can't be ended; 0: a free place. */
    pid_t stuck[STARTER_STUCK];
} starter_t;

/* Room for as many ranks as this machine can ever have, and those that it has now. */
lh_status_t starter_make_ranks(starter_t *s) LH_MUST_CHECK;
/* No other machine belongs to the job, now or later. */
bool starter_is_alone(const starter_t *s);
/* Of a machine that was told to leave: a machine that leaves by itself is one that is lost. */
bool starter_leaves_alone(const starter_t *s);
/* Whether what is asked of this machine is the whole job's. A machine without ranks takes nothing along. */
bool starter_is_asked_for_all(const starter_t *s);
/* What this machine remembers, of a launcher before this one too: before starter_make_ranks. */
lh_status_t starter_remember(starter_t *s) LH_MUST_CHECK;
/* In which epoch its ranks have met, from their board: again and again while they run. */
lh_status_t starter_note_met(starter_t *s) LH_MUST_CHECK;
/* All ranks have ended to go on as others, or a herald has ended: neither is a loss. Ranks are others from
 * here on. *status: where that can't be remembered, and nothing starts. */
bool starter_regroups(starter_t *s, lh_status_t *status);
/* Where rank 0 has told what the ranks of this machine are next: they are that. */
bool starter_follows(starter_t *s, lh_status_t *status);
/* Of the first rank that failed; the job's. */
int started_code(const started_t *r);

#endif
