/* host_run.cc - fibers that meet at barriers: the scheduler behind host_run.h.
 *
 * Threads of a block run on workers, each a stack of its own; one that ends hands its worker to the
 * next thread, so a kernel without barriers takes a single stack, and no switch between the lanes of a
 * warp. On x86-64 a switch saves the six
 * registers that a call must keep; elsewhere ucontext does it, with a system call each time. The
 * sanitizers are told of every switch. */
#include "host_run.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#define HOST_ASAN 1
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#define HOST_TSAN 1
#include <sanitizer/tsan_interface.h>
#endif

thread_local host_dim host_thread, host_block, host_threads, host_blocks;

#if defined(__x86_64__)
/* Saves the registers and the stack pointer in *save and goes on where `to` was saved. */
extern "C" void cuda_host_switch(void **save, void *to) __attribute__((visibility("hidden")));
asm(".text\n"
    ".type cuda_host_switch,@function\n"
    ".globl cuda_host_switch\n"
    ".hidden cuda_host_switch\n"
    "cuda_host_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size cuda_host_switch,.-cuda_host_switch\n");
#endif

namespace
{

enum { LANES = 32, WORDS = 8, STACK_BYTES = 64 << 10 };

/* Where a flow of control stands while another runs. */
struct context {
#if defined(__x86_64__)
    void *stack_pointer = nullptr;
#else
    ucontext_t machine;
#endif
    char *stack = nullptr; /* NULL: the calling thread's own */
    const void *bottom = nullptr;
    size_t bytes = 0;
    void *fake = nullptr;  /* the address sanitizer's stack */
    void *fiber = nullptr; /* the thread sanitizer's name for it */
};

enum lane_state { READY, AT_WARP, AT_BLOCK, DONE };

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    uint32_t group;
};

struct lane {
    lane_state state = READY;
    context *worker = nullptr; /* NULL: not begun, or ended */
    host_dim at = {0, 0, 0};
    uint32_t calls = 0; /* of shuffles and ballots: two buffers take turns */
    std::vector<copy> copies;
    uint32_t groups = 0; /* of copies, closed */
};

/* One launch, of this thread. */
struct launch {
    void (*kernel)(const void *) = nullptr;
    const void *params = nullptr;
    std::vector<lane> lanes;
    std::vector<uint32_t> exchange; /* [warps, 2, LANES] */
    std::vector<uint32_t> brought;  /* [warps, 2, LANES]: the call that wrote the word */
    std::vector<uint32_t> words;    /* [warps, 2, LANES, WORDS] */
    char *shared = nullptr;
    context scheduler;
    unsigned current = 0;
};

/* Stacks that stay from launch to launch. */
struct pool {
    std::vector<context *> idle;
    ~pool()
    {
        for (context *c : idle) {
#if defined(HOST_TSAN)
            __tsan_destroy_fiber(c->fiber);
#endif
            free(c->stack);
            delete c;
        }
    }
};

thread_local launch *now;
thread_local pool workers;
thread_local uint32_t order;

/* The first words on every stack that is gone to. */
void context_arrive([[maybe_unused]] context *self)
{
#if defined(HOST_ASAN)
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(self->fake, &bottom, &bytes);
    if (self != &now->scheduler) { /* whoever came here was the scheduler */
        now->scheduler.bottom = bottom;
        now->scheduler.bytes = bytes;
    }
#endif
}

void context_switch(context *from, context *to)
{
#if defined(HOST_ASAN)
    __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->bytes);
#endif
#if defined(HOST_TSAN)
    __tsan_switch_to_fiber(to->fiber, 0);
#endif
#if defined(__x86_64__)
    cuda_host_switch(&from->stack_pointer, to->stack_pointer);
#else
    swapcontext(&from->machine, &to->machine);
#endif
    context_arrive(from);
}

/* The lane that warp_run() would run next has not begun: the worker of the one that has ended goes on
 * with it. */
bool lane_follow(context *worker)
{
    const unsigned count = static_cast<unsigned>(now->lanes.size()), lane_of = now->current % LANES;
    if (order == 0 ? lane_of + 1 == LANES || now->current + 1 == count : lane_of == 0) return false;
    const unsigned next = order == 0 ? now->current + 1 : now->current - 1;
    if (now->lanes[next].state != READY || now->lanes[next].worker != nullptr) return false;
    now->lanes[now->current].worker = nullptr;
    now->lanes[next].worker = worker;
    now->current = next;
    host_thread = now->lanes[next].at;
    return true;
}

