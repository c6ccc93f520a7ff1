/* base_test.c - strings, memory, digests, random numbers, files: against published vectors, and
 * with every call of the system made to fail. */
#include <unit/base/scratch_files.h>
#include <unit/full_disk.h>

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <base/digest.h>
#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/philox.h>
#include <base/sys.h>
#include <base/text.h>
#include <base/thread.h>

static void philox_gives_the_published_numbers(void **state)
{
    /* kat_vectors of Random123 1.14, philox4x32 with 10 rounds */
    static const struct {
        uint32_t counter[4], key[2], expected[4];
    } rows[] = {
        {{0}, {0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        uint32_t out[4];
        philox(rows[i].key, rows[i].counter, out);
        assert_memory_equal(out, rows[i].expected, sizeof(out));
    }
}

static void uniform_and_normal_have_their_moments(void **state)
{
    enum { N = 200000 };
    double sum = 0, low = 1, high = 0, normal = 0, square = 0;
    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        const double u = philox_uniform(7, 1, i), z = philox_normal(7, 2, i);
        assert_true(u >= 0 && u < 1 && isfinite(z));
        sum += u;
        low = u < low ? u : low;
        high = u > high ? u : high;
        normal += z;
        square += z * z;
    }
    /* five standard errors */
    assert_true(fabs(sum / N - 0.5) < 5 * 0.2887 / sqrt(N));
    assert_true(fabs(normal / N) < 5 / sqrt(N));
    assert_true(fabs(square / N - 1) < 5 * sqrt(2) / sqrt(N));
    assert_true(low < 1e-3 && high > 1 - 1e-3);
    assert_true(philox_uniform(7, 1, 5) == philox_uniform(7, 1, 5));
    assert_true(philox_uniform(7, 1, 5) != philox_uniform(8, 1, 5));
}

/* Box and Muller by the C library, in more digits. */
static void a_normal_number_is_what_its_formula_says(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 100000; i++) {
        const uint32_t key[2] = {7, 0}, counter[4] = {(uint32_t)i, 0, 2, 0};
        uint32_t word[4];
        philox(key, counter, word);
        const long double u = (long double)(((uint64_t)word[0] << 32 | word[1]) >> 11) * 0x1p-53L;
        const long double v = (long double)(((uint64_t)word[2] << 32 | word[3]) >> 11) * 0x1p-53L;
        const long double z = sqrtl(-2 * logl(1 - u)) * cosl(6.283185307179586476925286766559L * v);
        /* An angle rounded to double is off by up to 4.4e-16. */
        const double most = 8e-16 * (1 + (double)sqrtl(-2 * logl(1 - u)));
        assert_true(fabs((double)(z - (long double)philox_normal(7, 2, i))) <= most);
    }
}

static void normal_numbers_in_a_row_are_those_one_by_one(void **state)
{
    static const struct {
        uint64_t seed, stream, begin, count;
    } rows[] = {{1, 2, 0, 1},
                {1, 2, 5, 63},
                {UINT64_MAX, 3, 0, 64},
                {1, UINT64_MAX, 7, 65},
                {9, 9, UINT32_MAX - 100, 1000}, /* the index carries into its upper word */
                {3, 4, UINT64_MAX - 300, 290}};
    float out[1001];
    (void)state;
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        out[rows[r].count] = 77;
        philox_normals(rows[r].seed, rows[r].stream, rows[r].begin, rows[r].count, 0.02, out);
        for (uint64_t i = 0; i < rows[r].count; i++) {
            const double z = philox_normal(rows[r].seed, rows[r].stream, rows[r].begin + i);
            const float one = (float)(0.02 * z);
            assert_memory_equal(&out[i], &one, sizeof(one));
        }
        assert_true(out[rows[r].count] == 77);
    }
    philox_normals(1, 2, 3, 0, 1, NULL);
}

