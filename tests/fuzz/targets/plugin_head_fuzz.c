/* plugin_head_fuzz.c - the ELF file of a plugin, as far as it is read before any of it runs. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <plugin/peek.h>

static void see_symbol(void *context, const peek_symbol_t *symbol)
{
    (void)context;
    FUZZ_ASSERT(symbol->name[0] != '\0');
}

static void see_name(void *context, const char *name)
{
    *(size_t *)context += strlen(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    const peek_image_t image = {bytes, size};
    peek_head_t head;
    const char *wrong = peek(image, &head);
    if (wrong == NULL) {
        for (uint64_t at = 0; at < 4; at++)
            (void)peek_room(image, at << 12);
        size_t letters = 0;
        peek_each_symbol(image, see_symbol, NULL);
        peek_each_needed(image, see_name, &letters);
        FUZZ_ASSERT(letters <= size * size && peek_constructors(image) <= size / 8);
        FUZZ_ASSERT(head.struct_size <= size);
    }
    return 0;
}
