/* spec/spec_sums.h - lines that make no tensor: what embedding and blocks add to a sum over all of
 * them, and losses of a model's own.
 *
 *     load    = accumulate(route_load(order.offsets), when=balanced)      in a block
 *     balance = loss(dot(total(load, count=experts), ...), when=balanced) in the head
 *
 * The line's name is that of the sum, or of the loss in reports. */
#ifndef SPEC_SPEC_SUMS_H
#define SPEC_SPEC_SUMS_H

#include <spec/spec_model.h>

/* What a call says: that of an op makes a tensor; the others stand by themselves in a line. */
enum { SPEC_MAKES = 0, SPEC_ACCUMULATES, SPEC_LOSS };
uint32_t spec_sums_kind(const spec_node_t *call);
/* Whether it is total(NAME, count=N), which reads a sum. */
bool spec_sums_is_total(const spec_node_t *node);

/* Marks the lines that add to a sum as used; false: there is none of that name. */
bool spec_sums_mark(spec_t *s, const char *name);
void spec_sums_offer(const spec_t *s, text_nearest_t *near);
/* Behind spec_check, once all names are known: each sum is read, no logits are made of a sum, and
 * no loss of the head of rows. */
lh_status_t spec_sums_check(const spec_t *s) LH_MUST_CHECK;

/* With the options of a job: wanted[i] is whether line i is recorded. The last one is, and lines of
 * accumulate and loss whose `when` is not 0, and those that such lines need. wanted:
 * [part->count]. */
lh_status_t spec_sums_wanted(lh_model_t *m, const spec_part_t *part, uint32_t block,
                             bool *wanted) LH_MUST_CHECK;
/* Whether any block, or the embedding, adds to the sum. */
lh_status_t spec_sums_added(lh_model_t *m, const char *name, bool *out) LH_MUST_CHECK;
/* How many values the head reads of the sum: 0, none. *line: where. */
lh_status_t spec_sums_read(lh_model_t *m, const char *name, uint64_t *count,
                           const spec_line_t **line) LH_MUST_CHECK;

#endif
