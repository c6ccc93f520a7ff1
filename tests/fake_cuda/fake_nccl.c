/* fake_nccl.c - NCCL between processes of one machine, in memory that they share: the same file as
 * libcuda, as collectives are work of its queues.
 *
 * Rank 0's id names a memfd of its process, which the others open by /proc: nothing is left in the file
 * system, whoever is killed. An operation is two items of its stream: one copies what this rank gives into
 * its own part of the memory, once all are through with the operation before; the other, once all have
 * given, computes. Both are polled, so other streams go on. Sums are in F32 and in the order of ranks.
 *
 * Kept of the real one: a communicator is joined some time after its call has returned; a call on one that
 * is not there yet is refused; an operation waits for ever for a rank that has died, until it is aborted;
 * ranks that call different operations get an error. LH_FAKE_CUDA knows nccl=22809, the version,
 * and nccl_us=0, which an operation takes longer from when this rank has given. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <longhaul/dtype.h>

#include "../../plugins/transports/nvlink/nccl_api.h"
#include "fake_cuda.h"

enum { RANKS = 16, PAGE = 4096, JOIN_POLLS = 3 };
static const uint64_t part_bytes = (uint64_t)64
                                   << 20; /* of a rank; pages come when they are written */

typedef struct member {
    _Alignas(64) _Atomic uint64_t given, taken; /* operations */
    uint64_t kind;                              /* of the last given: op, type, root */
    uint64_t bytes;
} member_t;

typedef struct meeting { /* at the start of the memory */
    _Atomic uint32_t joined;
    member_t members[RANKS];
} meeting_t;

typedef struct place {
    int pid, fd;
    uint64_t magic;
} place_t;

struct ncclComm {
    meeting_t *meeting;
    uint32_t rank, size, polls;
    uint64_t queued; /* operations */
    uint64_t due_ns; /* of the one under way: not over before */
    _Atomic int error;
    _Atomic bool aborted;
};

enum { OP_REDUCE, OP_SCATTER, OP_GATHER, OP_BROADCAST, OP_PAIR };

typedef struct operation {
    nccl_comm_t comm;
    uint32_t op, type, root;
    uint64_t number;
    cuda_address_t in, out; /* 0: gives, or gets, nothing */
    uint64_t count;         /* elements, of a piece where pieces are cut */
} operation_t;

static const uint64_t magic = 0x6c6f6e676861756cu;

static uint64_t meeting_bytes(void)
{
    return (sizeof(meeting_t) + PAGE - 1) / PAGE * PAGE + RANKS * part_bytes;
}

static char *part_of(const operation_t *o, uint32_t rank)
{
    return (char *)o->comm->meeting + (sizeof(meeting_t) + PAGE - 1) / PAGE * PAGE +
           rank * part_bytes;
}

static uint64_t wide(uint32_t type)
{
    static const uint8_t bytes[] = {[NCCL_INT8] = 1,
                                    [NCCL_FLOAT16] = 2,
                                    [NCCL_FLOAT32] = 4,
                                    [NCCL_FLOAT64] = 8,
                                    [NCCL_BFLOAT16] = 2};
    return bytes[type];
}

/* ---- communicators ---- */

FAKE_EXPORT nccl_result_t ncclGetVersion(int *version)
{
    *version = (int)fake.nccl;
    return NCCL_OK;
}

FAKE_EXPORT const char *ncclGetErrorString(nccl_result_t result)
{
    return result == NCCL_REMOTE_ERROR ? "remote process exited or there was a network error"
                                       : "as the fake was told";
}

FAKE_EXPORT nccl_result_t ncclGetUniqueId(nccl_id_t *out)
{
    FAKE_MAY_FAIL(ncclGetUniqueId);
    const place_t id = {
        .pid = getpid(), .fd = memfd_create("fake_nccl", MFD_CLOEXEC), .magic = magic};
    if (id.fd < 0 || ftruncate(id.fd, (off_t)meeting_bytes()) != 0) return NCCL_INVALID_USAGE;
    memset(out, 0, sizeof(*out));
    memcpy(out->bytes, &id, sizeof(id));
    return NCCL_OK;
}

