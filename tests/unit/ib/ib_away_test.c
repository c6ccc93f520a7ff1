/* ib_away_test.c - queue pairs of the ib transport that both ends part with: what is said of them, in which order it
 * may come, and what credits it wants; and what limits of memory and of work requests leave of a connection. */
#include <stdio.h>
#include <sys/resource.h>

#include "ib_conn_rig.h"

/* The end that listens has said so before it was asked, of the turn that it knew, and that came over
 * a slower one. */
static void an_answer_is_taken_though_an_older_word_comes_behind_it(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(true);
    fail_pair(c, 0);
    pass_time(c);
    assert_true(c->pairs[0].asked && c->pairs[0].turn == 1);
    hear_away(c, 1, 0, 0);
    step(c);
    assert_false(c->pairs[0].away); /* no answer */
    hear_away(c, 1, 0, 1);
    hear_away(c, 2, 0, 0);
    step(c);
    assert_true(c->pairs[0].away);
    close_conn(c);
}

static void a_word_leaves_without_a_credit(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(false);
    for (uint32_t i = 1; i < PAIRS; i++)
        c->pairs[i].credits.used = c->pairs[i].credits.granted;
    fail_pair(c, 0);
    assert_int_equal(card.posted_count, 0);
    pass_time(c);
    assert_true(c->pairs[0].asked);
    assert_int_equal(words_on(0, 1) + words_on(0, 2), 1);
    for (uint32_t i = 1; i < PAIRS; i++) {
        assert_int_equal(ib_credits_left(&c->pairs[i].credits), 0);
        assert_false(ib_credits_for_chunk(&c->pairs[i].credits, 0));
        assert_false(ib_credits_for_notice(&c->pairs[i].credits, false));
    }
    close_conn(c);
}

/* Both ends may have used all of the one that notices go over while nothing came over it, and tell what
 * came over another meanwhile: neither could tell later what came over this one. For what leaves so there
 * are more work requests than the other end has credits for. */
static void what_gives_credits_back_leaves_without_one(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(false);
    ib_credits_t *lead = &c->pairs[c->lead].credits;
    assert_int_equal(card.receives, PAIRS * (IB_RECEIVES + IB_SPARE));
    lead->used = lead->granted;
    for (uint32_t i = 1; i < PAIRS; i++) {
        c->pairs[i].credits.posted += IB_RECEIVES / 2;
        step(c);
        assert_int_equal(card.posted_count, i);
        assert_int_equal(card.posted[i - 1].what.kind, IB_NOTICE);
        assert_int_equal(card.posted[i - 1].pair, c->lead);
        assert_int_equal(c->pairs[i].credits.told, c->pairs[i].credits.posted);
    }
    assert_int_equal(lead->used, lead->granted + PAIRS - 1);
    assert_int_equal(ib_irecv(c, NULL, NULL, 0, 4, 0), LH_OK); /* nobody waits for it alone */
    step(c);
    assert_int_equal(card.posted_count, PAIRS - 1);
    close_conn(c);
}

static void a_word_on_the_one_that_it_came_over_is_corrupt(void **state)
{
    (void)state;
    for (uint32_t index = 1; index <= PAIRS; index += PAIRS - 1) { /* of none, likewise */
        lh_conn_t *c = open_conn(false);
        hear_away(c, 1, index, 0);
        step(c);
        assert_int_equal(c->why, LH_CORRUPT);
        assert_true(c->state >= IB_LEAVING);
        ib_cancel(c);
        step(c);
        ib_close_conn(c);
    }
}

