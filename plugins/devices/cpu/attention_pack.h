/* attention_pack.h - rows of arguments laid out for the products of attention, and back.
 *
 * Natural: [row][unit], the units along the width. Turned: [unit][TILE], the same with rows as
 * lanes. Deep: [unit][column], the units along the rows: of floats that is natural, and of pairs
 * rows 2 j and 2 j + 1 side by side.
 *
 * A head is a range of columns in rows that hold all heads, so its rows lie far apart in memory:
 * packing brings them together once, and the products then read lines one behind the other. Widths
 * are padded with zeros to whole vectors, which add nothing to a sum. */
#ifndef LH_CPU_ATTENTION_PACK_H
#define LH_CPU_ATTENTION_PACK_H

#include "attention_product.h"

/* The next multiple of a unit; of LANES, as every packed width is. */
static inline uint64_t rounded_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}
static inline uint64_t padded(uint64_t width)
{
    return rounded_up(width, LANES);
}
/* Units that hold so many elements. */
CPU_INLINE uint64_t units_of(uint64_t elements, const bool pairs)
{
    return pairs ? (elements + 1) / 2 : elements;
}

/* Numbers that lie in rows of an argument: column `column` of row 0 on. */
typedef struct rows_of {
    const char *base;
    lh_dtype_t dtype;
    uint64_t pitch, column; /* elements */
} rows_of_t;

/* Of a slot, from a column on: a head is a range of columns. */
static inline rows_of_t rows_of(const lh_prepared_t *k, uint32_t slot, uint64_t column)
{
    return (rows_of_t){k->at[slot], k->view[slot].dtype, k->view[slot].pitch, column};
}

/* Elements c .. of a row, at most a vector of them, as F32. */
CPU_INLINE vf row_get(const rows_of_t *from, uint64_t row, uint64_t c, uint64_t width)
{
    const uint64_t at = row * from->pitch + from->column + c, m = vf_span(c, width);
    return from->dtype == LH_DTYPE_BF16 ? vf_get(from->base, LH_DTYPE_BF16, at, m)
                                        : vf_get(from->base, LH_DTYPE_F32, at, m);
}

/* The same of BF16, as they lie. */
CPU_INLINE vh row_get_bf16(const rows_of_t *from, uint64_t row, uint64_t c, uint64_t width)
{
    const uint64_t m = vf_span(c, width);
    const uint16_t *p = (const uint16_t *)(const void *)from->base + row * from->pitch +
                        from->column + c;
    vh h;

    if (m < LANES) return vh_load_some(p, m);
    memcpy(&h, p, sizeof(h));
    return h;
}

/* Fetches rows into the cache: they lie too far apart for the processor to foresee them. */
static inline void rows_fetch(const rows_of_t *from, uint64_t first, uint64_t count, uint64_t width)
{
    const uint64_t bytes = from->dtype == LH_DTYPE_BF16 ? 2 : 4;

    for (uint64_t row = first; row < first + count; row++) {
        const char *line = from->base + (row * from->pitch + from->column) * bytes;
        for (uint64_t at = 0; at < width * bytes; at += 64)
            __builtin_prefetch(line + at, 0, 2);
    }
}

/* A row, natural; zeros behind its end. */
CPU_INLINE void pack_row(float *to, const rows_of_t *from, uint64_t row, uint64_t width,
                         const bool pairs)
{
    const uint64_t whole = width / LANES * LANES, end = padded(units_of(width, pairs));
    uint16_t *halves = (uint16_t *)(void *)to;

    if (!pairs) {
        for (uint64_t c = 0; c < whole; c += LANES)
            vf_store(to + c, row_get(from, row, c, c + LANES));
        if (whole < width) vf_store(to + whole, row_get(from, row, whole, width));
        return;
    }
    for (uint64_t c = 0; c < whole; c += LANES) {
        const vh h = row_get_bf16(from, row, c, c + LANES);
        memcpy(halves + c, &h, sizeof(h));
    }
    for (uint64_t c = whole; c < 2 * end; c += LANES) {
        const vh h = c < width ? row_get_bf16(from, row, c, width) : (vh){0};
        memcpy(halves + c, &h, sizeof(h));
    }
}

/* to [padded(count)][padded(units)]: natural; zeros behind the rows. */
CPU_INLINE void pack_rows(float *to, const rows_of_t *from, uint64_t first, uint64_t count,
                          uint64_t width, const bool pairs)
{
    const uint64_t pitch = padded(units_of(width, pairs));

    for (uint64_t i = 0; i < count; i++)
        pack_row(to + i * pitch, from, first + i, width, pairs);
    memset(to + count * pitch, 0, (padded(count) - count) * pitch * sizeof(float));
}

