/* launch_facts_test.c - what must be the same on all ranks: each key of the option tables, each byte of a
 * plugin and of the program counts, and the ranks refuse what differs before anything starts. */
#include <unit/base/scratch_files.h>

#include <fnmatch.h>
#include <sys/stat.h>

#include <base/file.h>
#include <launch/launch_rank.h>
#include <plugin/host.h>
#include <unit/control/control_ranks.h>

/* What ranks may say differently, "section key"; everything else counts. */
static const char *const free_keys[] = {
    "pipeline *",        "prepare *",        "import *",    "eval *",       "export *",
    "generate *",        "limits *",         "plugin.* *",  "device [!p]*", "device plugin_*",
    "checkpoint folder", "launch [!gnprw]*", "launch port", "watch *",      "chat *",
    "dpo reference",     "eval.* *",
};

static bool counts(const char *section, const char *key)
{
    char name[96];
    (void)snprintf(name, sizeof(name), "%s %s", section, key);
    for (size_t i = 0; i < sizeof(free_keys) / sizeof(free_keys[0]); i++)
        if (fnmatch(free_keys[i], name, 0) == 0) return false;
    return true;
}

static registry_t *open_plugins(const char *folder, host_t **host)
{
    registry_t *plugins;
    assert_int_equal(host_new(host), LH_OK);
    assert_int_equal(registry_new(folder, *host, &plugins), LH_OK);
    return plugins;
}

static void facts_with(scratch_t *s, const char *ini, registry_t *plugins, launch_facts_t *out)
{
    job_t job = {0};
    if (document_load(scratch_text(s, "a.ini", ini), &job.document) != LH_OK ||
        launch_facts_collect(&job, plugins, out) != LH_OK)
        FAIL_TEST("%s: %s\n", ini, fail_reason());
    document_free(job.document);
}

/* No plugin is loaded. */
static void facts_of(scratch_t *s, const char *ini, launch_facts_t *out)
{
    host_t *host;
    registry_t *plugins = open_plugins(LH_TEST_PLUGINS, &host);
    facts_with(s, ini, plugins, out);
    registry_free(plugins);
    host_free(host);
}

/* Rank 2 of 4 has facts of its own, of which `name` alone differs: all say so, at once. */
static void all_refuse(const launch_facts_t *most, const launch_facts_t *other, const char *name,
                       const char *most_value, const char *other_value)
{
    star_t star;
    rank_run_t ranks[RANKS];
    text_t expected = {0};
    assert_int_equal(star_open(&star), LH_OK);
    for (uint32_t i = 0; i < RANKS; i++) {
        const launch_facts_t *own = i == 2 ? other : most;
        ranks[i] = (rank_run_t){.how = star_how(&star, i, RANKS)};
        ranks[i].how.facts = own->rows;
        ranks[i].how.fact_count = own->count;
    }
    const uint64_t begin = sys()->now_ns();
    ranks_open(ranks, RANKS);
    const double seconds = seconds_since(begin);
    if (seconds >= 10) FAIL_TEST("%s: refused after %.3f s\n", name, seconds);
    text_printf(&expected,
                "ranks differ; nothing was started\n"
                "%s: %s on ranks 0-1, 3 (tokyo/t1); %s on rank 2 (osaka/o1)",
                name, most_value, other_value);
    for (uint32_t i = 0; i < RANKS; i++) {
        if (ranks[i].status != LH_MISMATCH) FAIL_TEST("%s: rank %u goes on\n", name, i);
        assert_string_equal(ranks[i].reason, expected.data);
    }
    text_free(&expected);
    secret_free(star.secret);
}

typedef struct tally {
    uint32_t refused, passed;
} tally_t;

static void one_key(scratch_t *s, tally_t *t, const char *section, const char *key)
{
    launch_facts_t most, other;
    char ini[256], name[96];
    (void)snprintf(name, sizeof(name), "[%s] %s", section, key);
    (void)snprintf(ini, sizeof(ini), "[%s]\n%s = one\n", section, key);
    facts_of(s, ini, &most);
    (void)snprintf(ini, sizeof(ini), "[%s]\n%s = two\n", section, key);
    facts_of(s, ini, &other);
    const bool seen = most.count == 2 && other.count == 2;
    if (seen != counts(section, key))
        FAIL_TEST("%s %s\n", name, seen ? "is compared" : "is not compared");
    if (seen) all_refuse(&most, &other, name, "one", "two");
    t->refused += seen;
    t->passed += !seen;
    launch_facts_free(&most);
    launch_facts_free(&other);
}

/* Every row of every section; where a plugin, rule or group has keys there, one of those too. */
static void each_key_of_the_tables_counts(void **state)
{
    scratch_t *s = *state;
    uint32_t sections;
    tally_t t = {0};
    const job_section_t *all = job_sections(&sections);
    for (uint32_t i = 0; i < sections; i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "%s", all[i].name);
        char *star = strchr(name, '*');
        if (star != NULL) (void)strcpy(star, "north");
        for (uint32_t k = 0; k < all[i].count; k++)
            one_key(s, &t, name, all[i].rows[k].key);
        if (all[i].plugin_key != NULL || all[i].count == 0) one_key(s, &t, name, "width");
    }
    print_message("%u keys: %u refused, %u may differ\n", t.refused + t.passed, t.refused,
                  t.passed);
    assert_true(t.refused > 50);
}

