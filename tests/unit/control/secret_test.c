/* secret_test.c - a job's key: its file, who may read it, and what is derived from it. */
#include <unit/base/scratch_files.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include <base/sys.h>
#include <control/secret.h>
#include <unit/control/control_ranks.h>

static void it_is_made_once_for_its_owner_alone(void **state)
{
    secret_t *a, *b;
    struct stat st;
    unsigned char x[32], y[32];
    const char *path = scratch_path(*state, "job.key");
    assert_int_equal(secret_open(path, false, &a), LH_INVALID);
    assert_int_equal(secret_open(path, true, &a), LH_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(secret_open(path, true, &b), LH_OK);
    assert_int_equal(secret_derive(a, "tcp", 1, 0, 3, x, sizeof(x)), LH_OK);
    assert_int_equal(secret_derive(b, "tcp", 1, 3, 0, y, sizeof(y)), LH_OK);
    assert_memory_equal(x, y, sizeof(x));
    secret_free(a);
    secret_free(b);
}

/* Another machine makes the key at the very moment that this one has found none. */
static const char *comes_late;
static int open_then_make(const char *path, int flags, mode_t mode)
{
    const int fd = sys_real.open(path, flags, mode);
    const int error = errno;
    if (fd < 0 && comes_late != NULL && strcmp(path, comes_late) == 0) {
        secret_t *made;
        comes_late = NULL;
        assert_int_equal(secret_open(path, true, &made), LH_OK);
        secret_free(made);
    }
    errno = error;
    return fd;
}

static void it_is_awaited(void **state)
{
    secret_t *s;
    sys_t late = *sys();
    const char *path = scratch_path(*state, "late.key");
    assert_int_equal(secret_await(path, 0, &s), LH_INVALID);
    late.open = open_then_make;
    comes_late = path;
    sys_use(&late);
    const lh_status_t status = secret_await(path, UINT64_MAX, &s);
    sys_use(NULL);
    assert_int_equal(status, LH_OK);
    secret_free(s);
}

/* Each look at the clock is four seconds after the one before. */
static uint64_t in_haste_ns;
static uint64_t now_in_haste(void)
{
    if (in_haste_ns == 0) in_haste_ns = sys_real.now_ns();
    return in_haste_ns += UINT64_C(4000000000);
}

static void who_waits_for_it_says_so(void **state)
{
    secret_t *s;
    char sentence[600];
    sys_t haste = *sys();
    const char *path = scratch_path(*state, "never.key");
    const uint64_t end = sys()->now_ns() + UINT64_C(20000000000);
    haste.now_ns = now_in_haste;
    (void)snprintf(sentence, sizeof(sentence),
                   "waiting for the job's key %s since 8 s: rank 0's launcher makes it", path);
    FILE *said = listen_to_logs();
    sys_use(&haste);
    const lh_status_t status = secret_await(path, end, &s);
    sys_use(NULL);
    was_logged(said, sentence);
    assert_int_equal(status, LH_INVALID);
}

/* Copied by hand: empty at first. */
static const char *copied;
static int open_half_copied(const char *path, int flags, mode_t mode)
{
    const int fd = sys_real.open(path, flags, mode);
    if (copied != NULL && strcmp(path, copied) == 0 && fd >= 0) {
        const int file = sys_real.open(path, O_WRONLY, 0);
        copied = NULL;
        assert_int_equal(write(file,
                               "00112233445566778899aabbccddeeff"
                               "00112233445566778899aabbccddeeff\n",
                               65),
                         65);
        assert_int_equal(close(file), 0);
        assert_int_equal(lseek(fd, 0, SEEK_END), 65);
        assert_int_equal(close(fd), 0);
        return sys_real.open("/dev/null", flags, mode); /* as the reader saw it: no key */
    }
    return fd;
}

static void it_may_be_copied_slowly(void **state)
{
    secret_t *s;
    sys_t slow = *sys();
    const char *path = scratch_text(*state, "copied.key", "");
    assert_int_equal(chmod(path, 0600), 0);
    slow.open = open_half_copied;
    copied = path;
    sys_use(&slow);
    const lh_status_t status = secret_await(path, UINT64_MAX, &s);
    sys_use(NULL);
    if (status != LH_OK) FAIL_TEST("%s\n", fail_reason());
    secret_free(s);
    (void)scratch_text(*state, "copied.key", "no key");
    assert_int_equal(secret_await(path, UINT64_MAX, &s), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "here are 6 bytes"));
}

