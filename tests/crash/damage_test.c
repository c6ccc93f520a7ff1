/* damage_test.c - a checkpoint that was damaged after it was saved is never loaded: bits, lengths,
 * files that are gone, swapped or no files at all; the one before is taken, and a sentence says
 * why. */
#include <crash/four_ranks.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <unit/checkpoint/small_state.h>

#include <base/log.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/manifest.h>
#include <torture.h>

#define STEP_1 FOUR_FOLDER "/step-000000000001"
#define STEP_2 FOUR_FOLDER "/step-000000000002"

enum { FILES = 5, CI_FLIPS = 10000, TORTURE_FLIPS = 1000000 };

static const char *const file_names[FILES] = {
    "manifest.json",
    "shard-00000-00000.safetensors",
    "shard-00001-00001.safetensors",
    "shard-00002-00002.safetensors",
    "shard-00003-00003.safetensors",
};

static four_ranks_t four;
static uint64_t seed = 20261121, flips = CI_FLIPS;

static mem_node_t *node_at(mem_fs_t *fs, const char *folder, const char *name)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    const uint32_t inode = mem_tree_find(&fs->live, path);
    if (inode == 0) FAIL_TEST("%s is not there\n", path);
    return &fs->live.nodes[inode];
}

static void expect_step(int64_t step, const char *what, uint64_t at)
{
    const int64_t found = four_found(&four);
    if (found != step)
        FAIL_TEST("%s, %llu: step %d was found, %d was expected\n", what, (unsigned long long)at,
                  (int)found, (int)step);
}

