/* batches.c - opens the data sets of a split, orders their samples and lays them out in rows.
 *
 * The chain from a global sample index to tokens: a blend says which set and which of its samples;
 * the set's order says where that sample begins (samples.c), or which conversations it holds
 * (packs.c); the tokens are read from the .bin (indexed.c). None of it depends on what was asked
 * before, on the rank or on the number of ranks. */
#include <data/batches.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/digest.h>
#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/text.h>
#include <config/quantity.h>
#include <data/packs.h>
#include <data/prepare.h>
#include <data/samples.h>

/* A data set and the order of its samples in this split, by one of two ways. */
typedef struct batch_set {
    indexed_t *set;
    samples_t *samples; /* NULL but in phase pretrain */
    packs_t *packs;     /* NULL in phase pretrain */
    uint64_t count;     /* samples that it has */
} batch_set_t;

/* All that batches_fill needs; owned. */
struct batches {
    uint64_t sequence, count;
    uint32_t documents; /* DOCUMENTS_* */
    int32_t eod;
    batch_set_t *sets;
    uint32_t set_count;
    samples_blend_t blend; /* empty: one set, or sets one after the other */
    int32_t *tokens;       /* [sequence + 1] of the sample at hand        */
    uint8_t *begins;       /* [sequence + 1]                              */
    uint32_t *packed;      /* [sequence + 1] where documents begin; NULL in phase pretrain */
};

static const char *const split_names[] = {"train", "valid", "test"};

/* The list that the split is read from: its own, or train's, of which it is a share. *whole: it is
 * a data set of its own. */
static const char *split_list(const batches_how_t *how, bool *whole)
{
    const char *own[] = {NULL, how->data->valid, how->data->test};
    *whole = own[how->split] != NULL;
    return *whole ? own[how->split] : how->data->train;
}

/* If prepare made the pair, the index is the one that it made and the .bin has that length. */
static lh_status_t check_prepared_pair(const char *path, const char *folder)
{
    prepare_record_t record;
    lh_status_t status = prepare_record_find(path, folder, &record);
    if (status == LH_OK) status = prepare_record_check(&record);
    prepare_record_free(&record);
    return status;
}

/* Opens a pair. One that has several splits is checked and read for the first one only. */
static lh_status_t pair_open(const batches_how_t *how, const char *path, indexed_t **out)
{
    /* The other split's sets, of which one may be this pair. */
    const batches_t *beside = how->beside;
    for (uint32_t i = 0; beside != NULL && i < beside->set_count; i++) {
        indexed_t *set = beside->sets[i].set;
        if (indexed_has_prefix(set, path) && set->vocab == how->vocab) {
            *out = indexed_share(set);
            return LH_OK;
        }
    }
    const lh_status_t status = check_prepared_pair(path, how->folder);
    return status == LH_OK ? indexed_open(path, how->vocab, out) : status;
}

/* What is cut or left out is told once, at the start. */
static lh_status_t set_pack(const batches_how_t *how, const char *name, uint64_t first,
                            uint64_t end, uint64_t wanted, batch_set_t *out)
{
    const packs_how_t order = {.set = out->set,
                               .name = name,
                               .first = first,
                               .end = end,
                               .sequence = how->sequence,
                               .wanted = wanted,
                               .seed = how->data->seed,
                               .pairs = how->phase == PHASE_DPO,
                               .together = how->data->packing,
                               .too_long = how->data->too_long};
    const lh_status_t status = packs_new(&order, &out->packs);
    if (status != LH_OK) return status;
    const packs_t *p = out->packs;
    out->count = p->count;
    if (p->cut + p->left_out > 0)
        log_line(LH_LOG_WARN, "%s: of %llu documents %llu are cut and %llu left out, too long",
                 name, (unsigned long long)(end - first), (unsigned long long)p->cut,
                 (unsigned long long)p->left_out);
    return LH_OK;
}

