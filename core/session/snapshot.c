/* snapshot.c - names tensors as <parameter>, <state>/<parameter> and
 * border_error.<site>/<parameter>, with sites numbered from 0. */
#include <session/snapshot.h>

#include <errno.h>
#include <stdio.h>

#include <base/digest.h>
#include <base/memory.h>
#include <config/quantity.h>
#include <engine/weights.h>

static lh_status_t row_name(const parameter_t *p, const char *state, char **out)
{
    const size_t room = strlen(p->name) + (state == NULL ? 0 : strlen(state) + 1) + 1;
    *out = mem_new(room);
    if (*out == NULL) return LH_NO_MEMORY;
    (void)snprintf(*out, room, "%s%s%s", state == NULL ? "" : state, state == NULL ? "" : "/",
                   p->name);
    return LH_OK;
}

/* The part of a row that this rank saves. own_shape: the state is not cut as its parameter is, so
 * the whole goes with whoever owns element 0. */
static lh_slice_t owned_part(const snapshot_t *s, const snapshot_row_t *row, bool own_shape)
{
    const lh_slice_t owned = weights_owned(s->weights, row->parameter);
    const lh_slice_t nothing = {0, 0}, all = {row->begin, row->begin + row->count};
    if (own_shape) return owned.begin == 0 && owned.end > 0 ? all : nothing;
    return owned.begin < owned.end ? owned : nothing;
}

/* Elements of a row become a tensor of every save. */
static void save_part(snapshot_t *s, uint32_t index, lh_slice_t part)
{
    const snapshot_row_t *row = &s->rows[index];
    checkpoint_tensor_t *t = &s->tensors[s->count];
    *t = (checkpoint_tensor_t){.name = row->name, .dtype = LH_DTYPE_F32, .rank = row->rank};
    memcpy(t->shape, row->shape, sizeof(t->shape));
    t->part = tensor_part_range(row->rank, row->shape, part.begin, part.end - part.begin);
    s->row_of[s->count++] = index;
}

/* Refused is a layout by which a rank would have to save what it does not hold: a mistake of an
 * optimizer plugin. */
static lh_status_t save_row(snapshot_t *s, uint32_t index, bool own_shape)
{
    lh_assert(index < s->row_count);
    const snapshot_row_t *row = &s->rows[index];
    const lh_slice_t part = owned_part(s, row, own_shape);
    if (part.begin == part.end) return LH_OK;
    if (part.begin < row->begin || part.end > row->begin + row->count)
        return fail(LH_INVALID,
                    "%s: elements %llu to %llu are this rank's to save, it holds %llu to %llu",
                    row->name, (unsigned long long)part.begin, (unsigned long long)part.end,
                    (unsigned long long)row->begin, (unsigned long long)(row->begin + row->count));
    save_part(s, index, part);
    return LH_OK;
}

/* What this rank holds none of has no row. save is false for values that are only loaded. */
static lh_status_t snapshot_add_row(snapshot_t *s, uint32_t space, uint32_t index, bool save)
{
    lh_assert(index < weights_parameters(s->weights)->count);
    weights_shard_t shard;
    if (!weights_shard(s->weights, space, index, &shard)) return LH_OK;
    const parameter_t *p = &weights_parameters(s->weights)->items[index];
    const uint64_t held = shard.slice.end - shard.slice.begin;
    const bool own_shape = shard.elements != held;
    if (shard.elements == 0) return LH_OK;

    snapshot_row_t *row = &s->rows[s->row_count];
    *row = (snapshot_row_t){
        .space = space, .parameter = index, .begin = shard.slice.begin, .count = held};
    if (own_shape) { /* whole where it is at all */
        row->rank = 1;
        row->shape[0] = row->count = shard.elements;
        row->begin = 0;
    } else {
        row->rank = p->rank;
        memcpy(row->shape, p->shape, sizeof(row->shape));
    }
    lh_status_t status = row_name(p, shard.name, &row->name);
    if (status != LH_OK) return status;
    s->row_count++;
    return save ? save_row(s, s->row_count - 1, own_shape) : LH_OK;
}

/* The rest of a value that is whole beside a master that is cut: only a load sees it. With FP32
 * masters a value is a rounded copy. Where the value is held whole and the master only in part, a
 * load must fill the rest of the value from the checkpoint itself. */
