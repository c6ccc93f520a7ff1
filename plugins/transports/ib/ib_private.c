/* ib_private.c - `security = private`: messages travel as sealed frames through memory that this
 * transport owns.
 *
 * Whoever can write packets can write into any memory that a card lets the peer write. So a rank's
 * arenas are not registered here; what is, are this end's frames, and only those that come can be
 * written by a peer: one that changes a frame while it is sealed would have its change under a valid
 * tag. A chunk is sealed by a thread from the sender's buffer into a frame, written into the frame
 * of the same number at the peer, and opened by a thread there into its receive, so that nothing is
 * copied that is not encrypted. Frames are numbered over the connection: a number is a nonce and a
 * place in both rings. The receiver tells, with its grants, how many of the oldest frames may be
 * written again.
 *
 * Before the connection is up both ends tell each other the key share and the place of the frames,
 * with a MAC under the session that they have proven. What else travels (grants, credits, goodbyes)
 * is open and not sealed: who changes that can end the connection, and no more. */
#include "ib.h"

enum { SMALL = 16 << 10 };

/* Both halves, with every port. After a failure nothing of them is left. */
static lh_status_t make_frames(lh_conn_t *c)
{
    lh_transport_t *t = c->transport;
    ib_private_t *s = &c->sealed;
    const uint64_t half = (uint64_t)s->slots * s->slot_bytes;
    s->frames = ib_seal_map(2 * half);
    if (s->frames == NULL)
        return t->host->fail(t->host, LH_NO_MEMORY, "mmap of %llu bytes for frames",
                             (unsigned long long)(2 * half));
    lh_status_t status = ib_register_all(t, s->frames, half, false, s->mr_out);
    if (status == LH_OK) status = ib_register_all(t, s->frames + half, half, true, s->mr_in);
    if (status == LH_OK) return LH_OK;
    ib_forget_all(t, s->mr_out);
    ib_seal_unmap(s->frames, 2 * half);
    s->frames = NULL;
    return status;
}

/* The window has its frames, and the threads have none beside them; `all`: bytes that both take. */
static void say_threads_lack(const lh_conn_t *c, uint64_t all, const char *limit)
{
    const lh_transport_t *t = c->transport;
    const ib_private_t *s = &c->sealed;
    t->host->log(t->host, LH_LOG_WARN,
                 "rank %u: with security = private a window of %llu bytes and %u threads take %llu "
                 "bytes of registered memory, more than %s gives; %llu instead, and what threads "
                 "have in hand is part of the window%s",
                 c->peer, (unsigned long long)c->tuning.window_bytes, ib_pool_threads(t->pool),
                 (unsigned long long)all, t->ports[0].device, 2ull * s->slots * s->slot_bytes,
                 limit);
}

/* What a process may lock is known to the kernel alone, as others of it are locked, too: so the
 * frames are tried, those beside the window go first, and a window that was chosen is halved until they
 * can be had; either is told. A window that was set by hand is refused. */
static lh_status_t fit_frames(lh_conn_t *c)
{
    lh_transport_t *t = c->transport;
    const lh_host_t *host = t->host;
    ib_private_t *s = &c->sealed;
    const uint32_t least = ib_frames(c->tuning.window_bytes, c->tuning.chunk_bytes, 0);
    const uint64_t wanted = 2ull * least * s->slot_bytes;
    char limit[IB_LOCK_TEXT];
    lh_status_t status = make_frames(c);
    ib_lock_text(t, limit, sizeof(limit)); /* as it is without frames */
    if (status == LH_IO && s->slots > least) {
        const uint64_t all = 2ull * s->slots * s->slot_bytes;
        s->slots = least;
        status = make_frames(c);
        if (status == LH_OK) say_threads_lack(c, all, limit);
    }
    if (status == LH_OK || status == LH_NO_MEMORY) return status;
    if (t->config->window_bytes != 0)
        return host->fail(host, status,
                          "window = %llu: with security = private it takes %llu bytes of "
                          "registered memory, more than %s gives%s",
                          (unsigned long long)c->tuning.window_bytes, (unsigned long long)wanted,
                          t->ports[0].device, limit);
    while (status == LH_IO && s->slots > IB_FRAMES_LEAST) {
        s->slots = s->slots / 2 < IB_FRAMES_LEAST ? IB_FRAMES_LEAST : s->slots / 2;
        status = make_frames(c);
    }
    if (status == LH_OK)
        host->log(host, LH_LOG_WARN,
                  "rank %u: with security = private a window of %llu bytes takes %llu bytes of "
                  "registered memory, more than %s gives; %llu and %llu instead%s",
                  c->peer, (unsigned long long)c->tuning.window_bytes, (unsigned long long)wanted,
                  t->ports[0].device, (unsigned long long)(s->slots * c->tuning.chunk_bytes),
                  2ull * s->slots * s->slot_bytes, limit);
    return status;
}

