/* recorder.c - lh_graph_api_t: what models, rules and gradients call to write down values and nodes.
 *
 * Every call is checked and its shapes are found while it is recorded, so that a model's mistake is
 * told at the line that made it, and passes need not check again. */
#include <graph/recorder.h>

#include <stdio.h>

#include <longhaul/dtype.h>
#include <longhaul/model.h>
#include <longhaul/ops.h>
#include <longhaul/rule.h>

#include <base/memory.h>
#include <base/text.h>
#include <graph/adapted_layer.h>

/* It goes by names, so a plugin's op with a slot `positions` gets the positions as the core's ops
 * do. */
uint32_t recorder_input_of(const char *slot)
{
    static const struct {
        const char *slot;
        uint32_t which;
    } inputs[] = {
        {"tokens", LH_INPUT_TOKENS}, {"positions", LH_INPUT_POSITIONS}, {"starts", LH_INPUT_STARTS},
        {"labels", LH_INPUT_LABELS}, {"weights", LH_INPUT_WEIGHTS},     {"step", LH_INPUT_STEP},
        {"seed", LH_INPUT_SEED},     {"lengths", LH_INPUT_LENGTHS},
    };
    for (uint32_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++)
        if (strcmp(inputs[i].slot, slot) == 0) return inputs[i].which;
    return 0;
}

/* The recording whose first field g is. */
static recording_t *recording_of(lh_graph_t *g)
{
    return (recording_t *)g;
}

/* Completes an argument with dense strides. Refuses what has no elements or more than memory can
 * hold, so that later sums of sizes can't overflow. `what` begins the sentence. */
static lh_status_t finish_arg(lh_arg_t *arg, const char *what)
{
    uint64_t elements = 1;
    if (arg->rank > LH_MAX_RANK)
        return fail(LH_INVALID, "%s has %u dimensions, expected at most %d", what, arg->rank,
                    LH_MAX_RANK);
    for (uint32_t i = arg->rank; i-- > 0;) {
        arg->stride[i] = elements;
        if (arg->shape[i] == 0)
            return fail(LH_INVALID, "%s has no elements in dimension %u", what, i);
        if (!checked_mul(elements, arg->shape[i], &elements) || elements > UINT64_MAX / 16)
            return fail(LH_INVALID, "%s has more elements than memory can hold", what);
    }
    arg->layout = LH_LAYOUT_DENSE;
    arg->flags = 0;
    return LH_OK;
}

/* Appends a value that no node makes; `what` begins the sentence of a refusal. 0 after a
 * failure. */
static lh_value_t new_value(recording_t *r, graph_value_t *value, const char *what)
{
    const lh_status_t status = finish_arg(&value->arg, what);
    const lh_value_t v = status == LH_OK ? recording_value_add(r, value) : 0;
    if (status != LH_OK) recording_failed(r, status);
    return v;
}

/* Whether a plugin hands something over where it must: a NULL is told as any other mistake, and does not end the
 * process. `what` begins the sentence. */
static bool is_given(recording_t *r, const void *given, const char *what)
{
    if (given == NULL) recording_failed(r, fail(LH_INVALID, "%s is NULL", what));
    return given != NULL;
}

/* lh_graph_api_t.param. A parameter that is named twice is one value, so its gradient is one
 * sum. */
static lh_value_t record_param(lh_graph_t *g, const char *name)
{
    recording_t *r = recording_of(g);
    if (r->status != LH_OK || !is_given(r, name, "the name of a parameter")) return 0;
    for (lh_value_t v = 1; v < r->value_count; v++)
        if (r->values[v].kind == VALUE_PARAM && strcmp(r->values[v].name, name) == 0) return v;

    graph_value_t value = {.kind = VALUE_PARAM, .arg = {.dtype = r->how.compute}};
    const lh_status_t status = r->how.param == NULL
                                   ? fail(LH_INVALID, "parameter %s is named where there are none",
                                          name)
                                   : r->how.param(r->how.context, name, value.arg.shape,
                                                  &value.arg.rank);
    if (status == LH_OK) value.name = mem_text(name);
    if (status != LH_OK || value.name == NULL) {
        recording_failed(r, status == LH_OK ? LH_NO_MEMORY : status);
        return 0;
    }
    const lh_value_t v = new_value(r, &value, name);
    if (v == 0) mem_free((char *)value.name);
    return v;
}

