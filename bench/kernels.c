/* kernels.c - how fast the kernels of a device are: GB/s or GFLOP/s of each op on the shapes of a
 * small model (hidden 384, ffn 1024, 4096 tokens, or as given).
 *
 *     kernels [plugin [threads [f32|bf16 [op]]]] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "device_rig.h"

enum { TOKENS = 4096, HIDDEN = 384, FFN = 1024, VOCAB = 5120, CHUNK = 1024, PARAMS = 4 << 20 };

typedef struct bench {
    rig_t rig;
    lh_dtype_t dtype;
    const char *only; /* NULL: all ops */
    double *numbers;  /* TOKENS x VOCAB between -1 and 1 */
} bench_t;

static uint64_t lh_dtype_bytes(lh_dtype_t dtype)
{
    return dtype == LH_DTYPE_BF16 ? 2 : 4;
}

static rig_slot_t tensor(const bench_t *b, lh_dtype_t dtype, uint64_t rows, uint64_t width)
{
    return (rig_slot_t){.dtype = dtype, .rank = 2, .shape = {rows, width}, .in = b->numbers};
}

static rig_slot_t line(const bench_t *b, lh_dtype_t dtype, uint64_t n)
{
    return (rig_slot_t){.dtype = dtype, .rank = 1, .shape = {n}, .in = b->numbers};
}

static rig_slot_t over(rig_slot_t slot, uint32_t alias)
{
    slot.alias_slot = alias;
    return slot;
}

static double touched_bytes(const rig_slot_t *slots, uint32_t count)
{
    double bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t n = slots[i].dtype == LH_DTYPE_NONE ? 0 : lh_dtype_bytes(slots[i].dtype);
        for (uint32_t j = 0; j < slots[i].rank; j++)
            n *= slots[i].shape[j];
        bytes += (double)n;
    }
    return bytes;
}