/* One set: its pair, the bounds of the split in it, and the order of `wanted` samples. */
static lh_status_t set_open(const batches_how_t *how, const samples_blend_part_t *part, bool whole,
                            uint64_t wanted, batch_set_t *out)
{
    char *path = path_join(how->folder, part->name);
    if (path == NULL) return LH_NO_MEMORY;
    char name[BLEND_NAME + 32];
    (void)snprintf(name, sizeof(name), "the %s split of %s", split_names[how->split], part->name);
    uint64_t bounds[3][2] = {{0}};

    lh_status_t status = pair_open(how, path, &out->set);
    mem_free(path);
    if (status != LH_OK) return status;
    const bool packs = how->phase != PHASE_PRETRAIN;
    const uint64_t all = packs ? out->set->documents : out->set->sequences;
    status = samples_split(how->data->split, all, bounds);
    if (status != LH_OK) return status;
    const uint64_t first = whole ? 0 : bounds[how->split][0];
    const uint64_t end = whole ? all : bounds[how->split][1];
    lh_assert(first <= end && end <= all);
    if (!whole && first == end)
        return fail(LH_INVALID,
                    "%s is empty: of %llu %s [data] split = %s leaves it none; expected a larger "
                    "share or a set of its own",
                    name, (unsigned long long)all, packs ? "documents" : "sequences",
                    how->data->split);
    if (packs) return set_pack(how, name, first, end, wanted, out);
    const samples_how_t order = {
        .set = out->set,
        .name = name,
        .first = first,
        .end = end,
        .sequence = how->sequence,
        .wanted = wanted,
        .seed = how->data->seed,
    };
    status = samples_new(&order, &out->samples);
    if (status == LH_OK) out->count = out->samples->count;
    return status;
}

/* All sets of a list. set_count counts those whose memory must be given back, also on failure.
 * Several sets without a number of samples stand one after the other, each once. */
static lh_status_t sets_open(const batches_how_t *how, const samples_blend_list_t *list, bool whole,
                             batches_t *b)
{
    b->sets = mem_array(list->count, sizeof(*b->sets));
    if (b->sets == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < list->count; i++) {
        /* One set alone gives all samples; of a blend each gives its share and some to spare. */
        const uint64_t wanted = list->count == 1
                                    ? how->samples
                                    : samples_blend_wanted(list->parts[i].weight, how->samples);
        b->set_count = i + 1;
        const lh_status_t status = set_open(how, &list->parts[i], whole, wanted, &b->sets[i]);
        if (status != LH_OK) return status;
        b->count += b->sets[i].count;
    }
    if (list->count == 1 || how->samples == 0) return LH_OK;
    b->count = how->samples;
    return samples_blend_new(list, how->samples, &b->blend);
}

/* The sample at hand has room for one token more than a row: labels are the tokens moved by one. */
lh_status_t batches_open(const batches_how_t *how, batches_t **out)
{
    lh_assert(how->split < sizeof(split_names) / sizeof(split_names[0]));
    bool whole;
    const char *text = split_list(how, &whole);
    if (text == NULL) return fail(LH_INVALID, "[data] train is missing");
    if (how->sequence == 0 || how->sequence >= INT32_MAX)
        return fail(LH_INVALID, "a sequence of %llu tokens, 1 to %d are possible",
                    (unsigned long long)how->sequence, INT32_MAX - 1);
    samples_blend_list_t list;
    lh_status_t status = samples_blend_parse(text, &list);
    if (status != LH_OK) return status;

    batches_t *b = mem_new(sizeof(*b));
    status = LH_NO_MEMORY;
    if (b == NULL) goto free_list;
    b->sequence = how->sequence;
    b->documents = how->data->documents;
    b->eod = how->eod;
    b->tokens = mem_array(how->sequence + 1, sizeof(*b->tokens));
    b->begins = mem_array(how->sequence + 1, sizeof(*b->begins));
    if (b->tokens == NULL || b->begins == NULL) goto close_batches;
    if (how->phase != PHASE_PRETRAIN) {
        b->packed = mem_array(how->sequence + 1, sizeof(*b->packed));
        if (b->packed == NULL) goto close_batches;
    }
    status = sets_open(how, &list, whole, b);
    if (status != LH_OK) goto close_batches;
    samples_blend_list_free(&list);
    *out = b;
    return LH_OK;

close_batches:
    batches_close(b);
free_list:
    samples_blend_list_free(&list);
    return status;
}