/* Dtype and shape of a run-time input, for the sizes of this recording. False: there is no such
 * input. */
static bool input_arg(const recording_how_t *how, uint32_t which, lh_arg_t *out)
{
    const lh_dtype_t wide = how->compute == LH_DTYPE_F64 ? LH_DTYPE_F64 : LH_DTYPE_F32;
    const lh_arg_t args[] = {
        [LH_INPUT_TOKENS] = {.dtype = LH_DTYPE_I32, .rank = 1, .shape = {how->tokens}},
        [LH_INPUT_POSITIONS] = {.dtype = LH_DTYPE_I32, .rank = 1, .shape = {how->tokens}},
        [LH_INPUT_STARTS] = {.dtype = LH_DTYPE_I32, .rank = 1, .shape = {how->max_documents + 1}},
        [LH_INPUT_LABELS] = {.dtype = LH_DTYPE_I32, .rank = 1, .shape = {how->tokens}},
        [LH_INPUT_WEIGHTS] = {.dtype = wide, .rank = 1, .shape = {how->tokens}},
        [LH_INPUT_STEP] = {.dtype = LH_DTYPE_F32, .rank = 1, .shape = {LH_STEP_WORDS}},
        [LH_INPUT_SEED] = {.dtype = LH_DTYPE_I32, .rank = 1, .shape = {4}},
        [LH_INPUT_LENGTHS] = {.dtype = LH_DTYPE_I32, .rank = 1, .shape = {how->sequences}},
    };
    if (which == 0 || which >= sizeof(args) / sizeof(args[0])) return false;
    *out = args[which];
    return true;
}

/* lh_graph_api_t.input. An input that is asked for twice is one value. */
static lh_value_t record_input(lh_graph_t *g, uint32_t which)
{
    recording_t *r = recording_of(g);
    if (r->status != LH_OK) return 0;
    for (lh_value_t v = 1; v < r->value_count; v++)
        if (r->values[v].kind == VALUE_INPUT && r->values[v].which == which) return v;

    graph_value_t value = {.kind = VALUE_INPUT, .which = which};
    if (!input_arg(&r->how, which, &value.arg)) {
        recording_failed(r, fail(LH_INVALID, "there is no run-time input %u", which));
        return 0;
    }
    return new_value(r, &value, "a run-time input");
}

/* lh_graph_api_t.constant. Constants with equal content are one value. */
static lh_value_t record_constant(lh_graph_t *g, const float *values, uint64_t count)
{
    recording_t *r = recording_of(g);
    if (r->status != LH_OK || !is_given(r, values, "what a constant is made of")) return 0;
    for (lh_value_t v = 1; v < r->value_count; v++) {
        const graph_value_t *other = &r->values[v];
        if (other->kind == VALUE_CONSTANT && other->constant_count == count &&
            memcmp(other->constant, values, count * sizeof(float)) == 0)
            return v;
    }
    float *copy = mem_array(count, sizeof(float));
    if (copy == NULL) {
        recording_failed(r, LH_NO_MEMORY);
        return 0;
    }
    memcpy(copy, values, count * sizeof(float));
    graph_value_t value = {.kind = VALUE_CONSTANT,
                           .constant = copy,
                           .constant_count = count,
                           .arg = {.dtype = LH_DTYPE_F32, .rank = 1, .shape = {count}}};
    const lh_value_t v = new_value(r, &value, "a constant");
    if (v == 0) mem_free(copy);
    return v;
}

/* Copies attributes into a struct as long as the op's. A shorter struct is filled up with zeros,
 * and a longer one must end in zeros, so that a plugin which was built against an older or newer
 * header can call the op. */
