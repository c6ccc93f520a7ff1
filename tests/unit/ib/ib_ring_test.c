/* ib_ring_test.c - grants, credits and immediates of the ib transport: what holds at every count,
 * around every edge of their bits, and for two ends that follow the rules in any order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "ib_ring.h"

static void an_immediate_is_read_as_it_was_written(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 1 << IB_INDEX_BITS; i += i < 100 ? 1 : 9973) {
        const ib_immediate_t from = {
            .kind = IB_CHUNK, .last = i % 2 == 1, .number = i % 512, .index = i};
        ib_immediate_t to;
        assert_true(ib_immediate_read(ib_immediate_write(&from), &to));
        assert_int_equal(to.kind, IB_CHUNK);
        assert_int_equal(to.last, from.last);
        assert_int_equal(to.number, from.number);
        assert_int_equal(to.index, from.index);
    }
    for (uint32_t i = 0; i < 1 << 16; i++) {
        ib_immediate_t to;
        const ib_immediate_t from = {.kind = IB_NOTICE, .number = i};
        assert_true(ib_immediate_read(ib_immediate_write(&from), &to));
        assert_true(to.kind == IB_NOTICE && to.number == i);
    }
    for (uint32_t i = 0; i < IB_PAIRS_MOST << 10; i++) {
        ib_immediate_t to;
        const ib_immediate_t from = {.kind = IB_AWAY,
                                     .number = i * 7 % (1 << IB_COUNT_BITS),
                                     .index = i % IB_PAIRS_MOST,
                                     .turn = i * 5 % (1 << IB_TURN_BITS)};
        assert_true(ib_immediate_read(ib_immediate_write(&from), &to));
        assert_true(to.kind == IB_AWAY && to.index == from.index);
        assert_true(to.number == from.number && to.turn == from.turn);
    }
}

static void a_count_of_what_came_is_known_by_its_low_bits(void **state)
{
    const uint64_t far = ((uint64_t)7 << 32) - 3;
    (void)state;
    for (uint64_t more = 0; more <= 2 * IB_RECEIVES; more++)
        assert_true(ib_count_find(far, (uint32_t)(far + more) & 1023) == far + more);
    /* Less than is known to have come is far more than can have. */
    assert_true(ib_count_find(5, 4) > 5 + 2 * IB_RECEIVES);
}

static void turns_are_told_apart_by_their_low_bits(void **state)
{
    (void)state;
    for (uint32_t known = 0; known < 1 << 17; known += 997) {
        const uint32_t low = known & 0x7fff;
        assert_int_equal(ib_turn_ahead(known, low), 0);
        assert_int_equal(ib_turn_ahead(known, (low + 1) & 0x7fff), 1);
        assert_int_equal(ib_turn_ahead(known, (low + 16383) & 0x7fff), 16383);
        assert_int_equal(ib_turn_ahead(known, (low - 1) & 0x7fff), -1);
        assert_int_equal(ib_turn_ahead(known, (low - 16384) & 0x7fff), -16384);
    }
}

static void words_that_nobody_writes_are_refused(void **state)
{
    ib_immediate_t out;
    (void)state;
    assert_false(ib_immediate_read(0xc0000000u | (IB_PAIRS_MOST + 1), &out)); /* of no queue pair */
    assert_false(ib_immediate_read(0xc0100000u, &out));
    assert_false(ib_immediate_read(0x40010000u, &out)); /* a notice with bits to spare */
    assert_false(ib_immediate_read(0x80000001u, &out)); /* a goodbye that counts */
    assert_true(ib_immediate_read(0x80000000u, &out));
}

