/* optimizer_tables_test.c - over one rank every ZeRO stage comes to the same; what is not built is
 * said. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#undef fail

#include <parallel/optimizer_tables.h>

struct lh_optimizer {
    lh_description_t description;
};

static lh_status_t describe(lh_optimizer_t *o, LH_UNUSED const lh_train_t *train,
                            lh_description_t *out)
{
    *out = o->description;
    return LH_OK;
}

static const lh_optimizer_api_t api = {.struct_size = sizeof(api), .describe = describe};

enum { VALUE, GRAD, MASTER, STATE, WIDE_GRAD, WIDE_VALUE, SPACES };

enum { KEPT_VALUE = 0, KEPT_GRAD = 0, KEPT_STATE = LH_KEEP_SAVED };
enum { KEPT_MASTER = LH_KEEP_SAVED | LH_KEEP_FROM_VALUE };
#define SPACE(n, what, group, life)                                                          \
    {                                                                                        \
        .name = n, .holds = LH_HOLDS_##what, .cut = LH_GROUP_##group, .place = LH_ON_DEVICE, \
        .lives = LH_LIVES_##life, .flags = KEPT_##what                                       \
    }
#define MOVE(moment, kind, a, b)                                           \
    {                                                                      \
        .when = LH_AT_##moment, .what = LH_MOVE_##kind, .from = a, .to = b \
    }
#define OVER(moment, kind, a, b)                                            \
    {                                                                       \
        .when = LH_AT_##moment, .what = LH_MOVE_##kind, .from = a, .to = b, \
        .group = LH_GROUP_DATA, .reduce = LH_REDUCE_SUM                     \
    }

static const lh_space_t spaces[SPACES] = {
    SPACE("value", VALUE, DATA, ALWAYS),    SPACE("grad", GRAD, DATA, STEP),
    SPACE("master", MASTER, DATA, ALWAYS),  SPACE("state", STATE, DATA, ALWAYS),
    SPACE("wide_grad", GRAD, SELF, BUCKET), SPACE("wide_value", VALUE, SELF, INSTANCE),
};
static const lh_move_t zero0[] = {OVER(GRAD, REDUCE, GRAD, GRAD), MOVE(STEP, UPDATE, GRAD, MASTER),
                                  MOVE(AFTER_STEP, COPY, MASTER, VALUE)};
static const lh_move_t zero1[] = {OVER(GRAD, REDUCE, WIDE_GRAD, GRAD),
                                  MOVE(STEP, UPDATE, GRAD, MASTER),
                                  OVER(AFTER_STEP, GATHER, MASTER, VALUE)};
static const lh_move_t zero3[] = {
    OVER(INSTANCE, GATHER, VALUE, WIDE_VALUE), OVER(GRAD, REDUCE, WIDE_GRAD, GRAD),
    MOVE(STEP, UPDATE, GRAD, MASTER), MOVE(AFTER_STEP, COPY, MASTER, VALUE)};

static lh_status_t read_rows(const lh_space_t *rows, uint32_t space_count, const lh_move_t *moves,
                             uint32_t move_count, uint32_t ranks, optimizer_tables_t *out)
{
    lh_optimizer_t o = {{.struct_size = sizeof(lh_description_t),
                         .space_size = sizeof(rows[0]),
                         .space_count = space_count,
                         .move_size = sizeof(moves[0]),
                         .move_count = move_count,
                         .spaces = rows,
                         .moves = moves}};
    const lh_family_t family = {.size = {1, ranks, 1, 1}};
    const lh_train_t train = {.struct_size = sizeof(train),
                              .family_size = sizeof(family),
                              .family_count = 1,
                              .families = &family};
    return optimizer_tables_read(&api, &o, &train, out);
}

static lh_status_t read_tables(uint32_t space_count, const lh_move_t *moves, uint32_t move_count,
                               uint32_t ranks, optimizer_tables_t *out)
{
    return read_rows(spaces, space_count, moves, move_count, ranks, out);
}

static void over_one_rank_a_wide_space_is_its_cut(void **state)
{
    (void)state;
    optimizer_tables_t t;
    assert_int_equal(read_tables(4, zero0, 3, 1, &t), LH_OK);
    assert_int_equal(t.grad, GRAD);
    assert_int_equal(t.master, MASTER);
    assert_int_equal(read_tables(5, zero1, 3, 1, &t), LH_OK);
    assert_int_equal(t.root[WIDE_GRAD], t.root[GRAD]);
    assert_int_equal(read_tables(6, zero3, 4, 1, &t), LH_OK);
    assert_int_equal(t.root[WIDE_GRAD], t.root[GRAD]);
    assert_int_equal(t.root[WIDE_VALUE], t.root[VALUE]);
    assert_int_equal(t.state, STATE);
}

static void over_several_ranks_a_cut_has_its_whole_form_beside_it(void **state)
{
    (void)state;
    optimizer_tables_t t;
    assert_int_equal(read_tables(6, zero3, 4, 4, &t), LH_OK);
    assert_int_equal(t.cut, LH_GROUP_DATA);
    assert_int_equal(t.grad, GRAD);
    assert_int_equal(t.wide_grad, WIDE_GRAD);
    assert_int_equal(t.value, VALUE);
    assert_int_equal(t.wide_value, WIDE_VALUE);
    assert_int_equal(t.moves[t.sum].to, GRAD);
    assert_int_equal(t.moves[t.instance].to, WIDE_VALUE);
    assert_int_equal(t.across, TABLE_MOVES);
    assert_int_equal(t.value_gather, TABLE_MOVES);
    assert_true(optimizer_tables_is_cut(&t, t.master));
}

static void replicas_that_would_drift_apart_are_refused(void **state)
{
    (void)state;
    optimizer_tables_t t;
    const lh_move_t local[] = {MOVE(STEP, UPDATE, GRAD, MASTER),
                               MOVE(AFTER_STEP, COPY, MASTER, VALUE)};
    const lh_move_t twice[] = {zero3[0], zero3[1], zero3[1], zero3[2], zero3[3]};
    assert_int_equal(read_tables(4, local, 2, 2, &t), LH_UNSUPPORTED);
    assert_string_equal(fail_reason(), "the optimizer sums gradients over 1 of 2 ranks; replicas "
                                       "that drift apart are not built");
    assert_int_equal(read_tables(6, twice, 5, 2, &t), LH_UNSUPPORTED);
    assert_string_equal(fail_reason(), "moves from 'wide_grad' and 'wide_grad' to 'grad' and "
                                       "'grad' do the same work");
}

static void moves_run_in_the_order_of_their_moments(void **state)
{
    (void)state;
    const lh_move_t mixed[] = {zero1[2], zero1[1], zero1[0]};
    optimizer_tables_t t;
    assert_int_equal(read_tables(5, mixed, 3, 1, &t), LH_OK);
    assert_int_equal(t.moves[0].what, LH_MOVE_REDUCE);
    assert_int_equal(t.moves[1].what, LH_MOVE_UPDATE);
    assert_int_equal(t.moves[2].what, LH_MOVE_GATHER);
}

static void a_sum_says_how_it_travels_between_sites(void **state)
{
    (void)state;
    static const lh_dtype_t built[] = {0, LH_DTYPE_F32, LH_DTYPE_BF16};
    for (uint32_t i = 0; i < 3; i++) {
        optimizer_tables_t t;
        lh_move_t moves[4];
        memcpy(moves, zero3, sizeof(moves));
        moves[1].wire = built[i];
        assert_int_equal(read_tables(6, moves, 4, 2, &t), LH_OK);
        assert_int_equal(optimizer_tables_move(&t, t.sum)->wire, built[i]);
    }
}

/* As many instances ahead as there are, whatever number says so: the host adds it to those of an instance. */
static void all_instances_ahead_are_a_number_that_can_be_added_to(void **state)
{
    (void)state;
    static const uint32_t ahead[] = {0, 2, UINT32_MAX};
    for (uint32_t i = 0; i < 3; i++) {
        optimizer_tables_t t;
        lh_move_t moves[4];
        memcpy(moves, zero3, sizeof(moves));
        moves[0].ahead = ahead[i];
        assert_int_equal(read_tables(6, moves, 4, 2, &t), LH_OK);
        assert_int_equal(optimizer_tables_move(&t, t.instance)->ahead, i < 2 ? ahead[i] : 1 << 20);
    }
}

