/* call_test.c - calls from INI text: what they give, and the sentence for each that is wrong. */
#include <unit/base/scratch_files.h>

#include <errno.h>
#include <math.h>

#include <config/job.h>
#include <config/job_load.h>
#include <plugin/call.h>
#include <plugin/host.h>
#include <plugin/plugin.h>
#include <plugin/registry.h>

#define COUNT(t) (sizeof(t) / sizeof((t)[0]))

static host_t *host;
static registry_t *plugins;
static const lh_host_t *services;

/* clang-format off */
LH_FUNCTION(f64, ramp, (u64, step), (f64, peak), (u64, warmup), (u64, total)) {
    return step < warmup ? peak * (double)step / (double)warmup : peak * (double)(total - step);
}
LH_FUNCTION(f64, add, (f64, a), (f64, b)) { return a + b; }
LH_FUNCTION(f64, not_finite, (u64, step)) { return step == 0 ? 1 : NAN; }
LH_FUNCTION(i64, minus, (i64, a)) { return -a; }
LH_FUNCTION(u64, size, (u64, bytes)) { return bytes; }
LH_FUNCTION(u64, length, (str, text)) { return strlen(text); }
LH_FUNCTION(str, same, (str, text)) { return text; }
LH_FUNCTION(status, copy, (tensor, source), (u64, heads), (tensor, out)) {
    out->rank = source->rank + (uint32_t)heads;
    return LH_OK;
}
LH_FUNCTION(u64, sixteen, (u64, a), (u64, b), (u64, c), (u64, d), (u64, e), (u64, f), (u64, g), (u64, h),
            (u64, i), (u64, j), (u64, k), (u64, l), (u64, m), (u64, n), (u64, o), (f64, p)) {
    return a + b + c + d + e + f + g + h + i + j + k + l + m + n + 1000 * o + (uint64_t)p;
}
LH_FUNCTION_0(f64, half) { return 0.5; }
LH_FUNCTION(u64, seen, (u64, x)) { return call->host != NULL && call->struct_size == sizeof(*call) ? x : 0; }
/* clang-format on */

static const lh_function_t functions[] = {
    LH_FUNCTION_ENTRY(ramp, "h"),  LH_FUNCTION_ENTRY(add, "h"),  LH_FUNCTION_ENTRY(not_finite, "h"),
    LH_FUNCTION_ENTRY(minus, "h"), LH_FUNCTION_ENTRY(size, "h"), LH_FUNCTION_ENTRY(length, "h"),
    LH_FUNCTION_ENTRY(same, "h"),  LH_FUNCTION_ENTRY(copy, "h"), LH_FUNCTION_ENTRY(sixteen, "h"),
    LH_FUNCTION_ENTRY(half, "h"),  LH_FUNCTION_ENTRY(seen, "h"),
};

static const call_variable_t variables[] = {
    {"step", CALL_U64},
    {"loss", CALL_F64},
    {"source", CALL_TENSOR},
    {"out", CALL_TENSOR},
};

static call_scope_t scope(void)
{
    return (call_scope_t){.functions = functions,
                          .function_count = COUNT(functions),
                          .variables = variables,
                          .variable_count = COUNT(variables),
                          .plugins = plugins,
                          .host = services};
}

static int open_all(void **state)
{
    if (host_new(&host) != LH_OK || registry_new(LH_FIXTURES, host, &plugins) != LH_OK ||
        host_for(host, "core", &services) != LH_OK)
        return -1;
    return scratch_setup(state);
}

static int close_all(void **state)
{
    registry_free(plugins);
    host_free(host);
    return scratch_teardown(state);
}