static void grants_are_counted_around_their_low_bits(void **state)
{
    (void)state;
    assert_int_equal(ib_grants_new(0, 0, 0), 0);
    assert_int_equal(ib_grants_new(0, 0, IB_DEPTH), IB_DEPTH);
    assert_int_equal(ib_grants_new(0, 0, IB_DEPTH + 1), -1);
    assert_int_equal(ib_grants_new(10, 10, 9), -1); /* it never gets less */
    assert_int_equal(ib_grants_new(65535, 65535, 1), 2);
    assert_int_equal(ib_grants_new(((uint64_t)1 << 40) + 65530, ((uint64_t)1 << 40) + 65530, 5),
                     11);
    /* Those that are out already count. */
    assert_int_equal(ib_grants_new(300, 100, 300 + 56), 56);
    assert_int_equal(ib_grants_new(300, 100, 300 + 57), -1);
    assert_int_equal(ib_grants_new(300, 301, 300), -1);
    assert_int_equal(ib_grants_new(300, 10, 301), -1);
}

static void a_grant_is_the_one_that_is_asked_for(void **state)
{
    static ib_board_t board;
    ib_grant_t grant;
    (void)state;
    assert_false(ib_grant_read(&board, 0, &grant));
    board.grants[0] = (ib_grant_t){
        .number = 1, .address = 4096, .bytes = 10, .keys = {5, 7}, .tag = 9};
    assert_true(ib_grant_read(&board, 0, &grant));
    assert_true(grant.address == 4096 && grant.bytes == 10 && grant.keys[1] == 7 && grant.tag == 9);
    assert_false(ib_grant_read(&board, IB_DEPTH, &grant)); /* the slot's next one */
    board.grants[0] = (ib_grant_t){.number = 1, .address = UINT64_MAX - 5, .bytes = 10};
    assert_false(ib_grant_read(&board, 0, &grant)); /* memory past the end of all */
}

static void credits_that_a_peer_cannot_have_are_refused(void **state)
{
    ib_credits_t c;
    (void)state;
    ib_credits_begin(&c);
    assert_true(ib_credits_take(&c, IB_RECEIVES));
    assert_false(ib_credits_take(&c, IB_RECEIVES + 1)); /* none was used */
    assert_true(ib_credits_take(&c, IB_RECEIVES - 1));  /* overtaken: it never gets less */
    assert_int_equal(c.granted, IB_RECEIVES);
    c.used = 5;
    assert_true(ib_credits_take(&c, IB_RECEIVES + 5));
    assert_false(ib_credits_take(&c, IB_RECEIVES + 6));
}

/* One direction of the model below: writes with immediates that the other end has not taken. */
typedef struct lane {
    uint32_t chunks, notices;
    uint64_t told[IB_RECEIVES + 1]; /* what each notice on its way says, oldest first */
} lane_t;

typedef struct side {
    ib_credits_t credits;
    uint64_t to_send, sent;
} side_t;

static void write_some(side_t *s, lane_t *out)
{
    if (ib_credits_due(&s->credits) && ib_credits_for_notice(&s->credits, true)) {
        s->credits.used++;
        s->credits.told = s->credits.posted;
        out->told[out->notices++] = s->credits.told;
    }
    while (s->sent < s->to_send && ib_credits_for_chunk(&s->credits, 0)) {
        s->credits.used++;
        s->sent++;
        out->chunks++;
    }
    assert_true(s->credits.used <= s->credits.granted + IB_SPARE);
}

static void take_one(side_t *s, lane_t *in)
{
    /* A queue pair keeps order, but the model need not: all that it may do is done here. */
    if (in->notices > 0 && (in->chunks == 0 || rand() % 4 == 0)) {
        assert_true(ib_credits_take(&s->credits, in->told[0]));
        in->notices--;
        memmove(in->told, in->told + 1, in->notices * sizeof(in->told[0]));
    } else if (in->chunks > 0) {
        in->chunks--;
    } else {
        return;
    }
    s->credits.posted++;
}

