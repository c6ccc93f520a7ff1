/* link_record_test.c - links.json: written and read as the same; what is damaged is refused with
 * where and what, and ignored by a run. */
#include <session/link_record.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <base/file.h>
#include <base/memory.h>
#include <links/link_crowd.h>

#include <cmocka.h>
#undef fail

static char folder[] = "/tmp/link_record_XXXXXX";
static job_t job = {.pipeline = {.folder = folder}};

static probe_pair_t row(const char *a, const char *b)
{
    probe_pair_t p = {
        .address = {"10.0.0.1", "10.0.0.2"},
        .plugin = "wire",
        .figures = {.measured_s = 1790000000,
                    .took_ns = 2100000000,
                    .round_trip_ns = 10000001,
                    .median_ns = 10100000,
                    .p99_ns = 12000000,
                    .loaded_ns = 14000000,
                    .path_mtu = 9000,
                    .rate = {123456789, 987654321},
                    .asked = 1250000000,
                    .burst = {120000000, 950000000},
                    .loss = {0, 0.00123},
                    .loss_most = {1.5e-4, -1},
                    .choice = 2,
                    .choice_loss = {0.002, 0.002},
                    .streams = 8,
                    .chunk_bytes = 1 << 20,
                    .window_bytes = 1234567,
                    .buffer_bytes = 3703701,
                    .together = {200000000, 987654322},
                    .together_ranks = 8,
                    .beside = {[BESIDE_ALL] = {60000000, 500000000}},
                    .beside_pairs = 3,
                    .beside_at_s = 1790000001,
                    .tuned = "window 1.23 MB",
                    .cards = {{{"eth0", 60000000, 10000002, 0}, {"eth1", 70000000, 0, 0.25}}},
                    .card_count = {2, 0}}};
    (void)snprintf(p.site[0], sizeof(p.site[0]), "%s", a);
    (void)snprintf(p.site[1], sizeof(p.site[1]), "%s", b);
    return p;
}

static void what_is_kept_is_read_as_the_same(void **state)
{
    (void)state;
    probe_pair_t *got;
    uint32_t count;
    const probe_pair_t first[] = {row("a", "b"), row("a", "c")};
    link_record_keep(&job, first, 2, NULL, 0);
    link_record_load(&job, &got, &count);
    assert_int_equal(count, 2);
    assert_memory_equal(got, first, sizeof(first));
    mem_free(got);

    /* Another run of other sites, and one of these again. */
    probe_pair_t second[] = {row("a", "c"), row("x", "y"), row("x", "z")};
    second[0].figures.rate[0] = 5;
    second[2].figures.measured_s = 0; /* not measured */
    link_record_keep(&job, second, 3, NULL, 0);
    link_record_load(&job, &got, &count);
    assert_int_equal(count, 3);
    assert_memory_equal(&got[0], &second[0], sizeof(got[0]));
    assert_memory_equal(&got[1], &second[1], sizeof(got[0]));
    assert_memory_equal(&got[2], &first[0], sizeof(got[0]));
    mem_free(got);
}

/* What eight ranks of each site had at once is not lost by a job of one, which measures nothing. */
static void a_job_of_fewer_ranks_leaves_what_more_had(void **state)
{
    (void)state;
    probe_pair_t *got;
    uint32_t count;
    const probe_pair_t many = row("many", "few");
    probe_pair_t few = many;
    link_crowd_scale(&few.figures, 1);
    assert_true(few.figures.together[0] < many.figures.together[0]);
    link_record_keep(&job, &many, 1, NULL, 0);
    link_record_keep(&job, &few, 1, NULL, 0);
    link_record_load(&job, &got, &count);
    assert_true(count > 0);
    assert_memory_equal(got, &many, sizeof(many));
    mem_free(got);

    few.figures.measured_s++; /* it has measured them */
    link_record_keep(&job, &few, 1, NULL, 0);
    link_record_load(&job, &got, &count);
    assert_true(count > 0);
    assert_memory_equal(got, &few, sizeof(few));
    mem_free(got);
}

