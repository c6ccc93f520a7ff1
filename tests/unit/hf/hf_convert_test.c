/* hf_convert_test.c - a folder that was imported and exported again holds the same tensors, bit for
 * bit; one that does not fit the model is refused by name. */
#include <unit/checkpoint/model_kit.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

#include <base/log.h>
#include <base/sys.h>
#include <format/safetensors.h>
#include <hf/hf_export.h>
#include <hf/hf_import.h>

#define GOLDEN LH_TEST_DATA "/../golden"

enum { MOST_TENSORS = 64, AS_IT_IS = 100, MIXED = 101 };

/* One change of a folder of weights. */
typedef struct change {
    uint32_t dtype;        /* LH_DTYPE_*: all tensors, with every bit pattern; MIXED; AS_IT_IS */
    const char *prefix;    /* cut off names */
    const char *drop;      /* a tensor that is left out */
    const char *add;       /* one more, [2] F32 */
    const char *copy, *as; /* a tensor once more under another name */
    const char *widen;     /* a tensor that gets one more row */
    const char *poison;    /* a tensor of F32 whose values 1 and 3 are no finite numbers */
} change_t;

static lh_dtype_t changed_dtype(const change_t *c, uint32_t i, lh_dtype_t was)
{
    static const lh_dtype_t mixed[] = {LH_DTYPE_F32, LH_DTYPE_BF16, LH_DTYPE_F16};
    return c->dtype == AS_IT_IS ? was : c->dtype == MIXED ? mixed[i % 3] : c->dtype;
}

static safetensors_row_t changed_row(const change_t *c, const safetensor_t *t, uint32_t i)
{
    safetensors_row_t row = {
        .name = t->name, .dtype = changed_dtype(c, i, t->dtype->number), .rank = t->rank};
    memcpy(row.shape, t->shape, sizeof(row.shape));
    if (c->prefix != NULL && strncmp(t->name, c->prefix, strlen(c->prefix)) == 0)
        row.name += strlen(c->prefix);
    if (c->widen != NULL && strcmp(c->widen, t->name) == 0) row.shape[0]++;
    return row;
}

static void fill_row(const change_t *c, const safetensors_t *s, const safetensor_t *t,
                     safetensors_writer_t *w, uint32_t index, const safetensors_row_t *row)
{
    uint64_t bytes;
    assert_true(safetensors_row_bytes(row, &bytes));
    unsigned char *data = mem_new((size_t)bytes);
    assert_non_null(data);
    if (c->dtype == AS_IT_IS && t != NULL)
        assert_int_equal(safetensors_read(s, t, 0, data, bytes < t->bytes ? bytes : t->bytes),
                         LH_OK);
    else /* all patterns: numbers, subnormals, infinities, NaNs of every payload */
        for (uint64_t k = 0; k < bytes; k++)
            data[k] = (unsigned char)((k % 2 == 0 ? k / 2 : k / 512) + index * 37);
    if (c->poison != NULL && t != NULL && strcmp(c->poison, t->name) == 0) {
        ((float *)(void *)data)[1] = NAN;
        ((float *)(void *)data)[3] = -INFINITY;
    }
    assert_int_equal(safetensors_write(w, index, 0, data, bytes), LH_OK);
    mem_free(data);
}

/* Makes a folder `name` like `from` but for the change. */
static const char *make_folder(scratch_t *s, const char *name, const char *from, const change_t *c)
{
    static char folder[256];
    char path[512];
    (void)snprintf(folder, sizeof(folder), "%.100s/%.100s", s->folder, name);
    assert_int_equal(mkdir(folder, 0755), 0);
    (void)snprintf(path, sizeof(path), "%s/config.json", from);
    size_t length;
    char *config = scratch_read(path, &length);
    char inside[160];
    (void)snprintf(inside, sizeof(inside), "%.100s/config.json", name);
    scratch_write(s, inside, config, length);
    mem_free(config);

    safetensors_t *in;
    safetensors_writer_t *w;
    safetensors_row_t rows[MOST_TENSORS];
    const safetensor_t *source[MOST_TENSORS] = {NULL};
    uint32_t count = 0;
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", from);
    assert_int_equal(safetensors_open(path, NULL, &in), LH_OK);
    for (uint32_t i = 0; i < in->count; i++) {
        if (c->drop != NULL && strcmp(c->drop, in->tensors[i].name) == 0) continue;
        source[count] = &in->tensors[i];
        rows[count] = changed_row(c, &in->tensors[i], count);
        count++;
        if (c->copy == NULL || strcmp(c->copy, in->tensors[i].name) != 0) continue;
        source[count] = &in->tensors[i];
        rows[count] = changed_row(c, &in->tensors[i], count);
        rows[count++].name = c->as;
    }
    if (c->add != NULL)
        rows[count++] = (safetensors_row_t){
            .name = c->add, .dtype = LH_DTYPE_F32, .rank = 1, .shape = {2}};
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    assert_int_equal(safetensors_create(path, rows, count, NULL, 0, &w), LH_OK);
    for (uint32_t i = 0; i < count; i++)
        fill_row(c, in, source[i], w, i, &rows[i]);
    assert_int_equal(safetensors_finish(w, NULL), LH_OK);
    safetensors_close(in);
    return folder;
}

