/* launch/launch_place.h - a rank's place as whoever started it says: the environment of a launcher of
 * ours, of torchrun, Open MPI, PMIx or Slurm. */
#ifndef LAUNCH_LAUNCH_PLACE_H
#define LAUNCH_LAUNCH_PLACE_H

#include <config/job.h>

enum { PLACE_ADDRESS = 256, PLACE_MEETING = 96 };
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
    bool skip; /* this rank leads, and nothing is to be done: it tells the others */
    int board, secret, listener; /* inherited descriptors; listener may be -1 */
    uint32_t row;                /* of the board */
} launch_place_t;

/* Refuses what contradicts itself or the INI, with both values. */
lh_status_t place_find(const job_t *job, launch_place_t *out) LH_MUST_CHECK;
/* The value of PLACE_OURS for a rank that is started. */
void place_write(const launch_place_t *p, text_t *out);

#endif
