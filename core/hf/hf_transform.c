/* hf_transform.c - runs the functions that rows name, over whole tensors or in pieces.
 *
 * What a function of the core does to rows is found by calling it: over a tensor of one column whose
 * elements are the numbers of its rows, what comes out is which row went where. So a piece of a
 * parameter is read from, or written to, just the bytes of the file that it is made of, and the
 * functions stay as simple as those of a plugin. Numbers of rows are exact as F32 up to 2^24; no
 * real tensor has more. */
#include <hf/hf_transform.h>

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <hf/hf_folder.h>

#define MOST_LINES (UINT64_C(1) << 24)

/* A tensor of the SDK over dense memory of the host. */
static lh_tensor_t transform_dense(uint32_t rank, const uint64_t *shape, float *data)
{
    lh_assert(rank <= LH_MAX_RANK);
    lh_tensor_t t = {.struct_size = sizeof(t), .dtype = LH_DTYPE_F32, .rank = rank, .data = data};
    uint64_t stride = 1;
    for (uint32_t i = rank; i > 0; i--) {
        t.shape[i - 1] = shape[i - 1];
        t.stride[i - 1] = stride;
        stride *= shape[i - 1];
    }
    t.data_bytes = stride * sizeof(float);
    return t;
}

static const char *transform_text(const hf_transform_t *how, const hf_user_t *user)
{
    const lh_param_t *row = how->parameters->items[user->parameter].row;
    return how->exports ? row->hf_export : row->hf_import;
}

/* Binds a row's function text, such as "split_qkv(source, heads, kv_heads, 0, out)". The core's own
 * functions need no name of a plugin in front. */
static lh_status_t transform_bind(const hf_transform_t *how, const hf_user_t *user, call_t **out)
{
    /* The two names that a text may use beside its plain arguments. */
    static const call_variable_t variables[] = {{"source", CALL_TENSOR}, {"out", CALL_TENSOR}};
    const call_scope_t scope = {.functions = weight_functions,
                                .function_count = weight_function_count,
                                .variables = variables,
                                .variable_count = 2,
                                .plugins = how->plugins,
                                .host = how->host};
    return call_bind(transform_text(how, user), how->parameters->items[user->parameter].name,
                     &scope, CALL_STATUS, out);
}

static lh_status_t transform_call(call_t *call, lh_tensor_t source, lh_tensor_t out)
{
    const call_value_t values[] = {{.tensor = &source}, {.tensor = &out}};
    return call_run(call, values, NULL);
}

static hf_matrices_t matrices_of(uint32_t rank, const uint64_t *shape)
{
    if (rank == 1) return (hf_matrices_t){1, shape[0], 1};
    if (rank == 2) return (hf_matrices_t){1, shape[0], shape[1]};
    return (hf_matrices_t){shape[0], shape[1], shape[2]};
}

static hf_matrices_t user_matrices(const hf_transform_t *how, const hf_user_t *user)
{
    uint64_t shape[LH_MAX_RANK], elements;
    const uint32_t rank = hf_user_shape(how->parameters, user, shape, &elements);
    return matrices_of(rank, shape);
}

/* ---- where rows lie ---- */

/* lines: of the tensor, rows or columns. Fills l->line from a run over numbers; false where the
 * function refuses them, or leaves a row without its place. */
