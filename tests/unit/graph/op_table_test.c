/* op_table_test.c - the table of ops: the core's agree with the SDK's header, plugins' are checked.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <base/memory.h>
#include <base/status.h>
#include <graph/op_table.h>

#include <longhaul/draft/ops.h>

#include <cmocka.h> /* last: it has a fail() of its own */

static op_table_t *new_table(void)
{
    op_table_t *t;
    assert_int_equal(op_table_new(&t), LH_OK);
    return t;
}

static lh_status_t no_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                            uint32_t arg_count)
{
    (void)host, (void)attributes, (void)args, (void)arg_count;
    return LH_OK;
}

#define HEADER_ROW(name, text) {LH_OP_TEXT(text)},
static const lh_op_t header[] = {LH_OPS_BASE(HEADER_ROW) LH_OPS_MORE(HEADER_ROW)
                                     LH_OPS_RECORDED(HEADER_ROW) LH_OPS_VIEWS(HEADER_ROW)};
#undef HEADER_ROW

static void every_op_that_the_header_lists_has_a_row_with_its_text(void **state)
{
    (void)state;
    op_table_t *t = new_table();
    for (size_t i = 0; i < sizeof(header) / sizeof(header[0]); i++) {
        const op_t *op = op_table_find(t, header[i].name);
        if (op == NULL) fail_msg("no op %s", header[i].name);
        assert_string_equal(op->row.slots, header[i].slots);
        assert_string_equal(op->row.formula, header[i].formula);
    }
    op_table_free(t);
}

static void what_is_a_draft_can_not_be_recorded(void **state)
{
    (void)state;
#define NAME(name, slots, text) #name,
    static const char *const drafts[] = {LH_OPS_DRAFT(NAME)};
#undef NAME
    op_table_t *t = new_table();
    for (size_t i = 0; i < sizeof(drafts) / sizeof(drafts[0]); i++)
        if (op_table_find(t, drafts[i]) != NULL) fail_msg("op %s has a row", drafts[i]);
    op_table_free(t);
}

static void a_macro_of_text_makes_slots_and_a_line_of_shapes_each(void **state)
{
    (void)state;
    op_table_t *t = new_table();
    assert_string_equal(op_table_find(t, "matmul")->row.slots,
                        "a b bias? scale_a? scale_b? -> c+ aux? amax?");
    assert_string_equal(op_table_find(t, "send")->row.slots, "x ->");
    const op_t *over = op_table_find(t, "cross_entropy");
    assert_string_equal(over->row.slots, "logits labels weights -> loss+ glogits~logits");
    assert_string_equal(over->slot_name[4], "glogits");
    assert_true(over->over[4] == 1 && over->over[3] == 0 && over->adds[3] && !over->adds[4]);
    assert_string_equal(op_table_find(t, "recv")->row.slots, "-> y");
    assert_string_equal(op_table_find(t, "sum_rows")->row.shapes, "x: [t, w]\ny: [w]\n");
    op_table_free(t);
}

/* A line a slot, in slot order: "x: [t, w]\n". */
static void assert_shapes_are_of_slots(const op_t *op)
{
    const char *at = op->row.shapes;
    for (uint32_t s = 0; s < op->in_count + op->out_count; s++) {
        const size_t length = strlen(op->slot_name[s]);
        if (strncmp(at, op->slot_name[s], length) != 0 || strncmp(at + length, ": ", 2) != 0)
            fail_msg("op %s: '%s' is not about slot %s", op->row.name, at, op->slot_name[s]);
        at = strchr(at, '\n') + 1;
    }
    assert_string_equal(at, "");
}