static void digests_are_the_published_ones(void **state)
{
    char out[SHA256_TEXT];
    digest_t *s;
    (void)state;
    assert_int_equal(digest_of("abc", 3, out), LH_OK);
    assert_string_equal(out, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(digest_new(&s), LH_OK);
    digest_add(s, "a", 1);
    digest_add(s, "", 0);
    digest_add(s, "bc", 2);
    digest_end(s, out);
    assert_string_equal(out, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(digest_of("", 0, out), LH_OK);
    assert_string_equal(out, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_true(digest_xxh3("", 0) == 0x2d06800538d394c2);
}

static void texts_grow_and_are_compared(void **state)
{
    text_t t = {0};
    char padded[] = " \t a b \n";
    (void)state;
    for (int i = 0; i < 100; i++)
        text_printf(&t, "%d,", i);
    assert_int_equal(t.length, 290);
    assert_int_equal(strlen(t.data), 290);
    text_free(&t);
    assert_null(t.data);

    assert_string_equal(text_trim(padded), "a b");
    assert_true(text_equal(NULL, NULL) && !text_equal(NULL, "") && text_equal("x", "x"));
    assert_true(text_starts("group.x", "group.") && !text_starts("grou", "group"));
    assert_true(text_ends("a.so", ".so") && !text_ends("so", ".so"));
    assert_int_equal(text_distance("kitten", "sitting"), 3);
    assert_int_equal(text_distance("", "abc"), 3);
    assert_int_equal(text_distance("same", "same"), 0);
}

static void what_a_terminal_obeys_is_spelled_out(void **state)
{
    static const char hostile[] = "a\x1b[2J\r\x7f\tb\n\xc2\x9b"
                                  "c \xc3\xa9\xc2\xa0";
    text_t t = {0};
    (void)state;
    text_append_shown(&t, hostile, true);
    assert_string_equal(t.data, "a\\x1b[2J\\x0d\\x7f\tb\n\\xc2\\x9bc \xc3\xa9\xc2\xa0");
    text_free(&t);
    text_append_shown(&t, hostile, false);
    assert_string_equal(t.data, "a\\x1b[2J\\x0d\\x7f\\x09b\\x0a\\xc2\\x9bc \xc3\xa9\xc2\xa0");
    text_free(&t);
    static const char turning[] = "a\u202eb\u2066c\u200fd\u061ce";
    text_append_shown(&t, turning, false);
    assert_string_equal(t.data, "a\\xe2\\x80\\xaeb\\xe2\\x81\\xa6c\\xe2\\x80\\x8fd\\xd8\\x9ce");
    text_free(&t);
    static const char near[] = "\u200d\u2010\u2029\u202f\u2065\u206a\u061b\u061d";
    text_append_shown(&t, near, false);
    assert_string_equal(t.data, near);
    text_free(&t);
    text_append_shown(&t, "\xc2", true); /* cut in the middle of a character */
    assert_string_equal(t.data, "\\xc2");
    text_free(&t);
}

static void a_text_that_ran_out_of_memory_stays_failed(void **state)
{
    text_t t = {0};
    (void)state;
    text_append(&t, "kept");
    mem_fail_at(1, false);
    for (int i = 0; i < 10; i++)
        text_append(&t, "0123456789");
    mem_fail_at(0, false);
    assert_int_equal(text_status(&t), LH_NO_MEMORY);
    assert_string_equal(t.data, "kept");
    text_free(&t);
}

static void memory_checks_products_and_zeroes(void **state)
{
    size_t capacity = 0;
    uint64_t product;
    (void)state;
    assert_null(mem_array(SIZE_MAX / 4, 8));
    assert_null(mem_new(SIZE_MAX - 3));
    assert_false(checked_mul(UINT64_MAX, 2, &product));
    assert_false(checked_add(UINT64_MAX, 1, &product));
    unsigned char *p = mem_grow(NULL, &capacity, 3, 5);
    assert_non_null(p);
    memset(p, 0xff, capacity * 5);
    const size_t before = capacity * 5;
    p = mem_grow(p, &capacity, capacity + 1, 5);
    for (size_t i = 0; i < capacity * 5; i++)
        assert_int_equal(p[i], i < before ? 0xff : 0);
    mem_free(p);
}

static void paths_are_joined_and_cut(void **state)
{
    static const struct {
        const char *folder, *name, *joined;
    } rows[] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"a", "/b", "/b"}, {"", "b", "b"}, {"/", "b", "/b"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char *path = path_join(rows[i].folder, rows[i].name);
        assert_string_equal(path, rows[i].joined);
        mem_free(path);
    }
    char *folder = path_folder("/a"), *here = path_folder("a"), *deep = path_folder("a/b/c");
    assert_string_equal(folder, "/");
    assert_string_equal(here, ".");
    assert_string_equal(deep, "a/b");
    mem_free(folder);
    mem_free(here);
    mem_free(deep);
    assert_string_equal(path_name("a/b"), "b");
    assert_string_equal(path_name("b"), "b");

    char *absolute = path_absolute("x"), *already = path_absolute("/x");
    assert_true(absolute[0] == '/' && text_ends(absolute, "/x"));
    assert_string_equal(already, "/x");
    char *dotted = path_absolute(".//./x"), *whole = path_absolute("."),
         *room = path_absolute("./");
    assert_string_equal(dotted, absolute);
    assert_string_equal(room, whole);
    assert_int_equal(strlen(whole) + strlen("/x"), strlen(absolute));
    mem_free(dotted);
    mem_free(whole);
    mem_free(room);
    mem_free(absolute);
    mem_free(already);
}

static void what_is_no_file_is_refused_without_blocking(void **state)
{
    scratch_t *s = *state;
    char *bytes;
    size_t length;
    assert_int_equal(mkfifo(scratch_path(s, "fifo"), 0600), 0);
    assert_int_equal(file_read(s->path, 100, &bytes, &length), LH_INVALID);
    assert_string_equal(behind_folder(s, fail_reason()), "fifo: not a regular file");
    assert_int_equal(file_read(s->folder, 100, &bytes, &length), LH_INVALID);
    assert_int_equal(file_read("/dev/zero", 100, &bytes, &length), LH_INVALID);
    scratch_text(s, "long", "0123456789");
    assert_int_not_equal(file_read(scratch_path(s, "long"), 9, &bytes, &length), LH_OK);
    assert_int_equal(file_read(s->path, 10, &bytes, &length), LH_OK);
    assert_int_equal(length, 10);
    assert_string_equal(bytes, "0123456789");
    mem_free(bytes);
}

/* The n-th call of the seam fails with EIO, whichever it is. */
static int calls, fail_call;
static bool fails(void)
{
    if (++calls != fail_call) return false;
    errno = EIO;
    return true;
}
static int try_open(const char *path, int flags, mode_t mode)
{
    return fails() ? -1 : sys_real.open(path, flags, mode);
}
static ssize_t try_write(int fd, const void *from, size_t bytes)
{
    /* Short counts and EINTR are no failures. */
    if (calls % 2 == 1 && bytes > 1) bytes = 1;
    return fails() ? -1 : sys_real.write(fd, from, bytes);
}
static int try_fsync(int fd)
{
    return fails() ? -1 : sys_real.fsync(fd);
}
static int try_rename(const char *from, const char *to)
{
    return fails() ? -1 : sys_real.rename(from, to);
}
static int try_close(int fd)
{
    (void)sys_real.close(fd);
    return fails() ? -1 : 0;
}

/* Pages that the kernel holds for a moment look like a writer: EBUSY. */
static void *unmap_soon(void *page)
{
    (void)usleep(100000);
    (void)munmap(page, 4096);
    return NULL;
}

static void a_memory_file_is_sealed_once_nobody_writes(void **state)
{
    (void)state;
    pthread_t thread;
    const int fd = memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, 4096), 0);
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(page != MAP_FAILED);
    assert_int_equal(pthread_create(&thread, NULL, unmap_soon, page), 0);
    assert_int_equal(file_seal(fd, "it"), LH_OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(write(fd, "x", 1), -1);
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_int_equal(file_seal(fd, "it"), LH_IO);
    assert_int_equal(strncmp(fail_reason(), "cannot seal it: ", 16), 0);
    assert_int_equal(close(fd), 0);
}

static void a_replaced_file_is_the_old_or_the_new_one(void **state)
{
    scratch_t *s = *state;
    sys_t table = sys_real;
    table.open = try_open;
    table.write = try_write;
    table.fsync = try_fsync;
    table.rename = table.rename_new = try_rename;
    table.close = try_close;

    int failed = 0;
    for (fail_call = 1;; fail_call++) {
        size_t length;
        char path[512];
        (void)snprintf(path, sizeof(path), "%s", scratch_text(s, "kept", "old"));
        calls = 0;
        sys_use(&table);
        const lh_status_t status = file_replace(path, "newer", 5);
        sys_use(NULL);
        const bool reached = calls >= fail_call;
        char *bytes = scratch_read(path, &length);
        assert_true(strcmp(bytes, "newer") == 0 || (status != LH_OK && strcmp(bytes, "old") == 0));
        mem_free(bytes);
        if (!reached) {
            assert_int_equal(status, LH_OK);
            break;
        }
        if (status != LH_OK) failed++;
    }
    assert_true(failed >= 5);
}

static void folders_are_made_and_removed_whole(void **state)
{
    scratch_t *s = *state;
    assert_int_equal(folder_make(scratch_path(s, "a/b/c")), LH_OK);
    assert_int_equal(folder_make(scratch_path(s, "a/b/c")), LH_OK);
    scratch_text(s, "a/b/c/file", "x");
    scratch_text(s, "outside", "kept");
    assert_int_equal(symlink("../outside", scratch_path(s, "a/link")), 0);
    assert_int_equal(folder_remove(scratch_path(s, "a")), LH_OK);
    assert_false(file_exists(scratch_path(s, "a")));
    assert_true(file_exists(scratch_path(s, "outside")));
    assert_int_equal(folder_remove(scratch_path(s, "a")), LH_OK);
    assert_int_equal(folder_make(scratch_path(s, "precious")), LH_OK);
    scratch_text(s, "precious/file", "x");
    assert_int_equal(symlink("precious", scratch_path(s, "a")), 0);
    assert_int_equal(folder_remove(scratch_path(s, "a")), LH_OK);
    struct stat st;
    assert_int_not_equal(lstat(scratch_path(s, "a"), &st), 0);
    assert_true(file_exists(scratch_path(s, "precious/file")));
    assert_int_not_equal(folder_make(scratch_path(s, "outside/x")), LH_OK);
}

static int cuts; /* that succeed */

static int cut_at_times(int fd, off_t length)
{
    if (cuts-- > 0) return ftruncate(fd, length);
    errno = EIO;
    return -1;
}

static int begin_on_full_disk(const char *path, sys_t *full)
{
    int fd;
    *full = sys_real;
    full->write = write_while_space;
    full->ftruncate = cut_at_times;
    sys_use(full);
    space = SIZE_MAX;
    cuts = 0;
    assert_int_equal(file_begin(path, O_TRUNC | O_APPEND, &fd), LH_OK);
    return fd;
}

static void end_on_full_disk(const char *path, int fd, const char *expected)
{
    char *text;
    size_t length;
    sys_use(NULL);
    (void)close(fd);
    assert_int_equal(file_read(path, 1 << 16, &text, &length), LH_OK);
    assert_string_equal(text, expected);
    mem_free(text);
}

static void a_record_that_cannot_be_written_leaves_no_part(void **state)
{
    sys_t full;
    const char *path = scratch_path(*state, "records");
    file_records_t f = {.fd = begin_on_full_disk(path, &full)};
    assert_true(file_records_add(&f, "one\n", 4));
    space = 2;
    assert_false(file_records_add(&f, "two\n", 4)); /* and not even the part can be cut off */
    assert_int_equal(errno, ENOSPC);
    assert_int_equal(f.torn, 2);
    cuts = 1;
    space = 3;
    assert_false(file_records_add(&f, "three\n", 6));
    cuts = 1;
    space = SIZE_MAX;
    assert_true(file_records_add(&f, "four\n", 5));
    assert_int_equal(f.lost, 2);
    end_on_full_disk(path, f.fd, "one\nfour\n");
}

#define TIME "2024-02-29T23:59:59.007Z "
static uint64_t leap_day(void)
{
    return UINT64_C(1709251199007) * 1000000;
}

static void a_time_of_day_is_that_of_rfc_3339(void **state)
{
    static const struct {
        uint64_t seconds;
        const char *text;
    } rows[] = {
        {0, "1970-01-01T00:00:00.000Z"},          {951782399, "2000-02-28T23:59:59.000Z"},
        {951782400, "2000-02-29T00:00:00.000Z"},  {951868800, "2000-03-01T00:00:00.000Z"},
        {1735689599, "2024-12-31T23:59:59.000Z"}, {4107542399, "2100-02-28T23:59:59.000Z"},
        {4107542400, "2100-03-01T00:00:00.000Z"},
    };
    char text[TEXT_TIME];
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        text_time(rows[i].seconds * 1000000000u, text);
        assert_string_equal(text, rows[i].text);
    }
    for (uint64_t s = 1; s < 17000000000u; s += 86400 * 13 + 4711) { /* until the year 2508 */
        char expected[64];
        const time_t seconds = (time_t)s;
        struct tm broken;
        assert_non_null(gmtime_r(&seconds, &broken));
        (void)strftime(expected, sizeof(expected), "%Y-%m-%dT%H:%M:%S.999Z", &broken);
        text_time(s * 1000000000u + 999999999u, text);
        assert_string_equal(text, expected);
    }
}