/* No request of work is ever missing at the receiving end, and neither end waits for ever. */
static void two_ends_never_run_dry(void **state)
{
    (void)state;
    srand(7);
    for (uint32_t round = 0; round < 200; round++) {
        side_t sides[2] = {{.to_send = (uint64_t)rand() % 3000},
                           {.to_send = round % 3 == 0 ? 0 : (uint64_t)rand() % 3000}};
        lane_t lanes[2] = {{0}, {0}}; /* towards side 0, towards side 1 */
        ib_credits_begin(&sides[0].credits);
        ib_credits_begin(&sides[1].credits);
        uint32_t idle = 0;
        while (idle < 10000 &&
               (sides[0].sent < sides[0].to_send || sides[1].sent < sides[1].to_send ||
                lanes[0].chunks > 0 || lanes[1].chunks > 0)) {
            const uint32_t who = (uint32_t)rand() % 2;
            const uint64_t before = sides[0].sent + sides[1].sent + sides[0].credits.posted +
                                    sides[1].credits.posted;
            for (int n = rand() % 20; n > 0; n--)
                take_one(&sides[who], &lanes[who]);
            write_some(&sides[who], &lanes[1 - who]);
            for (uint32_t i = 0; i < 2; i++) /* what is on its way has a request that waits */
                assert_true(sides[1 - i].credits.used <= sides[i].credits.posted + IB_SPARE);
            const uint64_t after = sides[0].sent + sides[1].sent + sides[0].credits.posted +
                                   sides[1].credits.posted;
            idle = before == after ? idle + 1 : 0;
        }
        assert_int_equal(sides[0].sent, sides[0].to_send);
        assert_int_equal(sides[1].sent, sides[1].to_send);
    }
}

/* Two queue pairs, of which the first one carries the notices of both, and nothing for a while. */
enum { TWO = 2, LINE = 2 * IB_NOTICES };

typedef struct line { /* what is on its way over one of them, in order */
    uint32_t first, end;
    struct {
        bool notice;
        uint64_t told[TWO];
    } rows[LINE];
} line_t;

typedef struct end {
    ib_credits_t credits[TWO];
    uint64_t to_send, sent;
} end_t;

static void line_put(end_t *e, line_t *out, uint32_t pair, bool notice)
{
    line_t *l = &out[pair];
    assert_true(l->end - l->first < LINE);
    l->rows[l->end % LINE].notice = notice;
    for (uint32_t i = 0; i < TWO && notice; i++)
        l->rows[l->end % LINE].told[i] = e->credits[i].told = e->credits[i].posted;
    l->end++;
    e->credits[pair].used++;
}

static void end_write(end_t *e, line_t *out)
{
    bool waited = false;
    for (uint32_t i = 0; i < TWO; i++)
        waited |= ib_credits_due(&e->credits[i]);
    if ((waited || rand() % 4 == 0) && ib_credits_for_notice(&e->credits[0], waited))
        line_put(e, out, 0, true);
    for (uint32_t i = 0; i < TWO; i++)
        while (e->sent < e->to_send && ib_credits_for_chunk(&e->credits[i], TWO - 1)) {
            line_put(e, out, i, false);
            e->sent++;
        }
}

static void end_take(end_t *e, line_t *in, uint32_t pair)
{
    line_t *l = &in[pair];
    if (l->first == l->end) return;
    e->credits[pair].posted++;
    for (uint32_t i = 0; i < TWO && l->rows[l->first % LINE].notice; i++)
        assert_true(ib_credits_take(&e->credits[i], l->rows[l->first % LINE].told[i]));
    l->first++;
}

