/* tiktoken_fuzz.c - a list of ranks. The 256 single bytes, without which all is refused, stand
 * before the input. */
#include <fuzz/fuzz_tokenizer.h>

static void add_bytes(text_t *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (uint32_t byte = 0; byte < 256; byte++)
        text_printf(out, "%c%c== %u\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    text_t ranks = {0};
    if (size > 0 && bytes[0] != '!') add_bytes(&ranks);
    text_append_n(&ranks, (const char *)bytes, size);
    fuzz_file("/fuzz/ranks.tiktoken", ranks.data == NULL ? "" : ranks.data, ranks.length);
    fuzz_tokenizer("/fuzz/ranks.tiktoken");
    fuzz_files_clear();
    text_free(&ranks);
    return 0;
}
