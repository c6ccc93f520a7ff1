/* hf_config_test.c - config.json in old and new keys gives the same options, and is written for
 * both. */
#include <unit/base/comma_locale.h>
#include <unit/checkpoint/model_kit.h>

#include <format/json.h>

#define GOLDEN LH_TEST_DATA "/../golden"

/* The rows of a Llama, shortened: what is tested is the reader, not the plugin. */
static const lh_hf_key_t keys[] = {
    LH_HF_KEY("num_attention_heads", "heads", NULL),
    LH_HF_KEY("num_key_value_heads", "kv_heads", "heads"),
    LH_HF_KEY("head_dim", "head_dim", "0"),
    LH_HF_KEY("vocab_size", "vocab", "32000"),
    LH_HF_KEY("rms_norm_eps", "epsilon", "1e-6"),
    LH_HF_KEY("tie_word_embeddings", "tied", "false"),
    LH_HF_KEY("rope_parameters.rope_theta|+rope_theta", "base", "10000"),
    LH_HF_KEY("rope_parameters.rope_type|+rope_scaling.rope_type|rope_scaling.type", "scaling",
              "default"),
    LH_HF_WHEN("rope_parameters.factor|+rope_scaling.factor", "factor", "1",
               "scaling=linear|llama3"),
    LH_HF_WHEN("rope_parameters.low_freq_factor|+rope_scaling.low_freq_factor", "low", "1",
               "scaling=llama3"),
    LH_HF_MUST("hidden_act", "silu"),
    LH_HF_MUST("attention_bias", "false"),
    {.key = "attention_dropout"},
};
static const lh_hf_t table = {
    .struct_size = sizeof(table),
    .key_size = sizeof(keys[0]),
    .key_count = sizeof(keys) / sizeof(keys[0]),
    .model_type = "llama|LLaMA",
    .architecture = "LlamaForCausalLM|LlamaModel",
    .keys = keys,
};

#define HEAD "{\"model_type\": \"llama\", \"num_attention_heads\": 8"

static const struct {
    const char *json, *options;
} configs[] = {
    {HEAD "}", "heads = 8\nkv_heads = 8\nhead_dim = 0\nvocab = 32000\nepsilon = 1e-6\ntied = no\n"
               "base = 10000\nscaling = default\n"},
    {HEAD ", \"num_key_value_heads\": 2, \"head_dim\": 16, \"vocab_size\": 512, \"rms_norm_eps\": "
          "1e-05, \"tie_word_embeddings\": true, \"rope_theta\": 500000.0, \"rope_scaling\": null}",
     "heads = 8\nkv_heads = 2\nhead_dim = 16\nvocab = 512\nepsilon = 1e-05\ntied = yes\n"
     "base = 500000.0\nscaling = default\n"},
    {HEAD ", \"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": "
          "8.0, \"low_freq_factor\": 2}}",
     "heads = 8\nkv_heads = 8\nhead_dim = 0\nvocab = 32000\nepsilon = 1e-6\ntied = no\n"
     "base = 500000.0\nscaling = llama3\nfactor = 8.0\nlow = 2\n"},
    {HEAD ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}}",
     "heads = 8\nkv_heads = 8\nhead_dim = 0\nvocab = 32000\nepsilon = 1e-6\ntied = no\n"
     "base = 10000\nscaling = linear\nfactor = 4.0\n"},
    /* What stands in the new dictionary wins. */
    {HEAD
     ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 7.5}, \"rope_theta\": "
     "3, \"hidden_act\": \"silu\", \"attention_bias\": false, \"num_key_value_heads\": null}",
     "heads = 8\nkv_heads = 8\nhead_dim = 0\nvocab = 32000\nepsilon = 1e-6\ntied = no\n"
     "base = 7.5\nscaling = default\n"},
};