/* Records of builds that measured one pair at a time have no word of what pairs leave each other. */
static void a_row_without_what_was_measured_at_once_is_read(void **state)
{
    (void)state;
    probe_pair_t p = row("a", "b");
    link_record_t got;
    text_t text = {0};
    memset(p.figures.together, 0, sizeof(p.figures.together));
    memset(p.figures.beside, 0, sizeof(p.figures.beside));
    p.figures.together_ranks = p.figures.beside_pairs = p.figures.beside_at_s = 0;
    p.figures.asked = 0;
    memset(p.figures.cards, 0, sizeof(p.figures.cards));
    p.figures.card_count[0] = 0;
    link_record_text(&p, 1, NULL, 0, &text);
    assert_null(strstr(text.data, "together"));
    assert_null(strstr(text.data, "beside"));
    assert_null(strstr(text.data, "asked"));
    assert_null(strstr(text.data, "cards"));
    assert_null(strstr(text.data, "machines"));
    assert_int_equal(link_record_parse("links.json", text.data, text.length, &got), LH_OK);
    assert_true(got.pair_count == 1 && got.word_count == 0);
    assert_memory_equal(got.pairs, &p, sizeof(p));
    link_record_free(&got);
    text_free(&text);
}

static probe_words_t words(const char *site, const char *before, const char *after)
{
    probe_words_t w = {.address = "10.0.0.1", .plugin = "wire", .measured_s = 1790000000};
    (void)snprintf(w.site, sizeof(w.site), "%s", site);
    (void)snprintf(w.before, sizeof(w.before), "%s", before);
    (void)snprintf(w.after, sizeof(w.after), "%s", after);
    return w;
}

/* The record of the folder as it stands in its file. */
static link_record_t record(void)
{
    link_record_t got = {0};
    char *text = NULL, *path = path_join(folder, "links.json");
    size_t length;
    assert_int_equal(file_read(path, 16 << 20, &text, &length), LH_OK);
    assert_int_equal(link_record_parse(path, text, length, &got), LH_OK);
    mem_free(text);
    mem_free(path);
    return got;
}

/* What was said of a machine is replaced by what it says later, and stays where links are only used. */
static void what_machines_said_is_kept(void **state)
{
    (void)state;
    static probe_words_t long_words;
    const probe_pair_t p = row("a", "b");
    const probe_words_t first[] = {
        words("a", "eth0: 10 Gb/s\n  counters: \"RetransSegs\" 7, 0 in the rest (3)",
              "  counters: RetransSegs 9"),
        words("b", "one line", "")};
    link_record_keep(&job, &p, 1, first, 2);
    link_record_keep(&job, &p, 1, NULL, 0);
    link_record_t got = record();
    assert_true(got.pair_count >= 1 && got.word_count == 2);
    assert_memory_equal(got.words, first, sizeof(first));
    link_record_free(&got);

    long_words = words("a", "", "");
    memset(long_words.before, '"', sizeof(long_words.before) - 1);
    memset(long_words.after, '\1', sizeof(long_words.after) - 1);
    link_record_keep(&job, &p, 1, &long_words, 1);
    got = record();
    assert_int_equal(got.word_count, 2);
    assert_memory_equal(&got.words[0], &long_words, sizeof(long_words));
    assert_memory_equal(&got.words[1], &first[1], sizeof(first[1]));
    link_record_free(&got);

    /* What is written is no longer than what is read. */
    enum { MACHINES = 70, MOST = 64 };
    static probe_words_t many[MACHINES];
    for (uint32_t i = 0; i < MACHINES; i++) {
        many[i] = long_words;
        memset(many[i].before, '\1', sizeof(many[i].before) - 1);
        (void)snprintf(many[i].site, sizeof(many[i].site), "s%u", i);
    }
    link_record_keep(&job, &p, 1, many, MACHINES);
    probe_pair_t *pairs;
    uint32_t count;
    link_record_load(&job, &pairs, &count);
    assert_true(count >= 1);
    mem_free(pairs);
    got = record();
    assert_int_equal(got.word_count, MOST);
    assert_memory_equal(got.words, many, MOST * sizeof(many[0]));
    link_record_free(&got);
}

