/* check_main.c - `longhaul-check PLUGIN.so`: whether a plugin keeps what its headers promise, and
 * `longhaul-check SPEC.ini`: whether an architecture in an INI is what it says. */
#include "check_print.h"

#include <regex.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/text.h>
#include <config/quantity.h>

enum { FOLDERS = 16 };

typedef struct options {
    const char *plugin;
    const char *folders[FOLDERS];
    uint32_t folder_count;
    const char *sets[SUBJECT_SETS];
    uint32_t set_count;
    const char *only_text;
    regex_t only;
    bool has_only, only_failed, in_process, json, list;
    uint64_t seed;
} options_t;

static const check_t *const all[] = {
    checks_of_file,    checks_of_specs,      checks_of_tables,     checks_of_life, checks_of_models,
    checks_of_devices, checks_of_transports, checks_of_optimizers, checks_of_ops,  checks_of_rules,
};
enum { TABLES = sizeof(all) / sizeof(all[0]), FILE_TABLES = 2 /* the first of them */ };

static const char usage[] =
    "usage: longhaul-check [FLAGS] PLUGIN.so | SPEC.ini\n"
    "\n"
    "Runs every check for plugins of its kind, or those of models for an INI that says [model]\n"
    "plugin = spec, each in a process of its own, and prints a line for each. Exit code 0: all\n"
    "passed, were skipped or warn; 1: one did not; 2: usage.\n"
    "\n"
    "  --only RE         only the checks whose names match this extended regular expression\n"
    "  --only-failed     prints nothing of those that pass or are skipped\n"
    "  --in-process      no processes: for a debugger. The first crash ends the program\n"
    "  --set KEY=VALUE   an option of the plugin; may be given again\n"
    "  --seed N          of the numbers that the checks draw (1)\n"
    "  --plugins DIR     where the other plugins are; may be given again; beside the program where "
    "not\n"
    "                    given\n"
    "  --json            an object a line\n"
    "  --list            the checks with what they check; no file is needed\n"
    "  --help            this\n";

static int refuse(int code)
{
    print_reason();
    return code;
}

static int misused(const char *text, const char *what)
{
    (void)fail(LH_INVALID, "%s%s", text, what);
    print_reason();
    (void)fputs(usage, stderr);
    return EXIT_USAGE;
}

