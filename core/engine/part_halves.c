/* part_halves.c - tells the halves of a recorded way back apart, and whether a block may go in them.
 *
 * A walk from the end finds the first half: a node is of it if it makes a value that is needed, and
 * then needs what it reads and what it adds onto. Nodes of either half keep their order, and those of
 * the second read nothing that the first still changes: a gradient is added onto only where nobody
 * else reads it (graph/gradient.c). */
#include <engine/part_halves.h>

#include <base/memory.h>
#include <config/job.h>
#include <ops/ops_view.h>

/* Which nodes make the gradient of a weight; a bit each. The last leg's are of the second half, too. */
enum { MADE_FIRST = 1, MADE_SECOND = 2, MADE_LAST = 4, MADE_EMBEDDING = 8 };

/* A block while it is looked at. */
typedef struct half_finder {
    const program_t *p;
    const part_t *block; /* the first of all blocks */
    bool *leads;         /* [nodes]                      */
    uint8_t *made;       /* [parameters] by storage; MADE_* */
} half_finder_t;

lh_status_t part_halves_mark(const part_t *part, bool *leads)
{
    const recording_t *r = part->r;
    bool *needed = mem_array(r->value_count, sizeof(*needed));
    if (needed == NULL) return LH_NO_MEMORY;
    if (part->gradient != 0) needed[part->gradient] = true;
    for (uint32_t i = r->node_count; i-- > part->forward_end;) {
        const graph_node_t *node = &r->nodes[i];
        const uint32_t end = node_slots(node);
        leads[i] = part_halves_meet(node->op);
        for (uint32_t s = node->op->in_count; s < end; s++)
            leads[i] = leads[i] || (node->slots[s] != 0 && needed[node->slots[s]]);
        for (uint32_t s = 0; leads[i] && s < end; s++) {
            if (s < node->op->in_count) needed[node->slots[s]] = true;
            needed[node->adds_to[s]] = true;
        }
    }
    mem_free(needed);
    return LH_OK;
}

/* Notes which gradients a node of a part's way back makes. */
static void half_made_note(half_finder_t *f, const part_t *part, uint32_t n, uint8_t how)
{
    const recording_t *r = part->r;
    const parameters_t *parameters = f->p->weights->parameters;
    const graph_node_t *node = &r->nodes[n];
    for (uint32_t s = node->op->in_count; s < node_slots(node); s++) {
        const graph_value_t *value = &r->values[node->slots[s]];
        uint32_t index = 0;
        if (node->slots[s] == 0 || value->kind != VALUE_GRADIENT) continue;
        const bool known = parameters_find_local(parameters, part->part, part->block, value->name,
                                                 &index);
        lh_assert(known); /* the recorder asked for its shape */
        if (known) f->made[parameters->items[index].storage] |= how;
    }
}

/* Whether the nodes of the way back can go in halves at all. In a walk over all of them, makers write
 * at once into what puts values beside others or takes gradients of columns (program/flow_view.h). */
static bool half_nodes_fit(const half_finder_t *f)
{
    const recording_t *r = f->block->r;
    for (uint32_t n = 1; n < r->node_count; n++) {
        const op_t *op = r->nodes[n].op;
        const bool back = n >= f->block->forward_end;
        if (op->collective != 0 || part_halves_meet(op)) return false;
        if (back && (op->view == VIEW_CONCAT || op->view == VIEW_COLUMNS_GRAD)) return false;
    }
    return true;
}

/* Whether each weight that waits is made in the second half alone, and by no embedding, which comes
 * before that; and whether the embedding has more than the last leg. */
static bool half_weights_fit(half_finder_t *f, const part_t *embed, const part_leg_t *last)
{
    const part_t *block = f->block;
    const parameters_t *parameters = f->p->weights->parameters;
    uint64_t first = 0, left = 0;
    bool waits = false;
    for (uint32_t n = embed->forward_end; n < embed->r->node_count; n++)
        half_made_note(f, embed, n, MADE_EMBEDDING);
    for (uint32_t n = block->forward_end; n < block->r->node_count; n++) {
        const bool in_last = n >= last->backward && n < last->backward_end;
        const uint32_t how = f->leads[n] ? MADE_FIRST : MADE_SECOND | (in_last ? MADE_LAST : 0);
        half_made_note(f, block, n, (uint8_t)how);
    }
    for (uint32_t i = 0; i < parameters->count; i++) {
        const uint8_t made = f->made[i];
        if ((made & MADE_SECOND) != 0 && (made & (MADE_FIRST | MADE_EMBEDDING)) != 0) return false;
        waits = waits || (made & MADE_SECOND) != 0;
        if ((made & MADE_EMBEDDING) != 0) first += parameters->items[i].elements;
        if ((made & MADE_LAST) != 0) left += parameters->items[i].elements;
    }
    return waits && first > left;
}