static lh_status_t do_import(const model_kit_t *k, const char *from, const char *to)
{
    const hf_import_how_t how = {.from = from,
                                 .folder = to,
                                 .table = k->plugin->model->hf,
                                 .parameters = k->parameters,
                                 .host = k->plugin->host,
                                 .plugins = k->registry};
    return hf_import(&how, NULL);
}

static void do_export(model_kit_t *k, const char *imported, const char *to, uint32_t dtype,
                      uint64_t shard_bytes)
{
    char path[512];
    checkpoint_t *c = NULL;
    (void)snprintf(path, sizeof(path), "%s/checkpoints", imported);
    assert_int_equal(checkpoint_open_latest(path, &c), LH_OK);
    const hf_export_how_t how = {.from = c,
                                 .folder = to,
                                 .imported = imported,
                                 .table = k->plugin->model->hf,
                                 .parameters = k->parameters,
                                 .option = kit_option,
                                 .context = k,
                                 .dtype = dtype,
                                 .shard_bytes = shard_bytes,
                                 .host = k->plugin->host,
                                 .plugins = k->registry,
                                 .bos = -1,
                                 .eos = -1};
    if (hf_export(&how, NULL) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    checkpoint_close(c);
}

static void assert_same_tensors(const char *a, const char *b)
{
    shard_index_t *x, *y;
    assert_int_equal(shard_index_open(a, NULL, &x), LH_OK);
    if (shard_index_open(b, NULL, &y) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    assert_int_equal(x->count, y->count);
    for (uint32_t i = 0; i < x->count; i++) {
        const safetensor_t *s = x->tensors[i].tensor, *t = y->tensors[i].tensor;
        assert_string_equal(s->name, t->name);
        assert_string_equal(s->dtype->name, t->dtype->name);
        assert_int_equal(s->rank, t->rank);
        assert_memory_equal(s->shape, t->shape, sizeof(s->shape));
        char *p = mem_new((size_t)s->bytes), *q = mem_new((size_t)s->bytes);
        assert_int_equal(safetensors_read(x->tensors[i].file, s, 0, p, s->bytes), LH_OK);
        assert_int_equal(safetensors_read(y->tensors[i].file, t, 0, q, s->bytes), LH_OK);
        assert_memory_equal(p, q, s->bytes);
        mem_free(p);
        mem_free(q);
    }
    shard_index_close(x);
    shard_index_close(y);
}

static const struct {
    const char *plugin, *folder;
} models[] = {
    {"llama", LH_TEST_DATA "/../../examples/data/stories260K"},
    {"gpt2", LH_TEST_DATA "/models/capp-gpt2"},
    {"llama", GOLDEN "/llama"},
    {"llama", GOLDEN "/llama-tied-scaled-rope"},
    {"gpt2", GOLDEN "/gpt2"},
    {"qwen", GOLDEN "/qwen2"},
    {"qwen", GOLDEN "/qwen3"},
    {"gptneox", GOLDEN "/gptneox"},
    {"falcon", GOLDEN "/falcon-40b-kind"},
};

static void import_then_export_is_the_same_bit_for_bit(void **state)
{
    static const uint32_t dtypes[] = {AS_IT_IS, LH_DTYPE_F32, LH_DTYPE_BF16, LH_DTYPE_F16, MIXED};
    scratch_t *s = *state;
    char imported[128], exported[128];
    (void)snprintf(imported, sizeof(imported), "%.100s/import", s->folder);
    (void)snprintf(exported, sizeof(exported), "%.100s/hf", s->folder);
    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++)
        for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
            model_kit_t k;
            const change_t change = {.dtype = dtypes[d]};
            const char *from = make_folder(s, "from", models[m].folder, &change);
            kit_open(&k, models[m].plugin, from);
            if (do_import(&k, from, imported) != LH_OK) FAIL_TEST("%s\n", fail_reason());
            do_export(&k, imported, exported, EXPORT_AS_IMPORTED, d % 2 == 0 ? 0 : 20000);
            assert_same_tensors(from, exported);
            kit_close(&k);
            assert_int_equal(folder_remove(from), LH_OK);
        }
}

