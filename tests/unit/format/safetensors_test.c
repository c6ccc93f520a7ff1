/* safetensors_test.c - real files are read, hostile ones refused, each with its sentence. */
#include <unit/base/scratch_files.h>

#include <format/safetensors.h>
#include <format/shard_index.h>

static const char *write_file(scratch_t *s, const char *header, size_t data_bytes)
{
    static char bytes[8192];
    const size_t length = strlen(header);
    memset(bytes, 0, sizeof(bytes));
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(length >> (8 * i));
    memcpy(bytes + 8, header, length);
    return scratch_write(s, "x.safetensors", bytes, 8 + length + data_bytes);
}

#define T "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"

static const struct {
    const char *header;
    size_t data;
    const char *sentence;
} hostile[] = {
    {"[1]", 0, "x.safetensors: the header begins at byte 8 with 0x5b, '{' was expected"},
    {"{\"a\":{" T "}", 8, "x.safetensors: not JSON, line 1 column 54: unexpected end of data"},
    {"{\"a\":{" T "},\"a\":{" T "}}", 8, "x.safetensors: key 'a' stands twice"},
    {"{\"a\":7}", 0, "x.safetensors: tensor a: its entry is 7, an object was expected"},
    {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
     "x.safetensors: tensor a: dtype is nothing, a text was expected"},
    {"{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
     "x.safetensors: tensor a: unknown dtype F33, one of BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 "
     "F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 I32 U32 F32 I64 U64 F64 C64 F6_E2M3 F6_E3M2 F4 "
     "was expected"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8,
     "x.safetensors: tensor a: shape is 2, a list was expected"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8,
     "x.safetensors: tensor a: dimension 0 is -2, a whole number of 0 or more was expected"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
     "x.safetensors: tensor a: 9 dimensions, at most 8 are allowed"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8,
     "x.safetensors: tensor a: more than 2^64 elements"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,536870912],\"data_offsets\":[0,8]}}", 8,
     "x.safetensors: tensor a: more than 2^64 bits"},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2,
     "x.safetensors: tensor a: 12 bits are no whole number of bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8,
     "x.safetensors: tensor a: data_offsets is [8,0], [begin, end] with 0 <= begin <= end was "
     "expected"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8,
     "x.safetensors: tensor a: data_offsets is [0], [begin, end] with 0 <= begin <= end was "
     "expected"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8,
     "x.safetensors: tensor a: 8 bytes of data, its shape and dtype need 12"},
    {"{\"a\":{" T "}}", 4,
     "x.safetensors: tensor a: its data end at 8, the file holds 4 bytes of data"},
    {"{\"a\":{" T "}}", 9, "x.safetensors: 1 bytes of data follow the last tensor"},
    {"{\"a\":{" T "},\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[9,10]}}", 10,
     "x.safetensors: tensor b: its data begin at 9, a hole is left at 8"},
    {"{\"a\":{" T "},\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[7,8]}}", 8,
     "x.safetensors: tensor b: its data begin at 7, the one before ends at 8"},
    {"{\"__metadata__\":{\"n\":1},\"a\":{" T "}}", 8,
     "x.safetensors: __metadata__: n is 1, a text was expected"},
    {"{\"__metadata__\":[],\"a\":{" T "}}", 8,
     "x.safetensors: __metadata__ is [], an object was expected"},
    {"{\"__metadata__\":{\"n\":\"1\",\"n\":\"2\"},\"a\":{" T "}}", 8,
     "x.safetensors: key 'n' stands twice"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}", 8,
     "x.safetensors: tensor a: dimension 0 is 1e+20, a whole number of 0 or more was expected"},
};

static void a_hostile_header_is_refused_with_its_sentence(void **state)
{
    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        const char *path = write_file(*state, hostile[i].header, hostile[i].data);
        safetensors_t *s;
        assert_int_not_equal(safetensors_open(path, NULL, &s), LH_OK);
        assert_string_equal(behind_folder(*state, fail_reason()), hostile[i].sentence);
    }
}

