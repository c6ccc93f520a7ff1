/* Attention by cuDNN in the cuda plugin, over the stand-ins of NVIDIA's libraries: which calls it takes
 * and why not others, the batch that is walked, variants, places that don't lie as cuDNN wants, and
 * libraries that are not as they must be. That its numbers are right is attention_test.c's to say
 * (devices.cudnn_attention_test). Exit code 77 without the stand-ins, or in a build without cuDNN. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device_rig.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MUST(call)                                         \
    do {                                                   \
        if ((call) != LH_OK) fail_msg("%s", rig_reason()); \
    } while (0)

enum { ROWS = 96, HEADS = 4, DIM = 32, MOST = ROWS * HEADS * DIM };

/* A call in which everything is as cuDNN takes it; a case changes something. */
typedef struct call {
    lh_dtype_t dtype;
    uint64_t rows, keys, pad;
    uint32_t heads, kv_heads, dim, window, full;
    uint64_t q_begin;
    double soft_cap;
    bool slopes;
} call_t;

static const call_t plain = {LH_DTYPE_BF16, ROWS, ROWS, 0, HEADS, 2, DIM, 0, 0, 0, 0, false};
static const double starts[] = {0, 10, 10, 40, 71, 90};

static double data[8][MOST], out_y[MOST], out_lse[MOST], out_q[MOST], out_k[MOST], out_v[MOST];

static lh_attention_t how_of(const call_t *c)
{
    return (lh_attention_t){.struct_size = sizeof(lh_attention_t),
                            .heads = c->heads,
                            .kv_heads = c->kv_heads,
                            .head_dim = c->dim,
                            .window = c->window,
                            .full = c->full,
                            .q_begin = c->q_begin,
                            .k_begin = c->q_begin,
                            .soft_cap = c->soft_cap};
}

static rig_slot_t rows_of(const call_t *c, uint64_t rows, uint64_t heads, const double *in,
                          double *out)
{
    return (rig_slot_t){.dtype = c->dtype,
                        .rank = 2,
                        .shape = {rows, heads * c->dim},
                        .in = in,
                        .out = out,
                        .pad = c->pad};
}

enum { FORWARD = 7, BACKWARD = 11 };

static void slots_fill(const call_t *c, rig_slot_t forward[FORWARD], rig_slot_t backward[BACKWARD])
{
    const rig_slot_t q = rows_of(c, c->rows, c->heads, data[0], NULL);
    const rig_slot_t k = rows_of(c, c->keys, c->kv_heads, data[1], NULL);
    const rig_slot_t v = rows_of(c, c->keys, c->kv_heads, data[2], NULL);
    const rig_slot_t documents = RIG_IN(I32, starts, COUNT(starts));
    rig_slot_t slopes = RIG_IN(F32, data[3], c->heads);
    if (!c->slopes) slopes = RIG_NONE;
    forward[0] = q, forward[1] = k, forward[2] = v, forward[3] = documents, forward[4] = slopes;
    forward[5] = rows_of(c, c->rows, c->heads, NULL, out_y);
    forward[6] = RIG_OUT(F32, out_lse, c->heads, c->rows);
    backward[0] = rows_of(c, c->rows, c->heads, data[4], NULL);
    memcpy(&backward[1], forward, 5 * sizeof(*forward));
    backward[6] = rows_of(c, c->rows, c->heads, out_y, NULL);
    backward[7] = RIG_IN(F32, out_lse, c->heads, c->rows);
    backward[8] = rows_of(c, c->rows, c->heads, NULL, out_q);
    backward[9] = rows_of(c, c->keys, c->kv_heads, NULL, out_k);
    backward[10] = rows_of(c, c->keys, c->kv_heads, NULL, out_v);
}

static void rig_start(rig_t *rig, const char *fake, uint64_t attention)
{
    setenv("LH_FAKE_CUDA", fake, 1);
    rig_open_with(rig, "cuda",
                  (const rig_setting_t[]){{"capture", 1}, {"attention", attention}, {0}});
}