lh_status_t ib_private_equip(lh_conn_t *c)
{
    lh_transport_t *t = c->transport;
    const lh_host_t *host = t->host;
    ib_private_t *s = &c->sealed;
    s->ready_end = &s->ready;
    lh_status_t status = ib_transport_seals(t);
    if (status != LH_OK) return status;
    s->slots = ib_frames(c->tuning.window_bytes, c->tuning.chunk_bytes, ib_pool_threads(t->pool));
    s->slot_bytes = (uint32_t)(c->tuning.chunk_bytes + IB_SEAL_OVER + 63) / 64 * 64;
    status = host->random(host, s->random, sizeof(s->random));
    if (status == LH_OK) status = fit_frames(c);
    if (status != LH_OK) return status;
    s->rows = host->alloc(host, 2 * s->slots * sizeof(s->rows[0]), 64);
    if (s->rows == NULL) return LH_NO_MEMORY;
    ib_share_t *mine = &c->board[1].share;
    *mine = (ib_share_t){.frames = (uint64_t)(uintptr_t)ib_private_slot(s, true, 0),
                         .slot_bytes = s->slot_bytes,
                         .slots = s->slots};
    for (uint32_t i = 0; i < t->port_count; i++)
        mine->keys[i] = s->mr_in[i]->rkey;
    if (!ib_share_make(s->random, mine->share))
        return host->fail(host, LH_NO_MEMORY, "X25519 of OpenSSL");
    return LH_OK;
}

uint8_t *ib_private_slot(const ib_private_t *s, bool in, uint64_t frame)
{
    return s->frames + ((in ? s->slots : 0) + frame % s->slots) * s->slot_bytes;
}

/* Rows of frames that leave, then those of frames that come. */
static ib_slot_t *row_of(const ib_private_t *s, bool in, uint64_t frame)
{
    return &s->rows[(in ? s->slots : 0) + frame % s->slots];
}

void ib_private_unmake(lh_conn_t *c)
{
    ib_private_t *s = &c->sealed;
    if (c->transport->pool != NULL) ib_pool_drop(c->transport->pool, c);
    ib_forget_all(c->transport, s->mr_out);
    ib_forget_all(c->transport, s->mr_in);
    s->ready = NULL;
    s->ready_end = &s->ready;
}

/* Keys don't stay in memory that others get. */
void ib_private_free(lh_conn_t *c)
{
    const lh_host_t *host = c->transport->host;
    ib_private_t *s = &c->sealed;
    ib_seal_unmap(s->frames, 2ull * s->slots * s->slot_bytes);
    if (s->rows != NULL) {
        ib_wipe(s->rows, 2 * s->slots * sizeof(s->rows[0]));
        host->release(host, s->rows);
    }
    ib_wipe(s, sizeof(*s));
    ib_wipe(c->session, sizeof(c->session));
}

/* ---- meeting ---- */

static void share_mac(const lh_conn_t *c, bool dials, const ib_share_t *share,
                      uint8_t out[IB_SESSION_BYTES])
{
    uint8_t text[1 + offsetof(ib_share_t, mac)] = {dials ? 3 : 4};
    memcpy(text + 1, share, offsetof(ib_share_t, mac));
    ib_session_mac(c->session, text, sizeof(text), out);
}

void ib_private_meet(lh_conn_t *c)
{
    uint8_t mac[IB_SESSION_BYTES];
    ib_share_t *mine = &c->board[1].share;
    if (c->sealed.told) return;
    share_mac(c, c->dials, mine, mac);
    memcpy(mine->mac, mac, sizeof(mine->mac));
    c->sealed.told = ib_pairs_share(c);
}