/* A chunk in front of two notices, over one that is then down at the peer. */
static lh_conn_t *open_loaded(lh_region_t *region)
{
    lh_conn_t *c = open_conn(false);
    *region = (lh_region_t){.base = memory,
                            .bytes = ROOM,
                            .mrs = {bare_reg_mr(NULL, memory, ROOM, 0)},
                            .kind = LH_MEM_HOST};
    c->board->grants[0] = (ib_grant_t){
        .number = 1, .address = 1 << 20, .bytes = ROOM, .keys = {5}, .tag = 3};
    receive(c, 0, &(ib_immediate_t){.kind = IB_NOTICE, .number = 1});
    step(c);
    assert_int_equal(c->granted, 1);
    assert_int_equal(ib_isend(c, region, memory, 200, 3, 0), LH_OK);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(ib_irecv(c, NULL, NULL, 0, 4, i), LH_OK);
        step(c);
    }
    assert_int_equal(card.posted_count, 3);
    assert_int_equal(card.posted[0].what.kind, IB_CHUNK);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(card.posted[i].pair, 0);
    card.posted_count = 0;
    return c;
}

static void notices_are_told_anew_in_one_in_front_of_chunks(void **state)
{
    lh_region_t region;
    (void)state;
    lh_conn_t *c = open_loaded(&region);
    for (uint32_t i = 1; i < PAIRS; i++)
        c->pairs[i].credits.used = c->pairs[i].credits.granted - 2; /* for no chunk */
    hear_away(c, 1, 0, 0);
    step(c);
    assert_true(c->pairs[0].away);
    assert_int_equal(words_on(0, 1) + words_on(0, 2), 1); /* it is answered */
    assert_int_equal(card.posted_count, 2);
    const posted_t *notice = &card.posted[card.posted[0].what.kind == IB_NOTICE ? 0 : 1];
    assert_int_equal(notice->what.kind, IB_NOTICE);
    assert_int_equal(notice->what.number, 2);
    assert_int_equal(c->lead, notice->pair);
    assert_int_equal(c->notices_out, 1); /* the other end has taken none */
    assert_int_equal(c->receive_told, 2);
    assert_int_equal(ib_pair_wrs(&c->pairs[0]), 1);
    assert_true(ib_pair_waits(&c->pairs[0]));
    c->pairs[2].credits.granted += IB_RECEIVES / 2;
    step(c);
    assert_int_equal(ib_pair_wrs(&c->pairs[0]), 0);
    assert_false(ib_pair_waits(&c->pairs[0]));
    assert_int_equal(card.posted_count, 3);
    assert_int_equal(card.posted[2].what.kind, IB_CHUNK);
    assert_int_equal(card.posted[2].pair, 2);
    close_conn(c);
}

/* Where neither is left with a credit what tells anew goes as well. */
static void what_is_told_anew_leaves_without_a_credit(void **state)
{
    lh_region_t region;
    (void)state;
    lh_conn_t *c = open_loaded(&region);
    for (uint32_t i = 1; i < PAIRS; i++)
        c->pairs[i].credits.used = c->pairs[i].credits.granted;
    hear_away(c, 1, 0, 0);
    step(c);
    assert_int_equal(card.posted_count, 2);
    assert_false(c->retells);
    assert_int_equal(ib_irecv(c, NULL, NULL, 0, 4, 2), LH_OK); /* and no more */
    step(c);
    assert_int_equal(card.posted_count, 2);
    close_conn(c);
}

/* At once, and not when the other end has answered for the one that carried it: that answer may be on the
 * queue pair that the word is about. */
static void a_word_that_went_with_another_is_said_again(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(true);
    fail_pair(c, 0);
    pass_time(c);
    assert_int_equal(words_on(0, 1), 1);
    fail_pair(c, 1);
    pass_time(c);
    assert_true(c->pairs[0].asked && c->pairs[1].asked);
    assert_int_equal(words_on(1, 2), 1);
    assert_int_equal(words_on(0, 2), 1);
    hear_away(c, 2, 0, 1);
    hear_away(c, 2, 1, 1);
    step(c);
    assert_true(c->pairs[1].away && c->pairs[0].away);
    assert_int_equal(words_on(0, 2), 1);
    assert_int_equal(ib_pair_wrs(&c->pairs[1]), 0);
    close_conn(c);
}

