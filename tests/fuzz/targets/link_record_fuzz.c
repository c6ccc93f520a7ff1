/* link_record_fuzz.c - a links.json. What is accepted is written and read as the same. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <base/memory.h>
#include <session/link_record.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_part_t text;
    probe_pair_t *rows, *again;
    uint32_t count, same;
    fuzz_cut(bytes, size, 0, &text, 1);
    if (fuzz_accepted(link_record_parse("fuzz", text.bytes, text.size, &rows, &count))) {
        for (uint32_t i = 0; i < count; i++)
            rows[i].figures.measured_s += rows[i].figures.measured_s == 0; /* else left out */
        text_t written = {0};
        link_record_text(rows, count, &written);
        if (fuzz_accepted(text_status(&written))) {
            FUZZ_ASSERT(link_record_parse("fuzz", written.data, written.length, &again, &same) ==
                        LH_OK);
            FUZZ_ASSERT(same == count);
            FUZZ_ASSERT(memcmp(again, rows, count * sizeof(*rows)) == 0);
            mem_free(again);
        }
        text_free(&written);
        mem_free(rows);
    }
    fuzz_parts_free(&text, 1);
    return 0;
}
