/* The nvlink plugin over the stand-ins of NVIDIA's libraries (tests/fake_cuda): every call, on pieces that
 * are one run and on pieces that are not, between processes; joining, cancelling, ranks that differ.
 * What must come is computed here from the numbers that each rank holds. On a GPU a group of one, which
 * is what NCCL takes of one. Exit code 77 where there is neither. */
#include <dlfcn.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include <longhaul/dtype.h>

#include "device_rig.h"

/* In a rank, where cmocka is not: ends the process with a sentence. */
#define WANT(condition)                                                                        \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "line %d: not so: %s (%s)\n", __LINE__, #condition, rig_reason()); \
            _exit(1);                                                                          \
        }                                                                                      \
    } while (0)

enum { RANKS = 3, ELEMENTS = 3000, SEGMENTS = 400 };

static const uint64_t minute_ns = (uint64_t)60 * 1000000000u;

/* What the processes share. */
typedef struct table {
    lh_address_t token;
    atomic_uint at; /* ranks that came to a barrier */
} table_t;

typedef struct rank {
    uint32_t self, size;
    const char *failing; /* of LH_FAKE_CUDA: the call that fails, once; NULL: none does */
    table_t *table;
    uint32_t barriers;
    rig_t rig;
    const lh_collective_api_t *api;
    const lh_transport_api_t *plugin;
    lh_transport_t *transport;
    lh_group_t *group;
    lh_native_t queue;
    lh_memory_t *memory[4];
    lh_place_t whole, part, workspace, host;
} rank_t;

static void barrier(rank_t *r)
{
    const uint32_t target = ++r->barriers * r->size;
    atomic_fetch_add(&r->table->at, 1);
    while (atomic_load(&r->table->at) < target)
        (void)sched_yield();
}

static lh_memory_t *memory_new(rank_t *r, uint32_t space, lh_place_t *place)
{
    lh_memory_t *memory;
    void *address;
    WANT(r->rig.api->alloc(r->rig.device, space, 4 * ELEMENTS * sizeof(float), &memory, &address) ==
         LH_OK);
    *place = (lh_place_t){.memory = memory, .address = address};
    return memory;
}

static void rank_open(rank_t *r)
{
    static const rig_setting_t plain[] = {{"capture", 1}, {0}};
    static const uint64_t no_config[8];
    char path[512];
    (void)snprintf(path, sizeof(path), "gpus=1 delay_us=50 seed=%u%s%s%s", r->self,
                   r->failing != NULL ? " fail=" : "", r->failing != NULL ? r->failing : "",
                   r->failing != NULL && strchr(r->failing, ':') == NULL ? ":1:3" : "");
    (void)setenv("LH_FAKE_CUDA", path, 1);
    rig_open_with(&r->rig, "cuda", plain);
    (void)snprintf(path, sizeof(path), "%s/transports/nvlink.so", rig_plugins());
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    WANT(library != NULL);
    const lh_plugin_t *plugin = dlsym(library, LH_PLUGIN_SYMBOL);
    r->plugin = plugin->transport;
    r->api = r->plugin->collectives;
    WANT(r->plugin->open(rig_host(), no_config, &r->transport) == LH_OK);
    WANT(r->rig.api->native(r->rig.stream, &r->queue) == LH_OK);
    r->memory[0] = memory_new(r, LH_SPACE_DEVICE, &r->whole);
    r->memory[1] = memory_new(r, LH_SPACE_DEVICE, &r->part);
    r->memory[2] = memory_new(r, LH_SPACE_DEVICE, &r->workspace);
    r->memory[3] = memory_new(r, LH_SPACE_PINNED, &r->host);
}

static lh_status_t rank_join(rank_t *r)
{
    lh_status_t status;
    if (r->self == 0) WANT(r->api->new_token(r->transport, &r->table->token) == LH_OK);
    barrier(r);
    WANT(r->api->join(r->transport, &r->table->token, r->self, r->size, &r->queue, &r->group) ==
         LH_OK);
    if (r->size > 1) WANT(r->api->test(r->group) == LH_AGAIN); /* joining does not block */
    while ((status = r->api->test(r->group)) == LH_AGAIN)
        (void)sched_yield();
    return status;
}

static void rank_close(rank_t *r)
{
    if (r->group != NULL) r->api->leave(r->group);
    r->plugin->close(r->transport);
    for (uint32_t i = 0; i < 4; i++)
        r->rig.api->release(r->memory[i]);
    rig_close(&r->rig);
}