static bool lines_find(call_t *call, bool exports, uint64_t lines, hf_lines_t *l, float *own,
                       float *tensor)
{
    const bool columns = l->moves == HF_COLUMNS;
    const uint64_t own_shape[] = {l->own.rows, 1};
    const uint64_t shape[] = {columns ? 1 : lines, columns ? lines : 1};
    const uint64_t none = UINT64_MAX;
    const lh_tensor_t whole = transform_dense(2, shape, tensor);
    const lh_tensor_t part = transform_dense(2, own_shape, own);
    for (uint64_t i = 0; i < lines; i++)
        tensor[i] = exports ? -1 : (float)i;
    for (uint64_t i = 0; i < l->own.rows; i++) {
        own[i] = exports ? (float)i : -1;
        l->line[i] = none;
    }
    const lh_status_t status = exports ? transform_call(call, part, whole)
                                       : transform_call(call, whole, part);
    if (status != LH_OK) return false;
    for (uint64_t i = 0; exports && i < lines; i++)
        if (tensor[i] >= 0) l->line[(uint64_t)tensor[i]] = i;
    for (uint64_t i = 0; !exports && i < l->own.rows; i++)
        if (own[i] >= 0) l->line[i] = (uint64_t)own[i];
    for (uint64_t i = 0; i < l->own.rows; i++)
        if (l->line[i] == none) return false;
    return true;
}

/* Whether matrices can be of each other's rows, or rows of the other's columns. */
static bool matrices_fit(const hf_lines_t *l)
{
    if (l->own.count != l->tensor.count) return false;
    if (l->moves == HF_EACH)
        return l->own.rows == l->tensor.rows && l->own.columns == l->tensor.columns;
    return l->own.columns == (l->moves == HF_ROWS ? l->tensor.columns : l->tensor.rows);
}

/* What does not fit goes the way of the whole tensor, where the function itself refuses it. */
static lh_status_t lines_of_function(const hf_transform_t *how, call_t *call, hf_lines_t *l)
{
    const uint64_t lines = l->moves == HF_ROWS ? l->tensor.rows : l->tensor.columns;
    if (!matrices_fit(l) || lines > MOST_LINES || l->own.rows > MOST_LINES) l->moves = HF_WHOLE;
    if (l->moves == HF_WHOLE || l->moves == HF_EACH) return LH_OK;
    float *own = mem_array((size_t)l->own.rows, sizeof(*own));
    float *tensor = mem_array((size_t)lines, sizeof(*tensor));
    l->line = mem_array((size_t)l->own.rows, sizeof(l->line[0]));
    const bool memory = own != NULL && tensor != NULL && l->line != NULL;
    if (memory && !lines_find(call, how->exports, lines, l, own, tensor)) {
        fail_clear();
        mem_free(l->line);
        l->line = NULL;
        l->moves = HF_WHOLE;
    }
    mem_free(tensor);
    mem_free(own);
    return memory ? LH_OK : LH_NO_MEMORY;
}

lh_status_t hf_lines_new(const hf_transform_t *how, const hf_tensor_t *tensor,
                         const hf_user_t *user, hf_lines_t *out)
{
    hf_lines_t l = {.moves = HF_ROWS,
                    .own = user_matrices(how, user),
                    .tensor = matrices_of(tensor->rank, tensor->shape)};
    lh_status_t status = LH_OK;
    if (transform_text(how, user) != NULL) {
        call_t *call;
        status = transform_bind(how, user, &call);
        if (status != LH_OK) return status;
        l.moves = weight_function_moves(call_target(call));
        status = lines_of_function(how, call, &l);
        call_free(call);
    }
    if (status == LH_OK)
        *out = l;
    else
        hf_lines_free(&l);
    return status;
}

void hf_lines_free(hf_lines_t *l)
{
    mem_free(l->line);
    *l = (hf_lines_t){0};
}

uint64_t hf_lines_run(const hf_lines_t *l, uint64_t at, uint64_t end, uint64_t *in_tensor)
{
    lh_assert(l->moves == HF_ROWS || l->moves == HF_EACH);
    *in_tensor = at;
    if (l->line == NULL) return end - at;
    const uint64_t columns = l->own.columns, matrix = at / (columns * l->own.rows);
    uint64_t row = at / columns % l->own.rows, count = columns - at % columns;
    *in_tensor = (matrix * l->tensor.rows + l->line[row]) * columns + at % columns;
    for (; at + count < end && row + 1 < l->own.rows && l->line[row + 1] == l->line[row] + 1; row++)
        count += columns;
    return count < end - at ? count : end - at;
}

