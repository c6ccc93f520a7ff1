/* members.c - layouts of a job's hosts: what they mean for its ranks, and which one comes next.
 *
 * Everything here is arithmetic on texts of a character a host: the same on every machine that has the
 * same INI. Who is really there, and who decides, is the control plane's (control_members.c). */
#include <config/members.h>

#include <stdio.h>

#include <base/memory.h>

static uint32_t count_of(const job_t *job, bool spares)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < job->all_site_count; i++)
        count += spares ? job->all_sites[i].spare_count : job->all_sites[i].host_count;
    return count;
}

uint32_t members_hosts(const job_t *job)
{
    const uint32_t hosts = count_of(job, false), more = job->launch.witness != NULL;
    return hosts + count_of(job, true) + more <= MEMBERS_MOST ? hosts : 0;
}

uint32_t members_places(const job_t *job)
{
    return members_hosts(job) == 0 ? 0 : members_hosts(job) + count_of(job, true);
}

uint32_t members_witness(const job_t *job)
{
    const bool none = job->launch.witness == NULL || members_hosts(job) == 0;
    return none ? MEMBERS_NONE : members_places(job);
}

uint32_t members_machines(const job_t *job)
{
    return members_places(job) + (members_witness(job) != MEMBERS_NONE);
}

/* *first: the number of the site's first host, or spare, among all. */
static const job_site_t *site_of(const job_t *job, uint32_t index, bool spares, uint32_t *first)
{
    uint32_t i = 0;
    *first = 0;
    for (;; i++) {
        lh_assert(i < job->all_site_count);
        const job_site_t *s = &job->all_sites[i];
        const uint32_t count = spares ? s->spare_count : s->host_count;
        if (index - *first < count) return s;
        *first += count;
    }
}

void members_machine(const job_t *job, uint32_t machine, machine_t *out)
{
    static char no_name[1];
    static const job_site_t nowhere = {.name = no_name};
    const uint32_t hosts = members_hosts(job);
    const bool spare = machine >= hosts;
    uint32_t first;
    if (machine == members_witness(job)) {
        *out = (machine_t){&nowhere, job->launch.witness, NULL, 0, true};
        return;
    }
    const uint32_t index = spare ? machine - hosts : machine;
    const job_site_t *site = site_of(job, index, spare, &first);
    const job_host_t *h = spare ? &site->spares[index - first] : &site->hosts[index - first];
    const char *own = machine == 0 ? job->launch.address : NULL;
    const char *address = own != NULL ? own : h->address != NULL ? h->address : h->name;
    *out = (machine_t){site, h->name, address, h->ranks, spare};
}

uint32_t members_find(const job_t *job, const char *site, const char *host)
{
    for (uint32_t m = 0; m < members_machines(job); m++) {
        machine_t at;
        members_machine(job, m, &at);
        if (strcmp(at.site->name, site) == 0 && strcmp(at.host, host) == 0) return m;
    }
    return MEMBERS_NONE;
}

bool members_same_host(const char *one, const char *other)
{
    const size_t length = strcspn(one, "."), own = strcspn(other, ".");
    if (strcmp(one, other) == 0) return true;
    return length == own && memcmp(one, other, length) == 0 &&
           (one[length] == '\0' || other[own] == '\0');
}

bool members_change(const job_t *job)
{
    return members_hosts(job) > 0 &&
           (job->launch.go_on_with != GO_ON_NONE || members_places(job) > members_hosts(job));
}

void members_all(const job_t *job, char out[MEMBERS_TEXT])
{
    const uint32_t hosts = members_hosts(job);
    memset(out, MEMBER_OWN, hosts);
    out[hosts] = '\0';
}

/* The number of a spare as a machine. */
static uint32_t spare_of(const job_t *job, uint32_t host, uint32_t k)
{
    uint32_t first_host, before = members_hosts(job);
    const job_site_t *site = site_of(job, host, false, &first_host);
    for (const job_site_t *s = job->all_sites; s != site; s++)
        before += s->spare_count;
    return before + k;
}