/* A worker's life: one thread of a block after the other. */
void worker_main()
{
    context *self = now->lanes[now->current].worker;
    context_arrive(self);
    for (;;) {
        now->kernel(now->params);
        if (!now->lanes[now->current].copies.empty()) {
            fprintf(stderr, "host_run: a thread ends before copies that it has begun\n");
            abort();
        }
        now->lanes[now->current].state = DONE;
        if (!lane_follow(self)) context_switch(self, &now->scheduler);
    }
}

context *worker_new()
{
    context *c = new context;
    c->stack = static_cast<char *>(aligned_alloc(64, STACK_BYTES));
    if (c->stack == nullptr) abort();
    c->bottom = c->stack;
    c->bytes = STACK_BYTES;
#if defined(HOST_TSAN)
    c->fiber = __tsan_create_fiber(0);
#endif
#if defined(__x86_64__)
    /* Six registers, the address that `ret` takes, and the word that a caller would have left, so that
     * the stack is aligned as at the entry of a function. */
    void **top = reinterpret_cast<void **>(c->stack + STACK_BYTES) - 2;
    top[0] = reinterpret_cast<void *>(worker_main);
    top[1] = nullptr;
    for (int i = 1; i <= 6; i++)
        top[-i] = nullptr;
    c->stack_pointer = top - 6;
#else
    getcontext(&c->machine);
    c->machine.uc_stack.ss_sp = c->stack;
    c->machine.uc_stack.ss_size = STACK_BYTES;
    c->machine.uc_link = nullptr;
    makecontext(&c->machine, worker_main, 0);
#endif
    return c;
}

/* Runs one thread until it waits or ends; where it ends, those of its warp behind it that have not begun,
 * up to one that waits. */
void lane_run(unsigned index)
{
    lane *l = &now->lanes[index];
    if (l->worker == nullptr) {
        if (workers.idle.empty()) workers.idle.push_back(worker_new());
        l->worker = workers.idle.back();
        workers.idle.pop_back();
    }
    now->current = index;
    host_thread = l->at;
    context_switch(&now->scheduler, l->worker);
    l = &now->lanes[now->current]; /* the last that ran */
    if (l->state != DONE) return;
    workers.idle.push_back(l->worker);
    l->worker = nullptr;
}

/* Runs the lanes [first, end) of a warp until all are at the block's barrier or have ended. */
void warp_run(unsigned first, unsigned end)
{
    for (;;) {
        unsigned at_warp = 0, at_block = 0, done = 0;
        for (unsigned i = 0; i < end - first; i++) {
            const unsigned index = order == 0 ? first + i : end - 1 - i;
            lane *l = &now->lanes[index];
            if (l->state == READY) lane_run(index);
            at_warp += l->state == AT_WARP;
            at_block += l->state == AT_BLOCK;
            done += l->state == DONE;
        }
        if (at_block + done == end - first) return;
        if (at_warp + done != end - first) {
            fprintf(stderr, "host_run: lanes of a warp wait at unlike barriers\n");
            abort();
        }
        for (unsigned i = first; i < end; i++)
            if (now->lanes[i].state == AT_WARP) now->lanes[i].state = READY;
    }
}

void block_run(uint32_t shared_bytes)
{
    const unsigned count = static_cast<unsigned>(now->lanes.size());
    const unsigned warps = (count + LANES - 1) / LANES;
    unsigned waiting;

    if (shared_bytes > 0) memset(now->shared, 0xff, shared_bytes);
    for (unsigned i = 0; i < count; i++) {
        lane *l = &now->lanes[i];
        l->state = READY;
        l->calls = 0;
        l->copies.clear();
        l->groups = 0;
        l->at.x = i % host_threads.x;
        l->at.y = i / host_threads.x % host_threads.y;
        l->at.z = i / host_threads.x / host_threads.y;
    }
    do {
        waiting = 0;
        for (unsigned w = 0; w < warps; w++) {
            const unsigned warp = order == 0 ? w : warps - 1 - w;
            const unsigned end = (warp + 1) * LANES < count ? (warp + 1) * LANES : count;
            warp_run(warp * LANES, end);
        }
        for (lane &l : now->lanes) {
            if (l.state != AT_BLOCK) continue;
            l.state = READY;
            waiting++;
        }
    } while (waiting > 0);
}

