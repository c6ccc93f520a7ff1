/* packing_test.c - products of flows made by hand: what is joined, where it lies then, and what is left apart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail

#include <graph/op_table.h>
#include <longhaul/ops.h>
#include <plugin/host.h>
#include <plugin/registry.h>
#include <program/packing.h>

LH_SLOTS(LH_MATMUL_TEXT);
enum { ROWS = 8, WIDTH = 16, ALIGNMENT = 64, MEMBERS = 3 };
static const uint64_t widths[MEMBERS] = {32, 16,
                                         16}; /* of the outputs: F32, multiples of 64 bytes */

static const lh_matmul_t forward = {.struct_size = sizeof(forward), .transpose_b = 1};
static const lh_matmul_t to_input = {.struct_size = sizeof(to_input)};
static const lh_matmul_t to_weight = {.struct_size = sizeof(to_weight), .transpose_a = 1};

typedef struct layer {
    op_table_t *ops;
    const op_t *matmul, *copy, *rope;
    flow_t *f;
    allocation_t values, gradients, outside;
    uint32_t order[64];
    uint32_t x, gx, w[MEMBERS], gw[MEMBERS], y[MEMBERS], gy[MEMBERS];
    uint64_t alignment;
    bool refuses_views; /* what the device says of a call with a view */
} layer_t;

static bool offers(void *device, const flow_t *f, const flow_call_t *call)
{
    const layer_t *l = device;
    for (uint32_t s = 0; l->refuses_views && s < call->op->in_count + call->op->out_count; s++) {
        const lh_arg_t *arg = &f->values[call->slots[s]].arg;
        if (call->slots[s] != 0 && call->op != l->matmul && arg->stride[0] != arg->shape[1])
            return false;
    }
    return true;
}

static uint32_t kept(layer_t *l, allocation_t *a, uint64_t rows, uint64_t columns, uint32_t order)
{
    const uint64_t shape[] = {rows, columns};
    const lh_arg_t arg = flow_arg(LH_DTYPE_F32, 2, shape);
    uint64_t at;
    assert_true(allocation_take(a, flow_arg_bytes(&arg), ALIGNMENT, &at) == LH_OK);
    const uint32_t b = flow_buffer(l->f, a, at, flow_arg_bytes(&arg));
    l->order[b] = order;
    return flow_value(l->f, &arg, b, 0);
}

static uint32_t made(layer_t *l, uint64_t rows, uint64_t columns)
{
    const uint64_t shape[] = {rows, columns};
    const lh_arg_t arg = flow_arg(LH_DTYPE_F32, 2, shape);
    return flow_activation(l->f, &arg);
}

static void call(layer_t *l, const op_t *op, const void *attributes, uint32_t a, uint32_t b,
                 uint32_t c)
{
    uint32_t slots[OP_SLOTS] = {a, b};
    slots[op == l->copy ? 1 : op == l->rope ? 3 : out_c] = c;
    flow_kernel(l->f, op, attributes, slots);
}

static uint32_t buffer(const layer_t *l, uint32_t value)
{
    return l->f->values[value].buffer;
}

/* Weights and gradients in two stores, x from elsewhere, and no calls yet. */
static void layer_open(layer_t *l)
{
    *l = (layer_t){.alignment = ALIGNMENT,
                   .values = {.name = "value"},
                   .gradients = {.name = "grad"},
                   .outside = {.name = "x"}};
    assert_true(op_table_new(&l->ops) == LH_OK && flow_new(&l->f) == LH_OK);
    l->matmul = op_table_find(l->ops, "matmul");
    l->copy = op_table_find(l->ops, "copy");
    l->rope = op_table_find(l->ops, "rope");
    l->x = kept(l, &l->outside, ROWS, WIDTH, 0);
    l->gx = made(l, ROWS, WIDTH);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        l->w[i] = kept(l, &l->values, widths[i], WIDTH, i + 1);
        l->gw[i] = kept(l, &l->gradients, widths[i], WIDTH, i + 1);
        l->f->buffers[buffer(l, l->gw[i])].accumulates = true;
        l->y[i] = made(l, ROWS, widths[i]);
        l->gy[i] = made(l, ROWS, widths[i]);
    }
}

static void forward_write(layer_t *l)
{
    for (uint32_t i = 0; i < MEMBERS; i++)
        call(l, l->matmul, &forward, l->x, l->w[i], l->y[i]);
}