uint32_t members_of_host(const job_t *job, const char *layout, uint32_t host)
{
    lh_assert(host < members_hosts(job));
    const char c = layout[host];
    if (c == MEMBER_GONE) return MEMBERS_NONE;
    return c == MEMBER_OWN ? host : spare_of(job, host, (uint32_t)(c - 'a'));
}

/* No machine has the ranks of two hosts. */
bool members_are(const job_t *job, const char *layout)
{
    const uint32_t hosts = members_hosts(job);
    bool taken[MEMBERS_MOST] = {false}, any = false;
    if (strlen(layout) != hosts) return false;
    for (uint32_t h = 0; h < hosts; h++) {
        uint32_t first;
        const job_site_t *site = site_of(job, h, false, &first);
        const char c = layout[h];
        if (c == MEMBER_GONE) continue;
        if (c != MEMBER_OWN && (c < 'a' || (uint32_t)(c - 'a') >= site->spare_count)) return false;
        const uint32_t m = members_of_host(job, layout, h);
        if (taken[m]) return false;
        taken[m] = any = true;
    }
    return any;
}

static uint32_t ranks_of_host(const job_t *job, uint32_t host)
{
    machine_t at;
    members_machine(job, host, &at);
    return at.ranks;
}

uint32_t members_ranks(const job_t *job, const char *layout)
{
    uint32_t ranks = 0;
    for (uint32_t h = 0; h < members_hosts(job); h++)
        if (layout[h] != MEMBER_GONE) ranks += ranks_of_host(job, h);
    return ranks;
}

uint32_t members_ranks_of(const job_t *job, const char *layout, uint32_t machine, uint32_t *first)
{
    *first = 0;
    for (uint32_t h = 0; h < members_hosts(job); h++) {
        if (members_of_host(job, layout, h) == machine) return ranks_of_host(job, h);
        if (layout[h] != MEMBER_GONE) *first += ranks_of_host(job, h);
    }
    return 0;
}

uint32_t members_leader(const job_t *job, const char *layout)
{
    for (uint32_t h = 0; h < members_hosts(job); h++)
        if (layout[h] != MEMBER_GONE) return members_of_host(job, layout, h);
    return MEMBERS_NONE;
}

/* What is left of a site. Names stay those of the INI's sites, which outlive this. */
static lh_status_t narrow_site(job_t *job, const char *layout, uint32_t *host,
                               const job_site_t *from, job_site_t *to)
{
    *to = *from;
    to->host_count = 0;
    to->hosts = mem_array(from->host_count, sizeof(*to->hosts));
    if (to->hosts == NULL) return LH_NO_MEMORY;
    for (uint32_t k = 0; k < from->host_count; k++, (*host)++) {
        const char c = layout[*host];
        if (c == MEMBER_GONE) continue;
        job_host_t *h = &to->hosts[to->host_count++];
        *h = from->hosts[k];
        if (c != MEMBER_OWN) h->name = from->spares[c - 'a'].name;
        h->first_rank = job->site_ranks;
        job->site_ranks += h->ranks;
    }
    return LH_OK;
}

lh_status_t members_narrow(job_t *job, const char *layout)
{
    lh_assert(job->sites == job->all_sites);
    if (!members_are(job, layout))
        return fail(LH_INVALID, "'%s' is no layout of the hosts of %s", layout, job->path);
    job_site_t *sites = mem_array(job->all_site_count, sizeof(*sites));
    if (sites == NULL) return LH_NO_MEMORY;
    uint32_t host = 0;
    job->sites = sites;
    job->site_count = job->site_ranks = 0;
    for (uint32_t i = 0; i < job->all_site_count; i++) {
        job_site_t *to = &sites[job->site_count];
        const lh_status_t status = narrow_site(job, layout, &host, &job->all_sites[i], to);
        if (status != LH_OK) return status;
        if (to->host_count > 0)
            job->site_count++;
        else
            mem_free(to->hosts);
    }
    return LH_OK;
}

/* ---- who goes on ---- */

/* What breaks a tie is one thing for each layout, so that of two halves one has it at most: the first
 * host of the preferred site, where the layout has one; else the witness. */
