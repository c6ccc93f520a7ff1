/* spec.c - a spec in the registry, as the model plugin named spec.
 *
 * Others ask the registry for the plugin of [model] and read its tables; they get one that was
 * filled in here instead of imported from a file. In the place of the file's digest stands that
 * of the sections, so that ranks compare them before step 0 and a report says what was run. */
#include <spec/spec.h>

#include <base/memory.h>
#include <plugin/host.h>
#include <spec/spec_check.h>
#include <spec/spec_record.h>

#define SPEC_PLUGIN "spec"

/* Sections that nobody would read: a spec was included, and another plugin is named. */
static lh_status_t refuse_sections(const job_t *job)
{
    for (uint32_t i = 0; i < document_section_count(job->document); i++) {
        const document_section_t *s = document_section(job->document, i);
        char where[600];
        if (!text_equal(s->name, "spec") && !text_starts(s->name, "spec.")) continue;
        document_where(s->file, s->line, where, sizeof(where));
        return fail(LH_INVALID,
                    "%s: [%s] is read where [model] plugin = " SPEC_PLUGIN ", which is %s", where,
                    s->name, job->model.plugin == NULL ? "not set" : job->model.plugin);
    }
    return LH_OK;
}

/* What import.c makes of a plugin's tables; options were filled in as they were read. */
static lh_status_t plugin_fill(spec_t *s, registry_t *registry)
{
    const document_section_t *head = document_find(s->document, "spec");
    plugin_t *p = &s->plugin;
    const lh_host_t *host;
    lh_status_t status = host_for(registry_host(registry), SPEC_PLUGIN, &host);
    if (status != LH_OK) return status;
    s->api = (lh_model_api_t){.struct_size = sizeof(s->api),
                              .open = spec_model_open,
                              .close = spec_model_close,
                              .describe = spec_model_describe,
                              .record = spec_record,
                              .hf = s->head.model_type == NULL ? NULL : &s->hf};
    p->kind = LH_KIND_MODEL;
    p->name = SPEC_PLUGIN;
    p->version = LH_VERSION;
    p->summary = "an architecture in the INI";
    p->row = (lh_plugin_t){.struct_size = sizeof(p->row),
                           .abi_version = LH_ABI_VERSION,
                           .kind = p->kind,
                           .config_size = 8 * s->option_count,
                           .name = SPEC_PLUGIN,
                           .version = p->version,
                           .summary = p->summary};
    p->model = &s->api;
    p->host = host;
    p->path = mem_text(head->file == NULL ? "command line" : head->file);
    return p->path == NULL ? LH_NO_MEMORY : LH_OK;
}

/* The registry's, when it frees the plugin. */
static void spec_forget(void *spec)
{
    host_keep(((spec_t *)spec)->plugin.host, NULL);
    spec_free(spec);
}

lh_status_t spec_adopt(const job_t *job, registry_t *registry)
{
    if (!text_equal(job->model.plugin, SPEC_PLUGIN)) return refuse_sections(job);
    return spec_adopt_sections(job->document, registry);
}

/* Until the registry has it, the spec is ours to free; from then on the host's services of this
 * name keep it, by which open() finds it. */
lh_status_t spec_adopt_sections(const document_t *document, registry_t *registry)
{
    spec_t *s;
    lh_status_t status = spec_read(document, &s);
    if (status != LH_OK) return status;
    status = plugin_fill(s, registry);
    if (status == LH_OK) status = registry_adopt(registry, &s->plugin, spec_forget, s);
    if (status == LH_OK)
        host_keep(s->plugin.host, s);
    else
        spec_free(s);
    return status;
}

/* All or nothing: a spec with one mistake is no spec. */
lh_status_t spec_read(const document_t *document, spec_t **out)
{
    spec_t *s;
    lh_status_t status = spec_read_sections(document, &s);
    if (status != LH_OK) return status;
    status = spec_check(s);
    if (status != LH_OK) {
        spec_free(s);
        return status;
    }
    *out = s;
    return LH_OK;
}

void spec_help(text_t *out)
{
    spec_read_help(out);
    spec_record_help(out);
}
