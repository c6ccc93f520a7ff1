/* launch/machine.h - shares of a machine's processors for the ranks that are started on it. */
#ifndef LAUNCH_MACHINE_H
#define LAUNCH_MACHINE_H

#include <sched.h>

#include <base/text.h>
#include <config/job.h>

#define MACHINE_PROCESSORS "/sys/devices/system/cpu"

/* The share of rank `index` of `count` in the processors `all`. Each rank has as many, so that all
 * compute alike; up to count - 1 processors are left out, and none is in two shares. A share's
 * processors are neighbours: threads of a core, then cores of a package, as `folder` (laid out as
 * MACHINE_PROCESSORS) says; by number where it says nothing. With fewer processors than ranks each
 * rank has one, and ranks are spread over them as evenly as can be. false: no processors. */
bool machine_share(const cpu_set_t *all, const char *folder, uint32_t index, uint32_t count,
                   cpu_set_t *out);
/* The share of this process's processors for one of the ranks started here. false: none, as
 * [launch] bind says. */
bool machine_share_of_rank(const job_t *job, uint32_t index, uint32_t count, cpu_set_t *out);
/* Binds this process as the launcher would bind rank 0 of the job on this machine, and lets it count
 * processors as one of those ranks, so that what is planned and measured is a rank's device. */
void machine_take_share(const job_t *job);

/* Whether a process that ended by SIGKILL was ended for want of memory.
 *
 * The kernel tells nobody why it killed a process, but it counts: for the control group that ran
 * into its limit and for the machine. A count that grew while the ranks ran is the likely cause;
 * the machine's is looked at where no group's is to be read, as it has every other job's in it. */
typedef struct machine_kills {
    bool grouped;   /* kills are counted for this process's control group, else for the machine */
    uint64_t kills; /* processes so far */
    uint64_t limit; /* bytes, of the group or the narrowest above it; UINT64_MAX: none */
} machine_kills_t;

/* root: the folder under which proc and the control groups lie, "/" but for tests. */
void machine_kills_read(const char *root, machine_kills_t *out);
/* Appends ", likely for want of memory: ..." where the count has grown; else nothing. */
void machine_kills_tell(const machine_kills_t *before, const machine_kills_t *after, text_t *out);

#endif