static void old_uploads_come_without_prefix_and_with_copies(void **state)
{
    scratch_t *s = *state;
    char imported[128], exported[128];
    (void)snprintf(imported, sizeof(imported), "%.100s/import", s->folder);
    (void)snprintf(exported, sizeof(exported), "%.100s/hf", s->folder);
    const change_t change = {.dtype = AS_IT_IS,
                             .prefix = "transformer.",
                             .copy = "transformer.wte.weight",
                             .as = "lm_head.weight",
                             .add = "h.1.attn.masked_bias"};
    model_kit_t k;
    const char *from = make_folder(s, "from", GOLDEN "/gpt2", &change);
    kit_open(&k, "gpt2", from);
    if (do_import(&k, from, imported) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    do_export(&k, imported, exported, EXPORT_AS_IMPORTED, 0);
    assert_same_tensors(GOLDEN "/gpt2", exported);
    kit_close(&k);
}

static const struct {
    const char *plugin, *model;
    change_t change;
    const char *sentence;
} refused[] = {
    {"llama",
     GOLDEN "/llama",
     {.dtype = AS_IT_IS, .drop = "model.layers.1.mlp.up_proj.weight"},
     "from: tensor model.layers.1.mlp.up_proj.weight is missing"},
    {"llama",
     GOLDEN "/llama",
     {.dtype = AS_IT_IS,
      .drop = "model.layers.1.mlp.up_proj.weight",
      .copy = "model.layers.1.mlp.gate_proj.weight",
      .as = "model.layers.1.mlp.up_projection.weight"},
     "from: tensor model.layers.1.mlp.up_proj.weight is missing; tensor "
     "model.layers.1.mlp.up_projection.weight of the folder is read by no row"},
    {"llama",
     GOLDEN "/llama",
     {.dtype = AS_IT_IS, .prefix = "model.layers.1.mlp."},
     "from: tensor model.layers.1.mlp.down_proj.weight is missing, and so are 2 others; tensor "
     "down_proj.weight of the folder is read by no row"},
    {"llama",
     GOLDEN "/llama",
     {.dtype = AS_IT_IS,
      .prefix = "model.layers.1.mlp.up",
      .drop = "model.layers.1.mlp.down_proj.weight"},
     "from: tensor model.layers.1.mlp.down_proj.weight is missing, and so is 1 other; tensor "
     "_proj.weight of the folder is read by no row"},
    {"llama",
     GOLDEN "/llama",
     {.dtype = AS_IT_IS, .add = "model.layers.0.mystery"},
     "from/model.safetensors: tensor model.layers.0.mystery is none of this model's"},
    {"llama",
     GOLDEN "/llama",
     {.dtype = AS_IT_IS, .widen = "model.norm.weight"},
     "from/model.safetensors: tensor model.norm.weight is [33], the model wants [32]"},
    {"gpt2",
     GOLDEN "/gpt2",
     {.dtype = AS_IT_IS, .widen = "transformer.h.0.attn.c_attn.weight"},
     "from/model.safetensors: tensor transformer.h.0.attn.c_attn.weight is [33, 96], the model "
     "wants "
     "[32, 96]"},
    {"llama",
     GOLDEN "/llama",
     {.dtype = LH_DTYPE_I32},
     "from/model.safetensors: tensor lm_head.weight is I32; F32, BF16 and F16 are read"},
};

static void weights_that_do_not_fit_are_refused_by_name(void **state)
{
    scratch_t *s = *state;
    char imported[128];
    (void)snprintf(imported, sizeof(imported), "%.100s/import", s->folder);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        model_kit_t k;
        const char *from = make_folder(s, "from", refused[i].model, &refused[i].change);
        kit_open(&k, refused[i].plugin, from);
        assert_int_not_equal(do_import(&k, from, imported), LH_OK);
        assert_string_equal(behind_folder(s, fail_reason()), refused[i].sentence);
        assert_false(file_exists(imported));
        kit_close(&k);
        assert_int_equal(folder_remove(from), LH_OK);
    }
}

