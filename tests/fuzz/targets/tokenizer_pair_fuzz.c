/* tokenizer_pair_fuzz.c - vocab.json, merges.txt and tokenizer_config.json with form feeds between.
 * The pieces of the byte alphabet, without which all is refused, are added to the vocabulary. */
#include <fuzz/fuzz_tokenizer.h>

#include <base/text.h>
#include <subword/token_pieces.h>

/* Before the last brace; ids from 256 on are the input's own. */
static void add_alphabet(const fuzz_part_t *part, text_t *out)
{
    size_t end = part->size;
    while (end > 0 && part->bytes[end - 1] != '}')
        end--;
    text_append_n(out, part->bytes, end == 0 ? part->size : end - 1);
    for (uint32_t byte = 0; byte < 256 && end > 0; byte++) {
        char spelt[5] = {0};
        (void)text_utf8_encode(piece_character_of_byte((uint8_t)byte), spelt);
        text_printf(out, ", \"%s%s\": %u", *spelt == '"' || *spelt == '\\' ? "\\" : "", spelt,
                    byte);
    }
    if (end > 0) text_append_n(out, part->bytes + end - 1, part->size - end + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_part_t parts[3];
    text_t vocabulary = {0};
    fuzz_cut(bytes, size, '\f', parts, 3);
    add_alphabet(&parts[0], &vocabulary);
    fuzz_file("/fuzz/t/vocab.json", vocabulary.data, vocabulary.length);
    fuzz_file("/fuzz/t/merges.txt", parts[1].bytes, parts[1].size);
    if (parts[2].size > 0)
        fuzz_file("/fuzz/t/tokenizer_config.json", parts[2].bytes, parts[2].size);
    fuzz_tokenizer("/fuzz/t/vocab.json");
    fuzz_files_clear();
    text_free(&vocabulary);
    fuzz_parts_free(parts, 3);
    return 0;
}
