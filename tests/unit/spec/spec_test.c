/* spec_test.c - what a spec becomes, and every mistake in one as a sentence with its place.
 *
 * A mistake is an edit of one small spec: a piece of its text and what stands there instead. The
 * spec is read, opened and recorded as a model plugin is, without a device. */
#include <unit/base/scratch_files.h>

#include <base/memory.h>
#include <config/job_load.h>
#include <graph/op_table.h>
#include <graph/parameters.h>
#include <graph/recorder.h>
#include <longhaul/ops.h>
#include <plugin/host.h>
#include <plugin/registry.h>
#include <spec/spec.h>

#define COUNT(t) (sizeof(t) / sizeof((t)[0]))

enum { TOKENS = 8 };

static const char whole[] = "[pipeline]\n"                                           /* 1 */
                            "name = small\n"                                         /* 2 */
                            "stages = export\n"                                      /* 3 */
                            "[model]\n"                                              /* 4 */
                            "plugin = spec\n"                                        /* 5 */
                            "vocab = 32\n"                                           /* 6 */
                            "[spec]\n"                                               /* 7 */
                            "model_type = small\n"                                   /* 8 */
                            "architecture = Small\n"                                 /* 9 */
                            "[spec.options]\n"                                       /* 10 */
                            "blocks = count 1..64 2 blocks\n"                        /* 11 */
                            "hidden = count 1..4096 16 width\n"                      /* 12 */
                            "heads = count 1..64 4 heads\n"                          /* 13 */
                            "vocab = count 1..1M - rows\n"                           /* 14 */
                            "max_tokens = count 1..1M 64 longest\n"                  /* 15 */
                            "epsilon = real 0..1 1e-5 under roots\n"                 /* 16 */
                            "biased = flag - no whether wq has one\n"                /* 17 */
                            "act = choice silu|gelu gelu function\n"                 /* 18 */
                            "[spec.values]\n"                                        /* 19 */
                            "d = hidden / heads\n"                                   /* 20 */
                            "wide = 4 * hidden\n"                                    /* 21 */
                            "[spec.config]\n"                                        /* 22 */
                            "hidden = hidden_size|+dim, absent 16\n"                 /* 23 */
                            "heads = num_heads\n"                                    /* 24 */
                            "[spec.config.fixed]\n"                                  /* 25 */
                            "kind = plain\n"                                         /* 26 */
                            "[spec.parameter.embed]\n"                               /* 27 */
                            "part = embedding\n"                                     /* 28 */
                            "shape = vocab, hidden\n"                                /* 29 */
                            "cut = vocab\n"                                          /* 30 */
                            "hf = embed.weight\n"                                    /* 31 */
                            "[spec.parameter.wq]\n"                                  /* 32 */
                            "shape = hidden, hidden\n"                               /* 33 */
                            "unit = d\n"                                             /* 34 */
                            "hf = h.{}.q\n"                                          /* 35 */
                            "import = rows_in(source, part=0, parts={heads + 1})\n"  /* 36 */
                            "export = rows_out(source, part=0, parts={heads + 1})\n" /* 37 */
                            "[spec.parameter.bq]\n"                                  /* 38 */
                            "shape = hidden\n"                                       /* 39 */
                            "when = biased\n"                                        /* 40 */
                            "init = zero\n"                                          /* 41 */
                            "hf = h.{}.b\n"                                          /* 42 */
                            "[spec.parameter.up]\n"                                  /* 43 */
                            "shape = wide, hidden\n"                                 /* 44 */
                            "hf = h.{}.up\n"                                         /* 45 */
                            "[spec.parameter.down]\n"                                /* 46 */
                            "shape = hidden, wide\n"                                 /* 47 */
                            "hf = h.{}.down\n"                                       /* 48 */
                            "[spec.parameter.head]\n"                                /* 49 */
                            "part = head\n"                                          /* 50 */
                            "shape = vocab, hidden\n"                                /* 51 */
                            "hf = head.weight\n"                                     /* 52 */
                            "tied_to = embed\n"                                      /* 53 */
                            "[spec.embedding]\n"                                     /* 54 */
                            "x = embed(tokens, embed)\n"                             /* 55 */
                            "[spec.block]\n"                                         /* 56 */
                            "q = linear(x, wq, bq)\n"                                /* 57 */
                            "t = rope(q, rotary(dims=d), heads=heads, head_dim=d)\n" /* 58 */
                            "a = attention(t, t, q, heads=heads, head_dim=d)\n"      /* 59 */
                            "h = add(x, a)\n"                                        /* 60 */
                            "u = activate(linear(h, up), function=act)\n"            /* 61 */
                            "x = add(h, linear(u, down))\n"                          /* 62 */
                            "[spec.head]\n"                                          /* 63 */
                            "z = scale(x, constant(value=epsilon))\n"                /* 64 */
                            "logits = linear(z, head)\n";                            /* 65 */

/* The text with one piece of it replaced, or with nothing changed where `find` is NULL. */
static char *edited(const char *find, const char *put)
{
    text_t text = {0};
    const char *at = find == NULL ? NULL : strstr(whole, find);
    if (find == NULL) return mem_text(whole);
    if (at == NULL) FAIL_TEST("'%s' is not in the spec\n", find);
    text_append_n(&text, whole, (size_t)(at - whole));
    text_append(&text, put);
    text_append(&text, at + strlen(find));
    assert_int_equal(text_status(&text), LH_OK);
    return text.data;
}

