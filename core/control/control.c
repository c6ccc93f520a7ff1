/* control.c - what callers see of the control plane; all work is done by its one thread. */
#include <control/control.h>

#include <stdio.h>
#include <unistd.h>

#include <base/memory.h>
#include <control/control_state.h>

void control_wake(const control_t *c)
{
    const uint64_t one = 1;
    (void)!write(c->wake_fd, &one, sizeof(one));
}

void control_drain_wake(const control_t *c)
{
    uint64_t count;
    (void)!read(c->wake_fd, &count, sizeof(count));
}

void control_opened(control_t *c, lh_status_t status, const char *reason)
{
    (void)pthread_mutex_lock(&c->lock);
    if (!c->open_done) {
        c->open_done = true;
        c->open_status = status;
        (void)snprintf(c->open_reason, sizeof(c->open_reason), "%s", reason);
    }
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

void control_decide(control_t *c, lh_status_t status, const char *sentence)
{
    const uint64_t one = 1;
    if (atomic_load(&c->status) != LH_OK) return;
    (void)pthread_mutex_lock(&c->lock);
    (void)snprintf(c->failure, sizeof(c->failure), "%s", sentence);
    atomic_store(&c->status, status == LH_OK ? LH_PEER_LOST : status);
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    (void)!write(c->fail_fd, &one, sizeof(one));
}

void control_answer(control_t *c, const void *all, size_t bytes)
{
    (void)pthread_mutex_lock(&c->lock);
    control_request_t *r = &c->request;
    if (r->gather && !r->gathered && bytes == r->bytes * c->how.size) {
        if (bytes > 0) memcpy(r->all, all, bytes);
        r->gathered = true;
    }
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

uint64_t control_outage_ns(const control_t *c)
{
    return c->how.outage_ns != 0 ? c->how.outage_ns : CONTROL_SILENCE_MS * CONTROL_MS;
}

void control_count(control_t *c, control_conn_t *conn)
{
    uint64_t sent, received;
    conn_traffic(conn, &sent, &received);
    atomic_fetch_add(&c->bytes_sent, sent);
    atomic_fetch_add(&c->bytes_received, received);
}

void control_name(uint32_t rank, const char *site, const char *host, char out[CONTROL_NAME])
{
    (void)snprintf(out, CONTROL_NAME, "rank %u%s%s%s%s", rank, host[0] != '\0' ? " on " : "",
                   host[0] != '\0' ? site : "", host[0] != '\0' && site[0] != '\0' ? "/" : "",
                   host);
}

lh_status_t control_make_world(uint32_t rank, const frame_place_t *places,
                               const frame_welcome_t *welcome, world_t **out)
{
    lh_assert(rank < welcome->size);
    world_t *w;
    const lh_status_t status = world_new(rank, welcome->size, &w);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < welcome->size; i++) {
        world_rank_t *r = &w->ranks[i];
        r->pid = places[i].pid;
        (void)snprintf(r->host, sizeof(r->host), "%.*s", WORLD_HOST_NAME - 1, places[i].host);
        (void)snprintf(r->site_name, sizeof(r->site_name), "%.*s", WORLD_SITE_NAME - 1,
                       places[i].site);
    }
    world_number(w);
    w->row.epoch = welcome->epoch;
    w->row.job = welcome->job;
    (void)snprintf(w->row.address, sizeof(w->row.address), "%.63s", welcome->address);
    *out = w;
    return LH_OK;
}

static lh_status_t gather(control_t *c, const char *where, const void *mine, size_t bytes,
                          void *all)
{
    if (bytes > FRAME_SMALL / 2 || bytes * c->how.size > FRAME_LARGE / 2)
        return fail(LH_INVALID, "%zu bytes of each of %u ranks are too many to gather", bytes,
                    c->how.size);
    (void)pthread_mutex_lock(&c->gather_lock);
    (void)pthread_mutex_lock(&c->lock);
    control_request_t *r = &c->request;
    r->mine = mine;
    r->bytes = bytes;
    r->all = all;
    r->gathered = false;
    (void)snprintf(r->where, sizeof(r->where), "%s", where);
    r->gather = true;
    control_wake(c);
    while (!r->gathered && atomic_load(&c->status) == LH_OK && !c->closed)
        (void)pthread_cond_wait(&c->changed, &c->lock);
    const bool done = r->gathered;
    r->gather = false;
    r->round++;
    (void)pthread_mutex_unlock(&c->lock);
    (void)pthread_mutex_unlock(&c->gather_lock);
    if (done) return LH_OK;
    return fail_again(control_status(c), control_failure(c));
}

lh_status_t control_gather(control_t *c, const void *mine, size_t bytes, void *all)
{
    return gather(c, "", mine, bytes, all);
}

lh_status_t control_barrier(control_t *c, const char *where)
{
    return gather(c, where, NULL, 0, NULL);
}

void control_progress(control_t *c, uint64_t step, const char *text)
{
    control_progress_write(c->word, step, text);
}

lh_status_t control_status(const control_t *c)
{
    return atomic_load(&c->status);
}

const char *control_failure(const control_t *c)
{
    return atomic_load(&c->status) == LH_OK ? "" : c->failure;
}

void control_fail(control_t *c, uint32_t peer, lh_status_t status, const char *reason)
{
    (void)pthread_mutex_lock(&c->lock);
    if (!c->request.fail && atomic_load(&c->status) == LH_OK && !c->closed) {
        c->request.fail = true;
        c->request.peer = peer;
        c->request.status = status;
        (void)snprintf(c->request.reason, sizeof(c->request.reason), "%s", reason);
        control_wake(c);
    }
    (void)pthread_mutex_unlock(&c->lock);
}

bool control_wait_due(control_wait_t *w, uint64_t now)
{
    const uint64_t often = UINT64_C(5000000000), minute = UINT64_C(60000000000);
    if (w->since == 0) *w = (control_wait_t){.since = now, .next = now + often};
    if (now < w->next) return false;
    w->next = now + (now - w->since < minute ? often : minute);
    return true;
}

int control_fd(const control_t *c)
{
    return c->fail_fd;
}

void control_counts(const control_t *c, control_counts_t *out)
{
    *out = (control_counts_t){.strangers = atomic_load(&c->strangers),
                              .handshakes = atomic_load(&c->handshakes),
                              .bytes_sent = atomic_load(&c->bytes_sent),
                              .bytes_received = atomic_load(&c->bytes_received)};
}
