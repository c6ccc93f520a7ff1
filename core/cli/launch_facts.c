/* launch_facts.c - rows of (name, value). */
#include <cli/launch_facts.h>

#include <fnmatch.h>
#include <stdio.h>

#include <base/memory.h>

enum { VALUE_SHOWN = 100, HASH_SHOWN = 16 };

static lh_status_t add(launch_facts_t *f, const char *name, const char *value)
{
    char hash[SHA256_TEXT], shown[VALUE_SHOWN + 1];
    control_fact_t *rows = mem_grow(f->rows, &f->capacity, f->count + 1u, sizeof(*rows));
    if (rows == NULL) return LH_NO_MEMORY;
    f->rows = rows;
    if (strlen(value) > VALUE_SHOWN) {
        const lh_status_t status = sha256_of(value, strlen(value), hash);
        if (status != LH_OK) return status;
        (void)snprintf(shown, sizeof(shown), "%.60s... sha256 %.*s", value, HASH_SHOWN, hash);
        value = shown;
    }
    char *own_name = mem_text(name), *own_value = mem_text(value);
    if (own_name == NULL || own_value == NULL) {
        mem_free(own_name);
        mem_free(own_value);
        return LH_NO_MEMORY;
    }
    rows[f->count++] = (control_fact_t){own_name, own_value};
    return LH_OK;
}

static lh_status_t add_program(launch_facts_t *f)
{
    char hash[SHA256_TEXT], value[64];
    const lh_status_t status = sha256_file("/proc/self/exe", hash);
    if (status != LH_OK) return status;
    (void)snprintf(value, sizeof(value), "%s sha256 %.*s", LH_VERSION, HASH_SHOWN, hash);
    return add(f, "program", value);
}

static lh_status_t add_plugin(launch_facts_t *f, const plugin_t *p)
{
    char name[96], value[VALUE_SHOWN + 1];
    (void)snprintf(name, sizeof(name), "%s plugin %s", plugin_kind_text(p->kind), p->name);
    (void)snprintf(value, sizeof(value), "%.40s abi %u sha256 %.*s", p->version, p->row.abi_version,
                   HASH_SHOWN, p->sha256);
    return add(f, name, value);
}

/* Where files lie, how many threads a machine has and where rank 0 listens may differ. */
static bool is_compared(const char *section, const char *key)
{
    static const char *const sections[] = {
        "data",   "model",      "train", "optimizer", "group.*",     "rule.*",  "parts.*",
        "hook.*", "checkpoint", "comm",  "site.*",    "transport.*", "parallel"};
    if (strcmp(section, "device") == 0) return strcmp(key, "plugin") == 0;
    if (strcmp(section, "launch") == 0) return strcmp(key, "ranks_per_node") == 0;
    if (strcmp(section, "checkpoint") == 0 && strcmp(key, "folder") == 0) return false;
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++)
        if (fnmatch(sections[i], section, 0) == 0) return true;
    return false;
}

static lh_status_t add_section(launch_facts_t *f, const document_section_t *s)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < s->entry_count; i++) {
        const document_entry_t *e = s->entries[i];
        char name[128];
        if (!is_compared(s->name, e->key)) continue;
        (void)snprintf(name, sizeof(name), "[%s] %s", s->name, e->key);
        status = add(f, name, e->value);
    }
    return status;
}

lh_status_t facts_collect(const job_t *job, const registry_t *plugins, launch_facts_t *out)
{
    launch_facts_t f = {0};
    lh_status_t status = add_program(&f);
    for (uint32_t i = 0; status == LH_OK && i < registry_count(plugins); i++)
        status = add_plugin(&f, registry_at(plugins, i));
    for (uint32_t i = 0; status == LH_OK && i < document_section_count(job->document); i++)
        status = add_section(&f, document_section(job->document, i));
    if (status != LH_OK) {
        facts_free(&f);
        return status;
    }
    *out = f;
    return LH_OK;
}

void facts_free(launch_facts_t *f)
{
    for (uint32_t i = 0; i < f->count; i++) {
        mem_free((void *)(uintptr_t)f->rows[i].name);
        mem_free((void *)(uintptr_t)f->rows[i].value);
    }
    mem_free(f->rows);
    *f = (launch_facts_t){0};
}