/* A spec as far as it goes; what is NULL was not reached. */
typedef struct bed {
    job_t *job;
    host_t *host;
    registry_t *registry;
    const plugin_t *plugin;
    void *config;
    lh_model_t *model;
    parameters_t *parameters;
    op_table_t *ops;
    recording_t *parts[3]; /* of block 0 */
    uint32_t block;
} bed_t;

static lh_status_t bed_shape(void *context, const char *name, uint64_t *shape, uint32_t *rank)
{
    const bed_t *b = context;
    for (uint32_t part = LH_PART_EMBED; part <= LH_PART_HEAD; part++) {
        uint32_t index;
        const uint32_t block = part == LH_PART_BLOCK ? b->block : 0;
        if (!parameters_find_local(b->parameters, part, block, name, &index)) continue;
        const parameter_t *p = &b->parameters->items[index];
        memcpy(shape, p->shape, sizeof(p->shape));
        *rank = p->rank;
        return LH_OK;
    }
    return fail(LH_INVALID, "no parameter %s", name);
}

static lh_status_t bed_record(bed_t *b, uint32_t part)
{
    const recording_how_t how = {.ops = b->ops,
                                 .host = b->plugin->host,
                                 .tokens = TOKENS,
                                 .sequences = 2,
                                 .max_documents = 2,
                                 .compute = LH_DTYPE_F32,
                                 .accumulate = LH_DTYPE_F32,
                                 .param = bed_shape,
                                 .context = b};
    recording_t **r = &b->parts[part - 1];
    const uint64_t shape[] = {TOKENS, b->parameters->hidden};
    assert_int_equal(recorder_new(&how, r), LH_OK);
    lh_graph_t *g = &(*r)->graph;
    const lh_value_t input = part == LH_PART_EMBED ? g->api->input(g, LH_INPUT_TOKENS)
                                                   : recording_argument(*r, LH_DTYPE_F32, 2, shape);
    (*r)->output = b->plugin->model->record(b->model, g, part, b->block, input);
    return recording_status(*r);
}

static lh_status_t bed_open(bed_t *b, const char *path, const char *set)
{
    *b = (bed_t){0};
    lh_status_t status = job_load(path, &set, set == NULL ? 0 : 1, &b->job);
    if (status != LH_OK) return status;
    assert_int_equal(host_new(&b->host), LH_OK);
    assert_int_equal(registry_new(LH_TEST_PLUGINS, b->host, &b->registry), LH_OK);
    assert_int_equal(op_table_new(&b->ops), LH_OK);
    status = spec_adopt(b->job, b->registry);
    if (status != LH_OK) return status;
    assert_int_equal(registry_load(b->registry, LH_KIND_MODEL, "spec", &b->plugin), LH_OK);
    const option_table_t table = plugin_options(b->plugin);
    const option_given_t vocab = {"vocab", "32", "a test", true};
    status = job_parse_plugin(b->job, "model", &table, &vocab, 1, &b->config);
    if (status != LH_OK) return status;
    status = b->plugin->model->open(b->plugin->host, b->config, &b->model);
    if (status == LH_OK) status = parameters_new(b->plugin->model, b->model, &b->parameters);
    for (uint32_t part = LH_PART_EMBED; part <= LH_PART_HEAD && status == LH_OK; part++)
        status = bed_record(b, part);
    return status;
}

static void bed_close(bed_t *b)
{
    for (uint32_t i = 0; i < 3; i++)
        recording_free(b->parts[i]);
    parameters_free(b->parameters);
    if (b->model != NULL) b->plugin->model->close(b->model);
    if (b->config != NULL) {
        const option_table_t table = plugin_options(b->plugin);
        job_free_config(&table, b->config);
    }
    op_table_free(b->ops);
    registry_free(b->registry);
    host_free(b->host);
    job_free(b->job);
}

static void bed_of(bed_t *b, scratch_t *s, const char *find, const char *put, const char *set)
{
    char *text = edited(find, put);
    if (bed_open(b, scratch_text(s, "s.ini", text), set) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    mem_free(text);
}

/* ---- what it becomes ---- */

static const parameter_t *parameter_of(const bed_t *b, const char *name)
{
    uint32_t index;
    if (!parameters_find(b->parameters, name, &index)) return NULL;
    return &b->parameters->items[index];
}

static void parameters_are_those_of_a_plugin(void **state)
{
    bed_t b;
    bed_of(&b, *state, NULL, NULL, NULL);
    assert_int_equal(b.parameters->count, 2 + 2 * 3);
    assert_int_equal(b.parameters->blocks, 2);
    const parameter_t *wq = parameter_of(&b, "blocks.1.wq"), *up = parameter_of(&b, "blocks.0.up");
    assert_non_null(wq);
    assert_int_equal(wq->row->unit, 4);
    assert_string_equal(wq->row->hf_import, "rows_in(source, part=0, parts=5)");
    assert_string_equal(wq->row->hf_export, "rows_out(source, part=0, parts=5)");
    assert_int_equal(wq->row->flags, 0);
    assert_int_equal(up->shape[0], 64);
    assert_int_equal(up->shape[1], 16);
    assert_null(parameter_of(&b, "blocks.0.bq"));
    assert_int_equal(parameter_of(&b, "head")->storage,
                     parameter_of(&b, "embed") - b.parameters->items);
    assert_int_equal(b.plugin->model->hf->key_count, 3);
    assert_string_equal(b.plugin->model->hf->keys[0].fixed, "16");
    assert_int_equal(spec_adopt(b.job, b.registry), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "the plugin spec is there already"));
    bed_close(&b);

    bed_of(&b, *state, "heads = num_heads\n",
           "heads = num_heads, absent 4\nheads.old = n_head, absent hidden, when hidden=16|32\n",
           NULL);
    const lh_hf_key_t *old = &b.plugin->model->hf->keys[2];
    assert_string_equal(old->option, "heads");
    assert_string_equal(old->key, "n_head");
    assert_string_equal(old->fixed, "hidden");
    assert_string_equal(old->when, "hidden=16|32");
    bed_close(&b);

    bed_of(&b, *state, NULL, NULL, "model.biased=yes");
    const parameter_t *bq = parameter_of(&b, "blocks.0.bq");
    assert_non_null(bq);
    assert_int_equal(bq->row->flags, LH_PARAM_NO_DECAY);
    assert_int_equal(bq->row->init, LH_INIT_ZERO);
    bed_close(&b);
}

