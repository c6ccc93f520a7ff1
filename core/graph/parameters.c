/* parameters.c - the logical parameters of a model, and their values before the first step.
 *
 * The table comes from a plugin, so each row is imported and checked, and refusals name the
 * parameter. A row with classes applies to blocks of those classes only: a model whose blocks
 * differ (every other block with experts, say) lists the rows of all kinds once. */
#include <graph/parameters.h>

#include <fnmatch.h>
#include <math.h>

#include <base/digest.h>
#include <base/memory.h>
#include <base/philox.h>
#include <base/text.h>
#include <plugin/import.h>

/* Bounds that no model reaches, against tables that are garbage. */
enum { MAX_ROWS = 4096, MAX_BLOCKS = 65536, CLASSES = 64 };

/* Checks what a row must say. */
static lh_status_t row_check(const lh_param_t *row)
{
    if (row->name == NULL || row->name[0] == '\0')
        return fail(LH_INVALID, "the model lists a parameter without a name");
    if (row->part < LH_PART_EMBED || row->part > LH_PART_HEAD)
        return fail(LH_INVALID, "parameter '%s' names part %u; expected 1 to 3", row->name,
                    row->part);
    if (row->init < LH_INIT_NORMAL || row->init > LH_INIT_RESIDUAL)
        return fail(LH_INVALID, "parameter '%s' names init %u; expected 1 to 4", row->name,
                    row->init);
    if (row->shape[0] == 0) return fail(LH_INVALID, "parameter '%s' has no shape", row->name);
    return LH_OK;
}

/* Copies the rows, as a plugin's may be shorter or longer than those known here. */
static lh_status_t rows_import(parameters_t *p, const lh_model_info_t *info)
{
    if (info->param_count == 0 || info->param_count > MAX_ROWS)
        return fail(LH_INVALID, "the model lists %u parameters; expected 1 to %d",
                    info->param_count, MAX_ROWS);
    p->rows = mem_array(info->param_count, sizeof(*p->rows));
    if (p->rows == NULL) return LH_NO_MEMORY;

    for (uint32_t i = 0; i < info->param_count; i++) {
        const lh_status_t status = import_row(
            &p->rows[i], sizeof(p->rows[i]), info->params, info->param_size, i,
            offsetof_end_(&p->rows[i], shape), "the model's parameters");
        if (status != LH_OK) return status;
        const lh_status_t checked = row_check(&p->rows[i]);
        if (checked != LH_OK) return checked;
    }
    p->row_count = info->param_count;
    return LH_OK;
}

/* Whether a part has the row's parameter, by the part and the classes of blocks that the row
 * names. */
static bool row_is_in(const parameters_t *p, const lh_param_t *row, uint32_t part, uint32_t block)
{
    lh_assert(part != LH_PART_BLOCK || block < p->blocks);
    if (row->part != part) return false;
    if (part != LH_PART_BLOCK || row->classes == 0) return true;
    return (row->classes >> p->block_classes[block] & 1u) != 0;
}

/* "blocks.7.attn.wq"; embed and head have the row's name. NULL: memory is short. */
static char *logical_name(const lh_param_t *row, uint32_t block)
{
    text_t name = {0};
    if (row->part == LH_PART_BLOCK) text_printf(&name, "blocks.%u.", block);
    text_append(&name, row->name);
    if (text_status(&name) == LH_OK) return name.data;
    text_free(&name);
    return NULL;
}

/* Appends a parameter. Its shape ends at the first dimension of 0; `rows` are all dimensions but
 * the last, so that every parameter can be seen as a matrix [rows, columns]. */
static lh_status_t item_set(parameters_t *p, const lh_param_t *row, uint32_t block)
{
    lh_assert(p->count < (uint64_t)p->row_count * p->blocks);
    parameter_t *item = &p->items[p->count];
    item->name = logical_name(row, block);
    if (item->name == NULL) return LH_NO_MEMORY;
    item->row = row;
    item->part = row->part;
    item->block = block;
    item->storage = p->count++;
    item->rows = item->columns = item->elements = 1;
    for (item->rank = 0; item->rank < 3 && row->shape[item->rank] != 0; item->rank++) {
        const uint64_t n = row->shape[item->rank];
        if (!checked_mul(item->elements, n, &item->elements) || item->elements > INT64_MAX / 8)
            return fail(LH_INVALID, "parameter '%s' has too many elements", item->name);
        item->shape[item->rank] = n;
        item->columns = n;
    }
    item->rows = item->elements / item->columns;
    return LH_OK;
}