static lh_status_t copy_attributes(const op_t *op, const void *attributes, void **out)
{
    const uint32_t bytes = op->row.attributes_bytes;
    *out = NULL;
    if (bytes == 0) {
        if (attributes == NULL) return LH_OK;
        return fail(LH_INVALID, "op %s has no attributes, and some were given", op->row.name);
    }
    unsigned char *copy = mem_new(bytes);
    if (copy == NULL) return LH_NO_MEMORY;
    uint32_t given = 0;
    if (attributes != NULL) memcpy(&given, attributes, sizeof(given));
    const uint32_t known = given < bytes ? given : bytes;
    if (known > 0) memcpy(copy, attributes, known);
    for (uint32_t i = bytes; i < given; i++)
        if (((const unsigned char *)attributes)[i] != 0) {
            mem_free(copy);
            return fail(LH_ABI, "op %s has attributes of %u bytes, %u were given", op->row.name,
                        bytes, given);
        }
    memcpy(copy, &bytes, sizeof(bytes));
    *out = copy;
    return LH_OK;
}

/* Fills in the inputs in slot order. Each must exist; an input that is left out must be optional or
 * have a standard source. */
static lh_status_t fill_inputs(recording_t *r, const lh_value_t *in, uint32_t in_count,
                               op_call_t *call)
{
    const op_t *op = call->op;
    if (in_count > op->in_count)
        return fail(LH_INVALID, "op %s takes %u inputs, %u were given", op->row.name, op->in_count,
                    in_count);
    for (uint32_t i = 0; i < op->in_count; i++) {
        lh_value_t v = i < in_count ? in[i] : 0;
        const uint32_t which = v == 0 ? recorder_input_of(op->slot_name[i]) : 0;
        if (which != 0 && !op->optional[i]) {
            v = record_input(&r->graph, which);
            if (v == 0) return fail(r->status, "%s", r->reason == NULL ? "" : r->reason);
        }
        if (v == 0 && !op->optional[i])
            return fail(LH_INVALID, "op %s lacks its input %s", op->row.name, op->slot_name[i]);
        if (v >= r->value_count || (v != 0 && r->values[v].kind == VALUE_NONE))
            return fail(LH_INVALID, "op %s: input %s is value %u, which does not exist",
                        op->row.name, op->slot_name[i], v);
        call->in[i] = v;
        call->args[i] = v == 0 ? (lh_arg_t){0} : r->values[v].arg;
    }
    return LH_OK;
}

/* The output that is named like an input has what memory there is. */
static lh_status_t alias_check(const op_call_t *call, uint32_t slot)
{
    const lh_arg_t *y = &call->args[slot], *x = &call->args[call->op->alias[slot] - 1];
    if (y->rank == x->rank && memcmp(y->shape, x->shape, x->rank * sizeof(x->shape[0])) == 0)
        return LH_OK;
    return fail(LH_INVALID, "op %s: output %s lies in its input's memory, expected its shape",
                call->op->row.name, call->op->slot_name[slot]);
}

/* Completes the outputs that shape() stated: dense, and in the compute dtype where it named none.
 * An output that is named like an input lies in that input's memory, and is left out where the
 * input is. */
static lh_status_t finish_outputs(const recording_t *r, op_call_t *call)
{
    const op_t *op = call->op;
    for (uint32_t s = op->in_count; s < op->in_count + op->out_count; s++) {
        lh_arg_t *arg = &call->args[s];
        const uint32_t alias = op->alias[s];
        if (alias != 0 && call->in[alias - 1] == 0) {
            *arg = (lh_arg_t){0};
            continue;
        }
        if (arg->dtype == LH_DTYPE_NONE) arg->dtype = r->how.compute;
        text_t what = {0};
        text_printf(&what, "op %s: output %s", op->row.name, op->slot_name[s]);
        lh_status_t status = text_status(&what);
        if (status == LH_OK) status = finish_arg(arg, what.data);
        if (status == LH_OK && alias != 0) status = alias_check(call, s);
        text_free(&what);
        if (status != LH_OK) return status;
        arg->alias_slot = alias;
    }
    return LH_OK;
}

/* An attribute named document_rows is the host's to set, of any op that has one: where documents
 * begin is known before the op runs. */
