/* ops/ops_attention.h - rotary positions and attention, each with its gradient. */
#ifndef OPS_OPS_ATTENTION_H
#define OPS_OPS_ATTENTION_H

#include <ops/op_rows.h>

/* complete() of the ops with lh_attention_t. */
void attention_all_heads(void *attributes, const lh_arg_t *args);

#endif
