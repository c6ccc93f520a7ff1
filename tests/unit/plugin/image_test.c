/* image_test.c - the reader of ELF heads on files that are cut or wrong anywhere. */
#include <unit/base/scratch_files.h>

#include <base/file.h>
#include <base/memory.h>
#include <longhaul/plugin.h>
#include <plugin/image.h>
#include <torture.h>

static unsigned char *file;
static size_t length;

static int read_plugin(void **state)
{
    (void)state;
    file = (unsigned char *)scratch_read(LH_FIXTURES "/optimizers/good_one.so", &length);
    return 0;
}

static int free_plugin(void **state)
{
    (void)state;
    mem_free(file);
    return 0;
}

typedef struct seen {
    uint32_t exports, imports, plugins, libraries;
    bool calls_c;
} seen_t;

static void see_symbol(void *context, const image_symbol_t *symbol)
{
    seen_t *seen = context;
    if (!symbol->defined) {
        seen->imports++;
        return;
    }
    /* The address sanitizer's mark of a global beside each exported one. */
    if (strncmp(symbol->name, "__odr_asan.", 11) == 0) return;
    seen->exports++;
    seen->plugins += strcmp(symbol->name, LH_PLUGIN_SYMBOL) == 0;
}

static void see_needed(void *context, const char *name)
{
    seen_t *seen = context;
    seen->libraries++;
    seen->calls_c = seen->calls_c || strncmp(name, "libc.so", 7) == 0;
}

static void look_around(const unsigned char *bytes, size_t size, seen_t *seen)
{
    const image_bytes_t image = {bytes, size};
    image_each_symbol(image, see_symbol, seen);
    image_each_needed(image, see_needed, seen);
    (void)image_constructors(image);
}

/* In a block of exactly its size, so that a sanitizer sees a byte read behind it. */
static const char *peek_copy(const unsigned char *bytes, size_t size, image_head_t *head)
{
    unsigned char *copy = malloc(size == 0 ? 1 : size);
    assert_non_null(copy);
    memcpy(copy, bytes, size);
    const char *wrong = image_peek((image_bytes_t){copy, size}, head);
    if (wrong == NULL) look_around(copy, size, &(seen_t){0});
    free(copy);
    return wrong;
}

static void a_whole_file_has_its_head(void **state)
{
    image_head_t head;
    (void)state;
    assert_null(peek_copy(file, length, &head));
    assert_string_equal(head.name, "good_one");
    assert_int_equal(head.kind, LH_KIND_OPTIMIZER);
    assert_int_equal(head.abi_version, LH_ABI_VERSION);
}

static void a_plugin_exports_one_symbol(void **state)
{
    (void)state;
    seen_t seen = {0};
    look_around(file, length, &seen);
    assert_int_equal(seen.exports, 1);
    assert_int_equal(seen.plugins, 1);
    assert_true(seen.imports > 0);
}

/* This program's own file has what the plugin hasn't: a library that it needs. */
static void the_libraries_that_a_file_needs_are_named(void **state)
{
    (void)state;
    char *self;
    size_t size;
    seen_t seen = {0};
    assert_int_equal(file_read("/proc/self/exe", 1u << 30, &self, &size), LH_OK);
    look_around((const unsigned char *)self, size, &seen);
    mem_free(self);
    assert_true(seen.libraries > 0);
    assert_true(seen.calls_c);
}

/* The table of sections is the last thing in a file, so every cut takes some of it. */
static void a_file_cut_at_any_byte_is_refused(void **state)
{
    image_head_t head;
    (void)state;
    const size_t step = torture_wanted() ? 1 : 7;
    for (size_t size = 0; size < length; size += step)
        if (peek_copy(file, size, &head) == NULL) FAIL_TEST("cut to %zu bytes: taken\n", size);
}

static void wrong_bytes_anywhere_never_read_outside(void **state)
{
    image_head_t head;
    uint64_t random = 1;
    (void)state;
    for (int i = 0; i < 3000; i++) {
        size_t at[4];
        unsigned char was[4];
        for (int k = 0; k < 4; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            /* half of them in the header, where the offsets stand */
            at[k] = (size_t)(random >> 33) % ((i & 1) != 0 ? length : 1024);
            was[k] = file[at[k]];
            file[at[k]] = (unsigned char)(random >> 24);
        }
        (void)peek_copy(file, length, &head);
        for (int k = 3; k >= 0; k--)
            file[at[k]] = was[k];
    }
    assert_null(peek_copy(file, length, &head));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_file_has_its_head),
        cmocka_unit_test(a_plugin_exports_one_symbol),
        cmocka_unit_test(the_libraries_that_a_file_needs_are_named),
        cmocka_unit_test(a_file_cut_at_any_byte_is_refused),
        cmocka_unit_test(wrong_bytes_anywhere_never_read_outside),
    };
    return cmocka_run_group_tests(tests, read_plugin, free_plugin);
}