static call_value_t run(const char *text, uint32_t type, uint64_t step, double loss)
{
    const call_scope_t s = scope();
    call_value_t out = {0};
    const call_value_t values[] = {
        {.u64 = step}, {.f64 = loss}, {.tensor = NULL}, {.tensor = NULL}};
    call_t *call;
    if (call_bind(text, "t", &s, type, &call) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    if (call_run(call, values, &out) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    call_free(call);
    return out;
}

static const struct {
    const char *text;
    double value; /* with step = 3 and loss = 2.5 */
} numbers[] = {
    {"ramp(step, peak=1e-3, warmup=50, total=1000)", 1e-3 * 3 / 50},
    {"ramp(step, 1e-3, 50, 1000)", 1e-3 * 3 / 50},
    {"ramp(total=1k, warmup=50, peak=1e-3, step=step)", 1e-3 * 3 / 50},
    {"ramp(peak=1e-3, warmup=0, total=1000)", 1e-3 * 997}, /* step is a variable of that name */
    {"add(loss, loss)", 5},
    {"add(add(loss, 1), add(add(0.25, -1), half()))", 3.25},
    {"half()", 0.5},
    {"half( )", 0.5},
    {"loss", 2.5},
    {"3e-4", 3e-4},
};

static void a_call_gives_what_the_function_gives(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(numbers); i++) {
        const double got = run(numbers[i].text, CALL_F64, 3, 2.5).f64;
        if (fabs(got - numbers[i].value) > 1e-15 * fabs(got))
            FAIL_TEST("%s gives %.17g\n", numbers[i].text, got);
    }
}

/* Variables of the scope, by index: step, loss. */
static const struct {
    const char *text;
    bool reads[2];
} readers[] = {
    {"ramp(step, 1e-3, 50, 1000)", {true, false}},
    {"ramp(peak=1e-3, warmup=0, total=1000)", {true, false}}, /* not given, and there by its name */
    {"add(1, add(loss, 2))", {false, true}},
    {"half()", {false, false}},
};

static void a_call_says_which_variables_it_reads(void **state)
{
    (void)state;
    const call_scope_t s = scope();
    for (size_t i = 0; i < COUNT(readers); i++) {
        call_t *call;
        assert_int_equal(call_bind(readers[i].text, "t", &s, CALL_F64, &call), LH_OK);
        for (uint32_t v = 0; v < 2; v++)
            assert_int_equal(call_reads(call, v), readers[i].reads[v]);
        call_free(call);
    }
}

static const struct {
    const char *text;
    uint64_t value;
} wholes[] = {
    {"size(10k)", 10000},
    {"size(64MiB)", 67108864},
    {"size(250ms)", 250000000},
    {"size(bytes=18446744073709551615)", UINT64_MAX},
    {"length(\"a, b)=(\")", 7},
    {"length(text=same(\"abc\"))", 3},
    {"length(\"\")", 0},
    {"seen(7)", 7},
    {"sixteen(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, o=2, p=30)", 2044},
};

static void arguments_arrive_in_their_type(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(wholes); i++) {
        const uint64_t got = run(wholes[i].text, CALL_U64, 3, 2.5).u64;
        if (got != wholes[i].value)
            FAIL_TEST("%s gives %llu\n", wholes[i].text, (unsigned long long)got);
    }
    assert_true(run("minus(-9223372036854775807)", CALL_I64, 0, 0).i64 == INT64_MAX);
    assert_true(run("minus(minus(-5))", CALL_I64, 0, 0).i64 == -5);
}

