/* checkpoint_copy_test.c - a checkpoint goes to a folder that does not see the first one: byte for byte,
 * whatever the pieces; what is short or changed in length is never committed. */
#include <unit/checkpoint/small_state.h>

#include <errno.h>
#include <fcntl.h>

#include <base/sys.h>
#include <checkpoint/checkpoint.h>

typedef struct copied {
    char from[96], to[96], path[160];
    manifest_t *manifest;
    char *text;
    size_t text_bytes;
} copied_t;

static void copied_open(copied_t *c, const char *folder)
{
    (void)snprintf(c->from, sizeof(c->from), "%s/from", folder);
    (void)snprintf(c->to, sizeof(c->to), "%s/to", folder);
    assert_int_equal(small_save(c->from, 3, 0), LH_OK);
    assert_int_equal(small_save(c->to, 2, 0), LH_OK);
    (void)snprintf(c->path, sizeof(c->path), "%s/step-000000000003", c->from);
    assert_int_equal(checkpoint_copy_manifest(c->path, &c->text, &c->text_bytes), LH_OK);
    assert_int_equal(manifest_parse(c->path, c->text, c->text_bytes, true, &c->manifest), LH_OK);
    assert_true(c->manifest->file_count > 2);
}

static void copied_close(copied_t *c)
{
    manifest_free(c->manifest);
    mem_free(c->text);
}

static commit_t *copied_stage(copied_t *c)
{
    commit_t *commit;
    assert_int_equal(commit_join(c->to, &c->manifest->meta, "", ".tmp-step-000000000003-copy",
                                 COMMIT_FOLLOWS, &commit),
                     LH_OK);
    return commit;
}

/* All of `senders` streams in pieces of so many bytes; the last one stops `short_by` pieces early. */
static lh_status_t copied_move(copied_t *c, commit_t *commit, uint32_t senders, uint64_t bytes,
                               uint64_t short_by)
{
    char piece[512];
    lh_status_t status = LH_OK;
    assert_true(bytes <= sizeof(piece));
    for (uint32_t i = 0; i < senders && status == LH_OK; i++) {
        checkpoint_copy_t out, in;
        checkpoint_copy_begin(&out, c->manifest, c->path, i, senders, false);
        checkpoint_copy_begin(&in, c->manifest, commit_staging(commit), i, senders, true);
        const uint64_t all = checkpoint_copy_bytes(&out);
        assert_int_equal(checkpoint_copy_bytes(&in), all);
        uint64_t pieces = (all + bytes - 1) / bytes;
        if (i + 1 == senders) pieces = pieces > short_by ? pieces - short_by : 0;
        for (uint64_t k = 0; k < pieces; k++) {
            memset(piece, 0xa5, sizeof(piece));
            assert_int_equal(checkpoint_copy_move(&out, piece, bytes), LH_OK);
            assert_int_equal(checkpoint_copy_move(&in, piece, bytes), LH_OK);
        }
        status = checkpoint_copy_end(&in);
        (void)checkpoint_copy_end(&out);
    }
    return status;
}

static void every_cut_gives_the_same_files(void **state)
{
    scratch_t *s = *state;
    static const uint64_t sizes[] = {1, 7, 64, 251, 512};
    for (uint32_t senders = 1; senders <= 5; senders++)
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            char folder[80], to[200], line[512];
            copied_t c;
            checkpoint_t *found;
            (void)snprintf(folder, sizeof(folder), "%s/%u-%zu", s->folder, senders, i);
            copied_open(&c, folder);
            commit_t *commit = copied_stage(&c);
            assert_int_equal(copied_move(&c, commit, senders, sizes[i], 0), LH_OK);
            assert_int_equal(checkpoint_copy_commit(commit, c.text, c.text_bytes), LH_OK);
            assert_int_equal(checkpoint_open_latest(c.to, &found), LH_OK);
            small_check(found, 3);
            checkpoint_close(found);
            (void)snprintf(to, sizeof(to), "%s/step-000000000003", c.to);
            (void)snprintf(line, sizeof(line), "diff -r %s %s", c.path, to);
            assert_int_equal(system(line), 0);
            copied_close(&c);
        }
}

static void what_is_short_is_never_committed(void **state)
{
    scratch_t *s = *state;
    copied_t c;
    checkpoint_t *found;
    copied_open(&c, s->folder);
    commit_t *commit = copied_stage(&c);
    assert_int_equal(copied_move(&c, commit, 2, 64, 8), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "only a part of a copy has come"));
    /* Even where nobody minds: a file is missing. */
    assert_int_equal(checkpoint_copy_commit(commit, c.text, c.text_bytes), LH_CORRUPT);
    assert_int_equal(checkpoint_open_latest(c.to, &found), LH_OK);
    small_check(found, 2);
    checkpoint_close(found);
    copied_close(&c);
}

