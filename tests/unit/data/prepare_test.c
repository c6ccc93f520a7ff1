/* prepare_test.c - JSONL to token files: the bytes, the order, what is rejected, what is left
 * behind. */
#include <unit/data/order_reference.h>

#include <errno.h>
#include <stdint.h>
#include <time.h>
#include <zlib.h>
#include <zstd.h>

#include <base/file.h>
#include <base/sys.h>
#include <data/input_lines.h>
#include <data/prepare.h>

#define EXAMPLES LH_TEST_DATA "/../../examples/data"

static tokenizer_t *tokenizer;

static int load_tokenizer(void **state)
{
    (void)state;
    return tokenizer_load(EXAMPLES "/gpt2-tiny/vocab.json", NULL, &tokenizer) == LH_OK ? 0 : -1;
}

static int free_tokenizer(void **state)
{
    (void)state;
    tokenizer_free(tokenizer);
    return 0;
}

/* A run as the defaults of [prepare] have it, into the scratch folder. */
typedef struct run {
    job_prepare_t job;
    prepare_how_t how;
    prepare_counts_t counts;
    char input[2048];
} run_t;

static run_t *run_init(run_t *r, const scratch_t *s, const char *input)
{
    *r = (run_t){0};
    (void)snprintf(r->input, sizeof(r->input), "%s", input);
    r->job = (job_prepare_t){.input = r->input,
                             .key = (char *)(uintptr_t) "text",
                             .append = APPEND_EOD,
                             .on_error = (char *)(uintptr_t) "fail",
                             .output = (char *)(uintptr_t) "corpus",
                             .workers = 2};
    r->how = (prepare_how_t){.prepare = &r->job,
                             .base = s->folder,
                             .folder = s->folder,
                             .line_bytes = 1 << 20,
                             .window_bytes = 1 << 27,
                             .tokenizer = tokenizer};
    return r;
}

static void run_ok(run_t *r)
{
    if (prepare_run(&r->how, &r->counts) != LH_OK) FAIL_TEST("%s\n", fail_reason());
}

static void check_file_digest(const char *path, const char *expected)
{
    char digest[SHA256_TEXT];
    assert_int_equal(file_digest(path, digest), LH_OK);
    assert_string_equal(digest, expected);
}

static void tiny_shakespeare_becomes_the_pair_that_megatron_would_make(void **state)
{
    scratch_t *s = *state;
    run_t r;
    run_ok(run_init(&r, s, EXAMPLES "/tinyshakespeare.jsonl"));
    json_t *root = load_reference(LH_TEST_DATA "/data/tinyshakespeare_order.json");
    check_file_digest(scratch_path(s, "corpus.bin"),
                      json_string_value(json_object_get(root, "bin_sha256")));
    check_file_digest(scratch_path(s, "corpus.idx"),
                      json_string_value(json_object_get(root, "idx_sha256")));
    json_decref(root);
    assert_int_equal(r.counts.documents, 7222);
    assert_int_equal(r.counts.tokens, 410530);
    assert_int_equal(r.counts.bytes_read, 1220394);
    assert_int_equal(r.counts.bytes_total, 1220394);
    char prefix[600];
    (void)strcpy(prefix, scratch_path(s, "corpus"));
    check_reference(prefix, LH_TEST_DATA "/data/tinyshakespeare_order.json", 5000);
}

/* One document as a line of JSON, every byte that may be escaped escaped. */
static void put_json_line(FILE *f, const text_t *text)
{
    (void)fputs("{\"text\": \"", f);
    for (size_t i = 0; i < text->length; i++) {
        const unsigned char c = (unsigned char)text->data[i];
        if (c < 0x20 || c == '"' || c == '\\' || c == 0x7f)
            (void)fprintf(f, "\\u%04x", c);
        else
            (void)fputc(c, f);
    }
    (void)fputs("\"}\n", f);
}