/* The last first, as the walk back does. */
static void backward_write(layer_t *l)
{
    for (uint32_t i = 0; i < MEMBERS; i++)
        call(l, l->copy, NULL, l->y[i], 0, l->gy[i]);
    for (uint32_t i = MEMBERS; i-- > 0;) {
        call(l, l->matmul, &to_input, l->gy[i], l->w[i], l->gx);
        l->f->calls[l->f->call_count - 1].add = i + 1 < MEMBERS ? 1u << out_c : 0;
        call(l, l->matmul, &to_weight, l->gy[i], l->x, l->gw[i]);
    }
}

/* Returns how many calls of matmul are left. */
static uint32_t pack(layer_t *l)
{
    const packing_how_t how = {l->alignment, l->order, offers, l};
    assert_true(l->f->buffer_count <= 64 && packing_apply(l->f, &how) == LH_OK);
    uint32_t products = 0;
    for (uint32_t c = 1; c < l->f->call_count; c++)
        products += l->f->calls[c].op == l->matmul;
    return products;
}

static void layer_close(layer_t *l)
{
    flow_free(l->f);
    op_table_free(l->ops);
}

/* Columns of one buffer, in the order of weights. */
static void assert_columns(const layer_t *l, const uint32_t *values)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < MEMBERS; i++) {
        const flow_value_t *v = &l->f->values[values[i]];
        assert_int_equal(v->buffer, buffer(l, values[0]));
        assert_int_equal(v->offset, at);
        assert_int_equal(v->arg.stride[0], 64);
        assert_int_equal(v->arg.shape[1], widths[i]);
        at += 4 * widths[i];
    }
    assert_int_equal(l->f->buffers[buffer(l, values[0])].bytes, 4 * 64 * ROWS);
}

static void assert_rows(const layer_t *l, const uint32_t *values)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < MEMBERS; i++) {
        const flow_value_t *v = &l->f->values[values[i]];
        assert_int_equal(v->buffer, buffer(l, values[0]));
        assert_int_equal(v->offset, at);
        assert_int_equal(v->arg.stride[0], WIDTH);
        at += 4 * widths[i] * WIDTH;
    }
    assert_int_equal(l->f->buffers[buffer(l, values[0])].bytes, at);
}

static void three_products_are_one_each_way(void **state)
{
    layer_t l;
    (void)state;
    layer_open(&l);
    forward_write(&l);
    backward_write(&l);
    assert_int_equal(pack(&l), 3);
    assert_columns(&l, l.y);
    assert_columns(&l, l.gy);
    assert_rows(&l, l.w);
    assert_rows(&l, l.gw);
    /* The forward product stands first, the gradients last. */
    assert_int_equal(l.f->call_count, 1 + 1 + MEMBERS + 2);
    const flow_call_t *y = &l.f->calls[1], *gx = &l.f->calls[l.f->call_count - 2],
                      *gw = &l.f->calls[l.f->call_count - 1];
    assert_int_equal(l.f->values[y->slots[out_c]].arg.shape[1], 64);
    assert_int_equal(l.f->values[y->slots[in_b]].arg.shape[0], 64);
    assert_true(gx->attributes == &to_input && gx->add == 0);
    assert_int_equal(buffer(&l, gx->slots[out_c]), buffer(&l, l.gx));
    assert_int_equal(l.f->values[gx->slots[in_a]].arg.shape[1], 64);
    assert_int_equal(l.f->values[gw->slots[out_c]].arg.shape[0], 64);
    layer_close(&l);
}

/* Each of these leaves something apart: which products are left. */
enum { READ_BETWEEN, OTHER_WRITER, NOT_ALIGNED, REFUSED, GAP, OTHER_ROW, CASES };
static void what_would_change_a_number_stays_apart(void **state)
{
    static const uint32_t left[CASES] = {
        [READ_BETWEEN] = 1 + 3 + 1, /* gx is read half made */
        [OTHER_WRITER] = 1 + 1 + 3, /* a gradient has a writer of its own */
        [NOT_ALIGNED] = 9,          [REFUSED] = 3 + 3 + 3,
        [GAP] = 2 + 2 + 1, /* between the first weight and the second, not between gradients */
        [OTHER_ROW] = 2 + 1 + 1, /* of the schedule: the last forward product */
    };
    (void)state;
    for (uint32_t i = 0; i < CASES; i++) {
        layer_t l;
        layer_open(&l);
        l.refuses_views = i == REFUSED;
        forward_write(&l);
        if (i == OTHER_ROW) l.f->calls[MEMBERS].row = 1;
        backward_write(&l);
        const uint32_t half = 1 + MEMBERS + MEMBERS + 2;
        if (i == READ_BETWEEN) {
            const uint32_t to = made(&l, ROWS, WIDTH);
            const flow_insert_t read = {half,
                                        {.kind = FLOW_KERNEL, .op = l.copy, .slots = {l.gx, to}}};
            flow_weave(l.f, &read, 1);
        }
        if (i == OTHER_WRITER) call(&l, l.copy, NULL, l.w[1], 0, l.gw[1]);
        if (i == GAP) l.f->buffers[buffer(&l, l.w[0])].offset += 1 << 20;
        if (i == NOT_ALIGNED) l.alignment = 256; /* the second column begins at byte 128 */
        assert_int_equal(pack(&l), left[i]);
        layer_close(&l);
    }
}

