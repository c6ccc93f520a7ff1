/* ini_fuzz.c - an INI and one that it may include. What is accepted is written down again from the
 * sections found, and must read back as the same. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <config/job.h>
#include <config/job_load.h>

static void write_value(text_t *out, const char *value)
{
    for (; *value != '\0'; value++)
        text_printf(out, "%s%c", *value == ';' ? "\\" : "", *value);
}

/* The document as one file without includes; false where a value was joined from several lines and
 * is too long for one. */
static bool write_down(const document_t *d, text_t *out)
{
    for (uint32_t i = 0; i < document_section_count(d); i++) {
        const document_section_t *s = document_section(d, i);
        text_printf(out, "[%s]\n", s->name);
        for (uint32_t k = 0; k < s->entry_count; k++) {
            const size_t before = out->length;
            text_printf(out, "%s = ", s->entries[k]->key);
            write_value(out, s->entries[k]->value);
            if (out->length - before > 190) return false;
            text_append(out, "\n");
        }
    }
    return !out->failed;
}

static void check_same(const document_t *a, const document_t *b)
{
    FUZZ_ASSERT(document_section_count(a) == document_section_count(b));
    for (uint32_t i = 0; i < document_section_count(a); i++) {
        const document_section_t *x = document_section(a, i), *y = document_section(b, i);
        FUZZ_ASSERT(strcmp(x->name, y->name) == 0 && x->entry_count == y->entry_count);
        for (uint32_t k = 0; k < x->entry_count; k++) {
            FUZZ_ASSERT(strcmp(x->entries[k]->key, y->entries[k]->key) == 0);
            FUZZ_ASSERT(strcmp(x->entries[k]->value, y->entries[k]->value) == 0);
        }
    }
}

static void read_again(const document_t *d)
{
    text_t text = {0};
    document_t *again;
    if (write_down(d, &text)) {
        fuzz_file("/fuzz/again.ini", text.data == NULL ? "" : text.data, text.length);
        FUZZ_ASSERT(document_load("/fuzz/again.ini", &again) == LH_OK);
        check_same(d, again);
        document_free(again);
    }
    text_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_part_t parts[3]; /* the INI, what it may include, an assignment of the command line */
    document_t *d;
    job_t *job;
    fuzz_cut(bytes, size, '\f', parts, 3);
    fuzz_file("/fuzz/job.ini", parts[0].bytes, parts[0].size);
    fuzz_file("/fuzz/b.ini", parts[1].bytes, parts[1].size);
    if (fuzz_accepted(document_load("/fuzz/job.ini", &d))) {
        read_again(d);
        (void)fuzz_accepted(document_set(d, parts[2].bytes));
        document_free(d);
    }
    const char *set = parts[2].bytes;
    if (fuzz_accepted(job_load("/fuzz/job.ini", &set, parts[2].size > 0, &job))) job_free(job);
    fuzz_files_clear();
    fuzz_parts_free(parts, 3);
    return 0;
}