static void tensors_and_missing_variables_are_bound_by_name(void **state)
{
    const call_scope_t s = scope();
    lh_tensor_t source = {.rank = 2}, out = {0};
    const call_value_t values[] = {{0}, {0}, {.tensor = &source}, {.tensor = &out}};
    call_t *call;
    (void)state;
    if (call_bind("copy(source, heads=5)", "t", &s, CALL_STATUS, &call) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    assert_int_equal(call_run(call, values, NULL), LH_OK);
    assert_int_equal(out.rank, 7);
    call_free(call);
}

#define RAMP "ramp is f64(u64 step, f64 peak, u64 warmup, u64 total)"
#define RAMP_IT "it is f64(u64 step, f64 peak, u64 warmup, u64 total)"

static const struct {
    const char *text;
    uint32_t type;
    const char *sentence;
} refused[] = {
    {"ramp(step, peek=1)", CALL_F64, "ramp has no parameter 'peek'; " RAMP_IT},
    {"ramp(step, peak=1, warmup=1)", CALL_F64, "'total' is missing; " RAMP},
    {"ramp(step, peak=3e-4x, warmup=1, total=2)", CALL_F64, "peak=3e-4x is not a valid f64"},
    {"ramp(step, peak=nan, warmup=1, total=2)", CALL_F64,
     "'nan' is no variable here; there are: step, loss, "
     "source, out"},
    {"ramp(step, peak=inf, warmup=1, total=2)", CALL_F64,
     "'inf' is no variable here; there are: step, loss, "
     "source, out"},
    {"ramp(step, peak=1e999, warmup=1, total=2)", CALL_F64, "peak=1e999 is not a valid f64"},
    {"ramp(step, peak=0x1, warmup=1, total=2)", CALL_F64, "peak=0x1 is not a valid f64"},
    {"ramp(step,,peak=1)", CALL_F64, "nothing stands before ',' in the arguments of ramp"},
    {"ramp(step, )", CALL_F64, "nothing stands before ')' in the arguments of ramp"},
    {"ramp(,step)", CALL_F64, "nothing stands before ',' in the arguments of ramp"},
    {"ramp(st ep, peak=1)", CALL_F64,
     "'st' is no variable here; there are: step, loss, source, out"},
    {"ramp(step, peak=3 e-4)", CALL_F64, "expected ',' or ')' in the arguments of ramp at 'e-4)'"},
    {"ramp(step, 1, 2, 3) + 1", CALL_F64, "'+ 1' stands behind the end of the call"},
    {"ramp(step, 1, 2, 3))", CALL_F64, "')' stands behind the end of the call"},
    {"ramp(step, 1, 2, 3", CALL_F64, "expected ',' or ')' in the arguments of ramp at ''"},
    {"ramp(step, 1, 2,", CALL_F64, "no ')' behind the arguments of ramp"},
    {"ramp(", CALL_F64, "no ')' behind the arguments of ramp"},
    {"ramp(step, 1, 2, 3, 4)", CALL_F64, "ramp takes 4 arguments; " RAMP_IT},
    {"half(1)", CALL_F64, "half takes 0 arguments; it is f64()"},
    {"ramp(step=step, 1, 2, 3)", CALL_F64,
     "'1, 2, 3)' has no keyword, but stands behind one that has"},
    {"ramp(step, step=step)", CALL_F64, "'step' is given to ramp twice"},
    {"ramp(loss, 1, 2, 3)", CALL_F64, "'loss' is f64, but ramp wants u64 for 'step'"},
    {"ramp(half(), 1, 2, 3)", CALL_F64, "'half' is f64, but ramp wants u64 for 'step'"},
    {"ramp(\"3\", 1, 2, 3)", CALL_F64, "'3' is str, but ramp wants u64 for 'step'"},
    {"ramp(-3, 1, 2, 3)", CALL_F64, "step=-3 is not a valid u64"},
    {"ramp(1.5, 1, 2, 3)", CALL_F64, "step=1.5 is not a valid u64"},
    {"rampe(step)", CALL_F64, "the core has no function 'rampe'; did you mean 'ramp'?"},
    {"system(\"rm\")", CALL_F64, "the core has no function 'system'"},
    {"step", CALL_F64, "'step' gives u64, expected f64"},
    {"size(1)", CALL_F64, "'size' gives u64, expected f64"},
    {"add(loss, 1)", CALL_STATUS, "'add' gives f64, expected status"},
    {"3e-4x", CALL_F64, "'3e-4x' is not a valid f64"},
    {"", CALL_F64, "'' is not a valid f64"},
    {"(1)", CALL_F64, "'' is not a valid f64"},
    {"length(\"abc)", CALL_U64, "no second '\"' behind \"abc)"},
    {"length(abc)", CALL_U64,
     "'abc' is no variable here; there are: step, loss, source, out (a text stands in "
     "double quotes)"},
    {"length(3)", CALL_U64, "text=3 is not a valid str"},
    {"copy(3, 1)", CALL_STATUS, "source=3 is not a valid tensor"},
    {"acme:nothing(3)", CALL_U64, "plugin acme has no function 'nothing'"},
    {"acme:shiftet(3)", CALL_U64, "plugin acme has no function 'shiftet'; did you mean 'shifted'?"},
    {"acme:shifted(3)", CALL_U64,
     "acme:shifted: plugin acme has options that nothing in this job sets"},
    {"acme:", CALL_U64, "expected a function and '(' behind 'acme:'"},
    {"acme: shifted(3)", CALL_U64, "expected a function and '(' behind 'acme:'"},
    {"add(add(add(add(add(add(add(add(add(1,1),1),1),1),1),1),1),1),1)", CALL_F64,
     "calls stand more than 8 deep in each other"},
};

static void every_mistake_is_a_sentence_when_the_text_is_bound(void **state)
{
    const call_scope_t s = scope();
    (void)state;
    for (size_t i = 0; i < COUNT(refused); i++) {
        call_t *call = NULL;
        if (call_bind(refused[i].text, "a.ini:3: rate", &s, refused[i].type, &call) == LH_OK)
            FAIL_TEST("'%s' was bound\n", refused[i].text);
        assert_null(call);
        if (!text_starts(fail_reason(), "a.ini:3: rate: ")) FAIL_TEST("%s\n", fail_reason());
        assert_string_equal(fail_reason() + strlen("a.ini:3: rate: "), refused[i].sentence);
    }
}

static void depth_and_size_end_before_memory_does(void **state)
{
    const call_scope_t s = scope();
    char text[4096] = "";
    call_t *call;
    (void)state;
    for (int i = 0; i < 500; i++)
        strcat(text, "add(1,");
    assert_int_equal(call_bind(text, "t", &s, CALL_F64, &call), LH_INVALID);
    text[0] = '\0';
    strcat(text, "add(");
    for (int i = 0; i < 40; i++)
        strcat(text, i % 2 == 0 ? "add(1,1), " : "add(1,1)), add(");
    assert_int_equal(call_bind(text, "t", &s, CALL_F64, &call), LH_INVALID);
}

static const char *const bad_signatures[] = {
    "", "f64", "f64(", "f64(u64)", "f64(u64 a", "f64(u64 a,", "f64(u64 a,)", "f64(u64 a) x",
    "f32(u64 a)", "f64(status a)", "f64(u64 a, u64 a)", "f64(u64  )", "f64 (u64 a)",
    "f64(u64 a;u64 b)", "f64(u64 1a)", "f64(u64 a23456789012345678901234567890123)",
    /* clang-format off */
    ("f64(u64 a,u64 b,u64 c,u64 d,u64 e,u64 f,u64 g,u64 h,u64 i,u64 j,u64 k,u64 l,u64 m,u64 n,u64 o,u64 p,"
     "u64 q)"),
    /* clang-format on */
};

static void a_malformed_signature_is_never_read_past(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(bad_signatures); i++) {
        char *exact = mem_text(bad_signatures[i]); /* a sanitizer sees a read behind it */
        if (plugin_signature_parse(exact, NULL) == NULL) FAIL_TEST("'%s' was taken\n", exact);
        mem_free(exact);
    }
    assert_null(plugin_signature_parse("f64()", NULL));
    assert_null(plugin_signature_parse("f64(u64 a, str b)", NULL));
}

