/* command_new.c - longhaul new NAME --data FILES: a short INI for these files that `run` takes as it
 * is, sized to this machine.
 *
 * What a job mostly looks like stands in recipes, which are INI files beside the program; what is
 * written includes one of a phase and, for a model that is not imported, one of a model, and says
 * only what is this job's own: its files, the key of their texts, and what fits. So the core knows
 * no plugin's name, and whoever wants other habits changes a file.
 *
 * Devices are those whose plugins find one here, the fastest first by what they say of themselves, and
 * so is the dtype of compute. What fits is found by trying: the draft is written beside its place under
 * another name, checked as `check` does and planned as `plan` does, with the largest micro-batch first,
 * until the memory that the plan says is there. Nothing is left of a draft that was refused. */
#include <cli/cli.h>

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <cli/command_check.h>
#include <cli/model_source.h>
#include <data/input_lines.h>
#include <engine/engine.h>
#include <engine/weights.h>
#include <format/json.h>
#include <plan/step_plan.h>

/* A rank takes so much of what is free, as others run beside it. */
static const double share_of_memory = 0.8;

/* A device that is slower than the fastest by more than this is none to train on. */
static const double slowest = 1.0 / 100;

enum { NEW_KEY = 64, NEW_DEVICES = 8, NEW_FITS = 6 };

/* The job that is to be written. Texts are the command line's, unless said otherwise. */
typedef struct draft {
    const cli_t *cli;
    const char *name, *data, *from, *tokenizer, *phase;
    char *trial, *target; /* owned: the file while it is tried, and in the end */
    char *phase_recipe;   /* owned: an absolute path */
    char *model_recipe;   /* owned: likewise; NULL: the model is imported */
    char key[NEW_KEY];    /* of the texts; "" where lines are conversations */
    bool asks;            /* lines have a prompt and an answer, and no list of messages */
} draft_t;

/* A device of this machine, by what its plugin says. */
typedef struct found_device {
    char name[32];      /* of the plugin */
    uint32_t threads;   /* 0: the plugin has no such option */
    bool narrow, wide;  /* computes BF16, F32 */
    bool narrow_faster; /* BF16 at least as fast as F32 */
    double flops;       /* of the faster */
} found_device_t;

/* Filled by registry_list, a name at a time; then the fastest first. */
typedef struct devices {
    const cli_t *cli;
    const char *only; /* NULL: any */
    found_device_t items[NEW_DEVICES];
    uint32_t count;
} devices_t;

/* One thing to try. */
typedef struct fit {
    uint64_t micro_batch;
    const char *recompute, *precision;
    const found_device_t *device;
} fit_t;

/* ---- recipes ---- */

/* The program lies in ROOT/bin, and recipes in ROOT/share/longhaul/recipes, or in the source whose
 * build folder ROOT is. */
static lh_status_t recipe_find(const char *name, char **out)
{
    static const char *const places[] = {"share/longhaul/recipes", "../../examples/recipes"};
    char file[NEW_KEY + 8], *root;
    if (strchr(name, '/') != NULL || text_ends(name, ".ini")) {
        *out = path_absolute(name);
        if (*out == NULL) return LH_NO_MEMORY;
        return file_exists(*out) ? LH_OK : fail(LH_INVALID, "--recipe %s: not there", name);
    }
    lh_status_t status = path_program_root(&root);
    if (status != LH_OK) return status;
    (void)snprintf(file, sizeof(file), "%.60s.ini", name);
    for (int i = 0; status == LH_OK && *out == NULL && i < 2; i++) {
        char *folder = path_join(root, places[i]);
        char *path = folder == NULL ? NULL : path_join(folder, file);
        char *real = path == NULL ? NULL : realpath(path, NULL);
        if (path == NULL) status = LH_NO_MEMORY;
        if (real != NULL && (*out = mem_text(real)) == NULL) status = LH_NO_MEMORY;
        free(real);
        mem_free(path);
        mem_free(folder);
    }
    if (status == LH_OK && *out == NULL)
        status = fail(LH_INVALID, "there is no recipe '%s' in %s/%s or %s/%s; a path names a file",
                      name, root, places[0], root, places[1]);
    mem_free(root);
    return status;
}

/* ---- the data ---- */

