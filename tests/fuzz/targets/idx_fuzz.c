/* idx_fuzz.c - an .idx beside 64 bytes of .bin; a first byte of 1 puts a good head and counts
 * around what follows. Every token of what is accepted is read. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <data/indexed.h>

enum { BIN_BYTES = 64, HEAD = INDEXED_HEAD_BYTES };

static void read_all(const indexed_t *set)
{
    int32_t tokens[BIN_BYTES];
    for (uint64_t i = 0; i < set->sequences && i < 100; i++) {
        FUZZ_ASSERT(set->lengths[i] >= 0 && set->lengths[i] <= BIN_BYTES);
        (void)fuzz_accepted(indexed_read(set, i, 0, (uint64_t)set->lengths[i], tokens));
    }
}

/* dtype, number of sequences, then the tables. */
static size_t make_head(const uint8_t *bytes, size_t size, uint8_t *out)
{
    const uint64_t version = 1, sequences = size > 1 ? bytes[1] : 0;
    const uint64_t table = 12 * sequences, rest = size > 2 ? size - 2 : 0;
    const uint64_t boundaries = rest > table ? (rest - table) / 8 : 0;
    memcpy(out, INDEXED_MAGIC, 9);
    memcpy(out + 9, &version, 8);
    out[17] = size > 0 ? bytes[0] : 0;
    memcpy(out + 18, &sequences, 8);
    memcpy(out + 26, &boundaries, 8);
    if (rest > 0) memcpy(out + HEAD, bytes + 2, rest);
    return HEAD + (size_t)(table + 8 * boundaries < rest ? table + 8 * boundaries : rest);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const uint8_t bin[BIN_BYTES] = {1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 0, 0, 7};
    uint8_t *made = malloc(size + HEAD);
    indexed_t *set;
    FUZZ_ASSERT(made != NULL);
    if (size > 0 && bytes[0] == 1) {
        size = make_head(bytes + 1, size - 1, made);
        bytes = made;
    }
    fuzz_file("/fuzz/d.idx", bytes, size);
    fuzz_file("/fuzz/d.bin", bin, sizeof(bin));
    if (fuzz_accepted(indexed_open("/fuzz/d", 100, &set))) {
        read_all(set);
        indexed_close(set);
    }
    fuzz_files_clear();
    free(made);
    return 0;
}