static void two_ends_of_two_queue_pairs_never_run_dry(void **state)
{
    static line_t lines[2][TWO]; /* towards end 0, towards end 1 */
    (void)state;
    srand(11);
    for (uint32_t round = 0; round < 200; round++) {
        end_t ends[2] = {{.to_send = 1000 + (uint64_t)rand() % 2000},
                         {.to_send = 1000 + (uint64_t)rand() % 2000}};
        memset(lines, 0, sizeof(lines));
        for (uint32_t i = 0; i < 2 * TWO; i++)
            ib_credits_begin(&ends[i % 2].credits[i / 2]);
        uint32_t turns = 0, held = 0; /* held: turns that the first one carries nothing */
        while (ends[0].sent < ends[0].to_send || ends[1].sent < ends[1].to_send) {
            const uint32_t who = (uint32_t)rand() % 2;
            assert_true(turns++ < 100000);
            if (held == 0 && rand() % 200 == 0) held = 100;
            held -= held > 0;
            for (int n = rand() % 20; n > 0; n--) {
                if (held == 0) end_take(&ends[who], lines[who], 0);
                end_take(&ends[who], lines[who], 1);
            }
            end_write(&ends[who], lines[1 - who]);
            for (uint32_t i = 0; i < 2 * TWO; i++) /* what is on its way has a request that waits */
                assert_true(ends[1 - i % 2].credits[i / 2].used <=
                            ends[i % 2].credits[i / 2].posted + IB_SPARE);
        }
    }
}

static void chunks_come_in_any_order(void **state)
{
    uint32_t order[40];
    (void)state;
    srand(3);
    for (uint32_t round = 0; round < 500; round++) {
        const uint32_t count = 1 + (uint32_t)rand() % 40;
        ib_inbox_t box = {.room = 100ull * count};
        for (uint32_t i = 0; i < count; i++)
            order[i] = i;
        for (uint32_t i = count; i > 1; i--) {
            const uint32_t k = (uint32_t)rand() % i, kept = order[i - 1];
            order[i - 1] = order[k];
            order[k] = kept;
        }
        for (uint32_t i = 0; i < count; i++) {
            assert_false(ib_inbox_whole(&box));
            assert_true(ib_inbox_take(&box, order[i], order[i] + 1 == count, 100));
        }
        assert_true(ib_inbox_whole(&box));
        assert_int_equal(box.bytes, 100 * count);
        assert_false(ib_inbox_take(&box, 0, false, 0)); /* one more than there are */
    }
}

static void chunks_that_make_no_message_are_refused(void **state)
{
    ib_inbox_t box = {.room = 100};
    (void)state;
    assert_false(ib_inbox_take(&box, 0, false, 101));
    assert_true(ib_inbox_take(&box, 1, true, 50));
    assert_false(ib_inbox_take(&box, 0, true, 10));  /* a second last one */
    assert_false(ib_inbox_take(&box, 2, false, 10)); /* behind the last */
    assert_false(ib_inbox_take(&box, 0, false, 51));
    box = (ib_inbox_t){.room = 100};
    assert_true(ib_inbox_take(&box, 5, false, 1));
    assert_true(ib_inbox_take(&box, 6, false, 1));
    assert_false(ib_inbox_take(&box, 0, true, 1)); /* the last, where two have come */
}

static void numbers_are_found_in_what_is_granted(void **state)
{
    (void)state;
    for (uint64_t first = 0; first < 3000; first += 7)
        for (uint64_t n = first; n < first + IB_DEPTH; n += 5)
            assert_int_equal(ib_number_find(first, first + IB_DEPTH, (uint32_t)n & 511), n);
    assert_true(ib_number_find(10, 10, 10) == UINT64_MAX);
    assert_true(ib_number_find(10, 12, 9) == UINT64_MAX);
    assert_true(ib_number_find(10, 12, 12) == UINT64_MAX);
}

static void a_message_has_the_chunks_that_hold_it(void **state)
{
    (void)state;
    assert_int_equal(ib_chunks(0, 1000), 1);
    assert_int_equal(ib_chunks(1, 1000), 1);
    assert_int_equal(ib_chunks(1000, 1000), 1);
    assert_int_equal(ib_chunks(1001, 1000), 2);
    assert_true(ib_chunks(IB_MESSAGE_MOST, IB_CHUNK_LEAST) == 1 << IB_INDEX_BITS);
}