static lh_status_t add_value(snapshot_t *s, uint32_t index)
{
    lh_assert(index < weights_parameters(s->weights)->count);
    weights_shard_t master, value;
    if (!weights_shard(s->weights, SPACE_VALUE, index, &value)) return LH_OK;
    const bool held = weights_shard(s->weights, SPACE_PARAMETER, index, &master);
    if (held && value.slice.begin >= master.slice.begin && value.slice.end <= master.slice.end)
        return LH_OK;
    return snapshot_add_row(s, SPACE_VALUE, index, false);
}

/* A site's ranks hold its errors of an element once, and so save what they hold. */
static lh_status_t add_errors(snapshot_t *s, const transfers_error_t *e, uint32_t site)
{
    const parameter_t *p = &weights_parameters(s->weights)->items[e->parameter];
    char kind[32];
    snapshot_row_t *row = &s->rows[s->row_count];
    *row = (snapshot_row_t){.space = SNAPSHOT_ERRORS,
                            .parameter = e->parameter,
                            .rank = p->rank,
                            .begin = e->slice.begin,
                            .count = e->slice.end - e->slice.begin,
                            .errors = e->errors};
    memcpy(row->shape, p->shape, sizeof(row->shape));
    (void)snprintf(kind, sizeof(kind), "border_error.%u", site);
    const lh_status_t status = row_name(p, kind, &row->name);
    if (status != LH_OK) return status;
    save_part(s, s->row_count++, e->slice);
    return LH_OK;
}

/* Kinds of optimizer state: 2 for Adam. */
static uint32_t state_count(const weights_t *w)
{
    uint32_t states = 0;
    for (uint32_t i = 0; i < w->store_count; i++)
        states += w->stores[i]->holds == LH_HOLDS_STATE;
    return states;
}

/* A tied parameter has no row of its own: storage names the one whose memory it shares. */
static lh_status_t list_rows(snapshot_t *s, const transfers_error_t *errors, uint32_t error_count,
                             uint32_t site)
{
    const parameters_t *p = weights_parameters(s->weights);
    const uint32_t states = state_count(s->weights);
    const size_t room = (size_t)p->count * (2 + states) + error_count;
    s->rows = mem_array(room, sizeof(*s->rows));
    s->tensors = mem_array(room, sizeof(*s->tensors));
    s->row_of = mem_array(room, sizeof(*s->row_of));
    if (s->rows == NULL || s->tensors == NULL || s->row_of == NULL) return LH_NO_MEMORY;

    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < p->count && status == LH_OK; i++) {
        if (p->items[i].storage != i) continue;
        status = add_value(s, i); /* first: a master then writes what it holds exactly */
        if (status == LH_OK) status = snapshot_add_row(s, SPACE_PARAMETER, i, true);
        for (uint32_t k = 0; k < states && status == LH_OK; k++)
            status = snapshot_add_row(s, SPACE_STATE + k, i, true);
    }
    for (uint32_t i = 0; i < error_count && status == LH_OK; i++)
        status = add_errors(s, &errors[i], site);
    return status;
}

lh_status_t snapshot_new(weights_t *w, const transfers_t *t, snapshot_t **out)
{
    snapshot_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;
    s->weights = w;
    transfers_error_t *errors = NULL;
    uint32_t error_count = 0;
    lh_status_t status = t == NULL ? LH_OK : transfers_errors(t, &errors, &error_count);
    if (status == LH_OK)
        status = list_rows(s, errors, error_count,
                           t == NULL ? 0 : t->world->ranks[t->world->row.rank].site);
    mem_free(errors);
    if (status != LH_OK) {
        snapshot_free(s);
        return status;
    }
    *out = s;
    return LH_OK;
}

void snapshot_free(snapshot_t *s)
{
    if (s == NULL) return;
    for (uint32_t i = 0; i < s->row_count; i++)
        mem_free(s->rows[i].name);
    mem_free(s->row_of);
    mem_free(s->tensors);
    mem_free(s->rows);
    mem_free(s);
}

/* Elements of one snapshot_go_on. */
enum { TAKE_ELEMENTS = 16 << 20 };

/* Copies `count` elements of a tensor, from its element `first` of this rank on. writer_place is
 * shared memory with the writer's process, so this is the only copy that is made. */
