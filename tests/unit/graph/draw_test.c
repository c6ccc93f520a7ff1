/* draw_test.c - a recording as dot text, and as the SVG that Graphviz makes of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/status.h>
#include <graph/draw.h>
#include <graph/gradient.h>
#include <graph/op_table.h>
#include <graph/recorder.h>

#include <longhaul/ops.h>

#include <cmocka.h> /* last: it has a fail() of its own */

static op_table_t *ops;

static lh_status_t param_shape(void *context, const char *name, uint64_t *shape, uint32_t *rank)
{
    (void)context, (void)name;
    shape[0] = 6;
    shape[1] = 4;
    *rank = 2;
    return LH_OK;
}

static bool want_all(void *context, const char *name)
{
    (void)context, (void)name;
    return true;
}

/* silu(x w'), differentiated. */
static recording_t *small_recording(const char *weight)
{
    const recording_how_t how = {
        .ops = ops, .compute = LH_DTYPE_F32, .accumulate = LH_DTYPE_F32, .param = param_shape};
    static const uint64_t in[] = {8, 4}, out[] = {8, 6};
    recording_t *r;
    lh_value_t none;
    assert_int_equal(recorder_new(&how, &r), LH_OK);
    lh_graph_t *g = &r->graph;
    const lh_value_t x = recording_argument(r, LH_DTYPE_F32, 2, in);
    r->output = lh_activate(g, lh_linear(g, x, g->api->param(g, weight), 0), LH_ACT_SILU);
    const lh_value_t seed = recording_argument(r, LH_DTYPE_F32, 2, out);
    assert_int_equal(gradient_append(r, seed, 0, want_all, NULL, &none), LH_OK);
    return r;
}

static int load(void **state)
{
    (void)state;
    assert_int_equal(op_table_new(&ops), LH_OK);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    op_table_free(ops);
    return 0;
}

static bool shows(const text_t *dot, const char *what)
{
    return strstr(dot->data, what) != NULL;
}

static void a_drawing_names_parameters_ops_attributes_and_shapes(void **state)
{
    (void)state;
    recording_t *r = small_recording("attn.wq");
    const draw_how_t how = {.title = "small"};
    text_t dot = {0};
    draw_dot(r, &how, &dot);
    assert_int_equal(text_status(&dot), LH_OK);
    assert_true(shows(&dot, "attn.wq\\nF32 [6 × 4]"));
    assert_true(shows(&dot, "matmul\\ntranspose_b = yes"));
    assert_true(shows(&dot, "activate\\nfunction = silu"));
    assert_true(shows(&dot, "F32 [8 × 6]"));
    assert_false(shows(&dot, "activate_grad"));
    text_free(&dot);
    recording_free(r);
}

static void the_reverse_pass_is_drawn_when_asked(void **state)
{
    (void)state;
    recording_t *r = small_recording("attn.wq");
    const draw_how_t how = {.title = "small", .backward = true};
    text_t dot = {0};
    draw_dot(r, &how, &dot);
    assert_true(shows(&dot, "activate_grad"));
    assert_true(shows(&dot, "gradient of attn.wq"));
    text_free(&dot);
    recording_free(r);
}

static void a_quote_in_a_name_stays_inside_its_string(void **state)
{
    (void)state;
    recording_t *r = small_recording("a\"]; evil [label=\"");
    const draw_how_t how = {.title = "a \"title\""};
    text_t dot = {0};
    draw_dot(r, &how, &dot);
    assert_true(shows(&dot, "a\\\"]; evil [label=\\\""));
    text_free(&dot);
    recording_free(r);
}

static void graphviz_draws_it_as_svg(void **state)
{
    (void)state;
    if (system("dot -V >/dev/null 2>&1") != 0) {
        print_message("skipped: Graphviz' dot is not installed\n");
        skip();
    }
    char folder[] = "/tmp/draw_test.XXXXXX";
    assert_non_null(mkdtemp(folder));
    char *path = path_join(folder, "it's a graph.svg");
    recording_t *r = small_recording("wq");
    const draw_how_t how = {.title = "small", .backward = true};
    text_t dot = {0};
    draw_dot(r, &how, &dot);
    assert_int_equal(draw_svg(dot.data, path), LH_OK);

    char *svg;
    size_t length;
    assert_int_equal(file_read(path, 1 << 20, &svg, &length), LH_OK);
    assert_non_null(strstr(svg, "<svg"));
    assert_non_null(strstr(svg, "activate"));
    mem_free(svg);
    mem_free(path);
    text_free(&dot);
    recording_free(r);
    assert_int_equal(folder_remove(folder), LH_OK);
}

static void a_missing_dot_is_one_sentence(void **state)
{
    (void)state;
    char folder[] = "/tmp/draw_test.XXXXXX";
    assert_non_null(mkdtemp(folder));
    char *path = path_join(folder, "graph.svg");
    char *search = strdup(getenv("PATH"));
    assert_int_equal(setenv("PATH", folder, 1), 0);
    const lh_status_t status = draw_svg("digraph a {}", path);
    assert_int_equal(setenv("PATH", search, 1), 0);
    assert_int_equal(status, LH_UNSUPPORTED);
    assert_non_null(strstr(fail_reason(), "dot is not installed (package graphviz)"));
    free(search);
    mem_free(path);
    assert_int_equal(folder_remove(folder), LH_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drawing_names_parameters_ops_attributes_and_shapes),
        cmocka_unit_test(the_reverse_pass_is_drawn_when_asked),
        cmocka_unit_test(a_quote_in_a_name_stays_inside_its_string),
        cmocka_unit_test(graphviz_draws_it_as_svg),
        cmocka_unit_test(a_missing_dot_is_one_sentence),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
