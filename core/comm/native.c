/* native.c - groups of a plugin's collectives: which there are, and how their ranks meet.
 *
 * Ranks meet in two gathers for each kind of group: the first member's token with how everybody's part
 * of it went, and, once each has joined, whether all have. So a library that is missing on one machine
 * is told on all ranks, with the rank that lacks it, before step 0. */
#include <comm/native.h>

#include <stdio.h>
#include <time.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <links/carrier.h>

enum { REASON = 300 };
static const long join_nap_ns = 1000000;

/* What a rank brings to a gather. */
typedef struct report {
    lh_status_t status;
    char reason[REASON];
    lh_address_t token; /* of a group's first member */
} report_t;

struct native {
    const job_t *job;
    const world_t *world;
    const plugin_t *plugin;
    const lh_collective_api_t *api;
    lh_transport_t *transport;
    void *config;
    lh_native_t queue;
    group_t *groups[LH_GROUPS]; /* NULL: there is none, or it has ranks elsewhere */
    bool used[LH_GROUPS];
    lh_group_t *joined[LH_GROUPS];
};

/* Groups over one machine; a site (or node) that is all there is makes DATA and SITE the same group. */
static lh_status_t native_groups_find(native_t *n)
{
    static const uint32_t kinds[] = {LH_GROUP_DATA, LH_GROUP_SITE};
    for (uint32_t i = 0; i < 2; i++) {
        group_t *g;
        if (i > 0 && world_blocks(n->world) == 1) continue;
        const lh_status_t status = world_group_new(n->world, kinds[i], &g);
        if (status != LH_OK) return status;
        bool here = g->size > 1;
        for (uint32_t m = 0; m < g->size; m++)
            here = here &&
                   n->world->ranks[g->ranks[m]].node == n->world->ranks[n->world->row.rank].node;
        if (here)
            n->groups[kinds[i]] = g;
        else
            world_group_free(g);
    }
    return LH_OK;
}

static uint32_t group_kind(const native_t *n, uint32_t group)
{
    return group == LH_GROUP_SITE && world_blocks(n->world) == 1 ? LH_GROUP_DATA : group;
}

lh_status_t native_open(const job_t *job, registry_t *registry, const world_t *world,
                        native_t **out)
{
    const job_transport_t *section = &job->transports[LH_LINK_NODE];
    const char *const others[2] = {section->plugin, section->fallback};
    if (section->collectives == NULL || world->row.size == 1) return LH_OK;
    native_t *n = mem_new(sizeof(*n));
    if (n == NULL) return LH_NO_MEMORY;
    n->job = job;
    n->world = world;
    lh_status_t status = registry_load(registry, LH_KIND_TRANSPORT, section->collectives,
                                       &n->plugin);
    if (status == LH_OK) n->api = n->plugin->transport->collectives;
    if (status == LH_OK && n->api == NULL)
        status = fail(LH_UNSUPPORTED, "[transport.node] collectives = %s: it makes no collectives",
                      section->collectives);
    if (status == LH_OK)
        status = carrier_parse(job, registry, LH_LINK_NODE, n->plugin, others, &n->config);
    if (status == LH_OK)
        status = n->plugin->transport->open(n->plugin->host, n->config, &n->transport);
    if (status == LH_OK) status = native_groups_find(n);
    if (status != LH_OK) {
        native_close(n);
        return status;
    }
    *out = n;
    return LH_OK;
}

void native_close(native_t *n)
{
    if (n == NULL) return;
    for (uint32_t i = 0; i < LH_GROUPS; i++) {
        if (n->joined[i] != NULL) n->api->leave(n->joined[i]);
        world_group_free(n->groups[i]);
    }
    if (n->transport != NULL) n->plugin->transport->close(n->transport);
    if (n->config != NULL) {
        const option_table_t options = plugin_options(n->plugin);
        job_free_config(&options, n->config);
    }
    mem_free(n);
}

bool native_offers(const native_t *n, const char *queue, uint32_t group, uint32_t op,
                   lh_dtype_t dtype)
{
    return n != NULL && n->groups[group_kind(n, group)] != NULL &&
           n->api->offers(n->transport, queue, op, dtype);
}

uint64_t native_use(native_t *n, uint32_t group, const lh_coll_t *call)
{
    const uint32_t kind = group_kind(n, group);
    const group_t *g = n->groups[kind];
    lh_assert(g != NULL);
    n->used[kind] = true;
    return n->api->workspace(n->transport, call, g->self, g->size);
}

