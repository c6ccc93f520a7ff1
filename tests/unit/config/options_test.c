/* options_test.c - tables of options: filled, refused, and themselves checked. */
#include <unit/base/scratch_files.h>

#include <config/options.h>

#define COUNT(t) (sizeof(t) / sizeof((t)[0]))

typedef struct tcp_config {
    uint64_t streams, segment_bytes, timeout_ns, line_bytes;
    double loss;
    char *path, *name;
    uint32_t algorithm, window;
    bool fast;
} tcp_config_t;

static const lh_option_t rows[] = {
    LH_OPTION_U64(tcp_config_t, streams, "streams", NULL, "1..64", "sockets"),
    LH_OPTION_BYTES(tcp_config_t, segment_bytes, "segment", "256KiB", "4KiB..64MiB",
                    "bytes at a time"),
    LH_OPTION_DURATION(tcp_config_t, timeout_ns, "timeout", "30s", "1ms..10min", "silence"),
    LH_OPTION_RATE(tcp_config_t, line_bytes, "line", "100Gbps", NULL, "line rate"),
    LH_OPTION_F64(tcp_config_t, loss, "loss", "0.5", "0..1", "lost part"),
    LH_OPTION_PATH(tcp_config_t, path, "path", "keys/a", "a file"),
    LH_OPTION_STRING(tcp_config_t, name, "name", "", "a name"),
    LH_OPTION_CHOICE(tcp_config_t, algorithm, "algorithm", "tree", "ring|tree", "order"),
    LH_OPTION_U32(tcp_config_t, window, "window", "7", "..9", "rows"),
    LH_OPTION_BOOL(tcp_config_t, fast, "fast", "no", "hurry"),
};

