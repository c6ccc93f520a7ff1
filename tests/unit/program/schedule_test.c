/* schedule_test.c - tables of rows: what is generated, what a file may say, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#undef fail

#include <base/memory.h>
#include <base/philox.h>
#include <base/text.h>
#include <program/schedule.h>

#define HEAD "program,chunk,micro_batch,frame\n"

static schedule_t *parsed(const char *text)
{
    schedule_t *s;
    const lh_status_t status = schedule_parse("t.csv", text, strlen(text), &s);
    if (status != LH_OK) print_error("%s\n", fail_reason());
    assert_int_equal(status, LH_OK);
    return s;
}

static void assert_rows(const schedule_t *s, const char *expected)
{
    text_t text = {0};
    for (uint32_t i = 0; i < s->count; i++)
        text_printf(&text, "%s %u %u %u\n", schedule_programs[s->rows[i].program], s->rows[i].chunk,
                    s->rows[i].micro_batch, s->rows[i].frame);
    assert_string_equal(text.data, expected);
    text_free(&text);
}

static void depth_takes_each_micro_batch_there_and_back(void **state)
{
    (void)state;
    schedule_t *s;
    assert_int_equal(schedule_depth(3, &s), LH_OK);
    assert_rows(s, "forward 0 0 0\nbackward 0 0 0\nforward 0 1 0\nbackward 0 1 0\n"
                   "forward 0 2 0\nbackward 0 2 0\n");
    assert_int_equal(s->frames, 1);
    assert_int_equal(s->rounds, 3);
    assert_int_equal(s->round_rows, 2);
    assert_int_equal(s->round_micro_batches, 1);
    schedule_free(s);
}

static void breadth_takes_all_through_a_part_first(void **state)
{
    (void)state;
    schedule_t *s;
    assert_int_equal(schedule_breadth(1, 0, 0, false, 2, &s), LH_OK);
    assert_rows(s, "forward 0 0 0\nforward 0 1 1\nforward 1 0 0\nforward 1 1 1\n"
                   "forward 2 0 0\nforward 2 1 1\nbackward 2 0 0\nbackward 2 1 1\n"
                   "backward 1 0 0\nbackward 1 1 1\nbackward 0 0 0\nbackward 0 1 1\n");
    assert_int_equal(s->frames, 2);
    assert_int_equal(s->rounds, 1);
    assert_int_equal(s->round_micro_batches, 2);
    schedule_free(s);
}

/* Embedding, the first block's two legs, the second block, head: back through the second leg before the
 * first. */
static void breadth_takes_first_blocks_in_legs(void **state)
{
    (void)state;
    static const struct {
        uint32_t blocks, leg_blocks, legs, chunks;
        uint32_t parts[10], leg[10];
    } cases[] = {
        {2, 1, 2, 5, {0, 1, 1, 2, 3}, {0, 0, 1, 0, 0}},
        {3, 2, 3, 9, {0, 1, 1, 1, 2, 2, 2, 3, 4}, {0, 0, 1, 2, 0, 1, 2, 0, 0}},
        {2, 2, 2, 6, {0, 1, 1, 2, 2, 3}, {0, 0, 1, 0, 1, 0}},
    };
    schedule_t *s;
    assert_int_equal(schedule_breadth(2, 1, 2, false, 2, &s), LH_OK);
    assert_rows(s, "forward 0 0 0\nforward 0 1 1\nforward 1 0 0\nforward 1 1 1\n"
                   "forward 2 0 0\nforward 2 1 1\nforward 3 0 0\nforward 3 1 1\n"
                   "forward 4 0 0\nforward 4 1 1\nbackward 4 0 0\nbackward 4 1 1\n"
                   "backward 3 0 0\nbackward 3 1 1\nbackward 2 0 0\nbackward 2 1 1\n"
                   "backward 1 0 0\nbackward 1 1 1\nbackward 0 0 0\nbackward 0 1 1\n");
    schedule_free(s);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const uint32_t blocks = cases[i].blocks;
        assert_int_equal(schedule_breadth(blocks, cases[i].leg_blocks, cases[i].legs, false, 2, &s),
                         LH_OK);
        assert_int_equal(s->chunks, cases[i].chunks);
        assert_int_equal(schedule_fits(s, blocks), LH_OK);
        for (uint32_t c = 0; c < s->chunks; c++) {
            uint32_t first, end;
            schedule_parts(s, blocks, c, &first, &end);
            assert_int_equal(first, cases[i].parts[c]);
            assert_int_equal(end, first + 1);
            assert_int_equal(schedule_leg(s, c), cases[i].leg[c]);
        }
        schedule_free(s);
    }
}

