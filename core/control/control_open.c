/* control_open.c - opens and closes a rank's control plane: what it says of itself, the plane's memory and
 * its one thread.
 *
 * Rank 0's thread runs the server (control_server.c), every other rank's the client (control_client.c); what
 * is here is the same for both, so that a caller never asks which of the two it has. The thread is started
 * last and opening waits for it: the price is that a rank can do nothing else while it meets the others, and
 * what that buys is that a plane which could not be opened leaves nothing running behind. */
#include <control/control_open.h>

#include <errno.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <base/memory.h>
#include <base/text.h>
#include <base/thread.h>
#include <control/control_ask.h>
#include <control/control_client.h>
#include <control/control_conn.h>
#include <control/control_server.h>

/* The hello is built before the thread starts: facts are the caller's, and are valid until
 * control_open returns. */
static lh_status_t write_hello(control_t *c)
{
    static const control_members_t none = {.layout = "", .met = "", .tried = ""};
    const control_members_t *m = c->how.members != NULL ? c->how.members : &none;
    frame_hello_t hello = {.version = FRAME_VERSION,
                           .herald = m->herald ? HELLO_HERALD : HELLO_RANK,
                           .layout = m->layout,
                           .met_epoch = m->met_epoch,
                           .met = m->met,
                           .tried = m->tried,
                           .rank = c->how.rank,
                           .size = c->how.size,
                           .pid = (uint32_t)getpid(),
                           .epoch = c->how.epoch,
                           .stayed = c->how.stayed ? 1u : 0u,
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
    hello.herald = HELLO_ASKS;
    hello.fact_count = 0;
    frame_write_hello(&c->ask, &hello);
    const lh_status_t status = text_status(&c->hello);
    return status == LH_OK ? text_status(&c->ask) : status;
}

/* `closed` is the thread's last word: whoever waits for an answer gets none after it. */
static void *control_thread_run(void *argument)
{
    control_t *c = argument;
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

static lh_status_t start_thread(control_t *c)
{
    const int error = thread_start(&c->thread, "lh-control", control_thread_run, c);
    if (error != 0)
        return fail(LH_NO_MEMORY, "cannot start the control plane's thread: %s", strerror(error));
    return LH_OK;
}

/* Once the thread has ended or was never started. Everything may be missing. */
static void free_control(control_t *c)
{
    control_ask_end(c);
    control_server_free(c->server);
    control_client_free(c->client);
    control_tls_free(c->tls);
    world_free(c->world);
    world_free(c->unplanned);
    text_free(&c->hello);
    text_free(&c->ask);
    if (c->wake_fd >= 0) (void)close(c->wake_fd);
    if (c->fail_fd >= 0) (void)close(c->fail_fd);
    (void)pthread_cond_destroy(&c->changed);
    (void)pthread_mutex_destroy(&c->lock);
    for (uint32_t i = 0; i < CONTROL_CHANNELS; i++)
        (void)pthread_mutex_destroy(&c->gather_locks[i]);
    mem_free(c);
}

/* Builds the plane and starts its thread last: what fails before that has nothing to stop. */
static lh_status_t new_control(const control_how_t *how, control_t **out)
{
    control_t *c = mem_new(sizeof(*c));
    if (c == NULL) return LH_NO_MEMORY;
    c->how = *how;
    if (c->how.epoch == 0) c->how.epoch = 1;
    (void)snprintf(c->host, sizeof(c->host), "%s", how->host == NULL ? "" : how->host);
    (void)snprintf(c->site, sizeof(c->site), "%s", how->site == NULL ? "" : how->site);
    (void)snprintf(c->address, sizeof(c->address), "%s", how->address == NULL ? "" : how->address);
    c->word = how->word != NULL ? how->word : &c->own_word;
    for (uint32_t i = 0; i < CONTROL_CHANNELS; i++)
        (void)pthread_mutex_init(&c->gather_locks[i], NULL);
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->changed, NULL);
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->fail_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    lh_status_t status = LH_OK;
    if (c->wake_fd < 0 || c->fail_fd < 0) status = fail_io(errno, "cannot start the control plane");
    if (status == LH_OK) status = write_hello(c);
    if (status == LH_OK && how->plan == NULL) {
        const bool herald = how->members != NULL && how->members->herald;
        status = herald ? world_new(0, 1, &c->unplanned)
                        : world_new(how->rank, how->size, &c->unplanned);
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

/* Blocks until the thread has met all ranks or has given up. Where it has given up it ends by
 * itself, so that nothing is left running when this fails. */
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

void control_goes_on(control_t *c)
{
    (void)pthread_mutex_lock(&c->lock);
    c->request.goes_on = true;
    (void)pthread_mutex_unlock(&c->lock);
}

/* The thread says goodbye and ends; on rank 0 it waits for the goodbyes of the others. The first
 * reason of the job goes before the caller's: all ranks end with one sentence. */
lh_status_t control_close(control_t *c, lh_status_t status, const char *reason)
{
    if (c == NULL) return status;
    (void)pthread_mutex_lock(&c->lock);
    c->request.close = true;
    c->request.status = status;
    (void)snprintf(c->request.reason, sizeof(c->request.reason), "%s",
                   status == LH_OK || reason == NULL ? "" : reason);
    (void)pthread_mutex_unlock(&c->lock);
    control_wake(c);
    (void)pthread_join(c->thread, NULL);
    const lh_status_t agreed = atomic_load(&c->status);
    if (agreed != LH_OK) status = fail_again(agreed, c->failure);
    free_control(c);
    return status;
}
