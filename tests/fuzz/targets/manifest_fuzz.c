/* manifest_fuzz.c - a manifest.json, sealed here: a right seal does not make the content right.
 * What is accepted is written and read as the same. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <checkpoint/manifest.h>

static void again(manifest_t *m)
{
    text_t first = {0}, second = {0};
    manifest_t *copy;
    if (fuzz_accepted(manifest_text(m, &first))) {
        FUZZ_ASSERT(manifest_parse("fuzz", first.data, first.length, true, &copy) == LH_OK);
        FUZZ_ASSERT(manifest_text(copy, &second) == LH_OK);
        FUZZ_ASSERT(first.length == second.length);
        FUZZ_ASSERT(memcmp(first.data, second.data, first.length) == 0);
        manifest_free(copy);
    }
    text_free(&first);
    text_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_part_t text;
    text_t sealed = {0};
    char digest[SHA256_TEXT];
    manifest_t *m;
    fuzz_cut(bytes, size, 0, &text, 1);
    if (fuzz_accepted(manifest_parse("fuzz", text.bytes, text.size, true, &m))) manifest_free(m);

    FUZZ_ASSERT(digest_of(text.bytes, text.size, digest) == LH_OK);
    text_append_n(&sealed, text.bytes, text.size);
    text_printf(&sealed, "\"self\": \"%s\"\n}\n", digest);
    if (fuzz_accepted(manifest_parse("fuzz", sealed.data, sealed.length, false, &m)))
        manifest_free(m);
    if (fuzz_accepted(manifest_parse("fuzz", sealed.data, sealed.length, true, &m))) {
        again(m);
        manifest_free(m);
    }
    text_free(&sealed);
    fuzz_parts_free(&text, 1);
    return 0;
}