static void a_header_length_past_the_file_or_the_limit_is_refused(void **state)
{
    safetensors_t *s;
    const char *path = scratch_write(*state, "x", "\x10\0\0\0\0\0\0\0{}", 10);
    assert_int_equal(safetensors_open(path, NULL, &s), LH_INVALID);
    assert_string_equal(behind_folder(*state, fail_reason()),
                        "x: a header of 16 bytes, the file has 2 behind its length");
    path = scratch_write(*state, "x", "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    assert_int_equal(safetensors_open(path, NULL, &s), LH_INVALID);
    assert_string_equal(behind_folder(*state, fail_reason()),
                        "x: a header of 18446744073709551615 bytes, at most 16777216 are allowed");
    path = scratch_write(*state, "x", "\2\0\0", 3);
    assert_int_equal(safetensors_open(path, NULL, &s), LH_INVALID);
    assert_string_equal(behind_folder(*state, fail_reason()),
                        "x: 3 bytes, a safetensors file has at least 10");
    assert_int_equal(safetensors_open("/dev/null", NULL, &s), LH_INVALID);
    assert_string_equal(fail_reason(), "/dev/null: not a regular file");
}

static void a_header_nested_deeper_than_the_limit_is_refused(void **state)
{
    char header[512] = "{\"a\":";
    memset(header + 5, '[', 200);
    safetensors_t *s;
    assert_int_equal(safetensors_open(write_file(*state, header, 0), NULL, &s), LH_INVALID);
    assert_string_equal(
        behind_folder(*state, fail_reason()),
        "x.safetensors: not JSON, line 1 column 70, '[': nested deeper than 64 levels");
}

static void more_tensors_than_the_limit_are_refused(void **state)
{
    const safetensors_limits_t one = {.tensors = 1};
    const char *header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
                         "\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    safetensors_t *s;
    assert_int_equal(safetensors_open(write_file(*state, header, 0), &one, &s), LH_INVALID);
    assert_string_equal(behind_folder(*state, fail_reason()),
                        "x.safetensors: 2 tensors, at most 1 are allowed");
}

static void scalars_empty_dimensions_and_unaligned_data_are_allowed(void **state)
{
    const char *header = "{\"z\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[1,5]},"
                         "\"e\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[1,1]},"
                         "\"b\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[0,1]}}   ";
    safetensors_t *s;
    assert_int_equal(safetensors_open(write_file(*state, header, 5), NULL, &s), LH_OK);
    assert_int_equal(s->count, 3);
    assert_int_equal(safetensors_find(s, "z")->elements, 1);
    assert_int_equal(safetensors_find(s, "e")->bytes, 0);
    assert_null(safetensors_find(s, "y"));
    safetensors_close(s);
}

/* Between its header, which is read when it is opened, and its data. */
static void a_file_that_shrinks_while_it_is_open_is_a_sentence(void **state)
{
    scratch_t *scratch = *state;
    char data[8] = {0};
    safetensors_t *s;
    const char *path = write_file(scratch, "{\"a\":{" T "}}", 8);
    assert_int_equal(safetensors_open(path, NULL, &s), LH_OK);
    const uint64_t begin = s->tensors[0].offset;
    for (uint64_t left = begin + 8; left-- > 0;) {
        char expected[96];
        assert_int_equal(truncate(path, (off_t)left), 0);
        assert_int_equal(safetensors_read(s, s->tensors, 0, data, 8), LH_CORRUPT);
        (void)snprintf(expected, sizeof(expected),
                       "x.safetensors: has %llu bytes, at least %llu are expected",
                       (unsigned long long)left, (unsigned long long)(begin + 8));
        assert_string_equal(behind_folder(scratch, fail_reason()), expected);
    }
    safetensors_close(s);
}

/* Written by Transformers: offsets as its own reader sees them. */
static void a_file_of_transformers_is_read(void **state)
{
    (void)state;
    const char *path = LH_TEST_DATA "/../golden/gpt2/model.safetensors";
    safetensors_t *s;
    size_t length;
    char *bytes = scratch_read(path, &length);
    assert_int_equal(safetensors_open(path, NULL, &s), LH_OK);
    assert_int_equal(s->count, 28);
    assert_string_equal(safetensors_metadata(s, "format"), "pt");
    const safetensor_t *t = safetensors_find(s, "transformer.wpe.weight");
    assert_non_null(t);
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->shape[0], 128);
    assert_int_equal(t->shape[1], 32);
    float row[32];
    assert_int_equal(safetensors_read(s, t, 32 * 4, row, sizeof(row)), LH_OK);
    assert_memory_equal(row, bytes + 8 + 2592 + 101888 + 32 * 4, sizeof(row));
    assert_int_equal(safetensors_read(s, t, t->bytes, row, 1), LH_INVALID);
    safetensors_close(s);
    mem_free(bytes);
}

