/* op_ground.c - one op at a time, recorded on inputs of guessed shapes, and the devices to run it on. */
#include "op_ground.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/memory.h>
#include <base/text.h>

#include "check.h"
#include "check_host.h"
#include "op_cases.h"

static const double kernel_tolerance = 2e-5;

bool op_ground_is_device(const subject_t *s)
{
    return s->plugin->kind == LH_KIND_DEVICE;
}

void op_ground_open(subject_t *s, op_ground_t *g)
{
    *g = (op_ground_t){.s = s};
    if (s->plugin->op_count == 0 && !op_ground_is_device(s)) check_skip("it brings no ops");
    const plugin_t *reference = subject_reference(s);
    if (reference == NULL) check_skip("no reference device: %s", fail_reason());
    g->config = subject_config(s, reference);
    g->ops = subject_ops(s);
    g->plugins = subject_plugins(s, &g->plugin_count);
    check_ok(opened_open(reference, check_host(), g->config, &g->truth), "reference device");
    g->is_truth = text_equal(reference->name, s->plugin->name);
}

void op_ground_close(op_ground_t *g)
{
    opened_close(&g->truth);
    op_table_free(g->ops);
    mem_free(g->config);
}

/* ---- a recording of one op ---- */

/* The last is a cache of one sequence. */
static const uint64_t guesses[][3] = {{7, 8, 0}, {8, 0, 0}, {7, 1, 0},
                                      {1, 0, 0}, {8, 8, 0}, {1, 7, 8}};
enum { GUESSES = 6, MOST_GUESSED = 4 };

