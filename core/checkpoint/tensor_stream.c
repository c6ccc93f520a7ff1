/* tensor_stream.c - walks through the parts of a tensor that are ranges of it, in order.
 *
 * Every byte of a part that is touched is read once and hashed, wanted or not. Parts that are boxes
 * with gaps between their rows would have to be read side by side: a tensor that has one is read
 * whole instead. */
#include <checkpoint/tensor_stream.h>

#include <stdlib.h>

#include <base/dtype.h>
#include <base/memory.h>

enum { PIECE = 1 << 20 /* bytes */ };

/* A stored part as a range of the tensor's elements. */
typedef struct stored_range {
    const manifest_part_t *part;
    uint64_t begin, count;
} stored_range_t;

struct tensor_stream {
    checkpoint_t *from;
    const manifest_tensor_t *tensor;
    uint64_t begin, next,
        end; /* elements of the tensor: the first, the next to be handed out, behind the last */
    stored_range_t *ranges;   /* [range_count] in the order of their elements */
    uint32_t range_count, at; /* that is being read */
    uint64_t hashed;          /* elements of it */
    digest_xxh3_run_t *hash;
    unsigned char *piece; /* [PIECE] stored form of what is passed over, or isn't F32 */
    float *whole;         /* [end - begin] where parts are no ranges; NULL: they are */
};

static int by_begin(const void *a, const void *b)
{
    const stored_range_t *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->count < y->count ? -1 : x->count > y->count; /* empty ones first */
}

/* False: a part is no range. */
static bool stream_sort(tensor_stream_t *s)
{
    const manifest_tensor_t *t = s->tensor;
    for (uint32_t i = 0; i < t->part_count; i++) {
        tensor_walk_t walk;
        tensor_run_t run;
        tensor_walk_start(&walk, &t->parts[i].part, t->rank, t->shape);
        if (!tensor_walk_next(&walk, &run)) continue; /* holds nothing */
        if (run.count != t->parts[i].part.count) return false;
        s->ranges[s->range_count++] = (stored_range_t){&t->parts[i], run.logical, run.count};
    }
    qsort(s->ranges, s->range_count, sizeof(s->ranges[0]), by_begin);
    return true;
}

static lh_status_t stream_read_whole(tensor_stream_t *s)
{
    const uint64_t count = s->end - s->begin;
    const tensor_part_t wanted = tensor_part_range(s->tensor->rank, s->tensor->shape, s->begin,
                                                   count);
    s->whole = mem_array((size_t)count, sizeof(*s->whole));
    if (s->whole == NULL) return LH_NO_MEMORY;
    return count == 0 ? LH_OK : checkpoint_read(s->from, s->tensor, &wanted, s->whole);
}

lh_status_t tensor_stream_open(checkpoint_t *c, const manifest_tensor_t *t, uint64_t begin,
                               uint64_t count, tensor_stream_t **out)
{
    tensor_stream_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;
    *s = (tensor_stream_t){
        .from = c, .tensor = t, .begin = begin, .next = begin, .end = begin + count};
    s->ranges = mem_array(t->part_count, sizeof(s->ranges[0]));
    s->piece = mem_new(PIECE);
    lh_status_t status = s->ranges == NULL || s->piece == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK) status = digest_xxh3_new(&s->hash);
    if (status == LH_OK && !stream_sort(s)) status = stream_read_whole(s);
    if (status != LH_OK) {
        tensor_stream_close(s);
        return status;
    }
    /* Parts cover the tensor once: the first that is touched holds its first element. */
    while (s->at < s->range_count && s->ranges[s->at].begin + s->ranges[s->at].count <= begin)
        s->at++;
    *out = s;
    return LH_OK;
}

/* The next elements of the part at hand, at most a PIECE of them where they are not F32 or not wanted
 * (out NULL). */
static lh_status_t stream_take(tensor_stream_t *s, float *out, uint64_t *count)
{
    const stored_range_t *r = &s->ranges[s->at];
    const safetensors_t *file = s->from->files[r->part->file];
    const lh_dtype_t dtype = s->tensor->dtype;
    const uint64_t size = lh_dtype_bytes(dtype);
    const bool direct = out != NULL && dtype == LH_DTYPE_F32;
    if (*count > r->count - s->hashed) *count = r->count - s->hashed;
    if (!direct && *count > PIECE / size) *count = PIECE / size;
    void *to = direct ? (void *)out : s->piece;
    lh_status_t status = safetensors_read(file, safetensors_find(file, r->part->stored),
                                          s->hashed * size, to, *count * size);
    if (status != LH_OK) return status;
    digest_xxh3_add(s->hash, to, (size_t)(*count * size));
    s->hashed += *count;
    if (out != NULL && !direct) status = dtype_convert(LH_DTYPE_F32, out, dtype, s->piece, *count);
    if (status != LH_OK || s->hashed < r->count) return status;
    s->hashed = 0;
    s->at++;
    return checkpoint_check_hash(s->from, r->part, digest_xxh3_take(s->hash));
}

/* What is left of a part behind the last element that is wanted. */
static lh_status_t stream_finish(tensor_stream_t *s)
{
    lh_status_t status = LH_OK;
    while (s->hashed > 0 && status == LH_OK) {
        uint64_t count = UINT64_MAX;
        status = stream_take(s, NULL, &count);
    }
    return status;
}

lh_status_t tensor_stream_next(tensor_stream_t *s, float *out, uint64_t count)
{
    lh_assert(count <= s->end - s->next);
    if (s->whole != NULL) {
        memcpy(out, s->whole + (s->next - s->begin), count * sizeof(float));
        s->next += count;
        return LH_OK;
    }
    while (count > 0) {
        lh_assert(s->at < s->range_count && s->ranges[s->at].begin + s->hashed <= s->next);
        const uint64_t before = s->next - (s->ranges[s->at].begin + s->hashed);
        uint64_t taken = before > 0 ? before : count;
        const lh_status_t status = stream_take(s, before > 0 ? NULL : out, &taken);
        if (status != LH_OK) return status;
        if (before > 0) continue;
        s->next += taken;
        out += taken;
        count -= taken;
    }
    return s->next == s->end ? stream_finish(s) : LH_OK;
}

void tensor_stream_close(tensor_stream_t *s)
{
    if (s == NULL) return;
    digest_xxh3_free(s->hash);
    mem_free(s->whole);
    mem_free(s->piece);
    mem_free(s->ranges);
    mem_free(s);
}
