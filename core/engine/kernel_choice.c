/* kernel_choice.c - finds and prepares the kernel of each distinct call, once.
 *
 * A line of text names a call: op, hash of its attributes, dtypes and shapes. The line stands in
 * sentences and, with the kernel's name and variant behind it, beside a checkpoint. */
#include <engine/kernel_choice.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/digest.h>
#include <base/memory.h>
#include <longhaul/dtype.h>

/* Lines of before named no alignment from here on, nor what KEPT and alias_slot say. */
enum { ALIGNMENT_NAMED = 16 };

typedef struct offer { /* a row and the plugin whose services it gets */
    const lh_kernel_t *row;
    const op_t *op; /* that it names */
    const plugin_t *plugin;
} offer_t;

struct kernel_choice {
    kernel_choice_how_t how;
    offer_t *offers; /* [offer_count] in the order in which rows are tried */
    uint32_t offer_count;
    const char *known; /* of kernel_choice_tune */
    bool tune, bound;
    kernel_t **kernels; /* [count] one for each distinct call */
    uint32_t count;
    size_t capacity;
};

/* Appends a plugin's rows that name the device and, if the plugin is the device's own, those that
 * name none. Names of ops end here: a row of an op that nobody states is for nobody. */
static void offers_take(kernel_choice_t *c, const plugin_t *plugin, bool own)
{
    for (uint32_t i = 0; i < plugin->kernel_count; i++) {
        const lh_kernel_t *row = &plugin->kernels[i];
        const bool serves = row->device == NULL ? own
                                                : text_equal(row->device, c->how.device->name);
        const op_t *op = serves && row->op != NULL ? op_table_find(c->how.ops, row->op) : NULL;
        if (op != NULL) c->offers[c->offer_count++] = (offer_t){row, op, plugin};
    }
}

/* The list of offers is made once: the device's own rows, then the others'. */
lh_status_t kernel_choice_new(const kernel_choice_how_t *how, kernel_choice_t **out)
{
    size_t rows = how->device->kernel_count;
    for (uint32_t i = 0; i < how->plugin_count; i++)
        rows += how->plugins[i]->kernel_count;

    kernel_choice_t *c = mem_new(sizeof(*c));
    if (c == NULL) return LH_NO_MEMORY;
    c->how = *how;
    c->offers = mem_array(rows, sizeof(*c->offers));
    if (c->offers == NULL) {
        mem_free(c);
        return LH_NO_MEMORY;
    }
    offers_take(c, how->device, true);
    for (uint32_t i = 0; i < how->plugin_count; i++)
        if (how->plugins[i] != how->device) offers_take(c, how->plugins[i], false);
    *out = c;
    return LH_OK;
}

void kernel_choice_tune(kernel_choice_t *c, const char *known, bool tune)
{
    c->known = known;
    c->tune = tune;
}

void kernel_choice_bound(kernel_choice_t *c)
{
    c->bound = true;
}

static void kernel_free(kernel_t *k)
{
    if (k->prepared != NULL) k->row->release(k->prepared);
    mem_free(k->attributes);
    mem_free(k->line);
    mem_free(k);
}

void kernel_choice_free(kernel_choice_t *c)
{
    if (c == NULL) return;
    for (uint32_t i = 0; i < c->count; i++)
        kernel_free(c->kernels[i]);
    mem_free(c->kernels);
    mem_free(c->offers);
    mem_free(c);
}

/* " BF16[4096,512]", with "/" and the distance of rows where the argument is not dense, with "+" where
 * the kernel adds to it, "!" where its bytes are the same for a whole step, "~" and the slot in whose
 * memory it lies, and "@" and its alignment in bytes. */
static void arg_text(text_t *t, const lh_arg_t *arg)
{
    text_printf(t, " %s", lh_dtype_name(arg->dtype));
    for (uint32_t i = 0; i < arg->rank; i++)
        text_printf(t, "%s%" PRIu64, i == 0 ? "[" : ",", arg->shape[i]);
    if (arg->rank > 0) text_append(t, "]");
    const bool dense = arg->rank < 2 || arg->stride[0] == arg->stride[1] * arg->shape[1];
    if (!dense) text_printf(t, "/%" PRIu64, arg->stride[0]);
    if ((arg->flags & LH_ARG_ADD) != 0) text_append(t, "+");
    if ((arg->flags & LH_ARG_KEPT) != 0) text_append(t, "!");
    if (arg->alias_slot != 0) text_printf(t, "~%" PRIu32, arg->alias_slot);
    if (arg->alignment != 0) text_printf(t, "@%" PRIu32, arg->alignment);
}