void batches_close(batches_t *b)
{
    if (b == NULL) return;
    for (uint32_t i = 0; i < b->set_count; i++) {
        samples_free(b->sets[i].samples);
        packs_free(b->sets[i].packs);
        indexed_close(b->sets[i].set);
    }
    samples_blend_free(&b->blend);
    mem_free(b->packed);
    mem_free(b->begins);
    mem_free(b->tokens);
    mem_free(b->sets);
    mem_free(b);
}

lh_status_t batches_digest(const batches_t *b, uint64_t *out)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < b->set_count; i++) {
        uint64_t pair[2] = {all, 0};
        const lh_status_t status = indexed_digest(b->sets[i].set, &pair[1]);
        if (status != LH_OK) return status;
        all = digest_xxh3(pair, sizeof(pair));
    }
    *out = all;
    return LH_OK;
}

uint64_t batches_samples(const batches_t *b)
{
    return b->count;
}

/* Looks at all cuts of all sets: a sample touches the sequences from its cut to the next one. A row
 * of packs has what is left behind its documents as one more. */
uint64_t batches_documents_per_sample(const batches_t *b)
{
    uint64_t most = 1;
    for (uint32_t i = 0; i < b->set_count; i++) {
        const samples_t *s = b->sets[i].samples;
        if (s == NULL && b->sets[i].packs->most + 1 > most) most = b->sets[i].packs->most + 1;
        if (s == NULL) continue;
        for (uint64_t k = 0; k < s->count; k++) {
            /* From the sequence that it begins in to the one in which the next sample does. */
            const uint64_t touched = (uint64_t)s->cuts[k + 1].place - s->cuts[k].place + 1;
            if (touched > most) most = touched;
        }
    }
    return most;
}

/* The set that global sample i is of; *sample: which of its samples. */
static lh_status_t sample_find(const batches_t *b, uint64_t i, const batch_set_t **set,
                               uint64_t *sample)
{
    if (i >= b->count)
        return fail(LH_INVALID, "sample %llu is asked for, there are %llu", (unsigned long long)i,
                    (unsigned long long)b->count);
    if (b->blend.count > 0) {
        lh_assert(i < b->blend.count && b->blend.set[i] < b->set_count);
        *set = &b->sets[b->blend.set[i]];
        *sample = b->blend.sample[i];
        return LH_OK;
    }
    /* Without a blend the sets follow each other. */
    uint32_t k = 0;
    while (i >= b->sets[k].count) {
        i -= b->sets[k++].count;
        lh_assert(k < b->set_count);
    }
    *set = &b->sets[k];
    *sample = i;
    return LH_OK;
}

/* True if token k of the sample at hand is the first of a segment. */
static bool segment_begins(const batches_t *b, uint64_t k)
{
    if (k == 0) return true;
    if (b->documents == DOCUMENTS_JOINED) return false;
    return b->begins[k] != 0 || (b->eod >= 0 && b->tokens[k - 1] == b->eod);
}

static lh_status_t refuse_documents(const batch_rows_t *out)
{
    return fail(LH_INVALID,
                "a micro-batch holds more than %llu documents; raise [train] max_documents",
                (unsigned long long)out->max_documents);
}

