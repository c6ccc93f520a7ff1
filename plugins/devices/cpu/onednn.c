/* onednn.c - the only file that knows oneDNN: its v2 C API (structs by value), as in 2.6, looked up
 * by name at run time, so that the plugin loads, and says why it can't run, without the library.
 *
 * A product is made once (descriptors, the library's choice of an implementation, generated code)
 * and executed every step with other addresses. The library's memory objects carry those, so each
 * lane has a set of its own, and threads may execute one product at the same time. */
#include "onednn.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>

#define ONEDNN_LIBRARY "libdnnl.so.2"

#define ONEDNN_CALLS(X)                        \
    X(dnnl_version)                            \
    X(dnnl_get_effective_cpu_isa)              \
    X(dnnl_engine_create)                      \
    X(dnnl_engine_destroy)                     \
    X(dnnl_stream_create)                      \
    X(dnnl_stream_destroy)                     \
    X(dnnl_stream_wait)                        \
    X(dnnl_memory_desc_init_by_strides)        \
    X(dnnl_memory_desc_get_size)               \
    X(dnnl_memory_create)                      \
    X(dnnl_memory_destroy)                     \
    X(dnnl_memory_set_data_handle)             \
    X(dnnl_post_ops_create)                    \
    X(dnnl_post_ops_destroy)                   \
    X(dnnl_post_ops_append_sum)                \
    X(dnnl_primitive_attr_create)              \
    X(dnnl_primitive_attr_destroy)             \
    X(dnnl_primitive_attr_set_post_ops)        \
    X(dnnl_primitive_attr_set_scratchpad_mode) \
    X(dnnl_matmul_desc_init)                   \
    X(dnnl_primitive_desc_create)              \
    X(dnnl_primitive_desc_destroy)             \
    X(dnnl_primitive_desc_query)               \
    X(dnnl_primitive_desc_query_md)            \
    X(dnnl_primitive_create)                   \
    X(dnnl_primitive_destroy)                  \
    X(dnnl_primitive_execute)

/* The library as one device has opened it; its functions are fields by their own names. */
struct onednn {
    const lh_host_t *host;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    bool bf16, prefers_bf16;
    char version[24];
#define ONEDNN_FIELD(name) __typeof__(name) *name;
    ONEDNN_CALLS(ONEDNN_FIELD)
#undef ONEDNN_FIELD
};

/* The arguments of a product, in the order of part_argument. */
enum { PART_A, PART_B, PART_BIAS, PART_C, PART_SCRATCH, PARTS };

struct onednn_matmul {
    onednn_t *library;
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    uint64_t scratch_bytes; /* of one lane */
    const char *name;
    uint32_t lanes;
    dnnl_memory_t memory[][PARTS]; /* of each lane; NULL: not part of this product */
};

static const int part_argument[PARTS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS,
                                         DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};

/* The library's status as ours. What it has not implemented is LH_UNSUPPORTED: another kernel may
 * do it. */
static lh_status_t onednn_check(const onednn_t *o, dnnl_status_t status, const char *what)
{
    if (status == dnnl_success) return LH_OK;
    if (status == dnnl_out_of_memory)
        return o->host->fail(o->host, LH_NO_MEMORY, "oneDNN ran out of memory in %s", what);
    return o->host->fail(o->host, status == dnnl_unimplemented ? LH_UNSUPPORTED : LH_IO,
                         "oneDNN says %d in %s", (int)status, what);
}

/* Opens the library, finds every function of the list, and refuses another major version, whose
 * structs differ. */
