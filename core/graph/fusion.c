/* fusion.c - finds the patterns of rows in a recording, asks for a kernel, rewrites in place.
 *
 * A match is found from its last call back, along the values that calls hand to each other. The
 * fused op takes the place of the first call whose output lives on, as other nodes may read that
 * output from there on; so all inputs of the fused op must exist by then.
 *
 * The reverse pass is searched apart, and only for ops that have no gradient: those with one were
 * found before it was recorded. Its values may be gradients of parameters, which stay what they
 * are, and nodes may add onto the memory of other values, which only a slot that adds can take
 * over. */
#include <graph/fusion.h>

#include <base/memory.h>
#include <graph/op_table.h>
#include <graph/recorder.h>

/* A pattern found in a recording: which node each call is, and which value each word stands for. */
typedef struct match {
    const op_pattern_t *pattern;
    bool backward;           /* its nodes are of the reverse pass, as all of one match are */
    lh_value_t kept;         /* a value that is used outside of the recording; 0: none is  */
    uint32_t node[LH_FUSES]; /* of each call */
    lh_value_t value[PATTERN_WORDS]; /* of each word; 0: an input that is left out */
    bool bound[PATTERN_WORDS];
} match_t;

/* Whether a node may be this call of the pattern: it has the same op, and its values are those that
 * the words stand for so far. Words that are new are bound to the node's other values. */
static bool call_binds(const recording_t *r, match_t *m, uint32_t call, uint32_t index)
{
    const pattern_call_t *c = &m->pattern->calls[call];
    const graph_node_t *node = &r->nodes[index];
    if (node->op != c->op || node->backward != m->backward) return false;
    for (uint32_t s = 0; s < node_slots(node); s++) {
        const uint32_t word = c->word[s];
        if (word == PATTERN_NONE) {
            if (s < c->op->in_count && node->slots[s] != 0) return false;
            continue;
        }
        lh_assert(word < PATTERN_WORDS);
        if (m->bound[word] && m->value[word] != node->slots[s]) return false;
        m->bound[word] = true;
        m->value[word] = node->slots[s];
    }
    m->node[call] = index;
    return true;
}

/* The node of a call, found as the maker of one of its outputs that a later call takes; 0: no node
 * makes that. */
static uint32_t call_maker(const recording_t *r, const match_t *m, uint32_t call)
{
    const pattern_call_t *c = &m->pattern->calls[call];
    for (uint32_t s = c->op->in_count; s < c->op->in_count + c->op->out_count; s++) {
        if (c->word[s] == PATTERN_NONE || !m->bound[c->word[s]]) continue;
        const graph_value_t *v = &r->values[m->value[c->word[s]]];
        return v->kind == VALUE_RESULT ? v->node : 0;
    }
    return 0;
}

/* Whether a node is a later call of the pattern already: two words may stand for one value, and a node is
 * one call. */
static bool node_is_taken(const match_t *m, uint32_t call, uint32_t index)
{
    for (uint32_t later = call + 1; later < m->pattern->call_count; later++)
        if (m->node[later] == index) return true;
    return false;
}

/* Binds the last call to node `last`, then each call before it to the node that makes what a later
 * call takes. There is at most one such node, so nothing has to be tried twice. */
static bool pattern_matches(const recording_t *r, uint32_t last, match_t *m)
{
    uint32_t call = m->pattern->call_count - 1;
    if (!call_binds(r, m, call, last)) return false;
    while (call-- > 0) {
        const uint32_t index = call_maker(r, m, call);
        if (index == 0 || node_is_taken(m, call, index) || !call_binds(r, m, call, index))
            return false;
    }
    return true;
}

/* Whether a node is one of the matched ones. */
static bool in_match(const match_t *m, uint32_t node)
{
    for (uint32_t c = 0; c < m->pattern->call_count; c++)
        if (m->node[c] == node) return true;
    return false;
}

