/* rule_set.c - finds the rules that a job names, each once, and parses what they read.
 *
 * Groups share a rule by naming the same text, and with it the options: [rule.NAME] is one section.
 * A group that needs other options of the same rule would need a second name for it, which an INI
 * can't give. */
#include <session/rule_set.h>

#include <stdio.h>

#include <base/memory.h>
#include <base/text.h>

/* Index of the rule that is named so; count: none yet. */
static uint32_t rule_set_find(const rule_set_t *set, const char *text)
{
    uint32_t i = 0;
    while (i < set->count && strcmp(set->named[i].text, text) != 0)
        i++;
    return i;
}

/* Both lists get room for one more; the rule counts from here on, so that a failure frees it. */
static lh_status_t rule_set_grow(rule_set_t *set, const char *text)
{
    rule_named_t *named = mem_grow(set->named, &set->named_capacity, set->count + 1u,
                                   sizeof(*named));
    if (named == NULL) return LH_NO_MEMORY;
    set->named = named;
    optimizer_rule_t *rules = mem_grow(set->rules, &set->rules_capacity, set->count + 1u,
                                       sizeof(*rules));
    if (rules == NULL) return LH_NO_MEMORY;
    set->rules = rules;
    named[set->count] = (rule_named_t){.text = mem_text(text)};
    rules[set->count] = (optimizer_rule_t){0};
    return named[set->count++].text == NULL ? LH_NO_MEMORY : LH_OK;
}

/* A section belongs to one rule: two plugins' rules of one name could not be told apart in it. */
static lh_status_t rule_set_section(rule_set_t *set, const job_t *job, const char *name)
{
    rule_named_t *named = &set->named[set->count - 1];
    (void)snprintf(named->section, sizeof(named->section), "rule.%s", name);
    for (uint32_t i = 0; i + 1 < set->count; i++)
        if (strcmp(set->named[i].section, named->section) == 0)
            return fail(LH_INVALID,
                        "%s: rules %s and %s would both read [%s]; expected one rule of that name",
                        job->path, set->named[i].text, named->text, named->section);
    return LH_OK;
}

/* The rule of a text that is new to the set. */
static lh_status_t rule_set_add(rule_set_t *set, const job_t *job, registry_t *registry,
                                const char *text)
{
    char owner[32];
    const char *name;
    lh_status_t status = rule_set_grow(set, text);
    if (status == LH_OK) status = plugin_name_split(text, owner, &name);
    if (status != LH_OK) return status;
    rule_named_t *named = &set->named[set->count - 1];
    optimizer_rule_t *rule = &set->rules[set->count - 1];
    status = registry_find(registry, owner, &named->plugin);
    if (status != LH_OK) return status;
    rule->rule = plugin_rule(named->plugin, name);
    if (rule->rule == NULL) return LH_INVALID;
    status = rule_set_section(set, job, name);
    if (status != LH_OK) return status;
    named->table = plugin_rule_options(rule->rule);
    status = job_parse_plugin(job, named->section, &named->table, NULL, 0, &named->config);
    rule->config = named->config;
    if (status == LH_OK && rule->rule->check != NULL)
        status = rule->rule->check(named->plugin->host, named->config);
    return status;
}

lh_status_t rule_set_make(const job_t *job, registry_t *registry, rule_set_t *out)
{
    *out = (rule_set_t){0};
    out->of = mem_array(job->group_count + 1u, sizeof(*out->of));
    if (out->of == NULL) return LH_NO_MEMORY;
    if (job->optimizer.rule == NULL) return LH_OK;
    for (uint32_t i = 0; i <= job->group_count; i++) {
        const char *own = i == 0 ? NULL : job->groups[i - 1].rule;
        const char *text = own != NULL ? own : job->optimizer.rule;
        out->of[i] = rule_set_find(out, text);
        if (out->of[i] < out->count) continue;
        const lh_status_t status = rule_set_add(out, job, registry, text);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

void rule_set_free(rule_set_t *set)
{
    for (uint32_t i = 0; i < set->count; i++) {
        if (set->named[i].config != NULL)
            job_free_config(&set->named[i].table, set->named[i].config);
        mem_free(set->named[i].text);
    }
    mem_free(set->named);
    mem_free(set->rules);
    mem_free(set->of);
    *set = (rule_set_t){0};
}

bool rule_set_reads(const rule_set_t *set, const char *section)
{
    for (uint32_t i = 0; i < set->count; i++)
        if (strcmp(set->named[i].section, section) == 0) return true;
    return false;
}
