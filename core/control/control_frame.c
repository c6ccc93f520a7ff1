/* control_frame.c - a cursor that never leaves its bytes, and one function for each kind of frame;
 * the progress word; what ranks found, side by side.
 *
 * What comes over a connection is taken for an attack until it has been read: each read goes
 * through a cursor that knows its end, and one bad field makes all that follow bad as well. So a
 * function reads all fields of a frame in a row and asks once, at the end, whether all were there
 * and nothing was left over. fuzz.control_frame feeds it arbitrary bytes.
 *
 * Fields are written by hand in little-endian, and no struct is copied onto the wire: a layout that
 * a compiler chooses is no format. */
#include <control/control_frame.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* good becomes false at the first field that is not there, and stays so. */
typedef struct cursor {
    const unsigned char *at, *end;
    bool good;
} cursor_t;

/* A little-endian number of so many bytes; 0 when they are not there. */
static uint64_t number_take(cursor_t *c, size_t bytes)
{
    uint64_t value = 0;
    if (!c->good || (size_t)(c->end - c->at) < bytes) {
        c->good = false;
        return 0;
    }
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)c->at[i] << (8 * i);
    c->at += bytes;
    return value;
}

static uint32_t take_u32(cursor_t *c)
{
    return (uint32_t)number_take(c, 4);
}

/* One NUL, at the end; at most limit bytes with it. */
static const char *frame_take_text(cursor_t *c, size_t limit)
{
    const size_t length = (size_t)number_take(c, 2);
    if (!c->good || length == 0 || length > limit || (size_t)(c->end - c->at) < length ||
        memchr(c->at, '\0', length) != c->at + length - 1) {
        c->good = false;
        return "";
    }
    const char *text = (const char *)c->at;
    c->at += length;
    return text;
}

static cursor_t cursor_of(const frame_t *f)
{
    return (cursor_t){f->payload, f->payload + f->length, true};
}

/* Well formed: every field was there, and the payload ends with the last one. */
static lh_status_t end_of(const cursor_t *c, const char *what)
{
    if (c->good && c->at == c->end) return LH_OK;
    return fail(LH_CORRUPT, "a %s of the control plane is not well formed", what);
}

/* The head is judged before the payload has come: a length that is too large is refused at once and
 * not waited for. The serial finds a frame that was lost, doubled or moved within a stream; TLS
 * would not let that happen to bytes, but a mistake of ours could. */
lh_status_t frame_cut(const unsigned char *bytes, size_t length, uint32_t serial, size_t limit,
                      frame_t *out, size_t *used)
{
    if (length < FRAME_HEAD) return LH_AGAIN;
    cursor_t c = {bytes, bytes + FRAME_HEAD, true};
    const uint32_t payload = take_u32(&c);
    const uint32_t type = take_u32(&c);
    const uint32_t came = take_u32(&c);
    if (type == 0 || type >= FRAME_TYPES)
        return fail(LH_CORRUPT, "a frame of the control plane has type %u, which is none", type);
    if (payload > limit)
        return fail(LH_CORRUPT, "a frame of the control plane has %u bytes, at most %zu are taken",
                    payload, limit);
    if (came != serial)
        return fail(LH_CORRUPT, "frame %u of the control plane came where %u was due", came,
                    serial);
    if (length - FRAME_HEAD < payload) return LH_AGAIN;
    *out = (frame_t){.type = type, .payload = bytes + FRAME_HEAD, .length = payload};
    *used = FRAME_HEAD + (size_t)payload;
    return LH_OK;
}

/* A payload that could not be built for want of memory makes the stream fail as well. */
void frame_append(text_t *out, uint32_t type, uint32_t serial, const text_t *payload)
{
    frame_put_u32(out, (uint32_t)payload->length);
    frame_put_u32(out, type);
    frame_put_u32(out, serial);
    if (payload->length > 0) text_append_n(out, payload->data, payload->length);
    out->failed = out->failed || payload->failed;
}

/* Facts are only checked here, and stepped through later with frame_next_fact. Of another version's
 * hello these three numbers are known, and nothing of what follows. */
