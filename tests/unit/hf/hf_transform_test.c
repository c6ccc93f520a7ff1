/* hf_transform_test.c - a parameter that is taken out of a tensor in pieces is the one that its
 * function takes out of the whole, and back. */
#include <unit/base/scratch_files.h>
#include <unit/plugin/host_kit.h>

#include <base/sys.h>
#include <hf/hf_transform.h>

enum { MOST = 256 };

/* Parameter and tensor of a row; one part of the tensor. */
static const struct {
    const char *import, *export;
    uint32_t moves;
    uint64_t own[3], tensor[3];
} rows[] = {
    {NULL, NULL, HF_ROWS, {6, 5}, {6, 5}},
    {"transposed(source)", "transposed(source)", HF_COLUMNS, {6, 5}, {5, 6}},
    {"columns_in(source, part=1, parts=3)",
     "columns_out(source, part=1, parts=3)",
     HF_COLUMNS,
     {4, 5},
     {5, 12}},
    {"rows_in(source, part=2, parts=3)",
     "rows_out(source, part=2, parts=3)",
     HF_ROWS,
     {4, 5},
     {12, 5}},
    {"rows_in(source, part=1, parts=2)", "rows_out(source, part=1, parts=2)", HF_ROWS, {7}, {14}},
    {"rows_from(source, first=3)", "rows_to(source, first=3)", HF_ROWS, {4, 5}, {9, 5}},
    {"scaled(source, factor=4)", "scaled(source, factor=0.25)", HF_EACH, {4, 5}, {4, 5}},
    {"plus(source, term=8)", "plus(source, term=-8)", HF_EACH, {20}, {20}},
    {"split_qkv(source, heads=4, kv_heads=2, part=0)",
     "join_qkv(source, heads=4, kv_heads=2, part=0)",
     HF_ROWS,
     {8, 3},
     {16, 3}},
    {"split_qkv(source, heads=4, kv_heads=2, part=2)",
     "join_qkv(source, heads=4, kv_heads=2, part=2)",
     HF_ROWS,
     {4, 3},
     {16, 3}},
    /* Stacks of experts. */
    {"rows_in(source, part=1, parts=2)",
     "rows_out(source, part=1, parts=2)",
     HF_ROWS,
     {3, 4, 5},
     {3, 8, 5}},
    {"columns_in(source, part=1, parts=2)",
     "columns_out(source, part=1, parts=2)",
     HF_COLUMNS,
     {3, 4, 5},
     {3, 5, 8}},
    {"transposed(source)", "transposed(source)", HF_COLUMNS, {3, 4, 5}, {3, 5, 4}},
    {"scaled(source, factor=4)", "scaled(source, factor=0.25)", HF_EACH, {3, 4, 5}, {3, 4, 5}},
};

enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

typedef struct one {
    lh_param_t row;
    parameter_t item;
    parameters_t parameters;
    hf_user_t user;
    hf_tensor_t tensor;
    hf_transform_t how;
} one_t;

static uint32_t rank_of(const uint64_t shape[3], uint64_t out[LH_MAX_RANK], uint64_t *elements)
{
    uint32_t rank = 0;
    *elements = 1;
    for (; rank < 3 && shape[rank] != 0; rank++) {
        out[rank] = shape[rank];
        *elements *= shape[rank];
    }
    return rank;
}

static void make(one_t *o, const char *import, const char *export, const uint64_t own[3],
                 const uint64_t tensor[3])
{
    *o = (one_t){.row = {.name = "w", .hf_import = import, .hf_export = export}};
    o->item = (parameter_t){.name = (char *)"w", .row = &o->row};
    o->item.rank = rank_of(own, o->item.shape, &o->item.elements);
    o->parameters = (parameters_t){.items = &o->item, .count = 1};
    o->user = (hf_user_t){(char *)"t", 0, HF_NO_EXPERT};
    o->tensor = (hf_tensor_t){.name = "t", .users = &o->user, .user_count = 1};
    o->tensor.rank = rank_of(tensor, o->tensor.shape, &o->tensor.elements);
    o->how = (hf_transform_t){.parameters = &o->parameters, .host = host};
    assert_in_range(o->tensor.elements, 1, MOST);
}