/* Negative: go on. */
static int flag_with_value(options_t *o, const char *flag, const char *value)
{
    if (strcmp(flag, "--only") == 0) {
        if (regcomp(&o->only, value, REG_EXTENDED | REG_NOSUB) != 0)
            return misused("--only: not a regular expression: ", value);
        o->has_only = true;
        o->only_text = value;
    } else if (strcmp(flag, "--set") == 0) {
        if (strchr(value, '=') == NULL || o->set_count == SUBJECT_SETS)
            return misused("--set: expected KEY=VALUE: ", value);
        o->sets[o->set_count++] = value;
    } else if (strcmp(flag, "--seed") == 0) {
        if (!quantity_u64(value, &o->seed)) return misused("--seed: not a whole number: ", value);
    } else {
        if (o->folder_count == FOLDERS) return misused("too many --plugins: ", value);
        o->folders[o->folder_count++] = value;
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
    if (o->plugin == NULL && !o->list) return misused("which plugin or spec?", "");
    return -1;
}

/* ---- running ---- */

static int list(void)
{
    for (uint32_t t = 0; t < TABLES; t++)
        for (const check_t *c = all[t]; c->name != NULL; c++)
            (void)printf("%-28s %s\n", c->name, c->sentence);
    return EXIT_DONE;
}

static bool is_chosen(const options_t *o, const check_t *c)
{
    return !o->has_only || regexec(&o->only, c->name, 0, NULL, 0) == 0;
}

/* What no plugin is, or one of a later kind, is for the first check to say. */
static bool is_for(const check_t *c, const subject_t *s)
{
    const uint32_t kind = s->head.kind;
    if (s->spec) return (c->kinds & CHECK_SPEC) != 0;
    return kind == 0 || kind > LH_KIND_PARTS || (c->kinds & 1u << kind) != 0;
}

/* A run that checks nothing would pass. */
static lh_status_t check_only(const options_t *o, const subject_t *s)
{
    bool known = false;
    for (uint32_t t = 0; t < TABLES; t++)
        for (const check_t *c = all[t]; c->name != NULL; c++) {
            if (!is_chosen(o, c)) continue;
            if (is_for(c, s)) return LH_OK;
            known = true;
        }
    if (!known)
        return fail(LH_INVALID, "--only %s: no check's name matches; --list shows them",
                    o->only_text);
    return fail(LH_INVALID, "--only %s: no check for the kind %s matches; --list shows them",
                o->only_text, s->spec ? "spec" : plugin_kind_text(s->head.kind));
}

/* The loader takes a folder that is not there for an empty one. */
static lh_status_t check_folder(const char *folder)
{
    struct stat st;
    if (stat(folder, &st) != 0) return fail_io(errno, "--plugins %s", folder);
    if (!S_ISDIR(st.st_mode)) return fail(LH_INVALID, "--plugins %s: not a folder", folder);
    return LH_OK;
}

/* A check that did not pass. */
typedef struct fault {
    const char *check;
    uint32_t result;    /* RESULT_FAIL or worse */
    char sentence[512]; /* its beginning */
} fault_t;
enum { FAULTS = 64 };

typedef struct tally {
    uint32_t results[RESULTS];
    bool loadable; /* what looks at the file found nothing wrong */
    fault_t faults[FAULTS];
    uint32_t fault_count;
} tally_t;

/* A check that cannot hold where another does not: one fault of the plugin's is told once, by the
 * check that is nearest to it. */
static const struct {
    const char *check, *after;
} follows[] = {
    {"optimizer.slices", "optimizer.tables"},
    {"optimizer.steps", "optimizer.tables"},
    {"optimizer.steps", "optimizer.slices"},
    {"optimizer.buckets", "optimizer.tables"},
    {"optimizer.buckets", "optimizer.slices"},
    {"optimizer.buckets", "optimizer.steps"},
    {"optimizer.saves", "optimizer.tables"},
    {"optimizer.saves", "optimizer.slices"},
    {"optimizer.saves", "optimizer.steps"},
    {"device.padded", "device.kernels"},
    {"device.adds", "device.kernels"},
    {"device.same_bits", "device.kernels"},
    {"ops.kernels", "device.kernels"},
    {"transport.sizes", "transport.cancel"},
    {"transport.sizes_mapped", "transport.sizes"},
    {"model.parameters", "model.opens"},
    {"model.decay", "model.opens"},
    {"model.precision", "model.opens"},
    {"model.recording", "model.opens"},
    {"model.gradients", "model.opens"},
    {"model.causal", "model.opens"},
    {"model.hugging_face", "model.opens"},
    {"model.tensor_ranks", "model.opens"},
    {"model.gradients", "model.recording"},
    {"model.hugging_face", "model.parameters"},
    {"model.hugging_face", "model.recording"},
    {"rules.shapes", "rules.double"},
    {"rules.shapes", "rules.apply"},
    {"life.out_of_memory", "life.repeats"},
    {"life.faulty_host", "life.repeats"},
    {"model.options", "model.opens"},
    {"ops.gradients", "ops.shapes"},
    {"ops.kernels", "ops.shapes"},
    {"ops.rows", "ops.shapes"},
    {"ops.pitch", "ops.shapes"},
    {"ops.rows", "ops.kernels"},
    {"ops.pitch", "ops.kernels"},
    {"ops.pitch", "device.padded"},
    {"ops.pitch", "device.kernels"},
    {"ops.parts", "ops.shapes"},
    {"ops.parts", "ops.kernels"},
    {"ops.parts", "device.kernels"},
    {"rules.double", "rules.states"},
    {"rules.apply", "rules.states"},
    {"rules.grain", "rules.states"},
    {"rules.scale", "rules.states"},
    {"rules.shapes", "rules.states"},
};

/* The fault because of which a check needs not run, or that it has only found again; NULL: none. */
static const fault_t *fault_before(const tally_t *t, const check_t *c)
{
    for (uint32_t i = 0; i < t->fault_count; i++)
        for (size_t k = 0; k < sizeof(follows) / sizeof(follows[0]); k++)
            if (strcmp(follows[k].check, c->name) == 0 &&
                strcmp(follows[k].after, t->faults[i].check) == 0)
                return &t->faults[i];
    /* What crashes or hangs once does so in the other checks of its family. */
    const size_t family = strcspn(c->name, ".");
    for (uint32_t i = 0; i < t->fault_count; i++)
        if (t->faults[i].result != RESULT_FAIL && strcmp(t->faults[i].check, c->name) != 0 &&
            strncmp(c->name, t->faults[i].check, family + 1) == 0)
            return &t->faults[i];
    return NULL;
}

static const fault_t *fault_again(const tally_t *t, const outcome_t *out)
{
    for (uint32_t i = 0; i < t->fault_count && out->result == RESULT_FAIL; i++)
        if (strncmp(t->faults[i].sentence, out->sentence, sizeof(t->faults[i].sentence) - 1) == 0)
            return &t->faults[i];
    return NULL;
}

static void skip_after(const fault_t *fault, outcome_t *out)
{
    *out = (outcome_t){.result = RESULT_SKIP};
    (void)snprintf(out->sentence, sizeof(out->sentence), "for the reason that %s gives",
                   fault->check);
}

static void run_one(const options_t *o, const check_t *c, subject_t *s, tally_t *tally)
{
    outcome_t out;
    const bool chosen = is_chosen(o, c);
    if (!is_for(c, s)) return;
    if (!chosen && !c->file) return;
    const fault_t *before = fault_before(tally, c);
    if (before != NULL) {
        skip_after(before, &out);
    } else if (c->file || (tally->loadable && s->plugin != NULL)) {
        check_run(c, s, o->in_process, &out);
        before = fault_again(tally, &out);
        if (before != NULL) skip_after(before, &out);
    } else {
        out = (outcome_t){.result = RESULT_SKIP, .sentence = "it can't be loaded"};
    }
    if (c->file && out.result >= RESULT_FAIL) tally->loadable = false;
    if (!chosen && out.result < RESULT_FAIL) return; /* the chosen ones can't run, then */
    tally->results[out.result]++;
    if (out.result >= RESULT_FAIL && tally->fault_count < FAULTS) {
        fault_t *fault = &tally->faults[tally->fault_count++];
        fault->check = c->name;
        fault->result = out.result;
        (void)snprintf(fault->sentence, sizeof(fault->sentence), "%.*s",
                       (int)sizeof(fault->sentence) - 1, out.sentence);
    }
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
    const check_t *first = s->spec ? checks_of_specs : checks_of_file;
    for (const check_t *c = first; c->name != NULL; c++) {
        const bool last = c[1].name == NULL;
        if (s->head.kind == 0 && c != first) break;
        if (!last || tally->loadable) run_one(o, c, s, tally);
    }
    if (tally->loadable && subject_load(s) != LH_OK) tally->loadable = false;
}

static int run_all(const options_t *o, subject_t *s)
{
    tally_t tally = {.loadable = true};
    run_file_checks(o, s, &tally);
    if (tally.loadable && subject_check_sets(s) != LH_OK) return refuse(EXIT_USAGE);
    for (uint32_t t = FILE_TABLES; t < TABLES; t++)
        for (const check_t *c = all[t]; c->name != NULL; c++)
            run_one(o, c, s, &tally);
    const uint32_t bad = tally.results[RESULT_FAIL] + tally.results[RESULT_CRASH] +
                         tally.results[RESULT_TIMEOUT];
    if (!o->json && !o->only_failed) print_sum(s->name, tally.results);
    return bad > 0 ? EXIT_REFUSED : EXIT_DONE;
}

static int check_plugin(const options_t *o)
{
    subject_t s;
    char *folders[FOLDERS] = {NULL};
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < o->folder_count && status == LH_OK; i++) {
        status = check_folder(o->folders[i]);
        if (status == LH_OK) folders[i] = path_absolute(o->folders[i]);
        if (status == LH_OK && folders[i] == NULL) status = LH_NO_MEMORY;
    }
    if (status != LH_OK) return refuse(EXIT_USAGE);
    status = subject_open(o->plugin, (const char *const *)folders, o->folder_count, &s);
    for (uint32_t i = 0; i < o->folder_count; i++)
        mem_free(folders[i]);
    if (status != LH_OK) return refuse(EXIT_REFUSED);
    memcpy(s.sets, o->sets, sizeof(o->sets));
    s.set_count = o->set_count;
    s.seed = o->seed;
    const int code = check_only(o, &s) == LH_OK ? run_all(o, &s) : refuse(EXIT_USAGE);
    subject_close(&s);
    return code;
}

int main(int argc, char **argv)
{
    options_t o = {.seed = 1};
    text_locale_hold(); /* children have it, too */
    int code = parse(argc, argv, &o);
    log_threshold(LH_LOG_ERROR);
    if (code < 0) code = o.list ? list() : check_plugin(&o);
    if (code == EXIT_DONE && file_finish_stdout() != LH_OK) code = refuse(EXIT_REFUSED);
    if (o.has_only) regfree(&o.only);
    return code;
}
