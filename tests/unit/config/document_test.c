/* document_test.c - INI text: what is read, and the sentence for what is not. */
#include <unit/base/scratch_files.h>

#include <base/text.h>
#include <config/document.h>
#include <config/ini_lines.h>

#define COUNT(t) (sizeof(t) / sizeof((t)[0]))
#define X50 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"

static const char *value_of(const document_t *d, const char *section, const char *key)
{
    const document_entry_t *e = document_entry(document_find(d, section), key);
    return e == NULL ? NULL : e->value;
}

static document_t *load(scratch_t *s, const char *name, const char *text)
{
    document_t *d = NULL;
    if (document_load(scratch_text(s, name, text), &d) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    return d;
}

static void values_are_read_as_people_write_them(void **state)
{
    document_t *d = load(*state, "a.ini",
                         "\xef\xbb\xbf; a comment\r\n"
                         "# another\n"
                         "\n"
                         "[train]   ; behind a section\r\n"
                         "steps = 100   ; behind a value\n"
                         "batch=8\r\n"
                         "call = acme:f(step, peak=1e-3)\n"
                         "kept = a;b\n"
                         "escaped = a \\; b\n"
                         "hosts = h1, h2,\n"
                         "  h3,\n"
                         "\t; a comment between\n"
                         "\th4\n"
                         "nothing =\n"
                         "[empty]\n"
                         "[site.tokyo-1]\n"
                         "last = yes");
    assert_string_equal(value_of(d, "train", "steps"), "100");
    assert_string_equal(value_of(d, "train", "batch"), "8");
    assert_string_equal(value_of(d, "train", "call"), "acme:f(step, peak=1e-3)");
    assert_string_equal(value_of(d, "train", "kept"), "a;b");
    assert_string_equal(value_of(d, "train", "escaped"), "a ; b");
    assert_string_equal(value_of(d, "train", "hosts"), "h1, h2, h3, h4");
    assert_string_equal(value_of(d, "train", "nothing"), "");
    assert_non_null(document_find(d, "empty"));
    assert_int_equal(document_find(d, "empty")->entry_count, 0);
    assert_string_equal(value_of(d, "site.tokyo-1", "last"), "yes");
    assert_int_equal(document_entry(document_find(d, "train"), "batch")->line, 6);
    assert_int_equal(document_find(d, "site.tokyo-1")->line, 16);
    document_free(d);
}

static void a_line_of_199_bytes_is_whole(void **state)
{
    char text[256] = "[a]\nkey = ";
    memset(text + strlen(text), 'x', 193);
    document_t *d = load(*state, "a.ini", text);
    assert_int_equal(strlen(value_of(d, "a", "key")), 193);
    document_free(d);
}

static const struct {
    const char *text, *sentence;
} refused[] = {
    {"[a]\nkey = " X50 X50 X50 X50 "\n",
     "a.ini:2: the line has 206 bytes, more than 199; continue a list on indented lines"},
    {"[" X50 "]\n", "a.ini:1: the section name has 50 bytes, at most 49 are read"},
    {"[a]\n" X50 " = 1\n", "a.ini:2: the key has 50 bytes, at most 49 are read"},
    {"[a]\na = 1\n  b = 2\n",
     "a.ini:3: an indented 'key = value' would continue the line above; remove the indent"},
    {"[a]\na = 1\n [b]\n",
     "a.ini:3: an indented [section] would continue the line above; remove the indent"},
    {"[a]\n  more\n", "a.ini:2: 'more' continues nothing: no key = value stands above it"},
    {"[a]\nkey: 3\n", "a.ini:2: 'key:' is not read as a key; write key = value"},
    {"[a]\nkey:x = 3\n", "a.ini:2: 'key:' is not read as a key; write key = value"},
    {"[a]\njunk\n", "a.ini:2: 'junk' is neither [section] nor key = value"},
    {"[a]\n= 3\n", "a.ini:2: a value without a key"},
    {"[a]\nb c = 3\n",
     "a.ini:2: key 'b c' holds ' '; keys are of letters, digits, '_', '.' and '-'"},
    {"[a]\nb\xc3\xa9 = 3\n",
     "a.ini:2: key 'b\xc3\xa9' holds byte 0xc3; keys are of letters, digits, "
     "'_', '.' and '-'"},
    {"[a\n", "a.ini:1: '[' without ']'"},
    {"[]\n", "a.ini:1: a section without a name"},
    {"[ a ]\n", "a.ini:1: [ a ] holds ' '; names are of letters, digits, '_', '.' and '-'"},
    {"[a] b = 1\n", "a.ini:1: 'b = 1' stands behind [a]"},
    {"x = 1\n[a]\n", "a.ini:1: 'x' stands above the first [section]"},
    {"[a]\nx = \x1b[31m\n", "a.ini:2: byte 5 is the control character 0x1b"},
    {"[a]\nx = 1\rjunk\n", "a.ini:2: byte 6 is the control character 0x0d"},
    {"[a]\nx = 1\ny = 2\nx = 3\n", "a.ini:4: 'x' in [a] again; it is at line 2 too"},
    {"[a]\nx = 1\n[b]\n[a]\n", "a.ini:4: [a] stands here again; it began at line 1"},
    {"[a]\ninclude = b.ini\n", "a.ini:2: include belongs above the first [section]"},
    {"include = b.ini,\n", "a.ini:1: include names no file"},
    {"include =\n", "a.ini:1: include names no file"},
    {"include = a.ini\n[x]\n", "a.ini:1: a.ini is included by itself"},
    {"include = b.ini\ninclude = c.ini\n",
     "a.ini:2: include stands here again; it is at line 1 too: "
     "write include = a.ini, b.ini"},
};

/* The scratch folder is cut out wherever it stands. */
static void assert_sentence(const scratch_t *s, const char *expected)
{
    char got[1024] = "", cut[80];
    const char *from = fail_reason();
    (void)snprintf(cut, sizeof(cut), "%s/", s->folder);
    while (*from != '\0' && strlen(got) < sizeof(got) - 1) {
        if (strncmp(from, cut, strlen(cut)) == 0)
            from += strlen(cut);
        else
            got[strlen(got)] = *from++;
    }
    assert_string_equal(got, expected);
}

static void a_hostile_line_is_one_sentence(void **state)
{
    scratch_t *s = *state;
    scratch_text(s, "b.ini", "[b]\n");
    for (size_t i = 0; i < COUNT(refused); i++) {
        document_t *d = NULL;
        assert_int_equal(document_load(scratch_text(s, "a.ini", refused[i].text), &d), LH_INVALID);
        assert_null(d);
        assert_sentence(s, refused[i].sentence);
    }
}

static void a_nul_byte_is_refused(void **state)
{
    static const char text[] = "[a]\nx = 1\0junk\n";
    document_t *d;
    assert_int_equal(document_load(scratch_write(*state, "a.ini", text, sizeof(text) - 1), &d),
                     LH_INVALID);
    assert_sentence(*state, "a.ini:2: byte 6 is the control character 0x00");
}

static void a_file_over_a_mebibyte_is_refused(void **state)
{
    static char text[INI_FILE_LIMIT + 1];
    document_t *d;
    memset(text, '\n', sizeof(text));
    assert_int_equal(document_load(scratch_write(*state, "a.ini", text, sizeof(text)), &d),
                     LH_INVALID);
    scratch_write(*state, "a.ini", text, sizeof(text) - 1);
    assert_int_equal(document_load(scratch_path(*state, "a.ini"), &d), LH_OK);
    document_free(d);
}

/* Half of them in a file that the other includes. */
static void more_than_4096_keys_in_all_are_refused(void **state)
{
    enum { HALF = 2048 };
    scratch_t *s = *state;
    document_t *d;
    for (int more = 0; more < 2; more++) {
        text_t half = {0}, rest = {0};
        text_append(&half, "[a]\n");
        text_append(&rest, "include = half.ini\n[b]\n");
        for (int i = 0; i < HALF; i++)
            text_printf(&half, "k%d = 1\n", i);
        for (int i = 0; i < HALF + more; i++)
            text_printf(&rest, "k%d = 1\n", i);
        assert_false(half.failed || rest.failed);
        (void)scratch_text(s, "half.ini", half.data);
        const char *path = scratch_text(s, "a.ini", rest.data);
        assert_int_equal(document_load(path, &d), more == 0 ? LH_OK : LH_INVALID);
        if (more == 0) document_free(d);
        text_free(&rest);
        text_free(&half);
    }
    assert_sentence(s, "a.ini:2051: more than 4096 keys in all");
}

static void an_including_file_overrides_and_remembers(void **state)
{
    scratch_t *s = *state;
    scratch_text(s, "base.ini", "[train]\nsteps = 10\nbatch = 4\n[model]\nplugin = llama\n");
    scratch_text(s, "more.ini", "[train]\nbatch = 5\n");
    document_t *d = load(s, "a.ini", "include = base.ini, more.ini\n[train]\nsteps = 20\n");
    const document_entry_t *steps = document_entry(document_find(d, "train"), "steps");
    assert_string_equal(steps->value, "20");
    assert_int_equal(steps->line, 3);
    assert_non_null(steps->overrides);
    assert_string_equal(steps->overrides->value, "10");
    assert_int_equal(steps->overrides->line, 2);
    assert_true(text_ends(steps->overrides->file, "/base.ini"));
    assert_string_equal(value_of(d, "train", "batch"), "5");
    assert_string_equal(value_of(d, "model", "plugin"), "llama");

    assert_int_equal(document_set(d, "train.steps=30"), LH_OK);
    steps = document_entry(document_find(d, "train"), "steps");
    assert_string_equal(steps->value, "30");
    assert_null(steps->file);
    assert_string_equal(steps->overrides->value, "20");
    document_free(d);
}

static void includes_end(void **state)
{
    scratch_t *s = *state;
    document_t *d;
    scratch_text(s, "b.ini", "include = sub/../a.ini\n");
    assert_int_equal(folder_make(scratch_path(s, "sub")), LH_OK);
    scratch_text(s, "a.ini", "include = b.ini\n");
    assert_int_equal(document_load(scratch_path(s, "a.ini"), &d), LH_INVALID);
    assert_sentence(s, "b.ini:1: sub/../a.ini is included by itself");

    for (int i = 0; i < 10; i++) {
        char name[32], text[64];
        (void)snprintf(name, sizeof(name), "d%d.ini", i);
        (void)snprintf(text, sizeof(text), "include = d%d.ini\n", i + 1);
        scratch_text(s, name, text);
    }
    assert_int_equal(document_load(scratch_path(s, "d0.ini"), &d), LH_INVALID);
    assert_sentence(s, "d7.ini:1: d8.ini is included more than 8 files deep");

    /* Each of four levels includes the next ten times: 10^4 files if nobody counted. */
    scratch_text(s, "e4.ini", "[x]\n");
    for (int i = 0; i < 4; i++) {
        char name[32], text[256] = "include = ";
        (void)snprintf(name, sizeof(name), "e%d.ini", i);
        for (int k = 0; k < 10; k++)
            (void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "%se%d.ini",
                           k > 0 ? "," : "", i + 1);
        scratch_text(s, name, text);
    }
    assert_int_equal(document_load(scratch_path(s, "e0.ini"), &d), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "more than 64 files are included"));

    scratch_text(s, "a.ini", "include = missing.ini\n");
    assert_int_equal(document_load(scratch_path(s, "a.ini"), &d), LH_IO);
    assert_sentence(s, "a.ini:1: cannot include missing.ini: No such file or directory");
    scratch_text(s, "a.ini", "\ninclude = sub\n");
    assert_int_equal(document_load(scratch_path(s, "a.ini"), &d), LH_INVALID);
    assert_sentence(s, "a.ini:2: include: sub: not a regular file");
    scratch_text(s, "a.ini", "include = /proc/self/mem\n");
    assert_int_equal(document_load(scratch_path(s, "a.ini"), &d), LH_INVALID);
    assert_sentence(s, "a.ini:1: include: /proc/self/mem: not a regular file: its size is 0, and "
                       "yet it is not empty");
}