static void a_goodbye_can_be_shown(void **state)
{
    static ib_board_t board;
    char text[IB_REASON + 1];
    (void)state;
    ib_goodbye_write(&board, LH_MISMATCH, "tags 3 and 4");
    assert_int_equal(ib_goodbye_read(&board, text), LH_MISMATCH);
    assert_string_equal(text, "tags 3 and 4");
    memset(&board, 0xee, sizeof(board));
    assert_int_equal(ib_goodbye_read(&board, text), LH_PEER_LOST);
    assert_int_equal(strlen(text), IB_REASON);
    for (uint32_t i = 0; i < IB_REASON; i++)
        assert_int_equal(text[i], '?');
}

static void a_renewed_pair_counts_on_from_what_was_taken(void **state)
{
    ib_credits_t c;
    (void)state;
    ib_credits_begin(&c);
    c.used = 100;
    c.granted = 150;
    assert_false(ib_credits_renew(&c, 60, 59, 7));  /* less than it has acknowledged */
    assert_false(ib_credits_renew(&c, 60, 101, 7)); /* more than was written */
    assert_true(ib_credits_renew(&c, 60, 80, 7));
    assert_int_equal(c.used, 80);
    assert_int_equal(c.granted, 80 + IB_RECEIVES);
    assert_int_equal(c.posted, 7 + IB_RECEIVES);
    assert_int_equal(c.told, c.posted);
}

static const ib_greeting_t greeting = {.token = 0x01020304,
                                       .board = 0x1122334455667788,
                                       .key = 0xa0a1a2a3,
                                       .ports = 3,
                                       .index = 1,
                                       .pairs = 16,
                                       .security = LH_SECURITY_KNOWN,
                                       .first = true,
                                       .asks = true,
                                       .hello = {.job = 0x2122232425262728,
                                                 .epoch = 9,
                                                 .rank = 10,
                                                 .service = LH_SERVICE_BULK,
                                                 .serial = 12,
                                                 .direction = LH_SEND | LH_RECEIVE},
                                       .mac = "0123456789a"};

static void a_greeting_is_read_as_it_was_written(void **state)
{
    uint8_t bytes[IB_GREETING_BYTES];
    ib_greeting_t out, bad = greeting;
    (void)state;
    assert_true(ib_greeting_write(&greeting, bytes));
    assert_true(ib_greeting_read(bytes, sizeof(bytes), &out));
    assert_memory_equal(&out, &greeting, sizeof(greeting));
    assert_false(ib_greeting_read(bytes, sizeof(bytes) - 1, &out));
    assert_false(ib_greeting_read(NULL, 0, &out));
    bytes[0] ^= 1; /* another version */
    assert_false(ib_greeting_read(bytes, sizeof(bytes), &out));
    bad.index = 2;
    bad.pairs = 2;
    assert_true(ib_greeting_write(&bad, bytes));
    assert_false(ib_greeting_read(bytes, sizeof(bytes), &out));
    bad = greeting;
    bad.board = UINT64_MAX - 8;
    assert_true(ib_greeting_write(&bad, bytes));
    assert_false(ib_greeting_read(bytes, sizeof(bytes), &out));
    bad = greeting;
    bad.turn = 70000; /* then it is not the first, and the count has 32 bits */
    assert_false(ib_greeting_write(&bad, bytes));
    bad.first = false;
    assert_true(ib_greeting_write(&bad, bytes));
    assert_true(ib_greeting_read(bytes, sizeof(bytes), &out));
    assert_int_equal(out.board, 0x55667788);
    out.board = bad.board;
    assert_memory_equal(&out, &bad, sizeof(bad));
    bytes[20] |= 8; /* a later one that is the first */
    assert_false(ib_greeting_read(bytes, sizeof(bytes), &out));
    bad = greeting;
    bad.ports = IB_PORTS_MOST + 1;
    assert_false(ib_greeting_write(&bad, bytes));
    bad = greeting;
    bad.hello.service = 8;
    assert_false(ib_greeting_write(&bad, bytes));
    bad = greeting;
    bad.hello.reserved = 1;
    assert_false(ib_greeting_write(&bad, bytes));
}

