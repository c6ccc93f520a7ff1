/* safetensors_header_fuzz.c - the JSON of a safetensors header alone: its length and the data that
 * it asks for are put around it. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <format/safetensors.h>

enum { DATA_BYTES = 4096 };

/* The largest number in the text that data could end at. */
static size_t data_wanted(const uint8_t *bytes, size_t size)
{
    size_t most = 0, number = 0;
    for (size_t i = 0; i <= size; i++) {
        const int digit = i < size && bytes[i] >= '0' && bytes[i] <= '9';
        if (!digit && number <= DATA_BYTES && number > most) most = number;
        number = digit && number <= DATA_BYTES ? number * 10 + bytes[i] - '0' : 0;
    }
    return most;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    const size_t data = data_wanted(bytes, size);
    uint8_t *file = calloc(8 + size + data, 1);
    safetensors_t *s;
    FUZZ_ASSERT(file != NULL);
    for (size_t i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)size >> (8 * i));
    if (size > 0) memcpy(file + 8, bytes, size);
    fuzz_file("/fuzz/a.safetensors", file, 8 + size + data);
    if (fuzz_accepted(safetensors_open("/fuzz/a.safetensors", NULL, &s))) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < s->count; i++)
            sum += s->tensors[i].bytes;
        FUZZ_ASSERT(sum == data);
        safetensors_close(s);
    }
    fuzz_files_clear();
    free(file);
    return 0;
}
