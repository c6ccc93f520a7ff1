/* control/control_join.h - how ranks come to rank 0: strangers at its port, their hellos, and the welcome of
 * all. For the server's thread alone (control_server.h), and for who lets its ranks start (control_members.h). */
#ifndef CONTROL_CONTROL_JOIN_H
#define CONTROL_CONTROL_JOIN_H

#include <control/control_state.h>

/* Whether a connection is neither a rank's nor a herald's, so far. */
bool control_join_is_stranger(const peer_t *p);
/* Takes in the next connection that waits at the port, as long as there is room: a stranger, which rank 0's
 * list of peers owns. NULL: nobody waits, or none can be taken in now. */
peer_t *control_join_accept(control_t *c);
/* A stranger has sent its hello: it takes its seat, is kept as a herald, or goes. With the last rank all
 * have come. */
void control_join_hello(control_t *c, peer_t *p, const frame_t *f);
/* Says no to one connection, which is then dropped; the others don't notice. */
void control_join_refuse(control_t *c, peer_t *p, lh_status_t status, const char *sentence);
/* A rank's hello into its seat; of seat 0 before the thread starts, as no connection brings it. */
lh_status_t control_join_keep_hello(control_server_t *s, uint32_t rank, const void *payload,
                                    size_t length) LH_MUST_CHECK;
/* All ranks have come: they start together, or not at all. */
void control_join_finish(control_t *c);
/* The ranks that have not come, by the names that the INI gives them. */
void control_join_append_missing(const control_t *c, text_t *out);

/* ---- what is due by the clock ---- */

/* A port that was left alone is looked at again, and strangers go that took too long. */
void control_join_turn(control_t *c, uint64_t now);
/* Who is waited for is said now and then. */
void control_join_tell_missing(control_t *c, uint64_t now);
/* Ranks that are missing at the deadline end the meeting, or do not (control_members_judge). */
void control_join_judge(control_t *c, uint64_t now);

#endif