/* Likewise the answer of the end that listens; one that comes twice is answered twice. */
static void an_answer_that_went_with_another_is_said_again(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(false);
    hear_away(c, 1, 0, 1);
    step(c);
    assert_true(c->pairs[0].away);
    const uint32_t over = words_on(0, 1) == 1 ? 1 : 2;
    assert_int_equal(words_on(0, over), 1);
    fail_pair(c, over);
    pass_time(c);
    assert_int_equal(words_on(0, 3 - over), 1);
    hear_away(c, 3 - over, 0, 1);
    step(c);
    assert_true(c->pairs[0].away);
    assert_int_equal(words_on(0, 3 - over), 2);
    close_conn(c);
}

/* It is met again whatever is under way over the one that leads. */
static void one_with_chunks_alone_waits_for_no_notice(void **state)
{
    lh_region_t region;
    (void)state;
    lh_conn_t *c = open_loaded(&region);
    c->board->grants[1] = (ib_grant_t){
        .number = 2, .address = 1 << 20, .bytes = ROOM, .keys = {5}, .tag = 3};
    receive(c, 0, &(ib_immediate_t){.kind = IB_NOTICE, .number = 2});
    step(c);
    assert_int_equal(ib_isend(c, &region, memory, 100, 3, 1), LH_OK);
    const uint32_t other = card.posted[0].pair;
    assert_true(other != 0 && ib_pair_wrs(&c->pairs[other]) == 1);
    fail_pair(c, other);
    assert_false(ib_pair_waits(&c->pairs[other]));
    close_conn(c);
}

/* Of a later turn, at the end that listens, which the other end then writes over. */
static void renew_pair(lh_conn_t *c, uint32_t pair, uint32_t turn)
{
    const ib_greeting_t greeting = {.turn = turn, .index = pair};
    ib_pair_t *p = &c->pairs[pair];
    cm_id_t *id;
    assert_int_equal(create_id(NULL, &id, &p->watch, 0), 0);
    ib_pair_renew(p, &greeting, id);
    assert_int_equal(p->state, IB_PAIR_MEETING);
    assert_int_equal(ib_pair_make(p), LH_OK);
    receive(c, pair, &(ib_immediate_t){.kind = IB_NOTICE, .number = (uint32_t)c->granted});
    step(c);
    assert_int_equal(p->state, IB_PAIR_UP);
}

/* It was replaced while there was no other, and its path carries small packets: what was told over it
 * has arrived, but may not have been looked at. */
static void one_in_doubt_leads_as_long_as_its_notices_may_be_overtaken(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(false);
    assert_int_equal(ib_irecv(c, NULL, NULL, 0, 4, 0), LH_OK);
    step(c);
    assert_true(card.posted_count == 1 && card.posted[0].pair == 0);
    fail_pair(c, 0);
    c->pairs[0].lost = IB_DOUBT;
    renew_pair(c, 0, 1);
    assert_true(card.posted_count == 2 && card.posted[1].what.kind == IB_NOTICE);
    complete(c, 0);
    assert_int_equal(ib_irecv(c, NULL, NULL, 0, 4, 1), LH_OK);
    step(c);
    assert_true(card.posted_count == 3 && card.posted[2].what.kind == IB_NOTICE);
    assert_int_equal(card.posted[2].pair, 0);
    fail_pair(c, 0);
    receive(c, 1, &(ib_immediate_t){.kind = IB_AWAY, .number = 1, .index = 0, .turn = 1});
    step(c);
    assert_true(c->pairs[0].away);
    assert_true(c->lead != 0);
    close_conn(c);
}

/* Its memory can't be read any more, as of a GPU that has gone: each later turn ends as the one before. With the
 * third so does the connection, and the goodbye goes over another queue pair. */
