/* launch/launch_state.h - what a launcher and a rank share: the memory in which a rank tells what it
 * is doing and why it ended, and what is asked of both. */
#ifndef LAUNCH_LAUNCH_STATE_H
#define LAUNCH_LAUNCH_STATE_H

#include <launch/launch_how.h>
#include <launch/launch_place.h>

enum { BOARD_WORDS = 1900, LAUNCH_HOST = 64 };

/* Memory that a launcher shares with the ranks that it started: a row each. */
typedef struct board_row {
    progress_word_t word;       /* what the rank is doing */
    _Atomic uint32_t began;     /* its training has, and train.log is open */
    _Atomic uint32_t met;       /* it has met the others: who is lost is told to it */
    _Atomic uint32_t closed;    /* it has come to its end; else exit code 0 is no success */
    _Atomic uint32_t has_words; /* what follows is written before it */
    bool died;                  /* it says no goodbye: others take it for lost */
    int32_t code;
    char words[BOARD_WORDS];
} board_row_t;

struct launch {
    launch_how_t how;
    launch_place_t place;
    char host[LAUNCH_HOST]; /* of this machine: --host, or its own name */
    bool starts; /* nobody has started the ranks that the INI asks for: this process does */
    bool leads;
    bool skip;        /* the stage at hand need not run: the others are told */
    bool waits;       /* stages before this one run on rank 0's machine      */
    bool quiet;       /* another rank prints why the job ended               */
    bool logs;        /* rank-N.log is open                                  */
    bool began;       /* a training, here or, of a launcher, in its rank 0   */
    board_row_t *row; /* of this rank, or NULL */
    /* Where this process is a rank of several, between meeting and goodbye. */
    control_t *control;
    world_t *world;
};

/* Whether [site.*] hosts means this machine. asked: the machine was named by --host. */
bool state_is_here(const launch_t *l, const char *host, bool asked);
/* Nanoseconds that a rank waits for the others to come. */
uint64_t state_patience(const launch_t *l);
lh_status_t state_map_board(int fd, uint32_t rows, board_row_t **out) LH_MUST_CHECK;
/* Writes into the row of a rank why it ends: the first words count. */
void state_write_row(board_row_t *row, int code, bool died, const char *sentence);
/* As launch_note_end. */
void state_note_end(const launch_t *l, const char *sentence);
/* As launch_last_words; died: as launch_died. */
bool state_say_last(const launch_t *l, int code, bool died, const char *sentence);

#endif
