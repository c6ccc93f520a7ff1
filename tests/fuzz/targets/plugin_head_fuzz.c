/* plugin_head_fuzz.c - the ELF file of a plugin, as far as it is read before any of it runs. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <plugin/image.h>

static void see_symbol(void *context, const image_symbol_t *symbol)
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
    const image_bytes_t image = {bytes, size};
    image_head_t head;
    const char *wrong = image_peek(image, &head);
    if (wrong == NULL) {
        for (uint64_t at = 0; at < 4; at++)
            (void)image_room(image, at << 12);
        size_t letters = 0;
        image_each_symbol(image, see_symbol, NULL);
        image_each_needed(image, see_name, &letters);
        FUZZ_ASSERT(letters <= size * size && image_constructors(image) <= size / 8);
        FUZZ_ASSERT(head.struct_size <= size);
    }
    return 0;
}