static void a_written_file_has_the_documented_bytes(void **state)
{
    const safetensors_row_t rows[] = {
        {.name = "a", .dtype = LH_DTYPE_F32, .rank = 2, .shape = {1, 2}},
        {.name = "q\"", .dtype = LH_DTYPE_BF16, .rank = 0},
    };
    const safetensors_pair_t pair = {"step", "7"};
    const float values[] = {1.0f, -2.0f};
    const uint16_t half = 0x3f80;
    safetensors_writer_t *w;
    safetensors_written_t written;
    const char *path = scratch_path(*state, "w.safetensors");
    assert_int_equal(safetensors_create(path, rows, 2, &pair, 1, &w), LH_OK);
    assert_int_equal(safetensors_write(w, 1, 0, &half, 2), LH_OK);
    assert_int_equal(safetensors_write(w, 0, 4, values + 1, 4), LH_OK);
    assert_int_equal(safetensors_write(w, 0, 0, values, 4), LH_OK);
    assert_int_equal(safetensors_finish(w, &written), LH_OK);

    const char header[] = "{\"__metadata__\":{\"format\":\"pt\",\"step\":\"7\"},"
                          "\"a\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
                          "\"q\\\"\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[8,10]}}";
    const size_t padded = (sizeof(header) - 1 + 7) / 8 * 8;
    size_t length;
    char *found = scratch_read(path, &length);
    assert_int_equal(length, written.file_bytes);
    assert_int_equal(length, 8 + padded + 10);
    assert_int_equal((unsigned char)found[0], padded);
    assert_memory_equal(found + 8, header, sizeof(header) - 1);
    for (size_t i = sizeof(header) - 1; i < padded; i++)
        assert_int_equal(found[8 + i], ' ');
    assert_memory_equal(found + 8 + padded, values, 8);
    assert_memory_equal(found + 16 + padded, &half, 2);
    mem_free(found);

    assert_int_equal(safetensors_create(path, rows, 2, NULL, 0, &w), LH_IO); /* it is there */
}

static void a_tensor_that_was_not_written_whole_is_an_error(void **state)
{
    const safetensors_row_t row = {.name = "a", .dtype = LH_DTYPE_F32, .rank = 1, .shape = {2}};
    safetensors_writer_t *w;
    assert_int_equal(
        safetensors_create(scratch_path(*state, "w.safetensors"), &row, 1, NULL, 0, &w), LH_OK);
    assert_int_equal(safetensors_write(w, 0, 0, "1234", 4), LH_OK);
    assert_int_equal(safetensors_finish(w, NULL), LH_INVALID);
    assert_string_equal(behind_folder(*state, fail_reason()),
                        "w.safetensors: 4 bytes of row 0 were not written");
}

/* The reference reader takes headers up to 100,000,000 bytes, so a longer one is never written. */
static void a_header_that_nobody_could_read_is_not_written(void **state)
{
    enum { ROWS = 25000, NAME = 4000 };
    char *name = mem_new(NAME + 1);
    safetensors_row_t *rows = mem_array(ROWS, sizeof(*rows));
    safetensors_writer_t *w;
    assert_non_null(name);
    assert_non_null(rows);
    memset(name, 'n', NAME);
    for (uint32_t i = 0; i < ROWS; i++)
        rows[i] = (safetensors_row_t){.name = name, .dtype = LH_DTYPE_F32};
    const char *path = scratch_path(*state, "w.safetensors");
    assert_int_equal(safetensors_create(path, rows, ROWS, NULL, 0, &w), LH_INVALID);
    assert_string_equal(behind_folder(*state, fail_reason()),
                        "w.safetensors: a header of more than 100000000 bytes for 25000 tensors, "
                        "none is read");
    assert_false(file_exists(path));
    mem_free(rows);
    mem_free(name);
}