static meeting_t *meeting_map(const place_t *id, bool own)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", id->pid, id->fd);
    const int fd = own ? id->fd : open(path, O_RDWR | O_CLOEXEC);
    void *found = fd < 0 ? MAP_FAILED
                         : mmap(NULL, meeting_bytes(), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (fd >= 0 && !own) (void)close(fd);
    return found == MAP_FAILED ? NULL : found;
}

FAKE_EXPORT nccl_result_t ncclCommInitRankConfig(nccl_comm_t *out, int size, nccl_id_t name,
                                                 int rank, nccl_config_t *config)
{
    FAKE_MAY_FAIL(ncclCommInitRankConfig);
    place_t id;
    memcpy(&id, name.bytes, sizeof(id));
    if (config->magic != NCCL_MAGIC || config->blocking != 0 || size < 1 || size > RANKS ||
        rank < 0 || rank >= size || id.magic != magic)
        return NCCL_INVALID_ARGUMENT;
    struct ncclComm made = {.rank = (uint32_t)rank,
                            .size = (uint32_t)size,
                            .meeting = meeting_map(&id, id.pid == getpid())};
    if (made.meeting == NULL) return NCCL_REMOTE_ERROR;
    pthread_mutex_lock(&fake.lock);
    nccl_comm_t c = fake_keep(&made, sizeof(made));
    pthread_mutex_unlock(&fake.lock);
    if (c == NULL) return NCCL_INVALID_USAGE;
    c->meeting->joined++;
    *out = c;
    return NCCL_IN_PROGRESS;
}

static bool comm_there(const struct ncclComm *c)
{
    return c->polls >= JOIN_POLLS && c->meeting->joined >= c->size;
}

FAKE_EXPORT nccl_result_t ncclCommGetAsyncError(nccl_comm_t c, nccl_result_t *out)
{
    FAKE_MAY_FAIL(ncclCommGetAsyncError);
    pthread_mutex_lock(&fake.lock);
    c->polls += c->polls < JOIN_POLLS;
    *out = c->error != NCCL_OK ? c->error : comm_there(c) ? NCCL_OK : NCCL_IN_PROGRESS;
    pthread_mutex_unlock(&fake.lock);
    return NCCL_OK;
}

/* Work that is queued sees the flag; the communicator itself stays for it. */
FAKE_EXPORT nccl_result_t ncclCommAbort(nccl_comm_t c)
{
    pthread_mutex_lock(&fake.lock);
    c->aborted = true;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
    return NCCL_OK;
}

FAKE_EXPORT nccl_result_t ncclCommDestroy(nccl_comm_t c)
{
    return ncclCommAbort(c);
}

/* ---- operations ---- */

static bool operation_is_over(const operation_t *o)
{
    return o->comm->aborted || o->comm->error != NCCL_OK;
}

static bool all_at(const operation_t *o, bool given, uint64_t number)
{
    for (uint32_t r = 0; r < o->comm->size; r++) {
        const member_t *m = &o->comm->meeting->members[r];
        if ((given ? m->given : m->taken) < number) return false;
    }
    return true;
}

static bool give_ready(const void *data)
{
    const operation_t *o = data;
    return operation_is_over(o) || all_at(o, false, o->number - 1);
}

static bool take_ready(const void *data)
{
    const operation_t *o = data;
    return operation_is_over(o) || (all_at(o, true, o->number) && fake_now_ns() >= o->comm->due_ns);
}

static uint64_t kind_of(const operation_t *o)
{
    return (uint64_t)o->op << 48 | (uint64_t)o->type << 32 |
           (o->op == OP_PAIR ? 0 : (uint64_t)o->root);
}