static void a_request_that_is_refused_for_its_own_sake_ends_the_connection(void **state)
{
    enum { ID_OTHER = 3 };
    static const int refusals[] = {VERBS_WC_LOCAL_PROTECTION, VERBS_WC_REMOTE_OPERATION};
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        lh_conn_t *c = open_conn(false);
        for (uint32_t turn = 1; turn <= IB_INVALID; turn++) {
            assert_int_equal(c->state, IB_OPEN);
            verbs_wc_t row = {.id = ID_OTHER, .status = refusals[i]};
            row.pair = c->pairs[0].qp->number;
            push(row);
            step(c);
            if (turn == IB_INVALID) break;
            flush(c, 0);
            assert_int_equal(c->pairs[0].state, IB_PAIR_DOWN);
            renew_pair(c, 0, turn);
        }
        assert_int_equal(c->why, LH_IO);
        assert_true(card.posted_count > 0);
        assert_int_equal(card.posted[card.posted_count - 1].what.kind, IB_GOODBYE);
        assert_true(card.posted[card.posted_count - 1].pair != 0);
        ib_cancel(c);
        step(c);
        ib_close_conn(c);
    }
}

/* ---- registered memory ---- */

static char said[256];

LH_PRINTF(3, 4)
static lh_status_t say(LH_UNUSED const lh_host_t *of, lh_status_t status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(said, sizeof(said), fmt, args);
    va_end(args);
    return status;
}

enum { LOCKED_MOST = 1000 };

static verbs_mr_t *register_little(verbs_pd_t *pd, void *address, size_t bytes, int access)
{
    if (bytes <= LOCKED_MOST) return bare_reg_mr(pd, address, bytes, access);
    errno = ENOMEM;
    return NULL;
}

static lh_status_t register_memory(lh_transport_t *t, uint64_t bytes, lh_region_t **out)
{
    const lh_arena_t arena = {.struct_size = sizeof(arena),
                              .kind = LH_MEM_HOST,
                              .base = memory,
                              .bytes = bytes,
                              .fd = -1};
    return ib_register(t, 0, &arena, out);
}

/* What fails is not what has taken most of the limit: who raises it by that alone raises it again. */
static void memory_that_is_held_already_is_told_of(void **state)
{
    static const char ends[] =
        "registering 3000 bytes with card; a process may lock 4096 bytes in all "
        "(ulimit -l), with ";
    static lh_transport_t t;
    struct rlimit before;
    lh_host_t speaks = host;
    lh_region_t *rows[2], *none;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){4096, before.rlim_max}), 0);
    speaks.fail = say;
    t = bare_transport(&speaks, &config, &context);
    t.verbs.reg_mr = register_little;
    (void)snprintf(t.ports[0].device, sizeof(t.ports[0].device), "card");
    assert_int_equal(register_memory(&t, 300, &rows[0]), LH_OK);
    assert_int_equal(register_memory(&t, LOCKED_MOST, &rows[1]), LH_OK);
    for (uint32_t i = 0; i < 3; i++) {
        static const char *const held[] = {"1300 held already", "1000 held already",
                                           "0 held already"};
        assert_int_equal(register_memory(&t, 3000, &none), LH_IO);
        assert_memory_equal(said, ends, sizeof(ends) - 1);
        assert_string_equal(said + sizeof(ends) - 1, held[i]);
        if (i < 2) ib_release(&t, rows[i]);
    }
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

/* A connection of four queue pairs, at an end that dials or listens, on a card with so many work requests for each
 * queue; what there are then. */
static uint32_t fitted_pairs(uint32_t wrs, bool dials, lh_status_t expected)
{
    static lh_transport_t t;
    lh_host_t speaks = host;
    const lh_tuning_t wanted = {.struct_size = sizeof(wanted), .streams = 4};
    const lh_conn_params_t params = {.struct_size = sizeof(params), .tuning = &wanted};
    speaks.fail = say;
    t = bare_transport(&speaks, &config, &context);
    t.wrs = wrs;
    (void)snprintf(t.ports[0].device, sizeof(t.ports[0].device), "card");
    lh_conn_t *c = ib_conn_new(&t, dials ? IB_DIALING : IB_MET);
    assert_non_null(c);
    c->peer_ports = 1;
    c->pair_count = 4;
    assert_int_equal(ib_take_params(c, &params), expected);
    const uint32_t pairs = c->tuning.queue_pairs;
    assert_true(expected != LH_OK ||
                c->tuning.window_most == (IB_RECEIVES - 2) * pairs * c->tuning.chunk_bytes);
    ib_close_conn(c);
    return pairs;
}