/* Whether a node outside of the match reads a value or adds onto its memory. */
static bool node_uses(const recording_t *r, const match_t *m, uint32_t n, lh_value_t v)
{
    const graph_node_t *node = &r->nodes[n];
    if (node->op == NULL || in_match(m, n)) return false;
    for (uint32_t s = 0; s < node_slots(node); s++)
        if ((s < node->op->in_count ? node->slots[s] : node->adds_to[s]) == v) return true;
    return false;
}

/* Whether something outside of the match uses a value: another node, the part's output, a loss, a
 * sum over blocks, the sum of a parameter's gradient. */
static bool used_outside(const recording_t *r, const match_t *m, lh_value_t v)
{
    if (r->output == v || m->kept == v || r->values[v].kind == VALUE_GRADIENT) return true;
    for (uint32_t i = 0; i < r->loss_count; i++)
        if (r->losses[i].value == v) return true;
    for (uint32_t i = 0; i < r->added_count; i++)
        if (r->added[i].value == v) return true;
    for (uint32_t n = 1; n < r->node_count; n++)
        if (node_uses(r, m, n, v)) return true;
    return false;
}

/* The fused op's slot that a matched node's slot becomes; PATTERN_NONE: its value is gone. */
static uint32_t fused_slot(const match_t *m, uint32_t call, uint32_t slot)
{
    const uint32_t word = m->pattern->calls[call].word[slot];
    return word == PATTERN_NONE ? PATTERN_NONE : m->pattern->slot[word];
}

/* Where the fused op is to stand: at the first call whose output lives on. 0: nowhere, as something
 * outside of the match uses a value that would be gone. */
static uint32_t fused_place(const recording_t *r, const match_t *m)
{
    uint32_t place = r->node_count;
    for (uint32_t c = 0; c < m->pattern->call_count; c++) {
        const graph_node_t *node = &r->nodes[m->node[c]];
        for (uint32_t s = node->op->in_count; s < node_slots(node); s++) {
            if (node->slots[s] == 0) continue;
            if (fused_slot(m, c, s) == PATTERN_NONE) {
                if (used_outside(r, m, node->slots[s])) return 0;
            } else if (m->node[c] < place)
                place = m->node[c];
        }
    }
    return place == r->node_count ? 0 : place;
}

/* The values onto whose memory matched nodes add, by the fused op's slot. False where that slot
 * can't add but an output that becomes it does, or must be able to. */
static bool additions_join(const recording_t *r, const op_t *op, const match_t *m,
                           lh_value_t *adds_to)
{
    for (uint32_t c = 0; c < m->pattern->call_count; c++) {
        const graph_node_t *node = &r->nodes[m->node[c]];
        for (uint32_t s = node->op->in_count; s < node_slots(node); s++) {
            if (node->slots[s] == 0) continue;
            const bool adds = node->adds_to[s] != 0 ||
                              r->values[node->slots[s]].kind == VALUE_GRADIENT;
            const uint32_t slot = fused_slot(m, c, s);
            if (adds && (slot == PATTERN_NONE || !op->adds[slot])) return false;
            if (slot != PATTERN_NONE) adds_to[slot] = node->adds_to[s];
        }
    }
    return true;
}

/* Whether all that the fused op reads is made before `place`, and by no node that goes: two words
 * may stand for one value, as in x times x. What no node makes always is. */
static bool inputs_exist(const recording_t *r, const op_t *op, const match_t *m,
                         const lh_value_t *slots, uint32_t place)
{
    for (uint32_t i = 0; i < op->in_count; i++) {
        const graph_value_t *v = &r->values[slots[i]];
        if (v->kind == VALUE_RESULT && (v->node >= place || in_match(m, v->node))) return false;
    }
    return true;
}

/* Whether all that the fused op adds onto is written before `place`, and by no node that goes. What lies where a
 * parameter's gradient is added is the program's to say. */