/* Columns c .. of two rows side by side, `end` at most; without the second: zeros. */
CPU_INLINE vf pair_get(const rows_of_t *from, uint64_t row, bool second, uint64_t c, uint64_t end)
{
    const vu low = __builtin_convertvector(row_get_bf16(from, row, c, end), vu);
    if (!second) return (vf)low;
    return (vf)(low | __builtin_convertvector(row_get_bf16(from, row + 1, c, end), vu) << 16);
}

/* to [padded(count) / 2][padded(width)]: pairs, deep; zeros behind the rows. */
CPU_INLINE void pack_deep(float *to, const rows_of_t *from, uint64_t first, uint64_t count,
                          uint64_t width)
{
    const uint64_t pitch = padded(width), whole = width / LANES * LANES;
    const uint64_t used = units_of(count, true);

    for (uint64_t i = 0; i < used; i++) {
        const bool second = 2 * i + 1 < count;
        const uint64_t row = first + 2 * i;
        for (uint64_t c = 0; c < whole; c += LANES)
            vf_store(to + i * pitch + c, pair_get(from, row, second, c, c + LANES));
        if (whole < width)
            vf_store(to + i * pitch + whole, pair_get(from, row, second, whole, width));
    }
    memset(to + used * pitch, 0, (padded(count) / 2 - used) * pitch * sizeof(float));
}

/* Deep, of either kind. */
CPU_INLINE void pack_units(float *to, const rows_of_t *from, uint64_t first, uint64_t count,
                           uint64_t width, const bool pairs)
{
    if (pairs) {
        pack_deep(to, from, first, count, width);
    } else {
        pack_rows(to, from, first, count, width, false);
    }
}

/* Lanes of two vectors alternating: of their first halves, of their second halves. */
#if LANES == 16
#define ZIP_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ZIP_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif LANES == 8
#define ZIP_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define ZIP_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define ZIP_LOW 0, 4, 1, 5
#define ZIP_HIGH 2, 6, 3, 7
#endif

/* Each round turns (row, lane), read as one row of bits, left by one bit. */
CPU_INLINE void transpose(vf row[LANES])
{
    for (int round = 1; round < LANES; round *= 2) {
        vf next[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            next[2 * i] = __builtin_shufflevector(row[i], row[i + LANES / 2], ZIP_LOW);
            next[2 * i + 1] = __builtin_shufflevector(row[i], row[i + LANES / 2], ZIP_HIGH);
        }
        for (int i = 0; i < LANES; i++)
            row[i] = next[i];
    }
}

/* to [pitch][TILE]: turned, from natural rows [padded(count)][pitch], count <= TILE. */
CPU_INLINE void pack_turned(float *to, const float *from, uint64_t count, uint64_t pitch)
{
    for (uint64_t i = 0; i < count; i += LANES) {
        for (uint64_t c = 0; c < pitch; c += LANES) {
            vf block[LANES];
            for (uint64_t r = 0; r < LANES; r++)
                block[r] = vf_load(from + (i + r) * pitch + c);
            transpose(block);
            for (uint64_t r = 0; r < LANES; r++)
                vf_store(to + (c + r) * TILE + i, block[r]);
        }
    }
}

/* A row of F32 back into an argument, times a factor. */
CPU_INLINE void unpack_row(const rows_of_t *to, const float *from, uint64_t row, uint64_t width,
                           float factor, const lh_dtype_t dtype)
{
    const uint64_t whole = width / LANES * LANES, at = row * to->pitch + to->column;
    void *base = (void *)(uintptr_t)to->base;

    for (uint64_t c = 0; c < whole; c += LANES)
        vf_put(base, dtype, at + c, LANES, vf_load(from + c) * factor);
    if (whole < width)
        vf_put(base, dtype, at + whole, width - whole, vf_load(from + whole) * factor);
}

/* Rows first.. of an argument = from [count, padded(width)], row i times factor[i step]. */
static inline void unpack_rows(const rows_of_t *to, const float *from, uint64_t first,
                               uint64_t count, uint64_t width, const float *factor, uint64_t step)
{
    const uint64_t pitch = padded(width);

    for (uint64_t i = 0; i < count && to->dtype == LH_DTYPE_BF16; i++)
        unpack_row(to, from + i * pitch, first + i, width, factor[i * step], LH_DTYPE_BF16);
    for (uint64_t i = 0; i < count && to->dtype != LH_DTYPE_BF16; i++)
        unpack_row(to, from + i * pitch, first + i, width, factor[i * step], LH_DTYPE_F32);
}

#endif