static const graph_node_t *node_of(const recording_t *r, const char *op)
{
    for (uint32_t i = 1; i < r->node_count; i++)
        if (strcmp(r->nodes[i].op->row.name, op) == 0) return &r->nodes[i];
    FAIL_TEST("no %s was recorded\n", op);
    return NULL;
}

static void lines_are_recorded_in_order_with_the_attributes_of_the_op(void **state)
{
    bed_t b;
    bed_of(&b, *state, NULL, NULL, "model.act=silu");
    const recording_t *r = b.parts[LH_PART_BLOCK - 1];
    const lh_attention_t *how = node_of(r, "attention")->attributes;
    const lh_activate_t *act = node_of(r, "activate")->attributes;
    const graph_node_t *rope = node_of(r, "rope");
    assert_int_equal(how->heads, 4);
    assert_int_equal(how->kv_heads, 4);
    assert_int_equal(how->head_dim, 4);
    assert_int_equal(act->function, LH_ACT_SILU);
    assert_int_equal(r->values[rope->slots[1]].kind, VALUE_INPUT); /* positions, passed over */
    assert_int_equal(r->values[rope->slots[2]].kind, VALUE_CONSTANT);
    assert_true(r->values[rope->slots[2]].constant[1] == 0.01f); /* 10000 ^ (-2 / 4) */
    assert_int_equal(r->output, r->value_count - 1);
    bed_close(&b);
}

static void numbers_may_depend_on_flags_and_choices(void **state)
{
    static const struct {
        const char *set;
        uint64_t rows;
    } cases[] = {{"model.act=gelu", 64}, {"model.act=silu", 16}, {"model.biased=yes", 32}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        bed_t b;
        bed_of(&b, *state, "wide = 4 * hidden",
               "wide = if(is(act, silu), 1, if(not(biased), 8 / 2, 1 + or(0, 1))) * hidden",
               cases[i].set);
        assert_int_equal(parameter_of(&b, "blocks.0.up")->shape[0], cases[i].rows);
        bed_close(&b);
    }
}

/* Outputs behind the first by line.slot, inputs by name, the block's number, another name for a
 * line. */
static void more_ways_to_write_a_line(void **state)
{
    bed_t b;
    bed_of(&b, *state, "u = activate(linear(h, up), function=act)\nx = add(h, linear(u, down))\n",
           "n = layer_norm(x=h, w=ln.weight, epsilon=epsilon * (block + 1))\n"
           "o = n\n"
           "best = top_k(softmax(o), k=2)\n"
           "to = route(best.ids, experts=hidden)\n"
           "rows = gather_rows(o, to, k=2)\n"
           "back = scatter_rows(rows, to, best, k=2)\n"
           "u = scale(activate(linear(back, up), function=act), factor=constant(value=-1 / 4))\n"
           "x = add(h, linear(u, down))\n"
           "[spec.parameter.ln.weight]\nshape = hidden\ninit = one\nhf = h.{}.n\n",
           NULL);
    const recording_t *r = b.parts[LH_PART_BLOCK - 1];
    const graph_node_t *norm = node_of(r, "layer_norm"), *route = node_of(r, "route");
    const graph_node_t *scale = node_of(r, "scale");
    assert_true(((const lh_norm_t *)norm->attributes)->epsilon == 1e-5);
    assert_int_equal(route->slots[0], node_of(r, "top_k")->slots[2]); /* ids */
    assert_true(r->values[scale->slots[1]].constant[0] == -0.25f);
    bed_close(&b);

    /* Slopes are the fourth of the inputs that the core does not fill in. */
    bed_of(&b, *state, "attention(t, t, q, ", "attention(t, t, q, alibi(heads=heads, divisor=2), ",
           NULL);
    r = b.parts[LH_PART_BLOCK - 1];
    const graph_node_t *attention = node_of(r, "attention");
    assert_int_equal(r->values[attention->slots[3]].kind, VALUE_INPUT); /* starts */
    assert_true(r->values[attention->slots[4]].constant[0] == 0.125f);  /* 2 ^ (-8 / 4) / 2 */
    bed_close(&b);
}

