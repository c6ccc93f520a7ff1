/* The fake device finds what it is there to find, and is a device otherwise. */
#include "stream_bench.h"

static void bench_open_seeded(bench_t *b, uint64_t seed)
{
    const rig_setting_t settings[] = {{"threads", 2}, {"delay", 300000}, {"seed", seed}, {0}};
    bench_open_with(b, "fake", settings);
}

static void bench_open(bench_t *b)
{
    bench_open_seeded(b, 1);
}

static void a_wait_orders_streams_and_a_missing_one_shows(void **state)
{
    (void)state;
    /* A busy machine may let the first stream win once; not every time. */
    uint32_t shown = 0;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        bench_t b;
        bench_open_seeded(&b, seed);
        bench_pass_on(&b, false);
        shown += !bench_out_is_in(&b);
        bench_pass_on(&b, true);
        assert_true(bench_out_is_in(&b));
        bench_close(&b);
    }
    assert_true(shown > 0);
}

static void an_event_is_not_past_before_its_work(void **state)
{
    (void)state;
    bench_t b;
    bench_open(&b);
    const lh_device_api_t *api = b.rig.api;
    bench_hold(&b);
    for (int i = 0; i < 20; i++)
        MUST(api->fill(b.rig.stream, &b.device, 0, 4));
    MUST(api->record(b.rig.stream, b.first));
    assert_int_equal(api->test(b.first, 0), LH_AGAIN);
    assert_int_equal(api->record(b.rig.stream, b.first), LH_INVALID);
    bench_go(&b);
    assert_int_equal(api->test(b.first, minute_ns), LH_OK);
    assert_int_equal(api->test(b.first, 0), LH_OK);
    bench_close(&b);
}

static void the_host_dies_of_touching_device_memory(void **state)
{
    (void)state;
    bench_t b;
    bench_open(&b);
    assert_true(bench_touch_dies(b.device.address));
    assert_false(bench_touch_dies(b.out.address));
    bench_close(&b);
}

static void fresh_memory_holds_no_numbers(void **state)
{
    (void)state;
    bench_t b;
    bench_open(&b);
    MUST(b.rig.api->copy(b.rig.stream, &b.out, &b.device, BYTES));
    rig_wait(&b.rig);
    const float first = *(const float *)b.out.address;
    assert_true(first != first);
    bench_close(&b);
}

static const lh_activate_t silu = {sizeof(silu), LH_ACT_SILU};

static rig_call_t *activate_prepared(rig_t *rig, const double *x, double *y)
{
    const rig_slot_t slots[] = {RIG_IN(F32, x, 4), RIG_OUT(F32, y, 4)};
    rig_call_t *call;
    MUST(rig_prepare(rig, "activate", &silu, slots, COUNT(slots), &call));
    return call;
}

static void a_launch_block_that_changes_is_caught(void **state)
{
    (void)state;
    static const double x[] = {1, 2, 3, 4};
    double y[4];
    bench_t b;
    bench_open(&b);
    rig_call_t *call = activate_prepared(&b.rig, x, y);
    lh_launch_t *block = rig_block(call);
    rig_launch(call);
    rig_launch(call);
    rig_wait(&b.rig);
    block->scratch.offset = 64;
    assert_int_equal(rig_try_launch(call), LH_INVALID);
    assert_non_null(strstr(rig_reason(), "is not what it was at its first launch"));
    block->scratch.offset = 0;
    rig_free(call);
    bench_close(&b);
}

static void a_launch_block_is_read_when_the_kernel_runs(void **state)
{
    (void)state;
    static const double x[] = {1, 2, 3, 4};
    double y[4];
    bench_t b;
    bench_open(&b);
    rig_call_t *call = activate_prepared(&b.rig, x, y);
    for (int i = 0; i < 20; i++)
        MUST(b.rig.api->fill(b.rig.stream, &b.device, 0, 4));
    rig_launch(call);
    rig_block(call)->scratch.offset = 64;
    MUST(b.rig.api->record(b.rig.stream, b.first));
    assert_int_equal(b.rig.api->test(b.first, minute_ns), LH_INVALID);
    assert_non_null(strstr(rig_reason(), "is not what it was at its first launch"));
    rig_free(call);
    bench_close(&b);
}

static void a_capture_runs_when_it_is_replayed(void **state)
{
    (void)state;
    bench_t b;
    bench_open(&b);
    bench_replays(&b);
    bench_close(&b);
}

