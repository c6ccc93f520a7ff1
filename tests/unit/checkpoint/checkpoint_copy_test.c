/* checkpoint_copy_test.c - a checkpoint goes to a folder that does not see the first one: byte for byte,
 * whatever the pieces; what is short or changed in length is never committed. */
#include <unit/checkpoint/small_state.h>

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
        FACT(another_manifest_is_refused),
        FACT(a_step_that_is_there_is_not_overwritten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