static uint64_t in_bytes(const operation_t *o)
{
    return o->count * wide(o->type) * (o->op == OP_SCATTER ? o->comm->size : 1);
}

/* Memory is looked up while the lock is held. */
static void *real_of(cuda_address_t address, uint64_t bytes)
{
    pthread_mutex_lock(&fake.lock);
    void *real = fake_real(address, bytes);
    pthread_mutex_unlock(&fake.lock);
    return real;
}

static cuda_result_t give_run(const void *data)
{
    const operation_t *o = data;
    member_t *m = &o->comm->meeting->members[o->comm->rank];
    if (operation_is_over(o)) return CUDA_OK;
    if (o->in != 0) {
        const void *in = real_of(o->in, in_bytes(o));
        if (in == NULL) return CUDA_ILLEGAL_ADDRESS;
        memcpy(part_of(o, o->comm->rank), in, in_bytes(o));
    }
    m->kind = kind_of(o);
    m->bytes = o->count;
    o->comm->due_ns = fake_now_ns() + fake.nccl_ns;
    m->given = o->number;
    return CUDA_OK;
}

static float element(const void *at, uint32_t type, uint64_t i)
{
    if (type == NCCL_FLOAT32) return ((const float *)at)[i];
    const uint16_t bits = ((const uint16_t *)at)[i];
    return type == NCCL_BFLOAT16 ? lh_bf16_to_f32(bits) : lh_f16_to_f32(bits);
}

static void element_put(void *at, uint32_t type, uint64_t i, float value)
{
    if (type == NCCL_FLOAT32)
        ((float *)at)[i] = value;
    else
        ((uint16_t *)at)[i] = type == NCCL_BFLOAT16 ? lh_f32_to_bf16(value) : lh_f32_to_f16(value);
}

static void sums_put(const operation_t *o, void *out, uint64_t first)
{
    for (uint64_t i = 0; i < o->count; i++) {
        float sum = element(part_of(o, 0), o->type, first + i);
        for (uint32_t r = 1; r < o->comm->size; r++)
            sum += element(part_of(o, r), o->type, first + i);
        element_put(out, o->type, i, sum);
    }
}

static void operation_put(const operation_t *o, void *out)
{
    const uint64_t bytes = o->count * wide(o->type);
    switch (o->op) {
    case OP_REDUCE: sums_put(o, out, 0); break;
    case OP_SCATTER: sums_put(o, out, o->comm->rank * o->count); break;
    case OP_GATHER:
        for (uint32_t r = 0; r < o->comm->size; r++)
            memcpy((char *)out + r * bytes, part_of(o, r), bytes);
        break;
    default: memcpy(out, part_of(o, o->root), bytes);
    }
}

static cuda_result_t take_run(const void *data)
{
    const operation_t *o = data;
    const member_t *mine = &o->comm->meeting->members[o->comm->rank];
    if (operation_is_over(o)) return CUDA_OK;
    for (uint32_t r = 0; r < o->comm->size; r++) {
        const member_t *m = &o->comm->meeting->members[r];
        if (m->kind == mine->kind && m->bytes == mine->bytes) continue;
        o->comm->error = NCCL_INVALID_USAGE;
        return CUDA_OK;
    }
    if (o->out != 0) {
        void *out = real_of(o->out,
                            o->count * wide(o->type) * (o->op == OP_GATHER ? o->comm->size : 1));
        if (out == NULL) return CUDA_ILLEGAL_ADDRESS;
        operation_put(o, out);
    }
    o->comm->meeting->members[o->comm->rank].taken = o->number;
    return CUDA_OK;
}

/* The number of a captured operation is that of each of its runs, so it is taken when it runs. */
static cuda_result_t number_run(const void *data)
{
    operation_t *const *o = data;
    (*o)->number = ++(*o)->comm->queued;
    return CUDA_OK;
}