static void keys_differ_by_purpose_epoch_and_pair(void **state)
{
    static const struct {
        const char *purpose;
        uint32_t epoch, a, b;
    } uses[] = {
        {"tcp", 1, 0, 1}, {"tcp", 2, 0, 1}, {"tcp", 1, 0, 2}, {"tcp", 1, 1, 2}, {"tcq", 1, 0, 1}};
    enum { USES = sizeof(uses) / sizeof(uses[0]) };
    unsigned char keys[USES][16];
    secret_t *s;
    (void)state;
    assert_int_equal(secret_random(&s), LH_OK);
    for (uint32_t i = 0; i < USES; i++) {
        assert_int_equal(secret_derive(s, uses[i].purpose, uses[i].epoch, uses[i].a, uses[i].b,
                                       keys[i], sizeof(keys[i])),
                         LH_OK);
        for (uint32_t k = 0; k < i; k++)
            assert_memory_not_equal(keys[i], keys[k], sizeof(keys[i]));
    }
    secret_free(s);
}

/* Made with Python's hmac module, by RFC 5869: salt "longhaul", info as secret.c states it. */
static void it_is_hkdf_with_sha_256(void **state)
{
    static const unsigned char expected[] = {0x7a, 0x0b, 0x00, 0x9a, 0xec, 0xc6, 0x62, 0x7d,
                                             0x54, 0x38, 0xdc, 0x6f, 0x46, 0x95, 0x9e, 0x67};
    unsigned char key[sizeof(expected)];
    secret_t *s;
    const char *path = scratch_text(*state, "fixed.key",
                                    "000102030405060708090a0b0c0d0e0f"
                                    "101112131415161718191a1b1c1d1e1f\n");
    assert_int_equal(chmod(path, 0600), 0);
    if (secret_open(path, false, &s) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    assert_int_equal(secret_derive(s, "tcp", 7, 5, 2, key, sizeof(key)), LH_OK);
    assert_memory_equal(key, expected, sizeof(key));
    secret_free(s);
}

static void it_goes_to_started_ranks_by_a_sealed_descriptor(void **state)
{
    secret_t *a, *b;
    int fd;
    unsigned char x[16], y[16];
    (void)state;
    assert_int_equal(secret_random(&a), LH_OK);
    assert_int_equal(secret_share(a, &fd), LH_OK);
    assert_int_equal(pwrite(fd, "x", 1, 0), -1);
    assert_int_equal(secret_from_fd(fd, &b), LH_OK);
    assert_int_equal(secret_derive(a, "p", 1, 0, 1, x, sizeof(x)), LH_OK);
    assert_int_equal(secret_derive(b, "p", 1, 0, 1, y, sizeof(y)), LH_OK);
    assert_memory_equal(x, y, sizeof(x));
    (void)close(fd);
    secret_free(a);
    secret_free(b);
}

static void what_is_no_key_is_refused(void **state)
{
    static const struct {
        const char *text;
        mode_t mode;
        const char *sentence;
    } refused[] = {
        {"0011", 0600, "a key is 64 hexadecimal digits, here are 4 bytes"},
        {"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", 0644,
         "has mode 0644: others may read the job's key"},
        {"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1g", 0600,
         "byte 63 is no hexadecimal digit"},
        {"abababababababababababababababababababababababababababababababab", 0600,
         "all bytes of the key are equal"},
        {"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f00", 0600,
         "here are 66 bytes"},
    };
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        secret_t *s;
        const char *path = scratch_text(*state, "bad.key", refused[i].text);
        assert_int_equal(chmod(path, refused[i].mode), 0);
        assert_int_equal(secret_open(path, true, &s), LH_INVALID);
        if (strstr(fail_reason(), refused[i].sentence) == NULL) FAIL_TEST("%s\n", fail_reason());
        /* The key itself is never shown. */
        assert_null(strstr(fail_reason(), "0a0b0c0d"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_is_made_once_for_its_owner_alone, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(it_is_awaited, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(who_waits_for_it_says_so, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(it_may_be_copied_slowly, scratch_setup, scratch_teardown),
        cmocka_unit_test(keys_differ_by_purpose_epoch_and_pair),
        cmocka_unit_test_setup_teardown(it_is_hkdf_with_sha_256, scratch_setup, scratch_teardown),
        cmocka_unit_test(it_goes_to_started_ranks_by_a_sealed_descriptor),
        cmocka_unit_test_setup_teardown(what_is_no_key_is_refused, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