static void refused(const lh_move_t *move, const char *sentence)
{
    optimizer_tables_t t;
    assert_int_not_equal(read_tables(4, move, 1, 1, &t), LH_OK);
    assert_string_equal(fail_reason(), sentence);
}

static void what_is_not_built_is_refused_by_name(void **state)
{
    (void)state;
    optimizer_tables_t t;
    const lh_move_t differ = MOVE(STEP, DIFFER, GRAD, MASTER), add = MOVE(GRAD, ADD, GRAD, MASTER);
    const lh_move_t lost = MOVE(STEP, COPY, GRAD, 9);
    lh_move_t rare = MOVE(STEP, UPDATE, GRAD, MASTER), never = rare;
    rare.every = 100;
    never.when = 7;
    lh_move_t narrow = OVER(GRAD, REDUCE, GRAD, GRAD);
    lh_move_t values = OVER(AFTER_STEP, GATHER, MASTER, VALUE);
    narrow.wire = LH_DTYPE_F16;
    values.wire = LH_DTYPE_BF16;
    refused(&narrow, "move REDUCE from 'grad' to 'grad' travels as F16 between sites; built are "
                     "F32, BF16 and 0, as the job says");
    refused(&values, "move GATHER from 'master' to 'value' travels as BF16 between sites; built is "
                     "what is stored (wire 0)");
    refused(&differ, "move DIFFER from 'grad' to 'master' is not built");
    refused(&add, "move ADD from 'grad' to 'master' is not built");
    refused(&lost, "move COPY names space 1, space 9, group 0; there are 4 and 4");
    refused(&rare, "move UPDATE from 'grad' to 'master' does not run whole in every step, which is "
                   "not built");
    refused(&never, "1 of the optimizer's moves name a moment that does not exist");
    assert_int_equal(read_tables(5, zero0, 3, 1, &t), LH_UNSUPPORTED);
    assert_string_equal(fail_reason(),
                        "spaces 'grad' and 'wide_grad' hold the same kind and no move "
                        "joins them, which is not built");
}