/* In steps of some elements, by runs and out of the whole. */
static void check_pieces(const one_t *o, const hf_lines_t *l, const float *tensor, const float *own,
                         uint64_t step)
{
    const uint64_t all = o->item.elements;
    uint64_t n, place;
    for (uint64_t at = 0; at < all; at += step) {
        const uint64_t count = all - at < step ? all - at : step;
        float gathered[MOST], back[MOST];
        uint16_t narrow[MOST], piece[MOST];
        hf_lines_gather(l, at, count, sizeof(float), tensor, gathered);
        assert_memory_equal(gathered, own + at, count * sizeof(float));
        for (uint64_t i = 0; i < o->tensor.elements; i++)
            narrow[i] = (uint16_t)tensor[i];
        hf_lines_gather(l, at, count, sizeof(uint16_t), narrow, piece);
        for (uint64_t i = 0; i < count; i++)
            assert_int_equal(piece[i], (uint16_t)own[at + i]);

        memset(back, 0, sizeof(back));
        hf_lines_scatter(l, at, count, sizeof(float), own + at, back);
        hf_lines_gather(l, at, count, sizeof(float), back, gathered);
        assert_memory_equal(gathered, own + at, count * sizeof(float));
        for (uint64_t i = 0; i < o->tensor.elements; i++)
            assert_true(back[i] == 0 || back[i] == tensor[i]);

        for (uint64_t from = at; l->moves != HF_COLUMNS && from < at + count; from += n) {
            n = hf_lines_run(l, from, at + count, &place);
            assert_in_range(n, 1, at + count - from);
            assert_memory_equal(tensor + place, own + from, n * sizeof(float));
        }
    }
}

static void pieces_are_of_what_the_function_makes(void **state)
{
    (void)state;
    for (int exports = 0; exports < 2; exports++)
        for (size_t i = 0; i < ROWS; i++) {
            one_t o;
            hf_lines_t l;
            float tensor[MOST] = {0}, own[MOST];
            make(&o, rows[i].import, rows[i].export, rows[i].own, rows[i].tensor);
            for (uint64_t k = 0; k < o.tensor.elements; k++)
                tensor[k] = (float)(k + 1);
            assert_int_equal(hf_transform_run(&o.how, &o.tensor, &o.user, tensor, own), LH_OK);
            o.how.exports = exports != 0;
            assert_int_equal(hf_lines_new(&o.how, &o.tensor, &o.user, &l), LH_OK);
            assert_int_equal(l.moves, rows[i].moves);
            if (l.moves == HF_EACH) {
                float each[MOST];
                o.how.exports = false;
                memcpy(each, tensor, sizeof(each));
                assert_int_equal(hf_transform_each(&o.how, &o.user, each, o.item.elements), LH_OK);
                assert_memory_equal(each, own, o.item.elements * sizeof(float));
                memcpy(own, tensor, sizeof(own)); /* each stays in its place */
            }
            for (uint64_t step = 1; step <= o.item.elements; step += 3)
                check_pieces(&o, &l, tensor, own, step);
            hf_lines_free(&l);
        }
}

/* A mistake of the text is told at once; one of shapes by the function itself, over the whole. */
static void what_does_not_fit_is_told_by_the_function(void **state)
{
    (void)state;
    one_t o;
    hf_lines_t l;
    float tensor[MOST] = {0}, own[MOST] = {0};
    make(&o, "turned(source)", "turned(source)", rows[0].own, rows[0].tensor);
    assert_int_equal(hf_lines_new(&o.how, &o.tensor, &o.user, &l), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "w: the core has no function 'turned'"));

    static const uint64_t wide[3] = {6, 6};
    make(&o, "rows_in(source, part=0, parts=1)", "rows_out(source, part=0, parts=1)", rows[0].own,
         wide);
    assert_int_equal(hf_lines_new(&o.how, &o.tensor, &o.user, &l), LH_OK);
    assert_int_equal(l.moves, HF_WHOLE);
    hf_lines_free(&l);
    assert_int_equal(hf_transform_run(&o.how, &o.tensor, &o.user, tensor, own), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "tensor t [6, 6], parameter w [6, 5]: "));
    assert_non_null(strstr(fail_reason(), "rows_in: source [6, 6] does not fit out [6, 5]"));

    /* More matrices in one than in the other. */
    static const uint64_t two[3] = {2, 4, 5}, four[3] = {4, 2, 5};
    make(&o, "rows_in(source, part=0, parts=1)", "rows_out(source, part=0, parts=1)", two, four);
    assert_int_equal(hf_transform_run(&o.how, &o.tensor, &o.user, tensor, own), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "tensor t [4, 2, 5], parameter w [2, 4, 5]: "));
    assert_non_null(strstr(
        fail_reason(), "source is [4, 2, 5] of F32, F32 of one or two dimensions was expected"));
}

