/* checkpoint_test.c - what was committed is found, read into other layouts, and checked to the bit.
 */
#include <unit/base/comma_locale.h>
#include <unit/checkpoint/small_state.h>

#include <sys/stat.h>

#include <math.h>

#include <base/log.h>
#include <base/sys.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/commit.h>
#include <checkpoint/manifest.h>

static void what_was_saved_is_read_back(void **state)
{
    scratch_t *s = *state;
    checkpoint_t *c;
    assert_int_equal(small_save(s->folder, 100, 3), LH_OK);
    assert_int_equal(checkpoint_open(scratch_path(s, "step-000000000100"), &c), LH_OK);
    small_check(c, 100);
    assert_true(c->manifest->meta.seed == UINT64_MAX);
    assert_int_equal(checkpoint_find(c, "blocks.0.wq")->source, LH_DTYPE_BF16);
    assert_int_equal(checkpoint_find(c, "norm")->source, LH_DTYPE_NONE);
    assert_null(checkpoint_find(c, "blocks.0.wk"));
    assert_true(c->manifest->file_count > 1); /* 64 bytes a shard */
    checkpoint_close(c);
}

static void meta_survives_with_every_character(void **state)
{
    scratch_t *s = *state;
    const checkpoint_plugin_t plugin = {"model", "llama", "0.1.0", "abc", 65536};
    const checkpoint_scalar_t scalars[] = {{"loss_scale", 0x1p-149}, {"x", INFINITY}};
    const checkpoint_meta_t meta = {.run = "r\"\\\n\x01",
                                    .config = "c",
                                    .model = "a = 1\nb = 2\n",
                                    .variants = "v",
                                    .device = "d",
                                    .step = 7,
                                    .seed = 9,
                                    .cursor = 11,
                                    .tokens = 13,
                                    .plugins = &plugin,
                                    .plugin_count = 1,
                                    .scalars = scalars,
                                    .scalar_count = 2};
    commit_t *commit;
    const float zero = 0;
    const void *data = &zero;
    const checkpoint_tensor_t tensor = {.name = "t", .dtype = LH_DTYPE_F32, .rank = 0};
    char self[SHA256_TEXT];
    assert_int_equal(commit_begin(s->folder, &meta, "parent", &commit), LH_OK);
    assert_int_equal(commit_write_all(commit, 0, &tensor, &data, 1, 0), LH_OK);
    assert_int_equal(commit_finish(commit, self), LH_OK);

    checkpoint_t *c;
    comma_locale = true; /* of a plugin; savers have none */
    const lh_status_t status = checkpoint_open(scratch_path(s, "step-000000000007"), &c);
    comma_locale = false;
    assert_int_equal(status, LH_OK);
    const checkpoint_meta_t *m = &c->manifest->meta;
    assert_string_equal(c->manifest->self, self);
    assert_string_equal(c->manifest->parent, "parent");
    assert_string_equal(m->run, meta.run);
    assert_string_equal(m->model, meta.model);
    assert_string_equal(m->plugins[0].version, "0.1.0");
    assert_int_equal(m->plugins[0].abi, 65536);
    assert_int_equal(m->cursor, 11);
    assert_int_equal(m->tokens, 13);
    assert_int_equal(m->scalar_count, 2);
    assert_true(m->scalars[0].value == 0x1p-149);
    assert_true(m->scalars[1].value == INFINITY);
    checkpoint_close(c);
}