static document_t *document_of(scratch_t *s, const char *text)
{
    document_t *d = NULL;
    if (document_load(scratch_text(s, "a.ini", text), &d) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    return d;
}

static lh_status_t parse(scratch_t *s, const char *text, tcp_config_t *out)
{
    const option_table_t table = {.rows = rows,
                                  .count = COUNT(rows),
                                  .owner = "tcp",
                                  .config_size = sizeof(*out),
                                  .config = out};
    document_t *d = document_of(s, text);
    const options_how_t how = {
        .document = d, .section = "tcp", .tables = &table, .table_count = 1, .folder = "/etc"};
    memset(out, 0, sizeof(*out));
    const lh_status_t status = options_parse(&how);
    document_free(d);
    return status;
}

static void defaults_go_through_the_same_parser(void **state)
{
    tcp_config_t c;
    assert_int_equal(parse(*state, "[tcp]\nstreams = 8\n", &c), LH_OK);
    assert_int_equal(c.streams, 8);
    assert_int_equal(c.segment_bytes, 262144);
    assert_true(c.timeout_ns == 30000000000);
    assert_true(c.line_bytes == 12500000000);
    assert_true(c.loss == 0.5);
    assert_string_equal(c.path, "/etc/keys/a");
    assert_null(c.name);
    assert_int_equal(c.algorithm, 1);
    assert_int_equal(c.window, 7);
    assert_false(c.fast);
    options_free(rows, COUNT(rows), &c);
    assert_null(c.path);
}

static void what_is_typed_wins_over_the_default(void **state)
{
    tcp_config_t c;
    assert_int_equal(parse(*state,
                           "[tcp]\nstreams = 64\nsegment = 4KiB\nalgorithm = ring\npath = /a/b\n"
                           "name = x y\nfast = yes\nwindow = 9\nloss = 1\n",
                           &c),
                     LH_OK);
    assert_int_equal(c.streams, 64);
    assert_int_equal(c.segment_bytes, 4096);
    assert_int_equal(c.algorithm, 0);
    assert_string_equal(c.path, "/a/b");
    assert_string_equal(c.name, "x y");
    assert_true(c.fast);
    assert_int_equal(c.window, 9);
    options_free(rows, COUNT(rows), &c);
}

/* By value: what is typed another way is the same. */
static void a_default_is_one_however_it_is_typed(void **state)
{
    tcp_config_t c;
    assert_int_equal(parse(*state,
                           "[tcp]\nstreams = 8\nsegment = 0.25MiB\ntimeout = 30000ms\n"
                           "line = 12.5GB/s\nloss = 5e-1\nname =\nalgorithm = tree\n"
                           "window = 7\nfast = no\n",
                           &c),
                     LH_OK);
    for (uint32_t i = 1; i < COUNT(rows); i++)
        if (rows[i].type != LH_OPT_PATH && !option_is_default(&rows[i], &c))
            FAIL_TEST("%s is not its default\n", rows[i].key);
    assert_false(option_is_default(&rows[0], &c)); /* has none */
    options_free(rows, COUNT(rows), &c);
    assert_int_equal(parse(*state,
                           "[tcp]\nstreams = 8\nsegment = 257KiB\ntimeout = 30001ms\n"
                           "line = 99Gbps\nloss = 0.50000000000000011\nname = x\n"
                           "algorithm = ring\nwindow = 6\nfast = yes\n",
                           &c),
                     LH_OK);
    for (uint32_t i = 0; i < COUNT(rows); i++)
        if (rows[i].type != LH_OPT_PATH && option_is_default(&rows[i], &c))
            FAIL_TEST("%s is its default\n", rows[i].key);
    options_free(rows, COUNT(rows), &c);
}

static const struct {
    const char *text, *sentence;
} refused[] = {
    {"[tcp]\nstream = 8\n", "a.ini:2: unknown key 'stream' in [tcp]; did you mean 'streams'?"},
    {"[tcp]\nqqq = 8\n", "a.ini:2: unknown key 'qqq' in [tcp]"},
    {"[tcp]\nfast = yes\n", "a.ini:1: 'streams' is missing in [tcp] (sockets)"},
    {"[other]\n", "[tcp] is missing; it needs at least 'streams' (sockets)"},
    {"[tcp]\nstreams = 0\n", "a.ini:2: streams = 0: expected 1..64"},
    {"[tcp]\nstreams = 65\n", "a.ini:2: streams = 65: expected 1..64"},
    {"[tcp]\nstreams = 8x\n",
     "a.ini:2: streams = 8x: expected a whole number such as 8, 10k or 2M"},
    {"[tcp]\nstreams =\n", "a.ini:2: streams = : expected a whole number such as 8, 10k or 2M"},
    {"[tcp]\nstreams = 1\nsegment = 1KiB\n", "a.ini:3: segment = 1KiB: expected 4KiB..64MiB"},
    {"[tcp]\nstreams = 1\nsegment = 64\n", "a.ini:3: segment = 64: expected 4KiB..64MiB"},
    {"[tcp]\nstreams = 1\ntimeout = 5\n",
     "a.ini:3: timeout = 5: expected a time such as 10us, 250ms or 2s"},
    {"[tcp]\nstreams = 1\nalgorithm = tre\n",
     "a.ini:3: algorithm = tre: expected one of ring|tree; did you mean 'tree'?"},
    {"[tcp]\nstreams = 1\nfast = true\n", "a.ini:3: fast = true: expected yes or no"},
    {"[tcp]\nstreams = 1\nwindow = 4294967296\n",
     "a.ini:3: window = 4294967296: expected a whole number such as 8 or 10k"},
    {"[tcp]\nstreams = 1\nwindow = 10\n", "a.ini:3: window = 10: expected ..9"},
    {"[tcp]\nstreams = 1\nloss = nan\n",
     "a.ini:3: loss = nan: expected a number such as 0.1 or 3e-4"},
};

static void a_wrong_value_is_one_sentence_and_nothing_is_owned(void **state)
{
    for (size_t i = 0; i < COUNT(refused); i++) {
        tcp_config_t c;
        assert_int_equal(parse(*state, refused[i].text, &c), LH_INVALID);
        assert_string_equal(behind_folder(*state, fail_reason()), refused[i].sentence);
        assert_null(c.path);
    }
}

#define ROW(k, f, r, h, t, o)                                                  \
    {                                                                          \
        .key = k, .fallback = f, .range = r, .help = h, .type = t, .offset = o \
    }

static const struct {
    lh_option_t row;
    const char *sentence;
} bad_rows[] = {
    {ROW("a", "1", NULL, "h", LH_OPT_U64, 100000),
     "x: option 'a' lies at byte 100000, which is not an "
     "aligned place for 8 bytes in a config of 16"},
    {ROW("a", "1", NULL, "h", LH_OPT_U64, 12),
     "x: option 'a' lies at byte 12, which is not an aligned "
     "place for 8 bytes in a config of 16"},
    {ROW("a", "1", NULL, "h", LH_OPT_U64, 4294967288u),
     "x: option 'a' lies at byte 4294967288, which is "
     "not an aligned place for 8 bytes in a config of 16"},
    {ROW("a", "1", NULL, "h", 99, 0), "x: option 'a' has type 99, which is none"},
    {ROW("a", "1", NULL, NULL, LH_OPT_U64, 0), "x: option 'a' has no help"},
    {ROW(NULL, "1", NULL, "h", LH_OPT_U64, 0),
     "x: option '(none)': keys are snake_case of at most 49 letters"},
    {ROW("aB", "1", NULL, "h", LH_OPT_U64, 0),
     "x: option 'aB': keys are snake_case of at most 49 letters"},
    {ROW("a", "70", "1..64", "h", LH_OPT_U64, 0),
     "x: default of an option: a = 70: expected 1..64"},
    {ROW("a", "70", "64..1", "h", LH_OPT_U64, 0),
     "x: option 'a' has the range '64..1', which is none"},
    {ROW("a", "70", "1-64", "h", LH_OPT_U64, 0),
     "x: option 'a' has the range '1-64', which is none"},
    {ROW("a", "x", NULL, "h", LH_OPT_CHOICE, 0), "x: option 'a' is a choice among nothing"},
    {ROW("b", "1", NULL, "h", LH_OPT_U64, 8), "x: option 'b' stands in the table twice"},
    {ROW("a", "1", NULL, "h", LH_OPT_U32, 12), "x: options 'b' and 'a' overlap at byte 12"},
};

static void a_table_is_checked_itself(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(bad_rows); i++) {
        const lh_option_t two[] = {ROW("b", "1", NULL, "h", LH_OPT_U64, 8), bad_rows[i].row};
        const option_table_t table = {.rows = two, .count = 2, .owner = "x", .config_size = 16};
        assert_int_equal(options_validate(&table), LH_ABI);
        assert_string_equal(fail_reason(), bad_rows[i].sentence);
    }
    const option_table_t good = {
        .rows = rows, .count = COUNT(rows), .owner = "tcp", .config_size = sizeof(tcp_config_t)};
    assert_int_equal(options_validate(&good), LH_OK);
}