/* Whether this process maps a file that once was in the folder and has no name any more. */
static bool maps_nameless(const scratch_t *s)
{
    char line[1024];
    bool found = false;
    FILE *f = fopen("/proc/self/maps", "re");
    assert_non_null(f);
    while (!found && fgets(line, sizeof(line), f) != NULL)
        found = strstr(line, s->folder) != NULL && strstr(line, "(deleted)") != NULL;
    assert_int_equal(fclose(f), 0);
    return found;
}

static int count_names(void *context, const char *name)
{
    (void)name;
    ++*(uint32_t *)context;
    return 0;
}

static uint32_t names_in(const scratch_t *s)
{
    uint32_t count = 0;
    assert_int_equal(sys()->list(s->folder, count_names, &count), 0);
    return count;
}

/* Elements of what lies in memory, and of what lies on the disk. */
enum { SMALL = 1000, LARGE = (2 << 20) + 1 };

static void what_is_wanted_whole_lies_on_the_disk(void **state)
{
    (void)state;
    void *own = NULL;
    float *small, *large;
    assert_int_equal(scratch_setup(&own), 0);
    const scratch_t *s = own;
    const hf_transform_t how = {.folder = s->folder};

    assert_int_equal(hf_whole_new(&how, SMALL, &small), LH_OK);
    assert_false(maps_nameless(s));
    small[SMALL - 1] = 1;
    assert_int_equal(hf_whole_new(&how, LARGE, &large), LH_OK);
    assert_true(maps_nameless(s));
    assert_int_equal(names_in(s), 0);
    assert_true(large[0] == 0 && large[LARGE - 1] == 0);
    large[0] = large[LARGE - 1] = 2;
    assert_true(large[0] == 2 && large[LARGE - 1] == 2);
    hf_whole_free(small, SMALL);
    hf_whole_free(large, LARGE);
    assert_false(maps_nameless(s));
    hf_whole_free(NULL, LARGE);
    assert_int_equal(scratch_teardown(&own), 0);
}

static int has_no_room(int fd, off_t length)
{
    (void)fd, (void)length;
    errno = ENOSPC;
    return -1;
}

/* Before anything is written into the mapping: that would be a signal. */
static void a_full_disk_is_told(void **state)
{
    (void)state;
    void *own = NULL;
    float *values;
    sys_t full = sys_real;
    full.fallocate = has_no_room;
    assert_int_equal(scratch_setup(&own), 0);
    const scratch_t *s = own;
    const hf_transform_t how = {.folder = s->folder};
    sys_use(&full);
    const lh_status_t status = hf_whole_new(&how, LARGE, &values);
    sys_use(NULL);
    assert_int_equal(status, LH_IO);
    assert_non_null(strstr(fail_reason(), ": cannot reserve 8388612 bytes: "));
    assert_int_equal(names_in(s), 0);
    assert_int_equal(scratch_teardown(&own), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_of_what_the_function_makes),
        cmocka_unit_test(what_does_not_fit_is_told_by_the_function),
        cmocka_unit_test(what_is_wanted_whole_lies_on_the_disk),
        cmocka_unit_test(a_full_disk_is_told),
    };
    return cmocka_run_group_tests(tests, open_host, close_host);
}
