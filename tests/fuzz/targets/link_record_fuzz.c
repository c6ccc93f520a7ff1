/* link_record_fuzz.c - a links.json. What is accepted is written and read as the same. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <session/link_record.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_part_t text;
    link_record_t r, again;
    fuzz_cut(bytes, size, 0, &text, 1);
    if (fuzz_accepted(link_record_parse("fuzz", text.bytes, text.size, &r))) {
        for (uint32_t i = 0; i < r.pair_count; i++)
            r.pairs[i].figures.measured_s += r.pairs[i].figures.measured_s == 0; /* else left out */
        text_t written = {0};
        link_record_text(r.pairs, r.pair_count, r.words, r.word_count, &written);
        if (fuzz_accepted(text_status(&written))) {
            FUZZ_ASSERT(link_record_parse("fuzz", written.data, written.length, &again) == LH_OK);
            FUZZ_ASSERT(again.pair_count == r.pair_count && again.word_count == r.word_count);
            FUZZ_ASSERT(memcmp(again.pairs, r.pairs, r.pair_count * sizeof(*r.pairs)) == 0);
            FUZZ_ASSERT(r.word_count == 0 ||
                        memcmp(again.words, r.words, r.word_count * sizeof(*r.words)) == 0);
            link_record_free(&again);
        }
        text_free(&written);
        link_record_free(&r);
    }
    fuzz_parts_free(&text, 1);
    return 0;
}