/* Whether a value of a block stays from the way there to the way back, or in front of it. */
static bool half_value_stays(const program_t *p, const part_t *part, lh_value_t v)
{
    const graph_value_t *value = &part->r->values[v];
    if (v == part->input) return true;
    if (value->kind != VALUE_RESULT || value->node >= part->forward_end) return false;
    const bool costly = (part->r->nodes[value->node].op->row.flags & LH_OP_COSTLY) != 0;
    return p->how.recompute == RECOMPUTE_NONE ||
           (p->how.recompute == RECOMPUTE_SELECTIVE && costly);
}

/* Whether the way back reads a value; leads: only its second half, what does not lead; NULL: any of it. */
static bool half_reads(const part_t *part, const bool *leads, lh_value_t v)
{
    const recording_t *r = part->r;
    for (uint32_t n = part->forward_end; n < r->node_count; n++)
        for (uint32_t s = 0; s < r->nodes[n].op->in_count; s++)
            if (r->nodes[n].slots[s] == v && (leads == NULL || !leads[n])) return true;
    return false;
}

/* Bytes that a block keeps of a micro-batch from the way there to the way back. A view has no memory of
 * its own to leave. */
static uint64_t half_kept_bytes(const program_t *p, const part_t *part)
{
    const recording_t *r = part->r;
    uint64_t kept = 0;
    for (lh_value_t v = 1; v < r->value_count; v++) {
        const graph_value_t *value = &r->values[v];
        const bool view = value->kind == VALUE_RESULT && r->nodes[value->node].op->view != 0;
        if (!half_value_stays(p, part, v)) continue;
        if (v == part->input || (!view && half_reads(part, NULL, v)))
            kept += flow_arg_bytes(&value->arg);
    }
    return kept;
}

/* Whether what the second half needs of a micro-batch, beyond what stays anyway, is no more than what
 * the later blocks kept of it. Blocks that share a recording keep the same. */
static bool half_memory_fits(const half_finder_t *f)
{
    const part_t *blocks = f->block;
    const recording_t *r = blocks->r;
    uint64_t more = 0, kept = 0, last = 0;
    for (lh_value_t v = 1; v < r->value_count; v++) {
        if (r->values[v].kind != VALUE_RESULT && v != blocks->seed) continue;
        if (!half_value_stays(f->p, blocks, v) && half_reads(blocks, f->leads, v))
            more += flow_arg_bytes(&r->values[v].arg);
    }
    for (uint32_t b = 1; b < f->p->weights->parameters->blocks && kept < more; b++) {
        if (b == 1 || blocks[b].r != blocks[b - 1].r) last = half_kept_bytes(f->p, &blocks[b]);
        kept += last;
    }
    return kept >= more;
}

lh_status_t part_halves_find(const program_t *p, const part_t *embed, const part_t *blocks,
                             const part_leg_t *last, bool *out)
{
    const part_t *block = &blocks[0];
    half_finder_t f = {.p = p, .block = block};
    lh_assert(block->seed != 0 && block->input != 0 && embed->seed != 0); /* differentiated */
    *out = false;
    f.leads = mem_array(block->r->node_count, sizeof(*f.leads));
    f.made = mem_array(p->weights->parameters->count, sizeof(*f.made));
    const bool room = f.leads != NULL && f.made != NULL;
    lh_status_t status = room ? part_halves_mark(block, f.leads) : LH_NO_MEMORY;
    if (status == LH_OK && block->gradient != 0)
        *out = half_nodes_fit(&f) && half_weights_fit(&f, embed, last) && half_memory_fits(&f);
    mem_free(f.leads);
    mem_free(f.made);
    return status;
}
