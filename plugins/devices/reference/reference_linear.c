/* reference_linear.c - matrix products, and the table look-up that is one with a one-hot matrix. */
#include <math.h>

#include "reference.h"

/* Sums of a product that are formed at once: so each element of a is read once for TILE_COLUMNS of
 * them, and each of b for TILE_ROWS. Every sum adds its terms in the order of k all the same. */
enum { TILE_ROWS = 16, TILE_COLUMNS = 64 };

typedef struct tile {
    uint64_t row, column;   /* of c: the first                       */
    uint64_t rows, columns; /* how many, where c ends fewer than all */
    double sums[TILE_ROWS][TILE_COLUMNS];
} tile_t;

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The sums are zero before. */
static void tile_sum(const lh_matmul_t *how, const tensor_t *a, const tensor_t *b, tile_t *t)
{
    const uint64_t depth = how->transpose_a != 0 ? a->rows : a->width;
    const uint64_t rows = t->rows, columns = t->columns;
    double x[TILE_ROWS], y[TILE_COLUMNS];

    for (uint64_t k = 0; k < depth; k++) {
        for (uint64_t i = 0; i < rows; i++)
            x[i] = how->transpose_a != 0 ? get(a, k, t->row + i) : get(a, t->row + i, k);
        for (uint64_t j = 0; j < columns; j++)
            y[j] = how->transpose_b != 0 ? get(b, t->column + j, k) : get(b, k, t->column + j);
        for (uint64_t i = 0; i < rows; i++)
            for (uint64_t j = 0; j < columns; j++)
                t->sums[i][j] += x[i] * y[j];
    }
}

/* a b bias? scale_a? scale_b? -> c+ aux? amax?; c = act(scale_a scale_b a b + bias) */
void op_matmul(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_MATMUL_TEXT);
    const tensor_t a = at[in_a], b = at[in_b], bias = at[in_bias], scale_a = at[in_scale_a],
                   scale_b = at[in_scale_b];
    const tensor_t c = at[out_c], aux = at[out_aux], amax = at[out_amax];
    const double factor = (given(&scale_a) ? get(&scale_a, 0, 0) : 1) *
                          (given(&scale_b) ? get(&scale_b, 0, 0) : 1);
    const uint64_t across = (c.width + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const uint64_t tiles = (c.rows + TILE_ROWS - 1) / TILE_ROWS * across;
    double largest = 0;

    for (uint64_t n = 0; n < tiles; n++) {
        tile_t t = {.row = n / across * TILE_ROWS, .column = n % across * TILE_COLUMNS};
        t.rows = least(c.rows - t.row, TILE_ROWS);
        t.columns = least(c.width - t.column, TILE_COLUMNS);
        tile_sum(&how->matmul, &a, &b, &t);
        for (uint64_t e = 0; e < t.rows * t.columns; e++) {
            const uint64_t i = t.row + e / t.columns, j = t.column + e % t.columns;
            const double before = factor * t.sums[i - t.row][j - t.column] +
                                  (given(&bias) ? get(&bias, 0, j) : 0);
            const double value = act(how->matmul.activation, before);
            put(&aux, i, j, before);
            put(&c, i, j, value);
            largest = fmax(largest, fabs(value));
        }
    }
    put(&amax, 0, 0, largest);
}

/* x -> y+; [t, w] to [w] */
void op_sum_rows(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_SUM_ROWS_TEXT);
    (void)how;
    const tensor_t x = at[in_x], y = at[out_y];

    for (uint64_t j = 0; j < x.width; j++) {
        double sum = 0;
        for (uint64_t i = 0; i < x.rows; i++)
            sum += get(&x, i, j);
        put(&y, 0, j, sum);
    }
}

/* x -> y+; [t, w] to [t, 1] */
void op_sum_columns(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_SUM_COLUMNS_TEXT);
    (void)how;
    const tensor_t x = at[in_x], y = at[out_y];

    for (uint64_t i = 0; i < x.rows; i++) {
        double sum = 0;
        for (uint64_t j = 0; j < x.width; j++)
            sum += get(&x, i, j);
        put(&y, i, 0, sum);
    }
}

/* w change magnitude -> y inverse?; [t, w] twice and [t] to [t] */
void op_dora_scale(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_DORA_SCALE_TEXT);
    (void)how;
    const tensor_t w = at[in_w], change = at[in_change], magnitude = at[in_magnitude];
    const tensor_t y = at[out_y], inverse = at[out_inverse];

    for (uint64_t i = 0; i < w.rows; i++) {
        double before = 0, after = 0;
        for (uint64_t j = 0; j < w.width; j++) {
            const double a = get(&w, i, j), b = a + get(&change, i, j);
            before += a * a;
            after += b * b;
        }
        const double norm = sqrt(after);
        put(&y, 0, i, norm > 0 ? (sqrt(before) + get(&magnitude, 0, i)) / norm : 0);
        put(&inverse, 0, i, norm > 0 ? 1 / norm : 0);
    }
}

/* Row of the table that holds this id, or its row count if another part does. Without attributes
 * the table is whole. */
static uint64_t table_row(const lh_rows_t *how, const tensor_t *table, int64_t id)
{
    const uint64_t rows = how->rows != 0 && how->rows < table->rows ? how->rows : table->rows;

    if (id < 0 || (uint64_t)id < how->first || (uint64_t)id - how->first >= rows) {
        return table->rows;
    }
    return (uint64_t)id - how->first;
}

/* tokens table -> y */
void op_embed(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_EMBED_TEXT);
    const tensor_t tokens = at[in_tokens], table = at[in_table], y = at[out_y];

    for (uint64_t i = 0; i < y.rows; i++) {
        const uint64_t row = table_row(&how->rows, &table, get_integer(&tokens, 0, i));
        for (uint64_t j = 0; j < y.width; j++) {
            put(&y, i, j, row < table.rows ? get(&table, row, j) : 0);
        }
    }
}

/* tokens gy -> gtable+ */
void op_embed_grad(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_EMBED_GRAD_TEXT);
    const tensor_t tokens = at[in_tokens], gy = at[in_gy], gtable = at[out_gtable];

    for (uint64_t row = 0; row < gtable.rows; row++) {
        for (uint64_t begin = 0; begin < gtable.width; begin += TILE_COLUMNS) {
            const uint64_t count = least(gtable.width - begin, TILE_COLUMNS);
            double sums[TILE_COLUMNS] = {0};
            for (uint64_t i = 0; i < gy.rows; i++) {
                if (table_row(&how->rows, &gtable, get_integer(&tokens, 0, i)) != row) continue;
                for (uint64_t j = 0; j < count; j++)
                    sums[j] += get(&gy, i, begin + j);
            }
            for (uint64_t j = 0; j < count; j++)
                put(&gtable, row, begin + j, sums[j]);
        }
    }
}
