/* loader_test.c - which files become plugins, and the sentence for each that does not. */
#include <unit/data/scratch_files.h>

#include <plugin/host.h>
#include <plugin/loader.h>

#define COUNT(t) (sizeof(t) / sizeof((t)[0]))
#define FILE_OF(name) LH_FIXTURES "/optimizers/" name ".so"

static host_t *host;
static registry_t *plugins;

static int open_all(void **state)
{
    if (host_new(&host) != LH_OK || registry_new(LH_FIXTURES, host, &plugins) != LH_OK) return -1;
    return scratch_setup(state);
}

static int close_all(void **state)
{
    registry_free(plugins);
    host_free(host);
    return scratch_teardown(state);
}

static void three_plugins_in_one_process_are_three(void **state)
{
    static const char *const names[] = {"good_one", "good_two", "good_three"};
    const plugin_t *p[3], *again;
    (void)state;
    for (int i = 0; i < 3; i++) {
        if (registry_load(plugins, LH_KIND_OPTIMIZER, names[i], &p[i]) != LH_OK)
            FAIL_TEST("%s\n", fail_reason());
        assert_string_equal(p[i]->name, names[i]);
        assert_string_equal(p[i]->version, names[i]);
        assert_int_equal(strlen(p[i]->sha256), 64);
    }
    assert_ptr_not_equal(p[0]->row.optimizer, p[1]->row.optimizer);
    assert_ptr_not_equal(p[1]->row.optimizer, p[2]->row.optimizer);
    assert_int_equal(registry_load(plugins, LH_KIND_OPTIMIZER, "good_two", &again), LH_OK);
    assert_ptr_equal(again, p[1]);
}

static void tables_are_imported_to_this_hosts_rows(void **state)
{
    const plugin_t *p;
    (void)state;
    assert_int_equal(registry_load(plugins, LH_KIND_OPTIMIZER, "good_one", &p), LH_OK);
    assert_int_equal(p->option_count, 2);
    assert_true(p->row.option_size > sizeof(lh_option_t)); /* the fixture's rows are longer */
    assert_string_equal(p->options[1].key, "width");
    assert_string_equal(p->options[1].fallback, "9");
    assert_int_equal(p->function_count, 1);
    assert_string_equal(p->functions[0].name, "twice");
    assert_non_null(p->optimizer->describe);
    assert_null(p->optimizer->slice);
    assert_null(p->model);
    assert_null(p->device);
    lh_optimizer_t *o;
    assert_int_equal(p->optimizer->open(p->host, NULL, &o), LH_UNSUPPORTED);
    assert_string_equal(fail_reason(), "good_one: a fixture, 0");
}