/* Forward, then backward; names of the kernels that did it. */
static void call_run(rig_t *rig, const call_t *c, char names[2][64])
{
    const lh_attention_t how = how_of(c);
    rig_slot_t forward[FORWARD], backward[BACKWARD];
    slots_fill(c, forward, backward);
    MUST(rig_run(rig, "attention", &how, forward, FORWARD));
    memcpy(names[0], rig->kernel, 64);
    MUST(rig_run(rig, "attention_grad", &how, backward, BACKWARD));
    memcpy(names[1], rig->kernel, 64);
}

typedef struct choice {
    const char *name;
    call_t call;
    bool forward, backward; /* taken */
} choice_t;

static void it_takes_what_cudnn_can_do(void **state)
{
    (void)state;
#define CALL(...)   \
    (call_t)        \
    {               \
        __VA_ARGS__ \
    }
    const choice_t choices[] = {
        {"plain", plain, true, true},
        {"f16", CALL(LH_DTYPE_F16, ROWS, ROWS, 0, HEADS, 2, DIM, 0, 0, 0, 0, false), true, true},
        {"one head a key", CALL(LH_DTYPE_BF16, ROWS, ROWS, 0, 2, 2, DIM, 0, 0, 0, 0, false), true,
         true},
        {"window", CALL(LH_DTYPE_BF16, ROWS, ROWS, 0, HEADS, 2, DIM, 9, 0, 0, 0, false), true,
         true},
        {"full", CALL(LH_DTYPE_BF16, ROWS, ROWS, 0, HEADS, 2, DIM, 0, 1, 0, 0, false), true, true},
        {"rows apart by 16 bytes",
         CALL(LH_DTYPE_BF16, ROWS, ROWS, 8, HEADS, 2, DIM, 0, 0, 0, 0, false), true, true},
        {"rows apart by 2 bytes",
         CALL(LH_DTYPE_BF16, ROWS, ROWS, 1, HEADS, 2, DIM, 0, 0, 0, 0, false), false, false},
        {"24 components", CALL(LH_DTYPE_BF16, ROWS, ROWS, 0, HEADS, 2, 24, 0, 0, 0, 0, false), true,
         false},
        {"20 components", CALL(LH_DTYPE_BF16, ROWS, ROWS, 0, HEADS, 2, 20, 0, 0, 0, 0, false),
         false, false},
        {"f32", CALL(LH_DTYPE_F32, ROWS, ROWS, 0, HEADS, 2, DIM, 0, 0, 0, 0, false), false, false},
        {"slopes", CALL(LH_DTYPE_BF16, ROWS, ROWS, 0, HEADS, 2, DIM, 0, 0, 0, 0, true), false,
         false},
        {"soft cap", CALL(LH_DTYPE_BF16, ROWS, ROWS, 0, HEADS, 2, DIM, 0, 0, 0, 3, false), false,
         false},
        {"a part of a sequence",
         CALL(LH_DTYPE_BF16, ROWS, ROWS, 0, HEADS, 2, DIM, 0, 0, 5, 0, false), false, false},
        {"other keys", CALL(LH_DTYPE_BF16, ROWS, 90, 0, HEADS, 2, DIM, 0, 0, 0, 0, false), false,
         false},
    };
#undef CALL
    char names[2][64];
    rig_t rig;
    rig_start(&rig, "delay_us=5", 0);
    for (size_t i = 0; i < COUNT(choices); i++) {
        const choice_t *c = &choices[i];
        call_run(&rig, &c->call, names);
        if ((strstr(names[0], ".cudnn") != NULL) != c->forward ||
            (strstr(names[1], ".cudnn") != NULL) != c->backward)
            fail_msg("%s: done by %s and %s", c->name, names[0], names[1]);
    }
    rig_close(&rig);
}

static void own_kernels_do_all_of_it_where_asked(void **state)
{
    (void)state;
    char names[2][64];
    rig_t rig;
    rig_start(&rig, "cudnn=10000 delay_us=5", 1); /* not even looked at */
    call_run(&rig, &plain, names);
    assert_null(strstr(names[0], "cudnn"));
    assert_null(strstr(names[1], "cudnn"));
    assert_null(strstr(rig.properties.fingerprint, "cuDNN"));
    rig_close(&rig);
}