static void a_log_says_how_many_lines_are_missing(void **state)
{
    sys_t full;
    const char *path = scratch_path(*state, "train.log");
    const int fd = begin_on_full_disk(path, &full);
    cuts = 100;
    full.wall_ns = leap_day;
    log_also(fd, "train.log");
    log_line(LH_LOG_INFO, "one");
    space = 2;
    log_line(LH_LOG_INFO, "two");
    log_line(LH_LOG_INFO, "three");
    space = SIZE_MAX;
    log_line(LH_LOG_INFO, "four");
    log_also(-1, "");
    log_also(-1, "");
    /* two, three and that two could not be written */
    end_on_full_disk(path, fd,
                     TIME "one\n" TIME "four\n" TIME "warning: train.log: 3 lines were lost\n");
}

static void the_log_of_a_rank_says_so_too(void **state)
{
    sys_t full;
    const char *path = scratch_path(*state, "rank-3.log");
    const int fd = begin_on_full_disk(path, &full);
    full.wall_ns = leap_day;
    log_as_rank(3, fd, "rank-3.log");
    log_line(LH_LOG_INFO, "one");
    space = 0;
    log_line(LH_LOG_INFO, "two");
    space = SIZE_MAX;
    log_as_rank(3, -1, "");
    end_on_full_disk(path, fd,
                     TIME "rank 3: one\n" TIME "rank 3: warning: rank-3.log: 2 lines were lost\n");
}

