/* shard_index_fuzz.c - a model.safetensors.index.json beside two good shards and one that is none.
 */
#include <fuzz/fuzz.h>

#include <string.h>

#include <format/shard_index.h>

#define SHARD(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}"
static const char first[] = "\x39\0\0\0\0\0\0\0" SHARD("a") " xy";
static const char second[] = "\x39\0\0\0\0\0\0\0" SHARD("b") " xy";

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const shard_limits_t limits = {.shards = 3};
    shard_index_t *s;
    fuzz_file("/fuzz/m/model.safetensors.index.json", bytes, size);
    fuzz_file("/fuzz/m/1.safetensors", first, sizeof(first) - 1);
    fuzz_file("/fuzz/m/2.safetensors", second, sizeof(second) - 1);
    fuzz_file("/fuzz/m/bad.safetensors", "nothing", 7);
    fuzz_file("/fuzz/secret", first, sizeof(first) - 1);
    if (fuzz_accepted(shard_index_open("/fuzz/m", &limits, &s))) {
        for (uint32_t i = 0; i < s->file_count; i++)
            FUZZ_ASSERT(strncmp(s->files[i]->path, "/fuzz/m/", 8) == 0);
        for (uint32_t i = 0; i < s->count; i++)
            FUZZ_ASSERT(shard_index_find(s, s->tensors[i].tensor->name) == &s->tensors[i]);
        shard_index_close(s);
    }
    fuzz_files_clear();
    return 0;
}