static void a_key_that_one_rank_does_not_set_counts(void **state)
{
    scratch_t *s = *state;
    launch_facts_t most, other;
    facts_of(s, "[comm]\n", &most);
    facts_of(s, "[comm]\nbits = ordered\n", &other);
    all_refuse(&most, &other, "[comm] bits", "(not set)", "ordered");
    launch_facts_free(&most);
    launch_facts_free(&other);
}

/* Values too long to show: what differs behind the part that is shown is seen by its digest. */
static void the_end_of_a_long_value_counts(void **state)
{
    scratch_t *s = *state;
    launch_facts_t facts[2];
    for (int i = 0; i < 2; i++) {
        char ini[256];
        (void)snprintf(ini, sizeof(ini), "[data]\ntrain = %0150d\n", i);
        facts_of(s, ini, &facts[i]);
        assert_non_null(strstr(facts[i].rows[1].value, "000... sha256 "));
    }
    all_refuse(&facts[0], &facts[1], "[data] train", facts[0].rows[1].value,
               facts[1].rows[1].value);
    launch_facts_free(&facts[0]);
    launch_facts_free(&facts[1]);
}

/* A folder that holds one plugin, the file of this build with so many zeros behind it. */
static void copy_plugin(scratch_t *s, const char *folder, const char *kind, const char *name,
                        size_t zeros)
{
    char from[512], to[96];
    size_t length;
    (void)snprintf(from, sizeof(from), "%s/%s/%s.so", LH_TEST_PLUGINS, kind, name);
    (void)snprintf(to, sizeof(to), "%s/%s", folder, kind);
    assert_int_equal(folder_make(scratch_path(s, to)), LH_OK);
    char *bytes = scratch_read(from, &length);
    char *longer = calloc(1, length + zeros);
    assert_non_null(longer);
    memcpy(longer, bytes, length);
    (void)snprintf(to, sizeof(to), "%s/%s/%s.so", folder, kind, name);
    (void)scratch_write(s, to, longer, length + zeros);
    assert_int_equal(chmod(s->path, 0755), 0);
    free(longer);
    mem_free(bytes);
}

typedef struct one_plugin {
    uint32_t kind;
    const char *name, *fact;
} one_plugin_t;

static void collect_with(scratch_t *s, const char *folder, const one_plugin_t *p,
                         launch_facts_t *out, char sha256[SHA256_TEXT])
{
    host_t *host;
    const plugin_t *loaded;
    registry_t *plugins = open_plugins(scratch_path(s, folder), &host);
    if (registry_load(plugins, p->kind, p->name, &loaded) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    (void)snprintf(sha256, SHA256_TEXT, "%s", loaded->sha256);
    facts_with(s, "[train]\nbatch = 8\n", plugins, out);
    registry_free(plugins);
    host_free(host);
}

/* The two values are the same but for the digests, which are those of the files. */
static void one_plugin(scratch_t *s, const one_plugin_t *p)
{
    static const char *const folders[] = {"as_built", "with_zeros"};
    launch_facts_t facts[2];
    char sha256[2][SHA256_TEXT];
    for (uint32_t i = 0; i < 2; i++) {
        copy_plugin(s, folders[i], plugin_kind_folder(p->kind), p->name, i * 16);
        collect_with(s, folders[i], p, &facts[i], sha256[i]);
        assert_int_equal(facts[i].count, 3);
        assert_string_equal(facts[i].rows[1].name, p->fact);
        sha256[i][16] = '\0';
        assert_non_null(strstr(facts[i].rows[1].value, sha256[i]));
    }
    assert_string_not_equal(sha256[0], sha256[1]);
    all_refuse(&facts[0], &facts[1], p->fact, facts[0].rows[1].value, facts[1].rows[1].value);
    launch_facts_free(&facts[0]);
    launch_facts_free(&facts[1]);
}

static void each_byte_of_a_plugin_counts(void **state)
{
    static const one_plugin_t all[] = {
        {LH_KIND_TRANSPORT, "shm", "transport plugin shm"},
        {LH_KIND_OPTIMIZER, "zero1", "optimizer plugin zero1"},
        {LH_KIND_MODEL, "gpt2", "model plugin gpt2"},
        {LH_KIND_PARTS, "rules", "parts plugin rules"},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        one_plugin(*state, &all[i]);
}

static void the_program_counts(void **state)
{
    scratch_t *s = *state;
    launch_facts_t most, other;
    char sha256[SHA256_TEXT], value[96];
    facts_of(s, "[train]\n", &most);
    facts_of(s, "[train]\n", &other);
    assert_int_equal(file_digest("/proc/self/exe", sha256), LH_OK);
    (void)snprintf(value, sizeof(value), "%s sha256 %.16s", LH_VERSION, sha256);
    assert_int_equal(most.count, 1);
    assert_string_equal(most.rows[0].name, "program");
    assert_string_equal(most.rows[0].value, value);
    char *changed = (char *)(uintptr_t)other.rows[0].value;
    changed[strlen(changed) - 1] ^= 1;
    all_refuse(&most, &other, "program", value, changed);
    launch_facts_free(&most);
    launch_facts_free(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_key_of_the_tables_counts, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(a_key_that_one_rank_does_not_set_counts, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(the_end_of_a_long_value_counts, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(each_byte_of_a_plugin_counts, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(the_program_counts, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