/* What is written is no longer than what is read. */
static void more_pairs_than_a_record_takes_are_left_out(void **state)
{
    (void)state;
    enum { PAIRS = 1001 };
    static probe_pair_t many[PAIRS];
    probe_pair_t *got;
    uint32_t count;
    for (uint32_t i = 0; i < PAIRS; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "s%u", i);
        many[i] = row("a", name);
    }
    link_record_keep(&job, many, PAIRS, NULL, 0);
    link_record_load(&job, &got, &count);
    assert_int_equal(count, PAIRS - 1);
    assert_memory_equal(got, many, (PAIRS - 1) * sizeof(many[0]));
    mem_free(got);
}

static void refused(const char *text, const char *words)
{
    link_record_t got = {0};
    assert_true(link_record_parse("links.json", text, strlen(text), &got) != LH_OK);
    if (strstr(fail_reason(), words) == NULL) print_message("%s\n", fail_reason());
    assert_non_null(strstr(fail_reason(), words));
}

/* The record's text with one value in place of another. */
static void refused_with(const char *old, const char *fresh, const char *words)
{
    const probe_pair_t p = row("a", "b");
    text_t text = {0};
    char changed[4096];
    json_writer_t w = {.to = &text, .style = JSON_TIGHT};
    json_open(&w, NULL, '{');
    json_put_u64(&w, "version", 1);
    link_record_rows(&w, "links", &p, 1);
    json_close(&w);
    const char *at = strstr(text.data, old);
    assert_non_null(at);
    (void)snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - text.data), text.data, fresh,
                   at + strlen(old));
    text_free(&text);
    refused(changed, words);
}

static void what_is_damaged_is_refused_with_where_and_what(void **state)
{
    (void)state;
    refused("", "links.json");
    refused("{\"version\": 1, \"links\"", "links.json: not JSON");
    refused("{\"version\": 2, \"links\": []}", "expected version 1");
    refused("{\"version\": 1, \"links\": {}}", "expected version 1 and a list");
    refused("{\"version\": 1, \"links\": [3]}", "links[0].sites is nothing; expected a text");
    refused_with("\"round_trip_ns\":10000001", "\"round_trip_ns\":-1",
                 "links[0].round_trip_ns is -1; expected a number from 0 to 1e18");
    refused_with("[123456789,987654321]", "[123456789]",
                 "links[0].bytes_per_second is [123456789]; expected two numbers");
    refused_with("[123456789,987654321]", "[1e30,1]", "expected two numbers from 0 to 1e18");
    refused_with("[200000000,987654322]", "7",
                 "links[0].together_bytes_per_second is 7; expected two numbers from 0 to 1e18");
    refused_with("\"beside_pairs\":3", "\"beside_pairs\":\"x\"",
                 "links[0].beside_pairs is \"x\"; expected a number");
    refused_with("\"streams\":8", "\"streams\":80000", "expected a number from 0 to 1000");
    refused_with("\"plugin\":\"wire\"", "\"plugin\":7", "links[0].plugin is 7; expected a text");
    refused_with("\"sites\":[\"a\"", "\"sites\":[\"aaaaaaaaaabbbbbbbbbbccccccccccddddddd\"",
                 "expected a text of at most 31 bytes");
    refused_with("\"name\":\"eth1\"", "\"name\":\"a0123456789012345\"",
                 "links[0].cards is \"a0123456789012345\"; expected a text of at most 15 bytes");
    refused_with("\"bytes_per_second\":70000000", "\"bytes_per_second\":-1",
                 "expected numbers from 0 to 1e18");
    refused_with("\"loss\":0.25", "\"loss\":2", "links[0].cards is 2; expected a loss from 0 to 1");
    refused_with("}],[]]", "}]]", "expected two lists of at most 8 cards");
    refused_with("}],[]]", "}],7]", "expected two lists of at most 8 cards");
    refused_with("}],[]]", "}],[{},{},{},{},{},{},{},{},{}]]",
                 "expected two lists of at most 8 cards");
}

