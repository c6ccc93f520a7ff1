/* lowering.c - standard inputs by slot name, attributes completed from inputs, and ops that vanish.
 */
#include <graph/lowering.h>

#include <graph/collective_op.h>

#include <longhaul/ops.h>

static void rows_of_table(void *attributes, const lh_arg_t *args)
{
    lh_rows_t *how = attributes;
    if (how->rows == 0) how->rows = args[1].shape[0];
}

static void rows_of_logits(void *attributes, const lh_arg_t *args)
{
    lh_rows_t *how = attributes;
    if (how->rows == 0) how->rows = args[0].shape[1];
}

static void all_pairs(void *attributes, const lh_arg_t *args)
{
    (void)args;
    lh_rope_t *how = attributes;
    if (how->pairs == 0) how->pairs = how->head_dim / 2;
}

static void all_heads(void *attributes, const lh_arg_t *args)
{
    (void)args;
    lh_attention_t *how = attributes;
    if (how->kv_heads == 0) how->kv_heads = how->heads;
}

static void all_bytes(void *attributes, const lh_arg_t *args)
{
    op_collective_t *how = attributes;
    if (how->ways == 0) how->ways = 1;
    if (how->bytes != 0 || args[0].dtype == LH_DTYPE_NONE) return;
    how->bytes = args[0].dtype == LH_DTYPE_F64 ? 8 : args[0].dtype == LH_DTYPE_F32 ? 4 : 2;
    for (uint32_t i = 0; i < args[0].rank; i++)
        how->bytes *= args[0].shape[i];
}

static const struct {
    const char *op;
    void (*complete)(void *attributes, const lh_arg_t *args);
    bool collective; /* nothing to do in a group of one */
} ops[] = {
    {"embed", rows_of_table, false},
    {"ce_stats", rows_of_logits, false},
    {"ce_grad", rows_of_logits, false},
    {"rope", all_pairs, false},
    {"attention", all_heads, false},
    {"attention_grad", all_heads, false},
    {"attention_cached", all_heads, false},
    {"all_reduce", all_bytes, true},
    {"replicate", all_bytes, true},
    {"reduce_scatter", all_bytes, true},
    {"all_gather", all_bytes, true},
    {"all_to_all", all_bytes, true},
    {"send", all_bytes, false},
};

void lowering_complete(const op_t *op, void *attributes, const lh_arg_t *args)
{
    if (op->plugin != NULL || attributes == NULL) return;
    for (uint32_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        if (strcmp(ops[i].op, op->row.name) == 0) ops[i].complete(attributes, args);
}

bool lowering_vanishes(const op_t *op, const void *attributes)
{
    if (op->plugin != NULL || attributes == NULL) return false;
    for (uint32_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        if (ops[i].collective && strcmp(ops[i].op, op->row.name) == 0)
            return ((const op_collective_t *)attributes)->ways <= 1;
    return false;
}

uint32_t lowering_input(const char *slot)
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
