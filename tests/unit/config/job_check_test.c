/* job_check_test.c - keys as people paste them, and files as people name them. */
#include <unit/base/scratch_files.h>

#include <base/philox.h>
#include <config/job_check.h>
#include <config/job_outputs.h>

enum { KEY = 32, KEYS = 2000, TEXT = 256 };
static const char standard[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
static const char for_names[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static void make_key(uint32_t number, unsigned char key[KEY])
{
    for (uint32_t i = 0; i < KEY / 16; i++) {
        const uint32_t counter[4] = {number, i, 0, 0}, seed[2] = {17, 4};
        uint32_t words[4];
        philox(seed, counter, words);
        memcpy(key + 16 * i, words, sizeof(words));
    }
}

static void write_hex(const unsigned char key[KEY], const char *between, char *out)
{
    *out = '\0';
    for (uint32_t i = 0; i < KEY; i++)
        out += sprintf(out, "%s%02x", i == 0 ? "" : between, key[i]);
}

static void write_base64(const unsigned char key[KEY], const char *alphabet, char *out)
{
    uint32_t bits = 0, count = 0;
    for (uint32_t i = 0; i < KEY; i++) {
        bits = bits << 8 | key[i];
        for (count += 8; count >= 6; count -= 6)
            *out++ = alphabet[bits >> (count - 6) & 63];
    }
    *out++ = alphabet[bits << (6 - count) & 63];
    *out = '\0';
}

static uint32_t taken_for_keys(const char *before, const char *after, const char *alphabet,
                               const char *between)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < KEYS; i++) {
        unsigned char key[KEY];
        char text[TEXT], pasted[2 * TEXT];
        make_key(i, key);
        if (alphabet != NULL)
            write_base64(key, alphabet, text);
        else
            write_hex(key, between, text);
        (void)snprintf(pasted, sizeof(pasted), "%s%s%s", before, text, after);
        taken += job_pasted_key(pasted, "/tmp");
    }
    return taken;
}

static void hexadecimal_is_seen_in_every_dress(void **state)
{
    static const char *const dresses[][2] = {{"", ""},   {"0x", ""},   {"0X", ""},     {"\"", "\""},
                                             {"'", "'"}, {"./", ""},   {"\"0x", "\""}, {"././", ""},
                                             {"/", ""},  {"keys/", ""}};
    (void)state;
    for (size_t i = 0; i < sizeof(dresses) / sizeof(dresses[0]); i++)
        assert_int_equal(taken_for_keys(dresses[i][0], dresses[i][1], NULL, ""), KEYS);
    assert_int_equal(taken_for_keys("", "", NULL, ":"), KEYS);
    assert_true(job_pasted_key("00112233445566778899aabbccddeeff", "/tmp"));
}

static void base64_is_seen(void **state)
{
    static const char *const dresses[][2] = {{"", "="}, {"", ""}, {"\"", "=\""}, {"./", ""}};
    (void)state;
    for (size_t i = 0; i < sizeof(dresses) / sizeof(dresses[0]); i++) {
        /* Without an upper or lower letter, a digit or a sign, or with a folder of that name. */
        assert_true(taken_for_keys(dresses[i][0], dresses[i][1], standard, "") > KEYS - KEYS / 50);
        assert_true(taken_for_keys(dresses[i][0], dresses[i][1], for_names, "") > KEYS - KEYS / 50);
    }
}

static void names_of_files_are_none(void **state)
{
    static const char *const names[] = {
        "job.key",
        "secrets/cluster-a-2026.key",
        "./job.key",
        "/etc/longhaul/jobs/a-rather-long-name-of-a-cluster-in-Europe-2026.key",
        "\"my key\"",
        "deadbeef",
        "0xdeadbeef",
        "keys/00112233445566778899aabbccddeeff",
        "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
        "keys/3f2504e0-4f89-11d3-9a0c-0305e82c3301.key",
        "the-key_of_Cluster-7_in_Tokyo-and_of_Cluster-8_in_Oslo",
        "/tmp/Scratch/team7/longhaul/run12/keys/jobsecret/yet/to/be/made",
        "/tmp/the_key_of_cluster_seven_in_the_basement_of_the_institute",
        "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff.key",
        "",
        "'",
        "\"\"",
        "./",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (job_pasted_key(names[i], "/tmp")) FAIL_TEST("'%s' is taken for a key\n", names[i]);
}

/* A long name that looks like base64 is one all the same, if its file is there; hexadecimal is not:
 * the file may be what an earlier start has made of it. */
static void a_file_that_is_there_is_one(void **state)
{
    static const char coded[] = "MyClusterInTheBasement2026AndItsVeryLongKeyFile";
    static const char hex[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    scratch_t *s = *state;
    assert_true(job_pasted_key(coded, s->folder));
    (void)scratch_text(s, coded, "x");
    (void)scratch_text(s, hex, "x");
    assert_false(job_pasted_key(coded, s->folder));
    assert_true(job_pasted_key(hex, s->folder));
}

/* As rank 0's launcher does while others look: it replaces stages.json, and makes the key behind it. */
static void a_new_file_with_the_number_of_a_replaced_output_is_none(void **state)
{
    scratch_t *s = *state;
    char stages[128], key[128], output[] = "corpus";
    struct stat st;
    job_outputs_t outputs;
    const job_t job = {.pipeline = {.folder = s->folder}, .prepare = {.output = output}};
    (void)snprintf(stages, sizeof(stages), "%s/stages.json", s->folder);
    (void)snprintf(key, sizeof(key), "%s/job.key", s->folder);
    (void)scratch_text(s, "stages.json", "{}");
    assert_int_equal(job_outputs_find(&job, &outputs), LH_OK);
    assert_int_equal(link(stages, key), 0); /* as if it had the number by chance */
    assert_int_equal(stat(key, &st), 0);
    const job_output_t *found = job_outputs_at(&outputs, &st);
    assert_non_null(found);
    assert_string_equal(found->path, stages);
    assert_int_equal(file_replace(stages, "{ }", 3), LH_OK);
    assert_null(job_outputs_at(&outputs, &st));
    job_outputs_free(&outputs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hexadecimal_is_seen_in_every_dress),
        cmocka_unit_test(base64_is_seen),
        cmocka_unit_test(names_of_files_are_none),
        cmocka_unit_test_setup_teardown(a_file_that_is_there_is_one, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(a_new_file_with_the_number_of_a_replaced_output_is_none,
                                        scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