/* The same bits, however many documents go together; with room for none the own kernels have it. */
static void the_batch_is_walked_where_scratch_is_short(void **state)
{
    (void)state;
    static double all[3][MOST];
    static const uint64_t limits[] = {0, 400000, 300000, 200000};
    char names[2][64];
    rig_t rig;
    rig_start(&rig, "delay_us=5", 0);
    for (size_t i = 0; i < COUNT(limits); i++) {
        rig.scratch_limit = limits[i];
        call_run(&rig, &plain, names);
        assert_non_null(strstr(names[1], "cudnn"));
        if (i == 0) {
            memcpy(all[0], out_q, sizeof(out_q));
            memcpy(all[1], out_k, sizeof(out_k));
            memcpy(all[2], out_v, sizeof(out_v));
        }
        assert_memory_equal(all[0], out_q, sizeof(out_q));
        assert_memory_equal(all[1], out_k, sizeof(out_k));
        assert_memory_equal(all[2], out_v, sizeof(out_v));
    }
    rig.scratch_limit = 100000;
    call_run(&rig, &plain, names);
    assert_string_equal(names[1], "attention_grad.bf16.cuda.tensor");
    rig_close(&rig);
}

static lh_status_t row_prepare(rig_t *rig, uint64_t variant, uint32_t flags, lh_kernel_plan_t *plan)
{
    static const lh_arg_t none = {.dtype = LH_DTYPE_NONE};
    const lh_attention_t how = how_of(&plain);
    const lh_arg_t wide = {.dtype = LH_DTYPE_BF16,
                           .rank = 2,
                           .shape = {ROWS, HEADS * DIM},
                           .stride = {HEADS * DIM, 1}};
    const lh_arg_t narrow = {
        .dtype = LH_DTYPE_BF16, .rank = 2, .shape = {ROWS, 2 * DIM}, .stride = {2 * DIM, 1}};
    const lh_arg_t lse = {
        .dtype = LH_DTYPE_F32, .rank = 2, .shape = {HEADS, ROWS}, .stride = {ROWS, 1}};
    const lh_arg_t documents = {
        .dtype = LH_DTYPE_I32, .rank = 1, .shape = {COUNT(starts)}, .stride = {1}};
    const lh_arg_t args[] = {wide, wide, narrow, narrow, documents, none,
                             wide, lse,  wide,   narrow, narrow};
    const lh_kernel_desc_t desc = {.struct_size = sizeof(desc),
                                   .flags = flags,
                                   .op = "attention_grad",
                                   .attributes = &how,
                                   .args = args,
                                   .arg_size = sizeof(lh_arg_t),
                                   .arg_count = COUNT(args),
                                   .scratch_limit_bytes = (uint64_t)1 << 30,
                                   .variant = variant,
                                   .stream = rig->stream};
    for (uint32_t i = 0; i < rig->plugin->kernel_count; i++) {
        const lh_kernel_t *row = &rig->plugin->kernels[i];
        lh_prepared_t *k = NULL;
        if (strcmp(row->op, desc.op) != 0) continue; /* cuDNN's is the first */
        *plan = (lh_kernel_plan_t){.struct_size = sizeof(*plan)};
        const lh_status_t status = row->prepare(rig_host(), rig->device, &desc, plan, &k);
        if (status == LH_OK) row->release(k);
        return status;
    }
    return LH_INVALID;
}

