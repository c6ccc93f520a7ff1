/* stream_bench.h - two streams of a device beside each other, with numbers to move between the host and
 * the device: what must hold of any device that queues work, for tests of the plugins that do. */
#ifndef STREAM_BENCH_H
#define STREAM_BENCH_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "device_rig.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MUST(call)                                         \
    do {                                                   \
        if ((call) != LH_OK) fail_msg("%s", rig_reason()); \
    } while (0)

enum { NUMBERS = 1000, BYTES = NUMBERS * sizeof(float) };

static const uint64_t minute_ns = (uint64_t)60 * 1000000000u;

typedef struct bench {
    rig_t rig;
    lh_stream_t *other; /* beside the rig's */
    lh_event_t *first, *second;
    lh_memory_t *memory[3];
    lh_place_t in, device, out; /* NUMBERS of F32: pinned, device, pinned */
} bench_t;

static inline lh_memory_t *bench_memory(rig_t *rig, uint32_t space, lh_place_t *place)
{
    lh_memory_t *memory;
    void *address;
    MUST(rig->api->alloc(rig->device, space, BYTES, &memory, &address));
    *place = (lh_place_t){.memory = memory, .address = address};
    return memory;
}

/* `in` holds 0, 1, 2, ... */
static inline void bench_open_with(bench_t *b, const char *plugin, const rig_setting_t *settings)
{
    const lh_stream_how_t how = {.struct_size = sizeof(how), .role = LH_STREAM_COPY};
    rig_open_with(&b->rig, plugin, settings);
    MUST(b->rig.api->stream_new(b->rig.device, &how, &b->other));
    MUST(b->rig.api->event_new(b->rig.device, &b->first));
    MUST(b->rig.api->event_new(b->rig.device, &b->second));
    b->memory[0] = bench_memory(&b->rig, LH_SPACE_PINNED, &b->in);
    b->memory[1] = bench_memory(&b->rig, LH_SPACE_DEVICE, &b->device);
    b->memory[2] = bench_memory(&b->rig, LH_SPACE_PINNED, &b->out);
    for (int i = 0; i < NUMBERS; i++)
        ((float *)b->in.address)[i] = (float)i;
}

static inline void bench_close(bench_t *b)
{
    b->rig.api->event_free(b->second);
    b->rig.api->event_free(b->first);
    b->rig.api->stream_free(b->other);
    for (size_t i = 0; i < COUNT(b->memory); i++)
        b->rig.api->release(b->memory[i]);
    rig_close(&b->rig);
}

static inline bool bench_out_is_in(const bench_t *b)
{
    return memcmp(b->out.address, b->in.address, BYTES) == 0;
}

/* Pinned to device on one stream, device to pinned on the other. */
static inline void bench_pass_on(bench_t *b, bool with_wait)
{
    const lh_device_api_t *api = b->rig.api;
    for (int i = 0; i < 5; i++)
        MUST(api->fill(b->rig.stream, &b->device, 0, BYTES));
    MUST(api->copy(b->rig.stream, &b->device, &b->in, BYTES));
    MUST(api->record(b->rig.stream, b->first));
    if (with_wait) MUST(api->wait(b->other, b->first));
    MUST(api->copy(b->other, &b->out, &b->device, BYTES));
    MUST(api->record(b->other, b->second));
    MUST(api->test(b->second, minute_ns));
    MUST(api->test(b->first, minute_ns));
}

/* in -> device on the first stream, device -> out on the second, which the first waits for. */
static inline void bench_capture(bench_t *b, lh_replay_t **out)
{
    const lh_device_api_t *api = b->rig.api;
    MUST(api->capture_begin(b->rig.stream));
    MUST(api->copy(b->rig.stream, &b->device, &b->in, BYTES));
    MUST(api->record(b->rig.stream, b->first));
    MUST(api->wait(b->other, b->first));
    MUST(api->copy(b->other, &b->out, &b->device, BYTES));
    MUST(api->record(b->other, b->second));
    MUST(api->wait(b->rig.stream, b->second));
    MUST(api->fill(b->rig.stream, &b->device, 0, BYTES));
    MUST(api->capture_end(b->rig.stream, out));
}

/* What is captured runs at each replay, and not before the first. */
static inline void bench_replays(bench_t *b)
{
    lh_replay_t *replay;
    bench_capture(b, &replay);
    rig_wait(&b->rig);
    assert_false(bench_out_is_in(b));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < NUMBERS; i++)
            ((float *)b->in.address)[i] = (float)(i * round + 1);
        MUST(b->rig.api->replay(replay, b->rig.stream));
        rig_wait(&b->rig);
        assert_true(bench_out_is_in(b));
    }
    b->rig.api->replay_free(replay);
}

/* A stream's next work waits from here on, until bench_go. */
static inline void bench_hold(bench_t *b)
{
    uint32_t *word = b->in.address;
    *word = 0;
    MUST(b->rig.api->await(b->rig.stream, &b->in));
}

static inline void bench_go(bench_t *b)
{
    uint32_t *word = b->in.address;
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
}

/* A stream that awaits a word in pinned memory holds until the host sets it, takes it back, and tells the
 * host by another. */
static inline void bench_words(bench_t *b)
{
    const lh_device_api_t *api = b->rig.api;
    uint32_t *word = b->in.address, *told = b->out.address;
    *word = *told = 0;
    MUST(api->await(b->rig.stream, &b->in));
    MUST(api->signal(b->rig.stream, &b->out));
    MUST(api->record(b->rig.stream, b->first));
    assert_int_equal(api->test(b->first, 5000000), LH_AGAIN);
    assert_int_equal(__atomic_load_n(told, __ATOMIC_ACQUIRE), 0);
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    MUST(api->test(b->first, minute_ns));
    assert_int_equal(__atomic_load_n(told, __ATOMIC_ACQUIRE), 1);
    assert_int_equal(__atomic_load_n(word, __ATOMIC_ACQUIRE), 0);
}

/* Runs in a child, whose death must leave no core file behind. */
static inline void bench_touch(const volatile float *address)
{
    const struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    signal(SIGSEGV, SIG_DFL); /* cmocka would go on with the next test */
    const float value = *address;
    _exit(value == value + 1 ? 1 : 0);
}

/* Whether the host dies of reading there. */
static inline bool bench_touch_dies(const void *address)
{
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) bench_touch(address);
    assert_int_equal(waitpid(child, &status, 0), child);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

#endif
