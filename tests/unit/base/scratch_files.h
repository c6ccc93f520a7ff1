/* scratch_files.h - a folder for one test, and small files in it. */
#ifndef TESTS_SCRATCH_FILES_H
#define TESTS_SCRATCH_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail /* cmocka's; base/status.h has a function of that name */

#include <base/file.h>
#include <base/memory.h>

#define FAIL_TEST(...)             \
    do {                           \
        print_error(__VA_ARGS__);  \
        _fail(__FILE__, __LINE__); \
    } while (0)

typedef struct scratch {
    char folder[64];
    char path[512]; /* of scratch_path, overwritten by the next call */
} scratch_t;

static inline int scratch_setup(void **state)
{
    scratch_t *s = calloc(1, sizeof(*s));
    if (s == NULL) return -1;
    (void)snprintf(s->folder, sizeof(s->folder), "/tmp/longhaul-test-XXXXXX");
    *state = s;
    return mkdtemp(s->folder) == NULL ? -1 : 0;
}

static inline int scratch_teardown(void **state)
{
    scratch_t *s = *state;
    const lh_status_t status = folder_remove(s->folder);
    free(s);
    return status == LH_OK ? 0 : -1;
}

static inline const char *scratch_path(scratch_t *s, const char *name)
{
    (void)snprintf(s->path, sizeof(s->path), "%s/%s", s->folder, name);
    return s->path;
}

/* Writes a file and returns its path. */
static inline const char *scratch_write(scratch_t *s, const char *name, const void *bytes,
                                        size_t length)
{
    FILE *f = fopen(scratch_path(s, name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, length, f), length);
    assert_int_equal(fclose(f), 0);
    return s->path;
}

static inline const char *scratch_text(scratch_t *s, const char *name, const char *text)
{
    return scratch_write(s, name, text, strlen(text));
}

/* The file's bytes; the caller frees them with mem_free. */
static inline char *scratch_read(const char *path, size_t *length)
{
    char *bytes = NULL;
    assert_int_equal(file_read(path, UINT64_C(1) << 30, &bytes, length), LH_OK);
    return bytes;
}

static inline void assert_same_files(const char *a, const char *b)
{
    size_t a_length, b_length;
    char *a_bytes = scratch_read(a, &a_length), *b_bytes = scratch_read(b, &b_length);
    assert_int_equal(a_length, b_length);
    assert_memory_equal(a_bytes, b_bytes, a_length);
    mem_free(a_bytes);
    mem_free(b_bytes);
}

/* What follows the scratch folder in a sentence; the sentence itself where it does not begin so. */
static inline const char *behind_folder(const scratch_t *s, const char *sentence)
{
    const size_t length = strlen(s->folder);
    return strncmp(sentence, s->folder, length) == 0 ? sentence + length + 1 : sentence;
}

#endif