static void a_variant_is_taken_again_or_refused(void **state)
{
    (void)state;
    lh_kernel_plan_t plan, again;
    rig_t rig;
    rig_start(&rig, "", 0);
    MUST(row_prepare(&rig, 0, LH_KERNEL_ORDERED, &plan));
    assert_string_equal(plan.name, "attention_grad.bf16.cudnn");
    MUST(row_prepare(&rig, plan.variant, LH_KERNEL_ORDERED, &again));
    assert_true(again.variant == plan.variant && again.scratch_bytes == plan.scratch_bytes);
    assert_int_equal(row_prepare(&rig, plan.variant ^ (uint64_t)1 << 40, LH_KERNEL_ORDERED, &again),
                     LH_UNSUPPORTED);
    assert_non_null(strstr(rig_reason(), "another GPU, driver or library"));
    assert_int_equal(row_prepare(&rig, plan.variant ^ 256, LH_KERNEL_ORDERED, &again),
                     LH_UNSUPPORTED);
    rig_close(&rig);
}

/* Without an order the sums of the queries' gradients need no number for each pair. */
static void it_says_whether_it_is_ordered(void **state)
{
    (void)state;
    lh_kernel_plan_t ordered, not_ordered;
    rig_t rig;
    rig_start(&rig, "", 0);
    MUST(row_prepare(&rig, 0, LH_KERNEL_ORDERED, &ordered));
    MUST(row_prepare(&rig, 0, 0, &not_ordered));
    assert_true(ordered.flags == (LH_KERNEL_ORDERED | LH_KERNEL_CAPTURE));
    assert_true(not_ordered.flags == LH_KERNEL_CAPTURE);
    assert_true(not_ordered.scratch_bytes < ordered.scratch_bytes);
    rig_close(&rig);
}

/* How a place lies that was not told shows when the call is bound; the library would refuse it. */
static void places_that_were_not_told_are_looked_at_when_a_call_is_bound(void **state)
{
    (void)state;
    const lh_attention_t how = how_of(&plain);
    rig_slot_t forward[FORWARD], backward[BACKWARD];
    rig_call_t *call;
    rig_t rig;
    rig_start(&rig, "delay_us=5", 0);
    slots_fill(&plain, forward, backward);
    MUST(rig_prepare(&rig, "attention", &how, forward, FORWARD, &call));
    assert_string_equal(rig.kernel, "attention.bf16.cudnn");
    void *const by_cudnn = rig_block(call)->bound;
    lh_place_t args[FORWARD];
    memcpy(args, rig_block(call)->args, sizeof(args));
    args[1].address = (char *)args[1].address + 2;
    rig_block(call)->args = args;
    MUST(rig_bind(call));
    assert_ptr_not_equal(rig_block(call)->bound, by_cudnn);
    MUST(rig_try_launch(call));
    rig_wait(&rig);
    /* Launches look at no place: what was bound is what runs. */
    rig_block(call)->bound = by_cudnn;
    assert_int_equal(rig_try_launch(call), LH_IO);
    assert_non_null(strstr(rig_reason(), "attention of libcudnn.so.9"));
    rig_wait(&rig); /* what was queued before it */
    rig_free(call);
    rig_close(&rig);
}

static void places_that_are_told_not_to_lie_on_16_bytes_are_the_own_kernels(void **state)
{
    (void)state;
    const lh_attention_t how = how_of(&plain);
    static const uint32_t alignments[] = {256, 16, 8, 2};
    rig_t rig;
    rig_start(&rig, "delay_us=5", 0);
    for (size_t i = 0; i < COUNT(alignments); i++) {
        rig_slot_t forward[FORWARD], backward[BACKWARD];
        slots_fill(&plain, forward, backward);
        for (size_t slot = 0; slot < FORWARD; slot++)
            forward[slot].alignment = backward[slot].alignment = 256;
        forward[FORWARD - 1].alignment = backward[7].alignment = 4; /* lse may lie as it likes */
        forward[2].alignment = backward[3].alignment = alignments[i];
        for (size_t slot = FORWARD; slot < BACKWARD; slot++)
            if (slot != 7) backward[slot].alignment = 256;
        MUST(rig_run(&rig, "attention", &how, forward, FORWARD));
        assert_string_equal(rig.kernel, alignments[i] >= 16 ? "attention.bf16.cudnn"
                                                            : "attention.bf16.cuda.tensor");
        MUST(rig_run(&rig, "attention_grad", &how, backward, BACKWARD));
        assert_string_equal(rig.kernel, alignments[i] >= 16 ? "attention_grad.bf16.cudnn"
                                                            : "attention_grad.bf16.cuda.tensor");
    }
    rig_close(&rig);
}