static void documents_complete(const recording_t *r, const op_t *op, void *attributes)
{
    const lh_op_t *row = &op->row;
    for (uint32_t i = 0; r->how.document_rows != 0 && i < row->attribute_count; i++) {
        const lh_option_t *option = (const lh_option_t *)((const char *)row->attributes +
                                                          (size_t)i * row->attribute_size);
        if (strcmp(option->key, "document_rows") != 0 || option->type != LH_OPT_U32) continue;
        memcpy((char *)attributes + option->offset, &r->how.document_rows, sizeof(uint32_t));
    }
}

/* Of the numbers in an input only the op that made them says how large they may be: from more columns
 * than an LH_OP_PICKED has room for, its kernels would write outside of their outputs. */
static lh_status_t picks_check(const recording_t *r, const op_call_t *call)
{
    const lh_op_t *row = &call->op->row;
    const graph_value_t *picks = &r->values[call->in[0]];
    if ((row->flags & LH_OP_PICKED) == 0 || picks->kind != VALUE_RESULT) return LH_OK;
    const graph_node_t *maker = &r->nodes[picks->node];
    if ((maker->op->row.flags & LH_OP_PICKS) == 0) return LH_OK;
    lh_assert(row->attribute_count > 0 && row->attributes[0].type == LH_OPT_U32);
    uint32_t most;
    memcpy(&most, (const char *)call->attributes + row->attributes[0].offset, sizeof(most));
    const uint64_t columns = r->values[maker->slots[0]].arg.shape[1];
    if (columns <= most) return LH_OK;
    return fail(LH_INVALID, "%s: input %s picks among %llu columns, and %s is %u", row->name,
                call->op->slot_name[0], (unsigned long long)columns, row->attributes[0].key, most);
}

/* Kernels of an LH_OP_PLACES lay rows where the numbers of its I32 inputs say. What a step brings with
 * it (tokens, positions) are any numbers. An input that is left out is value 0, of no kind. */
static lh_status_t places_check(const recording_t *r, const op_call_t *call)
{
    const op_t *op = call->op;
    if ((op->row.flags & LH_OP_PLACES) == 0) return LH_OK;
    for (uint32_t i = 0; i < op->in_count; i++) {
        const graph_value_t *places = &r->values[call->in[i]];
        if (places->kind == VALUE_INPUT && places->arg.dtype == LH_DTYPE_I32)
            return fail(LH_INVALID,
                        "%s: input %s is an input of the step, expected what another op made",
                        op->row.name, op->slot_name[i]);
    }
    return LH_OK;
}

/* Each step needs what comes before it: the struct of attributes, the inputs, attributes that are
 * found by the inputs (complete), then shapes. */
lh_status_t recorder_call(recording_t *r, const op_t *op, const void *attributes,
                          const lh_value_t *in, uint32_t in_count, op_call_t *call)
{
    lh_assert(op != NULL && op->in_count + op->out_count <= OP_SLOTS);
    *call = (op_call_t){.op = op};
    lh_status_t status = copy_attributes(op, attributes, &call->attributes);
    if (status != LH_OK) return status;
    status = fill_inputs(r, in, in_count, call);
    if (status == LH_OK) status = picks_check(r, call);
    if (status == LH_OK) status = places_check(r, call);
    if (status != LH_OK) goto free_attributes;

    if (call->attributes != NULL) documents_complete(r, op, call->attributes);
    if (op->row.complete != NULL && call->attributes != NULL)
        op->row.complete(call->attributes, call->args);
    status = op->row.shape(r->how.host, call->attributes, call->args, op->in_count + op->out_count);
    if (status != LH_OK) goto free_attributes;
    status = finish_outputs(r, call);
    if (status != LH_OK) goto free_attributes;
    return LH_OK;

free_attributes:
    mem_free(call->attributes);
    return status;
}

/* Appends the node and its output values. Takes over call->attributes, after a failure too. 0:
 * memory is short. */
