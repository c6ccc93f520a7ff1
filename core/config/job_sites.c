/* job_sites.c - lists of hosts, spares and addresses, taken apart. */
#include <config/job_sites.h>

#include <ctype.h>

#include <base/memory.h>
#include <config/quantity.h>

enum { HOST_RANKS = 4096 }; /* of one host, as ranks_per_node */

/* Sites and hosts in the order of the INI give ranks their numbers, so one reader goes through all.
 */
typedef struct site_reader {
    job_t *job;
    job_site_t *site;
    size_t capacity, spare_capacity; /* of site->hosts and spares */
    const char *key;                 /* that is read */
    char where[JOB_WHERE_BYTES];
} site_reader_t;

/* Names only, without addresses of IPv6: a colon separates the ranks. */
static bool is_host_name(const char *name)
{
    for (const char *c = name; *c != '\0'; c++)
        if (!isalnum((unsigned char)*c) && strchr(".-_", *c) == NULL) return false;
    return true;
}

/* Between sites a name may come again: one machine may play several sites. */
static lh_status_t check_host(const site_reader_t *r, const char *text, const char *name)
{
    if (*name == '\0')
        return fail(LH_INVALID, "%s: %s = ... : a host's name is missing", r->where, r->key);
    if (!is_host_name(name))
        return fail(LH_INVALID,
                    "%s: %s = ... %s: a host's name holds letters, digits, '.', '-' and '_'",
                    r->where, r->key, text);
    if (strlen(name) >= JOB_HOST_NAME)
        return fail(LH_INVALID, "%s: %s = ... %s: a host's name is at most %d bytes", r->where,
                    r->key, text, JOB_HOST_NAME - 1);
    for (uint32_t i = 0; i < r->site->host_count + r->site->spare_count; i++) {
        const bool spare = i >= r->site->host_count;
        const job_host_t *h = spare ? &r->site->spares[i - r->site->host_count]
                                    : &r->site->hosts[i];
        if (strcmp(h->name, name) == 0)
            return fail(LH_INVALID, "%s: %s = ... %s: named twice in [site.%s]", r->where, r->key,
                        name, r->site->name);
    }
    return LH_OK;
}

/* "t1" or "t1:8", which is put at the end of a list. */
static lh_status_t read_host(const site_reader_t *r, char *text, job_host_t *out)
{
    uint64_t ranks = r->job->launch.ranks_per_node;
    char *colon = strrchr(text, ':');
    if (colon != NULL && (!quantity_u64(colon + 1, &ranks) || ranks == 0 || ranks > HOST_RANKS))
        return fail(LH_INVALID, "%s: %s = ... %s: expected 1 to %d ranks behind the colon",
                    r->where, r->key, text, HOST_RANKS);
    char *name = mem_text_n(text, colon != NULL ? (size_t)(colon - text) : strlen(text));
    if (name == NULL) return LH_NO_MEMORY;
    const lh_status_t status = check_host(r, text, name);
    if (status != LH_OK) {
        mem_free(name);
        return status;
    }
    *out = (job_host_t){.name = name, .ranks = (uint32_t)ranks};
    return LH_OK;
}

/* Hosts are numbered through: first_rank is how many ranks the ones before have. */
static lh_status_t add_host(site_reader_t *r, char *text)
{
    job_host_t host;
    lh_status_t status = read_host(r, text, &host);
    if (status != LH_OK) return status;
    if (r->job->site_ranks + host.ranks > JOB_RANKS)
        status = fail(LH_INVALID, "%s: hosts = ... %s: there may be %d ranks", r->where, text,
                      JOB_RANKS);
    job_host_t *hosts = status != LH_OK ? NULL
                                        : mem_grow(r->site->hosts, &r->capacity,
                                                   r->site->host_count + 1u, sizeof(*hosts));
    if (hosts == NULL) {
        mem_free(host.name);
        return status == LH_OK ? LH_NO_MEMORY : status;
    }
    host.first_rank = r->job->site_ranks;
    r->site->hosts = hosts;
    hosts[r->site->host_count++] = host;
    r->job->site_ranks += host.ranks;
    return LH_OK;
}

/* A spare that is too small for every host of its site would wait for nothing. */
static lh_status_t add_spare(site_reader_t *r, char *text)
{
    job_host_t host;
    lh_status_t status = read_host(r, text, &host);
    if (status != LH_OK) return status;
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < r->site->host_count; i++)
        if (r->site->hosts[i].ranks < least) least = r->site->hosts[i].ranks;
    if (r->site->spare_count == JOB_SPARES)
        status = fail(LH_INVALID, "%s: spare = ... %s: a site has at most %d spares", r->where,
                      text, JOB_SPARES);
    else if (host.ranks < least)
        status = fail(LH_INVALID,
                      "%s: spare = ... %s: no host of [site.%s] has as few ranks; expected %u or "
                      "more",
                      r->where, text, r->site->name, least);
    job_host_t *spares = status != LH_OK ? NULL
                                         : mem_grow(r->site->spares, &r->spare_capacity,
                                                    r->site->spare_count + 1u, sizeof(*spares));
    if (spares == NULL) {
        mem_free(host.name);
        return status == LH_OK ? LH_NO_MEMORY : status;
    }
    r->site->spares = spares;
    spares[r->site->spare_count++] = host;
    return LH_OK;
}