/* The key whose text is a document: a usual name, else the only member that is a text. */
static lh_status_t key_choose(draft_t *d, const json_value_t *root)
{
    static const char *const usual[] = {"text", "content", "document", "body"};
    const char *only = NULL;
    text_t found = {0};
    uint32_t texts = 0;
    for (size_t i = 0; i < sizeof(usual) / sizeof(usual[0]) && only == NULL; i++)
        if (json_is_text(json_member(root, usual[i]))) only = usual[i];
    for (json_walk_t w = json_walk(root); only == NULL && json_next(&w);) {
        text_printf(&found, "%s%.40s", found.length > 0 ? ", " : "", w.key);
        texts += json_is_text(w.value);
    }
    for (json_walk_t w = json_walk(root); texts == 1 && json_next(&w);)
        if (json_is_text(w.value)) only = w.key;
    lh_status_t status = LH_OK;
    if (only == NULL || strlen(only) >= NEW_KEY || strpbrk(only, ";#\n\r\t,") != NULL)
        status = fail(LH_INVALID,
                      "no key is a document's text for certain; found %s, expected text, content, "
                      "document or body",
                      found.length > 0 ? found.data : "none");
    else
        (void)snprintf(d->key, sizeof(d->key), "%s", only);
    text_free(&found);
    return status;
}

/* What the first line holds must be what the phase trains on. */
static lh_status_t line_look(draft_t *d, const json_value_t *root)
{
    const bool pairs = strcmp(d->phase, "dpo") == 0;
    const bool messages = json_is_list(json_member(root, "messages"));
    if (!json_is_map(root)) return fail(LH_INVALID, "not a JSON object");
    if (strcmp(d->phase, "pretrain") == 0) return key_choose(d, root);
    if (pairs && (json_member(root, "chosen") == NULL || json_member(root, "rejected") == NULL))
        return fail(LH_INVALID, "--phase dpo wants lines with chosen and rejected");
    d->asks = !messages && json_member(root, "prompt") != NULL;
    if (!pairs && !messages && (!d->asks || json_member(root, "answer") == NULL))
        return fail(LH_INVALID, "--phase sft wants lines with messages, or with prompt and answer");
    return LH_OK;
}

/* The first line of the first file says what all are like; `prepare` reads the rest. */
static lh_status_t data_look(draft_t *d)
{
    enum { LINE_BYTES = 64 << 20 };
    static const uint64_t window_bytes = 2ull << 30;
    input_files_t files = {0};
    input_texts_t *texts = NULL;
    json_document_t *line = NULL;
    const char *bytes = NULL;
    size_t length = 0;
    bool end = false;
    lh_status_t status = input_files_find(".", d->data, NULL, &files);
    if (status != LH_OK) return status;
    status = input_texts_open((const char *const *)files.paths, files.count, NULL, LINE_BYTES,
                              window_bytes, &texts);
    if (status == LH_OK) status = input_texts_next_line(texts, &bytes, &length, &end);
    if (status == LH_OK && end) status = fail(LH_INVALID, "--data %s: no lines", d->data);
    if (status == LH_OK && !end) {
        status = json_line_read(bytes, length, &line);
        if (status == LH_OK) status = line_look(d, json_root(line));
        if (status != LH_OK) status = input_texts_place(texts, status);
    }
    json_free(line);
    input_texts_close(texts);
    input_files_free(&files);
    return status;
}

/* ---- the device ---- */

/* The first of the plugin's devices; false: there is none here, or it can't be opened. */
static bool device_ask(const plugin_t *p, const void *config, lh_device_properties_t *out)
{
    lh_device_t *device;
    uint32_t count = 0;
    *out = (lh_device_properties_t){.struct_size = sizeof(*out)};
    if (p->device->count(p->host, config, &count) != LH_OK || count == 0) return false;
    if (p->device->open(p->host, config, 0, &device) != LH_OK) return false;
    const lh_status_t status = p->device->properties(device, out);
    p->device->close(device);
    return status == LH_OK;
}

