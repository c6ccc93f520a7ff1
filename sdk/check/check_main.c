/* check_main.c - `longhaul-check PLUGIN.so`: whether a plugin keeps what its headers promise. */
#include "check.h"

#include <jansson.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <base/log.h>
#include <config/quantity.h>

typedef struct options {
    const char *plugin, *folder;
    const char *sets[SUBJECT_SETS];
    uint32_t set_count;
    regex_t only;
    bool has_only, only_failed, in_process, json, list;
    uint64_t seed;
} options_t;

static const check_t *const all[] = {
    checks_of_file,       checks_of_tables,     checks_of_life, checks_of_models, checks_of_devices,
    checks_of_transports, checks_of_optimizers, checks_of_ops,  checks_of_rules,
};
enum { TABLES = sizeof(all) / sizeof(all[0]) };

static const char usage[] =
    "usage: longhaul-check [FLAGS] PLUGIN.so\n"
    "\n"
    "Runs every check for plugins of its kind, each in a process of its own, and prints a line "
    "for\n"
    "each. Exit code 0: all passed, were skipped or warn; 1: one did not; 2: usage.\n"
    "\n"
    "  --only RE         only the checks whose names match this extended regular expression\n"
    "  --only-failed     prints nothing of those that pass or are skipped\n"
    "  --in-process      no processes: for a debugger. The first crash ends the program\n"
    "  --set KEY=VALUE   an option of the plugin; may be given again\n"
    "  --seed N          of the numbers that the checks draw (1)\n"
    "  --plugins DIR     where the other plugins are; beside the program where not given\n"
    "  --json            an object a line\n"
    "  --list            the checks with what they check; PLUGIN.so is not needed\n"
    "  --help            this\n";

static int misused(const char *text, const char *what)
{
    (void)fprintf(stderr, "longhaul-check: %s%s\n%s", text, what, usage);
    return EXIT_USAGE;
}

/* Negative: go on. */
static int flag_with_value(options_t *o, const char *flag, const char *value)
{
    if (strcmp(flag, "--only") == 0) {
        if (regcomp(&o->only, value, REG_EXTENDED | REG_NOSUB) != 0)
            return misused("--only: not a regular expression: ", value);
        o->has_only = true;
    } else if (strcmp(flag, "--set") == 0) {
        if (strchr(value, '=') == NULL || o->set_count == SUBJECT_SETS)
            return misused("--set: expected KEY=VALUE: ", value);
        o->sets[o->set_count++] = value;
    } else if (strcmp(flag, "--seed") == 0) {
        char *end;
        o->seed = strtoull(value, &end, 10);
        if (end == value || *end != '\0') return misused("--seed: not a number: ", value);
    } else {
        o->folder = value;
    }
    return -1;
}

static int parse(int argc, char **argv, options_t *o)
{
    static const char *const valued[] = {"--only", "--set", "--seed", "--plugins"};
    const struct {
        const char *flag;
        bool *at;
    } switches[] = {{"--only-failed", &o->only_failed},
                    {"--in-process", &o->in_process},
                    {"--json", &o->json},
                    {"--list", &o->list}};
    for (int i = 1; i < argc; i++) {
        bool known = false;
        if (strcmp(argv[i], "--help") == 0) {
            (void)fputs(usage, stdout);
            return EXIT_DONE;
        }
        for (size_t k = 0; k < sizeof(switches) / sizeof(switches[0]); k++)
            if (strcmp(argv[i], switches[k].flag) == 0) known = *switches[k].at = true;
        for (size_t k = 0; k < sizeof(valued) / sizeof(valued[0]) && !known; k++) {
            if (strcmp(argv[i], valued[k]) != 0) continue;
            if (i + 1 == argc) return misused("a value is missing behind ", argv[i]);
            const int code = flag_with_value(o, argv[i], argv[i + 1]);
            if (code >= 0) return code;
            known = true;
            i++;
        }
        if (known) continue;
        if (argv[i][0] == '-') return misused("unknown flag ", argv[i]);
        if (o->plugin != NULL) return misused("one plugin at a time: ", argv[i]);
        o->plugin = argv[i];
    }
    if (o->plugin == NULL && !o->list) return misused("which plugin?", "");
    return -1;
}

/* ---- what is printed ---- */

static void print_json(const check_t *c, const outcome_t *o)
{
    json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:f}", "check", c->name, "sentence", c->sentence,
                            "result", result_text(o->result), "reason", "", "seconds", o->seconds);
    json_t *reason = json_string(o->sentence);
    if (row != NULL && reason != NULL) (void)json_object_set(row, "reason", reason);
    char *text = row == NULL ? NULL : json_dumps(row, JSON_COMPACT | JSON_PRESERVE_ORDER);
    if (text != NULL) (void)printf("%s\n", text);
    free(text);
    json_decref(reason);
    json_decref(row);
}