static void a_log_that_begins_anew_keeps_the_lines_of_its_own_run(void **state)
{
    int fd;
    char *text;
    size_t length;
    sys_t table = sys_real;
    const char *path = scratch_path(*state, "rank-4.log");
    table.wall_ns = leap_day;
    sys_use(&table);
    log_begin_anew(); /* of no rank: nothing happens */
    assert_int_equal(file_replace(path, "of before\n", 10), LH_OK);
    assert_int_equal(file_begin(path, O_APPEND | O_RDWR, &fd), LH_OK);
    log_as_rank(4, fd, path);
    log_line(LH_LOG_INFO, "one");
    log_begin_anew();
    log_line(LH_LOG_INFO, "two");
    log_begin_anew();
    log_as_rank(4, -1, "");
    sys_use(NULL);
    assert_int_equal(sys()->close(fd), 0);
    assert_int_equal(file_read(path, 100, &text, &length), LH_OK);
    assert_string_equal(text, TIME "rank 4: one\n" TIME "rank 4: two\n");
    mem_free(text);
}

static void every_status_has_a_text_and_an_exit_code(void **state)
{
    (void)state;
    for (lh_status_t status = LH_DEVICE_LOST; status <= LH_AGAIN; status++)
        assert_string_not_equal(status_text(status), "unknown status");
    assert_string_equal(status_text(-99), "unknown status");
    assert_int_equal(status_exit_code(LH_INVALID), EXIT_REFUSED);
    assert_int_equal(status_exit_code(LH_PEER_LOST), EXIT_LOST);
    assert_int_equal(status_exit_code(STATUS_ENDED), 128 + SIGTERM);
    assert_string_equal(status_text(STATUS_ENDED), "ended at once");
    assert_int_equal(status_exit_code(STATUS_STOPPED), EXIT_TERMINATED);
    assert_string_equal(status_text(STATUS_STOPPED), "stopped as asked");
    assert_int_equal(status_exit_code(LH_OK), EXIT_DONE);
    assert_int_equal(fail_io(ENOENT, "%s", "x"), LH_IO);
    assert_string_equal(fail_reason(), "x: No such file or directory");
    assert_int_equal(fail(LH_IO, "%s", "x"), LH_IO);
    assert_string_equal(fail_reason(), "x");
    assert_int_equal(errno, ENOENT);
    assert_int_equal(fail_io(0, "%s", "y"), LH_IO);
    assert_string_equal(fail_reason(), "y");
    assert_int_equal(fail_again(LH_UNREACHABLE, fail_reason()),
                     LH_UNREACHABLE); /* of this thread itself */
    assert_string_equal(fail_reason(), "y");
    fail_clear();
    assert_string_equal(fail_reason(), "");
}