/* The spec with its block as class l beside a class g; `classes` in [spec] says which block is of
 * which, option and key are lines of [spec.options] and [spec.config] more. The caller frees. */
static char *of_classes(const char *classes, const char *option, const char *key)
{
    char *text = edited(
        "x = add(h, linear(u, down))\n",
        "x = add(h, linear(u, down))\n[spec.block.g]\nx = scale(x, constant(value=2))\n");
    text_t all = {0};
    for (const char *at = text; *at != '\0';) {
        if (text_starts(at, "[spec.block]"))
            text_append(&all, "[spec.block.l]"), at += strlen("[spec.block]");
        else if (text_starts(at, "architecture"))
            text_printf(&all, "classes = %s\narchitecture", classes), at += strlen("architecture");
        else if (text_starts(at, "[spec.parameter.up]\n"))
            text_append(&all, "[spec.parameter.up]\nclasses = l\n"),
                at += strlen("[spec.parameter.up]\n");
        else if (text_starts(at, "[spec.options]\n"))
            text_printf(&all, "[spec.options]\n%s", option), at += strlen("[spec.options]\n");
        else if (text_starts(at, "[spec.config]\n"))
            text_printf(&all, "[spec.config]\n%s", key), at += strlen("[spec.config]\n");
        else
            text_append_n(&all, at++, 1);
    }
    assert_int_equal(text_status(&all), LH_OK);
    mem_free(text);
    return all.data;
}

