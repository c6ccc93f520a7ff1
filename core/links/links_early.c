/* links_early.c - a probe beside the rest of a job's opening.
 *
 * What is measured decides what connections are like, which way sums take and how much is under way, so
 * connecting waits for it. What comes before does not: reading data, opening the device, recording programs
 * and making lists take as long as a probe or longer. So it begins as soon as the ranks know each other's
 * addresses, and is waited for where its figures are first needed.
 *
 * Who owns what. A transport's calls come one at a time, so the carrier between sites changes hands: it is
 * taken out of the job's links and put into links of the probe's own, with which the thread does all of
 * links_probe. Nobody else sees those before pthread_join, but for two atomics: `waits_ns`, by which the
 * thread's lines in the log say for how much of a measurement others have waited, and `cancelled`. A second
 * instance of the transport would need no such exchange; it would need another port, though, and every card
 * opened twice. Of the carrier that is lent the job's links read what never changes once it is open. The
 * table of addresses, the job, the world and the registry's rows are read by both and written by nobody.
 *
 * Ranks gather in the control plane's CONTROL_ASIDE, as the opening gathers too, and which of both comes
 * first is another one on each rank.
 *
 * The price: whatever keeps the processors busy meanwhile makes the probe find less, and no pace is ever
 * above what it has found. Who begins it sees to what runs beside it (comm_probe). */
#include <links/links_early.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <base/thread.h>
#include <links/links_probe.h>

/* As long as a sentence of base/status.h: it may be the control plane's. */
enum { EARLY_REASON = 2048 };

/* What the thread has written of it is read after it has ended, but for `ended`. */
struct links_early {
    pthread_t thread;
    links_t *own; /* with the carrier between sites; its addresses are borrowed */
    probe_pair_t *known;
    uint32_t known_count;
    lh_status_t status;
    char reason[EARLY_REASON];
    _Atomic bool ended;
};

/* A rank whose probe has failed takes part in no gather any more: the others, who wait there, hear why. */
static void *early_run(void *argument)
{
    links_early_t *e = argument;
    links_t *l = e->own;
    e->status = links_probe(l, e->known, e->known_count);
    if (e->status != LH_OK) {
        (void)snprintf(e->reason, sizeof(e->reason), "%s", fail_reason());
        if (!atomic_load(&l->cancelled))
            control_fail(l->how.control, l->how.world->row.rank, e->status, e->reason);
    }
    atomic_store(&e->ended, true);
    return NULL;
}

static lh_status_t early_thread(links_early_t *e)
{
    const int error = thread_start(&e->thread, "lh-probe", early_run, e);
    if (error == 0) return LH_OK;
    return fail(LH_NO_MEMORY, "the thread that measures links between sites can't be started: %s",
                strerror(error));
}

/* The carrier goes to the probe's links, or comes back. */
static void early_lend(links_t *l, links_early_t *e, bool back)
{
    links_t *from = back ? e->own : l, *to = back ? l : e->own;
    lh_assert(to->carriers[LH_LINK_WAN] == NULL);
    to->carriers[LH_LINK_WAN] = from->carriers[LH_LINK_WAN];
    from->carriers[LH_LINK_WAN] = NULL;
    l->lent = back ? NULL : e->own->carriers[LH_LINK_WAN];
}

/* With the carrier, where the probe's links still have it. */
static void early_free(links_early_t *e)
{
    if (e->own != NULL) e->own->addresses = NULL;
    links_close(e->own);
    mem_free(e->known);
    mem_free(e);
}

/* A probe that has failed, or that nobody wants: its connections and the carrier are closed with its links.
 * What the job's links had registered with that before it was lent is released first. */
static void early_drop(links_t *l, links_early_t *e)
{
    const carrier_t *c = e->own->carriers[LH_LINK_WAN];
    for (uint32_t i = 0; i < l->arena_count; i++) {
        lh_region_t **region = &l->arenas[i].regions[LH_LINK_WAN];
        if (*region != NULL) c->api->release_memory(c->transport, *region);
        *region = NULL;
    }
    l->lent = NULL;
    early_free(e);
}