static lh_status_t take_part(const snapshot_t *s, uint32_t index, writer_t *writer, uint64_t first,
                             uint64_t count)
{
    lh_assert(index < s->count && s->row_of[index] < s->row_count);
    const snapshot_row_t *row = &s->rows[s->row_of[index]];
    const tensor_part_t *part = &s->tensors[index].part;
    void *place;
    const lh_status_t status = writer_place(writer, index, &place);
    if (status != LH_OK) return status;
    lh_assert(first <= part->count && count <= part->count - first);
    return weights_read(s->weights, row->space, row->parameter, part->first + first, count,
                        LH_DTYPE_F32, (float *)place + first);
}

/* What sums over sites have lost lies with the host, and the next backward pass changes it. */
static lh_status_t take_errors(const snapshot_t *s, writer_t *writer)
{
    lh_status_t status = LH_OK;
    bool waited = false;
    for (uint32_t i = 0; status == LH_OK && i < s->count; i++) {
        const snapshot_row_t *row = &s->rows[s->row_of[i]];
        void *place;
        if (row->space != SNAPSHOT_ERRORS) continue;
        if (!waited) status = engine_wait(s->weights->engine); /* a step's sums are then done */
        waited = true;
        if (status == LH_OK) status = writer_place(writer, i, &place);
        if (status == LH_OK) memcpy(place, row->errors, s->tensors[i].part.count * sizeof(float));
    }
    return status;
}

checkpoint_keep_t snapshot_keep(const job_t *job)
{
    const job_checkpoint_t *c = &job->checkpoint;
    return (checkpoint_keep_t){.newest = c->keep, .every = c->keep_every, .best = c->keep_best};
}

lh_status_t snapshot_begin(snapshot_t *s, writer_t *writer)
{
    s->taking = 0;
    s->taken = 0;
    const lh_status_t status = take_errors(s, writer);
    return status == LH_OK ? engine_mark(s->weights->engine) : status;
}

lh_status_t snapshot_go_on(snapshot_t *s, writer_t *writer, bool *more)
{
    lh_status_t status = LH_OK;
    for (uint64_t room = TAKE_ELEMENTS; status == LH_OK && room > 0 && s->taking < s->count;) {
        const uint64_t count = s->tensors[s->taking].part.count, left = count - s->taken;
        const bool apart = s->rows[s->row_of[s->taking]].space == SNAPSHOT_ERRORS;
        const uint64_t n = left < room ? left : room;
        if (!apart) status = take_part(s, s->taking, writer, s->taken, n);
        if (!apart) room -= n;
        s->taken += n;
        if (apart || s->taken == count) {
            s->taking++;
            s->taken = 0;
        }
    }
    *more = s->taking < s->count;
    if (status != LH_OK || !*more) engine_unmark(s->weights->engine);
    return status;
}

lh_status_t snapshot_take(snapshot_t *s, writer_t *writer)
{
    bool more = true;
    lh_status_t status = snapshot_begin(s, writer);
    while (status == LH_OK && more)
        status = snapshot_go_on(s, writer, &more);
    return status;
}

/* Space by space, so that the memory of one kind is given back before the next is copied: the peak
 * is one kind and not all. */
lh_status_t snapshot_take_last(const snapshot_t *s, writer_t *writer)
{
    const uint32_t states = state_count(s->weights);
    lh_status_t status = LH_OK;
    for (uint32_t k = 0; status == LH_OK && k <= states; k++) {
        const uint32_t space = k == 0 ? SPACE_PARAMETER : SPACE_STATE + k - 1;
        for (uint32_t i = 0; status == LH_OK && i < s->count; i++)
            if (s->rows[s->row_of[i]].space == space)
                status = take_part(s, i, writer, 0, s->tensors[i].part.count);
        weights_release(s->weights, space);
    }
    return status;
}

/* 96 bytes hold LH_MAX_RANK numbers of 20 digits. */
static void snapshot_shape_text(uint32_t rank, const uint64_t *shape, char out[96])
{
    int length = snprintf(out, 96, "[");
    for (uint32_t i = 0; i < rank; i++)
        length += snprintf(out + length, 96 - (size_t)length, "%s%llu", i == 0 ? "" : ", ",
                           (unsigned long long)shape[i]);
    (void)snprintf(out + length, 96 - (size_t)length, "]");
}

