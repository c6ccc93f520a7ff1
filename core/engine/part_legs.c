/* part_legs.c - finds where a recorded block is cut in legs.
 *
 * In front of a node of the forward pass a block may be cut if
 *
 *    - no weight's gradient is made on both sides, so that each is summed in the order of micro-batches as before;
 *    - no products on both sides share an input, as a device may make one of them (program/packing.h);
 *    - no value crosses it that is columns of another or becomes some (program/flow_view.h): the former
 *      keep all of what they are columns of, and the latter's maker writes there at once only where both
 *      are of one leg, with a kernel that may be another than beside a copy;
 *    - where the block is computed again, what nodes before it make and others read behind it is little:
 *      it is kept until the way back.
 *
 * The way back is cut between the gradients of nodes behind that node and those of nodes in front of
 * it. A recording is a list in which nodes read what nodes before them made, so any cut of it can be
 * run; what is asked for keeps bits and memory. No op is known by name.
 *
 * Of all such places those are taken, one after the other, that cut most off the trained weights of a
 * leg; of places as good as each other the one that the least crosses. */
#include <engine/part_legs.h>

#include <base/memory.h>
#include <config/job.h>
#include <ops/ops_view.h>

/* Shares of the block's trained weights are counted in 64ths, and a leg has this many at least. CROSSES:
 * hidden states that may cross a cut of a block that is computed again. */
enum { SHARES = 64, LEAST_SHARES = 4, CROSSES = 2 };

/* The first node that reads a weight on the way there, and the first and the last that make its gradient.
 * 0: none does. */
typedef struct weight_nodes {
    uint32_t read, made, made_last;
} weight_nodes_t;

/* Of a value: the last node of the forward pass that reads it, the first and the last product, and the
 * last that puts it beside others. */
typedef struct value_nodes {
    uint32_t read_last, product, product_last, concat_last;
} value_nodes_t;

/* In front of which nodes a block is cut, there and back. */
typedef struct leg_cut {
    uint32_t at, back;
    uint64_t before;  /* elements of trained weights in front of it */
    uint64_t crosses; /* bytes on the way there                     */
} leg_cut_t;

/* A block while its cuts are looked for. */
typedef struct leg_finder {
    const part_t *part;
    const parameters_t *parameters;
    bool recomputed;
    weight_nodes_t *weights; /* [parameters] by storage: tied ones are one */
    value_nodes_t *values;   /* [values]                                   */
    uint64_t trained;        /* elements of all trained weights            */
    leg_cut_t cuts[PART_LEGS - 1];
    uint32_t cut_count;
} leg_finder_t;

part_leg_t part_leg_whole(const part_t *part)
{
    return (part_leg_t){1, part->forward_end, part->forward_end, part->r->node_count};
}

/* The nodes of a weight that the recording names. */
static weight_nodes_t *weight_named(const leg_finder_t *f, const char *name)
{
    uint32_t index = 0;
    const bool known = parameters_find_local(f->parameters, f->part->part, f->part->block, name,
                                             &index);
    lh_assert(known); /* the recorder asked for its shape */
    return &f->weights[f->parameters->items[index].storage];
}

static void node_note(uint32_t *first, uint32_t *last, uint32_t node)
{
    if (*first == 0) *first = node;
    *last = node;
}

/* Notes what a node of the forward pass reads. */
static void node_reads_note(leg_finder_t *f, uint32_t n)
{
    const recording_t *r = f->part->r;
    const graph_node_t *node = &r->nodes[n];
    for (uint32_t s = 0; s < node->op->in_count; s++) {
        const lh_value_t v = node->slots[s];
        if (v == 0) continue;
        value_nodes_t *value = &f->values[v];
        value->read_last = n;
        if (node->op->row.product != NULL) node_note(&value->product, &value->product_last, n);
        if (node->op->view == VIEW_CONCAT) value->concat_last = n;
        if (r->values[v].kind != VALUE_PARAM) continue;
        weight_nodes_t *w = weight_named(f, r->values[v].name);
        if (w->read == 0) w->read = n;
    }
}

/* Notes the gradients that a node makes. */
static void node_makes_note(leg_finder_t *f, uint32_t n)
{
    const recording_t *r = f->part->r;
    const graph_node_t *node = &r->nodes[n];
    for (uint32_t s = node->op->in_count; s < node_slots(node); s++) {
        const graph_value_t *value = &r->values[node->slots[s]];
        if (node->slots[s] == 0 || value->kind != VALUE_GRADIENT) continue;
        weight_nodes_t *w = weight_named(f, value->name);
        node_note(&w->made, &w->made_last, n);
    }
}

/* Who reads and who makes what, and how much is trained. */
static void nodes_note(leg_finder_t *f)
{
    for (uint32_t n = 1; n < f->part->forward_end; n++)
        node_reads_note(f, n);
    for (uint32_t n = f->part->forward_end; n < f->part->r->node_count; n++)
        node_makes_note(f, n);
    for (uint32_t i = 0; i < f->parameters->count; i++)
        if (f->weights[i].read != 0 && f->weights[i].made != 0)
            f->trained += f->parameters->items[i].elements;
}

/* Whether a node of the recording is a transfer between ranks. */
static bool recording_transfers(const recording_t *r)
{
    for (uint32_t n = 1; n < r->node_count; n++)
        if (r->nodes[n].op->collective != 0) return true;
    return false;
}