static void queue_finish(rank_t *r)
{
    WANT(r->rig.api->record(r->rig.stream, r->rig.event) == LH_OK);
    WANT(r->rig.api->test(r->rig.event, minute_ns) == LH_OK);
}

/* Between the host's numbers and memory on the device; `bytes` of all of it. */
static void move(rank_t *r, const lh_place_t *to, const lh_place_t *from, uint64_t bytes)
{
    WANT(r->rig.api->copy(r->rig.stream, to, from, bytes) == LH_OK);
    queue_finish(r);
}

/* ---- numbers: small whole ones, so that sums are exact in every dtype ---- */

static float number(uint32_t rank, uint64_t i)
{
    return (float)((i * 7 + rank * 13) % 29);
}

static void put(void *at, lh_dtype_t dtype, uint64_t i, float value)
{
    if (dtype == LH_DTYPE_F32) ((float *)at)[i] = value;
    if (dtype == LH_DTYPE_BF16) ((uint16_t *)at)[i] = lh_f32_to_bf16(value);
    if (dtype == LH_DTYPE_U8) ((uint8_t *)at)[i] = (uint8_t)value;
}

static float get(const void *at, lh_dtype_t dtype, uint64_t i)
{
    if (dtype == LH_DTYPE_F32) return ((const float *)at)[i];
    if (dtype == LH_DTYPE_BF16) return lh_bf16_to_f32(((const uint16_t *)at)[i]);
    return ((const uint8_t *)at)[i];
}

/* ---- pieces ---- */

typedef struct pieces {
    lh_coll_segment_t segments[RANKS][SEGMENTS];
    lh_coll_piece_t rows[RANKS];
} pieces_t;

/* `count` runs of `length` to each rank in turn, `gap` elements between them; the second rank has none
 * where `uneven`, and other ranks' runs differ in length. A part begins 3 elements behind its start. */
static void pieces_make(pieces_t *p, uint32_t size, uint32_t count, uint64_t length, uint64_t gap,
                        bool uneven)
{
    uint64_t at = gap, part[RANKS] = {0};
    memset(p, 0, sizeof(*p));
    for (uint32_t k = 0; k < count; k++)
        for (uint32_t o = 0; o < size; o++) {
            const uint64_t mine = uneven ? (o == 1 ? 0 : length + (k + o) % 3) : length;
            if (mine == 0) continue;
            p->segments[o][p->rows[o].count++] = (lh_coll_segment_t){
                .whole = at, .count = mine, .part = 3 + part[o]};
            at += mine + gap;
            part[o] += mine + gap;
        }
    if (at > ELEMENTS) _exit(2);
    for (uint32_t o = 0; o < size; o++)
        p->rows[o].segments = p->segments[o];
}

/* The rank that owns an element of the whole; size: nobody. */
static uint32_t owner_of(const pieces_t *p, uint32_t size, uint64_t i, uint64_t *part)
{
    for (uint32_t o = 0; o < size; o++)
        for (uint64_t k = 0; k < p->rows[o].count; k++) {
            const lh_coll_segment_t *s = &p->segments[o][k];
            if (i < s->whole || i >= s->whole + s->count) continue;
            *part = s->part + (i - s->whole);
            return o;
        }
    return size;
}

/* ---- calls ---- */

typedef struct call {
    uint32_t op;
    lh_dtype_t dtype;
    bool in_part, add;
} call_t;

/* What element i of the whole must be after the call, on this rank, and of the part where one is
 * written; NaN: as before. */
static float wanted(const rank_t *r, const call_t *c, uint32_t owner, uint64_t i, float before)
{
    float sum = 0;
    for (uint32_t k = 0; k < r->size; k++)
        sum += number(k, i);
    switch (c->op) {
    case LH_COLL_ALL_REDUCE: return sum;
    case LH_COLL_REDUCE_SCATTER: return owner != r->self ? before : c->add ? before + sum : sum;
    case LH_COLL_ALL_GATHER: return number(owner, i);
    case LH_COLL_SEND: return before;
    default: return number(0, i); /* from rank 0 */
    }
}

