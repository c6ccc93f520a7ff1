/* cli/launch_state.h - what launch.c and launch_start.c share. */
#ifndef CLI_LAUNCH_STATE_H
#define CLI_LAUNCH_STATE_H

#include <cli/launch.h>
#include <cli/launch_place.h>

enum { BOARD_WORDS = 1900, LAUNCH_HOST = 64 };

/* Memory that a launcher shares with the ranks that it started: a row each. */
typedef struct board_row {
    progress_word_t word;       /* what the rank is doing */
    _Atomic uint32_t met;       /* it has met the others: who is lost is told to it */
    _Atomic uint32_t has_words; /* what follows is written before it */
    int32_t code;
    char words[BOARD_WORDS];
} board_row_t;

struct launch {
    launch_place_t place;
    char host[LAUNCH_HOST]; /* of this machine: --host, or its own name */
    bool starts; /* nobody has started the ranks that the INI asks for: this process does */
    bool leads;
    bool skip;        /* the stage at hand need not run: the others are told */
    bool waits;       /* stages before this one run on rank 0's machine      */
    bool quiet;       /* another rank prints why the job ended               */
    bool logs;        /* rank-N.log is open                                  */
    board_row_t *row; /* of this rank, or NULL */
    secret_t *secret;
};

/* The ranks of this machine: starts them, watches them, ends them. Returns an exit code or a
 * negative status. */
int launch_start(cli_t *cli, const char *command);
/* Whether [site.*] hosts means this machine. */
bool launch_is_here(const launch_t *l, const char *host, bool asked);
uint64_t launch_patience(const cli_t *cli);
lh_status_t launch_map_board(int fd, uint32_t rows, board_row_t **out) LH_MUST_CHECK;

#endif