typedef struct core_config {
    char *plugin, *vocab, *fallback;
} core_config_t;
static const lh_option_t core_rows[] = {
    LH_OPTION_STRING(core_config_t, plugin, "plugin", NULL, "model plugin"),
    LH_OPTION_STRING(core_config_t, vocab, "vocab", "from_tokenizer", "rows"),
    LH_OPTION_STRING(core_config_t, fallback, "fallback.*", "", "by op"),
};
typedef struct model_config {
    uint64_t vocab, hidden, heads;
} model_config_t;
static const lh_option_t model_rows[] = {
    LH_OPTION_U64(model_config_t, vocab, "vocab", NULL, "1..", "rows"),
    LH_OPTION_U64(model_config_t, hidden, "hidden", NULL, "1..", "width"),
    LH_OPTION_U64(model_config_t, heads, "heads", "2", "1..", "heads"),
};

static void two_tables_share_a_section(void **state)
{
    core_config_t core = {0};
    model_config_t model = {0};
    const option_table_t tables[] = {
        {core_rows, COUNT(core_rows), "the core", sizeof(core), &core},
        {model_rows, COUNT(model_rows), "llama", sizeof(model), &model},
    };
    const option_given_t given[] = {
        {"vocab", "5056", "tokenizer", true},
        {"hidden", "99", "config.json", false},
        {"heads", "4", "config.json", false},
    };
    document_t *d = document_of(*state,
                                "[model]\nplugin = llama\nvocab = from_tokenizer\nhidden = 128\n"
                                "fallback.gate = host\nfallback.rope = f32\n");
    options_how_t how = {.document = d, .section = "model", .tables = tables, .table_count = 2};
    assert_int_equal(options_parse(&how), LH_ABI);
    assert_string_equal(fail_reason(), "[model]: option 'vocab' of llama is also one of the core");

    how.given = given;
    how.given_count = COUNT(given);
    assert_int_equal(options_parse(&how), LH_OK);
    assert_string_equal(core.vocab, "from_tokenizer");
    assert_string_equal(core.fallback, "gate = host, rope = f32");
    assert_int_equal(model.vocab, 5056); /* fixed: the core knows it            */
    assert_int_equal(model.hidden, 128); /* the INI beats what is only given    */
    assert_int_equal(model.heads, 4);    /* given beats the default             */
    options_free(core_rows, COUNT(core_rows), &core);

    text_t out = {0};
    options_explain(&how, &out);
    assert_non_null(
        strstr(out.data, "heads              = 4                              ; config.json\n"));
    assert_non_null(strstr(out.data, "fallback.gate      = host                           ; "));
    text_free(&out);
    document_free(d);
}