static void every_op_of_the_core_says_all_that_help_prints(void **state)
{
    (void)state;
    op_table_t *t = new_table();
    for (uint32_t i = 0; i < op_table_count(t); i++) {
        const op_t *op = op_table_at(t, i);
        const lh_op_t *row = &op->row;
        if (row->help == NULL || row->shapes == NULL || row->formula == NULL ||
            row->backward == NULL || *row->help == '\0' || *row->formula == '\0')
            fail_msg("op %s lacks help, shapes, formula or backward", row->name);
        assert_shapes_are_of_slots(op);
        /* "none" alone where gradient() is not there, and only there. */
        if ((strncmp(row->backward, "none", 4) == 0) != (row->gradient == NULL))
            fail_msg("op %s: its gradient is said to be '%s'", row->name, row->backward);
        for (uint32_t k = 0; k < row->attribute_count; k++)
            assert_non_null(row->attributes[k].help);
        /* No plugin records a collective. */
        if ((row->attributes_struct != NULL) != (row->attribute_count > 0 && op->collective == 0))
            fail_msg("op %s: its attributes are said to be %s", row->name, row->attributes_struct);
    }
    op_table_free(t);
}

static void an_op_is_found_by_its_name_and_index(void **state)
{
    (void)state;
    op_table_t *t = new_table();
    for (uint32_t i = 0; i < op_table_count(t); i++) {
        assert_int_equal(op_table_at(t, i)->index, i);
        assert_ptr_equal(op_table_find(t, op_table_at(t, i)->row.name), op_table_at(t, i));
    }
    assert_null(op_table_find(t, "matmuls"));
    op_table_free(t);
}

static void slots_say_what_is_optional_added_and_aliased(void **state)
{
    (void)state;
    op_table_t *t = new_table();
    const op_t *op = op_table_find(t, "sgd"); /* g master m1? step -> master m1? w? */
    assert_int_equal(op->in_count, 4);
    assert_int_equal(op->out_count, 3);
    assert_string_equal(op->slot_name[2], "m1");
    assert_true(op->optional[2]);
    assert_false(op->optional[3]);
    assert_int_equal(op->alias[4], 2);
    assert_int_equal(op->alias[5], 3);
    assert_int_equal(op->alias[6], 0);
    op = op_table_find(t, "layer_norm_grad"); /* gy x w mean rstd -> gx gw+ gb?+ */
    assert_false(op->adds[5]);
    assert_true(op->adds[6]);
    assert_true(op->adds[7]);
    assert_true(op->optional[7]);
    assert_int_equal(op_slot(op, "gb"), 7);
    assert_int_equal(op_slot(op, "none"), OP_SLOTS);
    op_table_free(t);
}

static const lh_option_t text_attribute[] = {
    {.key = "word", .type = LH_OPT_STRING, .offset = 8},
};

static const struct {
    lh_op_t row;
    const char *sentence;
} refused[] = {
    {{.name = "swish", .slots = "x -> y", .shape = no_shape},
     "op swish: a plugin's name has a dot, the core's have none"},
    {{.name = "a.Swish", .slots = "x -> y", .shape = no_shape},
     "'a.Swish' is no op's name, expected at most 63 of a-z 0-9 _ ."},
    {{.name = "a.b", .slots = "x -> y"}, "op a.b lacks its shape()"},
    {{.name = "a.b", .slots = "x y", .shape = no_shape},
     "op a.b has slots 'x y', expected 'inputs -> outputs'"},
    {{.name = "a.b", .slots = "x -> y -> z", .shape = no_shape},
     "op a.b has two '->' in its slots"},
    {{.name = "a.b", .slots = "x x -> y", .shape = no_shape}, "op a.b has two slots 'x'"},
    {{.name = "a.b", .slots = "x+ -> y", .shape = no_shape},
     "op a.b: input 'x+' can't be added to"},
    {{.name = "a.b", .slots = "x -> y~z", .shape = no_shape},
     "op a.b: 'y~z' can't lie over an input of that name"},
    {{.name = "a.b", .slots = "x w~x -> y", .shape = no_shape},
     "op a.b: 'w~x' can't lie over an input of that name"},
    {{.name = "a.b", .slots = "x -> y~", .shape = no_shape},
     "op a.b: 'y~' can't lie over an input of that name"},
    {{.name = "a.b", .slots = "X -> y", .shape = no_shape},
     "op a.b: slot 'X' is not a lower-case name of at most 23 letters"},
    {{.name = "a.b", .slots = "a b c d e f g h i j k l m n o p q -> y", .shape = no_shape},
     "op a.b has more than 16 slots"},
    {{.name = "a.b",
      .slots = "x -> y",
      .shape = no_shape,
      .attributes = text_attribute,
      .attribute_size = sizeof(lh_option_t),
      .attribute_count = 1,
      .attributes_bytes = 16},
     "op a.b: attribute 'word' is text, expected a number"},
    {{.name = "a.b",
      .slots = "x -> y",
      .shape = no_shape,
      .attributes = text_attribute,
      .attribute_size = sizeof(lh_option_t),
      .attribute_count = 1,
      .attributes_bytes = 8},
     "op a.b: attribute 0 has no key or lies outside its struct"},
};

