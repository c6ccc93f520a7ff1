/* spec_sums.c - accumulate, total and loss.
 *
 * A loss over all blocks, as the one that balances Mixtral's experts, is made in three places:
 * blocks add vectors to a sum that has a name, the head reads the sum, and a loss of the head says
 * what is minimised. The recorder takes all three (lh_graph_api_t), and refuses what can't be
 * computed, but it knows no lines. So what is wrong with them is found here before, out of the
 * text alone where that is enough:
 *
 *     accumulate    not in the head, and some total reads it
 *     total         only in the head, of a sum to which a line adds
 *     a head's loss of sums and constants, as rows are there a piece at a time
 *     logits        of no sum: it is whole when all pieces of logits have gone by
 *
 * `when` takes such a line out of the model, with what only it reads: a router's second softmax is
 * recorded where experts are balanced, and costs nothing where not. Whether a sum is then added to
 * by one side and not read by the other is seen when parts are recorded, each of which looks at the
 * other's lines. A spec has few of them, so they are walked anew each time. */
#include <spec/spec_sums.h>

#include <stdio.h>

#include <spec/spec_check.h>

uint32_t spec_sums_kind(const spec_node_t *call)
{
    if (call->kind != SPEC_NODE_CALL) return SPEC_MAKES;
    if (strcmp(call->text, "accumulate") == 0) return SPEC_ACCUMULATES;
    return strcmp(call->text, "loss") == 0 ? SPEC_LOSS : SPEC_MAKES;
}

bool spec_sums_is_total(const spec_node_t *node)
{
    return node->kind == SPEC_NODE_CALL && strcmp(node->text, "total") == 0;
}

/* ---- by name ---- */

/* The embedding, then classes of blocks; the head adds to nothing. NULL behind the last. */
static const spec_part_t *part_at(const spec_t *s, uint32_t index)
{
    if (index == 0) return &s->embedding;
    return index <= s->class_count ? &s->blocks[index - 1] : NULL;
}

/* The part's line that adds to the sum; NULL: none. */
static spec_line_t *line_adding(const spec_part_t *part, const char *name)
{
    for (uint32_t i = 0; i < part->count; i++)
        if (spec_sums_kind(part->lines[i].tree) == SPEC_ACCUMULATES &&
            strcmp(part->lines[i].at->key, name) == 0)
            return &part->lines[i];
    return NULL;
}

bool spec_sums_mark(spec_t *s, const char *name)
{
    const spec_part_t *part;
    bool known = false;
    for (uint32_t i = 0; (part = part_at(s, i)) != NULL; i++) {
        spec_line_t *line = line_adding(part, name);
        if (line == NULL) continue;
        line->used = true;
        known = true;
    }
    return known;
}

void spec_sums_offer(const spec_t *s, text_nearest_t *near)
{
    const spec_part_t *part;
    for (uint32_t i = 0; (part = part_at(s, i)) != NULL; i++)
        for (uint32_t k = 0; k < part->count; k++)
            if (spec_sums_kind(part->lines[k].tree) == SPEC_ACCUMULATES)
                text_nearest_offer(near, part->lines[k].at->key);
}

/* ---- what the head may say ---- */

/* What a line of the head is made of. */
typedef struct made_of {
    bool rows; /* its input: one row a token */
    bool sums;
} made_of_t;

/* above [line]: of the lines above. Words of input() and total() are no tensors. */
static void made_of(const spec_part_t *part, uint32_t line, const made_of_t *above,
                    const spec_node_t *node, made_of_t *out)
{
    if (spec_sums_is_total(node)) {
        out->sums = true;
        return;
    }
    if (node->kind == SPEC_NODE_CALL && strcmp(node->text, "input") == 0) {
        out->rows = true;
        return;
    }
    if (node->kind == SPEC_NODE_WORD) {
        char base[SPEC_NAME] = "";
        uint32_t from = spec_find_line(part, node->text, line);
        memcpy(base, node->text, spec_slot_dot(node->text));
        if (from == part->count && base[0] != '\0') from = spec_find_line(part, base, line);
        if (from != part->count) {
            out->rows = out->rows || above[from].rows;
            out->sums = out->sums || above[from].sums;
        } else if (strcmp(node->text, part->input) == 0) {
            out->rows = true;
        }
    }
    for (const spec_node_t *child = node->first; child != NULL; child = child->next)
        made_of(part, line, above, child, out);
}

static lh_status_t tail_check(const spec_t *s)
{
    const spec_part_t *part = &s->tail;
    made_of_t of[SPEC_LINES] = {{false, false}};
    for (uint32_t i = 0; i < part->count; i++) {
        const spec_line_t *line = &part->lines[i];
        char where[700];
        made_of(part, i, of, line->tree, &of[i]);
        spec_where_line(part->section, line->at, where, sizeof(where));
        if (spec_sums_kind(line->tree) == SPEC_LOSS && of[i].rows)
            return fail(LH_INVALID,
                        "%s: a loss of the head that depends on rows; expected one of sums, as "
                        "total(NAME, count=N)",
                        where);
        if (i + 1 == part->count && of[i].sums)
            return fail(LH_INVALID, "%s: the part's result depends on a sum, which only a loss may",
                        where);
    }
    return LH_OK;
}