/* Embedding, two legs of the first block, the second block, head; and a block that goes whole between
 * embedding and head. The embedding comes back as soon as the first block's input halves have. */
static void breadth_takes_the_embedding_back_before_the_first_blocks_weights(void **state)
{
    (void)state;
    schedule_t *s;
    assert_int_equal(schedule_breadth(2, 1, 2, true, 2, &s), LH_OK);
    assert_rows(s, "forward 0 0 0\nforward 0 1 1\nforward 1 0 0\nforward 1 1 1\n"
                   "forward 2 0 0\nforward 2 1 1\nforward 3 0 0\nforward 3 1 1\n"
                   "forward 4 0 0\nforward 4 1 1\nbackward 4 0 0\nbackward 4 1 1\n"
                   "backward 3 0 0\nbackward 3 1 1\n"
                   "backward_input 2 0 0\nbackward_input 2 1 1\n"
                   "backward_input 1 0 0\nbackward_input 1 1 1\n"
                   "backward 0 0 0\nbackward 0 1 1\n"
                   "backward_weights 2 0 0\nbackward_weights 2 1 1\n"
                   "backward_weights 1 0 0\nbackward_weights 1 1 1\n");
    assert_true(s->halves);
    assert_int_equal(s->frames, 2);
    assert_int_equal(s->rounds, 1);
    assert_int_equal(schedule_fits(s, 2), LH_OK);
    schedule_free(s);
    assert_int_equal(schedule_breadth(1, 0, 0, true, 1, &s), LH_OK);
    assert_rows(s, "forward 0 0 0\nforward 1 0 0\nforward 2 0 0\nbackward 2 0 0\n"
                   "backward_input 1 0 0\nbackward 0 0 0\nbackward_weights 1 0 0\n");
    schedule_free(s);
}

static void scores_go_forward_only(void **state)
{
    (void)state;
    schedule_t *s;
    assert_int_equal(schedule_forward(2, &s), LH_OK);
    assert_rows(s, "forward 0 0 0\nforward 0 1 0\n");
    assert_int_equal(s->rounds, 2);
    schedule_free(s);
}

static void a_file_is_read_with_blanks_and_comments(void **state)
{
    (void)state;
    schedule_t *s = parsed("# two at a time\r\n\r\n  program,chunk,micro_batch,frame \r\n"
                           "forward, 0, 0, 0\nforward,0,1,1\n# back\nbackward,0,0,0\n"
                           "backward,0,1,1\nforward,0,2,0\nforward,0,3,1\nbackward,0,2,0\n"
                           "backward,0,3,1");
    assert_int_equal(s->count, 8);
    assert_int_equal(s->rows[2].line, 7);
    assert_int_equal(s->micro_batches, 4);
    assert_int_equal(s->frames, 2);
    assert_int_equal(s->rounds, 2);
    assert_int_equal(s->round_micro_batches, 2);
    schedule_free(s);
}

/* What is not the same rows again is written as one round. */
static void other_orders_are_one_round(void **state)
{
    (void)state;
    schedule_t *s = parsed(HEAD "forward,0,0,0\nforward,0,1,1\nbackward,0,0,0\nforward,0,2,0\n"
                                "backward,0,1,1\nforward,0,3,1\nbackward,0,2,0\nbackward,0,3,1\n");
    assert_int_equal(s->rounds, 1);
    assert_int_equal(s->round_rows, 8);
    assert_int_equal(s->round_micro_batches, 4);
    schedule_free(s);
}

