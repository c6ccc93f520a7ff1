/* schedule_fuzz.c - a table of rows. What is accepted is written down again and must read back as the
 * same, and its rounds are the whole of it. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <base/text.h>
#include <program/schedule.h>

static void read_again(const schedule_t *s)
{
    text_t text = {0};
    schedule_t *again;
    text_append(&text, "program,chunk,micro_batch,frame\n");
    for (uint32_t i = 0; i < s->count; i++)
        text_printf(&text, "%s,%u,%u,%u\n", schedule_programs[s->rows[i].program], s->rows[i].chunk,
                    s->rows[i].micro_batch, s->rows[i].frame);
    FUZZ_ASSERT(schedule_parse("again.csv", text.data, text.length, &again) == LH_OK);
    FUZZ_ASSERT(again->count == s->count && again->frames == s->frames);
    FUZZ_ASSERT(again->rounds == s->rounds && again->chunks == s->chunks);
    schedule_free(again);
    text_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_part_t text;
    schedule_t *s;
    uint32_t first, end, next = 0;
    fuzz_cut(bytes, size, '\0', &text, 1);
    if (fuzz_accepted(schedule_parse("fuzz.csv", text.bytes, text.size, &s))) {
        FUZZ_ASSERT(s->rounds * s->round_rows == s->count);
        FUZZ_ASSERT(s->rounds * s->round_micro_batches == s->micro_batches);
        FUZZ_ASSERT(s->frames > 0 && s->frames <= s->micro_batches);
        for (uint32_t c = 0; c < s->chunks; c++, next = end) {
            schedule_parts(s, s->chunks, c, &first, &end);
            FUZZ_ASSERT(first == next && end > first);
        }
        FUZZ_ASSERT(next == s->chunks + 2);
        read_again(s);
        schedule_free(s);
    }
    fuzz_parts_free(&text, 1);
    return 0;
}