/* One for each host and each spare. Checked with [launch] address. */
static lh_status_t add_address(const site_reader_t *r, uint32_t index, const char *text)
{
    const uint32_t hosts = r->site->host_count, all = hosts + r->site->spare_count;
    if (index >= all)
        return fail(LH_INVALID, "%s: addresses = ... %s: expected %u, as many as hosts and spares",
                    r->where, text, all);
    job_host_t *of = index < hosts ? &r->site->hosts[index] : &r->site->spares[index - hosts];
    of->address = mem_text(text);
    return of->address == NULL ? LH_NO_MEMORY : LH_OK;
}

static lh_status_t add_addresses(const site_reader_t *r, char *list)
{
    const uint32_t all = r->site->host_count + r->site->spare_count;
    uint32_t count = 0;
    for (char *rest = list; rest != NULL && *list != '\0';) {
        const lh_status_t status = add_address(r, count++, text_trim(strsep(&rest, ",")));
        if (status != LH_OK) return status;
    }
    if (count == 0 || count == all) return LH_OK;
    return fail(LH_INVALID, "%s: addresses names %u; expected %u, as many as hosts and spares",
                r->where, count, all);
}

/* Sentences about a list begin with where it stands. */
static void reader_at(site_reader_t *r, const document_section_t *s, const char *key)
{
    const document_entry_t *e = document_entry(s, key);
    r->key = key;
    document_where(e != NULL ? e->file : s->file, e != NULL ? e->line : s->line, r->where,
                   sizeof(r->where));
}

/* The struct for the table is local, as hosts are taken apart at once. */
static lh_status_t parse_site(job_t *job, const document_section_t *s, job_site_t *site)
{
    struct {
        char *hosts, *spare, *addresses, *checkpoint_folder;
    } text = {0};
    const option_table_t table = {.rows = job_site_rows,
                                  .count = 4,
                                  .owner = "the core",
                                  .config_size = sizeof(text),
                                  .config = &text};
    const options_how_t how = {
        .document = job->document, .section = s->name, .tables = &table, .table_count = 1};
    site_reader_t r = {.job = job, .site = site};
    lh_status_t status = options_parse(&how);
    if (status != LH_OK) return status;

    reader_at(&r, s, "hosts");
    site->name = mem_text(s->name + strlen("site."));
    if (site->name == NULL) status = LH_NO_MEMORY;
    if (status == LH_OK && (strlen(site->name) >= JOB_SITE_NAME || !is_host_name(site->name)))
        status = fail(LH_INVALID,
                      "%s: [%s]: a site's name is at most %d letters, digits, '.', '-' and '_'",
                      r.where, s->name, JOB_SITE_NAME - 1);
    for (char *rest = text.hosts; status == LH_OK && rest != NULL;)
        status = add_host(&r, text_trim(strsep(&rest, ",")));
    reader_at(&r, s, "spare");
    for (char *rest = text.spare; status == LH_OK && rest != NULL && *rest != '\0';)
        status = add_spare(&r, text_trim(strsep(&rest, ",")));
    reader_at(&r, s, "addresses");
    if (status == LH_OK && text.addresses != NULL) status = add_addresses(&r, text.addresses);
    mem_free(text.hosts);
    mem_free(text.spare);
    mem_free(text.addresses);
    site->checkpoint_folder = text.checkpoint_folder;
    if (site->checkpoint_folder != NULL && *site->checkpoint_folder != '\0')
        job->checkpoint.apart = true;
    return status;
}

lh_status_t job_sites_parse(job_t *job)
{
    size_t capacity = 0;
    for (uint32_t i = 0; i < document_section_count(job->document); i++) {
        const document_section_t *s = document_section(job->document, i);
        if (!text_starts(s->name, "site.")) continue;
        job_site_t *sites = mem_grow(job->sites, &capacity, job->site_count + 1u, sizeof(*sites));
        if (sites == NULL) return LH_NO_MEMORY;
        job->sites = job->all_sites = sites;
        job->all_site_count++;
        const lh_status_t status = parse_site(job, s, &sites[job->site_count++]);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

static void free_hosts(job_host_t *hosts, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++) {
        mem_free(hosts[k].name);
        mem_free(hosts[k].address);
    }
    mem_free(hosts);
}

/* Those that are narrowed own nothing but their list of hosts. */
void job_sites_free(job_t *job)
{
    for (uint32_t i = 0; job->sites != job->all_sites && i < job->site_count; i++)
        mem_free(job->sites[i].hosts);
    if (job->sites != job->all_sites) mem_free(job->sites);
    for (uint32_t i = 0; i < job->all_site_count; i++) {
        free_hosts(job->all_sites[i].hosts, job->all_sites[i].host_count);
        free_hosts(job->all_sites[i].spares, job->all_sites[i].spare_count);
        mem_free(job->all_sites[i].name);
        mem_free(job->all_sites[i].checkpoint_folder);
    }
    mem_free(job->all_sites);
}
