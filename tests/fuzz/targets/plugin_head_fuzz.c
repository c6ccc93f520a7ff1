/* plugin_head_fuzz.c - the ELF file of a plugin, as far as it is read before any of it runs. */
#include <fuzz/fuzz.h>

#include <plugin/peek.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    const peek_image_t image = {bytes, size};
    peek_head_t head;
    const char *wrong = peek(image, &head);
    if (wrong == NULL) {
        for (uint64_t at = 0; at < 4; at++)
            (void)peek_room(image, at << 12);
        FUZZ_ASSERT(head.struct_size <= size);
    }
    return 0;
}