static uint32_t node_append(recording_t *r, op_call_t *call)
{
    const op_t *op = call->op;
    graph_node_t node = {.op = op,
                         .attributes = call->attributes,
                         .backward = r->backward,
                         .gradient_of = r->gradient_of};
    memcpy(node.slots, call->in, op->in_count * sizeof(node.slots[0]));
    for (uint32_t s = op->in_count; s < op->in_count + op->out_count; s++) {
        if (call->args[s].dtype == LH_DTYPE_NONE) continue;
        const graph_value_t value = {
            .kind = VALUE_RESULT, .node = r->node_count, .slot = s, .arg = call->args[s]};
        node.slots[s] = recording_value_add(r, &value);
        if (node.slots[s] == 0) goto free_attributes;
    }
    const uint32_t index = recording_node_add(r, &node);
    if (index != 0) return index;

free_attributes:
    mem_free(call->attributes);
    return 0;
}

bool recorder_offers(const recording_t *r, const op_call_t *call)
{
    return r->how.offers != NULL &&
           r->how.offers(r->how.device, call->op, call->attributes, call->args);
}

/* Checks that what expand() recorded has the dtypes and shapes that shape() stated. */
static lh_status_t expanded_check(const recording_t *r, const op_call_t *call,
                                  const lh_value_t *out)
{
    const op_t *op = call->op;
    for (uint32_t i = 0; i < op->out_count; i++) {
        const uint32_t slot = op->in_count + i;
        if (out[i] == 0 && (op->optional[slot] || call->args[slot].dtype == LH_DTYPE_NONE))
            continue;
        if (out[i] == 0 || out[i] >= r->value_count)
            return fail(LH_INVALID, "op %s records nothing for its output %s", op->row.name,
                        op->slot_name[slot]);
        if (!recording_args_alike(&r->values[out[i]].arg, &call->args[slot]))
            return fail(LH_INVALID,
                        "op %s records an output %s of another dtype or shape than it has",
                        op->row.name, op->slot_name[slot]);
    }
    return LH_OK;
}

/* Records the ops that an op stands for, as the device has no kernel for it; returns its first
 * output. Those ops may be expanded in turn, up to a depth that guards against ops that stand for
 * each other. */
static lh_value_t record_expanded(recording_t *r, op_call_t *call, lh_value_t *more)
{
    enum { DEPTH = 8 };
    const op_t *op = call->op;
    lh_value_t out[OP_SLOTS] = {0};
    lh_status_t status = LH_OK;
    if (r->expanding == DEPTH)
        status = fail(LH_INVALID, "op %s is recorded as ops that are recorded as others, %d deep",
                      op->row.name, (int)DEPTH);
    r->expanding++;
    if (status == LH_OK) op->row.expand(&r->graph, call->attributes, call->in, out);
    r->expanding--;
    if (status == LH_OK && r->status == LH_OK) status = expanded_check(r, call, out);
    mem_free(call->attributes);
    recording_failed(r, status);
    if (r->status != LH_OK) return 0;
    for (uint32_t i = 1; more != NULL && i < op->out_count; i++)
        more[i - 1] = out[i];
    return out[0];
}

/* The parameter that a refused call is about: the one whose slot the sentence names, else the only
 * one. NULL: none, or it does not say which. */
static const char *parameter_meant(const recording_t *r, const op_t *op, const lh_value_t *in,
                                   uint32_t in_count)
{
    const char *only = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; i < in_count && i < op->in_count; i++) {
        char input[40], wants[40];
        if (in[i] == 0 || in[i] >= r->value_count || r->values[in[i]].kind != VALUE_PARAM) continue;
        (void)snprintf(input, sizeof(input), "input %s ", op->slot_name[i]);
        (void)snprintf(wants, sizeof(wants), "wants %s ", op->slot_name[i]);
        only = r->values[in[i]].name;
        count++;
        if (strstr(fail_reason(), input) != NULL || strstr(fail_reason(), wants) != NULL)
            return only;
    }
    return count == 1 ? only : NULL;
}

/* An op knows its slots and not what the model calls them: its sentence gets the parameter's name
 * in front. One without a word about the op (a plugin's shape() may say anything, or nothing) gets
 * that, too. */