bool members_may(const job_t *job, const char *layout, const bool *here)
{
    uint64_t all = 0, mine = 0;
    bool preferred = false, seen = false;
    for (uint32_t h = 0; h < members_hosts(job); h++) {
        const uint32_t m = members_of_host(job, layout, h);
        machine_t at;
        if (m == MEMBERS_NONE) continue;
        members_machine(job, h, &at);
        all += at.ranks;
        if (here[m]) mine += at.ranks;
        if (seen || job->launch.prefer == NULL || strcmp(job->launch.prefer, at.site->name) != 0)
            continue;
        seen = true;
        preferred = here[m];
    }
    const uint32_t witness = members_witness(job);
    if (!seen && witness != MEMBERS_NONE) preferred = here[witness];
    return 2 * mine > all || (2 * mine == all && preferred);
}

static const member_record_t *newest_of(const job_t *job, const member_record_t *records)
{
    const member_record_t *best = NULL;
    for (uint32_t m = 0; m < members_machines(job); m++)
        if (records[m].here && records[m].met_epoch > (best == NULL ? 0 : best->met_epoch))
            best = &records[m];
    return best;
}

uint32_t members_newest(const job_t *job, const member_record_t *records)
{
    const member_record_t *newest = newest_of(job, records);
    return newest == NULL ? 0 : newest->met_epoch;
}

/* Takes the next attempt off such a text; false at its end, and where it is no attempt. */
static bool next_try(const char **at, uint32_t *epoch, char layout[MEMBERS_TEXT])
{
    unsigned number;
    int length = 0;
    if (sscanf(*at, "%u:%256[^,]%n", &number, layout, &length) != 2) return false;
    *epoch = number;
    *at += length;
    if (**at == ',') ++*at;
    return true;
}

/* The same layout once more is the same attempt, made later. */
bool members_try(char tried[MEMBERS_TRIED], uint32_t epoch, const char *layout)
{
    text_t all = {0};
    char other[MEMBERS_TEXT];
    uint32_t number, count = 0;
    for (const char *at = tried; next_try(&at, &number, other);) {
        if (strcmp(other, layout) == 0) continue;
        text_printf(&all, "%s%u:%s", count++ > 0 ? "," : "", number, other);
    }
    text_printf(&all, "%s%u:%s", count++ > 0 ? "," : "", epoch, layout);
    const bool room = !all.failed && count <= MEMBERS_TRIES && all.length < MEMBERS_TRIED;
    if (room) memcpy(tried, all.data, all.length + 1);
    text_free(&all);
    return room;
}

/* Whether a machine is for `to`. Who has ranks in `to` is told of it before these come; so must be, before the
 * meeting, the others who are for it: the witness, and a host that is left out with the rest of its site, or
 * whose ranks a spare has. */
static bool is_for(const job_t *job, const member_record_t *r, uint32_t machine, const char *to,
                   bool meets)
{
    uint32_t first;
    return r->here &&
           (!meets || members_ranks_of(job, to, machine, &first) > 0 || strcmp(r->layout, to) == 0);
}

/* Whether those who are for `to` have most of another layout. One that was started anew has no vote: it may have
 * promised itself to others, and has forgotten. */
static bool have_most(const job_t *job, const member_record_t *records, const char *of,
                      const char *to, bool meets)
{
    bool votes[MEMBERS_MOST] = {false};
    if (!members_are(job, of)) return false;
    for (uint32_t m = 0; m < members_machines(job); m++)
        votes[m] = records[m].met_epoch > 0 && is_for(job, &records[m], m, to, meets);
    return members_may(job, of, votes);
}