/* Any bit of any file of the newest checkpoint, each as likely. */
static void every_flipped_bit_is_found(void **state)
{
    (void)state;
    mem_fs_t *fs = four_disk(2, 2);
    mem_node_t *nodes[FILES];
    const uint64_t begin = seed;
    uint64_t bytes = 0;
    for (int i = 0; i < FILES; i++) {
        nodes[i] = node_at(fs, STEP_2, file_names[i]);
        bytes += nodes[i]->size;
    }
    for (uint64_t n = 0; n < flips; n++) {
        const uint64_t bit = crash_random(&seed) % (bytes * 8);
        uint64_t at = bit / 8;
        int file = 0;
        while (at >= nodes[file]->size)
            at -= nodes[file++]->size;
        nodes[file]->data[at] ^= (uint8_t)(1u << bit % 8);
        expect_step(1, file_names[file], at);
        nodes[file]->data[at] ^= (uint8_t)(1u << bit % 8);
    }
    expect_step(2, "mended", 0);
    mem_node_t *pointer = node_at(fs, FOUR_FOLDER, "latest");
    for (uint64_t bit = 0; bit < pointer->size * 8; bit++) { /* a hint, and no more */
        pointer->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        expect_step(2, "latest", bit);
        pointer->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    print_message("%llu flipped bits of %llu found, seed %llu\n", (unsigned long long)flips,
                  (unsigned long long)flips, (unsigned long long)begin);
    mem_fs_free(fs);
}

static void every_other_length_is_found(void **state)
{
    (void)state;
    mem_fs_t *fs = four_disk(2, 2);
    for (int i = 0; i < FILES; i++) {
        mem_node_t *n = node_at(fs, STEP_2, file_names[i]);
        const uint64_t whole = n->size;
        for (n->size = 0; n->size < whole; n->size++)
            expect_step(1, file_names[i], n->size);
        expect_step(2, file_names[i], n->size);
        if (n->capacity > whole) {
            n->size = whole + 1;
            expect_step(1, file_names[i], n->size);
        }
        n->size = whole;
    }
    mem_fs_free(fs);
}

static void files_that_are_gone_or_swapped_are_found(void **state)
{
    (void)state;
    mem_fs_t *fs = four_disk(2, 2);
    char path[128], other[128];
    for (int i = 0; i < FILES; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", STEP_2, file_names[i]);
        (void)snprintf(other, sizeof(other), "%s/away", STEP_2);
        assert_int_equal(sys()->rename(path, other), 0);
        expect_step(1, file_names[i], 0);
        assert_int_equal(sys()->rename(other, path), 0);
        expect_step(2, file_names[i], 0);

        /* The same file of the step before: of the same size, in itself whole. */
        mem_node_t *mine = node_at(fs, STEP_2, file_names[i]),
                   *older = node_at(fs, STEP_1, file_names[i]), kept = *mine;
        mine->data = older->data;
        mine->size = older->size;
        expect_step(1, file_names[i], 1);
        *mine = kept;
        for (int k = 0; k < i; k++) {
            mem_node_t *second = node_at(fs, STEP_2, file_names[k]), swapped = *second;
            *second = *mine;
            *mine = swapped;
            expect_step(1, file_names[i], 2);
            *mine = *second;
            *second = swapped;
        }
    }
    expect_step(2, "mended", 0);
    mem_fs_free(fs);
}

/* A whole checkpoint under another step's name. */
static void a_folder_that_was_renamed_is_found(void **state)
{
    (void)state;
    mem_fs_t *fs = four_disk(2, 2);
    assert_int_equal(sys()->rename(STEP_1, FOUR_FOLDER "/step-000000000009"), 0);
    expect_step(2, "renamed", 9);
    mem_fs_free(fs);
}

static void two_damaged_ones_leave_none(void **state)
{
    (void)state;
    mem_fs_t *fs = four_disk(2, 2);
    for (int n = 0; n < 100; n++) {
        mem_node_t *a = node_at(fs, STEP_1, file_names[crash_random(&seed) % FILES]);
        mem_node_t *b = node_at(fs, STEP_2, file_names[crash_random(&seed) % FILES]);
        const uint64_t i = crash_random(&seed) % a->size, k = crash_random(&seed) % b->size;
        a->data[i] ^= 1;
        b->data[k] ^= 1;
        checkpoint_t *c = NULL;
        assert_int_equal(checkpoint_open_latest(FOUR_FOLDER, &c), LH_CORRUPT);
        assert_string_equal(fail_reason(), FOUR_FOLDER ": none of its 2 checkpoints is whole");
        a->data[i] ^= 1;
        b->data[k] ^= 1;
    }
    mem_fs_free(fs);
}

/* A manifest with a good seal that leads out of its folder. */
static void a_manifest_that_names_files_elsewhere_is_refused(void **state)
{
    static const char *const elsewhere[] = {
        "../step-000000000001/shard-00000-00000.safetensors",
        STEP_1 "/shard-00000-00000.safetensors",
        "./shard-00000-00000.safetensors",
        "..",
        ".",
        "",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(elsewhere) / sizeof(elsewhere[0]); i++) {
        mem_fs_t *fs = four_disk(2, 2);
        manifest_t *m;
        text_t text = {0};
        assert_int_equal(manifest_read(STEP_2 "/manifest.json", &m), LH_OK);
        mem_free(m->files[0].name);
        m->files[0].name = mem_text(elsewhere[i]);
        assert_int_equal(manifest_text(m, &text), LH_OK);
        assert_int_equal(file_replace(STEP_2 "/manifest.json", text.data, text.length), LH_OK);
        expect_step(1, elsewhere[i], i);
        assert_int_equal(checkpoint_verify(STEP_2), LH_INVALID);
        assert_non_null(strstr(fail_reason(), "a plain name was expected"));
        text_free(&text);
        manifest_free(m);
        mem_fs_free(fs);
    }
}

/* On a real file system: what is no regular file is neither waited for nor followed. */
static void no_file_is_taken_for_one(void **state)
{
    scratch_t *s = *state;
    static const struct {
        const char *what, *sentence;
    } rows[] = {
        {"fifo", "not a regular file"},
        {"folder", "not a regular file"},
        {"link", "a symbolic link, a regular file was expected"},
        {"dangling", "a symbolic link, a regular file was expected"},
    };
    sys_use(NULL);
    for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++)
        for (int which = 0; which < 2; which++) {
            char path[256], good[256], folder[128];
            assert_int_equal(folder_remove(scratch_path(s, "c")), LH_OK);
            (void)snprintf(folder, sizeof(folder), "%.100s/c", s->folder);
            for (uint64_t step = 1; step <= 2; step++)
                assert_int_equal(small_save(folder, step, 0), LH_OK);
            (void)snprintf(path, sizeof(path), "%s/step-000000000002/%s", folder,
                           which == 0 ? "manifest.json" : "shard-00000-00001.safetensors");
            (void)snprintf(good, sizeof(good), "%.100s/good", s->folder);
            assert_int_equal(rename(path, good), 0);
            if (row == 0)
                assert_int_equal(mkfifo(path, 0600), 0);
            else if (row == 1)
                assert_int_equal(mkdir(path, 0700), 0);
            else
                assert_int_equal(symlink(row == 2 ? good : "nothing", path), 0);
            assert_int_equal(small_latest(folder), 1);
            (void)snprintf(path, sizeof(path), "%s/step-000000000002", folder);
            assert_int_not_equal(checkpoint_verify(path), LH_OK);
            if (strstr(fail_reason(), rows[row].sentence) == NULL)
                FAIL_TEST("%s: %s\n", rows[row].what, fail_reason());
            assert_int_equal(unlink(good), 0);
        }
}