static bool additions_exist(const recording_t *r, const op_t *op, const match_t *m,
                            const lh_value_t *slots, const lh_value_t *adds_to, uint32_t place)
{
    for (uint32_t s = op->in_count; s < op->in_count + op->out_count; s++) {
        const graph_value_t *onto = &r->values[adds_to[s]];
        if (adds_to[s] == 0 || r->values[slots[s]].kind == VALUE_GRADIENT) continue;
        if (onto->kind == VALUE_RESULT && (onto->node >= place || in_match(m, onto->node)))
            return false;
    }
    return true;
}

/* The attributes of the fused op: what its row's fuse() makes of the calls' attributes or, without
 * a fuse(), those of the one call that has a struct of the same size. *out is the caller's, NULL
 * where the op has none. *fits is false where fuse() refuses the calls' attributes. */
static lh_status_t attributes_join(const recording_t *r, const op_t *op, const match_t *m,
                                   bool *fits, void **out)
{
    const uint32_t bytes = op->row.attributes_bytes;
    const void *calls[LH_FUSES] = {NULL};
    *out = NULL;
    *fits = true;
    if (bytes != 0) {
        *out = mem_new(bytes);
        if (*out == NULL) return LH_NO_MEMORY;
        memcpy(*out, &bytes, sizeof(bytes));
    }
    for (uint32_t c = 0; c < m->pattern->call_count; c++) {
        const graph_node_t *node = &r->nodes[m->node[c]];
        calls[c] = node->attributes;
        if (op->row.fuse == NULL && bytes != 0 && node->op->row.attributes_bytes == bytes)
            memcpy(*out, node->attributes, bytes);
    }
    if (op->row.fuse != NULL) *fits = op->row.fuse(calls, *out);
    return LH_OK;
}

/* Whether the fused op's outputs have the dtypes and shapes of the values that they replace. */
static bool outputs_alike(const recording_t *r, const op_call_t *call, const lh_value_t *slots)
{
    for (uint32_t s = call->op->in_count; s < call->op->in_count + call->op->out_count; s++)
        if (slots[s] != 0 && !recording_args_alike(&r->values[slots[s]].arg, &call->args[s]))
            return false;
    return true;
}

/* Makes the fused call; *fits says whether it can be made and the device has a kernel for it, and
 * then the caller owns call->attributes. If the fused op refuses the inputs, that is no failure, as
 * the model recorded something else; only a lack of memory is. */
static lh_status_t fused_propose(recording_t *r, const op_t *op, const match_t *m,
                                 const lh_value_t *slots, op_call_t *call, bool *fits)
{
    void *attributes;
    lh_status_t status = attributes_join(r, op, m, fits, &attributes);
    if (status != LH_OK || !*fits) {
        mem_free(attributes);
        return status;
    }
    status = recorder_call(r, op, attributes, slots, op->in_count, call);
    mem_free(attributes);
    *fits = status == LH_OK;
    if (status != LH_OK) return status == LH_NO_MEMORY ? status : LH_OK;
    *fits = outputs_alike(r, call, slots) && recorder_offers(r, call);
    if (!*fits) mem_free(call->attributes);
    return LH_OK;
}

/* Empties the matched nodes, and drops the values that are gone. */
static void match_drop(recording_t *r, const match_t *m)
{
    for (uint32_t c = 0; c < m->pattern->call_count; c++) {
        graph_node_t *node = &r->nodes[m->node[c]];
        for (uint32_t s = node->op->in_count; s < node_slots(node); s++)
            if (node->slots[s] != 0 && fused_slot(m, c, s) == PATTERN_NONE)
                r->values[node->slots[s]] = (graph_value_t){.kind = VALUE_NONE};
        mem_free(node->attributes);
        *node = (graph_node_t){.op = NULL};
    }
}

/* Puts the call at `place`, where `before` stood, with the values in slots as outputs (0: a new value
 * is made). Values that live on keep their ids and what they are, so that whoever reads them need not
 * be changed. */
