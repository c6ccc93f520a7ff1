/* session/rule_set.h - the update rules that a job names: [optimizer] rule, and those of
 * [group.NAME], each once, with the options of its [rule.NAME].
 *
 * A rule may be of another plugin than the optimizer: which elements a rank updates, and how an
 * element is updated, are two choices. Needs no device; `check` asks it what a run would. */
#ifndef SESSION_RULE_SET_H
#define SESSION_RULE_SET_H

#include <config/job.h>
#include <parallel/optimizer_tables.h>
#include <plugin/registry.h>

/* A rule that somebody named, and its section. */
typedef struct rule_named {
    char *text; /* "rules:adamw"; owned */
    const plugin_t *plugin;
    char section[64]; /* "rule.adamw" */
    option_table_t table;
    void *config; /* owned */
} rule_named_t;

/* Zeroed, it holds none. */
typedef struct rule_set {
    rule_named_t *named;
    optimizer_rule_t *rules; /* [count] the same as an optimizer step takes them */
    uint32_t count;
    size_t named_capacity, rules_capacity;
    uint32_t *of; /* [groups + 1] index into rules: of [optimizer], then of each [group.NAME] */
} rule_set_t;

/* Loads the plugins, parses and checks the options. A job that names no rule, as one that does not
 * train, has an empty set. What was made before a failure is in *out, freed by rule_set_free. */
lh_status_t rule_set_make(const job_t *job, registry_t *registry, rule_set_t *out) LH_MUST_CHECK;
void rule_set_free(rule_set_t *set);
/* Whether a section such as "rule.adamw" is read by a rule of the set. */
bool rule_set_reads(const rule_set_t *set, const char *section);

#endif