/* A plugin's texts can't steer a terminal. */
static void print_shown(const char *text)
{
    for (; *text != '\0'; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '\n')
            (void)fputs("\n         ", stdout);
        else if (c < 0x20 || c == 0x7f)
            (void)printf("\\x%02x", c);
        else
            (void)putchar(c);
    }
}

static void print_line(const check_t *c, const outcome_t *o)
{
    (void)printf("%-8s %-28s %s (%.2f s)\n", result_text(o->result), c->name, c->sentence,
                 o->seconds);
    if (o->sentence[0] != '\0') {
        (void)fputs("         ", stdout);
        print_shown(o->sentence);
        (void)putchar('\n');
    }
    if (o->said[0] != '\0') {
        (void)fputs("         it printed: ", stdout);
        print_shown(o->said);
        (void)putchar('\n');
    }
}

static int list(void)
{
    for (uint32_t t = 0; t < TABLES; t++)
        for (const check_t *c = all[t]; c->name != NULL; c++)
            (void)printf("%-28s %s\n", c->name, c->sentence);
    return EXIT_DONE;
}

/* ---- running ---- */

typedef struct tally {
    uint32_t results[RESULTS];
    bool loadable; /* what looks at the file found nothing wrong */
} tally_t;

static void run_one(const options_t *o, const check_t *c, subject_t *s, tally_t *tally)
{
    outcome_t out;
    const bool chosen = !o->has_only || regexec(&o->only, c->name, 0, NULL, 0) == 0;
    if (s->head.kind <= LH_KIND_PARTS && (c->kinds & 1u << s->head.kind) == 0) return;
    if (!chosen && !c->file) return;
    if (c->file || (tally->loadable && s->plugin != NULL)) {
        check_run(c, s, o->in_process, &out);
    } else {
        out = (outcome_t){.result = RESULT_SKIP, .sentence = "it can't be loaded"};
    }
    if (c->file && out.result >= RESULT_FAIL) tally->loadable = false;
    if (!chosen) return;
    tally->results[out.result]++;
    if (o->only_failed && (out.result == RESULT_PASS || out.result == RESULT_SKIP)) return;
    if (o->json)
        print_json(c, &out);
    else
        print_line(c, &out);
    (void)fflush(stdout);
}

/* A file that is wrong in a way of its own is not loaded: one mistake, one line. */
static void run_file_checks(const options_t *o, subject_t *s, tally_t *tally)
{
    for (const check_t *c = checks_of_file; c->name != NULL; c++) {
        const bool last = c[1].name == NULL;
        if (s->head.kind == 0 && c != checks_of_file) break;
        if (!last || tally->loadable) run_one(o, c, s, tally);
    }
    if (tally->loadable && subject_load(s) != LH_OK) tally->loadable = false;
}

static int run_all(const options_t *o, subject_t *s)
{
    tally_t tally = {.loadable = true};
    run_file_checks(o, s, &tally);
    for (uint32_t t = 1; t < TABLES; t++)
        for (const check_t *c = all[t]; c->name != NULL; c++)
            run_one(o, c, s, &tally);
    const uint32_t bad = tally.results[RESULT_FAIL] + tally.results[RESULT_CRASH] +
                         tally.results[RESULT_TIMEOUT];
    if (!o->json && !o->only_failed)
        (void)printf("%s: %u passed, %u warn, %u skipped, %u failed\n", s->name,
                     tally.results[RESULT_PASS], tally.results[RESULT_WARN],
                     tally.results[RESULT_SKIP], bad);
    return bad > 0 ? EXIT_REFUSED : EXIT_DONE;
}

int main(int argc, char **argv)
{
    options_t o = {.seed = 1};
    subject_t s;
    int code = parse(argc, argv, &o);
    if (code >= 0) return code;
    if (o.list) return list();
    log_threshold(LH_LOG_ERROR);
    if (subject_open(o.plugin, o.folder, &s) != LH_OK) {
        (void)fprintf(stderr, "longhaul-check: %s\n", fail_reason());
        return EXIT_REFUSED;
    }
    memcpy(s.sets, o.sets, sizeof(o.sets));
    s.set_count = o.set_count;
    s.seed = o.seed;
    code = run_all(&o, &s);
    subject_close(&s);
    if (o.has_only) regfree(&o.only);
    return code;
}