static void old_and_new_keys_give_the_options(void **state)
{
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        hf_config_t c;
        text_t text = {0};
        const char *path = scratch_text(*state, "config.json", configs[i].json);
        if (hf_config_read(&table, path, &c) != LH_OK) FAIL_TEST("%s\n", fail_reason());
        hf_config_text(&c, &text);
        assert_string_equal(text.data, configs[i].options);
        assert_null(c.ignored.data);
        text_free(&text);
        hf_config_free(&c);
    }
}

static const struct {
    const char *json, *sentence;
} refused[] = {
    {"{}", "config.json: model_type is nothing, a text was expected"},
    {"{\"model_type\": \"mistral\"}",
     "config.json: model_type is mistral, this model plugin reads llama|LLaMA"},
    {"{\"model_type\": \"llama\"}", "config.json: num_attention_heads is missing"},
    {HEAD ", \"hidden_act\": \"gelu\"}", "config.json: hidden_act is gelu, expected silu"},
    {HEAD ", \"attention_bias\": true}", "config.json: attention_bias is yes, expected false"},
    {HEAD ", \"quantization_config\": {\"bits\": 4}}",
     "config.json: quantization_config: quantised weights are not read"},
    {HEAD ", \"rope_theta\": [1]}",
     "config.json: rope_theta is [1], a number, a text, true or false was expected"},
    {HEAD ", \"vocab_size\": \"512\"}",
     "config.json: vocab_size is \"512\", a number without quotes was expected"},
    {HEAD ", \"vocab_size\": \"4k\"}",
     "config.json: vocab_size is \"4k\", a number without quotes was expected"},
    {HEAD ", \"rms_norm_eps\": \"1e-5\"}",
     "config.json: rms_norm_eps is \"1e-5\", a number without quotes was expected"},
    {HEAD ", \"tie_word_embeddings\": \"yes\"}",
     "config.json: tie_word_embeddings is \"yes\", true or false without quotes was expected"},
    {HEAD ", \"tie_word_embeddings\": \"true\"}",
     "config.json: tie_word_embeddings is \"true\", true or false without quotes was expected"},
    {HEAD ", \"attention_bias\": \"false\"}",
     "config.json: attention_bias is \"false\", true or false without quotes was expected"},
    {HEAD ", \"rope_parameters\": \"x\"}",
     "config.json: rope_parameters is x, an object was expected"},
    {HEAD ", \"rope_parameters\": []}",
     "config.json: rope_parameters is a list, an object was expected"},
    {HEAD ", \"rope_scaling\": 3}", "config.json: rope_scaling is 3, an object was expected"},
    {HEAD ", \"architectures\": \"x\"}",
     "config.json: architectures is x, a list of names was expected"},
    {HEAD ", \"architectures\": [null]}",
     "config.json: architectures is null, a list of names was expected"},
    {HEAD ", \"architectures\": [\"GPT2LMHeadModel\"]}",
     "config.json: architectures is GPT2LMHeadModel, this model plugin reads "
     "LlamaForCausalLM|LlamaModel"},
    {HEAD ", \"bos_token_id\": -1}",
     "config.json: bos_token_id is -1, a token id from 0 on was expected"},
    {HEAD ", \"eos_token_id\": []}",
     "config.json: eos_token_id is a list, a token id from 0 on was expected"},
    {HEAD ", \"eos_token_id\": [1, \"2\"]}",
     "config.json: eos_token_id is 2, a token id from 0 on was expected"},
    {HEAD ", \"x\": 1, \"x\": 2}", "config.json: key 'x' stands twice"},
};

static void what_the_model_cannot_do_is_refused(void **state)
{
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        hf_config_t c;
        const char *path = scratch_text(*state, "config.json", refused[i].json);
        assert_int_not_equal(hf_config_read(&table, path, &c), LH_OK);
        assert_string_equal(behind_folder(*state, fail_reason()), refused[i].sentence);
    }
}