static void device_note(devices_t *d, const plugin_t *p, const lh_device_properties_t *said)
{
    const double f32 = said->flops_per_second[LH_DTYPE_F32];
    const double bf16 = said->flops_per_second[LH_DTYPE_BF16];
    found_device_t *found = &d->items[d->count++];
    *found = (found_device_t){.narrow = bf16 > 0,
                              .wide = f32 > 0 || bf16 <= 0,
                              .narrow_faster = bf16 > 0 && bf16 >= f32,
                              .flops = bf16 > f32 ? bf16 : f32};
    (void)snprintf(found->name, sizeof(found->name), "%s", p->name);
    /* Bits of a run depend on their number, so it is written down and not found anew. */
    for (uint32_t i = 0; i < p->option_count; i++)
        if (strcmp(p->options[i].key, "threads") == 0) found->threads = said->cores;
}

/* A plugin that can't be loaded, or finds no device, is passed over. */
static lh_status_t device_look(void *context, const char *name)
{
    devices_t *d = context;
    const plugin_t *p;
    void *config = NULL;
    lh_device_properties_t said;
    if (d->count == NEW_DEVICES || (d->only != NULL && strcmp(d->only, name) != 0)) return LH_OK;
    lh_status_t status = registry_load(d->cli->plugins, LH_KIND_DEVICE, name, &p);
    if (status == LH_OK) {
        const option_table_t table = plugin_options(p);
        status = options_defaults(&table, &config);
        if (status == LH_OK && device_ask(p, config, &said)) device_note(d, p, &said);
        if (config != NULL) job_free_config(&table, config);
    }
    if (status == LH_NO_MEMORY) return status;
    fail_clear();
    return LH_OK;
}

/* By speed, then by name. */
static int by_flops(const void *a, const void *b)
{
    const found_device_t *x = a, *y = b;
    if (x->flops != y->flops) return x->flops > y->flops ? -1 : 1;
    return strcmp(x->name, y->name);
}

static lh_status_t devices_find(const cli_t *cli, devices_t *d)
{
    *d = (devices_t){.cli = cli, .only = cli_flag(cli, "device")};
    const lh_status_t status = registry_list(cli->plugins, LH_KIND_DEVICE, device_look, d);
    if (status != LH_OK) return status;
    if (d->count == 0 && d->only != NULL)
        return fail(LH_INVALID, "--device %s: no such plugin in %s finds a device here", d->only,
                    registry_folder_text(cli->plugins));
    if (d->count == 0)
        return fail(LH_NO_DEVICE, "no device plugin in %s finds a device here",
                    registry_folder_text(cli->plugins));
    qsort(d->items, d->count, sizeof(d->items[0]), by_flops);
    while (d->items[d->count - 1].flops < slowest * d->items[0].flops)
        d->count--;
    return LH_OK;
}

/* ---- the INI ---- */

/* Why a fit has its precision. */
static const char *fit_why(const fit_t *fit)
{
    const bool narrow = strcmp(fit->precision, "bf16") == 0;
    if (narrow ? !fit->device->wide : !fit->device->narrow) return "what the device computes";
    return narrow == fit->device->narrow_faster ? "the faster one here" : "the smaller one, to fit";
}

/* A bare semicolon behind a blank would begin a comment. */
static void include_append(const char *path, text_t *out)
{
    for (const char *c = path; *c != '\0'; c++) {
        if (*c == ';') text_append(out, "\\");
        text_append_n(out, c, 1);
    }
}

