/* sentencepiece_fuzz.c - a sentencepiece model. */
#include <fuzz/fuzz_tokenizer.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_file("/fuzz/tokenizer.model", bytes, size);
    fuzz_tokenizer("/fuzz/tokenizer.model");
    fuzz_files_clear();
    return 0;
}
