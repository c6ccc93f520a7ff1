/* hf_functions.c - the core's own functions for weights. Parts of fused tensors are counted from 0;
 * *_out functions write only their part of `out`. A tensor is seen as rows of columns; rank 1 has one
 * column. */
#include <hf/hf_functions.h>
#include <hf/hf_weights.h>

#include <longhaul/dtype.h>

typedef struct weight { /* a tensor as rows of columns; rank 1 has one column */
    float *data;
    uint64_t rows, columns;
} weight_t;

/* Refuses through the host, as these are functions like a plugin's own. */
static lh_status_t as_weight(const lh_call_t *call, const char *what, const lh_tensor_t *t,
                             weight_t *out)
{
    char shape[HF_SHAPE_TEXT];
    *out = (weight_t){t->data, t->shape[0], t->rank == 2 ? t->shape[1] : 1};
    if (t->dtype == LH_DTYPE_F32 && (t->rank == 1 || t->rank == 2)) return LH_OK;
    hf_shape_text(t->rank, t->shape, shape);
    return call->host->fail(
        call->host, LH_INVALID,
        "%s is %s of %s, F32 of one or two dimensions was expected, or of three "
        "with as many matrices in source and out",
        what, shape, lh_dtype_name(t->dtype));
}

static lh_status_t functions_both(const lh_call_t *call, const lh_tensor_t *source,
                                  const lh_tensor_t *out, weight_t *from, weight_t *to)
{
    *from = *to = (weight_t){0};
    const lh_status_t status = as_weight(call, "source", source, from);
    return status == LH_OK ? as_weight(call, "out", out, to) : status;
}

/* The refusal of all functions below. */
static lh_status_t sizes_differ(const lh_call_t *call, const char *what, const weight_t *from,
                                const weight_t *to)
{
    return call->host->fail(call->host, LH_INVALID,
                            "%s: source [%llu, %llu] does not fit out [%llu, %llu]", what,
                            (unsigned long long)from->rows, (unsigned long long)from->columns,
                            (unsigned long long)to->rows, (unsigned long long)to->columns);
}

/* part < parts and narrow x parts == wide */
static bool parts_fit(uint64_t part, uint64_t parts, uint64_t narrow, uint64_t wide)
{
    return part < parts && wide % parts == 0 && wide / parts == narrow;
}

/* GPT-2's linear layers are stored as [in, out]. */
LH_FUNCTION(status, transposed, (tensor, source), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (from.rows != to.columns || from.columns != to.rows)
        return call->host->fail(call->host, LH_INVALID,
                                "transposed: source [%llu, %llu] becomes [%llu, %llu], out is "
                                "[%llu, %llu]",
                                (unsigned long long)from.rows, (unsigned long long)from.columns,
                                (unsigned long long)from.columns, (unsigned long long)from.rows,
                                (unsigned long long)to.rows, (unsigned long long)to.columns);
    for (uint64_t i = 0; i < to.rows; i++)
        for (uint64_t k = 0; k < to.columns; k++)
            to.data[i * to.columns + k] = from.data[k * from.columns + i];
    return LH_OK;
}

/* Part `part` of the columns of an [in, out] matrix, transposed: queries, keys and values of
 * GPT-2's c_attn stand beside each other. */
LH_FUNCTION(status, columns_in, (tensor, source), (u64, part), (u64, parts), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (from.rows != to.columns || !parts_fit(part, parts, to.rows, from.columns))
        return sizes_differ(call, "columns_in", &from, &to);
    for (uint64_t i = 0; i < to.rows; i++)
        for (uint64_t k = 0; k < to.columns; k++)
            to.data[i * to.columns + k] = from.data[k * from.columns + part * to.rows + i];
    return LH_OK;
}

LH_FUNCTION(status, columns_out, (tensor, source), (u64, part), (u64, parts), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (to.rows != from.columns || !parts_fit(part, parts, from.rows, to.columns))
        return sizes_differ(call, "columns_out", &from, &to);
    for (uint64_t i = 0; i < from.rows; i++)
        for (uint64_t k = 0; k < from.columns; k++)
            to.data[k * to.columns + part * from.rows + i] = from.data[i * from.columns + k];
    return LH_OK;
}

