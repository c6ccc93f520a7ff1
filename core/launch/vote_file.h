/* launch/vote_file.h - what a machine of a job remembers of meetings (config/members.h, member_record_t)
 * in a file of the job's folder, for the next launcher there.
 *
 * A vote that is given twice lets two groups go on. So what is read counts only where nobody else can
 * have it: the file is locked as long as its launcher lives, and it is of this very start of the system,
 * as a machine of the same name that was started elsewhere, on the same folder, may be another one
 * beside the first. After a start of the system, and without --resume, nothing is remembered. */
#ifndef LAUNCH_VOTE_FILE_H
#define LAUNCH_VOTE_FILE_H

#include <launch/launch_state.h>

typedef struct vote_file {
    int fd;                /* locked; -1: none */
    char *path;            /* NULL: nothing is remembered */
    char key[SHA256_TEXT]; /* of the hosts of the job */
} vote_file_t;

/* host: the machine's name in the INI. resume: takes epoch, layout, met, met_epoch and tried of *place
 * from the file, where it is there and counts; else they stay, and a file that is there is removed. A
 * file that is damaged, or another's, is a warning. */
lh_status_t vote_file_open(const job_t *job, const char *host, bool resume, launch_place_t *place,
                           vote_file_t *out) LH_MUST_CHECK;
/* Before anybody acts by it. Where it can't be written what stood there before is made void, and a
 * warning says that; a failure: not even that could be done, and nothing may go on. */
lh_status_t vote_file_write(vote_file_t *v, const launch_place_t *place) LH_MUST_CHECK;
/* done: the job has come to its end, and nothing is left to remember. */
void vote_file_close(vote_file_t *v, bool done);

#endif
