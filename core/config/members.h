/* config/members.h - which machines take part in a job now: those that its INI names, or fewer, or
 * spares in their place.
 *
 * A layout is a text with a character for each host of [site.*], in their order: MEMBER_OWN, the host
 * itself; MEMBER_GONE, nobody; 'a' for the first spare of its site, 'b' for the second. Ranks are
 * numbered through the hosts that are there. So a job of any layout is a job like any other once
 * members_narrow has taken out of job_t who is gone: nothing behind it knows of layouts.
 *
 * A machine is a host, a spare or the witness, by its number: hosts first, then spares, each in the
 * order of the INI; then the witness, which has no ranks in any layout. */
#ifndef CONFIG_MEMBERS_H
#define CONFIG_MEMBERS_H

#include <base/text.h>
#include <config/job.h>

/* The most hosts, and machines, that a job can have whose members change; more are none. */
enum { MEMBERS_MOST = 256, MEMBERS_TEXT = MEMBERS_MOST + 1 };
/* Attempts to meet that are remembered, and the bytes of their text. */
enum { MEMBERS_TRIES = 8, MEMBERS_TRIED = MEMBERS_TRIES * (MEMBERS_MOST + 12) + 1 };
#define MEMBER_OWN '.'
#define MEMBER_GONE '-'
#define MEMBERS_NONE UINT32_MAX

typedef struct machine {
    const job_site_t *site; /* as the INI has it; of the witness one without name and hosts */
    const char *host;
    const char *address; /* where rank 0 listens once it is there; of the witness NULL */
    uint32_t ranks;      /* of a spare: the most */
    bool spare;
} machine_t;

/* Hosts of the INI; 0 where it names none, or too many. */
uint32_t members_hosts(const job_t *job);
/* Hosts and spares, which may have ranks; and all machines. */
uint32_t members_places(const job_t *job);
uint32_t members_machines(const job_t *job);
/* MEMBERS_NONE: the job has none. */
uint32_t members_witness(const job_t *job);
void members_machine(const job_t *job, uint32_t machine, machine_t *out);
/* By names; MEMBERS_NONE: there is no such machine. */
uint32_t members_find(const job_t *job, const char *site, const char *host);
/* Whether two names may be one machine's, as it calls itself or as the INI does: "t1" and
 * "t1.example.org" are, "t1.a" and "t1.b" are not. */
bool members_same_host(const char *one, const char *other);
/* Whether the job can go on with others than all its hosts. */
bool members_change(const job_t *job);

/* The layout of all hosts; "" where members_hosts is 0. */
void members_all(const job_t *job, char out[MEMBERS_TEXT]);
/* Whether `layout` is one of this job, and leaves somebody. */
bool members_are(const job_t *job, const char *layout);
/* Who has the ranks of a host; MEMBERS_NONE: nobody. */
uint32_t members_of_host(const job_t *job, const char *layout, uint32_t host);
/* Ranks in all, and those of a machine: how many, and which is the first. */
uint32_t members_ranks(const job_t *job, const char *layout);
uint32_t members_ranks_of(const job_t *job, const char *layout, uint32_t machine, uint32_t *first);
/* The machine of rank 0, where all meet. */
uint32_t members_leader(const job_t *job, const char *layout);

/* From here on job_ranks, job_rank_place and job->sites are of this layout. Once a job; the document
 * stays as it is. */
lh_status_t members_narrow(job_t *job, const char *layout) LH_MUST_CHECK;

/* ---- who goes on ---- */

/* Whether those that are here (a flag a machine) may go on without the others of that layout: they have
 * most of its ranks; or half of them and what breaks a tie of that layout: the first host there of
 * [launch] prefer's site, or without one the witness. Two groups that may both have a machine in
 * common. */
bool members_may(const job_t *job, const char *layout, const bool *here);
/* What a machine that is here remembers: the last meeting of its ranks, and the layouts in which they
 * were to meet after that ("7:..-.,9:.-..", members_try), as others may have met in them. Epoch 0: it
 * remembers no meeting, and has no vote. */
typedef struct member_record {
    bool here;
    uint32_t met_epoch;
    const char *met, *tried;
    const char *layout; /* in which it is, or is to be: the last that it was told of */
} member_record_t;
/* Adds an attempt to such a text. False: there are MEMBERS_TRIES already, and nothing is added. */
bool members_try(char tried[MEMBERS_TRIED], uint32_t epoch, const char *layout);
/* The newest epoch in which any of those that are here has met; 0: in none. records: a machine each. */
uint32_t members_newest(const job_t *job, const member_record_t *records);
/* Whether the machines of `layout`, all of which are here, may come to meet in it: those that are here have
 * most of the newest layout in which any of them has met, and of each other one of that epoch or a later
 * one in which some have met or were to meet. */
bool members_quorum(const job_t *job, const member_record_t *records, const char *layout);
/* The same of those that are about to meet: who has ranks in that layout has been told of it, and so must
 * anybody else have been whose vote counts: the witness, and hosts that are left out. */
bool members_meets(const job_t *job, const member_record_t *records, const char *layout);
/* The layout after this one: who is here stays; a host that is not is replaced by a spare that is, or
 * gone, as [launch] go_on_with allows; who is back is taken in. False: not without the others. */
bool members_next(const job_t *job, const char *layout, const bool *here, char out[MEMBERS_TEXT]);
/* Appends what the step from one layout to the next means: "osaka/o2 takes the ranks of osaka/o1,
 * kyoto/k1 is gone". */
void members_tell(const job_t *job, const char *from, const char *to, text_t *out);

#endif