/* Zeros. */
static lh_status_t clear_row(const snapshot_t *s, const snapshot_row_t *row)
{
    float *zeros = mem_array(row->count, sizeof(*zeros));
    if (zeros == NULL) return LH_NO_MEMORY;
    const lh_status_t status = weights_write(s->weights, row->space, row->parameter, row->begin,
                                             row->count, LH_DTYPE_F32, zeros);
    mem_free(zeros);
    return status;
}

/* Reads only the rows of shards that hold elements of this range; each is checked against its
 * digest. */
static lh_status_t load_row(const snapshot_t *s, checkpoint_t *from, const snapshot_row_t *want,
                            bool states)
{
    const manifest_tensor_t *have = checkpoint_find(from, want->name);
    if (have == NULL && want->space == SNAPSHOT_ERRORS) {
        memset(want->errors, 0, want->count * sizeof(float));
        return LH_OK;
    }
    /* An adapter that is new to the model, as its weights come from an import or from a run without:
     * the first steps begin with it as it was drawn, and who only looks has none of it. */
    const bool new = have == NULL &&
                     !states &&weights_parameters(s->weights)->items[want->parameter].factor;
    if (new) return s->adds_nothing ? clear_row(s, want) : LH_OK;
    if (have == NULL)
        return fail(LH_INVALID, "%s: holds no tensor %s, which the model needs", from->path,
                    want->name);
    if (have->rank != want->rank ||
        memcmp(have->shape, want->shape, want->rank * sizeof(*want->shape)) != 0) {
        char found[96], expected[96];
        snapshot_shape_text(have->rank, have->shape, found);
        snapshot_shape_text(want->rank, want->shape, expected);
        return fail(LH_INVALID, "%s: %s is %s, the model has %s", from->path, want->name, found,
                    expected);
    }
    const tensor_part_t part = tensor_part_range(want->rank, want->shape, want->begin, want->count);
    if (want->space == SNAPSHOT_ERRORS) return checkpoint_read(from, have, &part, want->errors);
    float *values = mem_array(want->count, sizeof(*values));
    if (values == NULL) return LH_NO_MEMORY;

    lh_status_t status = checkpoint_read(from, have, &part, values);
    if (status == LH_OK)
        status = weights_write(s->weights, want->space, want->parameter, want->begin, want->count,
                               LH_DTYPE_F32, values);
    mem_free(values);
    return status;
}

/* First a look at names that the model lacks, as those would be lost in silence. */
static lh_status_t load_once(const snapshot_t *s, checkpoint_t *from, bool states)
{
    lh_status_t status = checkpoint_refuse_extra(from, weights_parameters(s->weights));
    for (uint32_t i = 0; i < s->row_count && status == LH_OK; i++)
        if (states || s->rows[i].space < SPACE_STATE)
            status = load_row(s, from, &s->rows[i], states);
    return status;
}

/* A read that failed may succeed the next moment, so LH_IO is tried once more; but not where the
 * file is not there, which errno, still that of the read, tells. */
lh_status_t snapshot_load(const snapshot_t *s, checkpoint_t *from, bool states)
{
    const lh_status_t status = load_once(s, from, states);
    return status == LH_IO && errno != ENOENT ? load_once(s, from, states) : status;
}

/* A run that trains may remove an old checkpoint while it is read here. Then one that is newer has
 * been committed, so the search begins at the top again, up to TRIES times. */
lh_status_t snapshot_load_newest(weights_t *w, const char *folder, const char *model, bool *found)
{
    enum { TRIES = 16 };
    snapshot_t *s;
    uint32_t tries = 0;
    *found = false;
    lh_status_t status = snapshot_new(w, NULL, &s);
    if (status != LH_OK) return status;
    s->adds_nothing = true;
    for (checkpoint_below_t below = CHECKPOINT_ALL; status == LH_OK && !*found;) {
        checkpoint_t *newest = NULL;
        status = checkpoint_open_newest(folder, &below, &newest);
        if (newest == NULL) break;
        checkpoint_exclude(&below, newest);
        status = snapshot_identity_compare_model(newest->path, newest->manifest->meta.model, model);
        if (status == LH_OK) status = snapshot_load(s, newest, false);
        *found = status == LH_OK;
        const int error = errno;
        if (!*found && checkpoint_gone(newest->path) && tries++ < TRIES) {
            below = CHECKPOINT_ALL;
            status = LH_OK;
        } else if (!*found && checkpoint_lost(status, error)) {
            checkpoint_skip(newest->manifest->meta.step);
            status = LH_OK;
        }
        checkpoint_close(newest);
    }
    snapshot_free(s);
    return status;
}