static void blocks_may_be_of_classes(void **state)
{
    bed_t b;
    char *text = of_classes("lg", "", "");
    if (bed_open(&b, scratch_text(*state, "s.ini", text), NULL) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    assert_int_equal(b.parameters->block_classes[0], 0);
    assert_int_equal(b.parameters->block_classes[1], 1);
    assert_non_null(parameter_of(&b, "blocks.0.up"));
    assert_null(parameter_of(&b, "blocks.1.up"));
    assert_non_null(parameter_of(&b, "blocks.1.wq")); /* of no class: all have it */
    recording_free(b.parts[LH_PART_BLOCK - 1]);
    b.block = 1;
    assert_int_equal(bed_record(&b, LH_PART_BLOCK), LH_OK);
    assert_int_equal(b.parts[LH_PART_BLOCK - 1]->node_count, 2);
    bed_close(&b);
    mem_free(text);
}

/* As an import sets it by a list of config.json. */
static void an_option_may_say_which_block_is_of_which_class(void **state)
{
    static const struct {
        const char *fallback, *set;
        uint8_t classes[2];
        const char *sentence; /* NULL: it is taken */
    } cases[] = {
        {"gl", NULL, {1, 0}, NULL},
        {"gl", "model.layers=l", {0, 0}, NULL}, /* begun again for the second block */
        {"gl",
         "model.layers=lx",
         {0, 0},
         "s.ini:7: block 1 is of class 'x', and there is no [spec.block.x]"},
        {"\"\"", NULL, {0, 0}, "s.ini:7: classes names the option layers, which has no letters"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        bed_t b;
        char option[64];
        (void)snprintf(option, sizeof(option), "layers = text - %s which block is of which\n",
                       cases[i].fallback);
        char *text = of_classes("layers", option,
                                "layers = layer_types[], absent gl, words l=local|g=global\n");
        const char *path = scratch_text(*state, "s.ini", text);
        const lh_status_t status = bed_open(&b, path, cases[i].set);
        if (cases[i].sentence != NULL) {
            assert_int_equal(status, LH_INVALID);
            assert_string_equal(behind_folder(*state, fail_reason()), cases[i].sentence);
        } else {
            if (status != LH_OK) FAIL_TEST("%s\n", fail_reason());
            const lh_hf_key_t *key = &b.plugin->model->hf->keys[0];
            assert_string_equal(key->key, "layer_types[]");
            assert_string_equal(key->words, "l=local|g=global");
            assert_memory_equal(b.parameters->block_classes, cases[i].classes, 2);
            assert_int_equal(parameter_of(&b, "blocks.0.up") != NULL, cases[i].classes[0] == 0);
        }
        bed_close(&b);
        mem_free(text);
    }
}

#define TAIL "x = add(h, linear(u, down))\n[spec.head]\n"
#define LOSS "b = loss(dot(total(load, count=hidden), total(load, count=hidden))"

/* A loss over all blocks, by a sum; with what only it reads it is there where `when` is not 0. */
static void blocks_add_to_sums_that_the_head_reads(void **state)
{
    bed_t b, without;
    const char *put = "m = softmax(h)\nload = accumulate(mean_rows(m), when=biased)\n" TAIL
                      "t = total(load, count=4 * heads)\nb = loss(dot(t, t), when=biased)\n";
    bed_of(&b, *state, TAIL, put, "model.biased=yes");
    const recording_t *block = b.parts[LH_PART_BLOCK - 1], *head = b.parts[LH_PART_HEAD - 1];
    assert_int_equal(block->added_count, 1);
    assert_string_equal(block->added[0].name, "load");
    assert_int_equal(block->added[0].value, node_of(block, "mean_rows")->slots[1]);
    assert_int_equal(head->total_count, 1);
    assert_string_equal(head->totals[0].name, "load");
    assert_int_equal(head->values[head->totals[0].value].arg.shape[0], 16);
    assert_int_equal(head->loss_count, 1);
    assert_string_equal(head->losses[0].metric, "b");
    assert_int_equal(head->losses[0].value, node_of(head, "dot")->slots[2]);
    bed_close(&b);

    bed_of(&b, *state, TAIL, put, NULL);
    bed_of(&without, *state, NULL, NULL, NULL);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(b.parts[i]->added_count + b.parts[i]->total_count, 0);
        assert_int_equal(b.parts[i]->loss_count, 0);
        assert_int_equal(b.parts[i]->node_count, without.parts[i]->node_count);
        assert_int_equal(b.parts[i]->value_count, without.parts[i]->value_count);
    }
    bed_close(&without);
    bed_close(&b);

    /* A loss of blocks is a sum over them by itself. */
    bed_of(&b, *state, TAIL, "m = mean_rows(h)\nown = loss(dot(m, m), when=block)\n" TAIL, NULL);
    assert_int_equal(b.parts[LH_PART_BLOCK - 1]->loss_count, 0);
    recording_free(b.parts[LH_PART_BLOCK - 1]);
    b.block = 1;
    assert_int_equal(bed_record(&b, LH_PART_BLOCK), LH_OK);
    assert_string_equal(b.parts[LH_PART_BLOCK - 1]->losses[0].metric, "own");
    bed_close(&b);
}

/* ---- what is refused ---- */

static const struct {
    const char *find, *put, *sentence;
} mistakes[] = {
    /* names */
    {"linear(h, up)", "linear(h, upp)",
     "s.ini:61: [spec.block] u: 'upp' is no line above, no parameter of this part and not its "
     "input, "
     "x; did you mean 'up'?"},
    {"linear(h, up)", "add(linear(h, up), b=upp)",
     "s.ini:61: [spec.block] u: 'upp' is no line above, no parameter of this part and not its "
     "input, "
     "x; did you mean 'up'?"},
    {"linear(h, up)", "linaer(h, up)",
     "s.ini:61: [spec.block] u: there is no op 'linaer' in the core or in [model] ops; did you "
     "mean "
     "'linear'?"},
    {"h = add(x, a)", "h = add(x, u)",
     "s.ini:60: [spec.block] h: a cycle: h reads u, and u (line 61) needs h"},
    {"h = add(x, a)", "h = add(h, a)", "s.ini:60: [spec.block] h: a cycle: h reads itself"},
    {"t = rope(q, rotary(dims=d), heads=heads, head_dim=d)\n", "t = add(q, v)\nv = scale(q, wq)\n",
     "s.ini:58: [spec.block] t: 'v' is made further down, at line 59"},
    {"[spec.values]", "[spec.value]",
     "s.ini:19: unknown section [spec.value]; did you mean [spec.values]?"},
    {"wide = 4 * hidden", "wide = wider * 2\nwider = or(wide, 1)",
     "s.ini:22: [spec.values] wider: a cycle: wider reads wide, and wide (line 21) needs wider"},
    {"t = rope(", "q = rope(", "s.ini:58: 'q' in [spec.block] again; it is at line 57 too"},
    {"u = activate(", "up = activate(",
     "s.ini:61: [spec.block] up: a parameter has this name too: [spec.parameter.up]"},
    {"wide = 4 * hidden", "heads = 4 * hidden",
     "s.ini:21: [spec.values] heads: an option has this name too"},
    {"[spec.parameter.up]", "[spec.parameter.wq]",
     "s.ini:43: [spec.parameter.wq] stands here again; "
     "it began at line 32"},
    {"[spec.parameter.up]", "[spec.paramter.up]",
     "s.ini:43: unknown section [spec.paramter.up]; a parameter is [spec.parameter.NAME]"},
    /* what nobody reads */
    {"linear(x, wq, bq)", "linear(x, wq)",
     "s.ini:38: [spec.parameter.bq] is read by no line of [spec.block]"},
    {"a = attention(", "z = add(x, x)\na = attention(",
     "s.ini:59: [spec.block] z: no line below reads it, and it is not the last, which is the "
     "part's "
     "result"},
    {"act = choice silu|gelu gelu function\n",
     "act = choice silu|gelu gelu function\nz = count - 1 no\n",
     "s.ini:19: [spec.options] z is read by no line, shape or value"},
    {"wide = 4 * hidden\n", "wide = 4 * hidden\nz = wide\n",
     "s.ini:22: [spec.values] z is read by no line, shape or value"},
    {"z = scale(x, ", "z = scale(head, ", "s.ini:63: no line of [spec.head] reads its input, x"},
    /* shapes */
    {"shape = wide, hidden", "shape = hidden, wide",
     "s.ini:61: [spec.block] u: linear() of x [8, 16], weight [16, 64]: up: linear: "
     "input weight is F32 [16, 64], expected F32 [any, 16]"},
    {"x = add(h, linear(u, down))", "o = linear(u, down)\nx = multiply(u, linear(add(h, o), up))",
     "s.ini:63: [spec.block] x: the part's result is [8, 64], expected [8, 16]: tokens, hidden"},
    {"logits = linear(z, head)", "l = linear(z, head)\nlogits = z",
     "s.ini:65: [spec.head] l: no line below reads it, and it is not the last, which is the part's "
     "result"},
    {"shape = wide, hidden", "shape = wide, hiden",
     "s.ini:44: [spec.parameter.up] shape: expected a number, found 'hiden'; did you mean "
     "'hidden'?"},
    {"shape = wide, hidden", "shape = wide / 5, hidden",
     "s.ini:44: [spec.parameter.up] shape: 64 / 5 is not whole"},
    {"shape = wide, hidden", "shape = heads - hidden, hidden",
     "s.ini:44: [spec.parameter.up] shape: 4 - 16 is no size"},
    {"shape = wide, hidden", "shape = 1, 2, 3, 4",
     "s.ini:44: [spec.parameter.up] shape: expected at most 3 dimensions"},
    {"shape = wide, hidden", "shape = wide, hidden - 16",
     "s.ini:44: [spec.parameter.up] shape: dimension 2 is 0"},
    {"shape = wide, hidden", "shape = wide, 0.5 * hidden",
     "s.ini:44: [spec.parameter.up] shape: expected a whole number, found 8"},
    /* calls */
    {"act = choice silu|gelu gelu", "act = choice silu|glu glu",
     "s.ini:61: [spec.block] u: activate(): function = glu: expected one of "
     "none|silu|gelu|gelu_tanh|tanh; did you mean 'gelu'?"},
    {"function=act", "func=act", "s.ini:61: [spec.block] u: activate() has no 'func'"},
    {", head_dim=d)\na", ")\na",
     "s.ini:58: [spec.block] t: rope() lacks head_dim (width of a head)"},
    {"heads=heads, head_dim=d)\na", "heads=0, head_dim=d)\na",
     "s.ini:58: [spec.block] t: rope(): heads = 0: expected 1..65536"},
    {"add(x, a)", "add(x, a, a)", "s.ini:60: [spec.block] h: add() takes 2 inputs (a b -> y)"},
    {"add(x, a)", "add(x, a=a)", "s.ini:60: [spec.block] h: add() is given its input a twice"},
    {"add(x, a)", "add(a)",
     "s.ini:60: [spec.block] h: add() of a [8, 16]: op add lacks its input b"},
    {"add(x, a)", "add(x, 2)",
     "s.ini:60: [spec.block] h: add() takes a number or an expression by its name, as in add(..., "
     "NAME=2)"},
    {"add(x, a)", "add(x, a.y2)",
     "s.ini:60: [spec.block] h: attention(), which makes a, has no output 'y2'"},
    {"rotary(dims=d)", "rotary(d)",
     "s.ini:58: [spec.block] t: 'd' is no line above, no parameter of this part and not its input, "
     "x"},
    {"rotary(dims=d)", "rotary(dim=d)",
     "s.ini:58: [spec.block] t: rotary() has no 'dim'; did you mean 'dims'?"},
    {"rotary(dims=d)", "input(nothing)",
     "s.ini:58: [spec.block] t: input() takes tokens, positions, starts or seed"},
    {"h = add(x, a)", "h = 2 * 3", "s.ini:60: [spec.block] h = 2 * 3: expected a call of an op"},
    /* sums and losses */
    {TAIL, "load = accumulate(mean_rows(h))\n" TAIL,
     "s.ini:62: [spec.block] load: no line of [spec.head] reads it, as total(load, count=N)"},
    {TAIL, "load = accumulate(mean_rows(h))\n" TAIL "b = loss(total(laod, count=4))\n",
     "s.ini:65: [spec.head] b: total(laod): no line of embedding or blocks adds to it; did you "
     "mean 'load'?"},
    {TAIL, "load = accumulate(mean_rows(u))\n" TAIL LOSS ")\n",
     "s.ini:62: [spec.block] load: accumulate() of [64]; [spec.head] b, line 65, reads 16"},
    {TAIL, "load = accumulate(mean_rows(h), when=biased)\n" TAIL LOSS ")\n",
     "s.ini:65: [spec.head] b: total(load): with these options nothing is added to it"},
    {TAIL, "load = accumulate(mean_rows(h))\n" TAIL LOSS ", when=biased)\n",
     "s.ini:62: [spec.block] load: with these options the head does not read it"},
    {TAIL, "load = accumulate(mean_rows(h), when=biazed)\n" TAIL LOSS ")\n",
     "s.ini:62: [spec.block] load: expected a number, found 'biazed'; did you mean 'biased'?"},
    {TAIL, "load = accumulate(mean_rows(h))\n" TAIL "b = loss(total(load))\n",
     "s.ini:65: [spec.head] b: total() takes a sum and how long it is: total(NAME, count=N)"},
    {TAIL, "load = accumulate(mean_rows(h))\n" TAIL "x = scale(x, total(load, count=hidden))\n",
     "s.ini:67: [spec.head] logits: the part's result depends on a sum, which only a loss may"},
    {TAIL, "load = accumulate(mean_rows(h))\nm = scale(h, load)\n" TAIL,
     "s.ini:63: [spec.block] m: 'load' (line 62) is a sum and no tensor; the head reads it, as "
     "total(NAME, count=N)"},
    {TAIL, "load = accumulate(h)\n" TAIL LOSS ")\n",
     "s.ini:62: [spec.block] load: accumulate() of [8, 16]: what is added to load is not a vector "
     "of F32"},
    {TAIL, "m = total(load, count=4)\n" TAIL,
     "s.ini:62: [spec.block] m: total(load): only the head reads sums"},
    {TAIL, "b = loss(mean_rows(h))\n" TAIL,
     "s.ini:62: [spec.block] b: loss() of [16]: loss b is not one F32 value"},
    {TAIL, TAIL "b = loss(x)\n",
     "s.ini:64: [spec.head] b: a loss of the head that depends on rows; expected one of sums, as "
     "total(NAME, count=N)"},
    {TAIL, TAIL "b = accumulate(x)\n",
     "s.ini:64: [spec.head] b: only embedding and blocks add to sums"},
    {TAIL, TAIL "b = loss(x, x)\n", "s.ini:64: [spec.head] b: loss() takes one tensor, and when=N"},
    {"add(x, a)", "add(x, loss(a))",
     "s.ini:60: [spec.block] h: loss() makes no tensor; expected it in a line of its own"},
    {"logits = linear(z, head)", "logits = linear(z, head)\nb = loss(logits)",
     "s.ini:66: [spec.head] b: loss() makes no tensor, and the last line is the part's result"},
    /* grammar */
    {"add(x, a)", "add(x, a",
     "s.ini:60: [spec.block] h = add(x, a: expected a comma or ')' at its end"},
    {"add(x, a)", "add(x,, a)",
     "s.ini:60: [spec.block] h = add(x,, a): expected a name, a number or a call, found ', a)'"},
    {"add(x, a)", "add(x, a) a",
     "s.ini:60: [spec.block] h = add(x, a) a: expected nothing more, found 'a'"},
    {"heads=heads, head_dim=d)\na", "heads=heads, heads=4, head_dim=d)\na",
     "s.ini:58: [spec.block] t = rope(q, rotary(dims=d), heads=heads, heads=4, head_dim=d): heads= "
     "stands twice in rope()"},
    {"add(x, a)", "add(a=x, a)",
     "s.ini:60: [spec.block] h = add(a=x, a): what has no name stands behind a="},
    {"wide = 4 * hidden", "wide = 4e", "s.ini:21: [spec.values] wide: '4e' is no number"},
    {"wide = 4 * hidden", "wide = or(hidden)",
     "s.ini:21: [spec.values] wide: or() takes 2 arguments"},
    {"wide = 4 * hidden", "wide = max(hidden, 1)",
     "s.ini:21: [spec.values] wide: max() is no function of numbers: or, if, is, not"},
    {"wide = 4 * hidden", "wide = 4 * 18446744073709551615",
     "s.ini:21: [spec.values] wide: 4 * 18446744073709551615 is no size"},
    /* sections */
    {"hidden = count 1..4096 16 width", "hidden = count 1..4096 16",
     "s.ini:12: [spec.options] hidden = count 1..4096 16: expected count, real, flag, choice or "
     "text, a "
     "range, a default and what it is; - for no range or default"},
    {"hidden = count 1..4096 16 width", "hidden = count 1..8 16 width",
     "s.ini:12: [spec.options] hidden: default of an option: hidden = 16: expected 1..8"},
    {"vocab = count 1..1M - rows", "vocab = real - - rows",
     "s.ini:7: vocab must be an option, and a count: the tokenizer says it"},
    {"max_tokens = count 1..1M 64 longest\n", "",
     "s.ini:7: expected an option or a value named max_tokens"},
    {"cut = vocab", "cut = vocabulary",
     "s.ini:30: cut = vocabulary: expected one of none|out|in|vocab|expert"},
    {"cut = vocab", "ctu = vocab",
     "s.ini:30: unknown key 'ctu' in [spec.parameter.embed]; did you mean 'cut'?"},
    {"shape = wide, hidden\n", "",
     "s.ini:43: 'shape' is missing in [spec.parameter.up] (rows, columns; or experts, rows, "
     "columns; or "
     "one width)"},
    {"hf = h.{}.up\n", "",
     "s.ini:43: 'hf' is missing in [spec.parameter.up], as [spec] has a "
     "model_type"},
    {"import = rows_in(source, part=0, parts={heads + 1})\n", "",
     "s.ini:32: [spec.parameter.wq] has export and no import: what is imported must go back"},
    {"parts={heads + 1})\n", "parts={heads + 1)\n",
     "s.ini:36: [spec.parameter.wq] import = rows_in(source, part=0, parts={heads + 1): '{' "
     "without "
     "'}'"},
    {"unit = d", "unit = d\nclasses = g",
     "s.ini:32: [spec.parameter.wq] classes = g: there is no [spec.block.g]"},
    {"[spec.head]\nz = scale(x, constant(value=epsilon))\nlogits = linear(z, head)\n", "",
     "s.ini:7: [spec.head] is missing"},
    {"[spec.block]", "[spec.block.l]",
     "s.ini:7: blocks have classes, and classes in [spec] does not say which block is of which"},
    {"[spec.block]", "[spec.block.long]",
     "s.ini:56: [spec.block.long]: a class of blocks is a letter of a to z"},
    {"architecture = Small", "architecture = Small\nclasses = l",
     "s.ini:7: classes is set, and [spec.block] is of no class"},
    {"architecture = Small\n", "", "s.ini:7: with a model_type, architecture is needed too"},
    {"model_type = small\n", "", "s.ini:7: [spec.config] is there, and model_type is not"},
    {"[spec]\nmodel_type = small\narchitecture = Small\n", "",
     "s.ini: [spec] is missing; [model] plugin = spec reads an architecture from it and from "
     "[spec.options], [spec.block] and others"},
    {"plugin = spec", "plugin = llama",
     "s.ini:7: [spec] is read where [model] plugin = spec, which is llama"},
    /* keys of config.json */
    {"heads = num_heads", "haeds = num_heads",
     "s.ini:24: [spec.config] haeds: no such option in [spec.options]; did you mean 'heads'?"},
    {"heads = num_heads", "heads = num_heads, absent 100",
     "s.ini:24: [spec.config] heads: config.json key 'num_heads', where it is absent: heads = 100: "
     "expected 1..64"},
    {"heads = num_heads", "heads = num_heads|n_head=100",
     "s.ini:24: [spec.config] heads: config.json key 'num_heads|n_head=100', where it is there: "
     "heads = 100: "
     "expected 1..64"},
    {"heads = num_heads", "heads = num_heads, missing 4",
     "s.ini:24: [spec.config] heads = num_heads, missing 4: expected each of absent, when, null, "
     "words and derived once, with a value; found 'missing'"},
    {"heads = num_heads", "heads = num_heads, when act=gelu",
     "s.ini:24: [spec.config] heads: config.json key 'num_heads' asks for 'act=gelu', and no row "
     "before "
     "it sets that option"},
};

static void a_mistake_is_one_sentence_with_its_place(void **state)
{
    uint32_t wrong = 0;
    for (size_t i = 0; i < COUNT(mistakes); i++) {
        bed_t b;
        char *text = edited(mistakes[i].find, mistakes[i].put);
        const lh_status_t status = bed_open(&b, scratch_text(*state, "s.ini", text), NULL);
        const char *said = status == LH_OK ? "nothing" : behind_folder(*state, fail_reason());
        const bool right = status == LH_INVALID && strcmp(said, mistakes[i].sentence) == 0;
        if (!right)
            print_error("%s -> %s\nsaid:     %s\nexpected: %s\n", mistakes[i].find, mistakes[i].put,
                        said, mistakes[i].sentence);
        wrong += !right;
        bed_close(&b);
        mem_free(text);
    }
    assert_int_equal(wrong, 0);
}

static void what_is_deep_or_long_is_bounded(void **state)
{
    bed_t b;
    text_t deep = {0}, put = {0};
    for (int i = 0; i < 40; i++)
        text_append(&deep, "(");
    text_printf(&put, "wide = %s1", deep.data);
    char *text = edited("wide = 4 * hidden", put.data);
    assert_int_equal(bed_open(&b, scratch_text(*state, "s.ini", text), NULL), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "brackets are 16 deep"));
    bed_close(&b);
    mem_free(text);
    text_free(&deep);
    text_free(&put);
}

