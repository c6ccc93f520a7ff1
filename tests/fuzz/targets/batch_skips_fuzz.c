/* batch_skips_fuzz.c - [data] skip: ranges of batches. What was understood is ascending and apart, is read again as it is
 * printed, and no batch that is taken touches a range. */
#include <fuzz/fuzz.h>

#include <data/batches.h>

/* From a few cursors around the first and the last range, batch after batch. */
static void walk(const batch_skips_t *s, uint64_t cursor, uint64_t batch)
{
    const uint64_t begin = cursor;
    for (uint64_t steps = 1; steps <= 8; steps++) {
        const uint64_t at = batch_skips_next(s, cursor, batch);
        FUZZ_ASSERT(at >= cursor);
        for (uint32_t i = 0; i < s->count; i++)
            FUZZ_ASSERT(at + batch <= (s->rows[i].first - 1) * batch ||
                        at >= s->rows[i].last * batch);
        cursor = at + batch;
        FUZZ_ASSERT(batch_skips_after(s, begin, steps, batch) == cursor);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_part_t text;
    batch_skips_t s, again;
    text_t printed = {0};
    fuzz_cut(bytes, size, '\0', &text, 1);
    if (fuzz_accepted(batch_skips_parse(text.bytes, &s))) {
        for (uint32_t i = 0; i < s.count; i++) {
            FUZZ_ASSERT(s.rows[i].first > (i == 0 ? 0 : s.rows[i - 1].last));
            FUZZ_ASSERT(s.rows[i].last >= s.rows[i].first);
            text_printf(&printed, "%s%llu..%llu", i == 0 ? "" : ",",
                        (unsigned long long)s.rows[i].first, (unsigned long long)s.rows[i].last);
        }
        FUZZ_ASSERT(!printed.failed && batch_skips_parse(printed.data, &again) == LH_OK);
        FUZZ_ASSERT(again.count == s.count &&
                    memcmp(again.rows, s.rows, s.count * sizeof(s.rows[0])) == 0);
        for (uint64_t batch = 1; batch <= 7 && s.count > 0; batch++) {
            walk(&s, 0, batch);
            walk(&s, (s.rows[0].first - 1) * batch - (s.rows[0].first > 1), batch);
            walk(&s, (s.rows[s.count - 1].last - 1) * batch + 1, batch);
        }
    }
    text_free(&printed);
    fuzz_parts_free(&text, 1);
    return 0;
}