/* Part `part` of the rows: matrices that are fused one above the other, such as gate and up. */
LH_FUNCTION(status, rows_in, (tensor, source), (u64, part), (u64, parts), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (from.columns != to.columns || !parts_fit(part, parts, to.rows, from.rows))
        return sizes_differ(call, "rows_in", &from, &to);
    const uint64_t count = to.rows * to.columns;
    memcpy(to.data, from.data + part * count, count * sizeof(float));
    return LH_OK;
}

LH_FUNCTION(status, rows_out, (tensor, source), (u64, part), (u64, parts), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (from.columns != to.columns || !parts_fit(part, parts, from.rows, to.rows))
        return sizes_differ(call, "rows_out", &from, &to);
    const uint64_t count = from.rows * from.columns;
    memcpy(to.data + part * count, from.data, count * sizeof(float));
    return LH_OK;
}

/* Whether `count` rows from `first` on lie in `all`. */
static bool rows_lie_in(uint64_t first, uint64_t count, uint64_t all)
{
    return first <= all && count <= all - first;
}

/* As many rows as out has, from row `first` on: matrices of unequal heights that are fused one above
 * the other, such as Phi's queries, keys and values. */
LH_FUNCTION(status, rows_from, (tensor, source), (u64, first), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (from.columns != to.columns || !rows_lie_in(first, to.rows, from.rows))
        return sizes_differ(call, "rows_from", &from, &to);
    memcpy(to.data, from.data + first * from.columns, to.rows * to.columns * sizeof(float));
    return LH_OK;
}

LH_FUNCTION(status, rows_to, (tensor, source), (u64, first), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (from.columns != to.columns || !rows_lie_in(first, from.rows, to.rows))
        return sizes_differ(call, "rows_to", &from, &to);
    memcpy(to.data + first * to.columns, from.data, from.rows * from.columns * sizeof(float));
    return LH_OK;
}

/* A factor that the file leaves to the code which reads it. Of powers of two the inverse gives every
 * bit back. */
LH_FUNCTION(status, scaled, (tensor, source), (f64, factor), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (from.rows != to.rows || from.columns != to.columns)
        return sizes_differ(call, "scaled", &from, &to);
    for (uint64_t i = 0; i < to.rows * to.columns; i++)
        to.data[i] = (float)((double)from.data[i] * factor);
    return LH_OK;
}

/* A term that one side leaves to its code: norms of 1 + w. A sum in F32 loses low bits of what is small
 * beside the term, so the inverse gives every bit back only of BF16 values from 2^-16 on (and a term
 * of 1); an op that adds it by itself, as rms_norm does with one_plus, loses none. */
LH_FUNCTION(status, plus, (tensor, source), (f64, term), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (from.rows != to.rows || from.columns != to.columns)
        return sizes_differ(call, "plus", &from, &to);
    for (uint64_t i = 0; i < to.rows * to.columns; i++)
        to.data[i] = (float)((double)from.data[i] + term);
    return LH_OK;
}

/* A fused tensor's rows come in groups, one a key/value head: its query heads, its key, its
 * value. */
typedef struct qkv {
    uint64_t group, heads; /* heads in a group; of this part in it */
    uint64_t at;           /* first one of this part                */
    uint64_t head;         /* elements of a head: head_dim x columns */
} qkv_t;

