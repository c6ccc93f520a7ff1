/* job_sites.c - data centres and their hosts, and which ranks live there. */
#include <config/job_sites.h>

#include <ctype.h>
#include <stdio.h>

#include <base/memory.h>
#include <config/quantity.h>

enum { WHERE_BYTES = 600, HOST_RANKS = 4096 };

const char *const job_scope_names[JOB_SCOPES] = {"", "node", "site", "wan"};

typedef struct site_reader {
    job_t *job;
    job_site_t *site;
    size_t capacity; /* of site->hosts */
    char where[WHERE_BYTES];
} site_reader_t;

static bool is_host_name(const char *name)
{
    for (const char *c = name; *c != '\0'; c++)
        if (!isalnum((unsigned char)*c) && strchr(".-_", *c) == NULL) return false;
    return true;
}

static lh_status_t check_host(const site_reader_t *r, const char *text, const char *name)
{
    if (*name == '\0')
        return fail(LH_INVALID, "%s: hosts = ... : a host's name is missing", r->where);
    if (!is_host_name(name))
        return fail(LH_INVALID,
                    "%s: hosts = ... %s: a host's name holds letters, digits, '.', '-' and '_'",
                    r->where, text);
    if (strlen(name) >= JOB_HOST_NAME)
        return fail(LH_INVALID, "%s: hosts = ... %s: a host's name is at most %d bytes", r->where,
                    text, JOB_HOST_NAME - 1);
    for (uint32_t i = 0; i < r->site->host_count; i++)
        if (strcmp(r->site->hosts[i].name, name) == 0)
            return fail(LH_INVALID, "%s: hosts = ... %s: named twice in [site.%s]", r->where, name,
                        r->site->name);
    return LH_OK;
}

/* "t1" or "t1:8". */
static lh_status_t add_host(site_reader_t *r, char *text)
{
    uint64_t ranks = r->job->launch.ranks_per_node;
    char *colon = strrchr(text, ':');
    if (colon != NULL && (!quantity_u64(colon + 1, &ranks) || ranks == 0 || ranks > HOST_RANKS))
        return fail(LH_INVALID, "%s: hosts = ... %s: expected 1 to %d ranks behind the colon",
                    r->where, text, HOST_RANKS);
    char *name = mem_text_n(text, colon != NULL ? (size_t)(colon - text) : strlen(text));
    if (name == NULL) return LH_NO_MEMORY;
    lh_status_t status = check_host(r, text, name);
    if (status == LH_OK && r->job->site_ranks + ranks > JOB_RANKS)
        status = fail(LH_INVALID, "%s: hosts = ... %s: there may be %d ranks", r->where, text,
                      JOB_RANKS);
    job_host_t *hosts = status != LH_OK ? NULL
                                        : mem_grow(r->site->hosts, &r->capacity,
                                                   r->site->host_count + 1u, sizeof(*hosts));
    if (hosts == NULL) {
        mem_free(name);
        return status == LH_OK ? LH_NO_MEMORY : status;
    }
    r->site->hosts = hosts;
    hosts[r->site->host_count++] = (job_host_t){
        .name = name, .ranks = (uint32_t)ranks, .first_rank = r->job->site_ranks};
    r->job->site_ranks += (uint32_t)ranks;
    return LH_OK;
}

static lh_status_t parse_site(job_t *job, const document_section_t *s, job_site_t *site)
{
    struct {
        char *hosts;
    } text = {0};
    const option_table_t table = {.rows = job_site_rows,
                                  .count = 1,
                                  .owner = "the core",
                                  .config_size = sizeof(text),
                                  .config = &text};
    const options_how_t how = {
        .document = job->document, .section = s->name, .tables = &table, .table_count = 1};
    site_reader_t r = {.job = job, .site = site};
    lh_status_t status = options_parse(&how);
    if (status != LH_OK) return status;

    const document_entry_t *e = section_find(s, "hosts");
    document_where(e != NULL ? e->file : s->file, e != NULL ? e->line : s->line, r.where,
                   sizeof(r.where));
    site->name = mem_text(s->name + strlen("site."));
    if (site->name == NULL) status = LH_NO_MEMORY;
    if (status == LH_OK && (strlen(site->name) >= JOB_SITE_NAME || !is_host_name(site->name)))
        status = fail(LH_INVALID,
                      "%s: [%s]: a site's name is at most %d letters, digits, '.', '-' and '_'",
                      r.where, s->name, JOB_SITE_NAME - 1);
    for (char *rest = text.hosts; status == LH_OK && rest != NULL;)
        status = add_host(&r, text_trim(strsep(&rest, ",")));
    mem_free(text.hosts);
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
        job->sites = sites;
        const lh_status_t status = parse_site(job, s, &sites[job->site_count++]);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

void job_sites_free(job_t *job)
{
    for (uint32_t i = 0; i < job->site_count; i++) {
        for (uint32_t k = 0; k < job->sites[i].host_count; k++)
            mem_free(job->sites[i].hosts[k].name);
        mem_free(job->sites[i].hosts);
        mem_free(job->sites[i].name);
    }
    mem_free(job->sites);
}

uint32_t job_ranks(const job_t *job)
{
    return job->site_count > 0 ? job->site_ranks : (uint32_t)job->launch.ranks_per_node;
}

void job_rank_place(const job_t *job, uint32_t rank, const job_site_t **site,
                    const job_host_t **host)
{
    *site = NULL;
    *host = NULL;
    for (uint32_t i = 0; i < job->site_count; i++)
        for (uint32_t k = 0; k < job->sites[i].host_count; k++) {
            const job_host_t *h = &job->sites[i].hosts[k];
            if (rank < h->first_rank || rank - h->first_rank >= h->ranks) continue;
            *site = &job->sites[i];
            *host = h;
        }
}