/* Another value than the default for one attribute, within its range; false: none was found. */
bool op_ground_turn_attribute(const lh_option_t *a, void *attributes)
{
    static const char *const numbers[] = {"3", "2", "0.5", "1", "0.25"};
    char word[64];
    if (a->type == LH_OPT_CHOICE) {
        uint32_t is = 0;
        memcpy(&is, (const char *)attributes + a->offset, sizeof(is));
        const char *at = a->range;
        for (uint32_t i = 0; i <= is && at != NULL; i++)
            at = (at = strchr(at, '|')) == NULL ? NULL : at + 1;
        if (at == NULL) at = a->range;
        (void)snprintf(word, sizeof(word), "%.*s", (int)strcspn(at, "|"), at);
        return option_set(a, word, a->key, "/", attributes) == LH_OK;
    }
    if (a->type == LH_OPT_BOOL) {
        const bool is = *((const bool *)attributes + a->offset);
        return option_set(a, is ? "no" : "yes", a->key, "/", attributes) == LH_OK;
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (!text_equal(a->fallback, numbers[i]) &&
            option_set(a, numbers[i], a->key, "/", attributes) == LH_OK)
            return true;
    return false;
}

/* What the defaults leave open: the least number of its range. In the turn-th turn, from 1 on, the
 * attribute of that number is another one; NULL: it has no other. */
void *op_ground_attributes(const op_t *op, uint32_t turn)
{
    const lh_op_t *row = &op->row;
    unsigned char *out = options_default(row->attributes, row->attribute_count,
                                         row->attributes_bytes);
    for (uint32_t i = 0; i < row->attribute_count; i++) {
        const lh_option_t *a = &row->attributes[i];
        if (a->fallback != NULL || a->range == NULL) continue;
        const uint64_t least = strtoull(a->range, NULL, 10);
        const uint32_t narrow = (uint32_t)least;
        if (a->type == LH_OPT_U32) memcpy(out + a->offset, &narrow, sizeof(narrow));
        if (a->type == LH_OPT_U64) memcpy(out + a->offset, &least, sizeof(least));
    }
    if (turn > 0 && !op_ground_turn_attribute(&row->attributes[turn - 1], out)) {
        mem_free(out);
        return NULL;
    }
    const uint32_t size = row->attributes_bytes;
    if (size > 0) memcpy(out, &size, sizeof(size));
    return out;
}

/* A recording of the inputs that the n-th combination of guesses has for an op; those with a source
 * of their own are left out. */
recording_t *op_ground_inputs(const op_ground_t *g, const op_t *op, uint32_t n, lh_dtype_t compute,
                              bool (*offers)(void *, const op_t *, const void *, const lh_arg_t *),
                              lh_value_t in[OP_SLOTS])
{
    const recording_how_t how = {.ops = g->ops,
                                 .host = check_host(),
                                 .tokens = guesses[0][0],
                                 .sequences = 1,
                                 .max_documents = 2,
                                 .compute = compute,
                                 .accumulate = compute,
                                 .param = op_case_shape,
                                 .offers = offers,
                                 .device = (void *)(uintptr_t)g->s->plugin};
    recording_t *r;
    check_ok(recorder_new(&how, &r), "recording");
    for (uint32_t i = 0; i < op->in_count; i++) {
        const uint64_t *shape = guesses[i < MOST_GUESSED ? n % GUESSES : 0];
        if (i < MOST_GUESSED) n /= GUESSES;
        if (recorder_input_of(op->slot_name[i]) == 0)
            in[i] = op_case_param(&r->graph, op->slot_name[i], shape[0], shape[1], shape[2]);
    }
    return r;
}

/* The n-th combination of guesses; NULL: the op does not take it. */
static recording_t *record_guess(const op_ground_t *g, const op_t *op, uint32_t n,
                                 lh_dtype_t compute, uint32_t turn)
{
    lh_value_t in[OP_SLOTS] = {0};
    void *attributes = op_ground_attributes(op, turn);
    if (turn > 0 && attributes == NULL) return NULL;
    recording_t *r = op_ground_inputs(g, op, n, compute, op_case_listed, in);
    r->output = r->graph.api->op(&r->graph, op->row.name,
                                 op->row.attributes_bytes > 0 ? attributes : NULL, in, op->in_count,
                                 NULL);
    mem_free(attributes);
    if (recording_status(r) == LH_OK && r->output != 0) return r;
    recording_free(r);
    return NULL;
}

uint32_t op_ground_combinations(const op_t *op)
{
    uint32_t combinations = 1;
    for (uint32_t i = 0; i < op->in_count && i < MOST_GUESSED; i++)
        combinations *= GUESSES;
    return combinations;
}

recording_t *op_ground_turn(const op_ground_t *g, const op_t *op, lh_dtype_t compute, uint32_t turn)
{
    for (uint32_t n = 0; n < op_ground_combinations(op); n++) {
        recording_t *r = record_guess(g, op, n, compute, turn);
        if (r != NULL) return r;
    }
    return NULL;
}

recording_t *op_ground_record(const op_ground_t *g, const op_t *op, lh_dtype_t compute)
{
    return op_ground_turn(g, op, compute, 0);
}

/* Once with the defaults, and once for each attribute; of the core's ops, whose attributes are shapes,
 * with the defaults alone. */
uint32_t op_ground_turns(const op_t *op)
{
    return op->plugin == NULL ? 1 : 1 + op->row.attribute_count;
}

const op_t *op_ground_op(const op_ground_t *g, uint32_t i)
{
    return op_table_find(g->ops, g->s->plugin->ops[i].name);
}

/* ---- devices and their numbers ---- */

static bool first_for_device(const plugin_t *p, uint32_t row)
{
    const char *device = p->kernels[row].device;
    for (uint32_t i = 0; i < row; i++)
        if (p->kernels[i].device != NULL && strcmp(p->kernels[i].device, device) == 0) return false;
    return true;
}

uint32_t op_ground_devices(op_ground_t *g, bool truth,
                           void (*run)(op_ground_t *g, opened_t *on, const op_t *op))
{
    uint32_t devices = 0;
    for (uint32_t i = 0; i < g->s->plugin->kernel_count; i++) {
        const char *name = g->s->plugin->kernels[i].device;
        const plugin_t *device;
        opened_t other;
        if (name == NULL || !first_for_device(g->s->plugin, i)) continue;
        const bool is_truth = strcmp(name, g->truth.plugin->name) == 0;
        if (is_truth && !truth) continue;
        void *config = NULL;
        bool opened = is_truth;
        if (!is_truth && registry_load(g->s->installed, LH_KIND_DEVICE, name, &device) == LH_OK) {
            config = subject_config(g->s, device);
            opened = opened_open(device, check_host(), config, &other) == LH_OK;
        }
        for (uint32_t k = 0; opened && k < g->s->plugin->op_count; k++)
            run(g, is_truth ? &g->truth : &other, op_ground_op(g, k));
        if (opened && !is_truth) opened_close(&other);
        mem_free(config);
        devices += opened;
    }
    return devices;
}

bool op_ground_near(double got, double want, uint32_t signs)
{
    if (!isfinite(want) && signs != OP_CASE_POSITIVE) return true;
    return fabs(got - want) <= kernel_tolerance * (1 + fabs(want));
}
