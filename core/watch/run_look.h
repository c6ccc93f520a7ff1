/* watch/run_look.h - a run as it is seen from outside: by its folder, whoever runs it and wherever. */
#ifndef WATCH_RUN_LOOK_H
#define WATCH_RUN_LOOK_H

#include <checkpoint/checkpoint_folder.h>
#include <format/json.h>

typedef struct run_look {
    uint32_t held;              /* FOLDER_*: whether a process has the folder */
    char holder[FOLDER_HOLDER]; /* what that one says of itself; "" */
    json_document_t *status;    /* status.json; NULL: nobody has trained there yet */
    double age_s;               /* since it was written, by this machine's clock */
} run_look_t;

/* Reads, and changes nothing. Refused: a folder that is missing, or in which neither a run is at work
 * nor has trained. Free with run_look_free, not after a failure. */
lh_status_t run_look(const char *folder, run_look_t *out) LH_MUST_CHECK;
void run_look_free(run_look_t *look);

/* A number of status.json; 0 where it has none. */
uint64_t run_look_count(const run_look_t *look, const char *key);
/* "process 4711 on t1 since ...: longhaul run job.ini", or "a process" where it is not known. */
const char *run_look_holder(const run_look_t *look);
/* A training is under way, as far as status.json says: it has begun and not ended. */
bool run_look_trains(const run_look_t *look);

#endif