static void values_that_are_not_finite_are_told(void **state)
{
    scratch_t *s = *state;
    char imported[128], log[128], *text;
    int fd;
    size_t length;
    (void)snprintf(imported, sizeof(imported), "%.100s/import", s->folder);
    (void)snprintf(log, sizeof(log), "%.100s/log", s->folder);
    assert_int_equal(file_begin(log, O_TRUNC | O_APPEND, &fd), LH_OK);
    for (uint32_t poisoned = 0; poisoned < 2; poisoned++) {
        const change_t change = {.dtype = AS_IT_IS,
                                 .poison = poisoned != 0 ? "model.norm.weight" : NULL};
        model_kit_t k;
        const char *from = make_folder(s, "from", GOLDEN "/llama", &change);
        kit_open(&k, "llama", from);
        log_also(fd, log);
        if (do_import(&k, from, imported) != LH_OK) FAIL_TEST("%s\n", fail_reason());
        log_also(-1, "");
        kit_close(&k);
        assert_int_equal(folder_remove(from), LH_OK);
        assert_int_equal(file_read(log, 4096, &text, &length), LH_OK);
        if (poisoned == 0) assert_string_equal(text, "");
        if (poisoned == 0) mem_free(text);
    }
    const char *warning = strstr(text, "Z warning: /"); /* behind the time of day */
    assert_non_null(warning);
    const char *line = behind_folder(s, strchr(warning, '/'));
    assert_string_equal(line, "from/model.safetensors: tensor model.norm.weight: 2 of 32 values "
                              "are NaN or infinite\n");
    mem_free(text);
    (void)close(fd);
}

static void an_export_in_another_dtype_is_rounded(void **state)
{
    scratch_t *s = *state;
    char imported[128], exported[128];
    (void)snprintf(imported, sizeof(imported), "%.100s/import", s->folder);
    (void)snprintf(exported, sizeof(exported), "%.100s/hf", s->folder);
    model_kit_t k;
    kit_open(&k, "llama", GOLDEN "/llama");
    assert_int_equal(do_import(&k, GOLDEN "/llama", imported), LH_OK);
    do_export(&k, imported, exported, EXPORT_BF16, 0);
    shard_index_t *x, *y;
    assert_int_equal(shard_index_open(GOLDEN "/llama", NULL, &x), LH_OK);
    assert_int_equal(shard_index_open(exported, NULL, &y), LH_OK);
    for (uint32_t i = 0; i < x->count; i++) {
        float wide;
        uint16_t narrow;
        uint32_t bits;
        assert_string_equal(y->tensors[i].tensor->dtype->name, "BF16");
        assert_int_equal(safetensors_read(x->tensors[i].file, x->tensors[i].tensor, 0, &wide, 4),
                         LH_OK);
        assert_int_equal(safetensors_read(y->tensors[i].file, y->tensors[i].tensor, 0, &narrow, 2),
                         LH_OK);
        bits = (uint32_t)narrow << 16;
        float back;
        memcpy(&back, &bits, sizeof(back));
        const float error = back > wide ? back - wide : wide - back;
        assert_true(error <= (wide < 0 ? -wide : wide) * 0x1p-8f); /* half of 2^-7 */
    }
    shard_index_close(x);
    shard_index_close(y);
    char path[160];
    size_t length;
    (void)snprintf(path, sizeof(path), "%s/config.json", exported);
    char *config = scratch_read(path, &length);
    assert_non_null(strstr(config, "\"dtype\": \"bfloat16\""));
    mem_free(config);
    kit_close(&k);
}

static void a_folder_of_something_else_is_left_alone(void **state)
{
    scratch_t *s = *state;
    char imported[128];
    (void)snprintf(imported, sizeof(imported), "%.100s/import", s->folder);
    assert_int_equal(mkdir(imported, 0755), 0);
    char tokenizer[160];
    (void)snprintf(tokenizer, sizeof(tokenizer), "%s/tokenizer.json", imported);
    scratch_text(s, "import/thesis.txt", "years of work");
    model_kit_t k;
    kit_open(&k, "llama", GOLDEN "/llama");
    assert_int_equal(do_import(&k, GOLDEN "/llama", imported), LH_INVALID);
    assert_string_equal(
        behind_folder(s, fail_reason()),
        "import holds thesis.txt, which is not written here: the folder is left alone");
    assert_true(file_exists(scratch_path(s, "import/thesis.txt")));
    assert_int_equal(rename(scratch_path(s, "import/thesis.txt"), tokenizer), 0);
    assert_int_equal(do_import(&k, GOLDEN "/llama", imported), LH_INVALID);
    assert_string_equal(behind_folder(s, fail_reason()),
                        "import is there and holds no config.json: it is left alone");
    assert_true(file_exists(tokenizer));
    kit_close(&k);
}

