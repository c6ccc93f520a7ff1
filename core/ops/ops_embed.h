/* ops/ops_embed.h - attributes that embedding and losses share: which rows of the vocabulary. */
#ifndef OPS_OPS_EMBED_H
#define OPS_OPS_EMBED_H

#include <longhaul/ops.h>

#include <base/status.h>

enum { VOCABULARY_ATTRIBUTES = 2 };
extern const lh_option_t vocabulary_attributes[VOCABULARY_ATTRIBUTES]; /* of lh_rows_t */

lh_status_t vocabulary_split(const lh_host_t *host, const void *attributes, uint32_t part,
                             uint32_t ways, void *out) LH_MUST_CHECK;
/* Refuses a table or logits that have not how->rows rows of the vocabulary. */
lh_status_t vocabulary_check(const char *op, const char *slot, uint64_t found,
                             const lh_rows_t *how) LH_MUST_CHECK;

#endif
