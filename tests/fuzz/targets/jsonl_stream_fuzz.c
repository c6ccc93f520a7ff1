/* jsonl_stream_fuzz.c - a file of lines, plain or compressed. The first byte says in which pieces
 * the file arrives: the lines may not depend on it. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <base/digest.h>
#include <base/text.h>
#include <data/input_lines.h>

enum { LINE_BYTES = 200, WINDOW_BYTES = 1 << 20 };

/* What the reader says of the file, as text; false at a failure. */
static bool tell(text_t *out)
{
    const char *path = "/fuzz/lines";
    line_reader_t *reader;
    bool good = true;
    FUZZ_ASSERT(line_reader_new(&path, 1, LINE_BYTES, WINDOW_BYTES, &reader) == LH_OK);
    for (bool end = false; out->length < 1u << 24;) {
        line_t line;
        good = fuzz_accepted(line_reader_next(reader, &line, &end));
        if (!good) break;
        if (end) {
            text_printf(out, "end %llu %s\n", (unsigned long long)line_reader_taken(reader),
                        line_reader_files(reader)->sha256);
            break;
        }
        FUZZ_ASSERT(line.too_long || line.length <= LINE_BYTES);
        text_printf(out, "%llu %d %zu ", (unsigned long long)line.number, line.too_long,
                    line.length);
        if (!line.too_long) text_append_n(out, line.bytes, line.length);
        text_append(out, "\n");
    }
    line_reader_free(reader);
    return good;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    text_t whole = {0}, pieces = {0};
    if (size == 0) return 0;
    fuzz_file("/fuzz/lines", bytes + 1, size - 1);
    fuzz_read_at_most(0);
    const bool good = tell(&whole);
    fuzz_read_at_most(1u + bytes[0] % 16u);
    FUZZ_ASSERT(tell(&pieces) == good);
    /* How much of damaged data comes before its damage is seen depends on the pieces. */
    const size_t shorter = whole.length < pieces.length ? whole.length : pieces.length;
    FUZZ_ASSERT(!good || whole.length == pieces.length);
    FUZZ_ASSERT(shorter == 0 || memcmp(whole.data, pieces.data, shorter) == 0);
    text_free(&whole);
    text_free(&pieces);
    fuzz_files_clear();
    return 0;
}