/* As a library's own code does, which calls nobody meanwhile: the register of the stack points into
 * other memory when a signal comes. */
static void a_signal_writes_nothing_where_the_stack_register_points(void **state)
{
    (void)state;
#if defined(__x86_64__)
    enum { BYTES = 1 << 18 };
    static const unsigned char filled = 0x5a;
    unsigned char *block = mem_new(BYTES);
    assert_non_null(block);
    memset(block, filled, BYTES);
    assert_int_equal(sys_stop_watch(), LH_OK);
    long result = SYS_kill;
    __asm__ volatile("mov %%rsp, %%rbx\n\t"
                     "mov %[top], %%rsp\n\t"
                     "syscall\n\t"
                     "mov %%rbx, %%rsp"
                     : "+a"(result)
                     : "D"((long)getpid()), "S"((long)SIGTERM), [top] "r"(block + BYTES / 2)
                     : "rbx", "rcx", "r11", "memory");
    sys_stop_unwatch();
    assert_int_equal(result, 0);
    assert_true(sys_stop_requested());
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(block[i], filled);
    mem_free(block);
#endif
}

static bool told_at_once;

static bool end_otherwise(bool at_once, int *code)
{
    told_at_once = at_once;
    *code = at_once ? 41 : 42;
    return true;
}