void ib_private_take_share(lh_conn_t *c)
{
    ib_private_t *s = &c->sealed;
    uint8_t mac[IB_SESSION_BYTES];
    ib_share_t theirs;
    memcpy(&theirs, &c->board->share, sizeof(theirs)); /* once: the peer can write it again */
    if (c->security != LH_SECURITY_PRIVATE || s->ready_keys) {
        ib_conn_break(c, LH_CORRUPT, "rank %u tells of frames that nobody has asked for", c->peer);
        return;
    }
    share_mac(c, !c->dials, &theirs, mac);
    if (!ib_same(mac, theirs.mac, sizeof(theirs.mac)) ||
        !ib_keys_agree(c->session, s->random, c->board[1].share.share, theirs.share, c->dials,
                       &s->out, &s->in)) {
        ib_conn_break(c, LH_DENIED, "rank %u could not prove that its frames are its own", c->peer);
        return;
    }
    if (theirs.slots < IB_FRAMES_LEAST || theirs.slots > IB_FRAMES_MOST ||
        theirs.slot_bytes <= IB_SEAL_OVER) {
        ib_conn_break(c, LH_CORRUPT, "rank %u has %u frames of %u bytes, which can't be", c->peer,
                      theirs.slots, theirs.slot_bytes);
        return;
    }
    s->peer = theirs;
    s->ready_keys = true;
}

/* ---- frames that leave ---- */

uint64_t ib_private_chunk(const lh_conn_t *c)
{
    const ib_private_t *s = &c->sealed;
    uint64_t room = s->slot_bytes - IB_SEAL_OVER;
    if (s->ready_keys && s->peer.slot_bytes < s->slot_bytes)
        room = s->peer.slot_bytes - IB_SEAL_OVER;
    return c->tuning.chunk_bytes < room ? c->tuning.chunk_bytes : room;
}

uint64_t ib_private_window(const lh_conn_t *c)
{
    const ib_private_t *s = &c->sealed;
    uint64_t slots = s->slots;
    if (s->ready_keys && s->peer.slots < slots) slots = s->peer.slots;
    const uint64_t room = slots * ib_private_chunk(c);
    return c->tuning.window_bytes < room ? c->tuning.window_bytes : room;
}

bool ib_private_room(const lh_conn_t *c)
{
    const ib_private_t *s = &c->sealed;
    return s->out_next - s->out_first < s->slots && s->out_next - s->opened < s->peer.slots;
}

static void is_ready(ib_private_t *s, ib_job_t *job)
{
    job->next = NULL;
    *s->ready_end = job;
    s->ready_end = &job->next;
}

static void seal_failed(lh_conn_t *c)
{
    ib_conn_break(c, LH_IO, "rank %u: OpenSSL could not seal a frame", c->peer);
}

void ib_private_begin(lh_conn_t *c, const ib_frame_t *head, const char *data)
{
    ib_private_t *s = &c->sealed;
    const uint64_t frame = s->out_next++;
    ib_slot_t *row = row_of(s, false, frame);
    row->over = false;
    row->job = (ib_job_t){.conn = c,
                          .sequence = frame,
                          .head = *head,
                          .data = (char *)(uintptr_t)data,
                          .frame = ib_private_slot(s, false, frame)};
    if (!ib_keys_at(&s->out, frame)) {
        seal_failed(c);
        return;
    }
    row->job.key = s->out.now;
    if (head->bytes > SMALL)
        ib_pool_give(c->transport->pool, &row->job);
    else if (ib_pool_do(c->transport->pool, &row->job))
        is_ready(s, &row->job);
    else
        seal_failed(c);
}

void ib_private_post(lh_conn_t *c)
{
    ib_private_t *s = &c->sealed;
    while (s->ready != NULL && c->state == IB_OPEN && ib_pairs_write_frame(c, s->ready)) {
        s->ready = s->ready->next;
        if (s->ready == NULL) s->ready_end = &s->ready;
    }
}

void ib_private_acked(lh_conn_t *c, uint64_t frame)
{
    ib_private_t *s = &c->sealed;
    row_of(s, false, frame)->over = true;
    while (s->out_first < s->out_next && row_of(s, false, s->out_first)->over)
        s->out_first++;
}

/* ---- frames that come ---- */

