/* ib_board_fuzz.c - what a peer of the ib transport can write: its greeting, immediates, grants,
 * credits and goodbyes. The first byte says what the rest is; of a conversation it is a list of
 * immediates with the board's words that each of them is about. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <ib_ring.h>

static void try_greeting(const uint8_t *bytes, size_t size)
{
    ib_greeting_t g;
    uint8_t again[IB_GREETING_BYTES], nonce[IB_NONCE_BYTES];
    const bool challenge = ib_challenge_read(bytes, size, nonce);
    if (!ib_greeting_read(bytes, size, &g)) return;
    FUZZ_ASSERT(!challenge);
    FUZZ_ASSERT(g.index < g.pairs && g.pairs <= IB_PAIRS_MOST);
    FUZZ_ASSERT(g.ports >= 1 && g.ports <= IB_PORTS_MOST &&
                (g.turn == 0 || (!g.first && g.board <= UINT32_MAX)));
    FUZZ_ASSERT(g.board + sizeof(ib_board_t) >= g.board);
    /* No bit is without a meaning. */
    FUZZ_ASSERT(ib_greeting_write(&g, again) && memcmp(again, bytes, sizeof(again)) == 0);
    ib_credits_t c = {.used = g.key};
    if (ib_credits_renew(&c, g.turn, g.board, g.token))
        FUZZ_ASSERT(g.board >= g.turn && g.board <= g.key && c.granted - c.used == IB_RECEIVES);
}

static void try_goodbye(const uint8_t *bytes, size_t size)
{
    ib_board_t board = {0};
    char text[IB_REASON + 1];
    const size_t most = offsetof(ib_board_t, grants) - offsetof(ib_board_t, status);
    memcpy(&board.status, bytes, size < most ? size : most);
    FUZZ_ASSERT(ib_goodbye_read(&board, text) < 0);
    FUZZ_ASSERT(strlen(text) <= IB_REASON);
    for (const char *c = text; *c != '\0'; c++)
        FUZZ_ASSERT(*c >= ' ' && *c <= '~');
}

typedef struct talk { /* one end, with the state that a peer can change */
    ib_board_t board;
    ib_credits_t credits;
    uint64_t granted, send_first, receive_first, receive_told;
    ib_inbox_t boxes[IB_DEPTH];
} talk_t;

typedef struct word { /* of the input: an immediate, and what the peer writes before it */
    uint32_t immediate, bytes;
    uint64_t posted;
    ib_grant_t grant;
} word_t;

static bool hear_notice(talk_t *t, const ib_immediate_t *what)
{
    const int32_t more = ib_grants_new(t->granted, t->send_first, what->number);
    if (more < 0 || !ib_credits_take(&t->credits, t->board.notices[0].posted[0])) return false;
    FUZZ_ASSERT(t->credits.granted - t->credits.used <= IB_RECEIVES);
    t->granted += (uint32_t)more;
    FUZZ_ASSERT(t->granted - t->send_first <= IB_DEPTH);
    while (t->send_first < t->granted && ib_credits_for_chunk(&t->credits, 0)) {
        ib_grant_t grant;
        if (!ib_grant_read(&t->board, t->send_first, &grant)) return false;
        FUZZ_ASSERT(grant.address + grant.bytes >= grant.address);
        t->credits.used++;
        t->send_first++;
    }
    return true;
}

static bool hear(talk_t *t, const word_t *w)
{
    ib_immediate_t what;
    t->board.notices[0].posted[0] = w->posted;
    t->board.grants[w->grant.number % IB_DEPTH] = w->grant;
    t->credits.posted++;
    if (!ib_immediate_read(w->immediate, &what)) return false;
    FUZZ_ASSERT(ib_immediate_write(&what) == w->immediate);
    if (what.kind == IB_NOTICE) return hear_notice(t, &what);
    if (what.kind == IB_AWAY) FUZZ_ASSERT(what.index < IB_PAIRS_MOST);
    if (what.kind >= IB_GOODBYE) return false;
    const uint64_t number = ib_number_find(t->receive_first, t->receive_told, what.number);
    if (number == UINT64_MAX) return false;
    FUZZ_ASSERT(number >= t->receive_first && number < t->receive_told);
    ib_inbox_t *box = &t->boxes[number % IB_DEPTH];
    if (!ib_inbox_take(box, what.index, what.last, w->bytes)) return false;
    FUZZ_ASSERT(box->bytes <= box->room);
    FUZZ_ASSERT(!ib_inbox_whole(box) || box->seen == box->total);
    return true;
}

static void try_talk(const uint8_t *bytes, size_t size)
{
    static talk_t t;
    word_t w;
    memset(&t, 0, sizeof(t));
    ib_credits_begin(&t.credits);
    t.receive_told = 100;
    for (uint32_t i = 0; i < IB_DEPTH; i++)
        t.boxes[i].room = 1 << 20;
    for (; size >= sizeof(w); bytes += sizeof(w), size -= sizeof(w)) {
        memcpy(&w, bytes, sizeof(w));
        if (!hear(&t, &w)) return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size < 1) return 0;
    if (bytes[0] % 3 == 0) try_greeting(bytes + 1, size - 1);
    if (bytes[0] % 3 == 1) try_goodbye(bytes + 1, size - 1);
    if (bytes[0] % 3 == 2) try_talk(bytes + 1, size - 1);
    return 0;
}