static bool have_quorum(const job_t *job, const member_record_t *records, const char *layout,
                        bool meets)
{
    const member_record_t *newest = newest_of(job, records);
    bool all = true;
    for (uint32_t m = 0; m < members_places(job); m++)
        all = all && is_for(job, &records[m], m, layout, meets);
    if (all) return true; /* there is nobody else */
    if (newest == NULL || !have_most(job, records, newest->met, layout, meets)) return false;
    /* Two that decided apart may have given one epoch to two layouts, and both may have met: the first so
     * that its rank 0 alone knows. Of such two none is the newest: it takes most of both. */
    for (uint32_t m = 0; m < members_machines(job); m++) {
        const member_record_t *r = &records[m];
        char tried[MEMBERS_TEXT];
        uint32_t epoch;
        if (!r->here) continue;
        if (r->met_epoch == newest->met_epoch && strcmp(r->met, newest->met) != 0 &&
            !have_most(job, records, r->met, layout, meets))
            return false;
        for (const char *at = r->tried; next_try(&at, &epoch, tried);)
            if (epoch >= newest->met_epoch && strcmp(tried, layout) != 0 &&
                !have_most(job, records, tried, layout, meets))
                return false;
    }
    return true;
}

bool members_quorum(const job_t *job, const member_record_t *records, const char *layout)
{
    return have_quorum(job, records, layout, false);
}

bool members_meets(const job_t *job, const member_record_t *records, const char *layout)
{
    return have_quorum(job, records, layout, true);
}

/* Who has the ranks now keeps them while it is there; then the host itself, then spares in order. */
static char next_of_host(const job_t *job, const char *layout, const bool *here, uint32_t host,
                         bool *taken)
{
    uint32_t first;
    const job_site_t *site = site_of(job, host, false, &first);
    const uint32_t now = members_of_host(job, layout, host);
    if (now != MEMBERS_NONE && here[now]) return layout[host];
    if (here[host]) return MEMBER_OWN;
    for (uint32_t k = 0; k < site->spare_count; k++) {
        const uint32_t m = spare_of(job, host, k);
        if (!here[m] || taken[m] || site->spares[k].ranks < site->hosts[host - first].ranks)
            continue;
        taken[m] = true;
        return (char)('a' + k);
    }
    return MEMBER_GONE;
}

/* A site that lacks a host goes as a whole. */
static void drop_broken_sites(const job_t *job, char *layout)
{
    uint32_t host = 0;
    for (uint32_t i = 0; i < job->all_site_count; i++) {
        const uint32_t count = job->all_sites[i].host_count;
        if (memchr(layout + host, MEMBER_GONE, count) != NULL)
            memset(layout + host, MEMBER_GONE, count);
        host += count;
    }
}

bool members_next(const job_t *job, const char *layout, const bool *here, char out[MEMBERS_TEXT])
{
    const uint32_t hosts = members_hosts(job);
    bool taken[MEMBERS_MOST] = {false};
    for (uint32_t h = 0; h < hosts; h++) {
        const uint32_t m = members_of_host(job, layout, h);
        if (m != MEMBERS_NONE && here[m]) taken[m] = true;
    }
    for (uint32_t h = 0; h < hosts; h++)
        out[h] = next_of_host(job, layout, here, h, taken);
    out[hosts] = '\0';
    if (strchr(out, MEMBER_GONE) == NULL) return true;
    if (job->launch.go_on_with == GO_ON_NONE) return false;
    if (job->launch.go_on_with == GO_ON_SITES) drop_broken_sites(job, out);
    return members_are(job, out);
}

void members_tell(const job_t *job, const char *from, const char *to, text_t *out)
{
    enum { SHOWN = 8 };
    uint32_t count = 0;
    for (uint32_t h = 0; h < members_hosts(job); h++) {
        machine_t host, by;
        if (from[h] == to[h]) continue;
        if (count++ >= SHOWN) continue;
        members_machine(job, h, &host);
        text_append(out, count > 1 ? ", " : "");
        if (to[h] == MEMBER_GONE) {
            text_printf(out, "%s/%s is gone", host.site->name, host.host);
        } else if (to[h] == MEMBER_OWN) {
            text_printf(out, "%s/%s is back", host.site->name, host.host);
        } else {
            members_machine(job, members_of_host(job, to, h), &by);
            text_printf(out, "%s/%s takes the ranks of %s", by.site->name, by.host, host.host);
        }
    }
    if (count > SHOWN) text_printf(out, " and %u more", count - SHOWN);
}
