/* tokenizer_json_fuzz.c - a tokenizer.json, and behind a form feed a tokenizer_config.json. */
#include <fuzz/fuzz_tokenizer.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_part_t parts[2];
    fuzz_cut(bytes, size, '\f', parts, 2);
    fuzz_file("/fuzz/t/tokenizer.json", parts[0].bytes, parts[0].size);
    if (parts[1].size > 0)
        fuzz_file("/fuzz/t/tokenizer_config.json", parts[1].bytes, parts[1].size);
    fuzz_tokenizer("/fuzz/t");
    fuzz_files_clear();
    fuzz_parts_free(parts, 2);
    return 0;
}