/* By the names of tensors and the digests of their parts. */
static uint64_t tensors_digest(const manifest_t *m)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < m->tensor_count; i++)
        for (uint32_t k = 0; k < m->tensors[i].part_count; k++) {
            const manifest_tensor_t *tensor = &m->tensors[i];
            const uint64_t words[] = {all, digest_xxh3(tensor->name, strlen(tensor->name)),
                                      tensor->parts[k].xxh3};
            all = digest_xxh3(words, sizeof(words));
        }
    return all;
}

lh_status_t snapshot_load_reference(const session_t *s, const char *imported, const char *model,
                                    uint64_t *digest)
{
    const char *named = s->job->dpo.reference, *folder = named != NULL ? named : imported;
    checkpoint_t *from = NULL;
    snapshot_t *snapshot = NULL;
    if (folder == NULL)
        return fail(LH_INVALID,
                    "%s: [train] phase = dpo has no model to compare with; expected [dpo] "
                    "reference or [import] from",
                    s->job->path);
    lh_status_t status = checkpoint_open_newest(folder, &CHECKPOINT_ALL, &from);
    if (status == LH_OK && from == NULL)
        status = fail(LH_INVALID, "%s: holds no checkpoint; [dpo] reference is a folder of some",
                      folder);
    if (status == LH_OK)
        status = snapshot_identity_compare_model(from->path, from->manifest->meta.model, model);
    if (status == LH_OK) status = snapshot_new(s->reference, NULL, &snapshot);
    if (status == LH_OK) status = snapshot_load(snapshot, from, false);
    if (status == LH_OK) *digest = tensors_digest(from->manifest);
    snapshot_free(snapshot);
    checkpoint_close(from);
    return status;
}

/* ---- a run's identity as lines of text ---- */

void snapshot_identity_model(const job_t *job, const plugin_t *plugin, const void *config,
                             text_t *out)
{
    const option_table_t table = plugin_options(plugin);
    text_printf(out, "model.plugin = %s\n", job->model.plugin);
    if (plugin->architecture[0] != '\0')
        text_printf(out, "model.architecture = %.16s\n", plugin->architecture);
    for (uint32_t i = 0; i < table.count; i++) {
        char buffer[OPTION_TEXT];
        const char *value = option_text(&table.rows[i], config, buffer);
        text_printf(out, "model.%s = %s\n", table.rows[i].key, value == NULL ? "" : value);
    }
    if (job->adapter.name != NULL)
        text_printf(out, "model.adapter = %s, rank %llu, alpha %.17g%s\n", job->adapter.match,
                    (unsigned long long)job->adapter.rank, job->adapter.alpha,
                    job->adapter.kind == ADAPTER_DORA ? ", dora" : "");
}

void snapshot_identity_tokenizer(uint64_t digest, text_t *out)
{
    if (digest != 0) text_printf(out, "tokenizer.content = %016llx\n", (unsigned long long)digest);
}

/* The lines must not depend on how printf shows NULL. */
static const char *set_or_empty(const char *text)
{
    return text == NULL ? "" : text;
}