/* Whether a part has a parameter of the row's name already; *other is that one. Blocks have their number in front
 * of it, embedding and head do not: of these no two may have one name, as checkpoints go by names. */
static bool name_is_taken(const parameters_t *p, const lh_param_t *row, uint32_t block,
                          uint32_t *other)
{
    return parameters_find_local(p, row->part, block, row->name, other) ||
           (row->part != LH_PART_BLOCK && parameters_find(p, row->name, other));
}

/* Whether the last parameter, a block's, has the whole name of one of the embedding's. */
static bool embed_has_name(const parameters_t *p, uint32_t *other)
{
    const parameter_t *last = &p->items[p->count - 1];
    if (last->part != LH_PART_BLOCK) return false;
    for (uint32_t i = 0; p->items[i].part == LH_PART_EMBED; i++) {
        *other = i;
        if (strcmp(p->items[i].name, last->name) == 0) return true;
    }
    return false;
}

/* Appends the parameters of one part, in the order of the table. */
static lh_status_t part_list(parameters_t *p, uint32_t part, uint32_t block)
{
    for (uint32_t i = 0; i < p->row_count; i++) {
        if (!row_is_in(p, &p->rows[i], part, block)) continue;
        uint32_t other;
        if (name_is_taken(p, &p->rows[i], block, &other))
            return fail(LH_INVALID, "the model lists parameter '%s' twice", p->items[other].name);
        const lh_status_t status = item_set(p, &p->rows[i], block);
        if (status != LH_OK) return status;
        if (embed_has_name(p, &other))
            return fail(LH_INVALID, "the model lists parameter '%s' twice", p->items[other].name);
    }
    return LH_OK;
}

/* Finds in whose memory tied parameters lie, as a head that is the embedding's table, and counts
 * elements, those of tied parameters once. */
static lh_status_t ties_resolve(parameters_t *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        parameter_t *item = &p->items[i];
        if (item->row->tied_to == NULL) continue;

        uint32_t other;
        if (!parameters_find(p, item->row->tied_to, &other) || other == i)
            return fail(LH_INVALID, "parameter '%s' is tied to '%s', which the model does not have",
                        item->name, item->row->tied_to);
        const parameter_t *target = &p->items[other];
        if (target->row->tied_to != NULL)
            return fail(LH_INVALID, "parameter '%s' is tied to '%s', which is tied itself",
                        item->name, target->name);
        if (item->rank != target->rank ||
            memcmp(item->shape, target->shape, sizeof(item->shape)) != 0)
            return fail(LH_INVALID, "parameter '%s' is tied to '%s', which has another shape",
                        item->name, target->name);
        item->storage = other;
    }
    for (uint32_t i = 0; i < p->count; i++)
        if (p->items[i].storage == i) p->elements += p->items[i].elements;
    return LH_OK;
}

/* Takes over the model's sizes and classes of blocks, then the rows. */
static lh_status_t info_take(parameters_t *p, const lh_model_info_t *info)
{
    if (info->blocks == 0 || info->blocks > MAX_BLOCKS)
        return fail(LH_INVALID, "the model has %u blocks; expected 1 to %d", info->blocks,
                    MAX_BLOCKS);
    if (info->vocab == 0 || info->vocab > INT32_MAX) /* tokens are I32 */
        return fail(LH_INVALID, "the model has a vocabulary of %llu tokens; expected 1 to %d",
                    (unsigned long long)info->vocab, INT32_MAX);
    p->blocks = info->blocks;
    p->hidden = info->hidden;
    p->vocab = info->vocab;
    p->max_tokens = info->max_tokens;
    p->block_classes = mem_new(info->blocks);
    if (p->block_classes == NULL) return LH_NO_MEMORY;
    for (uint32_t b = 0; info->block_classes != NULL && b < info->blocks; b++) {
        if (info->block_classes[b] >= CLASSES)
            return fail(LH_INVALID, "block %u has class %u; expected 0 to %d", b,
                        info->block_classes[b], CLASSES - 1);
        p->block_classes[b] = info->block_classes[b];
    }
    return rows_import(p, info);
}

