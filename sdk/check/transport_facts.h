/* transport_facts.h - what every transport plugin must do, each fact run by two processes. */
#ifndef TRANSPORT_FACTS_H
#define TRANSPORT_FACTS_H

#include "transport_rig.h"

enum { TRANSPORT_SIZES = 17 };
extern const uint64_t transport_sizes[TRANSPORT_SIZES]; /* bytes; the last is the largest */

/* transport_messages.c */
void sizes_arrive(end_t *e);
void unaligned_memory_is_taken(end_t *e);
void a_receive_may_be_longer_than_its_message(end_t *e);
void posting_is_allowed_before_the_connection_is_up(end_t *e);
void a_full_queue_says_again_and_loses_nothing(end_t *e);
void a_full_queue_of_receives_says_again(end_t *e);
void messages_of_a_direction_keep_their_order(end_t *e);

/* transport_memory.c */
void mapped_memory_is_read_in_place(end_t *e);
void sizes_arrive_from_mapped_memory(end_t *e);
void puts_arrive_in_order(end_t *e);

/* transport_ends.c */
void a_message_too_long_ends_both_as_truncated(end_t *e);
void two_tags_that_differ_end_both_and_are_named(end_t *e);
void a_killed_peer_is_noticed_and_all_drains(end_t *e);
void a_cancel_is_local_and_drains(end_t *e);
void what_was_sent_before_a_close_still_arrives(end_t *e);
void a_dialer_that_is_not_admitted_learns_it(end_t *e);

/* transport_cards.c */
void capabilities_and_functions_agree(end_t *e);
void a_sleeper_is_woken_by_a_message(end_t *e);
void a_listener_serves_several_connections(end_t *e);
void an_address_of_garbage_is_refused(end_t *e);
void it_can_be_opened_and_closed_many_times(end_t *e);
void a_failed_allocation_is_survived_and_loses_nothing(end_t *e);

#endif
