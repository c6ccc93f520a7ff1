/* safetensors_fuzz.c - a safetensors file. What is accepted is covered by its tensors without hole
 * or overlap, and every byte of them can be read. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <format/safetensors.h>

static void check(const safetensors_t *s, const uint8_t *bytes, size_t size)
{
    uint64_t at = 8 + s->header_bytes;
    for (uint32_t i = 0; i < s->count; i++) {
        const safetensor_t *t = &s->tensors[i];
        uint64_t bits = t->dtype->bits;
        for (uint32_t k = 0; k < t->rank; k++)
            bits *= t->shape[k];
        FUZZ_ASSERT(t->offset == at && t->bytes * 8 == bits && t->bytes <= size - at);
        FUZZ_ASSERT(safetensors_find(s, t->name) == t);
        char *data = malloc(t->bytes == 0 ? 1 : t->bytes);
        FUZZ_ASSERT(data != NULL);
        FUZZ_ASSERT(safetensors_read(s, t, 0, data, t->bytes) == LH_OK);
        FUZZ_ASSERT(memcmp(data, bytes + at, t->bytes) == 0);
        FUZZ_ASSERT(safetensors_read(s, t, 1, data, t->bytes) != LH_OK);
        free(data);
        at += t->bytes;
    }
    FUZZ_ASSERT(at == size);
    (void)safetensors_metadata(s, "format");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const safetensors_limits_t limits = {.header_bytes = 1 << 16, .tensors = 100};
    safetensors_t *s;
    fuzz_file("/fuzz/model.safetensors", bytes, size);
    if (fuzz_accepted(safetensors_open("/fuzz/model.safetensors", &limits, &s))) {
        check(s, bytes, size);
        safetensors_close(s);
    }
    fuzz_files_clear();
    return 0;
}