void lane_wait(lane_state state)
{
    lane *l = &now->lanes[now->current];
    const host_dim at = l->at;
    l->state = state;
    context_switch(l->worker, &now->scheduler);
    host_thread = at;
}

/* Leaves a word for the warp's other lanes; they find it at [lane] once all have met. */
uint32_t *lane_bring(uint32_t value, uint32_t **brought, uint32_t *call)
{
    lane *l = &now->lanes[now->current];
    const size_t at = (now->current / LANES * 2 + l->calls % 2) * LANES;
    *call = ++l->calls;
    *brought = &now->brought[at];
    now->exchange[at + now->current % LANES] = value;
    now->brought[at + now->current % LANES] = *call;
    lane_wait(AT_WARP);
    return &now->exchange[at];
}

} // namespace

void host_barrier_block()
{
    lane_wait(AT_BLOCK);
}

void host_barrier_warp()
{
    lane_wait(AT_WARP);
}

unsigned host_lane()
{
    return now->current % LANES;
}

void *host_shared()
{
    return now->shared;
}

uint32_t host_shuffle(uint32_t value, unsigned from)
{
    uint32_t *brought, call;
    const uint32_t *words = lane_bring(value, &brought, &call);
    /* On a GPU the word of a lane that has ended is undefined: as good as a mistake. */
    if (brought[from % LANES] != call) {
        fprintf(stderr, "host_run: a lane asks for the word of one that did not bring any\n");
        abort();
    }
    return words[from % LANES];
}

uint32_t host_ballot(bool bit)
{
    uint32_t *brought, call, bits = 0;
    const uint32_t *words = lane_bring(bit, &brought, &call);
    for (unsigned i = 0; i < LANES; i++)
        if (brought[i] == call && words[i] != 0) bits |= 1u << i;
    return bits;
}

const uint32_t *host_words(const uint32_t *words, unsigned count)
{
    uint32_t *brought, call;
    const size_t side = now->lanes[now->current].calls % 2;
    uint32_t *all = &now->words[(now->current / LANES * 2 + side) * LANES * WORDS];
    memcpy(all + now->current % LANES * count, words, count * sizeof(*words));
    lane_bring(0, &brought, &call);
    return all;
}

void host_copy_begin(void *to, const void *from, size_t bytes)
{
    lane *l = &now->lanes[now->current];
    l->copies.push_back({to, from, bytes, l->groups});
}

void host_copy_group()
{
    now->lanes[now->current].groups++;
}

void host_copy_wait(unsigned behind)
{
    lane *l = &now->lanes[now->current];
    std::vector<copy> later;
    for (const copy &c : l->copies) {
        if (c.group + behind < l->groups)
            memcpy(c.to, c.from, c.bytes);
        else
            later.push_back(c);
    }
    l->copies.swap(later);
}

void host_run_order(uint32_t wanted)
{
    order = wanted;
}

void host_run(const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
              void (*kernel)(const void *params), const void *params)
{
    launch mine;
    const unsigned threads = block[0] * block[1] * block[2];
    const uint64_t blocks = static_cast<uint64_t>(grid[0]) * grid[1] * grid[2];

    now = &mine;
    mine.kernel = kernel;
    mine.params = params;
    mine.lanes.resize(threads);
    mine.exchange.resize((threads + LANES - 1) / LANES * 2 * LANES);
    mine.brought.resize(mine.exchange.size());
    mine.words.resize(mine.exchange.size() * WORDS);
    /* 16 bytes more than a size that 16 divides is what no kernel may touch: malloc's own end. */
    mine.shared = static_cast<char *>(aligned_alloc(16, (shared_bytes + 15) / 16 * 16 + 16));
    if (mine.shared == nullptr) abort();
#if defined(HOST_TSAN)
    mine.scheduler.fiber = __tsan_get_current_fiber();
#endif
    host_threads = {block[0], block[1], block[2]};
    host_blocks = {grid[0], grid[1], grid[2]};
    for (uint64_t i = 0; i < blocks; i++) {
        const uint64_t b = order == 0 ? i : blocks - 1 - i;
        host_block.x = static_cast<unsigned>(b % grid[0]);
        host_block.y = static_cast<unsigned>(b / grid[0] % grid[1]);
        host_block.z = static_cast<unsigned>(b / grid[0] / grid[1]);
        std::fill(mine.brought.begin(), mine.brought.end(), 0u);
        block_run(shared_bytes);
    }
    free(mine.shared);
    now = nullptr;
}