/* Five for each, beside 128. Who listens can't choose. */
static void queue_pairs_are_those_that_work_requests_are_enough_for(void **state)
{
    (void)state;
    assert_int_equal(fitted_pairs(IB_SEND_WRS, true, LH_OK), 4);
    assert_int_equal(fitted_pairs(148, true, LH_OK), 4);
    assert_int_equal(fitted_pairs(148, false, LH_OK), 4);
    assert_int_equal(fitted_pairs(147, true, LH_OK), 3);
    assert_int_equal(fitted_pairs(133, true, LH_OK), 1);
    (void)fitted_pairs(147, false, LH_INVALID);
    assert_non_null(strstr(said,
                           "a connection of 4 queue pairs, and card has 147 work requests for "
                           "each queue of one, enough for 3 queue pairs"));
    config.queue_pairs = 4;
    (void)fitted_pairs(147, true, LH_INVALID);
    config.queue_pairs = 0;
}

static lh_status_t start_none(LH_UNUSED const lh_host_t *of, LH_UNUSED const char *name,
                              LH_UNUSED void (*body)(void *), LH_UNUSED void *argument,
                              lh_thread_t **out)
{
    *out = NULL;
    return LH_OK;
}

static void join_none(LH_UNUSED const lh_host_t *of, LH_UNUSED lh_thread_t *thread)
{
}

/* `private`: with them a later connection would sleep, and not be woken by what they have done. */
static void threads_that_can_not_be_watched_are_not_kept(void **state)
{
    static const lh_host_t starts = {BARE_HOST, .thread_start = start_none,
                                     .thread_join = join_none};
    static const ib_config_t one = {.seal_threads = 1};
    static lh_transport_t t;
    (void)state;
    t = bare_transport(&starts, &one, &context);
    t.epoll = -1;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ib_transport_seals(&t), LH_IO);
        assert_null(t.pool);
    }
}

/* `private`: what is sealed waits for room on the line, and what is being sealed takes none. */
static void a_sealed_frame_waits_for_room_in_the_window(void **state)
{
    enum { BYTES = 1000, SLOTS = 4 };
    (void)state;
    lh_conn_t *c = open_conn(false);
    ib_job_t job = {.conn = c, .head = {.bytes = BYTES}, .frame = (uint8_t *)memory};
    c->tuning.window_bytes = 2 * (BYTES + IB_SEAL_OVER);
    c->sealed.mr_out[0] = bare_reg_mr(NULL, memory, ROOM, 0);
    c->sealed.slots = SLOTS;
    c->sealed.rows = bare_alloc(&host, 2 * SLOTS * sizeof(ib_slot_t), 64);
    assert_non_null(c->sealed.rows);
    c->sealed.peer = (ib_share_t){.frames = 1 << 20, .slot_bytes = ROOM, .slots = SLOTS};
    c->sealed.out_next = 3;
    for (; job.sequence < 2; job.sequence++)
        assert_true(ib_pairs_write_frame(c, &job));
    assert_int_equal(c->in_flight, c->tuning.window_bytes);
    assert_false(ib_pairs_write_frame(c, &job));
    complete(c, card.posted[0].pair);
    step(c);
    assert_int_equal(c->in_flight, BYTES + IB_SEAL_OVER);
    assert_true(ib_pairs_write_frame(c, &job));
    c->tuning.window_bytes = 1; /* one always may be */
    complete(c, card.posted[1].pair);
    complete(c, card.posted[2].pair);
    step(c);
    assert_int_equal(c->in_flight, 0);
    job.sequence++;
    assert_true(ib_pairs_write_frame(c, &job));
    close_conn(c);
}