static lh_status_t call_refused(recording_t *r, const op_t *op, const lh_value_t *in,
                                uint32_t in_count, lh_status_t status)
{
    char reason[1024];
    const char *parameter = parameter_meant(r, op, in, in_count);
    const char *said = fail_reason()[0] != '\0' ? fail_reason() : status_text(status);
    const bool named = strstr(said, op->row.name) != NULL;
    r->misshapen = r->status == LH_OK && parameter != NULL;
    if (status == LH_NO_MEMORY || (parameter == NULL && named)) return status;
    (void)snprintf(reason, sizeof(reason), "%s", said);
    (void)fail(status, "%s%s%s%s%s", parameter == NULL ? "" : parameter,
               parameter == NULL ? "" : ": ", named ? "" : op->row.name, named ? "" : ": ", reason);
    return status;
}

/* lh_graph_api_t.op, in this order: finds the op, checks and completes the call, leaves it out
 * where it does nothing, expands it where the device has no kernel, else appends a node. */
static lh_value_t record_op(lh_graph_t *g, const char *name, const void *attributes,
                            const lh_value_t *in, uint32_t in_count, lh_value_t *more)
{
    recording_t *r = recording_of(g);
    if (r->status != LH_OK || !is_given(r, name, "the name of an op")) return 0;
    const op_t *op = op_table_find(r->how.ops, name);
    if (op == NULL) {
        recording_failed(
            r, fail(LH_INVALID, "there is no op '%s' in the core or a loaded plugin", name));
        return 0;
    }
    for (uint32_t i = 1; more != NULL && i < op->out_count; i++)
        more[i - 1] = 0;
    if (in_count > 0 && !is_given(r, in, "the list of an op's inputs")) return 0;

    op_call_t call;
    double scale = 0;
    bool magnitude = false;
    const bool adapted = adapted_layer_is(r, op, in, in_count, &scale, &magnitude);
    const lh_value_t bias = adapted && in_count > 2 ? in[2] : 0;
    if (magnitude && in_count > 2) in_count = 2;
    fail_clear(); /* a shape() that refuses without a word would be given another's */
    const lh_status_t status = recorder_call(r, op, attributes, in, in_count, &call);
    if (status != LH_OK) {
        recording_failed(r, call_refused(r, op, in, in_count, status));
        return 0;
    }
    if (op->row.vanishes != NULL && op->row.vanishes(call.attributes)) {
        mem_free(call.attributes);
        return call.in[0];
    }
    if (op->row.expand != NULL && !recorder_offers(r, &call)) {
        const bool inside = r->adapting;
        r->adapting = inside || adapted;
        const lh_value_t y = record_expanded(r, &call, more);
        r->adapting = inside;
        return adapted && y != 0 ? adapted_layer_change(r, in, bias, y, scale, magnitude) : y;
    }
    const uint32_t index = node_append(r, &call);
    if (index == 0) return 0;

    const lh_value_t *outputs = r->nodes[index].slots + op->in_count;
    for (uint32_t i = 1; more != NULL && i < op->out_count; i++)
        more[i - 1] = outputs[i];
    if (adapted) return adapted_layer_change(r, in, bias, outputs[0], scale, magnitude);
    return op->out_count == 0 ? 0 : outputs[0];
}

/* lh_graph_api_t.shape, for gradients whose op has a shape as an attribute. */
static lh_status_t value_shape(lh_graph_t *g, lh_value_t v, lh_arg_t *out)
{
    recording_t *r = recording_of(g);
    if (r->status != LH_OK) return recording_status(r);
    if (v == 0 || v >= r->value_count) {
        recording_failed(
            r, fail(LH_INVALID, "the shape of value %u was asked, which does not exist", v));
        return r->status;
    }
    *out = r->values[v].arg;
    return LH_OK;
}