static void write_shard(scratch_t *s, const char *file, const char *tensor)
{
    const safetensors_row_t row = {.name = tensor, .dtype = LH_DTYPE_U8, .rank = 1, .shape = {1}};
    safetensors_writer_t *w;
    assert_int_equal(safetensors_create(scratch_path(s, file), &row, 1, NULL, 0, &w), LH_OK);
    assert_int_equal(safetensors_write(w, 0, 0, tensor, 1), LH_OK);
    assert_int_equal(safetensors_finish(w, NULL), LH_OK);
}

static const struct {
    const char *map, *sentence;
} bad_maps[] = {
    {"{\"a\": \"../one\"}",
     "model.safetensors.index.json: tensor a: file \"../one\": a plain file name "
     "was expected"},
    {"{\"a\": \"/etc/passwd\"}", "model.safetensors.index.json: tensor a: file \"/etc/passwd\": a "
                                 "plain file name was expected"},
    {"{\"a\": \"..\"}",
     "model.safetensors.index.json: tensor a: file \"..\": a plain file name was "
     "expected"},
    {"{\"a\": 3}", "model.safetensors.index.json: tensor a: file 3: a plain file name was "
                   "expected"},
    {"{\"a\": \"one\", \"c\": \"two\"}", "model.safetensors.index.json: tensor c is not in two"},
    {"{\"a\": \"one\", \"b\": \"one\"}", "model.safetensors.index.json: tensor b is not in one"},
    {"{\"a\": \"one\", \"b\": \"two\", \"d\": \"two\"}",
     "model.safetensors.index.json: tensor d is not in two"},
    {"[]", "model.safetensors.index.json: weight_map is [], an object was expected"},
};

static void an_index_that_lies_is_refused(void **state)
{
    scratch_t *s = *state;
    char text[256];
    write_shard(s, "one", "a");
    write_shard(s, "two", "b");
    for (size_t i = 0; i < sizeof(bad_maps) / sizeof(bad_maps[0]); i++) {
        (void)snprintf(text, sizeof(text), "{\"weight_map\": %s}", bad_maps[i].map);
        scratch_text(s, "model.safetensors.index.json", text);
        shard_index_t *index;
        assert_int_not_equal(shard_index_open(s->folder, NULL, &index), LH_OK);
        assert_string_equal(behind_folder(s, fail_reason()), bad_maps[i].sentence);
    }
}

static void a_sharded_folder_is_one_set_of_tensors(void **state)
{
    scratch_t *s = *state;
    const shard_entry_t entries[] = {{"a", "one"}, {"b", "two"}};
    text_t text = {0};
    write_shard(s, "one", "a");
    write_shard(s, "two", "b");
    shard_index_text(&text, entries, 2, 2);
    scratch_text(s, "model.safetensors.index.json", text.data);
    text_free(&text);
    shard_index_t *index;
    assert_int_equal(shard_index_open(s->folder, NULL, &index), LH_OK);
    assert_int_equal(index->count, 2);
    char byte;
    const shard_tensor_t *t = shard_index_find(index, "b");
    assert_int_equal(safetensors_read(t->file, t->tensor, 0, &byte, 1), LH_OK);
    assert_int_equal(byte, 'b');
    shard_index_close(index);
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        FACT(a_hostile_header_is_refused_with_its_sentence),
        FACT(a_header_length_past_the_file_or_the_limit_is_refused),
        FACT(a_header_nested_deeper_than_the_limit_is_refused),
        FACT(more_tensors_than_the_limit_are_refused),
        FACT(scalars_empty_dimensions_and_unaligned_data_are_allowed),
        FACT(a_file_that_shrinks_while_it_is_open_is_a_sentence),
        FACT(a_file_of_transformers_is_read),
        FACT(a_written_file_has_the_documented_bytes),
        FACT(a_tensor_that_was_not_written_whole_is_an_error),
        FACT(a_header_that_nobody_could_read_is_not_written),
        FACT(an_index_that_lies_is_refused),
        FACT(a_sharded_folder_is_one_set_of_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