static void a_part_of_a_plugin_is_imported_with_its_tables(void **state)
{
    const plugin_t *p;
    (void)state;
    if (registry_find(plugins, "acme", &p) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    assert_int_equal(p->kind, LH_KIND_PARTS);
    assert_int_equal(p->op_count, 1);
    assert_string_equal(p->ops[0].attributes[0].key, "beta");
    assert_int_equal(p->rule_count, 1);
    assert_string_equal(p->rules[0].states[0].name, "momentum");
    assert_non_null(plugin_rule(p, "still"));
    assert_null(plugin_rule(p, "stil"));
    assert_string_equal(fail_reason(), "plugin 'acme' has no rule 'stil'; did you mean 'still'?");
}

static void an_older_plugin_gets_zeros(void **state)
{
    const plugin_t *p;
    (void)state;
    if (registry_load(plugins, LH_KIND_OPTIMIZER, "older", &p) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    assert_null(p->row.selftest);
}

static const struct {
    const char *name, *sentence;
} refused[] = {
    {"wrong_abi", FILE_OF("wrong_abi") ": built for ABI 2.0, this host has 1.0: build it anew"},
    {"wrong_kind", FILE_OF("wrong_kind") ": is of kind device (4), expected optimizer"},
    {"wrong_name", FILE_OF("wrong_name") ": calls itself 'other', expected 'wrong_name'"},
    {"odd_size",
     FILE_OF("odd_size") ": lh_plugin_v1 has 188 bytes, expected a multiple of 8 from 64"},
    {"tiny_size",
     FILE_OF("tiny_size") ": lh_plugin_v1 has 48 bytes, expected a multiple of 8 from 64"},
    {"huge_size",
     FILE_OF("huge_size") ": with a struct_size larger than its lh_plugin_v1, expected a plugin"},
    {"no_symbol", FILE_OF("no_symbol") ": without data named lh_plugin_v1, expected a plugin"},
    {"a_function", FILE_OF("a_function") ": without data named lh_plugin_v1, expected a plugin"},
    {"newer_tail",
     FILE_OF("newer_tail") ": lh_plugin_v1 has 192 bytes and uses those behind the 184 that this "
                           "host knows"},
    {"lacks_describe",
     FILE_OF("lacks_describe") ": .optimizer.describe is NULL; every optimizer brings it"},
    {"lacks_api", FILE_OF("lacks_api") ": of kind optimizer, but .optimizer is NULL"},
    {"two_kinds", FILE_OF("two_kinds") ": of kind optimizer, but .device is set"},
    {"bad_offset",
     FILE_OF("bad_offset") ": option 'streams' lies at byte 100000, which is not an aligned place "
                           "for 8 bytes in a config of 16"},
    {"bad_default", FILE_OF("bad_default") ": default of an option: streams = 99: expected 1..64"},
    {"bad_signature", FILE_OF("bad_signature") ": function 'twice' has the signature 'u64(u64)': a "
                                               "parameter lacks its name"},
    {"undefined",
     FILE_OF("undefined") ": cannot be loaded: undefined symbol: no_such_function_anywhere"},
    {"good_on",
     FILE_OF("good_on") ": there is no optimizer plugin 'good_on'; did you mean 'good_one'?"},
    {"nothing_like_it",
     FILE_OF("nothing_like_it") ": there is no optimizer plugin 'nothing_like_it'"},
    {"../evil/tcp",
     "'../evil/tcp' is no plugin's name: expected [a-z][a-z0-9_]*, at most 31 bytes"},
    {"", "'' is no plugin's name: expected [a-z][a-z0-9_]*, at most 31 bytes"},
    {"Good", "'Good' is no plugin's name: expected [a-z][a-z0-9_]*, at most 31 bytes"},
    {"a23456789012345678901234567890123", "'a23456789012345678901234567890123' is no plugin's "
                                          "name: expected [a-z][a-z0-9_]*, at most 31 bytes"},
};

static void every_refusal_is_one_sentence(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(refused); i++) {
        const plugin_t *p = NULL;
        if (registry_load(plugins, LH_KIND_OPTIMIZER, refused[i].name, &p) == LH_OK)
            FAIL_TEST("%s was loaded\n", refused[i].name);
        assert_null(p);
        assert_string_equal(fail_reason(), refused[i].sentence);
    }
}

/* A registry over files made here. */
static lh_status_t load_bytes(scratch_t *s, const void *bytes, size_t length)
{
    registry_t *r;
    const plugin_t *p;
    assert_int_equal(folder_make(scratch_path(s, "optimizers")), LH_OK);
    scratch_write(s, "optimizers/made.so", bytes, length);
    assert_int_equal(registry_new(s->folder, host, &r), LH_OK);
    const lh_status_t status = registry_load(r, LH_KIND_OPTIMIZER, "made", &p);
    registry_free(r);
    return status;
}

static void junk_is_no_plugin(void **state)
{
    static const unsigned char elf[] = {0x7f, 'E', 'L', 'F', 2, 1, 1, 0};
    assert_int_equal(load_bytes(*state, "#!/bin/sh\n", 10), LH_ABI);
    assert_string_equal(behind_folder(*state, fail_reason()),
                        "optimizers/made.so: not an ELF file, expected a plugin");
    assert_int_equal(load_bytes(*state, elf, sizeof(elf)), LH_ABI);
    assert_int_equal(load_bytes(*state, "", 0), LH_INVALID);
}

static void a_file_cut_anywhere_is_refused_before_it_is_mapped(void **state)
{
    size_t length;
    char *bytes = scratch_read(FILE_OF("good_one"), &length);
    for (int part = 1; part < 16; part++) {
        assert_int_equal(load_bytes(*state, bytes, length * (size_t)part / 16), LH_ABI);
        assert_string_equal(behind_folder(*state, fail_reason()),
                            "optimizers/made.so: truncated, expected a plugin");
    }
    mem_free(bytes);
}

static void flipped_bytes_in_the_headers_never_crash_the_reader(void **state)
{
    size_t length;
    char *bytes = scratch_read(FILE_OF("wrong_abi"), &length); /* it would abort if it were run */
    static const unsigned char values[] = {0x00, 0xff, 0x7f, 0x80};
    for (size_t at = 4; at < 512; at += 3) {
        const char was = bytes[at];
        memcpy(bytes + at, &values[at % 4], 1);
        assert_int_not_equal(load_bytes(*state, bytes, length), LH_OK);
        bytes[at] = was;
    }
    mem_free(bytes);
}

static void a_folder_is_absolute_and_a_missing_one_is_empty(void **state)
{
    registry_t *r;
    const plugin_t *p;
    (void)state;
    assert_int_equal(registry_new("lib/longhaul", host, &r), LH_INVALID);
    assert_string_equal(fail_reason(),
                        "lib/longhaul: the folder of plugins is not an absolute path");
    assert_int_equal(registry_new("/nowhere", host, &r), LH_OK);
    assert_int_equal(registry_load(r, LH_KIND_MODEL, "llama", &p), LH_INVALID);
    assert_string_equal(fail_reason(),
                        "/nowhere/models/llama.so: there is no model plugin 'llama'");
    registry_free(r);
}

static void a_long_folder_is_not_cut(void **state)
{
    char folder[4000];
    registry_t *r;
    const plugin_t *p;
    (void)state;
    memset(folder, 'd', sizeof(folder) - 1);
    folder[sizeof(folder) - 1] = '\0';
    folder[0] = '/';
    assert_int_equal(registry_new(folder, host, &r), LH_OK);
    assert_int_not_equal(registry_load(r, LH_KIND_MODEL, "llama", &p), LH_OK);
    registry_free(r);
}

static void a_name_is_cut_at_its_colon(void **state)
{
    char plugin[32];
    const char *name;
    (void)state;
    assert_int_equal(plugin_name_split("rules:adamw", plugin, &name), LH_OK);
    assert_string_equal(plugin, "rules");
    assert_string_equal(name, "adamw");
    static const char *const wrong[] = {
        "adamw", ":adamw", "rules:", "Rules:x", "../x:y", "a23456789012345678901234567890123:x"};
    for (size_t i = 0; i < COUNT(wrong); i++)
        if (plugin_name_split(wrong[i], plugin, &name) == LH_OK) FAIL_TEST("%s\n", wrong[i]);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        registry_t *r = NULL;
        const plugin_t *p;
        mem_fail_at(n, false);
        lh_status_t status = registry_new(LH_FIXTURES, host, &r);
        if (status == LH_OK) status = registry_load(r, LH_KIND_PARTS, "acme", &p);
        mem_fail_at(0, false);
        registry_free(r);
        if (status == LH_OK) {
            assert_true(n > 10);
            break;
        }
        assert_int_equal(status, LH_NO_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_plugins_in_one_process_are_three),
        cmocka_unit_test(tables_are_imported_to_this_hosts_rows),
        cmocka_unit_test(a_part_of_a_plugin_is_imported_with_its_tables),
        cmocka_unit_test(an_older_plugin_gets_zeros),
        cmocka_unit_test(every_refusal_is_one_sentence),
        cmocka_unit_test(junk_is_no_plugin),
        cmocka_unit_test(a_file_cut_anywhere_is_refused_before_it_is_mapped),
        cmocka_unit_test(flipped_bytes_in_the_headers_never_crash_the_reader),
        cmocka_unit_test(a_folder_is_absolute_and_a_missing_one_is_empty),
        cmocka_unit_test(a_long_folder_is_not_cut),
        cmocka_unit_test(a_name_is_cut_at_its_colon),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
