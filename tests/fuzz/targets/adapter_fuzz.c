/* adapter_fuzz.c - PEFT's two files, of an adapter without magnitudes and of one with them: the input up
 * to the first NUL is adapter_config.json, what follows adapter_model.safetensors. What is taken has
 * tensors that are found by their names, and is taken as one of both kinds alone. */
#include <fuzz/fuzz.h>

#include <hf/hf_adapter.h>

static bool adapter_try(bool dora)
{
    static const shard_limits_t limits = {.file = {.header_bytes = 1 << 16, .tensors = 1000}};
    const hf_adapter_t wanted = {.rank = 4, .alpha = 8, .dora = dora};
    hf_adapter_files_t files = {0};
    const bool taken = fuzz_accepted(hf_adapter_open("/fuzz", &wanted, &limits, &files));
    if (taken) {
        FUZZ_ASSERT(files.file->count <= 1000);
        for (uint32_t i = 0; i < files.file->count; i++) {
            const shard_tensor_t *t = hf_adapter_find(&files, files.file->tensors[i].name);
            FUZZ_ASSERT(t != NULL && hf_adapter_has(&files, t));
        }
        FUZZ_ASSERT(!fuzz_accepted(hf_adapter_refuse_extra(&files, NULL, 0)) ||
                    files.file->count == 0);
    }
    hf_adapter_close(&files);
    return taken;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_part_t parts[2];
    fuzz_cut(bytes, size, 0, parts, 2);
    fuzz_file("/fuzz/" HF_ADAPTER_CONFIG, parts[0].bytes, parts[0].size);
    fuzz_file("/fuzz/" HF_ADAPTER_WEIGHTS, parts[1].bytes, parts[1].size);
    const bool without = adapter_try(false), with = adapter_try(true);
    FUZZ_ASSERT(!without || !with);
    fuzz_files_clear();
    fuzz_parts_free(parts, 2);
    return 0;
}