/* Whatever it is that crosses borders: gradients are summed where they are used. */
static void gradients_that_are_gathered_are_refused(void **state)
{
    (void)state;
    optimizer_tables_t t;
    const lh_move_t gathers[] = {zero1[0], OVER(STEP, GATHER, GRAD, WIDE_GRAD), zero1[1], zero1[2]};
    assert_int_equal(read_tables(5, gathers, 4, 2, &t), LH_UNSUPPORTED);
    assert_string_equal(fail_reason(), "move GATHER from 'grad' to 'wide_grad' over several ranks "
                                       "is not built there; expected sums of gradients and gathers "
                                       "of values");
}

/* A state that starts as a copy, one that no checkpoint holds: nobody would do either. */
static void flags_that_nothing_reads_are_refused(void **state)
{
    (void)state;
    static const uint32_t wrong[] = {LH_KEEP_FROM_VALUE, 0, LH_KEEP_SAVED | LH_KEEP_FROM_VALUE, 4};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        optimizer_tables_t t;
        lh_space_t rows[4];
        char sentence[128];
        memcpy(rows, spaces, sizeof(rows));
        rows[STATE].flags = wrong[i];
        assert_int_equal(read_rows(rows, 4, zero0, 3, 1, &t), LH_UNSUPPORTED);
        (void)snprintf(sentence, sizeof(sentence), "space 'state' has flags %u; built is 1 ",
                       wrong[i]);
        assert_int_equal(strncmp(fail_reason(), sentence, strlen(sentence)), 0);
    }
}

static void a_dtype_that_nothing_reads_is_refused(void **state)
{
    (void)state;
    static const uint32_t without[] = {VALUE, STATE};
    for (size_t i = 0; i < sizeof(without) / sizeof(without[0]); i++) {
        optimizer_tables_t t;
        lh_space_t rows[4];
        char sentence[160];
        memcpy(rows, spaces, sizeof(rows));
        rows[without[i]].dtype = LH_DTYPE_BF16;
        assert_int_equal(read_rows(rows, 4, zero0, 3, 1, &t), LH_UNSUPPORTED);
        (void)snprintf(sentence, sizeof(sentence), "space '%s' holds BF16; built is what ",
                       rows[without[i]].name);
        assert_int_equal(strncmp(fail_reason(), sentence, strlen(sentence)), 0);
    }
}

/* `check` would count no memory for it, or less than there is, and only a device refuse it. */
static void gradients_and_masters_are_floats(void **state)
{
    (void)state;
    optimizer_tables_t t;
    lh_space_t rows[4];
    memcpy(rows, spaces, sizeof(rows));
    rows[GRAD].dtype = LH_DTYPE_BF16;
    rows[MASTER].dtype = LH_DTYPE_F32;
    assert_int_equal(read_rows(rows, 4, zero0, 3, 1, &t), LH_OK);
    rows[GRAD].dtype = 99;
    assert_int_equal(read_rows(rows, 4, zero0, 3, 1, &t), LH_UNSUPPORTED);
    assert_string_equal(fail_reason(), "space 'grad' has dtype 99, unknown dtype; built are F32, "
                                       "BF16, F16, F64 and 0");
    rows[GRAD].dtype = 0;
    rows[MASTER].dtype = LH_DTYPE_I32;
    assert_int_equal(read_rows(rows, 4, zero0, 3, 1, &t), LH_UNSUPPORTED);
    assert_string_equal(fail_reason(), "space 'master' has dtype 7, I32; built are F32, BF16, F16, "
                                       "F64 and 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(over_one_rank_a_wide_space_is_its_cut),
        cmocka_unit_test(over_several_ranks_a_cut_has_its_whole_form_beside_it),
        cmocka_unit_test(replicas_that_would_drift_apart_are_refused),
        cmocka_unit_test(moves_run_in_the_order_of_their_moments),
        cmocka_unit_test(a_sum_says_how_it_travels_between_sites),
        cmocka_unit_test(all_instances_ahead_are_a_number_that_can_be_added_to),
        cmocka_unit_test(what_is_not_built_is_refused_by_name),
        cmocka_unit_test(gradients_that_are_gathered_are_refused),
        cmocka_unit_test(flags_that_nothing_reads_are_refused),
        cmocka_unit_test(a_dtype_that_nothing_reads_is_refused),
        cmocka_unit_test(gradients_and_masters_are_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