static lh_status_t onednn_load(onednn_t *o)
{
    const lh_host_t *host = o->host;
    void *library = dlopen(ONEDNN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return host->fail(host, LH_NO_DEVICE,
                          "the cpu device needs oneDNN 2 (%s; Debian's package libdnnl2): %s",
                          ONEDNN_LIBRARY, dlerror());

        /* The library is never closed: its threads outlive the device. */
#define ONEDNN_LOAD(name)                                                                 \
    {                                                                                     \
        void *found = dlsym(library, #name);                                              \
        if (found == NULL)                                                                \
            return host->fail(host, LH_NO_DEVICE, "%s has no %s", ONEDNN_LIBRARY, #name); \
        memcpy(&o->name, &found, sizeof(found));                                          \
    }
    ONEDNN_CALLS(ONEDNN_LOAD)
#undef ONEDNN_LOAD

    const dnnl_version_t *v = o->dnnl_version();
    snprintf(o->version, sizeof(o->version), "%d.%d.%d", v->major, v->minor, v->patch);
    /* Its structs go by value: another major version's are other ones. */
    if (v->major != DNNL_VERSION_MAJOR)
        return host->fail(host, LH_NO_DEVICE, "%s is oneDNN %s, this plugin was built for %d.x",
                          ONEDNN_LIBRARY, o->version, DNNL_VERSION_MAJOR);
    return LH_OK;
}

/* Whether BF16 instructions are worth it: see onednn_prefers_bf16. */
static bool onednn_fast_bf16(unsigned isa)
{
    if ((isa & dnnl_cpu_isa_avx512_core_amx) == dnnl_cpu_isa_avx512_core_amx) return true;
#if defined(__x86_64__)
    __builtin_cpu_init();
    return !__builtin_cpu_is("intel");
#else
    return true;
#endif
}

/* The stream is the library's own notion; everything is waited for at once, so one serves all
 * lanes. */
lh_status_t onednn_open(const lh_host_t *host, onednn_t **out)
{
    onednn_t *o = host->alloc(host, sizeof(*o), 64);
    if (o == NULL) return LH_NO_MEMORY;

    o->host = host;
    lh_status_t status = onednn_load(o);
    if (status != LH_OK) goto release;
    status = onednn_check(o, o->dnnl_engine_create(&o->engine, dnnl_cpu, 0), "engine_create");
    if (status != LH_OK) goto release;
    status = onednn_check(o,
                          o->dnnl_stream_create(&o->stream, o->engine, dnnl_stream_default_flags),
                          "stream_create");
    if (status != LH_OK) goto engine;

    const unsigned isa = (unsigned)o->dnnl_get_effective_cpu_isa();
    o->bf16 = (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
    o->prefers_bf16 = o->bf16 && onednn_fast_bf16(isa);
    *out = o;
    return LH_OK;

engine:
    o->dnnl_engine_destroy(o->engine);
release:
    host->release(host, o);
    return status;
}

void onednn_close(onednn_t *o)
{
    if (o == NULL) return;
    o->dnnl_stream_destroy(o->stream);
    o->dnnl_engine_destroy(o->engine);
    o->host->release(o->host, o);
}

const char *onednn_version(const onednn_t *o)
{
    return o->version;
}

bool onednn_has_bf16(const onednn_t *o)
{
    return o->bf16;
}

bool onednn_prefers_bf16(const onednn_t *o)
{
    return o->prefers_bf16;
}

/* Only F32 and BF16 come here. */
static dnnl_data_type_t onednn_type(lh_dtype_t dtype)
{
    return dtype == LH_DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* A matrix by its strides: one that lies transposed has them exchanged. */
static lh_status_t onednn_describe(onednn_t *o, const onednn_matrix_t *matrix, uint64_t rows,
                                   uint64_t columns, dnnl_memory_desc_t *out)
{
    const dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)columns};
    const dnnl_dim_t pitch = (dnnl_dim_t)matrix->pitch;
    const dnnl_dims_t plain = {pitch, 1}, turned = {1, pitch};

    return onednn_check(o,
                        o->dnnl_memory_desc_init_by_strides(out, 2, dims,
                                                            onednn_type(matrix->dtype),
                                                            matrix->transposed ? turned : plain),
                        "memory_desc_init_by_strides");
}

/* Scratch comes from the core, and c may be added to. */
static lh_status_t onednn_attributes(onednn_t *o, bool add, dnnl_primitive_attr_t *out)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t sum = NULL;

    dnnl_status_t s = o->dnnl_primitive_attr_create(&attr);
    if (s == dnnl_success)
        s = o->dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (s == dnnl_success && add) s = o->dnnl_post_ops_create(&sum);
    if (s == dnnl_success && add) s = o->dnnl_post_ops_append_sum(sum, 1.0f);
    if (s == dnnl_success && add) s = o->dnnl_primitive_attr_set_post_ops(attr, sum);
    if (sum != NULL) o->dnnl_post_ops_destroy(sum);
    if (s == dnnl_success)
        *out = attr;
    else if (attr != NULL)
        o->dnnl_primitive_attr_destroy(attr);
    return onednn_check(o, s, "primitive_attr_create");
}

/* One lane's memory objects, without addresses. */
static lh_status_t onednn_memories(onednn_matmul_t *p, uint32_t lane,
                                   const dnnl_memory_desc_t *desc, bool has_bias)
{
    onednn_t *o = p->library;
    for (int i = 0; i < PARTS; i++) {
        if (i == PART_BIAS && !has_bias) continue;
        if (i == PART_SCRATCH && p->scratch_bytes == 0) continue;
        const lh_status_t status = onednn_check(
            o, o->dnnl_memory_create(&p->memory[lane][i], &desc[i], o->engine, DNNL_MEMORY_NONE),
            "memory_create");
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* From descriptors to code. What was made before a failure is freed by onednn_matmul_free. */
static lh_status_t onednn_matmul_build(onednn_matmul_t *p, const onednn_matmul_how_t *how)
{
    onednn_t *o = p->library;
    const bool has_bias = how->bias.dtype != LH_DTYPE_NONE;
    dnnl_memory_desc_t desc[PARTS];
    lh_status_t status = onednn_describe(o, &how->a, how->m, how->k, &desc[PART_A]);
    if (status == LH_OK) status = onednn_describe(o, &how->b, how->k, how->n, &desc[PART_B]);
    if (status == LH_OK) status = onednn_describe(o, &how->c, how->m, how->n, &desc[PART_C]);
    if (status == LH_OK && has_bias)
        status = onednn_describe(o, &how->bias, 1, how->n, &desc[PART_BIAS]);
    if (status != LH_OK) return status;

    dnnl_matmul_desc_t op;
    status = onednn_check(o,
                          o->dnnl_matmul_desc_init(&op, &desc[PART_A], &desc[PART_B],
                                                   has_bias ? &desc[PART_BIAS] : NULL,
                                                   &desc[PART_C]),
                          "matmul_desc_init");
    if (status != LH_OK) return status;

    dnnl_primitive_attr_t attr = NULL;
    status = onednn_attributes(o, how->add, &attr);
    if (status != LH_OK) return status;
    status = onednn_check(o, o->dnnl_primitive_desc_create(&p->desc, &op, attr, o->engine, NULL),
                          "primitive_desc_create");
    o->dnnl_primitive_attr_destroy(attr);
    if (status != LH_OK) return status;

    /* Which implementation it took, and what scratch that wants, is known from here on. */
    o->dnnl_primitive_desc_query(p->desc, dnnl_query_impl_info_str, 0, &p->name);
    desc[PART_SCRATCH] = *o->dnnl_primitive_desc_query_md(p->desc, dnnl_query_scratchpad_md, 0);
    p->scratch_bytes = o->dnnl_memory_desc_get_size(&desc[PART_SCRATCH]);
    status = onednn_check(o, o->dnnl_primitive_create(&p->primitive, p->desc), "primitive_create");
    if (status != LH_OK) return status;
    for (uint32_t lane = 0; lane < p->lanes && status == LH_OK; lane++)
        status = onednn_memories(p, lane, desc, has_bias);
    return status;
}

/* One piece of memory, with the lanes' memory objects behind the struct. */
lh_status_t onednn_matmul_new(onednn_t *o, const onednn_matmul_how_t *how, onednn_matmul_t **out)
{
    const size_t bytes = sizeof(onednn_matmul_t) + how->lanes * sizeof(dnnl_memory_t[PARTS]);
    onednn_matmul_t *p = o->host->alloc(o->host, bytes, 64);
    if (p == NULL) return LH_NO_MEMORY;

    p->library = o;
    p->lanes = how->lanes;
    const lh_status_t status = onednn_matmul_build(p, how);
    if (status != LH_OK) {
        onednn_matmul_free(p);
        return status;
    }
    *out = p;
    return LH_OK;
}

void onednn_matmul_free(onednn_matmul_t *p)
{
    if (p == NULL) return;
    onednn_t *o = p->library;
    for (uint32_t i = 0; i < p->lanes * PARTS; i++) {
        dnnl_memory_t memory = p->memory[i / PARTS][i % PARTS];
        if (memory != NULL) o->dnnl_memory_destroy(memory);
    }
    if (p->primitive != NULL) o->dnnl_primitive_destroy(p->primitive);
    if (p->desc != NULL) o->dnnl_primitive_desc_destroy(p->desc);
    o->host->release(o->host, p);
}

uint64_t onednn_matmul_scratch_bytes(const onednn_matmul_t *p)
{
    return p->scratch_bytes;
}

/* The library's text lives as long as its descriptor. */
const char *onednn_matmul_name(const onednn_matmul_t *p)
{
    return p->name != NULL ? p->name : "onednn";
}

/* The library takes inputs as void * too; it does not write them. */
static void *onednn_pointer(const void *p)
{
    void *out;
    memcpy(&out, &p, sizeof(out));
    return out;
}

/* Waits for the end: the device is synchronous. */
lh_status_t onednn_matmul_run(onednn_matmul_t *p, uint32_t lane, const void *a, const void *b,
                              const void *bias, void *c, void *scratch)
{
    onednn_t *o = p->library;
    void *at[PARTS] = {onednn_pointer(a), onednn_pointer(b), onednn_pointer(bias), c, scratch};
    dnnl_exec_arg_t args[PARTS];
    int count = 0;

    /* Addresses are set anew each time: arenas may be other ones in the next plan. */
    for (int i = 0; i < PARTS; i++) {
        dnnl_memory_t memory = p->memory[lane][i];
        if (memory == NULL) continue;
        if (o->dnnl_memory_set_data_handle(memory, at[i]) != dnnl_success)
            return o->host->fail(o->host, LH_IO, "oneDNN refused an address");
        args[count++] = (dnnl_exec_arg_t){part_argument[i], memory};
    }
    dnnl_status_t s = o->dnnl_primitive_execute(p->primitive, o->stream, count, args);
    if (s == dnnl_success) s = o->dnnl_stream_wait(o->stream);
    return onednn_check(o, s, "primitive_execute");
}