#define FUSES(text) "op a.b fuses '" text "': "
static const struct {
    const char *fuses, *sentence;
} unmatchable[] = {
    {"swish x -> y", FUSES("swish x -> y") "there is no op swish"},
    {"add x w -> s; copy t -> y", FUSES("add x w -> s; copy t -> y") "no call before gives t"},
    {"add x w -> y; copy y -> y",
     FUSES("add x w -> y; copy y -> y") "a call gives what is there already: y"},
    {"add x w -> x", FUSES("add x w -> x") "a call gives what is there already: x"},
    {"add x w w -> y", FUSES("add x w w -> y") "too many values for add"},
    {"add x w -> s; copy x -> y",
     FUSES("add x w -> s; copy x -> y") "no later call takes what is given by add"},
    {"copy x -> y", FUSES("copy x -> y") "nothing is its slot w"},
    {"add x w -> s", FUSES("add x w -> s") "nothing is its slot y"},
    {"add x w -> y |", FUSES("add x w -> y |") "there is no op"},
};

static void a_pattern_that_nothing_could_match_is_refused_with_its_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(unmatchable) / sizeof(unmatchable[0]); i++) {
        op_table_t *t = new_table();
        const lh_op_t row = {.name = "a.b",
                             .slots = "x w v? -> y z?",
                             .shape = no_shape,
                             .fuses = unmatchable[i].fuses};
        assert_int_equal(op_table_add(t, &row, sizeof(row), 1, "acme"), LH_INVALID);
        assert_string_equal(fail_reason(), unmatchable[i].sentence);
        op_table_free(t);
    }
}

static void a_plugins_row_that_is_wrong_is_refused_with_its_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        op_table_t *t = new_table();
        assert_int_equal(op_table_add(t, &refused[i].row, sizeof(lh_op_t), 1, "acme"), LH_INVALID);
        assert_string_equal(fail_reason(), refused[i].sentence);
        op_table_free(t);
    }
}

static bool any_product(const void *attributes, bool *a, bool *b)
{
    (void)attributes;
    *a = *b = false;
    return true;
}

