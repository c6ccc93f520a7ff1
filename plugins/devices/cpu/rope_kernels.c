/* rope_kernels.c - rotary positions: turns pairs of components of every head. Sines and cosines are
 * made once a row and serve all its heads.
 *
 * Rotary position embedding (Su et al., 2021): components a and b of pair j turn by the angle
 * position * frequency[j], a' = a cos - b sin, b' = b cos + a sin; the gradient turns back
 * (inverse). Frequencies come from the model's plugin, with whatever scaling it has. Nothing is
 * kept from step to step: no table of all positions is read. */
#include "vector.h"

enum { CHUNK = 0 };
LH_SLOTS(LH_ROPE_TEXT);

static const uint64_t chunk_elements = 16384;
enum { MAX_PAIRS = 512 }; /* of a head: the tables lie on the stack */

/* a b + c, rounded once where the processor has an instruction for it. Not the C library's fma,
 * which is a slow call where there is none. */
CPU_INLINE double double_fma(double a, double b, double c)
{
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}
CPU_INLINE float float_fma(float a, float b, float c)
{
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* Sine and cosine of angles up to 2^31: whole quarter turns are taken off in double. The loops are
 * plain so that every compiler makes vectors of them. */
static void turn_table(const float *restrict frequencies, uint32_t pairs, int32_t position,
                       float magnitude, bool inverse, float *restrict sine, float *restrict cosine)
{
    const double whole = 6755399441055744.0; /* 1.5 2^52: adding it rounds to a whole number */
    const float at = (float)position, turn = inverse ? -magnitude : magnitude;
    for (uint32_t j = 0; j < pairs; j++) {
        const double angle = (double)(at * frequencies[j]);
        const double turns = double_fma(angle, 0.63661977236758134308, whole) - whole;
        const double rest = double_fma(turns, -6.123233995736766e-17,
                                       double_fma(turns, -1.57079632679489655800, angle));
        /* The rest lies within an eighth of a turn, where short polynomials do; the quarter says
         * which of sine and cosine is which, and their signs. */
        const int32_t quarter = (int32_t)turns;
        const float r = (float)rest, z = r * r;
        const float s1 = float_fma(z, -1.9515295891e-4f, 8.3321608736e-3f);
        const float s = float_fma(float_fma(s1, z, -1.6666654611e-1f), z * r, r);
        const float c1 = float_fma(z, 2.443315711809948e-5f, -1.388731625493765e-3f);
        const float c = float_fma(float_fma(c1, z, 4.166664568298827e-2f), z * z,
                                  float_fma(z, -0.5f, 1.0f));
        const bool odd = (quarter & 1) != 0;
        const float sine_sign = (quarter & 2) != 0 ? -turn : turn;
        const float cosine_sign = ((quarter + 1) & 2) != 0 ? -magnitude : magnitude;
        sine[j] = (odd ? c : s) * sine_sign;
        cosine[j] = (odd ? s : c) * cosine_sign;
    }
}

/* All heads of a row; what a turn has loaded serves each of them. */
CPU_INLINE void turn_halves(const lh_rope_t *how, const void *x, void *y, lh_dtype_t d,
                            const float *sine, const float *cosine)
{
    const uint64_t pairs = how->pairs, head_dim = how->head_dim, end = how->heads * head_dim;
    VF_EACH(j, m, 0, pairs, {
        const vf s = vf_load(sine + j), c = vf_load(cosine + j);
        for (uint64_t at = j; at < end; at += head_dim) {
            const vf a = vf_get(x, d, at, m), b = vf_get(x, d, at + pairs, m);
            vf_put(y, d, at, m, a * c - b * s);
            vf_put(y, d, at + pairs, m, b * c + a * s);
        }
    });
}

/* Pairs side by side, one at a time: the form of the original paper, which few models use. */
CPU_INLINE void turn_neighbours(const lh_rope_t *how, const void *x, void *y, lh_dtype_t d,
                                const float *sine, const float *cosine)
{
    const uint64_t head_dim = how->head_dim, end = how->heads * head_dim;
    for (uint64_t head = 0; head < end; head += head_dim) {
        for (uint32_t j = 0; j < how->pairs; j++) {
            const uint64_t at = head + 2 * j;
            const float a = vf_get(x, d, at, 1)[0], b = vf_get(x, d, at + 1, 1)[0];
            vf_put(y, d, at, 1, vf_set(a * cosine[j] - b * sine[j]));
            vf_put(y, d, at + 1, 1, vf_set(b * cosine[j] + a * sine[j]));
        }
    }
}

/* What partial rope leaves as it is. */
static void rest_copy(const lh_rope_t *how, const char *x, char *y, uint64_t element_bytes)
{
    const uint64_t turned = 2 * (uint64_t)how->pairs, rest = how->head_dim - turned;
    if (x == y || rest == 0) return;
    for (uint64_t head = 0; head < how->heads; head++) {
        const uint64_t at = (head * how->head_dim + turned) * element_bytes;
        memcpy(y + at, x + at, rest * element_bytes);
    }
}

/* A row's table, then its heads. Tables are padded with zeros, as lanes are read whole. */
CPU_INLINE void rope_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)
{
    const lh_rope_t *how = &k->how.rope;
    const float magnitude = how->magnitude == 0 ? 1.0f : (float)how->magnitude;
    const int32_t *positions = k->at[in_positions];
    _Alignas(64) float sine[MAX_PAIRS], cosine[MAX_PAIRS];
    uint64_t row, end;

    memset(sine, 0, sizeof(sine));
    memset(cosine, 0, sizeof(cosine));
    cpu_range(part, k->number[CHUNK], k->view[in_x].rows, &row, &end);
    for (; row < end; row++) {
        const void *x = cpu_row(k, in_x, row);
        void *y = cpu_row(k, out_y, row);
        turn_table(k->at[in_frequencies], how->pairs, positions[row], magnitude, how->inverse != 0,
                   sine, cosine);
        if (how->interleaved != 0)
            turn_neighbours(how, x, y, d, sine, cosine);
        else
            turn_halves(how, x, y, d, sine, cosine);
        rest_copy(how, x, y, lh_dtype_bytes(d));
    }
}
CPU_BOTH(rope_rows)

