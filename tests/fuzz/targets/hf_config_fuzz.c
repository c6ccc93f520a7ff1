/* hf_config_fuzz.c - a config.json by a table like Llama's. What was read and is written back into
 * the file it came from reads as the same options. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <hf/hf_config.h>

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
    LH_HF_MUST("hidden_act", "silu"),
    {.key = "attention_dropout"},
    {.key = "sliding_window", .option = "window", .fixed = "4096", .null = "0"},
    {.key = "layer_types[]",
     .option = "layers",
     .fixed = "wf",
     .words = "w=sliding_attention|f=full_attention"},
    {.key = "gate",
     .option = "gate",
     .fixed = "tanh",
     .words = "tanh=gelu_pytorch_tanh|plain=gelu"},
    LH_HF_ANY("max_window_layers"),
    LH_HF_KEY("grouped|n_group=true", "grouped", "false"),
};
static const lh_hf_t table = {
    .struct_size = sizeof(table),
    .key_size = sizeof(keys[0]),
    .key_count = sizeof(keys) / sizeof(keys[0]),
    .model_type = "llama|LLaMA",
    .architecture = "LlamaForCausalLM",
    .keys = keys,
};

static const char *option(void *context, const char *key)
{
    return hf_config_option(context, key);
}

static void write_back(hf_config_t *c)
{
    const char *vocab = hf_config_option(c, "vocab");
    const hf_config_facts_t facts = {.option = option,
                                     .context = c,
                                     .vocab = vocab == NULL ? 0 : strtoull(vocab, NULL, 10),
                                     .kept = "/fuzz/config.json",
                                     .bos = -1,
                                     .eos = -1};
    text_t written = {0};
    hf_config_t again;
    if (fuzz_accepted(hf_config_write(&table, &facts, &written))) {
        fuzz_file("/fuzz/written.json", written.data, written.length);
        if (fuzz_accepted(hf_config_read(&table, "/fuzz/written.json", &again)))
            hf_config_free(&again);
    }
    text_free(&written);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    hf_config_t c;
    text_t text = {0};
    fuzz_file("/fuzz/config.json", bytes, size);
    if (fuzz_accepted(hf_config_read(&table, "/fuzz/config.json", &c))) {
        hf_config_text(&c, &text);
        write_back(&c);
        hf_config_free(&c);
    }
    text_free(&text);
    fuzz_files_clear();
    return 0;
}