/* Where part 0, 1 or 2 lies in each group; false: sizes or heads don't fit. */
static bool qkv_layout(uint64_t heads, uint64_t kv_heads, uint64_t part, const weight_t *fused,
                       const weight_t *own, qkv_t *out)
{
    if (kv_heads == 0 || heads % kv_heads != 0 || part > 2) return false;
    /* heads of a group that are queries; heads of the whole tensor */
    const uint64_t queries = heads / kv_heads, all = heads + 2 * kv_heads;
    const uint64_t own_heads = part == 0 ? heads : kv_heads;
    if (fused->rows % all != 0 || fused->columns != own->columns ||
        own->rows != fused->rows / all * own_heads)
        return false;
    *out = (qkv_t){.group = queries + 2,
                   .heads = part == 0 ? queries : 1,
                   .at = part == 0 ? 0 : queries + part - 1,
                   .head = fused->rows / all * fused->columns};
    return true;
}

/* Takes one of queries, keys and values out of all groups. */
LH_FUNCTION(status, split_qkv, (tensor, source), (u64, heads), (u64, kv_heads), (u64, part),
            (tensor, out))
{
    weight_t from, to;
    qkv_t q;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (!qkv_layout(heads, kv_heads, part, &from, &to, &q))
        return sizes_differ(call, "split_qkv", &from, &to);
    const uint64_t count = q.heads * q.head;
    for (uint64_t g = 0; g < kv_heads; g++)
        memcpy(to.data + g * count, from.data + (g * q.group + q.at) * q.head,
               count * sizeof(float));
    return LH_OK;
}

LH_FUNCTION(status, join_qkv, (tensor, source), (u64, heads), (u64, kv_heads), (u64, part),
            (tensor, out))
{
    weight_t from, to;
    qkv_t q;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (!qkv_layout(heads, kv_heads, part, &to, &from, &q))
        return sizes_differ(call, "join_qkv", &from, &to);
    const uint64_t count = q.heads * q.head;
    for (uint64_t g = 0; g < kv_heads; g++)
        memcpy(to.data + (g * q.group + q.at) * q.head, from.data + g * count,
               count * sizeof(float));
    return LH_OK;
}

const lh_function_t weight_functions[] = {
    LH_FUNCTION_ENTRY(transposed, "rows become columns"),
    LH_FUNCTION_ENTRY(columns_in, "one part of the columns of an [in, out] matrix, as [out, in]"),
    LH_FUNCTION_ENTRY(columns_out, "the inverse of columns_in"),
    LH_FUNCTION_ENTRY(rows_in, "one part of the rows"),
    LH_FUNCTION_ENTRY(rows_out, "the inverse of rows_in"),
    LH_FUNCTION_ENTRY(rows_from, "as many rows as the parameter has, from a row on"),
    LH_FUNCTION_ENTRY(rows_to, "the inverse of rows_from"),
    LH_FUNCTION_ENTRY(scaled, "every element times a factor; its inverse is scaled by 1 / factor"),
    LH_FUNCTION_ENTRY(
        plus, "every element plus a term (1 + w); its inverse is plus -term, rounded to F32"),
    LH_FUNCTION_ENTRY(split_qkv,
                      "queries (part 0), keys (1) or values (2) of a tensor fused by head"),
    LH_FUNCTION_ENTRY(join_qkv, "the inverse of split_qkv"),
};
const uint32_t weight_function_count = sizeof(weight_functions) / sizeof(weight_functions[0]);

/* In the order of weight_functions. */
static const uint8_t weight_moves[] = {
    HF_COLUMNS, /* transposed */
    HF_COLUMNS, /* columns_in */
    HF_COLUMNS, /* columns_out */
    HF_ROWS,    /* rows_in */
    HF_ROWS,    /* rows_out */
    HF_ROWS,    /* rows_from */
    HF_ROWS,    /* rows_to */
    HF_EACH,    /* scaled */
    HF_EACH,    /* plus */
    HF_ROWS,    /* split_qkv */
    HF_ROWS,    /* join_qkv */
};
_Static_assert(sizeof(weight_moves) == sizeof(weight_functions) / sizeof(weight_functions[0]),
               "a way for each function");

uint32_t weight_function_moves(const lh_function_t *function)
{
    for (uint32_t i = 0; i < weight_function_count; i++)
        if (function == &weight_functions[i]) return weight_moves[i];
    return HF_WHOLE;
}
