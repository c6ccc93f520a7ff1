/* launch/launch_how.h - what a launch is told by the command line. */
#ifndef LAUNCH_LAUNCH_HOW_H
#define LAUNCH_LAUNCH_HOW_H

#include <control/control.h>
#include <plugin/registry.h>

typedef struct launch launch_t;

/* All of it outlives the launch. */
typedef struct launch_how {
    const job_t *job;          /* NULL: the command has none, and this process is alone        */
    bool ranks;                /* the command may be one of several ranks                       */
    const char *machine;       /* which of [site.*] hosts this machine is; NULL: its own name   */
    host_t *host;              /* plugins ask it for the world that a rank has met              */
    const registry_t *plugins; /* loaded ones are compared between ranks                  */
    /* What a rank checks, and loads, before it meets the others. */
    lh_status_t (*check)(void *context);
    void *context;
} launch_how_t;

#endif
