/* watch/run_state.h - what is known of a run at this moment, as one struct: for whoever asks from
 * another shell (status.json), and for whoever collects figures.
 *
 * Filled from what training tells its observer. Times are of CLOCK_MONOTONIC where their name ends
 * in _at, of CLOCK_REALTIME where it ends in _wall: nanoseconds both; 0: it has not happened. */
#ifndef WATCH_RUN_STATE_H
#define WATCH_RUN_STATE_H

#include <base/text.h>
#include <checkpoint/folder_lock.h>
#include <format/json.h>
#include <train/train.h>

enum { STATE_TEXT = 128, STATE_PATH = 512 };

typedef struct run_save { /* what became of one */
    uint64_t step, wall;
    char text[STATE_PATH]; /* its path, or why it failed */
} run_save_t;

typedef struct run_state {
    /* Of the run, told once. */
    char name[STATE_TEXT], host[STATE_TEXT], model[STATE_TEXT];
    uint64_t pid, started_wall, started_at;
    uint64_t steps, first_step, save_every, tokens_per_step, parameters;
    uint64_t restarts;               /* how often the training was gone on with in this folder */
    uint64_t launcher_restarts;      /* of these, by the launcher of this run */
    char restart_reason[STATE_PATH]; /* of the last of those */
    uint32_t ranks, sites;
    double flops_per_step, peak_flops;

    /* The last step, and sums over those of this run. */
    step_report_t last;    /* last.step: made in all */
    uint64_t step_at;      /* when it was told; before the first: when the run began */
    double seconds_a_step; /* running mean over some twenty steps; 0: none was made yet */
    double part_sum[STEP_PARTS], exposed_sum[STEP_SCOPES], least_exposed_sum, seconds_sum;
    uint64_t refused; /* steps of this run that were not applied */

    evaluation_report_t evaluation;
    uint64_t evaluation_wall;
    run_save_t saved, failed; /* the last of either kind */
    run_save_t asked_failed;  /* the last that somebody has asked for, and that failed */
    uint64_t saves, failures;
    bool has_room; /* known is what was left where checkpoints lie, as save_report_t says */
    uint64_t checkpoint_free_bytes;
    run_save_t kept; /* the last snapshot in memory; its text is "" */
    uint64_t snapshots, snapshot_failures;
    uint64_t asked_step; /* the last step of which somebody asked for a checkpoint */

    bool ended;
    lh_status_t end_status;
    uint64_t end_wall;
    char end_reason[STATE_PATH]; /* "" where it ended well, or as it was asked to */
} run_state_t;

void run_state_begin(run_state_t *s, const run_start_t *start);
void run_state_step(run_state_t *s, const step_report_t *step);
void run_state_evaluated(run_state_t *s, const evaluation_report_t *e);
void run_state_saved(run_state_t *s, const save_report_t *save);
void run_state_end(run_state_t *s, const run_end_t *end);

/* A rank that the others wait for. */
typedef struct late_rank {
    uint32_t rank;
    char name[160]; /* "rank 3 on osaka/o1" */
    char why[96];
} late_rank_t;

/* Who is late, by the heartbeats of all ranks (control_member). Allocated once; rank 0 alone. */
enum { LATE_SHOWN = 8 };
typedef struct lateness {
    const control_t *control; /* NULL: a job of one rank, where nobody is late */
    const world_t *world;
    uint64_t *step, *since;          /* [ranks] in which step each was seen, and since when */
    uint64_t *waited;                /* [ranks] that each had waited at window_at */
    double *share;                   /* [ranks] of the window before, that it waited */
    uint64_t window_at, window_step; /* when it began; the furthest step then */
    bool known;                      /* share is filled */
    late_rank_t late[LATE_SHOWN];
    uint32_t count, shown; /* how many are late; of these are in late[] */
} lateness_t;

/* Borrows both, for as long as run_lateness_look is called. */
lh_status_t run_lateness_new(const control_t *control, const world_t *world,
                             lateness_t *out) LH_MUST_CHECK;
/* Looks at all ranks now. Called about once a second, by one thread. */
void run_lateness_look(lateness_t *l);
void run_lateness_free(lateness_t *l);

/* The state as the text of status.json, from the start of `out`, which keeps its memory. */
void run_state_write(const run_state_t *s, const lateness_t *late, text_t *out);

/* ---- a run seen from outside ----------------------------------------------------------------- */

/* By its folder, whoever runs it and wherever. */
typedef struct run_look {
    uint32_t held;              /* FOLDER_*: whether a process has the folder */
    char holder[FOLDER_HOLDER]; /* what that one says of itself; "" */
    json_document_t *status;    /* status.json; NULL: nobody has trained there yet */
    double age_s;               /* since it was written, by this machine's clock */
} run_look_t;

/* Reads, and changes nothing. Refused: a folder that is missing, or in which no run is seen at work and
 * status.json is missing or can't be read. Free with run_look_free, not after a failure. */
lh_status_t run_look(const char *folder, run_look_t *out) LH_MUST_CHECK;
void run_look_free(run_look_t *look);

/* A number of status.json; 0 where it has none. */
uint64_t run_look_count(const run_look_t *look, const char *key);
/* "process 4711 on t1 since ...: longhaul run job.ini", or "a process" where it is not known. */
const char *run_look_holder(const run_look_t *look);
/* A training is under way, as far as status.json says: it has begun and not ended. */
bool run_look_trains(const run_look_t *look);
/* It trains, and where no lock tells, status.json is not older than a run's that trains: an end at once writes none,
 * nor does a kill. */
bool run_look_is_heard(const run_look_t *look);

#endif