/* Four ranks save rows, columns and ranges; readers want other cuts. */
static void parts_of_four_ranks_are_read_into_any_cut(void **state)
{
    scratch_t *s = *state;
    enum { ROWS = 6, COLUMNS = 10 };
    const uint64_t shape[LH_MAX_RANK] = {ROWS, COLUMNS};
    static const tensor_part_t cuts[] = {
        {.at = {0, 0}, .shape = {6, 4}, .first = 0, .count = 11},
        {.at = {0, 0}, .shape = {6, 4}, .first = 11, .count = 13},
        {.at = {0, 4}, .shape = {2, 6}, .first = 0, .count = 12},
        {.at = {2, 4}, .shape = {4, 6}, .first = 0, .count = 24},
    };
    checkpoint_tensor_t tensors[4];
    float values[4][ROWS * COLUMNS], whole[ROWS * COLUMNS];
    const tensor_part_t all = tensor_part_whole(2, shape);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        whole[i] = (float)i * 0.5f;
    const checkpoint_meta_t meta = {.step = 1};
    commit_t *commit;
    assert_int_equal(commit_begin(s->folder, &meta, "", &commit), LH_OK);
    for (uint32_t r = 0; r < 4; r++) {
        tensors[r] = (checkpoint_tensor_t){.name = "w",
                                           .dtype = LH_DTYPE_F32,
                                           .rank = 2,
                                           .shape = {ROWS, COLUMNS},
                                           .part = cuts[r]};
        (void)tensor_part_copy(2, shape, &all, whole, &cuts[r], values[r]);
        const void *data = values[r];
        assert_int_equal(commit_write_all(commit, r, &tensors[r], &data, 1, 0), LH_OK);
    }
    assert_int_equal(commit_finish(commit, NULL), LH_OK);

    static const tensor_part_t wanted[] = {
        {.at = {0, 0}, .shape = {6, 10}, .first = 0, .count = 60},
        {.at = {0, 0}, .shape = {6, 10}, .first = 17, .count = 31},
        {.at = {1, 3}, .shape = {4, 5}, .first = 2, .count = 17},
        {.at = {0, 0}, .shape = {6, 4}, .first = 11, .count = 13},
    };
    checkpoint_t *c;
    assert_int_equal(checkpoint_open(scratch_path(s, "step-000000000001"), &c), LH_OK);
    const manifest_tensor_t *t = checkpoint_find(c, "w");
    assert_int_equal(t->part_count, 4);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        float got[ROWS * COLUMNS], expected[ROWS * COLUMNS];
        (void)tensor_part_copy(2, shape, &all, whole, &wanted[i], expected);
        assert_int_equal(checkpoint_read(c, t, &wanted[i], got), LH_OK);
        assert_memory_equal(got, expected, wanted[i].count * sizeof(float));
    }
    checkpoint_close(c);
}

static void parts_that_overlap_or_leave_a_hole_are_refused(void **state)
{
    scratch_t *s = *state;
    const float values[8] = {0};
    const void *data[2] = {values, values};
    checkpoint_tensor_t tensors[2] = {
        {.name = "w",
         .dtype = LH_DTYPE_F32,
         .rank = 1,
         .shape = {8},
         .part = {.shape = {8}, .first = 0, .count = 4}},
        {.name = "w",
         .dtype = LH_DTYPE_F32,
         .rank = 1,
         .shape = {8},
         .part = {.shape = {8}, .first = 3, .count = 4}},
    };
    for (uint64_t step = 0; step < 2; step++) {
        const checkpoint_meta_t meta = {.step = step};
        commit_t *commit;
        checkpoint_t *c;
        char name[CHECKPOINT_NAME];
        tensors[1].part.first = step == 0 ? 3 : 5;
        tensors[1].part.count = step == 0 ? 4 : 3;
        assert_int_equal(commit_begin(s->folder, &meta, "", &commit), LH_OK);
        assert_int_equal(commit_write_all(commit, 0, tensors, data, 2, 0), LH_OK);
        assert_int_equal(commit_finish(commit, NULL), LH_OK);
        checkpoint_name(step, name);
        assert_int_equal(checkpoint_open(scratch_path(s, name), &c), LH_INVALID);
        assert_non_null(strstr(fail_reason(), step == 0
                                                  ? "tensor w: parts 0 and 1 overlap"
                                                  : "tensor w: its parts hold 7 elements of 8"));
    }
}

static int instance_file(void *context, const char *name)
{
    char(*names)[64] = context;
    for (int i = 0; i < 16; i++)
        if (names[i][0] == '\0') {
            (void)snprintf(names[i], sizeof(names[i]), "%s", name);
            return 0;
        }
    return -1;
}

