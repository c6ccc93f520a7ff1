/* line_test.c - a line that a plugin makes piece by piece, up to all that it has room for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <longhaul/line.h>

static void pieces_follow_each_other(void **state)
{
    (void)state;
    lh_line_t line = {.length = 0};
    assert_string_equal(line.text, "");
    lh_line_add(&line, "%s port %u:", "mlx5_0", 1u);
    lh_line_add(&line, "%s", "");
    lh_line_add(&line, " %.3g Gb/s", 98.5);
    assert_string_equal(line.text, "mlx5_0 port 1: 98.5 Gb/s");
    assert_int_equal(line.length, strlen(line.text));
}

static void what_has_no_room_is_cut_off(void **state)
{
    (void)state;
    enum { LAST = LH_LINE_BYTES - 1 };
    struct {
        lh_line_t line;
        char behind[8];
    } a = {.behind = "behind"};
    for (int i = 0; i < LAST - 3; i++)
        lh_line_add(&a.line, "%c", 'a' + i % 26);
    assert_int_equal(a.line.length, LAST - 3);
    lh_line_add(&a.line, "%s", "12345");
    assert_int_equal(a.line.length, LAST);
    assert_string_equal(a.line.text + LAST - 3, "123");
    lh_line_add(&a.line, "%s", "more");
    assert_int_equal(a.line.length, LAST);
    assert_string_equal(a.line.text + LAST - 3, "123");
    assert_string_equal(a.behind, "behind");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_follow_each_other),
        cmocka_unit_test(what_has_no_room_is_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