/* The line that names a call, the same in every process, so that a resume finds it again. NULL:
 * memory is short. */
static char *line_of(const op_t *op, const void *attributes, const lh_arg_t *args)
{
    text_t t = {0};
    text_append(&t, op->row.name);
    if (attributes != NULL && op->row.attributes_bytes > 0)
        text_printf(&t, " %016" PRIx64, digest_xxh3(attributes, op->row.attributes_bytes));
    for (uint32_t i = 0; i < op->in_count + op->out_count; i++) {
        if (i == op->in_count) text_append(&t, " ->");
        arg_text(&t, &args[i]);
    }
    if (text_status(&t) == LH_OK) return t.data;
    text_free(&t);
    return NULL;
}

/* NONE in a row means any dtype; NONE in an argument, that the argument is left out. */
static bool dtypes_match(const lh_kernel_t *row, const lh_arg_t *args, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (row->dtypes[i] != LH_DTYPE_NONE && args[i].dtype != LH_DTYPE_NONE &&
            row->dtypes[i] != args[i].dtype)
            return false;
    return true;
}

/* How a saved line may name a call: all of it; as lines of before did, which have nothing of what
 * these did not name; or as a call that differs from it in nothing else. */
enum { NAMED_EXACTLY, NAMED_AS_BEFORE, NAMED_ALIKE, NAMINGS };

/* Behind what a line at `at` names that lines of before did not. */
static const char *addition_skip(const char *at, const char *end)
{
    for (;;) {
        const char mark = at < end ? *at : ' ';
        const char *digits = at + 1;
        while ((mark == '~' || mark == '@') && digits < end && *digits >= '0' && *digits <= '9')
            digits++;
        if (mark != '!' && mark != '~' &&
            (mark != '@' || strtoul(at + 1, NULL, 10) < ALIGNMENT_NAMED))
            return at;
        at = digits;
    }
}

/* Whether a saved call, up to its " = ", names that of a line. */
static bool call_named(const char *saved, size_t saved_length, const char *line, size_t line_length,
                       uint32_t naming)
{
    const char *saved_end = saved + saved_length, *line_end = line + line_length;
    if (naming == NAMED_EXACTLY)
        return saved_length == line_length && memcmp(saved, line, line_length) == 0;
    for (;;) {
        if (naming == NAMED_ALIKE) saved = addition_skip(saved, saved_end);
        line = addition_skip(line, line_end);
        if (saved == saved_end || line == line_end) return saved == saved_end && line == line_end;
        if (*saved++ != *line++) return false;
    }
}

/* The next name and variant that saved choices (*at; NULL: none) have for a line, and *at behind it.
 * Lines of before may have several, of calls that they did not tell apart. False: they have no
 * more. */
static bool variant_next(const char **at, const char *line, uint32_t naming, lh_kernel_plan_t *out)
{
    const size_t length = strlen(line);
    while (*at != NULL && **at != '\0') {
        const char *from = *at, *end = strchr(from, '\n'), *choice = strstr(from, " = ");
        *at = end == NULL ? NULL : end + 1;
        if (choice == NULL || (end != NULL && choice > end)) continue;
        if (!call_named(from, (size_t)(choice - from), line, length, naming)) continue;
        *out = (lh_kernel_plan_t){0};
        return sscanf(choice + 3, "%63s %" SCNu64, out->name, &out->variant) == 2;
    }
    return false;
}

/* Asks one row, and prepares its kernel. LH_UNSUPPORTED with a reason where the row can't do the
 * call, or its kernel is not what is wanted: equal bits every time (LH_KERNEL_ORDERED) unless
 * how.unordered, no memory saved for the way back, scratch within bounds, and the name that the
 * saved variants have. fits() may answer LH_AGAIN where only prepare() can tell. */