/* A comparison looks lines up by their keys; their order only decides which difference is told. */
void snapshot_identity(const session_t *s, text_t *out)
{
    const job_t *job = s->job;
    snapshot_identity_model(job, s->model_plugin, s->model_config, out);
    text_printf(out, "data.train = %s\n", set_or_empty(job->data.train));
    text_printf(out, "data.split = %s\n", set_or_empty(job->data.split));
    text_printf(out, "data.documents = %s\n",
                job->data.documents == DOCUMENTS_APART ? "apart" : "joined");
    text_printf(out, "data.seed = %llu\n", (unsigned long long)job->data.seed);
    text_printf(out, "train.phase = %s\n",
                job->train.phase == PHASE_PRETRAIN ? "pretrain"
                : job->train.phase == PHASE_SFT    ? "sft"
                                                   : "dpo");
    if (job->train.phase == PHASE_DPO) text_printf(out, "dpo.beta = %.17g\n", job->dpo.beta);
    if (job->train.phase != PHASE_PRETRAIN)
        text_printf(out, "data.packing = %s\ndata.too_long = %s\n",
                    job->data.packing ? "yes" : "no",
                    job->data.too_long == TOO_LONG_FAIL   ? "fail"
                    : job->data.too_long == TOO_LONG_SKIP ? "skip"
                                                          : "cut");
    text_printf(out, "train.sequence = %llu\n", (unsigned long long)job->train.sequence);
    text_printf(out, "train.batch = %llu\n", (unsigned long long)job->train.batch);
    text_printf(out, "train.micro_batch = %llu\n", (unsigned long long)job->train.micro_batch);
    text_printf(out, "train.head_chunk = %llu\n", (unsigned long long)job->train.head_chunk);
    text_printf(out, "train.seed = %llu\n", (unsigned long long)job->train.seed);
    text_printf(out, "train.deterministic = %s\n", job->train.deterministic ? "yes" : "no");
    /* A checkpoint names rank 0's kernels; whether the other ranks took them is up to this. */
    text_printf(out, "device.tune = %s\n", job->device.tune ? "yes" : "no");
    text_printf(out, "train.precision = %s\n",
                job->train.precision == PRECISION_BF16 ? "bf16" : "f32");
    text_printf(out, "train.logits = %s\n",
                job->train.logits == LOGITS_COMPUTE ? "compute" : "f32");
    text_printf(out, "optimizer.plugin = %s\n", job->optimizer.plugin);
    text_printf(out, "optimizer.rule = %s\n", job->optimizer.rule);
    for (uint32_t i = 0; i < job->group_count; i++)
        if (job->groups[i].rule != NULL)
            text_printf(out, "group.%s.rule = %s\n", job->groups[i].name, job->groups[i].rule);
}

/* The line of a text that begins with these bytes; NULL: none. */
static const char *find_line(const char *text, const char *head, size_t length)
{
    while (*text != '\0') {
        if (strncmp(text, head, length) == 0) return text;
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    return NULL;
}

bool snapshot_identity_number(const char *text, const char *key, uint64_t *out)
{
    char head[64], digits[32];
    const int length = snprintf(head, sizeof(head), "%s = ", key);
    lh_assert(length > 0 && (size_t)length < sizeof(head));
    const char *line = text == NULL ? NULL : find_line(text, head, (size_t)length);
    if (line == NULL) return false;
    (void)snprintf(digits, sizeof(digits), "%.*s", (int)strcspn(line + length, "\n"),
                   line + length);
    return quantity_u64(digits, out);
}

/* Keys whose lines belong to the model itself. */
static bool of_model(const char *line)
{
    return text_starts(line, "model.") || text_starts(line, "tokenizer.");
}

/* The first value that differs of those that both texts name: two lines. Lines that only one of the
 * texts has are no difference: a version that adds a line still resumes older checkpoints. */
static bool find_difference(const char *then, const char *now, bool model, const char **then_line,
                            const char **now_line)
{
    while (*then != '\0') {
        const size_t length = strcspn(then, "\n"), key = strcspn(then, "=\n");
        const char *found = !model || of_model(then) ? find_line(now, then, key + 1) : NULL;
        *then_line = then;
        *now_line = found;
        if (found != NULL && (length != strcspn(found, "\n") || memcmp(then, found, length) != 0))
            return true;
        then += length + (then[length] == '\n');
    }
    return false;
}

static lh_status_t identity_compare(const char *path, const char *then, const char *now, bool model,
                                    const char *what)
{
    const char *a, *b;
    if (then == NULL || !find_difference(then, now, model, &a, &b)) return LH_OK;
    return fail(LH_MISMATCH, "%s was made with '%.*s', now it is '%.*s': %s", path,
                (int)strcspn(a, "\n"), a, (int)strcspn(b, "\n"), b, what);
}

lh_status_t snapshot_identity_compare(const char *path, const char *then, const char *now)
{
    return identity_compare(path, then, now, false,
                            "that would be another run; set [train] same_bits = no to go on");
}

lh_status_t snapshot_identity_compare_model(const char *path, const char *then, const char *now)
{
    return identity_compare(
        path, then, now, true,
        "that would be another model; give it the options and the tokenizer that it was "
        "trained with");
}