static void dropout_is_only_mentioned_and_ids_may_lie_anywhere(void **state)
{
    hf_config_t c;
    const char *path = scratch_text(
        *state, "config.json",
        HEAD ", \"attention_dropout\": 0.1, \"bos_token_id\": 50256, "
             "\"architectures\": [\"LlamaModel\"], \"rope_parameters\": null, "
             "\"eos_token_id\": [51, 52]}");
    assert_int_equal(hf_config_read(&table, path, &c), LH_OK);
    assert_string_equal(c.ignored.data, "attention_dropout = 0.1");
    assert_int_equal(c.bos, 50256);
    assert_int_equal(c.eos, 51);
    hf_config_free(&c);
}

/* What rows can say besides: which of several model types, null, words, a list of blocks, one of
 * several values, anything. */
static const lh_hf_key_t more_keys[] = {
    LH_HF_KEY("model_type", "kind", NULL),
    LH_HF_KEY("num_hidden_layers", "blocks", "2"),
    {.key = "sliding_window", .option = "window", .fixed = "4096", .null = "0"},
    {.key = "layer_types[]",
     .option = "layers",
     .fixed = "wf",
     .when = "kind=two",
     .words = "w=sliding_attention|f=full_attention"},
    LH_HF_MUST("hidden_act", "silu|swish"),
    {.key = "gate",
     .option = "gate",
     .fixed = "tanh",
     .words = "tanh=gelu_pytorch_tanh|plain=gelu"},
    LH_HF_ANY("max_window_layers"),
    LH_HF_MUST("mlp_types[]", "dense|sparse"),
};
static const lh_hf_t more = {
    .struct_size = sizeof(more),
    .key_size = sizeof(more_keys[0]),
    .key_count = sizeof(more_keys) / sizeof(more_keys[0]),
    .model_type = "one|two",
    .architecture = "OneForCausalLM|TwoForCausalLM|OneModel",
    .keys = more_keys,
};

static const struct {
    const char *json, *options, *unread;
} more_configs[] = {
    {"{\"model_type\": \"one\"}", "kind = one\nblocks = 2\nwindow = 4096\ngate = tanh\n", NULL},
    {"{\"model_type\": \"two\", \"sliding_window\": null, \"hidden_act\": \"swish\", \"gate\": "
     "\"gelu\", \"layer_types\": [\"sliding_attention\", \"sliding_attention\", "
     "\"full_attention\"], \"num_hidden_layers\": 3, \"max_window_layers\": 28}",
     "kind = two\nblocks = 3\nwindow = 0\nlayers = wwf\ngate = plain\n", NULL},
    {"{\"model_type\": \"two\", \"num_hidden_layer\": 3, \"use_cache\": true, \"x\": {\"y\": 1}, "
     "\"sliding_window\": 7}",
     "kind = two\nblocks = 2\nwindow = 7\nlayers = wf\ngate = tanh\n",
     "num_hidden_layer = 3 (num_hidden_layers?), x = {\"y\":1}"},
    {"{\"model_type\": \"one\", \"mlp_types\": [\"sparse\", \"dense\"]}",
     "kind = one\nblocks = 2\nwindow = 4096\ngate = tanh\n", NULL},
    /* Of a model of another kind the row does not hold, and its key is known all the same. */
    {"{\"model_type\": \"one\", \"layer_types\": [\"full_attention\"]}",
     "kind = one\nblocks = 2\nwindow = 4096\ngate = tanh\n", NULL},
};

static void rows_read_null_words_lists_and_kinds(void **state)
{
    for (size_t i = 0; i < sizeof(more_configs) / sizeof(more_configs[0]); i++) {
        hf_config_t c;
        text_t text = {0};
        const char *path = scratch_text(*state, "config.json", more_configs[i].json);
        if (hf_config_read(&more, path, &c) != LH_OK) FAIL_TEST("%s\n", fail_reason());
        hf_config_text(&c, &text);
        assert_string_equal(text.data, more_configs[i].options);
        if (more_configs[i].unread == NULL)
            assert_null(c.unread.data);
        else
            assert_string_equal(c.unread.data, more_configs[i].unread);
        text_free(&text);
        hf_config_free(&c);
    }
}

