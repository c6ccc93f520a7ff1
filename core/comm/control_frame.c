/* control_frame.c - a cursor that never leaves its bytes, and one function a kind of frame. */
#include <comm/control_frame.h>

typedef struct cursor {
    const unsigned char *at, *end;
    bool good;
} cursor_t;

static uint64_t take(cursor_t *c, size_t bytes)
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
    return (uint32_t)take(c, 4);
}

/* One NUL, at the end; at most limit bytes with it. */
static const char *take_text(cursor_t *c, size_t limit)
{
    const size_t length = (size_t)take(c, 2);
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

static lh_status_t end_of(const cursor_t *c, const char *what)
{
    if (c->good && c->at == c->end) return LH_OK;
    return fail(LH_CORRUPT, "a %s of the control plane is not well formed", what);
}

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

void frame_append(text_t *out, uint32_t type, uint32_t serial, const text_t *payload)
{
    frame_put_u32(out, (uint32_t)payload->length);
    frame_put_u32(out, type);
    frame_put_u32(out, serial);
    if (payload->length > 0) text_append_n(out, payload->data, payload->length);
    out->failed = out->failed || payload->failed;
}

lh_status_t frame_read_hello(const frame_t *f, frame_hello_t *out)
{
    cursor_t c = cursor_of(f);
    frame_hello_t h = {.version = take_u32(&c)};
    h.rank = take_u32(&c);
    h.size = take_u32(&c);
    h.pid = take_u32(&c);
    h.incarnation = take(&c, 8);
    h.site = take_text(&c, FRAME_FACT_TEXT);
    h.host = take_text(&c, FRAME_FACT_TEXT);
    h.fact_count = take_u32(&c);
    h.facts = c.at;
    if (h.fact_count > FRAME_FACTS) c.good = false;
    for (uint32_t i = 0; c.good && i < 2 * h.fact_count; i++)
        (void)take_text(&c, FRAME_FACT_TEXT);
    const lh_status_t status = end_of(&c, "hello");
    if (status == LH_OK) *out = h;
    return status;
}

static void take_place(cursor_t *c, frame_place_t *out)
{
    out->pid = take_u32(c);
    out->site = take_text(c, FRAME_FACT_TEXT);
    out->host = take_text(c, FRAME_FACT_TEXT);
}

lh_status_t frame_read_welcome(const frame_t *f, frame_welcome_t *out)
{
    cursor_t c = cursor_of(f);
    frame_place_t place;
    frame_welcome_t w = {.job = take(&c, 8)};
    w.epoch = take_u32(&c);
    w.size = take_u32(&c);
    w.places = c.at;
    for (uint32_t i = 0; c.good && i < w.size; i++)
        take_place(&c, &place);
    const lh_status_t status = end_of(&c, "welcome");
    if (status == LH_OK) *out = w;
    return status;
}

lh_status_t frame_read_notice(const frame_t *f, frame_notice_t *out)
{
    cursor_t c = cursor_of(f);
    frame_notice_t n = {.status = (lh_status_t)take_u32(&c)};
    n.rank = take_u32(&c);
    n.reason = take_text(&c, FRAME_REASON);
    if (n.status > 0) c.good = false;
    const lh_status_t status = end_of(&c, "notice");
    if (status == LH_OK) *out = n;
    return status;
}

lh_status_t frame_read_beat(const frame_t *f, frame_beat_t *out)
{
    cursor_t c = cursor_of(f);
    frame_beat_t b = {.step = take(&c, 8)};
    b.text = take_text(&c, PROGRESS_TEXT);
    const lh_status_t status = end_of(&c, "heartbeat");
    if (status == LH_OK) *out = b;
    return status;
}

lh_status_t frame_read_gather(const frame_t *f, frame_gather_t *out)
{
    cursor_t c = cursor_of(f);
    frame_gather_t g = {.round = take_u32(&c)};
    g.where = take_text(&c, FRAME_FACT_TEXT);
    g.length = take_u32(&c);
    g.bytes = c.at;
    if (c.good && g.length <= (size_t)(c.end - c.at))
        c.at += g.length;
    else
        c.good = false;
    const lh_status_t status = end_of(&c, "part");
    if (status == LH_OK) *out = g;
    return status;
}

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

void frame_next_place(const unsigned char **at, frame_place_t *out)
{
    cursor_t c = {*at, *at + 4, true};
    out->pid = take_u32(&c);
    *at += 4;
    out->site = next_text(at);
    out->host = next_text(at);
}

static void put(text_t *out, uint64_t value, size_t bytes)
{
    char raw[8];
    for (size_t i = 0; i < bytes; i++)
        raw[i] = (char)(unsigned char)(value >> (8 * i));
    text_append_n(out, raw, bytes);
}

void frame_put_u32(text_t *out, uint32_t value)
{
    put(out, value, 4);
}

void frame_put_u64(text_t *out, uint64_t value)
{
    put(out, value, 8);
}

void frame_put_text(text_t *out, const char *text, size_t limit)
{
    const size_t length = strnlen(text, limit - 1);
    put(out, length + 1, 2);
    text_append_n(out, text, length);
    text_append_n(out, "", 1);
}

void frame_write_hello(text_t *out, const frame_hello_t *hello)
{
    frame_put_u32(out, hello->version);
    frame_put_u32(out, hello->rank);
    frame_put_u32(out, hello->size);
    frame_put_u32(out, hello->pid);
    frame_put_u64(out, hello->incarnation);
    frame_put_text(out, hello->site, FRAME_FACT_TEXT);
    frame_put_text(out, hello->host, FRAME_FACT_TEXT);
    frame_put_u32(out, hello->fact_count);
}

void frame_write_notice(text_t *out, const frame_notice_t *notice)
{
    frame_put_u32(out, (uint32_t)notice->status);
    frame_put_u32(out, notice->rank);
    frame_put_text(out, notice->reason, FRAME_REASON);
}

void frame_write_beat(text_t *out, const progress_t *progress)
{
    frame_put_u64(out, progress->step);
    frame_put_text(out, progress->text, PROGRESS_TEXT);
}

void frame_write_gather(text_t *out, uint32_t round, const char *where, const void *bytes,
                        uint32_t length)
{
    frame_put_u32(out, round);
    frame_put_text(out, where, FRAME_FACT_TEXT);
    frame_put_u32(out, length);
    if (length > 0) text_append_n(out, bytes, length);
}