/* A record of one link, with this in place of its machines; the caller frees the text. */
static void record_with(const char *machines, const probe_pair_t *p, text_t *out)
{
    json_writer_t w = {.to = out, .style = JSON_TIGHT};
    json_open(&w, NULL, '{');
    json_put_u64(&w, "version", 1);
    link_record_rows(&w, "links", p, 1);
    text_printf(out, ",\"machines\":%s}", machines);
    assert_int_equal(text_status(out), LH_OK);
}

static void left_out(const char *machines, const char *words)
{
    const probe_pair_t p = row("a", "b");
    text_t text = {0};
    link_record_t got = {0};
    record_with(machines, &p, &text);
    assert_int_equal(link_record_parse("links.json", text.data, text.length, &got), LH_OK);
    assert_true(got.pair_count == 1 && got.word_count == 0 && got.words == NULL);
    assert_memory_equal(got.pairs, &p, sizeof(p));
    if (strstr(got.left_out, words) == NULL) print_message("%s\n", got.left_out);
    assert_non_null(strstr(got.left_out, words));
    link_record_free(&got);
    text_free(&text);
}

/* The last one's first machine is whole; a run takes its links, and keeps what machines say from then
 * on. */
static void damaged_words_of_machines_leave_the_links(void **state)
{
    (void)state;
    static const char second[] =
        "[{\"site\":\"a\",\"address\":\"b\",\"plugin\":\"c\",\"before\":\"\",\"after\":\"\","
        "\"measured\":1},{\"site\":\"a\",\"address\":\"b\",\"plugin\":\"c\",\"before\":[]}]";
    left_out("7", "links.json: machines is no list of at most 64");
    left_out("[7]", "machines[0].site is nothing; expected a text of at most 31 bytes");
    left_out("[{\"site\":\"a\",\"address\":\"b\",\"plugin\":\"c\",\"before\":\"\",\"after\":\"\","
             "\"measured\":-1}]",
             "machines[0].measured is -1; expected a number from 0 to 1e18");
    left_out(second, "machines[1].before is []; expected a text of at most 4095 bytes");

    const probe_pair_t p = row("a", "b");
    const probe_words_t said = words("a", "eth0: 10 Gb/s", "");
    text_t text = {0};
    probe_pair_t *got;
    uint32_t count;
    char *path = path_join(folder, "links.json");
    record_with(second, &p, &text);
    assert_int_equal(file_replace(path, text.data, text.length), LH_OK);
    link_record_load(&job, &got, &count); /* warns */
    assert_int_equal(count, 1);
    assert_memory_equal(got, &p, sizeof(p));
    mem_free(got);
    link_record_keep(&job, NULL, 0, &said, 1);
    link_record_t kept = record();
    assert_true(kept.pair_count == 1 && kept.word_count == 1 && kept.left_out[0] == '\0');
    assert_memory_equal(kept.words, &said, sizeof(said));
    link_record_free(&kept);
    text_free(&text);
    mem_free(path);
}

static void a_run_measures_again_where_its_record_is_damaged(void **state)
{
    (void)state;
    probe_pair_t *got;
    uint32_t count;
    const probe_pair_t p = row("a", "b");
    char *path = path_join(folder, "links.json");
    assert_int_equal(file_replace(path, "\0\1\2", 3), LH_OK);
    link_record_load(&job, &got, &count); /* warns */
    assert_int_equal(count, 0);
    link_record_keep(&job, &p, 1, NULL, 0);
    link_record_load(&job, &got, &count);
    assert_int_equal(count, 1);
    mem_free(got);
    assert_int_equal(unlink(path), 0);
    link_record_load(&job, &got, &count);
    assert_int_equal(count, 0);
    mem_free(path);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return folder_remove(folder) != LH_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_kept_is_read_as_the_same),
        cmocka_unit_test(a_job_of_fewer_ranks_leaves_what_more_had),
        cmocka_unit_test(a_row_without_what_was_measured_at_once_is_read),
        cmocka_unit_test(what_machines_said_is_kept),
        cmocka_unit_test(more_pairs_than_a_record_takes_are_left_out),
        cmocka_unit_test(what_is_damaged_is_refused_with_where_and_what),
        cmocka_unit_test(damaged_words_of_machines_leave_the_links),
        cmocka_unit_test(a_run_measures_again_where_its_record_is_damaged),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