static const struct {
    const char *json, *sentence;
} more_refused[] = {
    {"{\"model_type\": \"two\", \"layer_types\": [\"full_attention\", \"linear_attention\"]}",
     "config.json: layer_types[1] is \"linear_attention\", sliding_attention or full_attention was "
     "expected"},
    {"{\"model_type\": \"two\", \"layer_types\": \"full_attention\"}",
     "config.json: layer_types is \"full_attention\", a list was expected"},
    {"{\"model_type\": \"two\", \"num_hidden_layers\": 3, \"layer_types\": [\"full_attention\", "
     "\"full_attention\"]}",
     "config.json: layer_types has 2 items, one for each of num_hidden_layers = 3 was expected"},
    {"{\"model_type\": \"two\", \"layer_types\": []}",
     "config.json: layer_types has 0 items, one for each of num_hidden_layers = 2 was expected"},
    {"{\"model_type\": \"two\", \"gate\": \"relu\"}",
     "config.json: gate is \"relu\", gelu_pytorch_tanh or gelu was expected"},
    {"{\"model_type\": \"two\", \"hidden_act\": \"gelu\"}",
     "config.json: hidden_act is gelu, expected silu|swish"},
    {"{\"model_type\": \"two\", \"mlp_types\": [\"dense\", \"shared\"]}",
     "config.json: mlp_types[1] is shared, expected dense|sparse"},
    {"{\"model_type\": \"two\", \"mlp_types\": [\"dense\"]}",
     "config.json: mlp_types has 1 items, one for each of num_hidden_layers = 2 was expected"},
    /* Rows that would have to say [] */
    {"{\"model_type\": \"two\", \"hidden_act\": [\"silu\", \"silu\"]}",
     "config.json: hidden_act is [\"silu\",\"silu\"], and its row reads one value; of a list the "
     "row's key is hidden_act[], in [spec.config.fixed] hidden_act = [silu|swish]"},
    {"{\"model_type\": \"two\", \"gate\": [\"gelu\"]}",
     "config.json: gate is [\"gelu\"], and its row reads one value; of a list the row's key is "
     "gate[]"},
};

static void what_rows_do_not_name_is_refused(void **state)
{
    for (size_t i = 0; i < sizeof(more_refused) / sizeof(more_refused[0]); i++) {
        hf_config_t c;
        const char *path = scratch_text(*state, "config.json", more_refused[i].json);
        assert_int_not_equal(hf_config_read(&more, path, &c), LH_OK);
        assert_string_equal(behind_folder(*state, fail_reason()), more_refused[i].sentence);
    }
}

static const char *more_option(void *context, const char *key)
{
    static const char *const values[][2] = {
        {"kind", "two"}, {"blocks", "5"}, {"window", "0"}, {"layers", "wwf"}, {"gate", "plain"}};
    (void)context;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        if (strcmp(values[i][0], key) == 0) return values[i][1];
    return NULL;
}

#define LAYERS                                              \
    "  \"layer_types\": [\n    \"sliding_attention\",\n"    \
    "    \"sliding_attention\",\n    \"full_attention\",\n" \
    "    \"sliding_attention\",\n    \"sliding_attention\"\n  ]"

/* What is made anew is, imported and exported again, the same text. */
static void rows_write_null_words_lists_and_kinds(void **state)
{
    text_t text = {0}, again = {0};
    hf_config_facts_t facts = {
        .option = more_option, .vocab = 512, .blocks = 5, .bos = -1, .eos = -1};
    assert_int_equal(hf_config_write(&more, &facts, &text), LH_OK);
    assert_string_equal(text.data, "{\n"
                                   "  \"architectures\": [\n    \"TwoForCausalLM\"\n  ],\n"
                                   "  \"model_type\": \"two\",\n"
                                   "  \"num_hidden_layers\": 5,\n"
                                   "  \"sliding_window\": null,\n" LAYERS ",\n"
                                   "  \"hidden_act\": \"silu\",\n"
                                   "  \"gate\": \"gelu\",\n"
                                   "  \"bos_token_id\": null,\n"
                                   "  \"eos_token_id\": null\n"
                                   "}\n");
    facts.kept = scratch_text(*state, "config.json", text.data);
    assert_int_equal(hf_config_write(&more, &facts, &again), LH_OK);
    assert_string_equal(again.data, text.data);
    text_free(&text);
    text_free(&again);
}