static int no_locks(int fd)
{
    (void)fd;
    errno = ENOTSUP;
    return -1;
}

static void where_folders_have_no_locks_nothing_is_swept(void **state)
{
    scratch_t *s = *state;
    sys_t table = sys_real;
    char imported[128];
    (void)snprintf(imported, sizeof(imported), "%.100s/import", s->folder);
    assert_int_equal(mkdir(scratch_path(s, "import.tmp-01234567"), 0755), 0);
    model_kit_t k;
    kit_open(&k, "llama", GOLDEN "/llama");
    table.lock = no_locks;
    sys_use(&table);
    const lh_status_t first = do_import(&k, GOLDEN "/llama", imported);
    const lh_status_t again = do_import(&k, GOLDEN "/llama", imported);
    sys_use(NULL);
    assert_int_equal(first, LH_OK);
    assert_int_equal(again, LH_OK);
    assert_true(file_exists(scratch_path(s, "import.tmp-01234567")));
    assert_int_equal(do_import(&k, GOLDEN "/llama", imported), LH_OK);
    assert_false(file_exists(scratch_path(s, "import.tmp-01234567")));
    kit_close(&k);
}

static int quiet(void **state)
{
    (void)state;
    log_threshold(LH_LOG_WARN);
    return 0;
}

/* The two gates of a Llama as the experts of one parameter [2, rows, columns], as {e} in a name says. */
static lh_param_t experts_row = {.name = "gates",
                                 .hf_name = "model.layers.{e}.mlp.gate_proj.weight",
                                 .part = LH_PART_BLOCK,
                                 .init = LH_INIT_NORMAL,
                                 .unit = 1};

/* Puts that parameter in the place of blocks.0.w_gate and takes blocks.1.w_gate out. */
static void make_experts(parameters_t *p)
{
    uint32_t first, second;
    assert_true(parameters_find(p, "blocks.0.w_gate", &first));
    assert_true(parameters_find(p, "blocks.1.w_gate", &second));
    parameter_t *one = &p->items[first];
    for (uint32_t i = 0; i < 2; i++)
        experts_row.shape[i + 1] = one->shape[i];
    experts_row.shape[0] = 2;
    mem_free(one->name);
    one->name = mem_text("gates");
    assert_non_null(one->name);
    one->row = &experts_row;
    one->rank = 3;
    memcpy(one->shape, experts_row.shape, sizeof(experts_row.shape));
    one->elements *= 2;
    mem_free(p->items[second].name);
    memmove(&p->items[second], &p->items[second + 1],
            (p->count - second - 1) * sizeof(p->items[0]));
    p->count--;
    for (uint32_t i = second; i < p->count; i++)
        p->items[i].storage = i; /* none is tied */
}

static void assert_expert_is(checkpoint_t *c, const parameter_t *gates, uint32_t expert,
                             const char *from)
{
    char name[64];
    const uint64_t elements = gates->elements / 2;
    shard_index_t *files;
    assert_int_equal(shard_index_open(from, NULL, &files), LH_OK);
    (void)snprintf(name, sizeof(name), "model.layers.%u.mlp.gate_proj.weight", expert);
    const shard_tensor_t *t = shard_index_find(files, name);
    float *all = mem_array(gates->elements, sizeof(*all)), *one = mem_array(elements, sizeof(*one));
    assert_int_equal(t->tensor->bytes, elements * sizeof(*one));
    assert_int_equal(safetensors_read(t->file, t->tensor, 0, one, t->tensor->bytes), LH_OK);
    assert_int_equal(
        checkpoint_read(c, checkpoint_find(c, "gates"), &(tensor_part_t){.count = 0}, all), LH_OK);
    assert_memory_equal(all + expert * elements, one, elements * sizeof(*one));
    mem_free(one);
    mem_free(all);
    shard_index_close(files);
}