/* One flipped bit anywhere in any file, and one byte cut off, are found. */
static void every_flipped_byte_is_found(void **state)
{
    scratch_t *s = *state;
    char names[16][64] = {{0}}, relative[128];
    assert_int_equal(small_save(s->folder, 1, 3), LH_OK);
    assert_int_equal(sys()->list(scratch_path(s, "step-000000000001"), instance_file, names), 0);
    uint32_t flips = 0, files = 0;
    for (; names[files][0] != '\0'; files++) {
        size_t length;
        (void)snprintf(relative, sizeof(relative), "step-000000000001/%.63s", names[files]);
        char *bytes = scratch_read(scratch_path(s, relative), &length);
        for (size_t i = 0; i < length; i++) {
            bytes[i] = (char)(bytes[i] ^ (1 << (i % 8)));
            scratch_write(s, relative, bytes, length);
            const lh_status_t status = checkpoint_verify(scratch_path(s, "step-000000000001"));
            if (status == LH_OK)
                print_error("%s byte %zu: %02x\n", names[files], i, bytes[i] & 255);
            assert_int_not_equal(status, LH_OK);
            bytes[i] = (char)(bytes[i] ^ (1 << (i % 8)));
            flips++;
        }
        scratch_write(s, relative, bytes, length - 1);
        assert_int_not_equal(checkpoint_verify(scratch_path(s, "step-000000000001")), LH_OK);
        scratch_write(s, relative, bytes, length);
        mem_free(bytes);
    }
    assert_int_equal(checkpoint_verify(scratch_path(s, "step-000000000001")), LH_OK);
    assert_true(files >= 3 && flips > 1000);
}

static void damage_is_skipped_and_the_older_one_is_taken(void **state)
{
    scratch_t *s = *state;
    assert_int_equal(small_latest(s->folder), -1);
    for (uint64_t step = 10; step <= 40; step += 10)
        assert_int_equal(small_save(s->folder, step, 0), LH_OK);
    assert_int_equal(small_latest(s->folder), 40);
    /* The pointer is a hint: gone, nonsense, or naming what is not there changes nothing. */
    scratch_text(s, "latest", "step-000000000090 0\n");
    assert_int_equal(small_latest(s->folder), 40);
    scratch_text(s, "latest", "../../etc\n");
    assert_int_equal(small_latest(s->folder), 40);
    (void)unlink(scratch_path(s, "latest"));
    assert_int_equal(small_latest(s->folder), 40);

    (void)unlink(scratch_path(s, "step-000000000040/" MANIFEST_NAME));
    assert_int_equal(small_latest(s->folder), 30);
    scratch_text(s, "step-000000000030/shard-00000-00000.safetensors", "x");
    assert_int_equal(small_latest(s->folder), 20);

    checkpoint_t *c;
    assert_int_equal(checkpoint_open_latest(s->folder, &c), LH_OK);
    small_check(c, 20);
    checkpoint_close(c);
    checkpoint_make_way(s->folder, 20, false);
    assert_true(file_exists(scratch_path(s, "damaged-step-000000000040")));
    assert_true(file_exists(scratch_path(s, "damaged-step-000000000030")));
    assert_int_equal(small_save(s->folder, 30, 0), LH_OK);
    assert_int_equal(small_latest(s->folder), 30);
}

static const char *pruned; /* a folder in which a run saves as soon as it is listed once */

static int list_before_a_save(const char *path, int (*each)(void *, const char *), void *context)
{
    const int result = sys_real.list(path, each, context);
    if (pruned == NULL) return result;
    const char *folder = pruned;
    pruned = NULL;
    assert_int_equal(small_save(folder, 30, 1), LH_OK);
    return result;
}