/* A file of an older form: other names, of which one says two things, and values of absent keys that
 * were others. */
static const lh_hf_key_t aged_keys[] = {
    LH_HF_KEY("num_heads|n_head", "heads", NULL),
    LH_HF_KEY("num_groups|n_group", "groups", "0"),
    LH_HF_KEY("grouped|n_group=true", "grouped", "false"),
    LH_HF_KEY("parallel|n_head=false", "parallel", "true"),
};
static const lh_hf_t aged = {
    .struct_size = sizeof(aged),
    .key_size = sizeof(aged_keys[0]),
    .key_count = sizeof(aged_keys) / sizeof(aged_keys[0]),
    .model_type = "new|Old|Older",
    .architecture = "NewForCausalLM|OldForCausalLM|NewModel",
    .keys = aged_keys,
};

static const struct {
    const char *json, *options;
} aged_configs[] = {
    {"{\"model_type\": \"new\", \"num_heads\": 4, \"num_groups\": 2}",
     "heads = 4\ngroups = 2\ngrouped = no\nparallel = yes\n"},
    {"{\"model_type\": \"Old\", \"n_head\": 4, \"n_group\": 2}",
     "heads = 4\ngroups = 2\ngrouped = yes\nparallel = no\n"},
    {"{\"model_type\": \"Older\", \"n_head\": 4, \"n_group\": null, \"parallel\": true}",
     "heads = 4\ngroups = 0\ngrouped = no\nparallel = yes\n"},
    /* What says it by its value wins. */
    {"{\"model_type\": \"Old\", \"n_head\": 4, \"n_group\": 4, \"grouped\": false}",
     "heads = 4\ngroups = 4\ngrouped = no\nparallel = no\n"},
};

static void a_key_that_is_there_says_what_the_row_has_for_it(void **state)
{
    for (size_t i = 0; i < sizeof(aged_configs) / sizeof(aged_configs[0]); i++) {
        hf_config_t c;
        text_t text = {0};
        const char *path = scratch_text(*state, "config.json", aged_configs[i].json);
        if (hf_config_read(&aged, path, &c) != LH_OK) FAIL_TEST("%s\n", fail_reason());
        hf_config_text(&c, &text);
        assert_string_equal(text.data, aged_configs[i].options);
        assert_null(c.unread.data);
        text_free(&text);
        hf_config_free(&c);
    }
}

static const char *aged_option(void *context, const char *key)
{
    return hf_config_option(context, key);
}

