/* steady_step_test.c - counts every heap allocation of the process during steady steps, by who
 * asked: none may be ours. What oneDNN and its run-time libraries allocate is told apart. */
#include "golden.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <base/memory.h>
#include <engine/model_program.h>
#include <engine/program.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_MALLOC 0 /* the sanitizer has its own */
#else
#define COUNTS_MALLOC 1
#endif

enum { CALLERS = 4096, ROW = GOLDEN_SEQUENCE + 1 };
static void *callers[CALLERS];
static _Atomic uint32_t caller_count;
static _Atomic bool counting;

#if COUNTS_MALLOC
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static void note(void *caller)
{
    if (!counting) return;
    const uint32_t at = caller_count++;
    if (at < CALLERS) callers[at] = caller;
}

void *malloc(size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t size)
{
    note(__builtin_return_address(0));
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    note(__builtin_return_address(0));
    *memory = __libc_memalign(alignment, bytes);
    return *memory == NULL ? 12 : 0;
}
#endif

/* oneDNN, and what it calls: the OpenMP and C++ run-time libraries. */
static bool is_library(const void *caller)
{
    static const char *const libraries[] = {"libdnnl", "libgomp", "libstdc++"};
    Dl_info info;
    if (dladdr(caller, &info) == 0 || info.dli_fname == NULL) return false;
    for (uint32_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++)
        if (strstr(info.dli_fname, libraries[i]) != NULL) return true;
    return false;
}

static void report(uint32_t steps)
{
    const uint32_t count = caller_count < CALLERS ? caller_count : CALLERS;
    uint32_t ours = 0;
    for (uint32_t i = 0; i < count; i++) {
        Dl_info info = {0};
        if (is_library(callers[i])) continue;
        ours++;
        (void)dladdr(callers[i], &info);
        print_error("allocation from %s, %s\n", info.dli_fname != NULL ? info.dli_fname : "?",
                    info.dli_sname != NULL ? info.dli_sname : "?");
    }
    print_message("%s: %u allocations a step in libraries\n", rig_device(), (count - ours) / steps);
    assert_int_equal(ours, 0);
}

static void steps_run(program_t *train, program_t *update, const int32_t *batch, uint32_t from,
                      uint32_t to)
{
    for (uint32_t step = from; step < to; step++) {
        counting = false; /* the rig makes the batch on the heap; giving it is the engine's */
        rig_batch(train, batch, 2, GOLDEN_SEQUENCE, GOLDEN_BATCH * GOLDEN_SEQUENCE);
        const uint64_t before = mem_count();
        counting = from > 0;
        OK(program_run(train, 0));
        OK(program_run(train, 1));
        (void)rig_loss(train);
        (void)rig_step(update, step + 1, 1e-3, 1.0, NULL);
        counting = false;
        if (from > 0) assert_int_equal(mem_count(), before);
    }
}

static void a_steady_step_allocates_nothing(void **state)
{
    (void)state;
    const golden_model_t *m = &golden_models[0];
    const lh_dtype_t dtypes[] = {LH_DTYPE_F32, LH_DTYPE_BF16};
    for (uint32_t d = 0; d < 2; d++) {
        rig_t rig;
        int32_t batch[GOLDEN_BATCH * ROW];
        golden_batch(m, 0, batch);
        rig_open(&rig, m->plugin, m->options, dtypes[d]);
        program_t *update = rig_update(&rig, 0.1), *train = NULL;
        const program_how_t how = {
            .use = USE_TRAIN, .sequences = 2, .rows = GOLDEN_SEQUENCE, .head_chunk = 48};
        OK(program_new(rig.engine, rig.weights, &how, &train));
        OK(engine_build(rig.engine));
        golden_weights(m, &rig);
        steps_run(train, update, batch, 0, 2);
        caller_count = 0;
        steps_run(train, update, batch, 2, 6);
        report(4);
        rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_steady_step_allocates_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