static lh_status_t early_new(const links_t *l, const probe_pair_t *known, uint32_t count,
                             links_early_t **out)
{
    links_early_t *e = mem_new(sizeof(*e));
    if (e == NULL) return LH_NO_MEMORY;
    e->own = mem_new(sizeof(*e->own));
    e->known = mem_array(count, sizeof(*known));
    if (e->own == NULL || e->known == NULL) {
        early_free(e);
        return LH_NO_MEMORY;
    }
    e->own->how = l->how;
    e->own->addresses = l->addresses;
    e->own->aside = true;
    if (count > 0) memcpy(e->known, known, count * sizeof(*known));
    e->known_count = count;
    *out = e;
    return LH_OK;
}

lh_status_t links_early_start(links_t *l, const probe_pair_t *known, uint32_t count)
{
    links_early_t *e;
    lh_assert(l->early == NULL && l->link_count == 0 && l->pairs == NULL);
    if (l->how.world->row.sites < 2 || l->carriers[LH_LINK_WAN] == NULL ||
        l->how.job->comm.probe == PROBE_NO)
        return LH_OK;
    lh_status_t status = early_new(l, known, count, &e);
    if (status != LH_OK) return status;
    early_lend(l, e, false);
    status = early_thread(e);
    if (status != LH_OK) {
        early_lend(l, e, true);
        early_free(e);
        return status;
    }
    l->early = e;
    return LH_OK;
}

/* What the probe leaves: figures, words, bytes that were moved, and peers that have dialed already. */
static void early_take(links_t *l, links_t *own)
{
    lh_assert(own->link_count == 0 && own->arena_count == 0 && l->guest_count == 0);
    l->pairs = own->pairs;
    l->pair_count = own->pair_count;
    l->words = own->words;
    l->word_count = own->word_count;
    l->said = own->said;
    mem_free(l->guests);
    l->guests = own->guests;
    l->guest_count = own->guest_count;
    l->guest_capacity = own->guest_capacity;
    l->sent[LH_LINK_WAN] += own->sent[LH_LINK_WAN];
    l->received[LH_LINK_WAN] += own->received[LH_LINK_WAN];
    own->pairs = NULL;
    own->words = NULL;
    own->said = (text_t){0};
    own->guests = NULL;
    own->guest_count = 0;
}

/* Memory that came while the carrier was lent. */
static lh_status_t early_register(links_t *l)
{
    const carrier_t *c = l->carriers[LH_LINK_WAN];
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < l->arena_count; i++) {
        arena_t *a = &l->arenas[i];
        if (a->regions[LH_LINK_WAN] != NULL || a->row.kind != LH_MEM_HOST) continue;
        status = c->api->register_memory(c->transport, 0, &a->row, &a->regions[LH_LINK_WAN]);
    }
    return status;
}

lh_status_t links_early_finish(links_t *l)
{
    links_early_t *e = l->early;
    if (e == NULL) return l->failed == LH_OK ? LH_OK : fail_again(l->failed, l->failure);
    atomic_store(&e->own->waits_ns, sys()->now_ns());
    (void)pthread_join(e->thread, NULL);
    l->early = NULL;
    if (e->status == LH_OK) {
        early_lend(l, e, true);
        early_take(l, e->own);
        early_free(e);
        return early_register(l);
    }
    char reason[EARLY_REASON]; /* which closing may put another one in the place of */
    memcpy(reason, e->reason, sizeof(reason));
    l->failed = e->status;
    (void)snprintf(l->failure, sizeof(l->failure), "%.*s", LINKS_REASON - 1, reason);
    early_drop(l, e);
    return fail_again(l->failed, reason);
}

bool links_early_takes_device(const links_t *l)
{
    return l->lent != NULL && carrier_takes_device(l->lent);
}

/* Until all know that this rank has failed, or the probe is over anyway. */
static void early_spread(const links_t *l, const links_early_t *e)
{
    const uint64_t until = sys()->now_ns() + 500000000;
    const struct timespec nap = {.tv_nsec = 1000000};
    while (!atomic_load(&e->ended) && control_status(l->how.control) == LH_OK &&
           sys()->now_ns() < until)
        (void)nanosleep(&nap, NULL);
}

void links_early_end(links_t *l)
{
    links_early_t *e = l == NULL ? NULL : l->early;
    if (e == NULL) return;
    early_spread(l, e);
    atomic_store(&e->own->cancelled, true);
    control_leave(l->how.control, CONTROL_ASIDE);
    (void)pthread_join(e->thread, NULL);
    l->early = NULL;
    early_drop(l, e);
}