static void a_plugins_function_sees_its_options_and_its_reason_is_kept(void **state)
{
    static const char text[] =
        "[pipeline]\nname = x\nstages = eval\n[model]\nplugin = m\n[device]\nplugin = d\n"
        "[parts.acme]\noffset = 7\n";
    const call_scope_t before = scope();
    call_scope_t s = before;
    call_value_t out;
    job_t *job;
    registry_t *r;
    call_t *call;
    if (job_load(scratch_text(*state, "a.ini", text), NULL, 0, &job) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    assert_int_equal(registry_new(LH_FIXTURES, host, &r), LH_OK);
    registry_use_job(r, job);
    s.plugins = r;
    if (call_bind("acme:shifted(step)", "t", &s, CALL_U64, &call) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    const call_value_t values[] = {{.u64 = 35}, {0}, {0}, {0}};
    assert_int_equal(call_run(call, values, &out), LH_OK);
    assert_int_equal(out.u64, 42);
    call_free(call);

    assert_int_equal(call_bind("acme:refuse(step, why=\"enough\")", "t", &s, CALL_STATUS, &call),
                     LH_OK);
    const call_value_t early[] = {{.u64 = 2}, {0}, {0}, {0}};
    assert_int_equal(call_run(call, early, NULL), LH_OK);
    assert_int_equal(call_run(call, values, NULL), LH_INVALID);
    assert_string_equal(fail_reason(), "acme: step 35: enough");
    call_free(call);

    assert_int_equal(call_bind("acme:refuse_number(step)", "t", &s, CALL_F64, &call), LH_OK);
    assert_int_equal(call_run(call, early, &out), LH_OK);
    assert_int_equal(call_run(call, values, &out), LH_INVALID);
    assert_string_equal(fail_reason(), "t: refuse_number: acme: no rate for step 35");
    call_free(call);

    assert_int_equal(call_bind("acme:silent()", "t", &s, CALL_STATUS, &call), LH_OK);
    errno = 0;
    assert_int_equal(call_run(call, values, NULL), LH_IO);
    assert_string_equal(fail_reason(), "t: silent: system or driver call failed");
    call_free(call);
    registry_free(r);
    job_free(job);
}

static void a_result_that_is_not_finite_is_refused(void **state)
{
    const call_scope_t s = scope();
    call_value_t out;
    call_t *call;
    (void)state;
    assert_int_equal(call_bind("add(not_finite(step), 1)", "t", &s, CALL_F64, &call), LH_OK);
    const call_value_t zero[] = {{.u64 = 0}, {0}, {0}, {0}}, one[] = {{.u64 = 1}, {0}, {0}, {0}};
    assert_int_equal(call_run(call, zero, &out), LH_OK);
    assert_true(out.f64 == 2);
    assert_int_equal(call_run(call, one, &out), LH_INVALID);
    assert_string_equal(fail_reason(), "t: not_finite gave nan");
    call_free(call);
}

static void a_bound_call_does_not_allocate(void **state)
{
    const call_scope_t s = scope();
    const call_value_t values[] = {{.u64 = 3}, {.f64 = 1}, {0}, {0}};
    call_value_t out;
    call_t *call;
    (void)state;
    assert_int_equal(call_bind("add(ramp(step, 1, 2, 3), loss)", "t", &s, CALL_F64, &call), LH_OK);
    const uint64_t before = mem_count();
    for (int i = 0; i < 100; i++)
        assert_int_equal(call_run(call, values, &out), LH_OK);
    assert_int_equal(mem_count(), before);
    call_free(call);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_gives_what_the_function_gives),
        cmocka_unit_test(a_call_says_which_variables_it_reads),
        cmocka_unit_test(arguments_arrive_in_their_type),
        cmocka_unit_test(tensors_and_missing_variables_are_bound_by_name),
        cmocka_unit_test(every_mistake_is_a_sentence_when_the_text_is_bound),
        cmocka_unit_test(depth_and_size_end_before_memory_does),
        cmocka_unit_test(a_malformed_signature_is_never_read_past),
        cmocka_unit_test(a_plugins_function_sees_its_options_and_its_reason_is_kept),
        cmocka_unit_test(a_result_that_is_not_finite_is_refused),
        cmocka_unit_test(a_bound_call_does_not_allocate),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