static void every_allocation_may_fail(void **state)
{
    job_t *job;
    uint64_t n;
    assert_int_equal(job_load(scratch_text(*state, "s.ini", whole), NULL, 0, &job), LH_OK);
    for (n = 1;; n++) {
        spec_t *s = NULL;
        mem_fail_at(n, false);
        const lh_status_t status = spec_read(job->document, &s);
        mem_fail_at(0, false);
        spec_free(s);
        if (status == LH_OK) break;
        if (status != LH_NO_MEMORY)
            FAIL_TEST("allocation %llu: %s\n", (unsigned long long)n, fail_reason());
    }
    assert_true(n > 50);
    job_free(job);
}

/* A part that is recorded with the n-th allocation failing. */
static lh_status_t record_with_failure(bed_t *b, uint64_t n)
{
    lh_model_t *m = NULL;
    recording_t *r;
    const recording_how_t how = b->parts[LH_PART_BLOCK - 1]->how;
    const uint64_t shape[] = {TOKENS, b->parameters->hidden};
    assert_int_equal(recorder_new(&how, &r), LH_OK);
    const lh_value_t input = recording_argument(r, LH_DTYPE_F32, 2, shape);
    mem_fail_at(n, false);
    lh_status_t status = b->plugin->model->open(b->plugin->host, b->config, &m);
    if (status == LH_OK) {
        (void)b->plugin->model->record(m, &r->graph, LH_PART_BLOCK, 0, input);
        status = recording_status(r);
    }
    mem_fail_at(0, false);
    if (m != NULL) b->plugin->model->close(m);
    recording_free(r);
    return status;
}

static void every_allocation_of_a_model_may_fail(void **state)
{
    bed_t b;
    uint64_t n = 1;
    bed_of(&b, *state, NULL, NULL, NULL);
    for (lh_status_t status; (status = record_with_failure(&b, n)) != LH_OK; n++)
        if (status != LH_NO_MEMORY)
            FAIL_TEST("allocation %llu: %s\n", (unsigned long long)n, fail_reason());
    assert_true(n > 50);
    bed_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_those_of_a_plugin),
        cmocka_unit_test(lines_are_recorded_in_order_with_the_attributes_of_the_op),
        cmocka_unit_test(numbers_may_depend_on_flags_and_choices),
        cmocka_unit_test(more_ways_to_write_a_line),
        cmocka_unit_test(blocks_may_be_of_classes),
        cmocka_unit_test(an_option_may_say_which_block_is_of_which_class),
        cmocka_unit_test(blocks_add_to_sums_that_the_head_reads),
        cmocka_unit_test(a_mistake_is_one_sentence_with_its_place),
        cmocka_unit_test(what_is_deep_or_long_is_bounded),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(every_allocation_of_a_model_may_fail),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