/* One element to another place. Those of weights have two or four bytes. */
static void element_copy(uint64_t size, void *to, uint64_t to_at, const void *from,
                         uint64_t from_at)
{
    if (size == sizeof(uint16_t))
        ((uint16_t *)to)[to_at] = ((const uint16_t *)from)[from_at];
    else
        ((uint32_t *)to)[to_at] = ((const uint32_t *)from)[from_at];
}

/* Elements of one row of the parameter, which stand below each other in the tensor, from `at` on and
 * before `end`. Returns how many. */
static uint64_t column_move(const hf_lines_t *l, uint64_t at, uint64_t end, uint64_t size,
                            const void *from, void *to, bool in)
{
    const uint64_t row = at / l->own.columns, column = at % l->own.columns;
    const uint64_t left = l->own.columns - column, count = left < end - at ? left : end - at;
    const uint64_t first = (row / l->own.rows * l->tensor.rows + column) * l->tensor.columns +
                           l->line[row % l->own.rows];
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t place = first + i * l->tensor.columns;
        element_copy(size, to, in ? i : place, from, in ? place : i);
    }
    return count;
}

/* in: out of the tensor. */
static void lines_move(const hf_lines_t *l, uint64_t at, uint64_t count, uint64_t size,
                       const unsigned char *from, unsigned char *to, bool in)
{
    lh_assert(l->moves != HF_WHOLE && (size == sizeof(uint16_t) || size == sizeof(uint32_t)));
    const uint64_t end = at + count;
    uint64_t n, place;
    for (; at < end; at += n) {
        if (l->moves == HF_COLUMNS) {
            n = column_move(l, at, end, size, from, to, in);
        } else {
            n = hf_lines_run(l, at, end, &place);
            memcpy(to + (in ? 0 : place) * size, from + (in ? place : 0) * size, n * size);
        }
        if (in)
            to += n * size;
        else
            from += n * size;
    }
}

void hf_lines_gather(const hf_lines_t *l, uint64_t at, uint64_t count, uint64_t size,
                     const void *tensor, void *own)
{
    lines_move(l, at, count, size, tensor, own, true);
}

void hf_lines_scatter(const hf_lines_t *l, uint64_t at, uint64_t count, uint64_t size,
                      const void *own, void *tensor)
{
    lines_move(l, at, count, size, own, tensor, false);
}

/* ---- tensors whole ---- */

/* Bytes up to which a file would cost more than it saves. */
enum { IN_MEMORY = 4 << 20 };

/* A file of so many bytes that has lost its name, and so is gone with its mapping, however this process
 * ends. Its blocks are taken here: a store into a mapping for which the disk has no room is SIGBUS. */
static lh_status_t whole_file(const char *folder, uint64_t bytes, int *out)
{
    lh_status_t status = LH_OK;
    char *path = path_join(folder, HF_FOLDER_NAMELESS);
    if (path == NULL) return LH_NO_MEMORY;
    const int fd = sys_open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (fd < 0)
        status = fail_io(errno, "%s: cannot create", path);
    else if (sys()->unlink(path) != 0)
        status = fail_io(errno, "%s: cannot remove", path);
    else if (sys_fallocate(fd, (off_t)bytes) != 0)
        status = fail_io(errno, "%s: cannot reserve %llu bytes", path, (unsigned long long)bytes);
    mem_free(path);
    if (status == LH_OK)
        *out = fd;
    else if (fd >= 0)
        (void)sys()->close(fd);
    return status;
}

/* Shared, so that what the function writes goes to the file and never becomes memory of this process
 * alone. Some file systems in user space map nothing that is written: there it is memory all the same. */