static lh_status_t place_call(recording_t *r, uint32_t place, const op_call_t *call,
                              const lh_value_t *slots, const lh_value_t *adds_to,
                              const graph_node_t *before)
{
    lh_assert(place > 0 && place < r->node_count && r->nodes[place].op == NULL);
    const op_t *op = call->op;
    graph_node_t node = {.op = op,
                         .attributes = call->attributes,
                         .backward = before->backward,
                         .gradient_of = before->gradient_of};
    memcpy(node.slots, call->in, op->in_count * sizeof(node.slots[0]));
    memcpy(node.adds_to, adds_to, sizeof(node.adds_to));
    for (uint32_t s = op->in_count; s < op->in_count + op->out_count; s++) {
        const graph_value_t value = {
            .kind = VALUE_RESULT, .node = place, .slot = s, .arg = call->args[s]};
        node.slots[s] = slots[s];
        if (slots[s] != 0) {
            r->values[slots[s]].node = place;
            r->values[slots[s]].slot = s;
        } else if ((node.slots[s] = recording_value_add(r, &value)) == 0) {
            mem_free(call->attributes);
            return r->status;
        }
    }
    r->nodes[place] = node;
    return LH_OK;
}

/* Tries one pattern of an op with its last call at node `last`; m has the pattern, and which nodes
 * to take. Nothing is changed before it is known that the fused op can be used. */
static lh_status_t fuse_at(recording_t *r, const op_t *op, match_t m, uint32_t last)
{
    const op_pattern_t *pattern = m.pattern;
    if (!pattern_matches(r, last, &m)) return LH_OK;
    lh_value_t slots[OP_SLOTS] = {0}, adds_to[OP_SLOTS] = {0};
    for (uint32_t w = 0; w < pattern->word_count; w++)
        if (pattern->slot[w] != PATTERN_NONE) slots[pattern->slot[w]] = m.value[w];
    const uint32_t place = fused_place(r, &m);
    if (place == 0 || !inputs_exist(r, op, &m, slots, place) ||
        !additions_join(r, op, &m, adds_to) || !additions_exist(r, op, &m, slots, adds_to, place))
        return LH_OK;

    op_call_t call;
    bool fits;
    const lh_status_t status = fused_propose(r, op, &m, slots, &call, &fits);
    if (status != LH_OK || !fits) return status;
    const graph_node_t before = r->nodes[place];
    match_drop(r, &m);
    return place_call(r, place, &call, slots, adds_to, &before);
}

/* Closes the gaps that dropped nodes left. Values keep their ids, and get the new numbers of their
 * nodes. */
static void nodes_compact(recording_t *r)
{
    uint32_t kept = 1;
    for (uint32_t n = 1; n < r->node_count; n++) {
        if (r->nodes[n].op == NULL) continue;
        r->nodes[kept] = r->nodes[n];
        for (uint32_t s = r->nodes[kept].op->in_count; s < node_slots(&r->nodes[kept]); s++)
            if (r->nodes[kept].slots[s] != 0) r->values[r->nodes[kept].slots[s]].node = kept;
        kept++;
    }
    lh_assert(kept <= r->node_count);
    r->node_count = kept;
}

/* Tries every op of the table, the last first, at every node. A fused op may be fused again by an
 * op that is tried later. Recordings are short (a block), so no index is kept. */
static lh_status_t patterns_apply(recording_t *r, bool backward, lh_value_t kept)
{
    lh_status_t status = recording_status(r);
    for (uint32_t i = op_table_count(r->how.ops); i-- > 0;) {
        const op_t *op = op_table_at(r->how.ops, i);
        if (backward && op->row.gradient != NULL) continue;
        for (uint32_t n = 1; n < r->node_count && op->pattern_count > 0; n++)
            for (uint32_t p = 0; p < op->pattern_count && status == LH_OK; p++) {
                const match_t m = {&op->patterns[p], .backward = backward, .kept = kept};
                status = fuse_at(r, op, m, n);
            }
    }
    nodes_compact(r);
    recording_failed(r, status);
    return status;
}

lh_status_t fusion_apply(recording_t *r)
{
    return patterns_apply(r, false, 0);
}

lh_status_t fusion_apply_backward(recording_t *r, lh_value_t kept)
{
    return patterns_apply(r, true, kept);
}