/* Everything that is this job's own; what is left out is the recipes'. */
static lh_status_t draft_write(const draft_t *d, const fit_t *fit)
{
    text_t t = {0};
    const bool pretrain = strcmp(d->phase, "pretrain") == 0;
    text_printf(&t,
                "; Made by `longhaul new`. What stands here goes before what is included.\n"
                ";     longhaul check %s.ini      every value, and where it is from\n"
                ";     longhaul plan %s.ini       memory and time of a step\n"
                ";     longhaul run %s.ini\n\n",
                d->name, d->name, d->name);
    /* A line of an INI is short: a list goes on over the next one. */
    text_append(&t, "include = ");
    include_append(d->phase_recipe, &t);
    if (d->model_recipe != NULL) {
        text_append(&t, ",\n          ");
        include_append(d->model_recipe, &t);
    }
    text_append(&t, "\n\n");
    text_printf(&t, "[pipeline]\nname   = %s\nstages = %sprepare train eval export\n\n", d->name,
                d->from != NULL ? "import " : "");
    if (d->from != NULL)
        text_printf(&t, "[import]\nfrom = %s\n\n[model]\nplugin = from_import\n\n", d->from);
    text_printf(&t, "[prepare]\ninput     = %s\n", d->data);
    if (pretrain) text_printf(&t, "key       = %s\n", d->key);
    text_printf(&t, "tokenizer = %s\n\n", d->tokenizer != NULL ? d->tokenizer : d->from);
    text_printf(&t,
                "[train]\n"
                "micro_batch = %llu                 ; sequences at once; what fits this machine\n",
                (unsigned long long)fit->micro_batch);
    if (strcmp(fit->recompute, "full") == 0)
        text_append(&t, "recompute   = full              ; activations are made twice, to fit\n");
    text_printf(&t, "precision   = %-17s ; %s\n", fit->precision, fit_why(fit));
    text_printf(&t, "\n[device]\nplugin      = %s\n", fit->device->name);
    if (fit->device->threads > 0)
        text_printf(&t, "threads     = %-17u ; all; the bits of a run depend on their number\n",
                    fit->device->threads);
    text_append(&t, "\n[eval]\ndata = valid\n");
    lh_status_t status = text_status(&t);
    if (status == LH_OK) status = file_replace(d->trial, t.data, t.length);
    text_free(&t);
    return status;
}

/* What a rank of the planned job takes and what the device has. */
static lh_status_t job_plan(cli_t *cli, uint64_t *needed, uint64_t *room)
{
    model_source_t source = {0};
    plan_programs_t programs = {0};
    world_t *world = NULL;
    lh_device_memory_t device = {0};
    memory_report_t memory = {0};
    lh_status_t status = model_source_open(cli->job, cli->plugins, TOKENIZER_PLANNED, &source);
    if (status != LH_OK) return status;
    plan_programs_how_t how = {.session = model_source_session(&source, cli->plugins),
                               .documents = plan_documents(cli->job, model_source_eod(&source))};
    status = world_plan(cli->job, 0, &world);
    how.session.world = world;
    if (status == LH_OK) status = plan_programs_open(&how, &programs);
    if (status == LH_OK) plan_programs_memory(&programs, &memory);
    *needed = memory.total_bytes;
    *room = UINT64_MAX;
    if (status == LH_OK && engine_device_memory(programs.session->engine, &device))
        *room = device.free_bytes;
    plan_programs_close(&programs);
    world_free(world);
    model_source_close(&source);
    return status;
}

/* As `check` and `plan` would, each in a command line of their own. */
static lh_status_t draft_try(const draft_t *d, const fit_t *fit, uint64_t *needed, uint64_t *room)
{
    cli_t inner = {.command = d->cli->command,
                   .ini = d->trial,
                   .plugin_folders = d->cli->plugin_folders,
                   .plugin_folder_count = d->cli->plugin_folder_count};
    lh_status_t status = draft_write(d, fit);
    if (status != LH_OK) return status;
    status = cli_open(&inner);
    if (status == LH_OK) status = model_source_choose(inner.job, inner.plugins);
    if (status == LH_OK) status = check_job(&inner);
    if (status == LH_OK) status = job_plan(&inner, needed, room);
    cli_close(&inner);
    return status;
}

/* A sentence about the draft has the name that it would have got, which is the user's. The status
 * stays. */
static lh_status_t draft_refuse(const draft_t *d, lh_status_t status)
{
    text_t said = {0};
    const char *at = fail_reason(), *name;
    while ((name = strstr(at, d->trial)) != NULL) {
        text_append_n(&said, at, (size_t)(name - at));
        text_append(&said, d->target);
        at = name + strlen(d->trial);
    }
    text_append(&said, at);
    if (text_status(&said) == LH_OK) (void)fail(status, "%s", said.data);
    text_free(&said);
    return status;
}

/* The fastest first: a large micro-batch, then small ones, then the one that recomputes; and where F32
 * is faster, at last BF16, which needs less. */