lh_status_t frame_read_hello(const frame_t *f, frame_hello_t *out)
{
    cursor_t c = cursor_of(f);
    frame_hello_t h = {.version = take_u32(&c)};
    h.rank = take_u32(&c);
    h.size = take_u32(&c);
    if (c.good && h.version != FRAME_VERSION) {
        h.site = h.host = h.layout = h.met = h.tried = "";
        *out = h;
        return LH_OK;
    }
    h.pid = take_u32(&c);
    h.epoch = take_u32(&c);
    h.stayed = take_u32(&c);
    h.site = frame_take_text(&c, FRAME_FACT_TEXT);
    h.host = frame_take_text(&c, FRAME_FACT_TEXT);
    h.herald = take_u32(&c);
    h.layout = frame_take_text(&c, FRAME_LAYOUT);
    h.met_epoch = take_u32(&c);
    h.met = frame_take_text(&c, FRAME_LAYOUT);
    h.tried = frame_take_text(&c, FRAME_TRIED);
    h.fact_count = take_u32(&c);
    h.facts = c.at;
    if (h.fact_count > FRAME_FACTS) c.good = false;
    for (uint32_t i = 0; c.good && i < 2 * h.fact_count; i++)
        (void)frame_take_text(&c, FRAME_FACT_TEXT);
    const lh_status_t status = end_of(&c, "hello");
    if (status == LH_OK) *out = h;
    return status;
}

static void frame_take_place(cursor_t *c, frame_place_t *out)
{
    out->pid = take_u32(c);
    out->site = frame_take_text(c, FRAME_FACT_TEXT);
    out->host = frame_take_text(c, FRAME_FACT_TEXT);
}

lh_status_t frame_read_welcome(const frame_t *f, frame_welcome_t *out)
{
    cursor_t c = cursor_of(f);
    frame_place_t place;
    frame_welcome_t w = {.job = number_take(&c, 8)};
    w.epoch = take_u32(&c);
    w.size = take_u32(&c);
    w.address = frame_take_text(&c, FRAME_FACT_TEXT);
    w.places = c.at;
    for (uint32_t i = 0; c.good && i < w.size; i++)
        frame_take_place(&c, &place);
    const lh_status_t status = end_of(&c, "welcome");
    if (status == LH_OK) *out = w;
    return status;
}

lh_status_t frame_read_notice(const frame_t *f, frame_notice_t *out)
{
    cursor_t c = cursor_of(f);
    frame_notice_t n = {.status = (lh_status_t)take_u32(&c)};
    n.rank = take_u32(&c);
    n.step = number_take(&c, 8);
    n.reason = frame_take_text(&c, FRAME_REASON);
    /* LH_AGAIN: of a door, that it is one, and that it has ended (control_door.c). */
    const bool of_door = n.status == LH_AGAIN && (f->type == FRAME_WAIT || f->type == FRAME_REFUSE);
    if (n.status > 0 && !of_door) c.good = false;
    const lh_status_t status = end_of(&c, "notice");
    if (status == LH_OK) *out = n;
    return status;
}

lh_status_t frame_read_regroup(const frame_t *f, frame_regroup_t *out)
{
    cursor_t c = cursor_of(f);
    frame_regroup_t r = {.epoch = take_u32(&c)};
    r.layout = frame_take_text(&c, FRAME_LAYOUT);
    r.reason = frame_take_text(&c, FRAME_REASON);
    const lh_status_t status = end_of(&c, "regroup");
    if (status == LH_OK) *out = r;
    return status;
}

lh_status_t frame_read_beat(const frame_t *f, frame_beat_t *out)
{
    cursor_t c = cursor_of(f);
    frame_beat_t b = {.step = number_take(&c, 8)};
    b.waited_ns = number_take(&c, 8);
    b.text = frame_take_text(&c, PROGRESS_TEXT);
    const lh_status_t status = end_of(&c, "heartbeat");
    if (status == LH_OK) *out = b;
    return status;
}

lh_status_t frame_read_gather(const frame_t *f, frame_gather_t *out)
{
    cursor_t c = cursor_of(f);
    frame_gather_t g = {.channel = take_u32(&c)};
    g.round = take_u32(&c);
    g.where = frame_take_text(&c, FRAME_FACT_TEXT);
    g.length = take_u32(&c);
    g.bytes = c.at;
    if (c.good && g.length <= (size_t)(c.end - c.at))
        c.at += g.length;
    else
        c.good = false;
    if (g.channel >= CONTROL_CHANNELS) c.good = false;
    const lh_status_t status = end_of(&c, "part");
    if (status == LH_OK) *out = g;
    return status;
}

