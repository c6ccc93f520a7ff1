/* encode_ids.c - a tokenizer as a filter, for programs that compare it with others: reads texts
 * from standard input, each after its length as 4 bytes (little endian), and prints for each a line
 * with the ids, a line with the decoded bytes in hexadecimal, or one line "refused: why". */
#include <stdio.h>
#include <stdlib.h>

#include <base/memory.h>
#include <tokenizer/tokenizer.h>

static void print_answer(const token_ids_t *ids, const text_t *decoded)
{
    for (size_t i = 0; i < ids->count; i++)
        printf(i == 0 ? "%d" : " %d", ids->ids[i]);
    printf("\n");
    for (size_t i = 0; i < decoded->length; i++)
        printf("%02x", (unsigned char)decoded->data[i]);
    printf("\n");
}

static bool read_text(char **text, size_t *length)
{
    unsigned char size[4];
    if (fread(size, 1, 4, stdin) != 4) return false;
    *length = size[0] | (size_t)size[1] << 8 | (size_t)size[2] << 16 | (size_t)size[3] << 24;
    /* of its very size, so that a sanitizer sees reads past the end */
    *text = malloc(*length == 0 ? 1 : *length);
    return *text != NULL && fread(*text, 1, *length, stdin) == *length;
}

int main(int argc, char **argv)
{
    tokenizer_t *t;
    tokenizer_scratch_t *scratch;
    token_ids_t ids = {0};
    char *text;
    size_t length;

    if (argc != 2) {
        fprintf(stderr, "usage: encode_ids TOKENIZER < texts\n");
        return 2;
    }
    if (tokenizer_load(argv[1], NULL, &t) != LH_OK) {
        printf("refused: %s\n", fail_reason());
        return 1;
    }
    if (tokenizer_scratch_new(t, &scratch) != LH_OK) return 1;
    const tokenizer_special_t *special = tokenizer_special(t);
    printf("%s, %d ids, bos %d, eos %d, eod %d, unk %d, pad %d\n", tokenizer_kind(t),
           tokenizer_vocab_size(t), special->bos, special->eos, special->eod, special->unk,
           special->pad);
    while (read_text(&text, &length)) {
        text_t decoded = {0};
        ids.count = 0;
        lh_status_t status = tokenizer_encode(t, scratch, text, length, SPELLING_AS_REFERENCE,
                                              &ids);
        if (status == LH_OK) status = tokenizer_decode(t, ids.ids, ids.count, false, &decoded);
        if (status == LH_OK)
            print_answer(&ids, &decoded);
        else
            printf("refused: %s\n\n", fail_reason());
        text_free(&decoded);
        free(text);
    }
    token_ids_free(&ids);
    tokenizer_scratch_free(scratch);
    tokenizer_free(t);
    return 0;
}
