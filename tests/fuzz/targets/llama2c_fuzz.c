/* llama2c_fuzz.c - llama2.c's tokenizer.bin. What all is refused without, the length of the longest
 * piece, the three special ones and the 256 bytes, stands before the input, unless that begins with
 * '!'. */
#include <fuzz/fuzz_tokenizer.h>

static void add_number(text_t *out, uint32_t number)
{
    for (unsigned i = 0; i < 4; i++)
        text_append_n(out, &(char){(char)(number >> (8 * i))}, 1);
}

static void add_piece(text_t *out, const char *piece)
{
    add_number(out, 0); /* the score 0.0 */
    add_number(out, (uint32_t)strlen(piece));
    text_append(out, piece);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    text_t file = {0};
    const bool whole = size > 0 && bytes[0] == '!';
    if (!whole) {
        add_number(&file, 256);
        add_piece(&file, "<unk>");
        add_piece(&file, "\n<s>\n");
        add_piece(&file, "\n</s>\n");
        for (unsigned byte = 0; byte < 256; byte++) {
            char piece[8];
            (void)snprintf(piece, sizeof(piece), "<0x%02X>", byte);
            add_piece(&file, piece);
        }
    }
    text_append_n(&file, (const char *)bytes + (whole ? 1 : 0), size - (whole ? 1 : 0));
    fuzz_file("/fuzz/tokenizer.bin", file.data == NULL ? "" : file.data, file.length);
    fuzz_tokenizer("/fuzz/tokenizer.bin");
    fuzz_files_clear();
    text_free(&file);
    return 0;
}