lh_status_t spec_sums_check(const spec_t *s)
{
    const spec_part_t *part;
    for (uint32_t i = 0; (part = part_at(s, i)) != NULL; i++)
        for (uint32_t k = 0; k < part->count; k++) {
            const spec_line_t *line = &part->lines[k];
            char where[700];
            if (spec_sums_kind(line->tree) != SPEC_ACCUMULATES || line->used) continue;
            spec_where_line(part->section, line->at, where, sizeof(where));
            return fail(LH_INVALID, "%s: no line of [spec.head] reads it, as total(%s, count=N)",
                        where, line->at->key);
        }
    return tail_check(s);
}

/* ---- with options ---- */

/* Whether the line counts: `when` of accumulate and loss, which all others lack. */
static lh_status_t line_counts(lh_model_t *m, const spec_part_t *part, uint32_t block,
                               const spec_line_t *line, bool *out)
{
    spec_scope_t scope = {m, part->part == LH_PART_BLOCK, block};
    char where[700];
    uint64_t when = 1;
    lh_status_t status = LH_OK;
    const spec_node_t *arg = line->tree->first;
    while (arg != NULL && strcmp(arg->keyword, "when") != 0)
        arg = arg->next;
    if (arg != NULL) {
        spec_where_line(part->section, line->at, where, sizeof(where));
        const spec_names_t names = spec_scope_names(&scope, where);
        status = spec_whole(arg, &names, &when);
    }
    *out = when != 0;
    return status;
}

/* Lines above `line` that a tree of it names; a word that is none of them says nothing. */
static void lines_want(const spec_part_t *part, uint32_t line, const spec_node_t *node,
                       bool *wanted)
{
    if (node->kind == SPEC_NODE_WORD) {
        char base[SPEC_NAME] = "";
        memcpy(base, node->text, spec_slot_dot(node->text));
        uint32_t from = spec_find_line(part, node->text, line);
        if (from == part->count && base[0] != '\0') from = spec_find_line(part, base, line);
        if (from != part->count) wanted[from] = true;
    }
    for (const spec_node_t *child = node->first; child != NULL; child = child->next)
        lines_want(part, line, child, wanted);
}

/* From below, as a line names only what stands above it. */
lh_status_t spec_sums_wanted(lh_model_t *m, const spec_part_t *part, uint32_t block, bool *wanted)
{
    memset(wanted, 0, part->count * sizeof(*wanted));
    for (uint32_t i = part->count; i-- > 0;) {
        const spec_line_t *line = &part->lines[i];
        if (i + 1 == part->count) wanted[i] = true;
        if (spec_sums_kind(line->tree) != SPEC_MAKES) {
            const lh_status_t status = line_counts(m, part, block, line, &wanted[i]);
            if (status != LH_OK) return status;
        }
        if (wanted[i]) lines_want(part, i, line->tree, wanted);
    }
    return LH_OK;
}

lh_status_t spec_sums_added(lh_model_t *m, const char *name, bool *out)
{
    const spec_t *s = m->spec;
    lh_status_t status = LH_OK;
    const spec_line_t *line = line_adding(&s->embedding, name);
    *out = false;
    if (line != NULL) status = line_counts(m, &s->embedding, 0, line, out);
    for (uint64_t b = 0; b < m->blocks && status == LH_OK && !*out; b++) {
        const spec_part_t *part = &s->blocks[m->classes == NULL ? 0 : m->classes[b]];
        line = line_adding(part, name);
        if (line != NULL) status = line_counts(m, part, (uint32_t)b, line, out);
    }
    return status;
}

/* The first total() of the sum in a tree; NULL: there is none. */
static const spec_node_t *total_find(const spec_node_t *node, const char *name)
{
    if (spec_sums_is_total(node) && strcmp(node->first->text, name) == 0) return node;
    for (const spec_node_t *child = node->first; child != NULL; child = child->next) {
        const spec_node_t *found = total_find(child, name);
        if (found != NULL) return found;
    }
    return NULL;
}

lh_status_t spec_sums_read(lh_model_t *m, const char *name, uint64_t *count,
                           const spec_line_t **line)
{
    const spec_part_t *part = &m->spec->tail;
    bool wanted[SPEC_LINES];
    lh_status_t status = spec_sums_wanted(m, part, 0, wanted);
    *count = 0;
    for (uint32_t i = 0; i < part->count && status == LH_OK; i++) {
        const spec_node_t *total = wanted[i] ? total_find(part->lines[i].tree, name) : NULL;
        spec_scope_t scope = {.model = m};
        char where[700];
        if (total == NULL) continue;
        spec_where_line(part->section, part->lines[i].at, where, sizeof(where));
        const spec_names_t names = spec_scope_names(&scope, where);
        *line = &part->lines[i];
        return spec_whole(total->first->next, &names, count);
    }
    return status;
}