static void mistakes_are_refused_with_line_found_and_expected(void **state)
{
    (void)state;
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"", "t.csv: has no row, expected at least one"},
        {HEAD, "t.csv: has no row, expected at least one"},
        {"program;chunk\n", "t.csv:1: 'program;chunk', expected the names of the fields: "
                            "program,chunk,micro_batch,frame"},
        {HEAD "forward,0,0\n", "t.csv:2: 3 fields, expected 4: program,chunk,micro_batch,frame"},
        {HEAD "forward,0,0,0,0\n",
         "t.csv:2: 5 fields, expected 4: program,chunk,micro_batch,frame"},
        {HEAD "up,0,0,0\n", "t.csv:2: program 'up', expected forward, backward, backward_input or "
                            "backward_weights"},
        {HEAD "forward,4096,0,0\n",
         "t.csv:2: chunk '4096', expected a whole number from 0 to 4095"},
        {HEAD "forward,0,,0\n",
         "t.csv:2: micro_batch '', expected a whole number from 0 to 1048575"},
        {HEAD "forward,0,0,99999999999999999999\n",
         "t.csv:2: frame '99999999999999999999', expected a whole number from 0 to 1048575"},
        {HEAD "forward,4000,1000000,0\n", "t.csv: has 1 rows, expected at least 8002008002 for "
                                          "1000001 micro-batches through 4001 chunks"},
        {HEAD "backward,0,0,0\nforward,0,0,0\n",
         "t.csv:2: backward of micro-batch 0 through chunk 0 comes before its forward through "
         "chunk 0, expected behind it"},
        {HEAD "forward,1,0,0\nforward,0,0,0\nbackward,1,0,0\nbackward,0,0,0\n",
         "t.csv:2: forward of micro-batch 0 through chunk 1 comes before its forward through chunk "
         "0, expected behind it"},
        {HEAD "forward,0,0,0\nforward,1,0,0\nbackward,0,0,0\nbackward,1,0,0\n",
         "t.csv:4: backward of micro-batch 0 through chunk 0 comes before its backward through "
         "chunk 1, expected behind it"},
        {HEAD "forward,0,0,0\nbackward_weights,0,0,0\nbackward_input,0,0,0\n",
         "t.csv:3: backward_weights of micro-batch 0 through chunk 0 comes before its "
         "backward_input through chunk 0, expected behind it"},
        {HEAD "forward,0,0,0\nforward,0,1,1\nbackward,0,1,1\nbackward,0,0,0\n",
         "t.csv:4: backward of micro-batch 1 through chunk 0, expected is micro-batch 0: a chunk "
         "takes them in order"},
        {HEAD "forward,0,0,0\nbackward,0,0,0\nbackward,0,0,0\n",
         "t.csv:4: backward of micro-batch 0 through chunk 0 comes again; each of 1 is expected "
         "once"},
        {HEAD "forward,0,0,0\nforward,0,1,0\nbackward,0,0,0\nbackward,0,1,0\n",
         "t.csv:3: forward of micro-batch 1 through chunk 0 takes frame 0, which micro-batch 0 "
         "holds until its last way back; expected is a free one"},
        {HEAD "forward,0,0,0\nbackward_input,0,0,0\nforward,0,1,0\nbackward,0,1,0\n",
         "t.csv:4: forward of micro-batch 1 through chunk 0 takes frame 0, which micro-batch 0 "
         "holds until its last way back; expected is a free one"},
        {HEAD "forward,0,0,1\nbackward,0,0,1\n",
         "t.csv:2: forward of micro-batch 0 through chunk 0 takes frame 1, expected is one of 0 to "
         "0: the next new one"},
        {HEAD "forward,0,0,0\nforward,0,1,1\nbackward,0,0,1\nbackward,0,1,0\n",
         "t.csv:4: backward of micro-batch 0 through chunk 0 has frame 1, expected is 0, which its "
         "forward took"},
        {HEAD
         "forward,0,0,0\nforward,0,1,1\nbackward,0,0,0\n# none for 1\n#\nbackward_input,0,1,1\n",
         "t.csv: micro-batch 1 goes back through chunk 0 in no row, expected is one for each of 2"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        schedule_t *s;
        assert_int_equal(schedule_parse("t.csv", cases[i].text, strlen(cases[i].text), &s),
                         LH_INVALID);
        assert_string_equal(fail_reason(), cases[i].sentence);
        fail_clear();
    }
}

/* ---- tables in any order that data allows ---- */

enum { CHUNKS = 3, MICRO_BATCHES = 4, TABLES = 200, ROWS = CHUNKS * MICRO_BATCHES * 3 };

typedef struct table {
    schedule_row_t rows[ROWS];
    uint32_t count;
} table_t;

/* Next micro-batch of each chunk and program, and who has each frame. */
typedef struct drawn {
    uint32_t next[CHUNKS][SCHEDULE_PROGRAMS];
    uint32_t frames[CHUNKS][MICRO_BATCHES]; /* 1 + who has it */
} drawn_t;

static uint32_t frame_with(const drawn_t *d, uint32_t chunk, uint32_t holder)
{
    uint32_t f = 0;
    while (d->frames[chunk][f] != holder)
        f++;
    return f;
}