static void a_step_removed_since_it_was_listed_is_no_damage(void **state)
{
    scratch_t *s = *state;
    sys_t table = sys_real;
    checkpoint_t *c;
    assert_int_equal(small_save(s->folder, 10, 0), LH_OK);
    assert_int_equal(small_save(s->folder, 20, 0), LH_OK);
    pruned = s->folder;
    table.list = list_before_a_save;
    sys_use(&table);
    const lh_status_t status = checkpoint_open_latest(s->folder, &c);
    sys_use(NULL);
    assert_int_equal(status, LH_OK);
    small_check(c, 30);
    checkpoint_close(c);
}

static void only_damage_is_an_error_and_not_a_fresh_start(void **state)
{
    scratch_t *s = *state;
    checkpoint_t *c;
    assert_int_equal(small_save(s->folder, 5, 0), LH_OK);
    scratch_text(s, "step-000000000005/" MANIFEST_NAME, "{}");
    assert_int_equal(checkpoint_open_latest(s->folder, &c), LH_CORRUPT);
}

static void a_step_is_saved_once(void **state)
{
    scratch_t *s = *state;
    assert_int_equal(small_save(s->folder, 5, 0), LH_OK);
    assert_int_equal(small_save(s->folder, 5, 0), LH_INVALID);
    assert_string_equal(behind_folder(s, fail_reason()),
                        "step-000000000005 is there already: a step is saved once");
    assert_int_equal(small_latest(s->folder), 5);
}

static const char *unread; /* of paths with this in them nothing can be had */

static int open_others(const char *path, int flags, mode_t mode)
{
    if (unread == NULL || strstr(path, unread) == NULL) return sys_real.open(path, flags, mode);
    errno = EIO;
    return -1;
}

/* The best one is to be kept, and one that is not good counts as none of `keep`: its manifest alone tells. */
static void a_step_whose_manifest_cannot_be_read_is_not_removed(void **state)
{
    scratch_t *s = *state;
    const checkpoint_keep_t keep = {.newest = 1, .best = true};
    sys_t table = sys_real;
    for (uint64_t step = 1; step <= 4; step++)
        assert_int_equal(small_save(s->folder, step, 0), LH_OK);
    table.open = open_others;
    unread = "step-000000000002/" MANIFEST_NAME;
    sys_use(&table);
    log_threshold(LH_LOG_ERROR + 1);
    const lh_status_t status = checkpoint_prune(s->folder, 4, &keep);
    log_threshold(LH_LOG_ERROR);
    sys_use(NULL);
    unread = NULL;
    assert_int_equal(status, LH_OK);
    assert_true(file_exists(scratch_path(s, "step-000000000002")));
    assert_false(file_exists(scratch_path(s, "step-000000000003")));
    assert_int_equal(checkpoint_prune(s->folder, 4, &keep), LH_OK);
    assert_false(file_exists(scratch_path(s, "step-000000000002")));
    assert_int_equal(small_latest(s->folder), 4);
}

static void the_newest_are_kept_and_leftovers_swept(void **state)
{
    scratch_t *s = *state;
    for (uint64_t step = 1; step <= 5; step++)
        assert_int_equal(small_save(s->folder, step, 2), LH_OK);
    checkpoint_steps_t steps;
    assert_int_equal(checkpoint_steps(s->folder, &steps), LH_OK);
    assert_int_equal(steps.count, 2);
    assert_int_equal(steps.steps[0], 5);
    assert_int_equal(steps.steps[1], 4);
    mem_free(steps.steps);

    assert_int_equal(mkdir(scratch_path(s, ".tmp-step-000000000009-00"), 0700), 0);
    scratch_text(s, ".tmp-step-000000000009-00/x", "x");
    assert_int_equal(mkdir(scratch_path(s, ".del-step-000000000003"), 0700), 0);
    scratch_text(s, ".tmp-shared-0123456789abcdef", "");
    assert_int_equal(mkdir(scratch_path(s, "precious"), 0700), 0);
    scratch_text(s, "precious/file", "x");
    assert_int_equal(symlink("precious", scratch_path(s, ".del-step-000000000001")), 0);
    assert_int_equal(symlink("precious", scratch_path(s, ".tmp-step-000000000001-00")), 0);
    assert_int_equal(mkdir(scratch_path(s, ".tmp-notes"), 0700), 0);
    scratch_text(s, ".tmp-notes/file", "x");
    scratch_text(s, ".del-notes", "x");
    assert_int_equal(checkpoint_clean(s->folder), LH_OK);
    assert_true(file_exists(scratch_path(s, ".tmp-notes/file")));
    assert_true(file_exists(scratch_path(s, ".del-notes")));
    assert_false(file_exists(scratch_path(s, ".tmp-step-000000000009-00")));
    assert_false(file_exists(scratch_path(s, ".tmp-shared-0123456789abcdef")));
    assert_false(file_exists(scratch_path(s, ".del-step-000000000003")));
    assert_false(file_exists(scratch_path(s, ".del-step-000000000001")));
    assert_false(file_exists(scratch_path(s, ".tmp-step-000000000001-00")));
    assert_true(file_exists(scratch_path(s, "precious/file")));
    assert_int_equal(small_latest(s->folder), 5);
}

