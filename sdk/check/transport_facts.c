/* transport_facts.c - the table of checks for transports. */
#include "transport_facts.h"
#include "transport_wan.h"

/* function, check, what holds, whether side 1 is killed */
#define FACTS(X)                                                                                  \
    X(capabilities_and_functions_agree, "transport.capabilities",                                 \
      "what its card says it can and the functions that it has agree", false)                     \
    X(it_can_be_opened_and_closed_many_times, "transport.listens_again",                          \
      "it listens again and again", false)                                                        \
    X(a_failed_allocation_is_survived_and_loses_nothing, "transport.out_of_memory",               \
      "with a connection under way too, any allocation may fail", false)                          \
    X(a_cancel_is_local_and_drains, "transport.cancel",                                           \
      "a cancel drains within 100 ms whatever the peer does", false)                              \
    X(sizes_arrive, "transport.sizes",                                                            \
      "messages of 0 bytes to 64 MiB arrive as they were, both ways", false)                      \
    X(sizes_arrive_from_mapped_memory, "transport.sizes_mapped",                                  \
      "likewise out of memory that the peer has mapped", false)                                   \
    X(mapped_memory_is_read_in_place, "transport.mapped", "a peer's memory is read in place",     \
      false)                                                                                      \
    X(unaligned_memory_is_taken, "transport.unaligned", "messages may begin and end anywhere",    \
      false)                                                                                      \
    X(a_receive_may_be_longer_than_its_message, "transport.longer_receive",                       \
      "a receive may be longer than its message", false)                                          \
    X(posting_is_allowed_before_the_connection_is_up, "transport.early_posts",                    \
      "what is posted before the connection is up goes through", false)                           \
    X(a_full_queue_says_again_and_loses_nothing, "transport.full_sends",                          \
      "sends beyond its depth are LH_AGAIN, and none that it took is lost", false)                \
    X(a_full_queue_of_receives_says_again, "transport.full_receives", "likewise receives", false) \
    X(messages_of_a_direction_keep_their_order, "transport.order",                                \
      "messages of one direction keep their order", false)                                        \
    X(a_message_too_long_ends_both_as_truncated, "transport.truncated",                           \
      "a receive that is too short ends both ends in LH_TRUNCATED", false)                        \
    X(two_tags_that_differ_end_both_and_are_named, "transport.tags",                              \
      "tags that differ end both ends in LH_MISMATCH, and both are named", false)                 \
    X(a_killed_peer_is_noticed_and_all_drains, "transport.killed_peer",                           \
      "a killed peer is noticed in time, and every operation ends in one event", true)            \
    X(what_was_sent_before_a_close_still_arrives, "transport.close",                              \
      "what was sent before a close still arrives", false)                                        \
    X(a_sleeper_is_woken_by_a_message, "transport.sleep",                                         \
      "who sleeps on its descriptor is woken by a message", false)                                \
    X(a_listener_serves_several_connections, "transport.connections",                             \
      "a listener serves several connections, each with messages of its own", false)              \
    X(an_address_of_garbage_is_refused, "transport.garbage", "an address of garbage is refused",  \
      false)                                                                                      \
    X(a_dialer_that_is_not_admitted_learns_it, "transport.not_admitted",                          \
      "who dials and is not admitted learns it", false)                                           \
    X(puts_arrive_in_order, "transport.puts", "one-sided writes arrive whole and in order", false)

const fact_t transport_facts[] = {
#define FACT(run, check, sentence, kills) {#run, run, kills, NULL},
    FACTS(FACT)
#undef FACT
};
const uint32_t transport_fact_count = sizeof(transport_facts) / sizeof(transport_facts[0]);

enum {
#define INDEX(run, check, sentence, kills) AT_##run,
    FACTS(INDEX)
#undef INDEX
};

const check_t checks_of_transports[] = {
#define ROW(run, check, sentence, kills) \
    {check, sentence, CHECK_KIND(TRANSPORT), false, 120, rig_run, &transport_facts[AT_##run]},
    FACTS(ROW)
#undef ROW
        {"transport.wan", "messages arrive as they were over a network with delay and loss",
         CHECK_KIND(TRANSPORT), false, 120, wan_run, &wan_fact},
    {0},
};