/* x and y may lie in one place: each pair is read before it is written. */
static lh_status_t rope_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan)
{
    (void)desc;
    (void)plan;
    lh_rope_t *how = &k->how.rope;
    if (how->pairs == 0) how->pairs = how->head_dim / 2;
    const cpu_view_t *x = &k->view[in_x], *y = &k->view[out_y];
    if (how->pairs > MAX_PAIRS || 2 * (uint64_t)how->pairs > how->head_dim)
        return k->host->fail(k->host, LH_UNSUPPORTED, "rope: %u pairs in heads of %u (at most %d)",
                             how->pairs, how->head_dim, MAX_PAIRS);
    if (x->width != (uint64_t)how->heads * how->head_dim || y->width != x->width ||
        y->rows != x->rows || k->view[in_positions].rows * k->view[in_positions].width != x->rows ||
        k->view[in_frequencies].rows * k->view[in_frequencies].width < how->pairs)
        return k->host->fail(k->host, LH_UNSUPPORTED, "rope: %u heads of %u on rows of %llu",
                             how->heads, how->head_dim, (unsigned long long)x->width);

    const uint64_t rows = chunk_elements / x->width;
    k->number[CHUNK] = rows == 0 ? 1 : rows;
    cpu_phase_add(k, CPU_PICK(rope_rows, x->dtype), x->rows, k->number[CHUNK]);
    return LH_OK;
}

const cpu_op_t CPU_ISA(rope_ops)[] = {{"rope", "xifx", rope_plan}, {NULL, NULL, NULL}};