bool ib_private_take_opened(lh_conn_t *c, uint64_t opened)
{
    ib_private_t *s = &c->sealed;
    if (opened > s->out_next) return false;
    if (opened > s->opened) s->opened = opened;
    return true;
}

static void frame_corrupt(lh_conn_t *c, uint64_t frame)
{
    ib_conn_break(c, LH_CORRUPT,
                  "rank %u: frame %llu was not sealed with this connection's key for this place",
                  c->peer, (unsigned long long)frame);
}

static void frame_opened(lh_conn_t *c, const ib_job_t *job)
{
    ib_private_t *s = &c->sealed;
    ib_operation_t *o = &c->receives[job->head.message % IB_DEPTH];
    if (!job->good) {
        frame_corrupt(c, job->sequence);
        return;
    }
    if (!ib_inbox_take(&o->inbox, job->head.index, job->head.last, job->head.bytes)) {
        ib_conn_break(c, LH_CORRUPT,
                      "rank %u wrote chunk %u of message %llu, which fits no receive", c->peer,
                      job->head.index, (unsigned long long)job->head.message);
        return;
    }
    row_of(s, true, job->sequence)->over = true;
    while (s->in_first < job->sequence + s->slots && row_of(s, true, s->in_first)->over)
        row_of(s, true, s->in_first++)->over = false;
}

/* The head is opened here, and tells where the payload belongs. */
void ib_private_take_frame(lh_conn_t *c, uint32_t low, uint64_t bytes)
{
    ib_private_t *s = &c->sealed;
    const uint32_t mask = (1u << IB_INDEX_BITS) - 1;
    const uint64_t frame = s->in_first + ((low - (uint32_t)s->in_first) & mask);
    ib_slot_t *row = row_of(s, true, frame);
    ib_job_t *job = &row->job;
    if (!s->ready_keys || frame >= s->in_first + s->slots || row->over || bytes < IB_SEAL_OVER ||
        bytes > s->slot_bytes || (row->taken == frame + 1)) {
        ib_conn_break(c, LH_CORRUPT, "rank %u wrote frame %u with %llu bytes, which has no place",
                      c->peer, low, (unsigned long long)bytes);
        return;
    }
    *job = (ib_job_t){
        .conn = c, .opens = true, .sequence = frame, .frame = ib_private_slot(s, true, frame)};
    row->taken = frame + 1;
    if (!ib_keys_at(&s->in, frame) || !ib_open_head(ib_pool_cipher(c->transport->pool), &s->in.now,
                                                    frame, job->frame, &job->head)) {
        frame_corrupt(c, frame);
        return;
    }
    job->key = s->in.now;
    const ib_frame_t *h = &job->head;
    ib_operation_t *o = &c->receives[h->message % IB_DEPTH];
    if (h->message < c->receive_first || h->message >= c->receive_told || h->tag != o->tag ||
        h->bytes != bytes - IB_SEAL_OVER || h->offset > o->bytes ||
        h->bytes > o->bytes - h->offset) {
        ib_conn_break(c, LH_CORRUPT,
                      "rank %u sealed chunk %u of message %llu, which fits no receive", c->peer,
                      h->index, (unsigned long long)h->message);
        return;
    }
    job->data = o->data + h->offset;
    if (h->bytes > SMALL) {
        s->opening++;
        o->opening++;
        ib_pool_give(c->transport->pool, job);
        return;
    }
    (void)ib_pool_do(c->transport->pool, job);
    frame_opened(c, job);
}

bool ib_private_due(const lh_conn_t *c)
{
    const ib_private_t *s = &c->sealed;
    return c->security == LH_SECURITY_PRIVATE && ib_frames_due(s->slots, s->in_first - s->in_told);
}

/* Of all connections. */
void ib_private_done(lh_transport_t *t)
{
    ib_job_t *job;
    while (t->pool != NULL && (job = ib_pool_take(t->pool)) != NULL) {
        lh_conn_t *c = job->conn;
        if (job->opens) {
            c->sealed.opening--;
            c->receives[job->head.message % IB_DEPTH].opening--;
        }
        if (c->state != IB_OPEN) continue;
        if (job->opens)
            frame_opened(c, job);
        else if (job->good)
            is_ready(&c->sealed, job);
        else
            seal_failed(c);
    }
}