static uint32_t fits_of(const found_device_t *device, fit_t fits[NEW_FITS])
{
    static const fit_t all[] = {{4, "none", NULL, NULL}, {2, "none", NULL, NULL},
                                {1, "none", NULL, NULL}, {1, "full", NULL, NULL},
                                {1, "none", NULL, NULL}, {1, "full", NULL, NULL}};
    const bool narrow = device->narrow_faster || !device->wide;
    const uint32_t count = narrow || !device->narrow ? NEW_FITS - 2 : NEW_FITS;
    for (uint32_t i = 0; i < count; i++) {
        fits[i] = all[i];
        fits[i].device = device;
        fits[i].precision = narrow || i >= NEW_FITS - 2 ? "bf16" : "f32";
    }
    return count;
}

/* A device after the other. What is refused with several sequences at once, as a recipe's batch may
 * be no multiple of them, may go with fewer. */
static lh_status_t draft_fit(const draft_t *d, const devices_t *devices, fit_t *out)
{
    uint64_t needed = 0, room = 0;
    char size[16], there[16];
    for (uint32_t n = 0; n < devices->count; n++) {
        fit_t fits[NEW_FITS];
        const uint32_t count = fits_of(&devices->items[n], fits);
        for (uint32_t i = 0; i < count; i++) {
            const lh_status_t status = draft_try(d, &fits[i], &needed, &room);
            if (status == LH_INVALID && fits[i].micro_batch > 1) {
                fail_clear();
                continue;
            }
            if (status != LH_OK) return draft_refuse(d, status);
            *out = fits[i];
            if ((double)needed <= share_of_memory * (double)room) return LH_OK;
        }
    }
    text_bytes((double)needed, size);
    text_bytes((double)room, there);
    return fail(LH_INVALID,
                "%s needs %s in one rank on %s with micro_batch = 1 and recompute = full, and %s "
                "are free there, of which %.0f %% are taken; more ranks share it: include the "
                "recipe in an INI with [site.*] hosts",
                d->name, size, out->device->name, there, share_of_memory * 100);
}

/* ---- the command ---- */

/* What an INI would read as a comment or as another line. */
static lh_status_t value_check(const char *flag, const char *value)
{
    for (const char *c = value; c != NULL && *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == ';' || *c == '#')
            return fail(LH_INVALID, "--%s: byte 0x%02x in it can't stand in an INI", flag,
                        (unsigned)(unsigned char)*c);
    return LH_OK;
}

/* A list of files has no way to name one with a comma, nor has a line one that ends in a blank. */
static lh_status_t recipe_check(const char *path)
{
    const size_t length = strlen(path);
    bool fits = length > 0 && !isspace((unsigned char)path[length - 1]);
    for (const char *c = path; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == ',') fits = false;
    if (fits) return LH_OK;
    return fail(
        LH_INVALID,
        "the recipe '%s': an INI can't include a file with a comma, a control character or a "
        "blank at the end in its path",
        path);
}

/* A name is a file's, a folder's and a value of the INI at once. */
static lh_status_t name_check(const char *name)
{
    if (name == NULL) return fail(LH_INVALID, "new: name the job, as in `longhaul new story`");
    bool plain = name[0] != '\0' && name[0] != '.' && name[0] != '-' && strlen(name) < NEW_KEY;
    for (const char *c = name; *c != '\0'; c++)
        if (!isalnum((unsigned char)*c) && strchr("-_.", *c) == NULL) plain = false;
    if (!plain)
        return fail(LH_INVALID,
                    "new: '%.64s' is no name; expected up to %d letters, digits, '-', '_' and '.'",
                    name, NEW_KEY - 1);
    return LH_OK;
}