lh_status_t hf_whole_new(const hf_transform_t *how, uint64_t elements, float **out)
{
    lh_assert(elements > 0 && elements <= INT64_MAX / sizeof(float));
    const size_t bytes = (size_t)elements * sizeof(float);
    void *values = MAP_FAILED;
    if (bytes > IN_MEMORY) {
        int fd;
        const lh_status_t status = whole_file(how->folder, bytes, &fd);
        if (status != LH_OK) return status;
        values = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        (void)sys()->close(fd);
    }
    if (values == MAP_FAILED)
        values = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (values == MAP_FAILED)
        return fail(LH_NO_MEMORY, "out of memory: %zu bytes asked for", bytes);
    *out = values;
    return LH_OK;
}

void hf_whole_free(float *values, uint64_t elements)
{
    if (values != NULL) (void)munmap(values, (size_t)elements * sizeof(float));
}

/* ---- running ---- */

/* Dense tensors that a function goes between. */
typedef struct transform_ends {
    uint32_t from_rank, to_rank;
    const uint64_t *from_shape, *to_shape;
    float *from, *to;
} transform_ends_t;

/* The core's functions know matrices: stacks of as many on both sides go through one by one. A
 * plugin's function gets what there is. */
static lh_status_t transform_stack(call_t *call, const transform_ends_t *e)
{
    const bool stacks = weight_function_moves(call_target(call)) != HF_WHOLE && e->from_rank == 3 &&
                        e->to_rank == 3 && e->from_shape[0] == e->to_shape[0];
    if (!stacks)
        return transform_call(call, transform_dense(e->from_rank, e->from_shape, e->from),
                              transform_dense(e->to_rank, e->to_shape, e->to));
    const uint64_t from = e->from_shape[1] * e->from_shape[2];
    const uint64_t to = e->to_shape[1] * e->to_shape[2];
    lh_status_t status = LH_OK;
    for (uint64_t i = 0; i < e->from_shape[0] && status == LH_OK; i++)
        status = transform_call(call, transform_dense(2, e->from_shape + 1, e->from + i * from),
                                transform_dense(2, e->to_shape + 1, e->to + i * to));
    return status;
}

/* Behind which tensor and which parameter it was. */
static lh_status_t transform_refuse(lh_status_t status, const hf_tensor_t *tensor,
                                    const char *parameter, uint32_t rank, const uint64_t *shape)
{
    char said[1024], has[HF_SHAPE_TEXT], wants[HF_SHAPE_TEXT];
    (void)snprintf(said, sizeof(said), "%s", fail_reason());
    hf_shape_text(tensor->rank, tensor->shape, has);
    hf_shape_text(rank, shape, wants);
    return fail(status, "tensor %s %s, parameter %s %s: %s", tensor->name, has, parameter, wants,
                said);
}

lh_status_t hf_transform_run(const hf_transform_t *how, const hf_tensor_t *tensor,
                             const hf_user_t *user, float *source, float *out)
{
    uint64_t shape[LH_MAX_RANK], elements;
    const uint32_t rank = hf_user_shape(how->parameters, user, shape, &elements);
    if (transform_text(how, user) == NULL) {
        memcpy(out, source, elements * sizeof(float));
        return LH_OK;
    }
    call_t *call;
    lh_status_t status = transform_bind(how, user, &call);
    if (status != LH_OK) return status;
    transform_ends_t ends = {tensor->rank, rank, tensor->shape, shape, source, out};
    if (how->exports)
        ends = (transform_ends_t){rank, tensor->rank, shape, tensor->shape, source, out};
    status = transform_stack(call, &ends);
    call_free(call);
    if (status == LH_OK || status == LH_NO_MEMORY) return status;
    return transform_refuse(status, tensor, how->parameters->items[user->parameter].name, rank,
                            shape);
}

lh_status_t hf_transform_each(const hf_transform_t *how, const hf_user_t *user, float *values,
                              uint64_t count)
{
    call_t *call;
    lh_status_t status = transform_bind(how, user, &call);
    if (status != LH_OK) return status;
    const lh_tensor_t t = transform_dense(1, &count, values);
    status = transform_call(call, t, t);
    call_free(call);
    return status;
}