/* Lays the sample at hand out as row `row`; *documents counts the segments so far. */
static lh_status_t row_fill(const batches_t *b, uint64_t row, const batch_rows_t *out,
                            uint64_t *documents)
{
    /* Where the row begins in the caller's arrays. */
    const uint64_t at = row * b->sequence;
    memcpy(out->tokens + at, b->tokens, b->sequence * sizeof(*b->tokens));
    memcpy(out->labels + at, b->tokens + 1, b->sequence * sizeof(*b->tokens));
    int32_t position = 0;
    for (uint64_t k = 0; k < b->sequence; k++) {
        if (segment_begins(b, k)) {
            if (*documents == out->max_documents) return refuse_documents(out);
            out->starts[(*documents)++] = (int32_t)(at + k);
            position = 0;
        }
        out->positions[at + k] = position++;
        /* The label of a segment's last token is the first of the next one, which can't be known
         * from it. */
        out->weights[at + k] = segment_begins(b, k + 1) ? 0.0f : 1.0f;
    }
    return LH_OK;
}

/* Row `row` of a set of conversations, sample `sample` of its order. */
static lh_status_t row_unpack(const batches_t *b, packs_t *packs, uint64_t sample, uint64_t row,
                              const batch_rows_t *out, uint64_t *documents)
{
    const uint64_t at = row * b->sequence;
    packs_row_t packed = {.tokens = out->tokens + at,
                          .labels = out->labels + at,
                          .positions = out->positions + at,
                          .weights = out->weights + at,
                          .begins = b->packed};
    const lh_status_t status = packs_read(packs, sample, &packed);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < packed.begin_count; i++) {
        if (*documents == out->max_documents) return refuse_documents(out);
        out->starts[(*documents)++] = (int32_t)(at + packed.begins[i]);
    }
    return LH_OK;
}

lh_status_t batches_fill(batches_t *b, uint64_t first, uint64_t rows, const batch_rows_t *out)
{
    uint64_t documents = 0;
    for (uint64_t row = 0; row < rows; row++) {
        const batch_set_t *set = NULL;
        uint64_t sample = 0;
        lh_status_t status = sample_find(b, first + row, &set, &sample);
        if (status != LH_OK) return status;
        if (set->packs != NULL) {
            status = row_unpack(b, set->packs, sample, row, out, &documents);
        } else {
            status = samples_read(set->samples, sample, b->tokens, b->begins);
            if (status == LH_OK) status = row_fill(b, row, out, &documents);
        }
        if (status != LH_OK) return status;
    }
    for (uint64_t i = documents; i <= out->max_documents; i++)
        out->starts[i] = (int32_t)(rows * b->sequence);
    return LH_OK;
}

/* Rows of padding are documents of their own, so that attention does not reach from them into
 * others; where no room for starts is left they go with the document before, which changes nothing
 * that counts, as their weights are 0. */
void batches_pad(const batches_t *b, uint64_t used, uint64_t rows, const batch_rows_t *out)
{
    lh_assert(used <= rows);
    const uint64_t at = used * b->sequence, tokens = (rows - used) * b->sequence;
    memset(out->tokens + at, 0, tokens * sizeof(*out->tokens));
    memset(out->labels + at, 0, tokens * sizeof(*out->labels));
    memset(out->weights + at, 0, tokens * sizeof(*out->weights));
    for (uint64_t k = 0; k < tokens; k++)
        out->positions[at + k] = (int32_t)(k % b->sequence);

    uint64_t documents = 0;
    while (documents < out->max_documents && (uint64_t)out->starts[documents] < at)
        documents++;
    for (uint64_t row = used; row < rows && documents < out->max_documents; row++)
        out->starts[documents++] = (int32_t)(row * b->sequence);
    for (uint64_t i = documents; i <= out->max_documents; i++)
        out->starts[i] = (int32_t)(rows * b->sequence);
}

bool batches_weigh_all(const batches_t *b)
{
    return b->documents == DOCUMENTS_JOINED && b->packed == NULL;
}