/* lh_graph_api_t.loss. A loss is one real number, in a wide dtype. */
static void record_loss(lh_graph_t *g, const char *metric, lh_value_t scalar)
{
    recording_t *r = recording_of(g);
    if (r->status != LH_OK || !is_given(r, metric, "the name of a loss")) return;
    const lh_arg_t *arg = scalar < r->value_count ? &r->values[scalar].arg : NULL;
    if (scalar == 0 || arg == NULL || arg->rank != 1 || arg->shape[0] != 1 ||
        (arg->dtype != LH_DTYPE_F32 && arg->dtype != LH_DTYPE_F64)) {
        recording_failed(r, fail(LH_INVALID, "loss %s is not one F32 value", metric));
        return;
    }
    graph_loss_t *losses = mem_grow(r->losses, &r->loss_capacity, (size_t)r->loss_count + 1,
                                    sizeof(*losses));
    if (losses == NULL) {
        recording_failed(r, LH_NO_MEMORY);
        return;
    }
    r->losses = losses;
    losses[r->loss_count] = (graph_loss_t){mem_text(metric), scalar};
    if (losses[r->loss_count].metric == NULL)
        recording_failed(r, LH_NO_MEMORY);
    else
        r->loss_count++;
}

/* A value that exists, a vector in a wide dtype, which sums over blocks and micro-batches keep. */
static bool sum_takes(const recording_t *r, lh_value_t value)
{
    const lh_arg_t *arg = value < r->value_count ? &r->values[value].arg : NULL;
    return value != 0 && arg != NULL && arg->rank == 1 &&
           (arg->dtype == LH_DTYPE_F32 || arg->dtype == LH_DTYPE_F64);
}

static void recorded_sum_add(recording_t *r, const char *name, lh_value_t value, graph_sum_t **list,
                             uint32_t *count, size_t *capacity)
{
    graph_sum_t *sums = mem_grow(*list, capacity, (size_t)*count + 1, sizeof(*sums));
    char *copy = mem_text(name);
    if (sums != NULL) *list = sums;
    if (sums == NULL || copy == NULL) {
        mem_free(copy);
        recording_failed(r, LH_NO_MEMORY);
        return;
    }
    sums[(*count)++] = (graph_sum_t){.name = copy, .value = value};
}

/* lh_graph_api_t.accumulate */
static void record_accumulate(lh_graph_t *g, const char *name, lh_value_t value)
{
    recording_t *r = recording_of(g);
    if (r->status != LH_OK || !is_given(r, name, "the name of a sum")) return;
    if (!sum_takes(r, value)) {
        recording_failed(r, fail(LH_INVALID, "what is added to %s is not a vector of F32", name));
        return;
    }
    recorded_sum_add(r, name, value, &r->added, &r->added_count, &r->added_capacity);
}

/* lh_graph_api_t.total. A sum that is asked for twice is one value. */
static lh_value_t record_total(lh_graph_t *g, const char *name, uint64_t count)
{
    recording_t *r = recording_of(g);
    if (r->status != LH_OK || !is_given(r, name, "the name of a sum")) return 0;
    for (uint32_t i = 0; i < r->total_count; i++)
        if (strcmp(r->totals[i].name, name) == 0 &&
            r->values[r->totals[i].value].arg.shape[0] == count)
            return r->totals[i].value;
    const lh_dtype_t dtype = r->how.compute == LH_DTYPE_F64 ? LH_DTYPE_F64 : LH_DTYPE_F32;
    const lh_value_t value = recording_argument(r, dtype, 1, &count);
    if (value != 0)
        recorded_sum_add(r, name, value, &r->totals, &r->total_count, &r->total_capacity);
    return r->status == LH_OK ? value : 0;
}

static const lh_graph_api_t recorder_api = {
    .struct_size = sizeof(recorder_api),
    .param = record_param,
    .input = record_input,
    .constant = record_constant,
    .op = record_op,
    .shape = value_shape,
    .loss = record_loss,
    .accumulate = record_accumulate,
    .total = record_total,
};

/* Value 0 and node 0 stand for none. */
lh_status_t recorder_new(const recording_how_t *how, recording_t **out)
{
    recording_t *r = mem_new(sizeof(*r));
    if (r == NULL) return LH_NO_MEMORY;
    r->graph.api = &recorder_api;
    r->how = *how;
    const graph_value_t no_value = {.kind = VALUE_NONE};
    const graph_node_t no_node = {.op = NULL};
    (void)recording_value_add(r, &no_value);
    (void)recording_node_add(r, &no_node);
    if (r->status != LH_OK) {
        const lh_status_t status = r->status;
        recording_free(r);
        return status;
    }
    *out = r;
    return LH_OK;
}