static void a_captured_kernel_runs_at_every_replay(void **state)
{
    (void)state;
    static const double x[] = {1, 2, 3, 4};
    double y[4] = {0};
    bench_t b;
    lh_replay_t *replay;
    bench_open(&b);
    rig_call_t *call = activate_prepared(&b.rig, x, y);
    MUST(b.rig.api->capture_begin(b.rig.stream));
    rig_launch(call);
    MUST(b.rig.api->capture_end(b.rig.stream, &replay));
    rig_read(call);
    assert_true(y[0] != y[0]); /* nothing has run */
    MUST(b.rig.api->replay(replay, b.rig.stream));
    rig_wait(&b.rig);
    rig_read(call);
    assert_true(y[0] > 0.731 && y[0] < 0.732);
    b.rig.api->replay_free(replay);
    rig_free(call);
    bench_close(&b);
}

static void a_capture_must_be_closed_in_itself(void **state)
{
    (void)state;
    bench_t b;
    lh_replay_t *replay;
    bench_open(&b);
    const lh_device_api_t *api = b.rig.api;
    MUST(api->record(b.other, b.second));
    MUST(api->capture_begin(b.rig.stream));
    assert_int_equal(api->wait(b.rig.stream, b.second), LH_INVALID);
    MUST(api->record(b.rig.stream, b.first));
    MUST(api->wait(b.other, b.first));
    MUST(api->fill(b.other, &b.device, 0, 4));
    assert_int_equal(api->capture_end(b.rig.stream, &replay), LH_INVALID);
    bench_close(&b);
}

static void words_hold_a_stream_and_tell_the_host(void **state)
{
    (void)state;
    bench_t b;
    bench_open(&b);
    bench_words(&b);
    bench_close(&b);
}

static void kernels_give_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static const rig_setting_t cpu_settings[] = {{"threads", 2}, {0}};
    static double q[70 * 32], starts[] = {0, 30, 70}, y[70 * 32], cpu_y[70 * 32];
    const lh_attention_t how = {
        .struct_size = sizeof(how), .heads = 2, .kv_heads = 2, .head_dim = 16};
    bench_t b;
    rig_t cpu;
    bench_open(&b);
    rig_open_with(&cpu, "cpu", cpu_settings);
    rig_random(3, q, COUNT(q));
    rig_slot_t slots[] = {RIG_IN(F32, q, 70, 32),
                          RIG_IN(F32, q, 70, 32),
                          RIG_IN(F32, q, 70, 32),
                          RIG_IN(I32, starts, 3),
                          RIG_NONE,
                          RIG_OUT(F32, y, 70, 32)};
    MUST(rig_run(&b.rig, "attention", &how, slots, COUNT(slots)));
    slots[5].out = cpu_y;
    MUST(rig_run(&cpu, "attention", &how, slots, COUNT(slots)));
    assert_memory_equal(y, cpu_y, sizeof(y));
    const rig_slot_t product[] = {
        RIG_IN(F32, q, 70, 32), RIG_IN(F32, q, 32, 32), RIG_NONE, RIG_NONE, RIG_NONE,
        RIG_OUT(F32, y, 70, 32)};
    rig_slot_t cpu_product[COUNT(product)];
    memcpy(cpu_product, product, sizeof(product));
    cpu_product[5].out = cpu_y;
    MUST(rig_run(&b.rig, "matmul", NULL, product, COUNT(product)));
    MUST(rig_run(&cpu, "matmul", NULL, cpu_product, COUNT(product)));
    assert_memory_equal(y, cpu_y, sizeof(y));
    rig_close(&cpu);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_dies_of_touching_device_memory),
        cmocka_unit_test(fresh_memory_holds_no_numbers),
        cmocka_unit_test(a_wait_orders_streams_and_a_missing_one_shows),
        cmocka_unit_test(an_event_is_not_past_before_its_work),
        cmocka_unit_test(a_launch_block_that_changes_is_caught),
        cmocka_unit_test(a_launch_block_is_read_when_the_kernel_runs),
        cmocka_unit_test(a_capture_runs_when_it_is_replayed),
        cmocka_unit_test(a_captured_kernel_runs_at_every_replay),
        cmocka_unit_test(a_capture_must_be_closed_in_itself),
        cmocka_unit_test(words_hold_a_stream_and_tell_the_host),
        cmocka_unit_test(kernels_give_the_bits_of_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