/* Lists all parameters in the order of the model: embed, block by block, head. There is room for
 * every row in every block. */
static lh_status_t items_list(parameters_t *p)
{
    p->items = mem_array((size_t)p->row_count * p->blocks, sizeof(*p->items));
    if (p->items == NULL) return LH_NO_MEMORY;

    lh_status_t status = part_list(p, LH_PART_EMBED, 0);
    for (uint32_t b = 0; status == LH_OK && b < p->blocks; b++)
        status = part_list(p, LH_PART_BLOCK, b);
    if (status == LH_OK) status = part_list(p, LH_PART_HEAD, 0);
    return status == LH_OK ? ties_resolve(p) : status;
}

/* A mistake in the table of a model is told here, before anything is allocated on a device. */
lh_status_t parameters_new(const lh_model_api_t *api, lh_model_t *model, parameters_t **out)
{
    lh_model_info_t info = {.struct_size = sizeof(info)};
    lh_status_t status = api->describe(model, &info);
    if (status != LH_OK) return status;

    parameters_t *p = mem_new(sizeof(*p));
    if (p == NULL) return LH_NO_MEMORY;
    status = info_take(p, &info);
    if (status == LH_OK) status = items_list(p);
    if (status != LH_OK) {
        parameters_free(p);
        return status;
    }
    *out = p;
    return LH_OK;
}

/* ---- adapters ---- */

bool parameters_match(const char *globs, const char *name)
{
    char glob[512];
    while (globs != NULL && *globs != '\0') {
        const size_t length = strcspn(globs, ",");
        if (length < sizeof(glob)) {
            memcpy(glob, globs, length);
            glob[length] = '\0';
            if (fnmatch(text_trim(glob), name, 0) == 0) return true;
        }
        globs += length + (globs[length] == ',' ? 1 : 0);
    }
    return false;
}

/* Matrices of blocks alone: what stands in the head and the embedding is cut and looked up in ways
 * of its own, and experts are no single matrix. */
static bool item_is_adapted(const parameters_t *p, uint32_t index, const parameters_adapter_t *how)
{
    const parameter_t *item = &p->items[index];
    return item->part == LH_PART_BLOCK && item->rank == 2 && item->storage == index &&
           parameters_match(how->match, item->name);
}

/* Why an adapter has nothing to change. */
static lh_status_t refuse_match(const parameters_t *p, const char *match)
{
    for (uint32_t i = 0; i < p->count; i++) {
        const parameter_t *item = &p->items[i];
        if (item->rank == 3 && parameters_match(match, item->name))
            return fail(
                LH_UNSUPPORTED,
                "the adapter's match = %s names %s, a stack of %llu experts: adapters are of "
                "single matrices, and no other is named",
                match, item->name, (unsigned long long)item->shape[0]);
    }
    return fail(LH_INVALID, "the adapter's match = %s names no matrix of the model's blocks",
                match);
}

/* "model.layers.{}.mlp.up_proj.weight" is "base_model.model.model.layers.{}.mlp.up_proj.lora_A.weight"
 * in PEFT's files. NULL where the matrix has no tensor of its own as it is, which `merged` does not
 * need: then *failed says whether memory was short. */
static char *factor_hf_name(const lh_param_t *row, const char *factor, bool *failed)
{
    static const char weight[] = ".weight";
    text_t name = {0};
    *failed = false;
    if (row->hf_name == NULL || row->hf_import != NULL || !text_ends(row->hf_name, weight))
        return NULL;
    text_printf(&name, "base_model.model.%.*s.lora_%s",
                (int)(strlen(row->hf_name) - strlen(weight)), row->hf_name, factor);
    if (text_status(&name) == LH_OK) return name.data;
    *failed = true;
    text_free(&name);
    return NULL;
}

