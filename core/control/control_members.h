/* control/control_members.h - rank 0's part in a job whose machines come and go: who is there, whether those may go
 * on, and with whom. For the server's thread alone (control_server.h). The meeting (control_join.h) asks these as
 * ranks come, and they let its ranks start, as does who ends it for a stop (control_stop.h): the three are one
 * machine in three chapters, and call each other. */
#ifndef CONTROL_CONTROL_MEMBERS_H
#define CONTROL_CONTROL_MEMBERS_H

#include <control/control_state.h>

/* A hello of a herald, or of a rank of another layout. True: it is answered, or kept. */
bool control_members_hello(control_t *c, peer_t *p, const frame_hello_t *h, const frame_t *f);
/* Whether all ranks of the layout, which have come, may meet: false where others may have gone on
 * without them. They then wait. */
bool control_members_meet(control_t *c);
/* Who has not come by the deadline is replaced or left out, as far as those that are here may do that.
 * False: they can't, and the job does not start. */
bool control_members_judge(control_t *c, uint64_t now);
/* Ranks of different epochs have come: true, they are told to meet anew. */
bool control_members_epochs(control_t *c);
/* The job goes on with machines that are back, where some are. */
void control_members_take_in(control_t *c);
/* Whether this process stands in for rank 0, and is none. */
bool control_elects(const control_t *c);
/* Whether somebody may come who has no seat: the port stays open. */
bool control_members_lack(const control_t *c);
/* All ranks have ended well, or at once: heralds need not wait any more. */
void control_members_over(control_t *c);
/* Where others lead: machines with ranks that have come to this one end with that status. */
void control_members_end(control_t *c, lh_status_t status, const char *sentence);
/* What rank 0 has told: for whoever starts the ranks again. */
void control_members_told(const control_t *c, const frame_regroup_t *r);
/* To all that have a vote and no ranks here: all have met. */
void control_members_met(control_t *c);
/* Of this one, of whom rank 0 has told that. */
void control_members_note_met(const control_t *c, const frame_regroup_t *r);
/* Rank 0, or who stands in for it, has waited so long that it asks others: what it has heard. */
void control_members_look(control_t *c, uint64_t now);

#endif