static lh_status_t offer_try(const kernel_choice_t *c, const offer_t *offer,
                             const lh_kernel_desc_t *desc, const lh_kernel_plan_t *wanted,
                             kernel_t *k)
{
    const lh_host_t *host = offer->plugin->host;
    lh_status_t status = LH_OK;
    if (offer->row->fits != NULL) {
        lh_kernel_desc_t asked = *desc;
        asked.stream = NULL;
        status = offer->row->fits(host, c->how.opened, c->how.config, &asked);
        if (status != LH_OK && status != LH_AGAIN) return status;
    }
    k->plan = (lh_kernel_plan_t){.struct_size = sizeof(k->plan)};
    status = offer->row->prepare(host, c->how.opened, desc, &k->plan, &k->prepared);
    if (status != LH_OK) {
        k->prepared = NULL;
        return status;
    }
    k->plan.name[sizeof(k->plan.name) - 1] = '\0'; /* a plugin may have filled all of it */
    k->row = offer->row;
    const char *why = NULL;
    if (!c->how.unordered && (k->plan.flags & LH_KERNEL_ORDERED) == 0)
        why = "does not promise equal bits every time; [train] deterministic = no would take it";
    if (k->plan.saved_bytes != 0) why = "wants saved memory, which is not built";
    if (k->plan.scratch_bytes > c->how.scratch_limit_bytes) why = "wants too much scratch memory";
    if (wanted->name[0] != '\0' && strcmp(wanted->name, k->plan.name) != 0)
        why = "is not the one that the saved variants name";
    if (why == NULL) return LH_OK;

    (void)fail(LH_UNSUPPORTED, "%s %s", k->plan.name, why);
    k->row->release(k->prepared);
    k->prepared = NULL;
    return LH_UNSUPPORTED;
}

/* A row's reason behind its plugin's name, which lh_host_t.fail puts there itself. */
static void reason_add(text_t *reasons, const char *plugin, const char *reason)
{
    const size_t length = strlen(plugin);
    const bool named = strncmp(reason, plugin, length) == 0 && reason[length] == ':';
    text_printf(reasons, "; %s%s%s", named ? "" : plugin, named ? "" : ": ", reason);
}

/* Tries the rows in order. Only LH_UNSUPPORTED moves on to the next row; a lack of memory, say,
 * does not. A refusal's sentence has the reasons of all rows that were tried. */
static lh_status_t rows_try(kernel_choice_t *c, const lh_kernel_desc_t *desc,
                            const lh_kernel_plan_t *wanted, kernel_t *k)
{
    text_t reasons = {0};
    uint32_t tried = 0;
    lh_status_t status = LH_UNSUPPORTED;
    for (uint32_t i = 0; i < c->offer_count && status == LH_UNSUPPORTED; i++) {
        const offer_t *offer = &c->offers[i];
        if (offer->op != k->op || !dtypes_match(offer->row, desc->args, desc->arg_count)) continue;
        tried++;
        fail_clear();
        status = offer_try(c, offer, desc, wanted, k);
        if (status != LH_OK)
            reason_add(&reasons, offer->plugin->name,
                       fail_reason()[0] != '\0' ? fail_reason() : status_text(status));
    }
    if (status == LH_UNSUPPORTED)
        (void)fail(LH_UNSUPPORTED, "device %s has no kernel for %s%s", c->how.device->name, k->line,
                   tried > 0 && reasons.data != NULL ? reasons.data : "");
    text_free(&reasons);
    return status;
}

/* The rows with one of the choices that a text has for the call's line, named in a way up to `most`,
 * the nearest first. *has: whether it has any. */
static lh_status_t chosen_try(kernel_choice_t *c, const lh_kernel_desc_t *desc, const char *choices,
                              uint32_t most, kernel_t *k, bool *has)
{
    lh_kernel_desc_t asked = *desc;
    lh_kernel_plan_t wanted;
    lh_status_t status = LH_UNSUPPORTED;
    *has = false;
    for (uint32_t naming = NAMED_EXACTLY; naming <= most && !*has; naming++) {
        const char *at = choices;
        while (status == LH_UNSUPPORTED && variant_next(&at, k->line, naming, &wanted)) {
            *has = true;
            asked.variant = wanted.variant;
            status = rows_try(c, &asked, &wanted, k);
        }
    }
    return status;
}

/* What must be taken; else what is known, unless a library or a plugin has changed meanwhile; else
 * the rows choose, by the clock where they may. What is known of a call whose places lie otherwise
 * will do where no clock is asked: other ranks have such calls, and take what rank 0 has. */
static lh_status_t kernel_find(kernel_choice_t *c, const lh_kernel_desc_t *desc, kernel_t *k)
{
    bool has;
    lh_status_t status = chosen_try(c, desc, c->how.variants, NAMED_AS_BEFORE, k, &has);
    if (has) return status;
    status = chosen_try(c, desc, c->known, c->tune || c->bound ? NAMED_AS_BEFORE : NAMED_ALIKE, k,
                        &has);
    if (has && status != LH_UNSUPPORTED) return status;

    lh_kernel_desc_t asked = *desc;
    const lh_kernel_plan_t any = {0};
    if (c->tune) asked.flags |= LH_KERNEL_TUNE;
    if (c->bound) asked.flags |= LH_KERNEL_MOST;
    return rows_try(c, &asked, &any, k);
}