static void check_whole(rank_t *r, const call_t *c, const pieces_t *p, const char *what)
{
    const uint64_t bytes = ELEMENTS * lh_dtype_bytes(c->dtype);
    move(r, &r->host, &r->whole, bytes);
    for (uint64_t i = 0; i < ELEMENTS; i++) {
        uint64_t part;
        const uint32_t owner = owner_of(p, r->size, i, &part);
        const float before = number(r->self, i);
        float want = owner == r->size ? before : wanted(r, c, owner, i, before);
        if (c->in_part && c->op == LH_COLL_REDUCE_SCATTER) want = before;
        const float found = get(r->host.address, c->dtype, i);
        if (found == want) continue;
        fprintf(stderr, "%s: rank %u of %u, op %u, dtype %u: element %llu is %g, expected %g\n",
                what, r->self, r->size, c->op, c->dtype, (unsigned long long)i, (double)found,
                (double)want);
        _exit(1);
    }
}

static void check_part(rank_t *r, const call_t *c, const pieces_t *p)
{
    move(r, &r->host, &r->part, ELEMENTS * lh_dtype_bytes(c->dtype));
    for (uint64_t i = 0; i < ELEMENTS; i++) {
        uint64_t part = 0;
        if (owner_of(p, r->size, i, &part) != r->self) continue;
        const float before = number(r->self + 40, part);
        const float want = wanted(r, c, r->self, i, before);
        WANT(get(r->host.address, c->dtype, part) == want);
    }
}

/* Twice, as a run must leave nothing behind for the next. */
static void call_check(rank_t *r, const call_t *c, const pieces_t *p, const char *what)
{
    lh_coll_t row = {.struct_size = sizeof(row),
                     .op = c->op,
                     .dtype = c->dtype,
                     .root = c->op == LH_COLL_SEND ? 1 : 0,
                     .add = c->add,
                     .pieces = p->rows,
                     .whole = r->whole,
                     .workspace = r->workspace};
    if (c->in_part) row.part = r->part;
    WANT(r->api->offers(r->transport, "cuda", c->op, c->dtype));
    WANT(r->api->workspace(r->transport, &row, r->self, r->size) <= 4 * ELEMENTS * sizeof(float));
    for (int turn = 0; turn < 2; turn++) {
        for (uint64_t i = 0; i < ELEMENTS; i++)
            put(r->host.address, c->dtype, i, number(r->self, i));
        move(r, &r->whole, &r->host, ELEMENTS * lh_dtype_bytes(c->dtype));
        for (uint64_t i = 0; i < ELEMENTS; i++)
            put(r->host.address, c->dtype, i, number(r->self + 40, i));
        if (c->op == LH_COLL_ALL_GATHER) /* the part holds what the whole would */
            for (uint64_t i = 0; i < ELEMENTS; i++) {
                uint64_t part = 0;
                if (owner_of(p, r->size, i, &part) == r->self)
                    put(r->host.address, c->dtype, part, number(r->self, i));
            }
        move(r, &r->part, &r->host, ELEMENTS * lh_dtype_bytes(c->dtype));
        WANT(r->api->enqueue(r->group, &row, &r->queue) == LH_OK);
        check_whole(r, c, p, what);
        if (c->in_part && c->op == LH_COLL_REDUCE_SCATTER) check_part(r, c, p);
    }
}

/* ---- scenes, each in `size` processes ---- */

static void every_call(rank_t *r)
{
    static const struct {
        const char *name;
        uint32_t count;
        uint64_t length, gap;
        bool uneven;
    } shapes[] = {
        {"gaps", 7, 33, 5, false},           {"uneven", 9, 17, 1, true},
#ifndef __SANITIZE_THREAD__ /* which takes minutes for the kernels' fibers */
        {"one run", 1, 100, 0, false},       {"one element each", 1, 1, 0, false},
        {"many", 300, 1, 1, false},          {"neighbours in turn", 12, 16, 0, false},
        {"uneven, no gaps", 3, 64, 0, true},
#endif
    };
    static const lh_dtype_t dtypes[] = {LH_DTYPE_F32, LH_DTYPE_BF16, LH_DTYPE_U8};
    WANT(rank_join(r) == LH_OK);
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        pieces_t p;
        pieces_make(&p, r->size, shapes[s].count, shapes[s].length, shapes[s].gap,
                    shapes[s].uneven);
        for (size_t d = 0; d < 3; d++) {
            const bool sums = dtypes[d] != LH_DTYPE_U8;
            for (uint32_t variant = 0; variant < 4; variant++) {
                const call_t scatter = {LH_COLL_REDUCE_SCATTER, dtypes[d], variant & 1,
                                        variant & 2};
                if (sums) call_check(r, &scatter, &p, shapes[s].name);
            }
            for (uint32_t in_part = 0; in_part < 2; in_part++)
                call_check(r, &(call_t){LH_COLL_ALL_GATHER, dtypes[d], in_part, false}, &p,
                           shapes[s].name);
            if (sums)
                call_check(r, &(call_t){LH_COLL_ALL_REDUCE, dtypes[d], false, false}, &p,
                           shapes[s].name);
            call_check(r, &(call_t){LH_COLL_BROADCAST, dtypes[d], false, false}, &p,
                       shapes[s].name);
            if (r->size == 2)
                call_check(
                    r,
                    &(call_t){r->self == 0 ? LH_COLL_SEND : LH_COLL_RECV, dtypes[d], false, false},
                    &p, shapes[s].name);
        }
    }
    WANT(!r->api->offers(r->transport, "cuda", LH_COLL_ALL_REDUCE, LH_DTYPE_U8));
    WANT(!r->api->offers(r->transport, "threads", LH_COLL_ALL_REDUCE, LH_DTYPE_F32));
}

