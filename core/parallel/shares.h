/* parallel/shares.h - who owns which elements of every parameter, over the ranks of a group.
 *
 * A parameter is cut at multiples of a unit: LH_NORM_BLOCK elements, so that the norm is summed
 * from the same partial sums at every stage, and the grain of its rule. Member m gets the units
 * from floor(k u / n) to floor((k + 1) u / n) with k = (m + parameter) mod n, u the parameter's
 * units: pieces differ by one unit at most, and small parameters go round over the members.
 * Ownership depends on the parameter and the group alone, never on buckets. */
#ifndef PARALLEL_SHARES_H
#define PARALLEL_SHARES_H

#include <graph/parameters.h>

#include <longhaul/optimizer.h>

typedef struct shares {
    uint32_t ways;
    uint32_t count;     /* parameters */
    lh_slice_t *slices; /* [count][ways] */
} shares_t;

/* rule_of: [parameters] the rule of each. An optimizer that slices itself is asked about `space`,
 * and must give every element to exactly one member. */
typedef struct shares_how {
    const parameters_t *parameters;
    const lh_rule_t *const *rule_of;
    uint32_t ways;
    const lh_optimizer_api_t *api; /* for slice; may be NULL */
    lh_optimizer_t *optimizer;
    uint32_t space;
} shares_how_t;

lh_status_t shares_new(const shares_how_t *how, shares_t *out) LH_MUST_CHECK;
void shares_free(shares_t *s);
lh_slice_t shares_slice(const shares_t *s, uint32_t parameter, uint32_t member);

#endif