/* Whether a kernel is of this very call. Arguments are compared as bytes, so whoever makes them
 * begins with zeros. */
static bool same_call(const kernel_t *k, const op_t *op, const void *attributes,
                      const lh_arg_t *args)
{
    if (k->op != op || memcmp(k->args, args, k->arg_count * sizeof(*args)) != 0) return false;
    if (attributes == NULL || k->attributes == NULL) return attributes == k->attributes;
    return memcmp(k->attributes, attributes, op->row.attributes_bytes) == 0;
}

/* What an op says of its cost is added up, compared and divided by: what is no amount counts as nothing. */
static double amount_of(double said)
{
    return isfinite(said) && said > 0 ? said : 0;
}

/* Fills a new kernel: copies what names the call, asks the op what the call costs, and tries the
 * rows. */
static lh_status_t kernel_fill(kernel_choice_t *c, const op_t *op, const void *attributes,
                               const lh_arg_t *args, kernel_t *k)
{
    lh_assert(op->in_count + op->out_count <= OP_SLOTS);
    k->op = op;
    k->arg_count = op->in_count + op->out_count;
    memcpy(k->args, args, k->arg_count * sizeof(*args));
    if (attributes != NULL) {
        k->attributes = mem_new(op->row.attributes_bytes);
        if (k->attributes == NULL) return LH_NO_MEMORY;
        memcpy(k->attributes, attributes, op->row.attributes_bytes);
    }
    k->line = line_of(op, attributes, args);
    if (k->line == NULL) return LH_NO_MEMORY;

    k->cost = (lh_cost_t){.struct_size = sizeof(k->cost)};
    if (op->row.cost != NULL) op->row.cost(attributes, k->args, k->arg_count, &k->cost);
    k->cost.flops = amount_of(k->cost.flops);
    k->cost.bytes = amount_of(k->cost.bytes);
    const lh_kernel_desc_t desc = {
        .struct_size = sizeof(desc),
        .flags = c->how.unordered ? 0 : LH_KERNEL_ORDERED,
        .op = op->row.name,
        .attributes = k->attributes,
        .args = k->args,
        .arg_size = sizeof(k->args[0]),
        .arg_count = k->arg_count,
        .scratch_limit_bytes = c->how.scratch_limit_bytes,
        .stream = c->how.stream,
    };
    return kernel_find(c, &desc, k);
}

/* The table grows before a new kernel is made, so that a prepared kernel always has its place. */
lh_status_t kernel_choose(kernel_choice_t *c, const op_t *op, const void *attributes,
                          const lh_arg_t *args, kernel_t **out)
{
    if (op->row.attributes_bytes == 0) attributes = NULL;
    for (uint32_t i = 0; i < c->count; i++) {
        if (!same_call(c->kernels[i], op, attributes, args)) continue;
        *out = c->kernels[i];
        return LH_OK;
    }
    kernel_t **kernels = mem_grow(c->kernels, &c->capacity, c->count + 1u, sizeof(*kernels));
    if (kernels == NULL) return LH_NO_MEMORY;
    c->kernels = kernels;
    kernel_t *k = mem_new(sizeof(*k));
    if (k == NULL) return LH_NO_MEMORY;
    const lh_status_t status = kernel_fill(c, op, attributes, args, k);
    if (status != LH_OK) {
        kernel_free(k);
        return status;
    }
    c->kernels[c->count++] = k;
    *out = k;
    return LH_OK;
}

/* Asks the fits() of the same rows in the same order; fits() gets no stream. */
bool kernel_is_offered(const kernel_choice_t *c, const op_t *op, const void *attributes,
                       const lh_arg_t *args)
{
    lh_assert(op->in_count + op->out_count <= OP_SLOTS);
    const lh_kernel_desc_t desc = {
        .struct_size = sizeof(desc),
        .flags = c->how.unordered ? 0 : LH_KERNEL_ORDERED,
        .op = op->row.name,
        .attributes = op->row.attributes_bytes == 0 ? NULL : attributes,
        .args = args,
        .arg_size = sizeof(args[0]),
        .arg_count = op->in_count + op->out_count,
        .scratch_limit_bytes = c->how.scratch_limit_bytes,
    };
    for (uint32_t i = 0; i < c->offer_count; i++) {
        const offer_t *offer = &c->offers[i];
        if (offer->op != op || !dtypes_match(offer->row, args, desc.arg_count)) continue;
        if (offer->row->fits == NULL) return true;
        const lh_status_t status = offer->row->fits(offer->plugin->host, c->how.opened,
                                                    c->how.config, &desc);
        if (status == LH_OK || status == LH_AGAIN) return true;
    }
    return false;
}