/* Fills the rows of a matrix's row's factors. */
static lh_status_t factor_rows_make(const lh_param_t *of, const parameters_adapter_t *how,
                                    lh_param_t rows[ADAPTER_FACTORS])
{
    static const char *const hf_names[] = {"A.weight", "B.weight", "magnitude_vector"};
    const uint64_t out = of->shape[0], in = of->shape[1];
    if (how->rank > out || how->rank > in)
        return fail(
            LH_INVALID,
            "the adapter's rank is %llu, parameter '%s' is [%llu, %llu]; expected a rank of "
            "at most its shorter side",
            (unsigned long long)how->rank, of->name, (unsigned long long)out,
            (unsigned long long)in);
    for (uint32_t i = 0; i < (how->magnitude ? ADAPTER_FACTORS : ADAPTER_M); i++) {
        bool failed;
        text_t name = {0};
        text_printf(&name, "%s.lora_%c", of->name, "abm"[i]);
        rows[i] = (lh_param_t){.name = name.data,
                               .hf_name = factor_hf_name(of, hf_names[i], &failed),
                               .part = LH_PART_BLOCK,
                               .init = i == ADAPTER_A ? LH_INIT_NORMAL : LH_INIT_ZERO,
                               .unit = 1,
                               .shape = {i == ADAPTER_A ? how->rank : out, i == ADAPTER_A ? in
                                                                           : i == ADAPTER_B
                                                                               ? how->rank
                                                                               : 0},
                               .classes = of->classes,
                               /* of kaiming_uniform_(a=sqrt(5)): uniform to 1 / sqrt(in) */
                               .init_scale = i == 0 ? 1 / sqrt(3.0 * (double)in) : 0};
        if (failed || name.failed) return LH_NO_MEMORY;
    }
    return LH_OK;
}

/* The index of a row's factors in factor_rows, which are made at the first block that has them. */
static lh_status_t factor_rows_of(parameters_t *p, const lh_param_t *row,
                                  const parameters_adapter_t *how, lh_param_t **out)
{
    lh_param_t *rows = &p->factor_rows[ADAPTER_FACTORS * (size_t)(row - p->rows)];
    *out = rows;
    return rows[0].name != NULL ? LH_OK : factor_rows_make(row, how, rows);
}

/* A factor behind its matrix; its index is p->count. */
static lh_status_t factor_add(parameters_t *p, const lh_param_t *row, uint32_t block)
{
    parameter_t *item = &p->items[p->count];
    item->name = logical_name(row, block);
    if (item->name == NULL) return LH_NO_MEMORY;
    item->row = row;
    item->part = LH_PART_BLOCK;
    item->block = block;
    item->factor = true;
    item->rank = row->shape[1] == 0 ? 1 : 2;
    memcpy(item->shape, row->shape, item->rank * sizeof(item->shape[0]));
    item->rows = item->rank == 1 ? 1 : row->shape[0];
    item->columns = row->shape[item->rank - 1];
    item->elements = item->rows * item->columns;
    p->elements += item->elements;
    item->storage = p->count++;
    return LH_OK;
}

/* Takes the old list over into p->items, each adapted matrix followed by its factors. moved [count]:
 * the new index of each. */