/* A link to a folder of somebody, to a step that was moved, and to nothing. */
static void a_linked_step_is_read_and_never_removed(void **state)
{
    scratch_t *s = *state;
    struct stat st;
    char moved[512];
    assert_int_equal(small_save(s->folder, 2, 0), LH_OK);
    (void)snprintf(moved, sizeof(moved), "%s", scratch_path(s, "moved"));
    assert_int_equal(rename(scratch_path(s, "step-000000000002"), moved), 0);
    assert_int_equal(symlink("moved", scratch_path(s, "step-000000000002")), 0);
    assert_int_equal(small_latest(s->folder), 2);
    assert_int_equal(mkdir(scratch_path(s, "precious"), 0700), 0);
    scratch_text(s, "precious/file", "x");
    assert_int_equal(symlink("precious", scratch_path(s, "step-000000000003")), 0);
    assert_int_equal(symlink("nothing", scratch_path(s, "step-000000000004")), 0);
    assert_int_equal(small_save(s->folder, 1, 0), LH_OK);
    assert_int_equal(small_save(s->folder, 5, 2), LH_OK);
    assert_true(file_exists(scratch_path(s, "precious/file")));
    assert_true(file_exists(scratch_path(s, "moved/" MANIFEST_NAME)));
    assert_int_equal(lstat(scratch_path(s, "step-000000000003"), &st), 0);
    assert_int_equal(lstat(scratch_path(s, "step-000000000004"), &st), 0);
    assert_true(file_exists(scratch_path(s, "step-000000000001"))); /* links do not count */
    assert_int_equal(small_save(s->folder, 6, 2), LH_OK);
    assert_false(file_exists(scratch_path(s, "step-000000000001")));
    assert_true(file_exists(scratch_path(s, "step-000000000002/" MANIFEST_NAME)));
}