/* `private`: the peer calls a message whole of which a thread still has a frame, and writes into the receive. */
static void a_receive_waits_for_what_threads_have_of_it(void **state)
{
    enum { LARGE = 20000, REST = 10, SLOTS = 4, SLOT = LARGE + IB_SEAL_OVER, TAG = 4 };
    static const lh_host_t starts = {BARE_HOST, .thread_start = start_none,
                                     .thread_join = join_none};
    static char in[LARGE + REST], text[LARGE];
    const ib_frame_t large = {.bytes = LARGE, .tag = TAG};
    const ib_frame_t last = {.offset = LARGE, .bytes = REST, .tag = TAG, .last = true};
    lh_region_t region = {.base = in, .bytes = sizeof(in), .kind = LH_MEM_HOST};
    int fd;
    (void)state;
    lh_conn_t *c = open_conn(false);
    ib_private_t *s = &c->sealed;
    ib_cipher_t *cipher = ib_cipher_new();
    transport.pool = ib_pool_new(&starts, 1, &fd);
    s->slots = SLOTS;
    s->slot_bytes = SLOT;
    s->frames = ib_seal_map(2ull * SLOTS * SLOT);
    s->rows = bare_alloc(&host, 2 * SLOTS * sizeof(ib_slot_t), 64);
    assert_true(cipher != NULL && transport.pool != NULL && s->frames != NULL && s->rows != NULL);
    s->ready_keys = true;
    c->security = LH_SECURITY_PRIVATE;
    assert_int_equal(ib_irecv(c, &region, in, sizeof(in), TAG, 0), LH_OK);
    step(c);
    assert_int_equal(c->receive_told, 1);
    for (uint32_t i = 0; i < 2; i++) {
        const ib_frame_t *head = i == 0 ? &large : &last;
        const ib_immediate_t what = {.kind = IB_CHUNK, .index = i};
        uint8_t *frame = ib_private_slot(s, true, i);
        assert_true(ib_keys_at(&s->in, i));
        assert_true(ib_seal_frame(cipher, &s->in.now, i, head, text, frame));
        push((verbs_wc_t){.opcode = VERBS_WC_RECEIVE_IMMEDIATE,
                          .bytes = head->bytes + IB_SEAL_OVER,
                          .immediate = htonl(ib_immediate_write(&what)),
                          .pair = c->pairs[0].qp->number});
    }
    step(c);
    assert_int_equal(s->opening, 1); /* no thread runs here */
    assert_true(ib_inbox_whole(&c->receives[0].inbox));
    assert_int_equal(c->receive_first, 0);
    close_conn(c);
    ib_pool_free(transport.pool);
    ib_cipher_free(cipher);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_taken_though_an_older_word_comes_behind_it),
        cmocka_unit_test(a_word_leaves_without_a_credit),
        cmocka_unit_test(what_gives_credits_back_leaves_without_one),
        cmocka_unit_test(a_word_on_the_one_that_it_came_over_is_corrupt),
        cmocka_unit_test(notices_are_told_anew_in_one_in_front_of_chunks),
        cmocka_unit_test(what_is_told_anew_leaves_without_a_credit),
        cmocka_unit_test(a_word_that_went_with_another_is_said_again),
        cmocka_unit_test(an_answer_that_went_with_another_is_said_again),
        cmocka_unit_test(one_with_chunks_alone_waits_for_no_notice),
        cmocka_unit_test(one_in_doubt_leads_as_long_as_its_notices_may_be_overtaken),
        cmocka_unit_test(a_request_that_is_refused_for_its_own_sake_ends_the_connection),
        cmocka_unit_test(memory_that_is_held_already_is_told_of),
        cmocka_unit_test(queue_pairs_are_those_that_work_requests_are_enough_for),
        cmocka_unit_test(threads_that_can_not_be_watched_are_not_kept),
        cmocka_unit_test(a_sealed_frame_waits_for_room_in_the_window),
        cmocka_unit_test(a_receive_waits_for_what_threads_have_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
