/* flame_test.c - boxes of a flame chart: as wide as their time, inside those above them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <watch/chart.h>

#include <cmocka.h>
#undef fail

/* A pass of two blocks there and back, and an update: 1,000 ns. */
static const profile_frame_t frames[] = {
    {.list = "first micro-batch", .part = "embed", .op = "embed", .ns = 100},
    {.list = "first micro-batch", .part = "blocks", .op = "matmul", .block = 0, .ns = 200},
    {.list = "first micro-batch", .part = "blocks", .op = "<gate>", .block = 0, .ns = 50},
    {.list = "first micro-batch", .part = "blocks", .op = "matmul", .block = 1, .ns = 150},
    {.list = "first micro-batch",
     .part = "blocks",
     .op = "matmul",
     .block = 1,
     .backward = true,
     .ns = 400},
    {.list = "update", .part = "update", .op = "adamw", .ns = 100},
};

/* x and width of the box whose tooltip is `text`, in a drawing 1,080 wide. */
static void box(const char *svg, const char *text, double *x, double *width)
{
    char title[128];
    (void)snprintf(title, sizeof(title), "/><title>%s: ", text);
    const char *end = strstr(svg, title);
    assert_non_null(end);
    const char *rect = end;
    while (strncmp(rect, "<rect", 5) != 0)
        rect--;
    assert_int_equal(sscanf(strstr(rect, " x="), " x=\"%lf\"", x), 1);
    assert_int_equal(sscanf(strstr(rect, " width="), " width=\"%lf\"", width), 1);
    *x /= 1.08;
    *width /= 1.08;
}

static void a_box_is_as_wide_as_its_time(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double x, width;
    } expected[] = {{"step", 0, 1000},
                    {"first micro-batch", 0, 900},
                    {"first micro-batch, forward", 0, 500},
                    {"forward, block 0", 100, 250},
                    {"block 0, matmul", 100, 200},
                    {"block 0, &lt;gate&gt;", 300, 50},
                    {"forward, block 1", 350, 150},
                    {"backward, block 1", 500, 400},
                    {"update", 900, 100},
                    {"update, adamw", 900, 100}};
    text_t out = {0};
    assert_int_equal(chart_draw_flame(frames, sizeof(frames) / sizeof(frames[0]), &out), LH_OK);
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        double x, width;
        box(out.data, expected[i].text, &x, &width);
        assert_true(x > expected[i].x - 0.02 && x < expected[i].x + 0.02);
        assert_true(width > expected[i].width - 0.02 && width < expected[i].width + 0.02);
    }
    text_free(&out);
}

/* An op of a plugin's own is coloured as its row says, not as it is called. */
static void a_box_has_the_colour_of_what_its_op_is(void **state)
{
    (void)state;
    static const struct {
        profile_frame_t frame;
        const char *colour;
    } expected[] = {
        {{.op = "acme.times", .op_flags = LH_OP_PRODUCT | LH_OP_COSTLY}, "p1"},
        {{.op = "acme.scan", .op_flags = LH_OP_COSTLY}, "p2"},
        {{.op = "wait", .waits = true}, "p3"},
        {{.op = "matmul"}, "p4"},
        {{.op = "attention", .op_flags = LH_OP_ROWS}, "p4"},
    };
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        profile_frame_t frame = expected[i].frame;
        frame.list = "first micro-batch";
        frame.part = "head";
        frame.ns = 10;
        text_t out = {0};
        char title[64];
        assert_int_equal(chart_draw_flame(&frame, 1, &out), LH_OK);
        (void)snprintf(title, sizeof(title), "head, %s: ", frame.op);
        const char *rect = strstr(out.data, title);
        assert_non_null(rect);
        while (strncmp(rect, "<rect", 5) != 0)
            rect--;
        (void)snprintf(title, sizeof(title), "<rect class=\"%s\"", expected[i].colour);
        assert_memory_equal(rect, title, strlen(title));
        text_free(&out);
    }
}

static void micro_batches_that_run_in_turn_share_their_boxes(void **state)
{
    (void)state;
    const profile_frame_t turn[] = {frames[1], frames[3], frames[1], frames[3]};
    text_t out = {0};
    double x, width;
    assert_int_equal(chart_draw_flame(turn, 4, &out), LH_OK);
    box(out.data, "forward, block 1", &x, &width);
    assert_true(x > 571 && x < 572 && width > 428 && width < 429);
    text_free(&out);
}

static void nothing_is_drawn_of_nothing(void **state)
{
    (void)state;
    text_t out = {0};
    assert_int_equal(chart_draw_flame(NULL, 0, &out), LH_OK);
    assert_int_equal(out.length, 0);
    text_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_box_is_as_wide_as_its_time),
        cmocka_unit_test(a_box_has_the_colour_of_what_its_op_is),
        cmocka_unit_test(micro_batches_that_run_in_turn_share_their_boxes),
        cmocka_unit_test(nothing_is_drawn_of_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