/* A text that a frame_read function has checked. */
static const char *next_text(const unsigned char **at)
{
    const char *text = (const char *)*at + 2;
    *at += 2 + ((size_t)(*at)[0] | (size_t)(*at)[1] << 8);
    return text;
}

void frame_next_fact(const unsigned char **at, const char **name, const char **value)
{
    *name = next_text(at);
    *value = next_text(at);
}

/* Reads what frame_read_welcome has checked. */
void frame_next_place(const unsigned char **at, frame_place_t *out)
{
    cursor_t c = {*at, *at + 4, true};
    out->pid = take_u32(&c);
    *at += 4;
    out->site = next_text(at);
    out->host = next_text(at);
}

/* Appends a little-endian number. */
static void number_put(text_t *out, uint64_t value, size_t bytes)
{
    lh_assert(bytes <= 8);
    char raw[8];
    for (size_t i = 0; i < bytes; i++)
        raw[i] = (char)(unsigned char)(value >> (8 * i));
    text_append_n(out, raw, bytes);
}

void frame_put_u32(text_t *out, uint32_t value)
{
    number_put(out, value, 4);
}

void frame_put_u64(text_t *out, uint64_t value)
{
    number_put(out, value, 8);
}

/* A text that is too long is cut, never refused: what is sent are names and sentences for people.
 */
void frame_put_text(text_t *out, const char *text, size_t limit)
{
    lh_assert(limit > 0);
    const size_t length = strnlen(text, limit - 1);
    number_put(out, length + 1, 2);
    text_append_n(out, text, length);
    text_append_n(out, "", 1);
}

void frame_write_hello(text_t *out, const frame_hello_t *hello)
{
    frame_put_u32(out, hello->version);
    frame_put_u32(out, hello->rank);
    frame_put_u32(out, hello->size);
    frame_put_u32(out, hello->pid);
    frame_put_u32(out, hello->epoch);
    frame_put_u32(out, hello->stayed);
    frame_put_text(out, hello->site, FRAME_FACT_TEXT);
    frame_put_text(out, hello->host, FRAME_FACT_TEXT);
    frame_put_u32(out, hello->herald);
    frame_put_text(out, hello->layout, FRAME_LAYOUT);
    frame_put_u32(out, hello->met_epoch);
    frame_put_text(out, hello->met, FRAME_LAYOUT);
    frame_put_text(out, hello->tried, FRAME_TRIED);
    frame_put_u32(out, hello->fact_count);
}

void frame_write_notice(text_t *out, const frame_notice_t *notice)
{
    frame_put_u32(out, (uint32_t)notice->status);
    frame_put_u32(out, notice->rank);
    frame_put_u64(out, notice->step);
    frame_put_text(out, notice->reason, FRAME_REASON);
}

void frame_write_regroup(text_t *out, const frame_regroup_t *regroup)
{
    frame_put_u32(out, regroup->epoch);
    frame_put_text(out, regroup->layout, FRAME_LAYOUT);
    frame_put_text(out, regroup->reason, FRAME_REASON);
}

void frame_write_beat(text_t *out, const progress_t *progress)
{
    frame_put_u64(out, progress->step);
    frame_put_u64(out, progress->waited_ns);
    frame_put_text(out, progress->text, PROGRESS_TEXT);
}

void frame_write_gather(text_t *out, const frame_gather_t *part)
{
    frame_put_u32(out, part->channel);
    frame_put_u32(out, part->round);
    frame_put_text(out, part->where, FRAME_FACT_TEXT);
    frame_put_u32(out, part->length);
    if (part->length > 0) text_append_n(out, (const char *)part->bytes, part->length);
}

/* Two threads of a rank may tell at the same time: who comes second drops its text and does not
 * wait. The serial is odd while the words change; the fence keeps their stores behind that one. */