static void explained_text_is_read_again_as_the_same(void **state)
{
    scratch_t *s = *state;
    static const char text[] = "[model]\nplugin = a \\; b\nvocab = 7\n";
    document_t *d = document_of(s, text), *again;
    const option_table_t table = {core_rows, COUNT(core_rows), "the core", sizeof(core_config_t),
                                  NULL};
    const options_how_t how = {
        .document = d, .section = "model", .tables = &table, .table_count = 1};
    text_t out = {0};
    options_explain(&how, &out);
    assert_int_equal(document_load(scratch_text(s, "b.ini", out.data), &again), LH_OK);
    assert_string_equal(document_entry(document_find(again, "model"), "plugin")->value, "a ; b");
    assert_string_equal(document_entry(document_find(again, "model"), "vocab")->value, "7");
    text_free(&out);
    document_free(again);
    document_free(d);
}

/* Of a list over indented lines, and of a file with a long name. */
static void what_is_longer_than_a_line_is_read_again_as_the_same(void **state)
{
    scratch_t *s = *state;
    text_t text = {0}, wanted = {0};
    text_append(&text, "[model]\nplugin = host0000");
    text_append(&wanted, "host0000");
    for (int i = 1; i < 60; i++) {
        text_printf(&text, ",%s host%04d", i % 10 == 0 ? "\n   " : "", i);
        text_printf(&wanted, ", host%04d", i);
    }
    text_append(&text, "\nvocab = 7\n");
    const option_table_t table = {core_rows, COUNT(core_rows), "the core", sizeof(core_config_t),
                                  NULL};
    for (size_t length = 60; length <= 240; length += 15) {
        char name[256];
        memset(name, 'n', length);
        memcpy(name + length, ".ini", sizeof(".ini"));
        document_t *d = NULL, *again = NULL;
        assert_int_equal(document_load(scratch_text(s, name, text.data), &d), LH_OK);
        const options_how_t how = {
            .document = d, .section = "model", .tables = &table, .table_count = 1};
        text_t out = {0};
        options_explain(&how, &out);
        if (document_load(scratch_text(s, "b.ini", out.data), &again) != LH_OK)
            FAIL_TEST("%s\n", fail_reason());
        const document_section_t *model = document_find(again, "model");
        assert_string_equal(document_entry(model, "plugin")->value, wanted.data);
        assert_string_equal(document_entry(model, "vocab")->value, "7");
        text_free(&out);
        document_free(again);
        document_free(d);
    }
    text_free(&wanted);
    text_free(&text);
}

static void every_allocation_may_fail(void **state)
{
    const option_table_t sized = {
        .rows = rows, .count = COUNT(rows), .owner = "tcp", .config_size = sizeof(tcp_config_t)};
    document_t *d = document_of(*state, "[tcp]\nstreams = 8\nname = x\n");
    uint64_t n = 1;
    for (;; n++) {
        tcp_config_t c = {0};
        option_table_t table = sized;
        table.config = &c;
        const options_how_t how = {
            .document = d, .section = "tcp", .tables = &table, .table_count = 1, .folder = "/etc"};
        mem_fail_at(n, false);
        const lh_status_t status = options_parse(&how);
        mem_fail_at(0, false);
        if (status == LH_OK) {
            options_free(rows, COUNT(rows), &c);
            break;
        }
        assert_int_equal(status, LH_NO_MEMORY);
        assert_null(c.path);
        assert_null(c.name);
    }
    assert_true(n > 2);
    document_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_go_through_the_same_parser),
        cmocka_unit_test(what_is_typed_wins_over_the_default),
        cmocka_unit_test(a_default_is_one_however_it_is_typed),
        cmocka_unit_test(a_wrong_value_is_one_sentence_and_nothing_is_owned),
        cmocka_unit_test(a_table_is_checked_itself),
        cmocka_unit_test(two_tables_share_a_section),
        cmocka_unit_test(explained_text_is_read_again_as_the_same),
        cmocka_unit_test(what_is_longer_than_a_line_is_read_again_as_the_same),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