void native_queue(native_t *n, const lh_native_t *queue)
{
    n->queue = *queue;
}

static void report_note(report_t *r, lh_status_t status)
{
    r->status = status;
    if (status != LH_OK) (void)snprintf(r->reason, sizeof(r->reason), "%s", fail_reason());
}

/* All ranks bring how they fared, and draw the same conclusion. */
static lh_status_t reports_gather(const native_t *n, control_t *control, const report_t *mine,
                                  report_t *all)
{
    char who[128];
    lh_status_t status = control_gather(control, mine, sizeof(*mine), all);
    for (uint32_t r = 0; status == LH_OK && r < n->world->row.size; r++) {
        if (all[r].status == LH_OK) continue;
        all[r].reason[REASON - 1] = '\0';
        world_rank_text(n->world, r, who, sizeof(who));
        status = r == n->world->row.rank ? fail_again(all[r].status, all[r].reason)
                                         : fail(all[r].status, "%s: %s", who, all[r].reason);
    }
    return status;
}

/* Until the library has found all members; a peer that is lost ends it by the control plane. */
static lh_status_t join_wait(native_t *n, uint32_t kind, control_t *control)
{
    const uint64_t began = sys()->now_ns(), limit = n->job->comm.timeout_ns;
    for (;;) {
        lh_status_t status = n->api->test(n->joined[kind]);
        if (status != LH_AGAIN) return status;
        status = control_status(control);
        if (status != LH_OK) return fail_again(status, control_failure(control));
        if (sys()->now_ns() - began > limit)
            return fail(LH_TIMED_OUT, "the %u ranks of a machine did not meet in %s for %.1f s",
                        n->groups[kind]->size, n->plugin->name, (double)limit * 1e-9);
        (void)nanosleep(&(struct timespec){.tv_nsec = join_nap_ns}, NULL);
    }
}

static lh_status_t group_meet(native_t *n, uint32_t kind, control_t *control, report_t *all)
{
    const group_t *g = n->used[kind] ? n->groups[kind] : NULL;
    report_t mine = {.status = LH_OK};
    if (g != NULL && g->self == 0) report_note(&mine, n->api->new_token(n->transport, &mine.token));
    lh_status_t status = reports_gather(n, control, &mine, all);
    if (status != LH_OK) return status;

    mine.status = LH_OK;
    if (g != NULL) {
        status = n->api->join(n->transport, &all[g->ranks[0]].token, g->self, g->size, &n->queue,
                              &n->joined[kind]);
        if (status == LH_OK) status = join_wait(n, kind, control);
        report_note(&mine, status);
    }
    return reports_gather(n, control, &mine, all);
}

/* Once, by rank 0: whether what the job asked for is what it gets. */
static void native_tell(const native_t *n)
{
    bool any = false;
    if (n->world->row.rank != 0) return;
    for (uint32_t kind = 0; kind < LH_GROUPS; kind++) {
        if (n->joined[kind] == NULL) continue;
        any = true;
        log_line(LH_LOG_INFO, "collectives of %u ranks of a machine by %s, on their devices",
                 n->groups[kind]->size, n->plugin->name);
    }
    if (!any)
        log_line(
            LH_LOG_INFO,
            "[transport.node] collectives = %s is not used: the device has no queues for it, or "
            "all groups go over several machines",
            n->plugin->name);
}

lh_status_t native_join(native_t *n, control_t *control)
{
    if (n == NULL) return LH_OK;
    report_t *all = mem_array(n->world->row.size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    for (uint32_t kind = LH_GROUP_DATA; status == LH_OK && kind <= LH_GROUP_SITE; kind++)
        status = group_meet(n, kind, control, all);
    mem_free(all);
    if (status == LH_OK) native_tell(n);
    return status;
}

lh_status_t native_enqueue(native_t *n, uint32_t group, const lh_coll_t *call)
{
    lh_group_t *g = n->joined[group_kind(n, group)];
    lh_assert(g != NULL);
    return n->api->enqueue(g, call, &n->queue);
}

void native_cancel(native_t *n)
{
    for (uint32_t i = 0; n != NULL && i < LH_GROUPS; i++)
        if (n->joined[i] != NULL) n->api->cancel(n->joined[i]);
}