static void experts_are_one_parameter_from_many_tensors_and_back(void **state)
{
    scratch_t *s = *state;
    model_kit_t k;
    char imported[256], exported[256], path[512];
    checkpoint_t *c = NULL;
    uint32_t gates;
    kit_open(&k, "llama", GOLDEN "/llama");
    make_experts(k.parameters);
    (void)snprintf(imported, sizeof(imported), "%.200s/imported", s->folder);
    (void)snprintf(exported, sizeof(exported), "%.200s/exported", s->folder);
    if (do_import(&k, GOLDEN "/llama", imported) != LH_OK) FAIL_TEST("%s\n", fail_reason());

    (void)snprintf(path, sizeof(path), "%s/checkpoints", imported);
    assert_int_equal(checkpoint_open_latest(path, &c), LH_OK);
    assert_true(parameters_find(k.parameters, "gates", &gates));
    for (uint32_t e = 0; e < 2; e++)
        assert_expert_is(c, &k.parameters->items[gates], e, GOLDEN "/llama");
    checkpoint_close(c);
    do_export(&k, imported, exported, EXPORT_AS_IMPORTED, 40 << 10);
    assert_same_tensors(exported, GOLDEN "/llama");

    /* Of two dimensions the first is no expert's. */
    experts_row.shape[2] = 0;
    k.parameters->items[gates].rank = 2;
    assert_int_equal(do_import(&k, GOLDEN "/llama", imported), LH_INVALID);
    assert_string_equal(fail_reason(),
                        "parameter gates has {e} in its Hugging Face name and 2 dimensions; 3 are "
                        "expected, the first of up to 65536 experts");
    kit_close(&k);
}

enum { BLOCKS = 94, A_BLOCK = 7, SHAPES = BLOCKS * A_BLOCK + 2 };

/* 94 blocks of 128 experts: each has three matrices of 4096 x 1536. */
static void routed_shapes(hf_pieces_t of[SHAPES], uint32_t experts)
{
    const uint64_t hidden = 4096, wide = 8192;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        hf_pieces_t *block = of + b * A_BLOCK;
        block[0] = block[1] = (hf_pieces_t){1, wide * hidden};
        block[2] = (hf_pieces_t){1, hidden};
        block[3] = (hf_pieces_t){1, 0};
        for (uint32_t k = 4; k < A_BLOCK; k++)
            block[k] = (hf_pieces_t){experts, hidden * 1536};
    }
    of[SHAPES - 2] = (hf_pieces_t){1, 151936 * hidden};
    of[SHAPES - 1] = (hf_pieces_t){0, 0};
}

/* All that a checkpoint's readers take in one header; each tensor has a piece at least. */
static void pieces_of_a_large_routed_model_are_bounded(void **state)
{
    hf_pieces_t of[SHAPES];
    uint32_t pieces[SHAPES];
    (void)state;
    routed_shapes(of, 128);
    const uint64_t all = hf_import_pieces(of, SHAPES, pieces);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < SHAPES; i++) {
        assert_int_equal(pieces[i] > 0, of[i].tensors > 0);
        sum += (uint64_t)of[i].tensors * pieces[i];
    }
    assert_int_equal(sum, all);
    assert_in_range(all, 94 * 128 * 3, 100000);
    assert_in_range(pieces[SHAPES - 2], 64, 64); /* the largest is still cut */

    routed_shapes(of, 4096); /* more than that as they are: one each */
    assert_int_equal(hf_import_pieces(of, SHAPES, pieces), 94 * (4096 * 3 + 4) + 1);

    /* A small import is cut into MiBs. */
    of[0] = (hf_pieces_t){1, 10 << 18};
    of[1] = (hf_pieces_t){8, (3 << 18) + 1};
    of[2] = (hf_pieces_t){1, (1 << 18) - 1};
    assert_int_equal(hf_import_pieces(of, 3, pieces), 10 + 8 * 3 + 1);
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        FACT(experts_are_one_parameter_from_many_tensors_and_back),
        cmocka_unit_test(pieces_of_a_large_routed_model_are_bounded),
        FACT(import_then_export_is_the_same_bit_for_bit),
        FACT(old_uploads_come_without_prefix_and_with_copies),
        FACT(weights_that_do_not_fit_are_refused_by_name),
        FACT(values_that_are_not_finite_are_told),
        FACT(an_export_in_another_dtype_is_rounded),
        FACT(a_folder_of_something_else_is_left_alone),
        FACT(where_folders_have_no_locks_nothing_is_swept),
    };
    return cmocka_run_group_tests(tests, quiet, NULL);
}