/* Slots where adapters and packing look for them. */
static void a_layer_or_a_product_has_the_slots_of_one(void **state)
{
    (void)state;
    static const struct {
        const char *slots;
        bool linear, product; /* whether it is taken for one */
    } rows[] = {
        {"x w b? -> y", true, true},        {"x w -> y", true, true},
        {"x w b? s? -> y z?", false, true}, {"x w b? -> y z?", true, true},
        {"x -> y", false, false},           {"x w b -> y", false, false},
        {"x w b? -> y z", false, false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const lh_op_t layer = {
            .name = "acme.layer", .slots = rows[i].slots, .shape = no_shape, .flags = LH_OP_LINEAR};
        const lh_op_t product = {.name = "acme.times",
                                 .slots = rows[i].slots,
                                 .shape = no_shape,
                                 .product = any_product};
        op_table_t *t = new_table();
        assert_int_equal(op_table_add(t, &layer, sizeof(layer), 1, "acme"),
                         rows[i].linear ? LH_OK : LH_INVALID);
        if (!rows[i].linear) assert_non_null(strstr(fail_reason(), "not those of a linear layer"));
        assert_int_equal(op_table_add(t, &product, sizeof(product), 1, "acme"),
                         rows[i].product ? LH_OK : LH_INVALID);
        if (!rows[i].product) assert_non_null(strstr(fail_reason(), "not those of a product"));
        op_table_free(t);
    }
}

static void a_bound_of_picks_is_the_first_attribute(void **state)
{
    (void)state;
    const lh_op_t row = {
        .name = "acme.sort", .slots = "ids -> y", .shape = no_shape, .flags = LH_OP_PICKED};
    op_table_t *t = new_table();
    assert_int_equal(op_table_add(t, &row, sizeof(row), 1, "acme"), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "attributes of 0 bytes"));
    op_table_free(t);
}

static void a_name_that_is_taken_is_refused_with_its_owner(void **state)
{
    (void)state;
    op_table_t *t = new_table();
    const lh_op_t row = {.name = "acme.one", .slots = "x -> y", .shape = no_shape};
    assert_int_equal(op_table_add(t, &row, sizeof(row), 1, "acme"), LH_OK);
    assert_int_equal(op_table_add(t, &row, sizeof(row), 1, "other"), LH_INVALID);
    assert_string_equal(fail_reason(), "op acme.one is already brought by plugin acme");
    op_table_free(t);
}

static void rows_of_a_newer_plugin_are_read_at_their_own_size(void **state)
{
    (void)state;
    op_table_t *t = new_table();
    const struct {
        lh_op_t row;
        uint64_t unknown;
    } rows[] = {
        {{.name = "acme.one", .slots = "x -> y", .shape = no_shape}, 0},
        {{.name = "acme.two", .slots = "x -> y z?", .shape = no_shape}, 0},
    };
    assert_int_equal(op_table_add(t, &rows[0].row, sizeof(rows[0]), 2, "acme"), LH_OK);
    assert_int_equal(op_table_find(t, "acme.two")->out_count, 2);
    op_table_free(t);
}

static void a_table_that_finds_no_memory_says_so_and_loses_none(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 60; n++) {
        op_table_t *t = NULL;
        mem_fail_at(n, false);
        const lh_status_t status = op_table_new(&t);
        mem_fail_at(0, false);
        if (status == LH_OK) op_table_free(t);
        assert_true(status == LH_OK || (status == LH_NO_MEMORY && t == NULL));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_that_the_header_lists_has_a_row_with_its_text),
        cmocka_unit_test(what_is_a_draft_can_not_be_recorded),
        cmocka_unit_test(a_macro_of_text_makes_slots_and_a_line_of_shapes_each),
        cmocka_unit_test(every_op_of_the_core_says_all_that_help_prints),
        cmocka_unit_test(an_op_is_found_by_its_name_and_index),
        cmocka_unit_test(slots_say_what_is_optional_added_and_aliased),
        cmocka_unit_test(a_plugins_row_that_is_wrong_is_refused_with_its_reason),
        cmocka_unit_test(a_pattern_that_nothing_could_match_is_refused_with_its_reason),
        cmocka_unit_test(a_layer_or_a_product_has_the_slots_of_one),
        cmocka_unit_test(a_bound_of_picks_is_the_first_attribute),
        cmocka_unit_test(a_name_that_is_taken_is_refused_with_its_owner),
        cmocka_unit_test(rows_of_a_newer_plugin_are_read_at_their_own_size),
        cmocka_unit_test(a_table_that_finds_no_memory_says_so_and_loses_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