static void the_command_line_sets_and_makes(void **state)
{
    document_t *d = load(*state, "a.ini",
                         "[device]\nplugin = cpu\n[hook.after_step]\ncall = f()\n");
    assert_int_equal(document_set(d, "device.fallback.matmul=host"), LH_OK);
    assert_string_equal(value_of(d, "device", "fallback.matmul"), "host");
    assert_int_equal(document_set(d, "hook.after_step.call = a:g(x=1)"), LH_OK);
    assert_string_equal(value_of(d, "hook.after_step", "call"), "a:g(x=1)");
    assert_int_equal(document_set(d, "group.norms.rate=2"), LH_OK);
    assert_string_equal(value_of(d, "group.norms", "rate"), "2");
    assert_int_equal(document_set(d, "train.steps=5"), LH_OK);
    assert_string_equal(value_of(d, "train", "steps"), "5");

    static const char *const wrong[] = {"",        "train",    "train.steps", "=3",
                                        "steps=3", ".steps=3", "train.=3",    "a.b=\x1b[0m"};
    for (size_t i = 0; i < COUNT(wrong); i++)
        if (document_set(d, wrong[i]) != LH_INVALID) FAIL_TEST("'%s' was taken\n", wrong[i]);
    static const char *const sentences[][2] = {
        {"steps=3", "--set steps=3: write section.key=value"},
        {"a.b=c\nd", "--set a.b=c\nd: byte 6 is the control character 0x0a"},
        {"a.b=\x7f", "--set a.b=\x7f: byte 5 is the control character 0x7f"},
        {"a.b=\xff", "--set a.b=\xff: byte 5, 0xff, is not UTF-8"},
    };
    for (size_t i = 0; i < COUNT(sentences); i++) {
        assert_int_equal(document_set(d, sentences[i][0]), LH_INVALID);
        assert_string_equal(fail_reason(), sentences[i][1]);
    }
    document_free(d);
}

