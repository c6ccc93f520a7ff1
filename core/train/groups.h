/* train/groups.h - the parameter groups of a job: [optimizer], then every [group.NAME], and which
 * of them each parameter is in. Needs no device. */
#ifndef TRAIN_GROUPS_H
#define TRAIN_GROUPS_H

#include <config/job.h>
#include <parallel/update.h>

typedef struct groups {
    update_group_t *list; /* [optimizer], then [group.NAME] in order */
    double *rates;        /* factor on the learning rate */
    uint32_t count;
    uint32_t *of; /* [parameters] */
    bool *frozen; /* [parameters] by the model or a group */
} groups_t;

/* Sorts every parameter into the first [group.NAME] that matches its logical name, else into group
 * 0. A group that matches none is refused. */
lh_status_t groups_new(const job_t *job, const parameters_t *parameters,
                       groups_t *out) LH_MUST_CHECK;
void groups_free(groups_t *g);

#endif