void control_progress_write(progress_word_t *w, uint64_t step, const char *text)
{
    uint64_t words[PROGRESS_WORDS] = {0};
    const size_t length = text == NULL ? 0 : strnlen(text, PROGRESS_TEXT - 1);
    if (length > 0) memcpy(words, text, length);

    uint64_t serial = atomic_load_explicit(&w->serial, memory_order_relaxed);
    if (serial % 2 != 0 || !atomic_compare_exchange_strong(&w->serial, &serial, serial + 1)) return;
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&w->step, step, memory_order_relaxed);
    for (uint32_t i = 0; i < PROGRESS_WORDS; i++)
        atomic_store_explicit(&w->text[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&w->serial, serial + 2, memory_order_release);
}

/* A writer that died in between leaves an odd number for ever: what is there is then taken. */
void control_progress_read(const progress_word_t *w, progress_t *out)
{
    enum { TRIES = 100 };
    uint64_t words[PROGRESS_WORDS];
    for (uint32_t try = 0; try < TRIES; try++) {
        const uint64_t before = atomic_load_explicit(&w->serial, memory_order_acquire);
        out->step = atomic_load_explicit(&w->step, memory_order_relaxed);
        for (uint32_t i = 0; i < PROGRESS_WORDS; i++)
            words[i] = atomic_load_explicit(&w->text[i], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        const uint64_t after = atomic_load_explicit(&w->serial, memory_order_relaxed);
        if (before == after && before % 2 == 0) break;
    }
    memcpy(out->text, words, sizeof(words));
    out->text[PROGRESS_TEXT - 1] = '\0';
    out->waited_ns = atomic_load_explicit(&w->waited_ns, memory_order_relaxed);
}

/* Appended to "was lost" or "failed". */
void control_progress_phrase(const progress_t *p, char out[PROGRESS_PHRASE])
{
    const bool text = p->text[0] != '\0';
    out[0] = '\0';
    if (p->step > 0)
        (void)snprintf(out, PROGRESS_PHRASE, " in step %llu%s%s", (unsigned long long)p->step,
                       text ? ", " : "", p->text);
    else if (text)
        (void)snprintf(out, PROGRESS_PHRASE, " in %s", p->text);
}

enum { TABLE_BYTES = 1500, VALUES_SHOWN = 4 };

/* NULL: this rank does not know such a fact. */
static const char *value_of(const rank_facts_t *rank, const char *wanted)
{
    const unsigned char *at = rank->hello.facts;
    const char *name, *value;
    for (uint32_t i = 0; i < rank->hello.fact_count; i++) {
        frame_next_fact(&at, &name, &value);
        if (strcmp(name, wanted) == 0) return value;
    }
    return NULL;
}

/* NULL, which is a fact that a rank does not know, is a value of its own. */
static bool same_fact(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* "ranks 0-2, 5 (tokyo/t1)": all that have the value of rank `first`, and where that one is. */
static void append_ranks(const rank_facts_t *ranks, uint32_t count, uint32_t first,
                         const char *name, text_t *out)
{
    const char *value = value_of(&ranks[first], name);
    const frame_hello_t *where = &ranks[first].hello;
    uint32_t members = 0;
    text_t list = {0};
    for (uint32_t r = first; r < count; r++) {
        uint32_t end = r;
        while (end < count && same_fact(value_of(&ranks[end], name), value))
            end++;
        if (end == r) continue;
        text_printf(&list, members > 0 ? ", %u" : "%u", r);
        if (end - r > 1) text_printf(&list, "-%u", end - 1);
        members += end - r;
        r = end;
    }
    text_printf(out, "%s on rank%s %s", value == NULL ? "(not set)" : value, members > 1 ? "s" : "",
                list.failed ? "?" : list.data);
    if (where->host[0] != '\0')
        text_printf(out, " (%s%s%s)", where->site, where->site[0] != '\0' ? "/" : "", where->host);
    text_free(&list);
}

/* Each value is shown once, at the first rank that has it. */
static bool is_first_with(const rank_facts_t *ranks, uint32_t rank, const char *name)
{
    for (uint32_t r = 0; r < rank; r++)
        if (same_fact(value_of(&ranks[r], name), value_of(&ranks[rank], name))) return false;
    return true;
}

/* "[train] batch: 8 on ranks 0-2 (tokyo/t1); 16 on rank 3 (osaka/o1)". */
static void append_row(const rank_facts_t *ranks, uint32_t count, const char *name, text_t *out)
{
    uint32_t values = 0;
    text_printf(out, "\n%s: ", name);
    for (uint32_t r = 0; r < count && values < VALUES_SHOWN; r++) {
        if (!is_first_with(ranks, r, name)) continue;
        if (values++ > 0) text_append(out, "; ");
        append_ranks(ranks, count, r, name, out);
    }
}

bool control_facts_same(const rank_facts_t *a, const rank_facts_t *b)
{
    const unsigned char *at_a = a->hello.facts, *at_b = b->hello.facts;
    if (a->hello.fact_count != b->hello.fact_count) return false;
    for (uint32_t i = 0; i < a->hello.fact_count; i++) {
        const char *name_a, *value_a, *name_b, *value_b;
        frame_next_fact(&at_a, &name_a, &value_a);
        frame_next_fact(&at_b, &name_b, &value_b);
        if (strcmp(name_a, name_b) != 0 || strcmp(value_a, value_b) != 0) return false;
    }
    return true;
}

/* Each name once: at the first rank that has it. */
static bool came_before(const rank_facts_t *ranks, uint32_t rank, const char *name)
{
    for (uint32_t r = 0; r < rank; r++)
        if (value_of(&ranks[r], name) != NULL) return true;
    return false;
}

/* Such a fact needs no row. */
static bool all_have(const rank_facts_t *ranks, uint32_t count, const char *name, const char *value)
{
    for (uint32_t r = 0; r < count; r++)
        if (!same_fact(value_of(&ranks[r], name), value)) return false;
    return true;
}

/* Two walks: one that finds out whether there is anything to tell, which is all that happens in a
 * job that is well; and one that writes the table. The table is cut at TABLE_BYTES, as it travels
 * to every rank in a notice, and says how many more rows there would have been. */
bool control_facts_agree(const rank_facts_t *ranks, uint32_t count, text_t *table)
{
    uint32_t left_out = 0;
    bool agree = true;
    for (uint32_t r = 1; agree && r < count; r++)
        agree = control_facts_same(&ranks[0], &ranks[r]);
    if (agree) return true;
    for (uint32_t r = 0; r < count; r++) {
        const unsigned char *at = ranks[r].hello.facts;
        for (uint32_t i = 0; i < ranks[r].hello.fact_count; i++) {
            const char *name, *value;
            frame_next_fact(&at, &name, &value);
            if (all_have(ranks, count, name, value) || came_before(ranks, r, name)) continue;
            if (table->length > TABLE_BYTES)
                left_out++;
            else
                append_row(ranks, count, name, table);
        }
    }
    if (left_out > 0) text_printf(table, "\nand %u more", left_out);
    return false;
}

/* False: there is no room for it in the table. */
static bool append_pair(const char *name, const char *found, const char *expected, text_t *table)
{
    if (table->length > TABLE_BYTES) return false;
    text_printf(table, "\n%s: %s, expected %s", name, found == NULL ? "(not set)" : found,
                expected == NULL ? "(not set)" : expected);
    return true;
}

/* Names of the INI's keys begin with their section. */
bool control_facts_within(const rank_facts_t *some, const rank_facts_t *all, bool loads,
                          text_t *table)
{
    const unsigned char *at = some->hello.facts;
    const char *name, *value;
    uint32_t rows = 0, shown = 0;
    for (uint32_t i = 0; i < some->hello.fact_count; i++) {
        frame_next_fact(&at, &name, &value);
        const char *expected = value_of(all, name);
        if (same_fact(value, expected)) continue;
        rows++;
        shown += append_pair(name, value, expected, table);
    }
    at = all->hello.facts;
    for (uint32_t i = 0; i < all->hello.fact_count; i++) {
        frame_next_fact(&at, &name, &value);
        if ((name[0] != '[' && !loads) || value_of(some, name) != NULL) continue;
        rows++;
        shown += append_pair(name, NULL, value, table);
    }
    if (rows > shown) text_printf(table, "\nand %u more", rows - shown);
    return rows == 0;
}

/* Often in the first minute, when somebody looks at the terminal; then seldom, so that a log of a
 * long wait stays short. */
bool control_wait_due(control_wait_t *w, uint64_t now)
{
    const uint64_t often = UINT64_C(5000000000), minute = UINT64_C(60000000000);
    if (w->since == 0) *w = (control_wait_t){.since = now, .next = now + often};
    if (now < w->next) return false;
    w->next = now + (now - w->since < minute ? often : minute);
    return true;
}