/* Cuts a global batch over ranks and their micro-batches. */
batch_share_t batch_share(uint64_t batch, uint64_t micro_batch, uint32_t rank, uint32_t ranks)
{
    lh_assert(batch > 0 && micro_batch > 0);
    lh_assert(rank < ranks);
    /* The largest piece decides how many micro-batches all have. */
    const uint64_t largest = (batch + ranks - 1) / ranks;
    batch_share_t s = {.first = batch * rank / ranks};
    s.count = batch * (rank + 1) / ranks - s.first;
    s.micro_batches = (largest + micro_batch - 1) / micro_batch;
    s.rows = (largest + s.micro_batches - 1) / s.micro_batches;
    return s;
}

/* 0 in micro-batches that a rank has only because another one has more. */
uint64_t batch_share_rows(const batch_share_t *s, uint64_t micro_batch)
{
    lh_assert(s->rows > 0 && micro_batch < s->micro_batches);
    const uint64_t before = micro_batch * s->rows;
    if (before >= s->count) return 0;
    return s->count - before < s->rows ? s->count - before : s->rows;
}

/* ---- which batches are left out ---- */

/* "1000..1200" or "1000", which is cut. */
static bool skip_parse(char *text, uint64_t *first, uint64_t *last)
{
    char *dots = strstr(text, "..");
    if (dots == NULL) return quantity_u64(text_trim(text), first) && (*last = *first, *first > 0);
    *dots = '\0';
    return quantity_u64(text_trim(text), first) && quantity_u64(text_trim(dots + 2), last) &&
           *first > 0 && *first <= *last;
}

/* Beyond any step, so that arithmetic on samples can't overflow. */
#define SKIP_MOST (UINT64_C(1) << 38)

lh_status_t batch_skips_parse(const char *text, batch_skips_t *out)
{
    lh_status_t status = LH_OK;
    char *rest = NULL, *copy = text == NULL ? NULL : mem_text(text);
    *out = (batch_skips_t){0};
    if (text == NULL) return LH_OK;
    if (copy == NULL) return LH_NO_MEMORY;
    for (char *word = strtok_r(copy, ",", &rest); word != NULL && status == LH_OK;
         word = strtok_r(NULL, ",", &rest)) {
        uint64_t first, last;
        const uint64_t before = out->count == 0 ? 0 : out->rows[out->count - 1].last;
        char shown[64];
        (void)snprintf(shown, sizeof(shown), "%s", text_trim(word));
        if (out->count == BATCH_SKIPS)
            status = fail(LH_INVALID, "more than %d ranges of batches", BATCH_SKIPS);
        else if (!skip_parse(word, &first, &last) || last > SKIP_MOST)
            status = fail(LH_INVALID, "'%s' is no range of batches, such as 1000..1200", shown);
        else if (first <= before)
            status = fail(LH_INVALID, "'%s': ranges were expected in ascending order and apart",
                          shown);
        else
            out->rows[out->count].first = first, out->rows[out->count++].last = last;
    }
    mem_free(copy);
    return status;
}

uint64_t batch_skips_next(const batch_skips_t *s, uint64_t cursor, uint64_t batch)
{
    for (uint32_t i = 0; i < s->count; i++) {
        const uint64_t begin = (s->rows[i].first - 1) * batch, end = s->rows[i].last * batch;
        if (cursor + batch > begin && cursor < end) cursor = end;
    }
    return cursor;
}

/* From range to range and not from step to step: a job may have millions. */
uint64_t batch_skips_after(const batch_skips_t *s, uint64_t cursor, uint64_t steps, uint64_t batch)
{
    for (uint32_t i = 0; i < s->count && steps > 0; i++) {
        const uint64_t begin = (s->rows[i].first - 1) * batch;
        const uint64_t fit = begin > cursor ? (begin - cursor) / batch : 0;
        const uint64_t taken = fit < steps ? fit : steps;
        cursor += taken * batch;
        steps -= taken;
        if (steps > 0) cursor = batch_skips_next(s, cursor, batch);
    }
    return cursor + steps * batch;
}