/* Reads a config.json with this text and appends what an export makes of it. */
static void write_aged(void **state, const char *json, text_t *out)
{
    hf_config_t c;
    const char *path = scratch_text(*state, "config.json", json);
    if (hf_config_read(&aged, path, &c) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    const hf_config_facts_t facts = {
        .option = aged_option, .context = &c, .kept = path, .bos = -1, .eos = -1};
    assert_int_equal(hf_config_write(&aged, &facts, out), LH_OK);
    hf_config_free(&c);
}

/* Names of code that an export does not have go with the type that only that code knows. */
static void a_file_of_an_old_type_is_written_as_of_the_first(void **state)
{
    text_t text = {0}, again = {0}, other = {0};
    write_aged(state,
               "{\"architectures\": [\"OldForCausalLM\"], \"auto_map\": {\"AutoConfig\": "
               "\"configuration_old.OldConfig\"}, \"model_type\": \"Old\", \"n_group\": 2, "
               "\"n_head\": 4, \"use_cache\": true}",
               &text);
    assert_string_equal(text.data, "{\n"
                                   "  \"architectures\": [\n    \"NewForCausalLM\"\n  ],\n"
                                   "  \"model_type\": \"new\",\n"
                                   "  \"n_group\": 2,\n"
                                   "  \"n_head\": 4,\n"
                                   "  \"use_cache\": true,\n"
                                   "  \"num_heads\": 4,\n"
                                   "  \"num_groups\": 2,\n"
                                   "  \"grouped\": true,\n"
                                   "  \"parallel\": false\n"
                                   "}\n");
    write_aged(state, text.data, &again);
    assert_string_equal(again.data, text.data);

    /* A file of the first type keeps its architecture, and whatever code it names. */
    write_aged(state,
               "{\"architectures\": [\"NewModel\"], \"auto_map\": {\"AutoConfig\": "
               "\"own.OwnConfig\"}, \"model_type\": \"new\", \"num_heads\": 4}",
               &other);
    assert_non_null(strstr(other.data, "\"NewModel\""));
    assert_non_null(strstr(other.data, "\"AutoConfig\": \"own.OwnConfig\""));
    text_free(&text);
    text_free(&again);
    text_free(&other);
}

#define OLD_FALCON(type, hidden, heads, layers, vocab, more)                              \
    "{\"model_type\": \"" type "\", \"architectures\": [\"RWForCausalLM\"], "             \
    "\"hidden_size\": " hidden ", \"n_head\": " heads ", \"n_layer\": " layers ", "       \
    "\"vocab_size\": " vocab ", \"layer_norm_epsilon\": 1e-05, \"hidden_dropout\": 0.0, " \
    "\"attention_dropout\": 0.0, \"apply_residual_connection_post_layernorm\": false, "   \
    "\"auto_map\": {\"AutoConfig\": \"configuration_RW.RWConfig\"}" more "}"
#define FALCON_7B \
    "\"multi_query\": true, \"parallel_attn\": true, \"alibi\": false, \"bias\": false"
#define FALCON_40B "\"n_head_kv\": 8, \"parallel_attn\": true, \"alibi\": false, \"bias\": false"

/* What the config.json of published models said before Transformers knew Falcon, and how many
 * parameters those have. */
static const struct {
    const char *json;
    uint64_t elements;
    const char *grouped, *multi_query, *parallel;
} old_falcons[] = {
    {OLD_FALCON("RefinedWebModel", "4544", "71", "32", "65024", ", " FALCON_7B), 6921720704, "no",
     "yes", "yes"},
    {OLD_FALCON("RefinedWeb", "4544", "71", "32", "65024", ", " FALCON_7B), 6921720704, "no", "yes",
     "yes"},
    {OLD_FALCON("RefinedWeb", "8192", "128", "60", "65024", ", " FALCON_40B), 41303293952, "yes",
     "yes", "yes"},
    /* In the time between, with old keys and new ones. */
    {OLD_FALCON("RefinedWeb", "8192", "128", "60", "65024",
                ", " FALCON_40B ", \"num_kv_heads\": 8, \"new_decoder_architecture\": true"),
     41303293952, "yes", "yes", "yes"},
    {OLD_FALCON("RefinedWebModel", "2048", "32", "24", "50304",
                ", \"multi_query\": false, \"parallel_attn\": false, \"alibi\": true, "
                "\"bias\": true"),
     1311625216, "no", "no", "no"},
    {OLD_FALCON("RefinedWebModel", "2048", "32", "24", "50304",
                ", \"alibi\": true, \"bias\": true"),
     1311625216, "no", "no", "no"},
};

static void a_falcon_of_the_old_form_is_of_its_kind(void **state)
{
    scratch_t *s = *state;
    for (size_t i = 0; i < sizeof(old_falcons) / sizeof(old_falcons[0]); i++) {
        model_kit_t k;
        (void)scratch_text(s, "config.json", old_falcons[i].json);
        kit_open(&k, "falcon", s->folder);
        assert_int_equal(k.parameters->elements, old_falcons[i].elements);
        assert_string_equal(hf_config_option(&k.config, "grouped"), old_falcons[i].grouped);
        assert_string_equal(hf_config_option(&k.config, "multi_query"), old_falcons[i].multi_query);
        assert_string_equal(hf_config_option(&k.config, "parallel"), old_falcons[i].parallel);
        assert_null(k.config.unread.data);
        assert_null(k.config.ignored.data);
        kit_close(&k);
    }
}

static const char *scaled(void *context, const char *key)
{
    static const char *const values[][2] = {
        {"heads", "8"},  {"kv_heads", "0"},   {"head_dim", "0"}, {"epsilon", "1e-05"},
        {"tied", "yes"}, {"base", "10000.0"}, {"scaling", NULL}, {"factor", "8.0"},
        {"low", "1.0"},  {"size", "96"},
    };
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        if (strcmp(values[i][0], key) == 0) return values[i][1] == NULL ? context : values[i][1];
    return NULL;
}

static void a_new_config_has_both_forms_of_rope(void **state)
{
    (void)state;
    text_t text = {0};
    char kind[] = "llama3";
    const hf_config_facts_t facts = {
        .option = scaled, .context = kind, .vocab = 512, .dtype = "float32", .bos = 1, .eos = -1};
    comma_locale = true; /* of a plugin */
    const lh_status_t status = hf_config_write(&table, &facts, &text);
    comma_locale = false;
    assert_int_equal(status, LH_OK);
    assert_string_equal(text.data, "{\n"
                                   "  \"architectures\": [\n    \"LlamaForCausalLM\"\n  ],\n"
                                   "  \"model_type\": \"llama\",\n"
                                   "  \"torch_dtype\": \"float32\",\n"
                                   "  \"num_attention_heads\": 8,\n"
                                   "  \"num_key_value_heads\": 8,\n"
                                   "  \"vocab_size\": 512,\n"
                                   "  \"rms_norm_eps\": 1e-05,\n"
                                   "  \"tie_word_embeddings\": true,\n"
                                   "  \"rope_parameters\": {\n"
                                   "    \"rope_theta\": 10000.0,\n"
                                   "    \"rope_type\": \"llama3\",\n"
                                   "    \"factor\": 8.0,\n"
                                   "    \"low_freq_factor\": 1.0\n"
                                   "  },\n"
                                   "  \"rope_theta\": 10000.0,\n"
                                   "  \"rope_scaling\": {\n"
                                   "    \"rope_type\": \"llama3\",\n"
                                   "    \"factor\": 8.0,\n"
                                   "    \"low_freq_factor\": 1.0\n"
                                   "  },\n"
                                   "  \"hidden_act\": \"silu\",\n"
                                   "  \"attention_bias\": false,\n"
                                   "  \"bos_token_id\": 1,\n"
                                   "  \"eos_token_id\": null\n"
                                   "}\n");
    text_free(&text);

    char plain[] = "default";
    text_t other = {0};
    const hf_config_facts_t simple = {.option = scaled, .context = plain, .vocab = 512};
    assert_int_equal(hf_config_write(&table, &simple, &other), LH_OK);
    assert_null(strstr(other.data, "rope_scaling"));
    assert_null(strstr(other.data, "factor"));
    assert_non_null(strstr(other.data, "\"rope_type\": \"default\""));
    text_free(&other);
}

/* A value that could not be compared must not be written in other words. */
/* An absent key stands for 128 in Transformers' class: a head of hidden / heads must be written. */
static void what_a_zero_stands_for_is_written(void **state)
{
    static const lh_hf_key_t rows[] = {
        LH_HF_KEY("num_attention_heads", "heads", NULL),
        {.key = "head_dim", .option = "head_dim", .fixed = "128", .derived = "size / heads"},
    };
    static const lh_hf_t of = {.struct_size = sizeof(of),
                               .key_size = sizeof(rows[0]),
                               .key_count = 2,
                               .model_type = "qwen3",
                               .architecture = "Qwen3ForCausalLM",
                               .keys = rows};
    (void)state;
    text_t text = {0};
    const hf_config_facts_t facts = {.option = scaled, .vocab = 512, .bos = -1, .eos = -1};
    assert_int_equal(hf_config_write(&of, &facts, &text), LH_OK);
    assert_non_null(strstr(text.data, "\"head_dim\": 12"));
    text_free(&text);

    lh_hf_key_t wrong[2] = {rows[0], rows[1]};
    lh_hf_t other = of;
    other.keys = wrong;
    wrong[1].derived = "size / nothing";
    assert_int_equal(hf_config_write(&other, &facts, &text), LH_INVALID);
    assert_string_equal(fail_reason(),
                        "config.json key 'head_dim': its option 'head_dim' is 0, and "
                        "'size / nothing' says nothing");
    text_free(&text);
}

static void a_failed_allocation_changes_no_value_of_an_imported_config(void **state)
{
    scratch_t *s = *state;
    text_t want = {0};
    char kind[] = "default";
    const char *kept = scratch_text(s, "kept.json",
                                    HEAD ", \"rms_norm_eps\": 0.00001, "
                                         "\"rope_theta\": 10000}");
    const hf_config_facts_t facts = {
        .option = scaled, .context = kind, .vocab = 512, .kept = kept, .bos = -1, .eos = -1};
    assert_int_equal(hf_config_write(&table, &facts, &want), LH_OK);
    lh_status_t status = LH_NO_MEMORY;
    for (uint64_t n = 1; status != LH_OK; n++) {
        text_t text = {0};
        const uint64_t before = mem_count();
        mem_fail_at(n, false);
        status = hf_config_write(&table, &facts, &text);
        mem_fail_at(0, false);
        if (status == LH_OK) {
            assert_string_equal(text.data, want.data);
            if (mem_count() - before >= n) status = LH_NO_MEMORY; /* borne; go on */
        } else {
            assert_int_equal(status, LH_NO_MEMORY);
        }
        text_free(&text);
    }
    text_free(&want);
}

static void other_keys_of_an_imported_config_stay(void **state)
{
    scratch_t *s = *state;
    static const char *const kept[] = {"\"transformers_version\": \"4.46.2\"",
                                       "\"summary_type\": \"cls_index\"",
                                       "\"bos_token_id\": 50256",
                                       "\"n_ctx\": 512",
                                       "\"n_inner\": null",
                                       "\"layer_norm_epsilon\": 1e-05"};
    model_kit_t k;
    text_t text = {0};
    const char *folder = LH_TEST_DATA "/models/capp-gpt2";
    kit_open(&k, "gpt2", folder);
    assert_int_equal(k.config.bos, 50256);
    const hf_config_facts_t facts = {.option = kit_option,
                                     .context = &k,
                                     .vocab = 64,
                                     .kept = LH_TEST_DATA "/models/capp-gpt2/config.json",
                                     .bos = -1,
                                     .eos = -1};
    assert_int_equal(hf_config_write(k.plugin->model->hf, &facts, &text), LH_OK);
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        if (strstr(text.data, kept[i]) == NULL) FAIL_TEST("%s is lost\n", kept[i]);
    assert_non_null(strstr(text.data, "\"vocab_size\": 64")); /* as many rows as are exported */

    json_document_t *written;
    assert_int_equal(json_parse("written", text.data, text.length, UINT64_MAX, &written), LH_OK);
    json_free(written);
    text_free(&text);
    kit_close(&k);
    (void)s;
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        FACT(old_and_new_keys_give_the_options),
        FACT(what_the_model_cannot_do_is_refused),
        FACT(dropout_is_only_mentioned_and_ids_may_lie_anywhere),
        FACT(rows_read_null_words_lists_and_kinds),
        FACT(what_rows_do_not_name_is_refused),
        FACT(rows_write_null_words_lists_and_kinds),
        FACT(a_key_that_is_there_says_what_the_row_has_for_it),
        FACT(a_file_of_an_old_type_is_written_as_of_the_first),
        FACT(a_falcon_of_the_old_form_is_of_its_kind),
        FACT(a_new_config_has_both_forms_of_rope),
        FACT(what_a_zero_stands_for_is_written),
        FACT(a_failed_allocation_changes_no_value_of_an_imported_config),
        FACT(other_keys_of_an_imported_config_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