/* Whether values allow a cut, behind which the output is made. Sets what crosses it; the part's own
 * input, which no node makes, is kept anyway. */
static bool values_part(const leg_finder_t *f, leg_cut_t *cut)
{
    const recording_t *r = f->part->r;
    const graph_value_t *output = &r->values[f->part->output];
    if (output->kind != VALUE_RESULT || output->node < cut->at) return false;
    for (lh_value_t v = 1; v < r->value_count; v++) {
        const value_nodes_t *nodes = &f->values[v];
        const graph_value_t *value = &r->values[v];
        if (value->kind != VALUE_RESULT && value->kind != VALUE_ARGUMENT) continue;
        if (nodes->product != 0 && nodes->product < cut->at && nodes->product_last >= cut->at)
            return false;
        if (value->kind != VALUE_RESULT || value->node >= cut->at || nodes->read_last < cut->at)
            continue;
        if (r->nodes[value->node].op->view == VIEW_COLUMNS || nodes->concat_last >= cut->at)
            return false;
        cut->crosses += flow_arg_bytes(&value->arg);
    }
    const uint64_t state = flow_arg_bytes(&r->values[f->part->input].arg);
    return !f->recomputed || cut->crosses <= CROSSES * state;
}

/* Whether weights allow a cut: the gradient of each is made on the side where it is read first. */
static bool weights_part(const leg_finder_t *f, leg_cut_t *cut)
{
    for (uint32_t i = 0; i < f->parameters->count; i++) {
        const weight_nodes_t *w = &f->weights[i];
        if (w->read == 0 || w->made == 0) continue;
        const bool before = w->read < cut->at;
        if (before ? w->made < cut->back : w->made_last >= cut->back) return false;
        if (before) cut->before += f->parameters->items[i].elements;
    }
    return true;
}

/* The first node that belongs to the gradient of one in front of `at`. */
static uint32_t backward_cut(const leg_finder_t *f, uint32_t at)
{
    const recording_t *r = f->part->r;
    for (uint32_t n = f->part->forward_end; n < r->node_count; n++)
        if (r->nodes[n].gradient_of != 0 && r->nodes[n].gradient_of < at) return n;
    return r->node_count;
}

/* The smaller of the two legs that a cut makes of one, in 64ths of the block's trained weights. */
static uint64_t leg_cut_gain(const leg_finder_t *f, const leg_cut_t *cut)
{
    uint64_t low = 0, high = f->trained;
    for (uint32_t i = 0; i < f->cut_count; i++) {
        if (f->cuts[i].at <= cut->at)
            low = f->cuts[i].before;
        else if (f->cuts[i].before < high)
            high = f->cuts[i].before;
    }
    const uint64_t first = cut->before - low, second = high - cut->before;
    return (first < second ? first : second) * SHARES / f->trained;
}

/* The cut that takes most off a leg; false: none is left. */
static bool leg_cut_find(const leg_finder_t *f, leg_cut_t *out)
{
    uint64_t most = 0;
    for (uint32_t at = 2; at < f->part->forward_end; at++) {
        leg_cut_t cut = {.at = at, .back = backward_cut(f, at)};
        if (!values_part(f, &cut) || !weights_part(f, &cut)) continue;
        const uint64_t gain = leg_cut_gain(f, &cut);
        if (gain < LEAST_SHARES || gain < most || (gain == most && cut.crosses >= out->crosses))
            continue;
        most = gain;
        *out = cut;
    }
    return most > 0;
}

/* Puts a cut in its place among those that were found: they stand in the order of the way there. */
static void leg_cut_put(leg_finder_t *f, const leg_cut_t *cut)
{
    uint32_t i = f->cut_count++;
    lh_assert(i < PART_LEGS - 1);
    for (; i > 0 && f->cuts[i - 1].at > cut->at; i--)
        f->cuts[i] = f->cuts[i - 1];
    f->cuts[i] = *cut;
}

/* The legs between the cuts. */
static void legs_make(const leg_finder_t *f, part_legs_t *out)
{
    part_leg_t rest = part_leg_whole(f->part);
    out->count = f->cut_count + 1;
    for (uint32_t i = 0; i < f->cut_count; i++) {
        const leg_cut_t *cut = &f->cuts[i];
        out->list[i] = (part_leg_t){rest.forward, cut->at, cut->back, rest.backward_end};
        rest.forward = cut->at;
        rest.backward_end = cut->back;
    }
    out->list[f->cut_count] = rest;
}

lh_status_t part_legs_find(const program_t *p, const part_t *part, part_legs_t *out)
{
    leg_finder_t f = {.part = part,
                      .parameters = p->weights->parameters,
                      .recomputed = p->how.recompute != RECOMPUTE_NONE};
    lh_assert(part->seed != 0 && part->input != 0); /* a block that is differentiated */
    f.weights = mem_array(f.parameters->count, sizeof(*f.weights));
    f.values = mem_array(part->r->value_count, sizeof(*f.values));
    const bool room = f.weights != NULL && f.values != NULL;
    if (room && !recording_transfers(part->r)) {
        leg_cut_t cut = {0};
        nodes_note(&f);
        while (f.trained > 0 && f.cut_count < PART_LEGS - 1 && leg_cut_find(&f, &cut))
            leg_cut_put(&f, &cut);
    }
    if (room) legs_make(&f, out);
    mem_free(f.weights);
    mem_free(f.values);
    return room ? LH_OK : LH_NO_MEMORY;
}