/* Three items of one operation, which a graph runs again and again; its memory stays, as few are made. */
static nccl_result_t operation_queue(const operation_t *wanted, cuda_stream_t stream)
{
    if (fake_begin("nccl", true) != CUDA_OK) return NCCL_INVALID_USAGE;
    cuda_result_t result = CUDA_INVALID_VALUE;
    operation_t *o = NULL;
    if (comm_there(wanted->comm) && in_bytes(wanted) <= part_bytes)
        o = fake_keep(wanted, sizeof(*o));
    if (o != NULL) result = fake_push_work(stream, number_run, &o, sizeof(o));
    if (result == CUDA_OK) result = fake_push_polled(stream, give_run, give_ready, o);
    if (result == CUDA_OK) result = fake_push_polled(stream, take_run, take_ready, o);
    return fake_end(result) == CUDA_OK ? NCCL_OK : NCCL_INVALID_USAGE;
}

#define OPERATION(...) \
    operation_queue(&(operation_t){.comm = comm, .type = (uint32_t)type, __VA_ARGS__}, stream)

FAKE_EXPORT nccl_result_t ncclAllReduce(const void *in, void *out, size_t count, int type, int op,
                                        nccl_comm_t comm, cuda_stream_t stream)
{
    FAKE_MAY_FAIL(ncclAllReduce);
    if (op != NCCL_SUM) return NCCL_INVALID_ARGUMENT;
    return OPERATION(.op = OP_REDUCE, .in = (uintptr_t)in, .out = (uintptr_t)out, .count = count);
}

FAKE_EXPORT nccl_result_t ncclReduceScatter(const void *in, void *out, size_t count, int type,
                                            int op, nccl_comm_t comm, cuda_stream_t stream)
{
    FAKE_MAY_FAIL(ncclReduceScatter);
    if (op != NCCL_SUM) return NCCL_INVALID_ARGUMENT;
    return OPERATION(.op = OP_SCATTER, .in = (uintptr_t)in, .out = (uintptr_t)out, .count = count);
}

FAKE_EXPORT nccl_result_t ncclAllGather(const void *in, void *out, size_t count, int type,
                                        nccl_comm_t comm, cuda_stream_t stream)
{
    FAKE_MAY_FAIL(ncclAllGather);
    return OPERATION(.op = OP_GATHER, .in = (uintptr_t)in, .out = (uintptr_t)out, .count = count);
}

FAKE_EXPORT nccl_result_t ncclBroadcast(const void *in, void *out, size_t count, int type, int root,
                                        nccl_comm_t comm, cuda_stream_t stream)
{
    FAKE_MAY_FAIL(ncclBroadcast);
    return OPERATION(.op = OP_BROADCAST, .root = (uint32_t)root,
                     .in = comm->rank == (uint32_t)root ? (uintptr_t)in : 0, .out = (uintptr_t)out,
                     .count = count);
}

/* Of a group of two, where both ends are all that there are. */
FAKE_EXPORT nccl_result_t ncclSend(const void *in, size_t count, int type, int peer,
                                   nccl_comm_t comm, cuda_stream_t stream)
{
    FAKE_MAY_FAIL(ncclSend);
    if (comm->size != 2 || peer == (int)comm->rank) return NCCL_INVALID_ARGUMENT;
    return OPERATION(.op = OP_PAIR, .root = comm->rank, .in = (uintptr_t)in, .count = count);
}

FAKE_EXPORT nccl_result_t ncclRecv(void *out, size_t count, int type, int peer, nccl_comm_t comm,
                                   cuda_stream_t stream)
{
    FAKE_MAY_FAIL(ncclRecv);
    if (comm->size != 2 || peer == (int)comm->rank) return NCCL_INVALID_ARGUMENT;
    return OPERATION(.op = OP_PAIR, .root = (uint32_t)peer, .out = (uintptr_t)out, .count = count);
}