/* Documents of `rows` rows each never are empty, however many go together. */
static void empty_documents_are_for_a_library_that_takes_them(void **state)
{
    (void)state;
    static const double whole[] = {0, 32, 64, 96};
    rig_slot_t forward[FORWARD], backward[BACKWARD];
    lh_attention_t how = how_of(&plain);
    char names[2][64];
    rig_t rig;
    rig_start(&rig, "cudnn=92499 delay_us=5", 0);
    call_run(&rig, &plain, names);
    assert_string_equal(names[0], "attention.bf16.cuda.tensor");
    assert_string_equal(names[1], "attention_grad.bf16.cuda.tensor");
    how.document_rows = 32;
    slots_fill(&plain, forward, backward);
    forward[3] = backward[4] = RIG_IN(I32, whole, COUNT(whole));
    MUST(rig_run(&rig, "attention", &how, forward, FORWARD));
    assert_string_equal(rig.kernel, "attention.bf16.cudnn");
    MUST(rig_run(&rig, "attention_grad", &how, backward, BACKWARD));
    assert_string_equal(rig.kernel, "attention_grad.bf16.cudnn");
    rig_close(&rig);
}

static void its_library_is_named_in_the_fingerprint(void **state)
{
    (void)state;
    rig_t rig;
    rig_start(&rig, "cudnn=91900", 0);
    assert_non_null(strstr(rig.properties.fingerprint, ", cuDNN 91900"));
    rig_close(&rig);
}

static void a_library_of_another_version_is_refused(void **state)
{
    (void)state;
    static const rig_setting_t wanted[] = {{"attention", 0}, {0}}, own[] = {{"attention", 1}, {0}};
    setenv("LH_FAKE_CUDA", "cudnn=100000", 1);
    assert_false(rig_offers("cuda", wanted));
    assert_non_null(strstr(rig_reason(),
                           "libcudnn.so.9, looked for where the system's loader looks, "
                           "is cuDNN 10.0, this plugin knows 9"));
    assert_non_null(strstr(rig_reason(), "[device] libraries"));
    assert_non_null(strstr(rig_reason(), "attention = own"));
    assert_true(rig_offers("cuda", own));

    setenv("LH_FAKE_CUDA", "fail=cudnnCreate:1:2", 1);
    assert_false(rig_offers("cuda", wanted));
    assert_non_null(strstr(rig_reason(), "libcudnn.so.9 does not start: cudnnCreate says"));
    assert_non_null(strstr(rig_reason(), "attention = own"));
    setenv("LH_FAKE_CUDA", "", 1);
    if (!rig_offers("cuda", wanted)) fail_msg("%s", rig_reason());
}

int main(void)
{
    const char *folders = getenv("LD_LIBRARY_PATH");
    if (folders == NULL || strstr(folders, "fake_cuda") == NULL || getenv("LH_TEST_CUDNN") == NULL)
        return 77;
    for (size_t i = 0; i < COUNT(data); i++)
        rig_random(i + 1, data[i], MOST);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_takes_what_cudnn_can_do),
        cmocka_unit_test(own_kernels_do_all_of_it_where_asked),
        cmocka_unit_test(the_batch_is_walked_where_scratch_is_short),
        cmocka_unit_test(a_variant_is_taken_again_or_refused),
        cmocka_unit_test(it_says_whether_it_is_ordered),
        cmocka_unit_test(places_that_were_not_told_are_looked_at_when_a_call_is_bound),
        cmocka_unit_test(places_that_are_told_not_to_lie_on_16_bytes_are_the_own_kernels),
        cmocka_unit_test(empty_documents_are_for_a_library_that_takes_them),
        cmocka_unit_test(its_library_is_named_in_the_fingerprint),
        cmocka_unit_test(a_library_of_another_version_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