/* Frames that have left after TICKS, of one each tick where the sender knows of a free one. Each is `hands`
 * ticks with threads of both ends, and `way` on the line, as what says that it may be written again. */
enum { TICKS = 4000 };
static uint64_t frames_sent(uint32_t frames, uint32_t way, uint32_t hands)
{
    static uint64_t sent[TICKS], told[TICKS];
    for (uint32_t t = 0; t < TICKS; t++) {
        const uint64_t opened = t >= way + hands ? sent[t - way - hands] : 0;
        const uint64_t before = t > 0 ? told[t - 1] : 0, out = t > 0 ? sent[t - 1] : 0;
        told[t] = ib_frames_due(frames, opened - before) ? opened : before;
        const uint64_t known = t >= way ? told[t - way] : 0;
        sent[t] = out + (out - known < frames ? 1 : 0);
    }
    return sent[TICKS - 1];
}

/* A window of 1.25 round trips and 2 chunks, and 2 frames beside it. On a short link there are as many in
 * the hands of threads as on the line, for which there are more where threads are. */
static void a_link_has_free_frames_all_the_time(void **state)
{
    (void)state;
    assert_int_equal(frames_sent(ib_frames(127, 1, 0), 50, 8), TICKS);
    assert_int_equal(frames_sent(ib_frames(252, 1, 0), 100, 8), TICKS);
    assert_int_equal(frames_sent(ib_frames(7, 1, 4), 2, 8), TICKS);
    assert_true(frames_sent(ib_frames(7, 1, 0), 2, 8) < TICKS);
    assert_int_equal(ib_frames(100, 100, 0), IB_FRAMES_LEAST);
    assert_int_equal(ib_frames(UINT64_MAX, 1, 16), IB_FRAMES_MOST);
    assert_int_equal(ib_frames(64 << 20, 1 << 20, 2), 70);
    for (uint32_t frames = 4; frames <= 1024; frames++) {
        assert_false(ib_frames_due(frames, 0));
        assert_true(ib_frames_due(frames, (frames + 15) / 16));
    }
}

static void a_challenge_is_no_text(void **state)
{
    uint8_t bytes[IB_CHALLENGE_BYTES], nonce[IB_NONCE_BYTES];
    (void)state;
    ib_challenge_write((const uint8_t *)"abcdefghijkl", bytes);
    assert_true(ib_challenge_read(bytes, sizeof(bytes), nonce));
    assert_memory_equal(nonce, "abcdefghijkl", IB_NONCE_BYTES);
    assert_false(ib_challenge_read(bytes, sizeof(bytes) - 1, nonce));
    assert_false(ib_challenge_read("the connection has ended", 24, nonce));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_immediate_is_read_as_it_was_written),
        cmocka_unit_test(words_that_nobody_writes_are_refused),
        cmocka_unit_test(grants_are_counted_around_their_low_bits),
        cmocka_unit_test(a_grant_is_the_one_that_is_asked_for),
        cmocka_unit_test(credits_that_a_peer_cannot_have_are_refused),
        cmocka_unit_test(two_ends_never_run_dry),
        cmocka_unit_test(two_ends_of_two_queue_pairs_never_run_dry),
        cmocka_unit_test(chunks_come_in_any_order),
        cmocka_unit_test(chunks_that_make_no_message_are_refused),
        cmocka_unit_test(numbers_are_found_in_what_is_granted),
        cmocka_unit_test(a_message_has_the_chunks_that_hold_it),
        cmocka_unit_test(a_goodbye_can_be_shown),
        cmocka_unit_test(a_renewed_pair_counts_on_from_what_was_taken),
        cmocka_unit_test(a_count_of_what_came_is_known_by_its_low_bits),
        cmocka_unit_test(turns_are_told_apart_by_their_low_bits),
        cmocka_unit_test(a_link_has_free_frames_all_the_time),
        cmocka_unit_test(a_greeting_is_read_as_it_was_written),
        cmocka_unit_test(a_challenge_is_no_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