/* The folder's name is not enough to remove what others put there. */
static void only_what_was_saved_is_removed(void **state)
{
    scratch_t *s = *state;
    for (uint64_t step = 1; step <= 4; step++)
        assert_int_equal(small_save(s->folder, step, 0), LH_OK);
    scratch_text(s, "step-000000000001/NOTES.txt", "x");
    assert_int_equal(mkdir(scratch_path(s, "step-000000000002/mydir"), 0700), 0);
    scratch_text(s, "step-000000000002/mydir/f", "x");
    assert_int_equal(symlink("/", scratch_path(s, "step-000000000003/shard-00000-00009."
                                                  "safetensors")),
                     0);
    assert_int_equal(mkdir(scratch_path(s, "step-000000000005"), 0700), 0);
    scratch_text(s, "step-000000000005/mine", "x");
    scratch_text(s, "step-000000000006", "x");

    FILE *said = tmpfile();
    char text[2048] = "";
    assert_non_null(said);
    log_threshold(LH_LOG_WARN);
    log_also(fileno(said), "what was said");
    assert_int_equal(small_save(s->folder, 7, 2), LH_OK);
    assert_true(file_exists(scratch_path(s, "step-000000000004"))); /* the second of two */
    assert_int_equal(small_save(s->folder, 8, 1), LH_OK);
    log_also(-1, "");
    log_threshold(LH_LOG_ERROR);
    assert_false(file_exists(scratch_path(s, "step-000000000004")));
    assert_false(file_exists(scratch_path(s, "step-000000000007")));
    assert_true(file_exists(scratch_path(s, "step-000000000001/NOTES.txt")));
    assert_true(file_exists(scratch_path(s, "step-000000000002/mydir/f")));
    assert_true(file_exists(scratch_path(s, "step-000000000003/" MANIFEST_NAME)));
    assert_true(file_exists(scratch_path(s, "step-000000000005/mine")));
    assert_true(file_exists(scratch_path(s, "step-000000000006")));
    assert_true(pread(fileno(said), text, sizeof(text) - 1, 0) > 0);
    (void)fclose(said);
    assert_non_null(strstr(text, "step-000000000001 is not removed: it holds NOTES.txt, "));
    assert_non_null(strstr(text, "step-000000000002 is not removed: it holds mydir, "));
    assert_non_null(strstr(text, "step-000000000003 is not removed: it holds shard-00000-00009."));
    assert_non_null(strstr(text, "step-000000000005 is not removed: it holds no manifest.json"));
    assert_non_null(strstr(text, "step-000000000006 is not removed: it is not a folder"));
}

/* A step above those that are written was there but could not be read. */
static void what_was_just_saved_is_kept_below_a_later_step(void **state)
{
    scratch_t *s = *state;
    checkpoint_steps_t steps;
    assert_int_equal(small_save(s->folder, 9, 1), LH_OK);
    assert_int_equal(small_save(s->folder, 4, 1), LH_OK);
    assert_int_equal(small_save(s->folder, 5, 1), LH_OK);
    assert_int_equal(checkpoint_steps(s->folder, &steps), LH_OK);
    assert_int_equal(steps.count, 2);
    assert_int_equal(steps.steps[0], 9);
    assert_int_equal(steps.steps[1], 5);
    mem_free(steps.steps);
}

static void only_our_names_are_checkpoints(void **state)
{
    (void)state;
    static const char *const others[] = {
        "step-1",
        "step-0000000000001",
        "step-00000000000a",
        "step-000000000001.bak",
        "xstep-000000000001",
        "step-",
        "damaged-step-000000000001",
        "step-99999999999999999999",
    };
    uint64_t step;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_false(checkpoint_name_parse(others[i], &step));
    assert_true(checkpoint_name_parse("step-000000000123", &step));
    assert_int_equal(step, 123);
    assert_true(checkpoint_name_parse("step-1234567890123", &step));
    assert_true(step == UINT64_C(1234567890123));
}

static int quiet(void **state)
{
    (void)state;
    log_threshold(LH_LOG_ERROR);
    return 0;
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        FACT(what_was_saved_is_read_back),
        FACT(meta_survives_with_every_character),
        FACT(parts_of_four_ranks_are_read_into_any_cut),
        FACT(parts_that_overlap_or_leave_a_hole_are_refused),
        FACT(every_flipped_byte_is_found),
        FACT(damage_is_skipped_and_the_older_one_is_taken),
        FACT(a_step_removed_since_it_was_listed_is_no_damage),
        FACT(only_damage_is_an_error_and_not_a_fresh_start),
        FACT(a_step_is_saved_once),
        FACT(a_step_whose_manifest_cannot_be_read_is_not_removed),
        FACT(the_newest_are_kept_and_leftovers_swept),
        FACT(a_linked_step_is_read_and_never_removed),
        FACT(only_what_was_saved_is_removed),
        FACT(what_was_just_saved_is_kept_below_a_later_step),
        FACT(only_our_names_are_checkpoints),
    };
    return cmocka_run_group_tests(tests, quiet, NULL);
}