static lh_status_t items_adapt(parameters_t *p, const parameters_t *old,
                               const parameters_adapter_t *how, uint32_t *moved)
{
    for (uint32_t i = 0; i < old->count; i++) {
        lh_param_t *rows;
        const uint32_t at = p->count++;
        p->items[at] = old->items[i];
        moved[i] = at;
        if (!item_is_adapted(old, i, how)) continue;
        p->items[at].adapter = at + 1;
        lh_status_t status = factor_rows_of(p, old->items[i].row, how, &rows);
        for (uint32_t k = 0; k < p->adapter_factors && status == LH_OK; k++)
            status = factor_add(p, &rows[k], old->items[i].block);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

lh_status_t parameters_adapt(parameters_t *p, const parameters_adapter_t *how)
{
    const parameters_t old = *p;
    uint32_t matched = 0;
    lh_assert(p->factor_rows == NULL);
    for (uint32_t i = 0; i < old.count; i++)
        matched += item_is_adapted(&old, i, how) ? 1 : 0;
    if (matched == 0) return refuse_match(&old, how->match);
    uint32_t *moved = mem_array(old.count, sizeof(*moved));
    p->adapter_factors = how->magnitude ? ADAPTER_FACTORS : ADAPTER_M;
    p->items = mem_array(old.count + (size_t)p->adapter_factors * matched, sizeof(*p->items));
    p->factor_rows = mem_array(p->row_count, ADAPTER_FACTORS * sizeof(*p->factor_rows));
    p->factor_row_count = ADAPTER_FACTORS * p->row_count;
    p->adapter_scale = how->scale;
    p->count = 0;
    lh_status_t status = moved == NULL || p->items == NULL || p->factor_rows == NULL
                             ? LH_NO_MEMORY
                             : items_adapt(p, &old, how, moved);
    if (status == LH_OK)
        for (uint32_t i = 0; i < old.count; i++)
            p->items[moved[i]].storage = moved[old.items[i].storage];
    /* Names of matrices belong to one of the two lists: after a failure to the old one. */
    if (status != LH_OK) {
        for (uint32_t i = 0; p->items != NULL && i < p->count; i++)
            if (p->items[i].factor) mem_free(p->items[i].name);
        mem_free(p->items);
        p->items = old.items;
        p->count = old.count;
    } else {
        mem_free(old.items);
    }
    mem_free(moved);
    return status;
}

void parameters_free(parameters_t *p)
{
    if (p == NULL) return;
    for (uint32_t i = 0; p->items != NULL && i < p->count; i++)
        mem_free(p->items[i].name);
    mem_free(p->items);
    mem_free(p->block_classes);
    for (uint32_t i = 0; p->factor_rows != NULL && i < p->factor_row_count; i++) {
        mem_free((char *)(uintptr_t)p->factor_rows[i].name);
        mem_free((char *)(uintptr_t)p->factor_rows[i].hf_name);
    }
    mem_free(p->factor_rows);
    mem_free(p->rows);
    mem_free(p);
}

/* For ties and for tools; nothing calls it often. */
bool parameters_find(const parameters_t *p, const char *name, uint32_t *out)
{
    for (uint32_t i = 0; i < p->count; i++) {
        if (!text_equal(p->items[i].name, name)) continue;
        *out = i;
        return true;
    }
    return false;
}

/* Looks at all parameters in turn: it is called while parts are recorded, never in a step. */
bool parameters_find_local(const parameters_t *p, uint32_t part, uint32_t block, const char *name,
                           uint32_t *out)
{
    for (uint32_t i = 0; i < p->count; i++) {
        const parameter_t *item = &p->items[i];
        if (item->part != part || item->block != block || !text_equal(item->row->name, name))
            continue;
        *out = i;
        return true;
    }
    return false;
}

/* A tied parameter has the values of the parameter in whose memory it lies. */
void parameter_initial(const parameters_t *p, uint32_t index, uint64_t seed, double init_std,
                       uint64_t begin, uint64_t count, float *out)
{
    lh_assert(index < p->count);
    const parameter_t *item = &p->items[p->items[index].storage];
    lh_assert(begin <= item->elements && count <= item->elements - begin);
    const uint32_t init = item->row->init;
    double std = item->row->init_scale > 0 ? item->row->init_scale : init_std;
    /* Each block adds twice to the residual stream, whose variance should not grow with depth: the
     * rule of GPT-2 (Radford et al., 2019, section 2.3). */
    if (init == LH_INIT_RESIDUAL) std /= sqrt(2.0 * p->blocks);

    if (init == LH_INIT_ZERO || init == LH_INIT_ONE) {
        for (uint64_t i = 0; i < count; i++)
            out[i] = init == LH_INIT_ONE ? 1.0f : 0.0f;
        return;
    }
    philox_normals(seed, digest_xxh3(item->name, strlen(item->name)), begin, count, std, out);
}