static bool opens, reads; /* still to fail once */

static int open_that_fails_for_a_moment(const char *path, int flags, mode_t mode)
{
    if (!opens || (flags & O_CREAT) != 0) return sys_real.open(path, flags, mode);
    opens = false;
    errno = EIO;
    return -1;
}

static ssize_t pread_that_fails_for_a_moment(int fd, void *to, size_t bytes, off_t at)
{
    if (!reads) return sys_real.pread(fd, to, bytes, at);
    reads = false;
    errno = EIO;
    return -1;
}

static void what_a_disk_fails_to_give_once_is_read_again(void **state)
{
    scratch_t *s = *state;
    copied_t c;
    checkpoint_t *found;
    sys_t calls = sys_real;
    calls.open = open_that_fails_for_a_moment;
    calls.pread = pread_that_fails_for_a_moment;
    copied_open(&c, s->folder);
    commit_t *commit = copied_stage(&c);
    opens = reads = true;
    sys_use(&calls);
    assert_int_equal(copied_move(&c, commit, 2, 64, 0), LH_OK);
    sys_use(NULL);
    assert_false(opens || reads);
    assert_int_equal(checkpoint_copy_commit(commit, c.text, c.text_bytes), LH_OK);
    assert_int_equal(checkpoint_open_latest(c.to, &found), LH_OK);
    small_check(found, 3);
    checkpoint_close(found);
    copied_close(&c);
}

/* One byte of each file in turn, its header and length included: whoever has written that file finds it, and
 * nobody else looks at it. */
static void what_came_damaged_is_found_before_it_is_committed(void **state)
{
    enum { SENDERS = 2 };
    scratch_t *s = *state;
    copied_t c;
    copied_open(&c, s->folder);
    commit_t *commit = copied_stage(&c);
    assert_int_equal(copied_move(&c, commit, SENDERS, 64, 0), LH_OK);
    for (uint32_t file = 0; file < c.manifest->file_count; file++)
        for (uint64_t at = 0; at < c.manifest->files[file].bytes; at += 16) {
            char path[256];
            uint8_t byte, other;
            (void)snprintf(path, sizeof(path), "%s/%s", commit_staging(commit),
                           c.manifest->files[file].name);
            const int fd = open(path, O_RDWR);
            assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
            other = byte ^ 1;
            assert_int_equal(pwrite(fd, &other, 1, (off_t)at), 1);
            for (uint32_t i = 0; i < SENDERS; i++) {
                checkpoint_copy_t in;
                checkpoint_copy_begin(&in, c.manifest, commit_staging(commit), i, SENDERS, true);
                const lh_status_t status = checkpoint_copy_verify(in.folder, &in, 1, c.text,
                                                                  c.text_bytes);
                assert_int_equal(status == LH_OK, file % SENDERS != i);
                if (status != LH_OK) assert_true(checkpoint_damaged(status, errno));
            }
            assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
            assert_int_equal(close(fd), 0);
        }
    assert_int_equal(checkpoint_copy_commit(commit, c.text, c.text_bytes), LH_OK);
    copied_close(&c);
}

static void another_manifest_is_refused(void **state)
{
    scratch_t *s = *state;
    copied_t c;
    copied_open(&c, s->folder);
    commit_t *commit = copied_stage(&c);
    assert_int_equal(copied_move(&c, commit, 1, 128, 0), LH_OK);
    c.text[c.text_bytes / 2] ^= 1;
    assert_int_not_equal(checkpoint_copy_commit(commit, c.text, c.text_bytes), LH_OK);
    copied_close(&c);
}

static void a_step_that_is_there_is_not_overwritten(void **state)
{
    scratch_t *s = *state;
    copied_t c;
    copied_open(&c, s->folder);
    assert_int_equal(small_save(c.to, 3, 0), LH_OK);
    commit_t *commit = copied_stage(&c);
    assert_int_equal(copied_move(&c, commit, 1, 128, 0), LH_OK);
    assert_int_equal(checkpoint_copy_commit(commit, c.text, c.text_bytes), LH_IO);
    assert_int_equal(checkpoint_clean(c.to), LH_OK);
    copied_close(&c);
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        FACT(every_cut_gives_the_same_files),
        FACT(what_is_short_is_never_committed),
        FACT(what_a_disk_fails_to_give_once_is_read_again),
        FACT(what_came_damaged_is_found_before_it_is_committed),
        FACT(another_manifest_is_refused),
        FACT(a_step_that_is_there_is_not_overwritten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