/* Rank 0 waits for others that never call. */
static void a_cancel(rank_t *r)
{
    pieces_t p;
    struct timespec begun, now;
    WANT(rank_join(r) == LH_OK);
    pieces_make(&p, r->size, 3, 10, 1, false);
    const lh_coll_t row = {.struct_size = sizeof(row),
                           .op = LH_COLL_ALL_REDUCE,
                           .dtype = LH_DTYPE_F32,
                           .pieces = p.rows,
                           .whole = r->whole,
                           .workspace = r->workspace};
    if (r->self == 0) {
        WANT(r->api->enqueue(r->group, &row, &r->queue) == LH_OK);
        WANT(r->rig.api->record(r->rig.stream, r->rig.event) == LH_OK);
        WANT(r->rig.api->test(r->rig.event, 20000000) == LH_AGAIN);
        (void)clock_gettime(CLOCK_MONOTONIC, &begun);
        r->api->cancel(r->group);
        WANT(r->rig.api->test(r->rig.event, minute_ns) == LH_OK);
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        WANT((now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000 < 5000);
        WANT(r->api->test(r->group) == LH_CANCELLED);
    }
    barrier(r);
}

/* Ranks that call with other sizes: each is told at its next call. */
static void a_difference(rank_t *r)
{
    pieces_t p;
    lh_status_t status = LH_OK;
    WANT(rank_join(r) == LH_OK);
    pieces_make(&p, r->size, 1, 10 + r->self, 0, false);
    const lh_coll_t row = {.struct_size = sizeof(row),
                           .op = LH_COLL_ALL_REDUCE,
                           .dtype = LH_DTYPE_F32,
                           .pieces = p.rows,
                           .whole = r->whole,
                           .workspace = r->workspace};
    WANT(r->api->enqueue(r->group, &row, &r->queue) == LH_OK);
    queue_finish(r);
    status = r->api->enqueue(r->group, &row, &r->queue);
    WANT(status == LH_DEVICE_LOST && strstr(rig_reason(), "NCCL fails in") != NULL);
    r->api->cancel(r->group);
    barrier(r);
}

/* One of every call, until one fails. Of a group of two rank 0 calls and rank 1 looks on. */
static lh_status_t each_once(rank_t *r)
{
    static const uint32_t alone[] = {LH_COLL_ALL_REDUCE, LH_COLL_REDUCE_SCATTER, LH_COLL_ALL_GATHER,
                                     LH_COLL_BROADCAST};
    static const uint32_t pair[] = {LH_COLL_SEND, LH_COLL_RECV};
    const uint32_t *ops = r->size == 1 ? alone : pair, count = r->size == 1 ? 4 : 2;
    pieces_t p;
    lh_status_t status = LH_OK;
    if (r->self == 0) {
        status = r->api->new_token(r->transport, &r->table->token);
        if (status != LH_OK) return status;
    }
    barrier(r);
    status = r->api->join(r->transport, &r->table->token, r->self, r->size, &r->queue, &r->group);
    if (status == LH_OK) status = LH_AGAIN;
    while (status == LH_AGAIN)
        status = r->api->test(r->group);
    pieces_make(&p, r->size, 2, 10, 1, false);
    for (uint32_t i = 0; i < count && status == LH_OK && r->self == 0; i++) {
        const lh_coll_t row = {.struct_size = sizeof(row),
                               .op = ops[i],
                               .dtype = LH_DTYPE_F32,
                               .root = r->size - 1,
                               .pieces = p.rows,
                               .whole = r->whole,
                               .workspace = r->workspace};
        status = r->api->enqueue(r->group, &row, &r->queue);
    }
    return status;
}

/* Which GPU, where, in which call, and what came before it. */
static void a_failure(rank_t *r)
{
    const char *said = rig_reason();
    const bool acts = r->self == 0;
    const lh_status_t status = each_once(r);
    if (acts) {
        WANT(status == LH_DEVICE_LOST || status == LH_NO_DEVICE);
        WANT(strstr(said, "NCCL fails in ") != NULL && strstr(said, r->failing) != NULL);
        if (r->group != NULL) {
            WANT(
                strstr(said, "GPU 0 (Fake GPU 9.0, 0000:1b:00.0) of rank 0 on rig, number 0 of ") ==
                said);
            WANT(strstr(said, strstr(r->failing, "Comm") != NULL ? "last queued: nothing"
                                                                 : "last queued: ") != NULL);
        }
    }
    if (r->group != NULL) r->api->cancel(r->group);
    queue_finish(r); /* what was packed before the call */
}

/* As NCCL says it of two ranks on one GPU: nothing is lost, and a start would end alike. */
static void a_refusal(rank_t *r)
{
    WANT(each_once(r) == LH_INVALID);
    WANT(strstr(rig_reason(), "NCCL fails in ncclCommInitRankConfig") != NULL);
}

static const char *failing; /* what run_scene's ranks get */

static void run_scene(void (*scene)(rank_t *r), uint32_t size)
{
    pid_t pids[RANKS];
    table_t *table = mmap(NULL, sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                          -1, 0);
    assert_true(table != MAP_FAILED);
    for (uint32_t k = 0; k < size; k++) {
        pids[k] = fork();
        assert_true(pids[k] >= 0);
        if (pids[k] != 0) continue;
        static rank_t r;
        r = (rank_t){.self = k, .size = size, .failing = failing, .table = table};
        rank_open(&r);
        scene(&r);
        barrier(&r); /* nobody leaves while another still reads */
        rank_close(&r);
        exit(0);
    }
    for (uint32_t k = 0; k < size; k++) {
        int how;
        assert_int_equal(waitpid(pids[k], &how, 0), pids[k]);
        if (how != 0)
            for (uint32_t o = 0; o < size; o++)
                (void)kill(pids[o], SIGKILL);
        assert_int_equal(how, 0);
    }
    (void)munmap(table, sizeof(*table));
}

static void a_group_of_one_gives_what_it_must(void **state)
{
    (void)state;
    run_scene(every_call, 1);
}

static void calls_give_what_they_must(void **state)
{
    (void)state;
    run_scene(every_call, 2);
    run_scene(every_call, 3);
}

static void a_cancel_ends_what_waits_for_others(void **state)
{
    (void)state;
    run_scene(a_cancel, 2);
}

static void ranks_that_differ_are_told(void **state)
{
    (void)state;
    run_scene(a_difference, 2);
}

static void a_group_that_is_refused_is_not_lost(void **state)
{
    (void)state;
    failing = "ncclCommInitRankConfig:1:5";
    run_scene(a_refusal, 1);
    failing = NULL;
}

static void any_call_may_fail_and_names_gpu_host_and_last_call(void **state)
{
    (void)state;
    static const char *const alone[] = {
        "ncclGetUniqueId",   "ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclAllReduce",
        "ncclReduceScatter", "ncclAllGather",          "ncclBroadcast"};
    static const char *const pair[] = {"ncclSend", "ncclRecv"};
    for (size_t i = 0; i < sizeof(alone) / sizeof(alone[0]); i++) {
        failing = alone[i];
        run_scene(a_failure, 1);
    }
    for (size_t i = 0; i < sizeof(pair) / sizeof(pair[0]); i++) {
        failing = pair[i];
        run_scene(a_failure, 2);
    }
    failing = NULL;
}

int main(void)
{
    const struct CMUnitTest on_gpu[] = {cmocka_unit_test(a_group_of_one_gives_what_it_must)};
    if (rig_on_gpu()) return cmocka_run_group_tests(on_gpu, NULL, NULL);
    if (getenv("LD_LIBRARY_PATH") == NULL || strstr(getenv("LD_LIBRARY_PATH"), "fake_cuda") == NULL)
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_of_one_gives_what_it_must),
        cmocka_unit_test(calls_give_what_they_must),
        cmocka_unit_test(a_cancel_ends_what_waits_for_others),
        cmocka_unit_test(ranks_that_differ_are_told),
        cmocka_unit_test(a_group_that_is_refused_is_not_lost),
        cmocka_unit_test(any_call_may_fail_and_names_gpu_host_and_last_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