static bool may_come(const drawn_t *d, uint32_t program, uint32_t c)
{
    const uint32_t m = d->next[c][program];
    if (m == MICRO_BATCHES) return false;
    switch (program) {
    case SCHEDULE_FORWARD: return c == 0 || d->next[c - 1][SCHEDULE_FORWARD] > m;
    case SCHEDULE_BACKWARD_INPUT:
        return d->next[c][SCHEDULE_FORWARD] > m &&
               (c + 1 == CHUNKS || d->next[c + 1][SCHEDULE_BACKWARD_INPUT] > m);
    default: return d->next[c][SCHEDULE_BACKWARD_INPUT] > m;
    }
}

static void draw(uint64_t seed, table_t *t)
{
    static const uint32_t programs[] = {SCHEDULE_FORWARD, SCHEDULE_BACKWARD_INPUT,
                                        SCHEDULE_BACKWARD_WEIGHTS};
    drawn_t d = {0};
    t->count = 0;
    for (uint64_t turn = 0; t->count < ROWS; turn++) {
        const uint32_t pick = (uint32_t)(philox_uniform(seed, 7, turn) * CHUNKS * 3);
        const uint32_t c = pick / 3, program = programs[pick % 3], m = d.next[c][program];
        if (!may_come(&d, program, c)) continue;
        const uint32_t f = frame_with(&d, c, program == SCHEDULE_FORWARD ? 0 : m + 1);
        if (program == SCHEDULE_FORWARD) d.frames[c][f] = m + 1;
        if (program == SCHEDULE_BACKWARD_WEIGHTS) d.frames[c][f] = 0;
        d.next[c][program]++;
        t->rows[t->count++] = (schedule_row_t){program, c, m, f, 0};
    }
}

/* Without row `without`; UINT32_MAX: all. */
static lh_status_t parse_table(const table_t *t, uint32_t without, schedule_t **out)
{
    text_t text = {0};
    text_append(&text, HEAD);
    for (uint32_t i = 0; i < t->count; i++)
        if (i != without)
            text_printf(&text, "%s,%u,%u,%u\n", schedule_programs[t->rows[i].program],
                        t->rows[i].chunk, t->rows[i].micro_batch, t->rows[i].frame);
    const lh_status_t status = schedule_parse("t.csv", text.data, text.length, out);
    text_free(&text);
    return status;
}

static void every_order_that_data_allows_is_accepted_and_no_row_may_miss(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < TABLES; seed++) {
        table_t t;
        schedule_t *s;
        draw(seed, &t);
        assert_int_equal(parse_table(&t, UINT32_MAX, &s), LH_OK);
        schedule_free(s);
        const uint32_t without = (uint32_t)(philox_uniform(seed, 8, 0) * ROWS);
        assert_int_equal(parse_table(&t, without, &s), LH_INVALID);
        fail_clear();
    }
}

static void chunks_share_the_blocks(void **state)
{
    (void)state;
    static const struct {
        uint32_t chunks, blocks;
        uint32_t ends[5];
    } cases[] = {
        {1, 3, {5}}, {2, 5, {3, 7}}, {3, 3, {2, 3, 5}}, {5, 3, {1, 2, 3, 4, 5}}, {2, 2, {2, 4}}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const schedule_t s = {.chunks = cases[i].chunks};
        uint32_t before = 0, first, end;
        assert_int_equal(schedule_fits(&s, cases[i].blocks), LH_OK);
        for (uint32_t c = 0; c < s.chunks; c++) {
            schedule_parts(&s, cases[i].blocks, c, &first, &end);
            assert_int_equal(first, before);
            assert_int_equal(end, cases[i].ends[c]);
            before = end;
        }
        assert_int_equal(before, cases[i].blocks + 2);
    }
    const schedule_t four = {.name = (char *)(uintptr_t) "t.csv", .chunks = 4};
    assert_int_equal(schedule_fits(&four, 3), LH_INVALID);
    assert_string_equal(fail_reason(),
                        "t.csv: cuts the model into 4 chunks, expected are 1 to 3, or 5 with the "
                        "embedding and the head by themselves: it has 3 blocks");
    fail_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(depth_takes_each_micro_batch_there_and_back),
        cmocka_unit_test(breadth_takes_all_through_a_part_first),
        cmocka_unit_test(breadth_takes_first_blocks_in_legs),
        cmocka_unit_test(breadth_takes_the_embedding_back_before_the_first_blocks_weights),
        cmocka_unit_test(scores_go_forward_only),
        cmocka_unit_test(a_file_is_read_with_blanks_and_comments),
        cmocka_unit_test(other_orders_are_one_round),
        cmocka_unit_test(mistakes_are_refused_with_line_found_and_expected),
        cmocka_unit_test(every_order_that_data_allows_is_accepted_and_no_row_may_miss),
        cmocka_unit_test(chunks_share_the_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
