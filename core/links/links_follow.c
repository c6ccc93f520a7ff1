/* links_follow.c - what links between sites do while they train: a connection that does not keep its
 * pace for twenty steps in turn gets another one, between two steps. Each end decides for what it
 * sends, by its own transport's figures; no bit of a training depends on it. */
#include <links/links_state.h>

#include <base/log.h>

static void follow(link_t *k, uint64_t step)
{
    lh_link_stats_t now = {.struct_size = sizeof(now)};
    const lh_transport_api_t *api = k->carrier->api;
    const double before = k->follow.pace;
    if (link_stats(k, &now) != LH_OK) {
        fail_clear();
        return;
    }
    const bool is_new = now.bytes_per_second != k->told_rate; /* else nothing was measured */
    k->told_rate = now.bytes_per_second;
    if (!link_probe_follow(&k->follow, is_new ? (double)now.bytes_per_second : 0, now.round_trip_ns,
                           now.round_trip_min_ns))
        return;
    const lh_tuning_t wanted = {.struct_size = sizeof(wanted),
                                .pace_bytes_per_second = (uint64_t)k->follow.pace};
    if (api->retune(k->conn, &wanted, NULL) != LH_OK) fail_clear();
    log_line(LH_LOG_INFO,
             "link to rank %u: %.1f MB/s now, %.2f ms; paced at %.1f MB/s instead of %.1f from "
             "step %llu on",
             k->peer, 1e-6 * (double)now.bytes_per_second, 1e-6 * (double)now.round_trip_ns,
             1e-6 * k->follow.pace, 1e-6 * before, (unsigned long long)step);
}

void links_follow(links_t *l, uint64_t step)
{
    for (uint32_t i = 0; i < l->link_count; i++) {
        link_t *k = l->links[i];
        if (k->follow.pace > 0 && k->conn != NULL && k->carrier->api->retune != NULL)
            follow(k, step);
    }
}