static void a_folder_or_a_missing_file_is_no_document(void **state)
{
    document_t *d;
    scratch_t *s = *state;
    assert_int_not_equal(document_load(s->folder, &d), LH_OK);
    assert_int_equal(document_load("/nowhere/x.ini", &d), LH_IO);
    assert_string_equal(fail_reason(), "/nowhere/x.ini: cannot read: No such file or directory");
}

static void every_allocation_may_fail(void **state)
{
    scratch_t *s = *state;
    scratch_text(s, "base.ini", "[train]\nsteps = 10\n");
    scratch_text(s, "a.ini", "include = base.ini\n[train]\nsteps = 1,\n  2\n[b]\nc = d\n");
    uint64_t n = 1;
    for (;; n++) {
        document_t *d = NULL;
        mem_fail_at(n, false);
        const lh_status_t status = document_load(scratch_path(s, "a.ini"), &d);
        mem_fail_at(0, false);
        document_free(d);
        if (status == LH_OK) break;
        assert_int_equal(status, LH_NO_MEMORY);
    }
    assert_true(n > 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read_as_people_write_them),
        cmocka_unit_test(a_line_of_199_bytes_is_whole),
        cmocka_unit_test(a_hostile_line_is_one_sentence),
        cmocka_unit_test(a_nul_byte_is_refused),
        cmocka_unit_test(a_file_over_a_mebibyte_is_refused),
        cmocka_unit_test(more_than_4096_keys_in_all_are_refused),
        cmocka_unit_test(an_including_file_overrides_and_remembers),
        cmocka_unit_test(includes_end),
        cmocka_unit_test(the_command_line_sets_and_makes),
        cmocka_unit_test(a_folder_or_a_missing_file_is_no_document),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