lh_status_t kernel_bind(const kernel_t *k, lh_launch_t *call)
{
    lh_assert(call->arg_count == k->arg_count && call->bound == NULL);
    for (uint32_t i = 0; i < k->arg_count; i++) {
        const uint32_t alignment = k->args[i].alignment;
        if (alignment > 1 && (uintptr_t)call->args[i].address % alignment != 0)
            return fail(
                LH_INVALID,
                "%s: slot %u lies at %p, and not on %u bytes, as the device says of all the "
                "memory that it gives",
                k->plan.name, i + 1, call->args[i].address, alignment);
    }
    return k->row->bind == NULL ? LH_OK : k->row->bind(k->prepared, call, &call->bound);
}

uint64_t kernel_choice_scratch(const kernel_choice_t *c)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->kernels[i]->plan.scratch_bytes > most) most = c->kernels[i]->plan.scratch_bytes;
    return most;
}

uint64_t kernel_choice_host_bytes(const kernel_choice_t *c)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < c->count; i++)
        sum += c->kernels[i]->plan.host_bytes;
    return sum;
}

static int by_choice(const void *a, const void *b)
{
    const kernel_t *const *x = a, *const *y = b;
    const int lines = strcmp((*x)->line, (*y)->line);
    const int names = lines != 0 ? lines : strcmp((*x)->plan.name, (*y)->plan.name);
    if (names != 0) return names;
    return (*x)->plan.variant < (*y)->plan.variant ? -1 : (*x)->plan.variant > (*y)->plan.variant;
}

void kernel_choice_text(const kernel_choice_t *c, uint32_t flags, text_t *out)
{
    const kernel_t **sorted = mem_array(c->count, sizeof(*sorted));
    if (sorted == NULL) {
        out->failed = true;
        return;
    }
    if (c->count > 0) memcpy(sorted, c->kernels, c->count * sizeof(*sorted));
    qsort(sorted, c->count, sizeof(*sorted), by_choice);
    const kernel_t *last = NULL;
    for (uint32_t i = 0; i < c->count; i++) {
        const kernel_t *k = sorted[i];
        if ((k->plan.flags & flags) != flags) continue;
        if (last != NULL && by_choice(&last, &k) == 0) continue;
        text_printf(out, "%s = %s %" PRIu64 "\n", k->line, k->plan.name, k->plan.variant);
        last = k;
    }
    mem_free(sorted);
}

/* Whether a text names a call (named) in a way up to `most`, and whether with this choice, in the
 * nearest way in which it does. `line` up to `call`, without the end of its line up to `length`. */
static bool choice_is(const char *text, const char *line, size_t call, size_t length, uint32_t most,
                      bool *named)
{
    bool same = false;
    *named = false;
    for (uint32_t naming = NAMED_EXACTLY; naming <= most && !*named; naming++)
        for (const char *at = text, *end; at != NULL && *at != '\0'; at = end + 1) {
            const char *choice = strstr(at, " = ");
            end = strchr(at, '\n');
            if (end == NULL || choice == NULL) break;
            if (choice > end || !call_named(at, (size_t)(choice - at), line, call, naming))
                continue;
            *named = true;
            same = same || ((size_t)(end - choice) == length - call &&
                            memcmp(choice, line + call, length - call) == 0);
        }
    return same;
}

bool kernel_choice_agree(const char *a, const char *b)
{
    for (const char *line = a; line != NULL && *line != '\0';) {
        const char *choice = strstr(line, " = "), *end = strchr(line, '\n');
        if (choice == NULL || end == NULL) return false;
        bool named;
        if (!choice_is(b, line, (size_t)(choice - line), (size_t)(end - line), NAMED_AS_BEFORE,
                       &named) &&
            named)
            return false;
        line = end + 1;
    }
    return true;
}

uint32_t kernel_choice_same(const char *a, const char *b)
{
    uint32_t count = 0;
    for (const char *line = a; line != NULL && *line != '\0';) {
        const char *choice = strstr(line, " = "), *end = strchr(line, '\n');
        if (choice == NULL || end == NULL) break;
        bool named;
        count += choice_is(b, line, (size_t)(choice - line), (size_t)(end - line), NAMED_ALIKE,
                           &named);
        line = end + 1;
    }
    return count;
}