static void decode_pair(const char *prefix, const char *path)
{
    indexed_t *set = NULL;
    FILE *f = fopen(path, "wb");
    if (f == NULL || indexed_open(prefix, 5000, &set) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    for (uint64_t i = 0; i < set->sequences; i++) {
        const uint64_t length = (uint64_t)set->lengths[i];
        int32_t *ids = mem_array(length, sizeof(*ids));
        text_t text = {0};
        assert_int_equal(indexed_read(set, i, 0, length, ids), LH_OK);
        assert_int_equal(ids[length - 1], tokenizer_special(tokenizer)->eod);
        assert_int_equal(tokenizer_decode(tokenizer, ids, length - 1, false, &text), LH_OK);
        put_json_line(f, &text);
        text_free(&text);
        mem_free(ids);
    }
    assert_int_equal(fclose(f), 0);
    indexed_close(set);
}

static void the_openwebtext_pair_is_made_again_byte_for_byte(void **state)
{
    scratch_t *s = *state;
    const char *folder = getenv("LONGHAUL_REFERENCE");
    if (folder == NULL) {
        print_message("LONGHAUL_REFERENCE is not set, the OpenWebText pair can't be shipped\n");
        skip();
    }
    char prefix[1024], file[1100];
    run_t r;
    (void)snprintf(prefix, sizeof(prefix), "%s/data/megatron/meg-gpt2-openwebtext_text_document",
                   folder);
    decode_pair(prefix, scratch_path(s, "owt.jsonl"));
    run_ok(run_init(&r, s, "owt.jsonl"));
    assert_int_equal(r.counts.documents, 1000);
    (void)snprintf(file, sizeof(file), "%s.bin", prefix);
    assert_same_files(scratch_path(s, "corpus.bin"), file);
    (void)snprintf(file, sizeof(file), "%s.idx", prefix);
    assert_same_files(scratch_path(s, "corpus.idx"), file);
}

static void digest_of_file(scratch_t *s, const char *name, char out[SHA256_TEXT])
{
    if (file_digest(scratch_path(s, name), out) != LH_OK) FAIL_TEST("%s\n", fail_reason());
}

/* Bad lines, blank lines and empty documents among real ones. */
static void write_mixed(scratch_t *s, const char *name, int lines)
{
    FILE *f = fopen(scratch_path(s, name), "wb");
    assert_non_null(f);
    for (int i = 0; i < lines; i++) {
        (void)fprintf(f, "{\"text\": \"line %d of many, with %d words\"}\n", i, i * 7919 % 1000);
        if (i % 50 == 7) (void)fputs("\n", f);
        if (i % 100 == 3) (void)fputs("{\"text\": \"\"}\n", f);
        if (i % 500 == 11) (void)fprintf(f, "{\"no text\": %d}\n", i);
    }
    assert_int_equal(fclose(f), 0);
}

static void the_number_of_workers_changes_no_byte(void **state)
{
    static const char *const names[] = {"corpus.bin", "corpus.idx", "prepare.json",
                                        "prepare.rejected.txt"};
    static const uint64_t workers[] = {1, 2, 5};
    scratch_t *s = *state;
    char first[4][SHA256_TEXT], again[SHA256_TEXT];
    write_mixed(s, "mixed-1.jsonl", 30000);
    write_mixed(s, "mixed-2.jsonl", 3000);
    for (int k = 0; k < 3; k++) {
        run_t r;
        run_init(&r, s, "mixed-*.jsonl");
        r.job.workers = workers[k];
        r.job.on_error = (char *)(uintptr_t) "skip";
        run_ok(&r);
        assert_int_equal(r.counts.rejected, 66);
        assert_int_equal(r.counts.empty, 330);
        assert_int_equal(r.counts.documents, 33330);
        for (int i = 0; i < 4; i++) {
            digest_of_file(s, names[i], k == 0 ? first[i] : again);
            if (k > 0) assert_string_equal(first[i], again);
        }
    }
    size_t length;
    char *list = scratch_read(scratch_path(s, "prepare.rejected.txt"), &length), line[700];
    (void)snprintf(line, sizeof(line), "%s/mixed-1.jsonl:15: key 'text' is missing\n", s->folder);
    assert_int_equal(strncmp(list, line, strlen(line)), 0);
    mem_free(list);
}

static void compressed_input_gives_the_same_bytes(void **state)
{
    scratch_t *s = *state;
    char plain[SHA256_TEXT], packed[SHA256_TEXT];
    size_t length;
    run_t r;
    write_mixed(s, "some.jsonl", 400);
    run_init(&r, s, "some.jsonl")->job.on_error = (char *)(uintptr_t) "max:1";
    run_ok(&r);
    digest_of_file(s, "corpus.bin", plain);

    char *bytes = scratch_read(scratch_path(s, "some.jsonl"), &length);
    gzFile gz = gzopen(scratch_path(s, "some.jsonl.gz"), "wb");
    assert_int_equal(gzwrite(gz, bytes, (unsigned)length), length);
    assert_int_equal(gzclose(gz), Z_OK);
    char *out = mem_new(ZSTD_compressBound(length));
    const size_t made = ZSTD_compress(out, ZSTD_compressBound(length), bytes, length, 3);
    (void)scratch_write(s, "some.jsonl.zst", out, made);
    mem_free(out);
    mem_free(bytes);
    static const char *const names[] = {"some.jsonl.gz", "some.jsonl.zst"};
    for (int i = 0; i < 2; i++) {
        run_init(&r, s, names[i])->job.on_error = (char *)(uintptr_t) "max:1";
        run_ok(&r);
        assert_int_equal(r.counts.bytes_read, r.counts.bytes_total);
        digest_of_file(s, "corpus.bin", packed);
        assert_string_equal(plain, packed);
    }
}

static int count_entry(void *context, const char *name)
{
    (void)name;
    ++*(int *)context;
    return 0;
}

static int files_in(const scratch_t *s)
{
    int count = 0;
    assert_int_equal(sys()->list(s->folder, count_entry, &count), 0);
    return count;
}

static void refused(scratch_t *s, run_t *r, const char *sentence)
{
    const int before = files_in(s);
    const lh_status_t status = prepare_run(&r->how, &r->counts);
    if (status == LH_OK) FAIL_TEST("not refused: %s\n", sentence);
    if (strncmp(behind_folder(s, fail_reason()), sentence, strlen(sentence)) != 0)
        FAIL_TEST("%d: '%s' instead of '%s'\n", status, fail_reason(), sentence);
    assert_int_equal(files_in(s), before);
}

static void what_cannot_be_prepared_is_a_sentence_and_leaves_nothing(void **state)
{
    scratch_t *s = *state;
    run_t r;
    (void)scratch_text(s, "bad.jsonl", "{\"text\":\"a\"}\n\n{\"text\":1}\n[]\n");
    refused(s, run_init(&r, s, "bad.jsonl"),
            "bad.jsonl:3: key 'text' holds a number, a text was expected");
    run_init(&r, s, "bad.jsonl")->job.on_error = (char *)(uintptr_t) "max:1";
    refused(s, &r,
            "bad.jsonl:4: a list found, an object was expected; this is bad line "
            "2, [prepare] on_error = max:1");
    run_init(&r, s, "bad.jsonl")->job.on_error = (char *)(uintptr_t) "max:x";
    refused(s, &r, "[prepare] on_error = max:x: fail, skip or max:N is expected");
    run_init(&r, s, "bad.jsonl")->job.prepend = PREPEND_BOS;
    if (tokenizer_special(tokenizer)->bos < 0)
        refused(s, &r, "[prepare] prepend = bos, but the tokenizer has no BOS token");
    refused(s, run_init(&r, s, "none*.jsonl"), "input: no file matches 'none*.jsonl' in ");
    refused(s, run_init(&r, s, "bad.jsonl, b*.jsonl"), "input: ");
    refused(s, run_init(&r, s, " , "), "input: no file is named");
    (void)scratch_text(s, "empty.jsonl", "\n{\"text\":\"\"}\n");
    refused(s, run_init(&r, s, "empty.jsonl"),
            "empty.jsonl holds no text: 1 documents, 0 rejected lines, 0 filtered documents");
    (void)scratch_write(s, "cut.jsonl.gz", "\x1f\x8b\x08\0\0\0\0\0\0\x03", 10);
    refused(s, run_init(&r, s, "cut.jsonl.gz"),
            "cut.jsonl.gz: ends at byte 10 inside a gzip stream");
    (void)scratch_text(s, "long.jsonl", "{\"text\":\"0123456789\"}\n");
    run_init(&r, s, "long.jsonl")->how.line_bytes = 20;
    refused(s, &r, "long.jsonl:1: longer than 20 bytes");
}

/* As everywhere in an INI: the configuration takes it. */
static void a_number_of_bad_lines_may_have_a_unit(void **state)
{
    scratch_t *s = *state;
    run_t r;
    (void)scratch_text(s, "bad.jsonl", "{\"text\":\"a\"}\n\n{\"text\":1}\n[]\n");
    run_init(&r, s, "bad.jsonl")->job.on_error = (char *)(uintptr_t) "max:1k";
    run_ok(&r);
    assert_int_equal(r.counts.documents, 1);
    assert_int_equal(r.counts.rejected, 2);
}

static void what_the_tokenizer_gives_up_on_is_a_bad_line(void **state)
{
    scratch_t *s = *state;
    run_t r;
    tokenizer_t *slow;
    const char *path = scratch_text(
        s, "slow.json",
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"!\": 2}, \"merges\": "
        "[]}, "
        "\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", "
        "\"pattern\": {\"Regex\": \"(?:a|a|b)+(?:x|y)\"}}}");
    assert_int_equal(tokenizer_load(path, NULL, &slow), LH_OK);
    (void)scratch_text(
        s, "slow.jsonl",
        "{\"text\":\"ab\"}\n"
        "{\"text\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!\"}\n"
        "{\"text\":\"b\"}\n");
    run_init(&r, s, "slow.jsonl")->how.tokenizer = slow;
    r.job.append = APPEND_NONE;
    refused(s, &r,
            "slow.jsonl:2: the tokenizer's pattern '(?:a|a|b)+(?:x|y)' gave up at byte 0: match "
            "limit exceeded");
    r.job.on_error = (char *)(uintptr_t) "skip";
    run_ok(&r);
    assert_int_equal(r.counts.rejected, 1);
    assert_int_equal(r.counts.documents, 2);
    assert_int_equal(r.counts.tokens, 3);
    tokenizer_free(slow);
}

static lh_status_t at_least(void *context, uint64_t tokens, bool *keep)
{
    *keep = tokens >= *(const uint64_t *)context;
    return LH_OK;
}

static void a_filter_drops_documents_by_their_tokens(void **state)
{
    scratch_t *s = *state;
    run_t r;
    uint64_t least = 4;
    (void)scratch_text(s, "f.jsonl", "{\"text\":\"a\"}\n{\"text\":\"a b c d\"}\n{\"text\":\"\"}\n");
    run_init(&r, s, "f.jsonl")->how.accept = at_least;
    r.how.accept_context = &least;
    run_ok(&r);
    assert_int_equal(r.counts.filtered, 2);
    assert_int_equal(r.counts.documents, 1);
    assert_int_equal(r.counts.tokens, 5);
}

static int batches_until_stop;
static bool stop_soon(void)
{
    return batches_until_stop-- <= 0;
}

static void a_stop_leaves_the_older_pair_as_it_was(void **state)
{
    scratch_t *s = *state;
    run_t r;
    char before[SHA256_TEXT], after[SHA256_TEXT];
    (void)scratch_text(s, "old.jsonl", "{\"text\":\"the older pair\"}\n");
    run_ok(run_init(&r, s, "old.jsonl"));
    digest_of_file(s, "corpus.idx", before);
    write_mixed(s, "stop.jsonl", 20000);
    batches_until_stop = 2;
    run_init(&r, s, "stop.jsonl")->how.stopping = stop_soon;
    r.job.on_error = (char *)(uintptr_t) "skip";
    refused(s, &r, "prepare was stopped after ");
    digest_of_file(s, "corpus.idx", after);
    assert_string_equal(before, after);
}

static int no_fsync(int fd)
{
    (void)fd;
    return 0;
}

static int list_all_but_b(const char *path, int (*each)(void *context, const char *name),
                          void *context)
{
    if (strcmp(path + strlen(path) - 2, "/b") != 0) return sys_real.list(path, each, context);
    errno = EACCES;
    return -1;
}

static void a_folder_that_cannot_be_listed_is_not_left_out(void **state)
{
    scratch_t *s = *state;
    static sys_t strict;
    static const char *const names[] = {"a", "a/x.jsonl", "b", "b/x.jsonl"};
    run_t r;
    for (int i = 0; i < 4; i += 2) {
        assert_int_equal(folder_make(scratch_path(s, names[i])), LH_OK);
        (void)scratch_text(s, names[i + 1], "{\"text\":\"a b\"}\n");
    }
    strict = sys_real;
    strict.list = list_all_but_b;
    sys_use(&strict);
    refused(s, run_init(&r, s, "*/*.jsonl"), "b: cannot list");
    sys_use(NULL);
    run_ok(run_init(&r, s, "*/*.jsonl"));
    assert_int_equal(r.counts.documents, 2);
}

enum { MANY_FILES = 100000 };

/* Files that are not there, the last name first. */
static int list_many(const char *path, int (*each)(void *context, const char *name), void *context)
{
    int result = 0;
    (void)path;
    for (int i = MANY_FILES - 1; i >= 0 && result == 0; i--) {
        char name[64];
        (void)snprintf(name, sizeof(name), "part-of-a-data-set-%06d.jsonl", i);
        result = each(context, name);
    }
    return result;
}

static int stat_regular(const char *path, struct stat *out)
{
    (void)path;
    *out = (struct stat){.st_mode = S_IFREG | 0644};
    return 0;
}

static void many_files_are_listed_in_order_and_soon(void **state)
{
    static sys_t full;
    input_files_t files;
    (void)state;
    full = sys_real;
    full.list = list_many;
    full.stat = stat_regular;
    sys_use(&full);
    const clock_t begun = clock();
    assert_int_equal(input_files_find("/data", "*.jsonl", NULL, &files), LH_OK);
    /* By pairs it takes several times that. */
    assert_true((double)(clock() - begun) / CLOCKS_PER_SEC < 5);
    assert_int_equal(files.count, MANY_FILES);
    assert_true(text_ends(files.paths[0], "/part-of-a-data-set-099999.jsonl"));
    assert_true(text_ends(files.paths[MANY_FILES - 1], "/part-of-a-data-set-000000.jsonl"));
    input_files_free(&files);
    assert_int_equal(input_files_find("/data", "b, a, c, a, b", NULL, &files), LH_INVALID);
    assert_true(text_ends(fail_reason(), "/a is named twice"));
    sys_use(NULL);
}

static void an_allocation_that_fails_anywhere_is_a_sentence(void **state)
{
    scratch_t *s = *state;
    static sys_t quick;
    quick = sys_real; /* hundreds of runs: the disk is not what is tested */
    quick.fsync = no_fsync;
    sys_use(&quick);
    (void)scratch_text(s, "m.jsonl", "{\"text\":\"a b\"}\n{\"text\":\"c\"}\n");
    int failed = 0, done_in_a_row = 0;
    /* Threads allocate in no fixed order, so the end is a run of successes. */
    for (uint64_t n = 1; done_in_a_row < 10; n++) {
        run_t r;
        run_init(&r, s, "m.jsonl")->job.output = (char *)(uintptr_t) "memory";
        r.job.workers = 1;
        fail_clear();
        mem_fail_at(n, false);
        const lh_status_t status = prepare_run(&r.how, &r.counts);
        mem_fail_at(0, false);
        done_in_a_row = status == LH_OK ? done_in_a_row + 1 : 0;
        if (status == LH_OK) continue;
        failed++;
        assert_int_equal(status, LH_NO_MEMORY);
        assert_true(text_starts(fail_reason(), "out of memory: "));
        assert_false(file_exists(scratch_path(s, "memory.bin.tmp")));
        assert_false(file_exists(scratch_path(s, "memory.idx.tmp")));
        assert_false(file_exists(scratch_path(s, "memory.lengths.tmp")));
        assert_false(file_exists(scratch_path(s, "prepare.rejected.txt.tmp")));
    }
    sys_use(NULL);
    assert_true(failed > 50);
}

int main(void)
{
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(tiny_shakespeare_becomes_the_pair_that_megatron_would_make),
        IN_SCRATCH(the_openwebtext_pair_is_made_again_byte_for_byte),
        IN_SCRATCH(the_number_of_workers_changes_no_byte),
        IN_SCRATCH(compressed_input_gives_the_same_bytes),
        IN_SCRATCH(what_cannot_be_prepared_is_a_sentence_and_leaves_nothing),
        IN_SCRATCH(a_folder_that_cannot_be_listed_is_not_left_out),
        cmocka_unit_test(many_files_are_listed_in_order_and_soon),
        IN_SCRATCH(a_number_of_bad_lines_may_have_a_unit),
        IN_SCRATCH(what_the_tokenizer_gives_up_on_is_a_bad_line),
        IN_SCRATCH(a_filter_drops_documents_by_their_tokens),
        IN_SCRATCH(a_stop_leaves_the_older_pair_as_it_was),
        IN_SCRATCH(an_allocation_that_fails_anywhere_is_a_sentence),
    };
    return cmocka_run_group_tests(tests, load_tokenizer, free_tokenizer);
}