/* A gradient of two micro-batches: both are joined, as the first writer of a step is one for all. */
static void gradients_are_joined_in_every_call_or_in_none(void **state)
{
    (void)state;
    for (uint32_t broken = 0; broken < 2; broken++) {
        layer_t l;
        layer_open(&l);
        for (uint32_t micro = 0; micro < 2; micro++) {
            for (uint32_t m = 0; m < MEMBERS; m++) {
                l.y[m] = made(&l, ROWS, widths[m]);
                l.gy[m] = made(&l, ROWS, widths[m]);
            }
            l.gx = made(&l, ROWS, WIDTH);
            forward_write(&l);
            backward_write(&l);
            /* A transfer takes dense values. */
            if (micro == 1 && broken == 1) flow_fill(l.f, l.gy[0], false);
        }
        assert_int_equal(pack(&l), broken == 0 ? 2 * 3 : (1 + 1 + 3) + (1 + 3 + 3));
        layer_close(&l);
    }
}

/* Rotary positions turn a column where it lies, unless somebody reads it as it was. */
static void an_op_in_place_takes_over_its_column(void **state)
{
    (void)state;
    for (uint32_t read = 0; read < 2; read++) {
        layer_t l;
        layer_open(&l);
        forward_write(&l);
        const uint32_t turned = made(&l, ROWS, widths[0]), other = made(&l, ROWS, widths[0]);
        call(&l, l.rope, NULL, l.y[0], 0, turned);
        call(&l, l.copy, NULL, turned, 0, other);
        if (read == 1) call(&l, l.copy, NULL, l.y[0], 0, other);
        assert_int_equal(pack(&l), 1);
        const flow_value_t *v = &l.f->values[turned];
        assert_int_equal(v->buffer == buffer(&l, l.y[0]), read == 0);
        assert_int_equal(v->arg.stride[0], read == 0 ? 64 : widths[0]);
        layer_close(&l);
    }
}

/* The SDK's example of a linear layer, which no core has heard of: its calls become one as a matmul's
 * do, and no call of another op is taken along. */
static void a_third_partys_product_is_joined_with_its_own_kind(void **state)
{
    (void)state;
    host_t *host;
    registry_t *registry;
    const plugin_t *acme;
    layer_t l;
    assert_int_equal(host_new(&host), LH_OK);
    assert_int_equal(registry_new(LH_TEST_PLUGINS, host, &registry), LH_OK);
    assert_int_equal(registry_load(registry, LH_KIND_PARTS, "acme_smooth", &acme), LH_OK);
    for (uint32_t mixed = 0; mixed < 2; mixed++) {
        layer_open(&l);
        assert_int_equal(op_table_add(l.ops, acme->ops, sizeof(lh_op_t), acme->op_count, "acme"),
                         LH_OK);
        const op_t *linear = op_table_find(l.ops, "acme.linear");
        assert_non_null(linear);
        for (uint32_t i = 0; i < MEMBERS; i++) {
            const bool matmul = mixed == 1 && i == MEMBERS - 1;
            uint32_t slots[OP_SLOTS] = {l.x, l.w[i]};
            slots[matmul ? out_c : linear->in_count] = l.y[i];
            flow_kernel(l.f, matmul ? l.matmul : linear, matmul ? &forward : NULL, slots);
        }
        assert_int_equal(pack(&l), mixed);
        assert_int_equal(l.f->call_count, 1 + 1 + mixed);
        assert_ptr_equal(l.f->calls[1].op, linear);
        const uint64_t joined = mixed == 0 ? 64 : widths[0] + widths[1];
        assert_int_equal(l.f->values[l.f->calls[1].slots[linear->in_count]].arg.shape[1], joined);
        assert_int_equal(l.f->values[l.f->calls[1].slots[1]].arg.shape[0], joined);
        if (mixed == 0) assert_columns(&l, l.y);
        layer_close(&l);
    }
    registry_free(registry);
    host_free(host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_products_are_one_each_way),
        cmocka_unit_test(what_would_change_a_number_stays_apart),
        cmocka_unit_test(gradients_are_joined_in_every_call_or_in_none),
        cmocka_unit_test(an_op_in_place_takes_over_its_column),
        cmocka_unit_test(a_third_partys_product_is_joined_with_its_own_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
