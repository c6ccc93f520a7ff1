/* control.c - what callers see of the control plane; all work is done by its one thread. */
#include <control/control_client.h>
#include <control/control_server.h>
#include <control/control_state.h>

#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <base/memory.h>
#include <base/sys.h>

static void wake(const control_t *c)
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

static lh_status_t write_hello(control_t *c)
{
    const frame_hello_t hello = {.version = FRAME_VERSION,
                                 .rank = c->how.rank,
                                 .size = c->how.size,
                                 .pid = (uint32_t)getpid(),
                                 .incarnation = c->incarnation,
                                 .site = c->site,
                                 .host = c->host,
                                 .fact_count = c->how.fact_count};
    if (c->how.fact_count > FRAME_FACTS)
        return fail(LH_INVALID, "%u facts to compare, at most %d are", c->how.fact_count,
                    FRAME_FACTS);
    frame_write_hello(&c->hello, &hello);
    for (uint32_t i = 0; i < c->how.fact_count; i++) {
        frame_put_text(&c->hello, c->how.facts[i].name, FRAME_FACT_TEXT);
        frame_put_text(&c->hello, c->how.facts[i].value, FRAME_FACT_TEXT);
    }
    return text_status(&c->hello);
}

static void *thread_run(void *argument)
{
    control_t *c = argument;
    (void)pthread_setname_np(pthread_self(), "lh-control");
    if (c->server != NULL)
        control_server_run(c);
    else
        control_client_run(c);
    (void)pthread_mutex_lock(&c->lock);
    c->closed = true;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Signals are the main thread's; SIGPIPE of a lost peer is nobody's. */
static lh_status_t start_thread(control_t *c)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&c->thread, NULL, thread_run, c);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return fail(LH_NO_MEMORY, "cannot start the control plane's thread: %s", strerror(error));
    return LH_OK;
}

static void free_control(control_t *c)
{
    control_server_free(c->server);
    control_client_free(c->client);
    control_tls_free(c->tls);
    world_free(c->world);
    world_free(c->unplanned);
    text_free(&c->hello);
    if (c->wake_fd >= 0) (void)close(c->wake_fd);
    if (c->fail_fd >= 0) (void)close(c->fail_fd);
    (void)pthread_cond_destroy(&c->changed);
    (void)pthread_mutex_destroy(&c->lock);
    (void)pthread_mutex_destroy(&c->gather_lock);
    mem_free(c);
}

static lh_status_t new_control(const control_how_t *how, control_t **out)
{
    control_t *c = mem_new(sizeof(*c));
    if (c == NULL) return LH_NO_MEMORY;
    c->how = *how;
    (void)snprintf(c->host, sizeof(c->host), "%s", how->host == NULL ? "" : how->host);
    (void)snprintf(c->site, sizeof(c->site), "%s", how->site == NULL ? "" : how->site);
    (void)snprintf(c->address, sizeof(c->address), "%s", how->address == NULL ? "" : how->address);
    c->word = how->word != NULL ? how->word : &c->own_word;
    (void)pthread_mutex_init(&c->gather_lock, NULL);
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->changed, NULL);
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->fail_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    lh_status_t status = LH_OK;
    if (c->wake_fd < 0 || c->fail_fd < 0 ||
        sys()->random(&c->incarnation, sizeof(c->incarnation)) != 0)
        status = fail_io(errno, "cannot start the control plane");
    if (status == LH_OK) status = write_hello(c);
    if (status == LH_OK && how->plan == NULL) {
        status = world_new(how->rank, how->size, &c->unplanned);
        c->how.plan = c->unplanned;
    }
    if (status == LH_OK) status = control_tls_new(how->secret, &c->tls);
    if (status == LH_OK && how->rank == 0) status = control_server_new(c, &c->server);
    if (status == LH_OK && how->rank != 0) status = control_client_new(c, &c->client);
    if (status == LH_OK) status = start_thread(c);
    if (status != LH_OK) {
        free_control(c);
        return status;
    }
    *out = c;
    return LH_OK;
}

lh_status_t control_open(const control_how_t *how, control_t **out, world_t **world)
{
    control_t *c;
    if (how->size == 0 || how->rank >= how->size)
        return fail(LH_INVALID, "rank %u of %u ranks: ranks count from 0", how->rank, how->size);
    lh_status_t status = new_control(how, &c);
    if (status != LH_OK) return status;
    (void)pthread_mutex_lock(&c->lock);
    while (!c->open_done)
        (void)pthread_cond_wait(&c->changed, &c->lock);
    status = c->open_status;
    (void)pthread_mutex_unlock(&c->lock);
    if (status != LH_OK) {
        (void)pthread_join(c->thread, NULL); /* it has ended by itself */
        status = fail_again(status, c->open_reason);
        free_control(c);
        return status;
    }
    *world = c->world;
    c->world = NULL;
    *out = c;
    return LH_OK;
}

lh_status_t control_close(control_t *c, lh_status_t status, const char *reason)
{
    if (c == NULL) return status;
    (void)pthread_mutex_lock(&c->lock);
    c->request.close = true;
    c->request.status = status;
    (void)snprintf(c->request.reason, sizeof(c->request.reason), "%s",
                   status == LH_OK || reason == NULL ? "" : reason);
    (void)pthread_mutex_unlock(&c->lock);
    wake(c);
    (void)pthread_join(c->thread, NULL);
    const lh_status_t agreed = atomic_load(&c->status);
    if (agreed != LH_OK) status = fail_again(agreed, c->failure);
    free_control(c);
    return status;
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
    wake(c);
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
    progress_write(c->word, step, text);
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
        wake(c);
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