/* Which one and why, and the folder's new name. */
static void what_is_skipped_is_said(void **state)
{
    scratch_t *s = *state;
    sys_use(NULL);
    for (uint64_t step = 1; step <= 2; step++)
        assert_int_equal(small_save(s->folder, step, 0), LH_OK);
    const char *shard = scratch_path(s, "step-000000000002/shard-00000-00000.safetensors");
    assert_int_equal(truncate(shard, 100), 0);

    FILE *said = tmpfile();
    char text[1024] = "";
    assert_non_null(said);
    log_threshold(LH_LOG_WARN);
    log_also(fileno(said), "what was said");
    checkpoint_t *c = NULL;
    assert_int_equal(checkpoint_open_latest(s->folder, &c), LH_OK);
    log_also(-1, "");
    log_threshold(LH_LOG_ERROR + 1);
    assert_int_equal(c->manifest->meta.step, 1);
    checkpoint_close(c);
    checkpoint_make_way(s->folder, 1, false);
    assert_true(pread(fileno(said), text, sizeof(text) - 1, 0) > 0);
    assert_non_null(strstr(text, "step-000000000002 is skipped: "));
    assert_non_null(strstr(text, "shard-00000-00000.safetensors: "));
    assert_true(file_exists(scratch_path(s, "damaged-step-000000000002/manifest.json")));
    (void)fclose(said);
}

static int quiet(void **state)
{
    (void)state;
    const char *wanted = getenv("LONGHAUL_SEED");
    if (torture_wanted()) flips = TORTURE_FLIPS;
    if (wanted != NULL) seed = strtoull(wanted, NULL, 10);
    log_threshold(LH_LOG_ERROR + 1);
    return 0;
}

static int restore(void **state)
{
    (void)state;
    sys_use(NULL);
    return 0;
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_flipped_bit_is_found),
        cmocka_unit_test(every_other_length_is_found),
        cmocka_unit_test(files_that_are_gone_or_swapped_are_found),
        cmocka_unit_test(a_folder_that_was_renamed_is_found),
        cmocka_unit_test(two_damaged_ones_leave_none),
        cmocka_unit_test(a_manifest_that_names_files_elsewhere_is_refused),
        FACT(no_file_is_taken_for_one),
        FACT(what_is_skipped_is_said),
    };
    return cmocka_run_group_tests(tests, quiet, restore);
}