/* The exit code of a process that hears of its end before it is ended by a signal, the first or a second. */
static void who_is_told_of_the_end_may_change_its_code(void **state)
{
    (void)state;
    for (int second = 0; second < 2; second++) {
        int how = 0;
        (void)fflush(stdout);
        const pid_t pid = fork();
        if (pid == 0) {
            if (second != 0 && sys_stop_watch() != LH_OK) _exit(1);
            if (second == 0) sys_stop_at_once(EXIT_TERMINATED);
            sys_stop_tell(end_otherwise);
            (void)raise(SIGTERM);
            if (second != 0 && !told_at_once) (void)raise(SIGTERM);
            _exit(2);
        }
        assert_int_equal(waitpid(pid, &how, 0), pid);
        assert_true(WIFEXITED(how));
        assert_int_equal(WEXITSTATUS(how), second != 0 ? 41 : 42);
    }
}

/* What a thread finds as it begins. */
typedef struct found {
    bool terminated, piped; /* whether it may be sent SIGTERM, SIGPIPE */
    char name[16];
    locale_t locale;
} found_t;

static void *look_around(void *argument)
{
    found_t *f = argument;
    sigset_t mask;
    (void)pthread_sigmask(SIG_SETMASK, NULL, &mask);
    f->terminated = sigismember(&mask, SIGTERM) == 0;
    f->piped = sigismember(&mask, SIGPIPE) == 0;
    (void)pthread_getname_np(pthread_self(), f->name, sizeof(f->name));
    f->locale = uselocale((locale_t)0);
    return f;
}