/* One thread's time is the processor's: what others do on this machine does not count. */
static uint64_t time_ns(const rig_t *rig)
{
    struct timespec now;
    if (rig->properties.cores != 1) return rig_now_ns();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The shortest of many launches: what the machine does when nothing disturbs it. */
static uint64_t shortest_ns(rig_t *rig, rig_call_t *call)
{
    uint64_t best = UINT64_MAX;
    const uint64_t end = rig_now_ns() + 300000000u;
    for (uint32_t i = 0; i < 3 || (rig_now_ns() < end && i < 1000); i++) {
        const uint64_t begin = time_ns(rig);
        rig_launch(call);
        rig_wait(rig);
        const uint64_t took = time_ns(rig) - begin;
        if (took < best) best = took;
    }
    return best;
}

static void measure(bench_t *b, const char *text, const char *op, const void *attributes,
                    double flops, const rig_slot_t *slots, uint32_t count)
{
    rig_call_t *call;
    if (b->only != NULL && strcmp(b->only, op) != 0) return;
    if (rig_prepare(&b->rig, op, attributes, slots, count, &call) != LH_OK) {
        printf("%-26s %s\n", text, rig_reason());
        return;
    }
    const double ns = (double)shortest_ns(&b->rig, call);
    printf("%-26s %9.1f us  %7.1f GB/s", text, ns / 1000, touched_bytes(slots, count) / ns);
    if (flops > 0) printf("  %8.1f GFLOP/s", flops / ns);
    printf("\n");
    fflush(stdout);
    rig_free(call);
}

#define MEASURE(b, text, op, how, flops, ...)                                         \
    do {                                                                              \
        const rig_slot_t slots_[] = {__VA_ARGS__};                                    \
        measure(b, text, op, how, flops, slots_, sizeof(slots_) / sizeof(slots_[0])); \
    } while (0)

/* Forward y = x W^T, gradient of x: gy W, gradient of W: gy^T x, added in F32. */
static void bench_linear(bench_t *b, const char *name, uint64_t tokens, uint64_t in, uint64_t out)
{
    const lh_dtype_t d = b->dtype;
    const double flops = 2.0 * (double)tokens * (double)in * (double)out;
    const lh_matmul_t forward = {sizeof(forward), 0, 1, LH_ACT_NONE};
    const lh_matmul_t input = {sizeof(input), 0, 0, LH_ACT_NONE};
    const lh_matmul_t weight = {sizeof(weight), 1, 0, LH_ACT_NONE};
    const rig_slot_t x = tensor(b, d, tokens, in), y = tensor(b, d, tokens, out);
    const rig_slot_t w = tensor(b, d, out, in);
    rig_slot_t gw = tensor(b, LH_DTYPE_F32, out, in);
    char text[64];

    snprintf(text, sizeof(text), "matmul %s", name);
    MEASURE(b, text, "matmul", &forward, flops, x, w, RIG_NONE, RIG_NONE, RIG_NONE, y, RIG_NONE,
            RIG_NONE);
    snprintf(text, sizeof(text), "matmul %s gx", name);
    MEASURE(b, text, "matmul", &input, flops, y, w, RIG_NONE, RIG_NONE, RIG_NONE, x, RIG_NONE,
            RIG_NONE);
    snprintf(text, sizeof(text), "matmul %s gw", name);
    MEASURE(b, text, "matmul", &weight, flops, y, x, RIG_NONE, RIG_NONE, RIG_NONE, gw, RIG_NONE,
            RIG_NONE);
    gw.flags = LH_ARG_ADD;
    snprintf(text, sizeof(text), "matmul %s gw add", name);
    MEASURE(b, text, "matmul", &weight, flops, y, x, RIG_NONE, RIG_NONE, RIG_NONE, gw, RIG_NONE,
            RIG_NONE);
}

static void bench_norms(bench_t *b)
{
    const lh_dtype_t d = b->dtype, f = LH_DTYPE_F32;
    const lh_norm_t how = {sizeof(how), 0, 1e-5};
    const rig_slot_t x = tensor(b, d, TOKENS, HIDDEN), w = line(b, d, HIDDEN);
    const rig_slot_t each = line(b, f, TOKENS), gw = line(b, f, HIDDEN);
    MEASURE(b, "rms_norm", "rms_norm", &how, 0, x, w, x, each);
    MEASURE(b, "rms_norm_grad", "rms_norm_grad", &how, 0, x, x, w, each, x, gw);
    MEASURE(b, "rms_norm_grad_add", "rms_norm_grad_add", &how, 0, x, x, w, each, x, x, gw);
    MEASURE(b, "add_rms_norm", "add_rms_norm", &how, 0, x, x, w, x, x, each);
    MEASURE(b, "layer_norm", "layer_norm", &how, 0, x, w, w, x, each, each);
    MEASURE(b, "layer_norm_grad", "layer_norm_grad", &how, 0, x, x, w, each, each, x, gw, gw);
    MEASURE(b, "layer_norm_grad_add", "layer_norm_grad_add", &how, 0, x, x, w, each, each, x, x, gw,
            gw);
}

static void bench_elements(bench_t *b)
{
    const lh_dtype_t d = b->dtype, f = LH_DTYPE_F32;
    const lh_activate_t silu = {sizeof(silu), LH_ACT_SILU}, gelu = {sizeof(gelu), LH_ACT_GELU};
    const lh_activate_t tanh = {sizeof(tanh), LH_ACT_GELU_TANH};
    const rig_slot_t x = tensor(b, d, TOKENS, HIDDEN), h = tensor(b, d, TOKENS, FFN);
    MEASURE(b, "copy", "copy", NULL, 0, h, h);
    MEASURE(b, "copy f32 to dtype", "copy", NULL, 0, tensor(b, f, TOKENS, FFN), h);
    MEASURE(b, "add", "add", NULL, 0, x, x, x);
    MEASURE(b, "add f32 dtype f32", "add", NULL, 0, tensor(b, f, TOKENS, FFN), h,
            tensor(b, f, TOKENS, FFN));
    MEASURE(b, "multiply", "multiply", NULL, 0, h, h, h);
    MEASURE(b, "scale", "scale", NULL, 0, h, line(b, f, 1), h);
    MEASURE(b, "gate silu", "gate", &silu, 0, h, h, h);
    MEASURE(b, "gate_grad silu", "gate_grad", &silu, 0, h, h, h, h, h);
    MEASURE(b, "activate gelu", "activate", &gelu, 0, h, h);
    MEASURE(b, "activate_grad gelu", "activate_grad", &gelu, 0, h, h, h);
    MEASURE(b, "activate gelu_tanh", "activate", &tanh, 0, h, h);
    MEASURE(b, "activate_grad gelu_tanh", "activate_grad", &tanh, 0, h, h, h);
}

static void bench_rows(bench_t *b)
{
    const lh_dtype_t d = b->dtype, f = LH_DTYPE_F32;
    const lh_rope_t rope = {sizeof(rope), 6, 64, 32, 0, 0, 0};
    double *ids = malloc(TOKENS * sizeof(*ids));
    if (ids == NULL) return;
    for (uint32_t i = 0; i < TOKENS; i++)
        ids[i] = floor(fabs(b->numbers[i] * b->numbers[i]) * VOCAB);
    const rig_slot_t x = tensor(b, d, TOKENS, HIDDEN);
    const rig_slot_t tokens = {.dtype = LH_DTYPE_I32, .rank = 1, .shape = {TOKENS}, .in = ids};
    MEASURE(b, "rope", "rope", &rope, 0, x, tokens, line(b, f, 32), x);
    MEASURE(b, "embed", "embed", NULL, 0, tokens, tensor(b, d, VOCAB, HIDDEN), x);
    MEASURE(b, "embed_grad", "embed_grad", NULL, 0, tokens, x, tensor(b, f, VOCAB, HIDDEN));
    MEASURE(b, "sum_rows", "sum_rows", NULL, 0, tensor(b, d, TOKENS, FFN), line(b, f, FFN));
    free(ids);
}

static void bench_attention(bench_t *b)
{
    static const double starts[] = {0, 1024, 2048, 3072, 4096};
    const lh_dtype_t d = b->dtype, f = LH_DTYPE_F32;
    const lh_attention_t how = {
        .struct_size = sizeof(how), .heads = 6, .kv_heads = 6, .head_dim = 64};
    const rig_slot_t q = tensor(b, d, TOKENS, HIDDEN), lse = tensor(b, f, 6, TOKENS);
    const rig_slot_t s = {.dtype = LH_DTYPE_I32, .rank = 1, .shape = {5}, .in = starts};
    const double flops = 4.0 * TOKENS * 512 * HIDDEN; /* a causal mask counts half */
    MEASURE(b, "attention", "attention", &how, flops, q, q, q, s, RIG_NONE, q, lse);
    MEASURE(b, "attention_grad", "attention_grad", &how, 2.5 * flops, q, q, q, q, s, RIG_NONE, q,
            lse, q, q, q);
}

static void bench_loss(bench_t *b)
{
    const lh_dtype_t d = b->dtype, f = LH_DTYPE_F32;
    const rig_slot_t logits = tensor(b, f, CHUNK, VOCAB), stats = tensor(b, f, CHUNK, 3);
    const rig_slot_t labels = {
        .dtype = LH_DTYPE_I32, .rank = 1, .shape = {CHUNK}, .in = b->numbers};
    MEASURE(b, "ce_stats", "ce_stats", NULL, 0, logits, labels, stats);
    MEASURE(b, "ce_grad", "ce_grad", NULL, 0, logits, labels, stats, line(b, f, CHUNK),
            tensor(b, d, CHUNK, VOCAB));
    MEASURE(b, "ce_grad over", "ce_grad", NULL, 0, logits, labels, stats, line(b, f, CHUNK),
            over(tensor(b, d, CHUNK, VOCAB), 1));
    MEASURE(b, "cross_entropy", "cross_entropy", NULL, 0, logits, labels, line(b, f, CHUNK),
            line(b, f, 1), tensor(b, d, CHUNK, VOCAB));
    MEASURE(b, "cross_entropy over", "cross_entropy", NULL, 0, tensor(b, d, CHUNK, VOCAB), labels,
            line(b, f, CHUNK), line(b, f, 1), over(tensor(b, d, CHUNK, VOCAB), 1));
    MEASURE(b, "ce_loss", "ce_loss", NULL, 0, stats, line(b, f, CHUNK), line(b, f, 1));
}

static void bench_update(bench_t *b)
{
    static const double step[16] = {1e-3, 1, 5, 1, 1};
    const lh_dtype_t d = b->dtype, f = LH_DTYPE_F32;
    const lh_adamw_t how = {sizeof(how), 0, 0.9, 0.95, 1e-8, 0.1};
    const rig_slot_t p = line(b, f, PARAMS);
    const rig_slot_t words = {.dtype = LH_DTYPE_F32, .rank = 1, .shape = {16}, .in = step};
    const rig_slot_t steps = {.dtype = LH_DTYPE_F32, .rank = 2, .shape = {1, 16}, .in = step};
    MEASURE(b, "adamw", "adamw", &how, 0, p, p, p, p, words, over(p, 2), over(p, 3), over(p, 4),
            line(b, d, PARAMS));
    MEASURE(b, "sum_squares", "sum_squares", NULL, 0, p, tensor(b, f, PARAMS / 4096, 2));
    MEASURE(b, "clip", "clip", NULL, 0, tensor(b, f, PARAMS / 4096, 2), steps, over(steps, 2));
}

int main(int argc, char **argv)
{
    const char *plugin = argc > 1 ? argv[1] : "cpu";
    const uint64_t threads = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    const rig_setting_t settings[] = {{"threads", threads}, {"huge_pages", 1}, {0}};
    bench_t b = {.dtype = argc > 3 && strcmp(argv[3], "f32") == 0 ? LH_DTYPE_F32 : LH_DTYPE_BF16,
                 .only = argc > 4 ? argv[4] : NULL};

    b.numbers = malloc((uint64_t)TOKENS * VOCAB * sizeof(*b.numbers));
    if (b.numbers == NULL) return 1;
    rig_random(1, b.numbers, (uint64_t)TOKENS * VOCAB);
    rig_open_with(&b.rig, plugin, settings);
    printf("%s\n", b.rig.properties.fingerprint);
    bench_linear(&b, "384 to 384", TOKENS, HIDDEN, HIDDEN);
    bench_linear(&b, "384 to 1152", TOKENS, HIDDEN, 3 * HIDDEN);
    bench_linear(&b, "384 to 2048", TOKENS, HIDDEN, 2 * FFN);
    bench_linear(&b, "1024 to 384", TOKENS, FFN, HIDDEN);
    bench_linear(&b, "384 to 5120", CHUNK, HIDDEN, VOCAB);
    bench_attention(&b);
    bench_norms(&b);
    bench_elements(&b);
    bench_rows(&b);
    bench_loss(&b);
    bench_update(&b);
    rig_close(&b.rig);
    free(b.numbers);
    return 0;
}