static lh_status_t draft_begin(const cli_t *cli, draft_t *d)
{
    static const char *const phases[] = {"pretrain", "sft", "dpo"};
    char file[NEW_KEY + 32];
    uint32_t digits;
    const char *phase = cli_flag(cli, "phase"), *recipe = cli_flag(cli, "recipe");
    *d = (draft_t){.cli = cli,
                   .name = cli->name,
                   .data = cli_flag(cli, "data"),
                   .from = cli_flag(cli, "from"),
                   .tokenizer = cli_flag(cli, "tokenizer")};
    lh_status_t status = name_check(cli->name);
    if (status == LH_OK) status = value_check("data", d->data);
    if (status == LH_OK) status = value_check("from", d->from);
    if (status == LH_OK) status = value_check("tokenizer", d->tokenizer);
    if (status != LH_OK) return status;
    for (int i = 0; i < 3; i++)
        if (strcmp(phases[i], phase == NULL ? "pretrain" : phase) == 0) d->phase = phases[i];
    if (d->phase == NULL)
        return fail(LH_INVALID, "--phase %s: expected pretrain, sft or dpo", phase);
    if (d->data == NULL) return fail(LH_INVALID, "new: --data names the JSONL files to train on");
    if (d->from != NULL && recipe != NULL)
        return fail(LH_INVALID, "--recipe %s: the model is the one of --from %s", recipe, d->from);
    if (d->from == NULL && d->tokenizer == NULL)
        return fail(LH_INVALID, "new: --tokenizer names a tokenizer, or --from a Hugging Face "
                                "folder with one");
    if (d->from == NULL && strcmp(d->phase, "dpo") == 0)
        return fail(LH_INVALID,
                    "--phase dpo: a new model has nothing to compare with; --from names "
                    "a Hugging Face folder");
    (void)snprintf(file, sizeof(file), "%s.ini", d->name);
    d->target = mem_text(file);
    /* Random digits: another that makes the same job has a draft of its own, and loses at the end. */
    if (sys()->random(&digits, sizeof(digits)) != 0)
        return fail_io(errno, "%s: no random bytes for a name", d->name);
    (void)snprintf(file, sizeof(file), ".%s.%08x.draft.ini", d->name, digits);
    d->trial = mem_text(file);
    if (d->target == NULL || d->trial == NULL) return LH_NO_MEMORY;
    if (file_exists(d->target))
        return fail(LH_INVALID, "%s: is there already, and stays as it is", d->target);
    status = recipe_find(d->phase, &d->phase_recipe);
    if (status == LH_OK && d->from == NULL)
        status = recipe_find(recipe == NULL ? "small" : recipe, &d->model_recipe);
    if (status == LH_OK) status = recipe_check(d->phase_recipe);
    if (status == LH_OK && d->model_recipe != NULL) status = recipe_check(d->model_recipe);
    return status;
}

static int new_job(cli_t *cli)
{
    draft_t d;
    devices_t devices;
    fit_t fit = {0};
    char threads[32] = "";
    lh_status_t status = draft_begin(cli, &d);
    if (status == LH_OK) status = data_look(&d);
    if (status == LH_OK) status = devices_find(cli, &devices);
    if (status == LH_OK) status = draft_fit(&d, &devices, &fit);
    /* link fails where somebody made the file meanwhile; rename would replace it. */
    if (status == LH_OK && link(d.trial, d.target) != 0)
        status = fail_io(errno, "%s: cannot be made", d.target);
    if (d.trial != NULL) (void)unlink(d.trial);
    if (status == LH_OK && fit.device->threads > 0)
        (void)snprintf(threads, sizeof(threads), " with %u threads", fit.device->threads);
    if (status == LH_OK)
        cli_print_line("%s: %s%s, precision = %s, micro_batch = %llu%s; longhaul run %s", d.target,
                       fit.device->name, threads, fit.precision,
                       (unsigned long long)fit.micro_batch,
                       strcmp(fit.recompute, "full") == 0 ? ", recompute = full" : "", d.target);
    mem_free(d.model_recipe);
    mem_free(d.phase_recipe);
    mem_free(d.trial);
    mem_free(d.target);
    return status;
}

const command_t command_new = {
    .name = "new",
    .summary = "write a short PIPELINE.ini called NAME for JSONL files, sized to this machine",
    .needs = CLI_NEEDS_PLUGINS | CLI_TAKES_NAME,
    .run = new_job,
    .flags = {{"data", "FILES", "JSONL files or globs, comma-separated"},
              {"from", "FOLDER", "the model and tokenizer are those of this Hugging Face folder"},
              {"tokenizer", "FILE", "of a new model; see [prepare] tokenizer"},
              {"recipe", "R",
               "a new model: small if not given, another of examples/recipes, or a file"},
              {"phase", "P", "pretrain (if not given), sft or dpo"},
              {"device", "PLUGIN", "if not given, the fastest on which the job fits"}},
};