static void a_thread_begins_without_signals_and_with_a_locale_of_its_own(void **state)
{
    (void)state;
    found_t f = {.terminated = true, .piped = true};
    sigset_t before, after;
    pthread_t thread;
    void *result = NULL;
    (void)pthread_sigmask(SIG_SETMASK, NULL, &before);
    const uint64_t allocations = mem_count();
    assert_int_equal(thread_start(&thread, "a long name of a thread", look_around, &f), 0);
    assert_int_equal(mem_count(), allocations);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, &f);
    assert_false(f.terminated);
    assert_false(f.piped);
    assert_string_equal(f.name, "a long name of ");
    assert_ptr_not_equal(f.locale, LC_GLOBAL_LOCALE);
    (void)pthread_sigmask(SIG_SETMASK, NULL, &after);
    assert_int_equal(sigismember(&after, SIGTERM), sigismember(&before, SIGTERM));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_begins_without_signals_and_with_a_locale_of_its_own),
        cmocka_unit_test(who_is_told_of_the_end_may_change_its_code),
        cmocka_unit_test(a_signal_writes_nothing_where_the_stack_register_points),
        cmocka_unit_test(philox_gives_the_published_numbers),
        cmocka_unit_test(uniform_and_normal_have_their_moments),
        cmocka_unit_test(a_normal_number_is_what_its_formula_says),
        cmocka_unit_test(normal_numbers_in_a_row_are_those_one_by_one),
        cmocka_unit_test(digests_are_the_published_ones),
        cmocka_unit_test(texts_grow_and_are_compared),
        cmocka_unit_test(what_a_terminal_obeys_is_spelled_out),
        cmocka_unit_test(a_text_that_ran_out_of_memory_stays_failed),
        cmocka_unit_test(memory_checks_products_and_zeroes),
        cmocka_unit_test(paths_are_joined_and_cut),
        cmocka_unit_test(what_is_no_file_is_refused_without_blocking),
        cmocka_unit_test(a_memory_file_is_sealed_once_nobody_writes),
        cmocka_unit_test(a_replaced_file_is_the_old_or_the_new_one),
        cmocka_unit_test(folders_are_made_and_removed_whole),
        cmocka_unit_test(every_status_has_a_text_and_an_exit_code),
        cmocka_unit_test(a_record_that_cannot_be_written_leaves_no_part),
        cmocka_unit_test(a_time_of_day_is_that_of_rfc_3339),
        cmocka_unit_test(a_log_says_how_many_lines_are_missing),
        cmocka_unit_test(the_log_of_a_rank_says_so_too),
        cmocka_unit_test(a_log_that_begins_anew_keeps_the_lines_of_its_own_run),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
