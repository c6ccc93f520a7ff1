/* launch/launch.h - the ranks of a job: who starts them, which one this process is, how they meet
 * and how they end.
 *
 * A command that runs on several ranks is one call of launch_ranks with its body. In a job of one
 * rank it calls body. Where the INI asks for ranks and nobody else has started them, it starts
 * those of this machine (the same program, the same INI), watches them and ends all with one reason
 * when one fails. In a rank - started so, or by torchrun, Open MPI, PMIx or Slurm - it meets the
 * others, calls body and says goodbye. */
#ifndef LAUNCH_LAUNCH_H
#define LAUNCH_LAUNCH_H

#include <launch/launch_state.h>

/* body finds launch_control and launch_world. Returns its exit code or negative status; in the
 * launcher that of the first rank that failed. words: the command line of a rank that is started,
 * ended by NULL. */
int launch_ranks(launch_t *l, char *const *words, int (*body)(void *context), void *context);
/* Inside of body, the control plane and the world of a job of several ranks; else NULL. */
control_t *launch_control(const launch_t *l);
const world_t *launch_world(const launch_t *l);

/* Stages that run once are for rank 0 and the launcher on its machine; false on all others. */
bool launch_leads(const launch_t *l);
/* From here on it is false in this launcher, until rank 0 comes to be on its machine: another one has the
 * folder. */
void launch_follow(launch_t *l);
/* Whether other processes decide for themselves which stages there are: launchers of other
 * machines, or ranks that somebody else started. They skip what launch_leads() is for, and are told
 * through launch_ranks when its stage need not run. */
bool launch_is_spread(const launch_t *l);
void launch_tell_skip(launch_t *l, bool skip);
/* Stages run before the next launch_ranks, on rank 0's machine: the others wait for a week at
 * most. */
void launch_waits(launch_t *l);
/* This process starts the ranks of its machine, and is none itself. */
bool launch_starts(const launch_t *l);
/* In a rank that a launcher of ours started: only the launcher remembers stages. */
bool launch_is_started(const launch_t *l);
/* Of this process; 0 and 1 when it is alone or the launcher. */
uint32_t launch_rank(const launch_t *l);
uint32_t launch_size(const launch_t *l);

/* The site of this rank, or of this machine's first rank; NULL: there are no sites, or this process
 * has to do with no ranks. */
const job_site_t *launch_site(const launch_t *l);
/* In a rank: the layout of its job's hosts (config/members.h), which says who takes part; NULL: all
 * that the INI asks for. */
const char *launch_layout(const launch_t *l);
/* This process is no rank, though it was started as one: it waits until its machine is to have some. */
bool launch_is_herald(const launch_t *l);
/* In a rank: it ends after a save, or after one that came to nothing, as a machine was told to leave, which
 * need not be its own. */
void launch_leave(launch_t *l, bool saved);

/* From here on a signal that ends this process while no step is under way says so in the job's train.log, too; off: no
 * more, as that log is another process's. Only of a training that has begun, or is gone on with. */
void launch_note_signals(const launch_t *l, bool on);

/* Whether this rank's launcher has started its training before. */
launch_again_t launch_again(const launch_t *l);

/* In a rank whose launcher holds memory for it that outlives it ([checkpoint] memory_every): its
 * descriptor, the caller's; else -1. */
int launch_memory(const launch_t *l);

/* Whether the job may have links of this class, LH_LINK_*, as far as INI and starter tell. */
bool launch_has_links(const launch_t *l, uint32_t scope);

/* A training has begun, and its train.log is there: why the job ends is to stand there. */
void launch_began(launch_t *l);
/* Reads the environment and the INI. *out is set after a failure too, unless memory for it was
 * missing: the caller prints by it, then closes it. */
lh_status_t launch_open(const launch_how_t *how, launch_t **out) LH_MUST_CHECK;
void launch_close(launch_t *l); /* NULL does nothing */

#endif
