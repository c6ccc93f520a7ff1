/* link_record.c - links.json: {"version": 1, "links": [a row for each pair of sites], "machines": [what
 * was said of each machine that measured]}. The second list may be missing, as builds that knew of none
 * left it out.
 *
 * Tables of rows say which key holds which field of probe_figures_t; reading and writing walk the
 * same tables, so a field that is added stands in one place. Numbers are bounded when they are
 * read, as a file in the pipeline's folder may have been edited by hand. A damaged row of a link costs the
 * whole record, as links can be measured anew; damaged words of a machine cost the words alone. */
#include <session/link_record.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <format/json.h>
#include <links/link_crowd.h>

enum { RECORD_VERSION = 1, RECORD_BYTES = 8 << 20, RECORD_VALUES = 200000 };
/* Machines: of the sites of one job, which are few. */
enum { RECORD_ROWS = 1000, RECORD_MACHINES = 64 };
static const double most_number = 1e18; /* of bytes, nanoseconds and seconds: fits 63 bits */

typedef struct number_row { /* a key of a row, and where its value lies in probe_figures_t */
    const char *key;
    size_t offset;
    bool optional; /* left out where it is 0, as in records of builds that did not know it */
} number_row_t;

/* What of a row stands behind its key. */
#define AT(field) offsetof(probe_figures_t, field), false
#define MAY(field) offsetof(probe_figures_t, field), true
/* By the type of the field: uint64_t; uint64_t there and back; double there and back, where below 0
 * is "not told"; uint32_t. */
static const number_row_t whole_rows[] = {
    {"measured", AT(measured_s)},
    {"took_ns", AT(took_ns)},
    {"round_trip_ns", AT(round_trip_ns)},
    {"median_ns", AT(median_ns)},
    {"p99_ns", AT(p99_ns)},
    {"loaded_ns", AT(loaded_ns)},
    {"path_mtu", AT(path_mtu)},
    {"chunk", AT(chunk_bytes)},
    {"window", AT(window_bytes)},
    {"buffer", AT(buffer_bytes)},
    {"together_ranks", MAY(together_ranks)},
    {"beside_pairs", MAY(beside_pairs)},
    {"beside_at", MAY(beside_at_s)},
    {"asked_bytes_per_second", MAY(asked)},
};
static const number_row_t pair_rows[] = {
    {"bytes_per_second", AT(rate)},
    {"burst_bytes_per_second", AT(burst)},
    {"together_bytes_per_second", MAY(together)},
    {"beside_all_bytes_per_second", MAY(beside[BESIDE_ALL])},
    {"beside_first_bytes_per_second", MAY(beside[BESIDE_FIRST])},
    {"beside_second_bytes_per_second", MAY(beside[BESIDE_SECOND])},
};
static const number_row_t share_rows[] = {
    {"loss", AT(loss)}, {"loss_most", AT(loss_most)}, {"choice_loss", MAY(choice_loss)}};
static const number_row_t small_rows[] = {{"choice", AT(choice)}, {"streams", AT(streams)}};
#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

/* The texts of a machine, and where they lie in probe_words_t. */
static const struct text_row {
    const char *key;
    size_t offset, room;
} machine_rows[] = {
    {"site", offsetof(probe_words_t, site), WORLD_SITE_NAME},
    {"address", offsetof(probe_words_t, address), PROBE_ADDRESS},
    {"plugin", offsetof(probe_words_t, plugin), PROBE_PLUGIN},
    {"before", offsetof(probe_words_t, before), PROBE_BEFORE},
    {"after", offsetof(probe_words_t, after), PROBE_AFTER},
};

/* One function for writing a row and for reading one: figures that are read into are not const
 * where they were made, so taking the const away is allowed. */
static void *field_of(const probe_figures_t *f, size_t offset)
{
    return (char *)(uintptr_t)f + offset;
}

/* ---- reading ---- */

/* Names file, list, row and key with what stands there. */
static lh_status_t record_refuse_in(const char *path, const char *list, size_t row, const char *key,
                                    const json_value_t *found, const char *expected)
{
    char text[JSON_FOUND];
    json_found(found, text);
    return fail(LH_INVALID, "%s: %s[%zu].%s is %s; expected %s", path, list, row, key, text,
                expected);
}

static lh_status_t record_refuse(const char *path, size_t row, const char *key,
                                 const json_value_t *found, const char *expected)
{
    return record_refuse_in(path, "links", row, key, found, expected);
}

static bool read_figure(const json_value_t *value, double least, double most, double *out)
{
    if (!json_is_numeric(value)) return false;
    *out = json_number(value);
    return isfinite(*out) && *out >= least && *out <= most;
}

static lh_status_t read_whole(const char *path, size_t row, const json_value_t *link,
                              probe_figures_t *f)
{
    for (size_t i = 0; i < COUNT(whole_rows); i++) {
        const json_value_t *value = json_member(link, whole_rows[i].key);
        double number;
        if (value == NULL && whole_rows[i].optional) continue;
        if (!read_figure(value, 0, most_number, &number))
            return record_refuse(path, row, whole_rows[i].key, value, "a number from 0 to 1e18");
        *(uint64_t *)field_of(f, whole_rows[i].offset) = (uint64_t)number;
    }
    for (size_t i = 0; i < COUNT(small_rows); i++) {
        const json_value_t *value = json_member(link, small_rows[i].key);
        double number;
        if (!read_figure(value, 0, 1000, &number))
            return record_refuse(path, row, small_rows[i].key, value, "a number from 0 to 1000");
        *(uint32_t *)field_of(f, small_rows[i].offset) = (uint32_t)number;
    }
    return LH_OK;
}

/* Two numbers: there and back. */
static lh_status_t read_ways(const char *path, size_t row, const json_value_t *link,
                             probe_figures_t *f)
{
    for (size_t i = 0; i < COUNT(pair_rows) + COUNT(share_rows); i++) {
        const bool is_share = i >= COUNT(pair_rows);
        const number_row_t *r = is_share ? &share_rows[i - COUNT(pair_rows)] : &pair_rows[i];
        const json_value_t *list = json_member(link, r->key);
        double ways[2];
        if (list == NULL && r->optional) continue;
        for (size_t way = 0; way < 2; way++)
            if (json_size(list) != 2 || !read_figure(json_item(list, way), is_share ? -1 : 0,
                                                     is_share ? 1 : most_number, &ways[way]))
                return record_refuse(path, row, r->key, list,
                                     is_share ? "two numbers from -1 to 1"
                                              : "two numbers from 0 to 1e18");
        for (size_t way = 0; way < 2; way++)
            if (is_share)
                ((double *)field_of(f, r->offset))[way] = ways[way];
            else
                ((uint64_t *)field_of(f, r->offset))[way] = (uint64_t)ways[way];
    }
    return LH_OK;
}

/* A text that would be cut is refused: sites are compared by it. */
static lh_status_t read_text_in(const char *path, const char *list, size_t row, const char *key,
                                const json_value_t *value, char *out, size_t room)
{
    const char *text = json_text(value);
    if (text == NULL || strlen(text) >= room) {
        char expected[48];
        (void)snprintf(expected, sizeof(expected), "a text of at most %zu bytes", room - 1);
        return record_refuse_in(path, list, row, key, value, expected);
    }
    (void)snprintf(out, room, "%s", text);
    return LH_OK;
}

static lh_status_t read_link_text(const char *path, size_t row, const char *key,
                                  const json_value_t *value, char *out, size_t room)
{
    return read_text_in(path, "links", row, key, value, out, room);
}

static lh_status_t read_card(const char *path, size_t row, const json_value_t *value,
                             probe_card_t *out)
{
    const json_value_t *rate = json_member(value, "bytes_per_second");
    const json_value_t *trip = json_member(value, "round_trip_ns");
    const json_value_t *loss = json_member(value, "loss");
    double numbers[3];
    const lh_status_t status = read_link_text(path, row, "cards", json_member(value, "name"),
                                              out->name, sizeof(out->name));
    if (status != LH_OK) return status;
    if (!read_figure(rate, 0, most_number, &numbers[0]) ||
        !read_figure(trip, 0, most_number, &numbers[1]))
        return record_refuse(path, row, "cards", value, "numbers from 0 to 1e18");
    if (!read_figure(loss, 0, 1, &numbers[2]))
        return record_refuse(path, row, "cards", loss, "a loss from 0 to 1");
    out->rate = (uint64_t)numbers[0];
    out->round_trip_ns = (uint64_t)numbers[1];
    out->loss = numbers[2] > 0 ? numbers[2] : 0; /* of -0 too */
    return LH_OK;
}

/* Of both ends, or left out: those of a machine with one card, and of builds that did not know
 * it. */
static lh_status_t read_cards(const char *path, size_t row, const json_value_t *link,
                              probe_figures_t *f)
{
    const json_value_t *ends = json_member(link, "cards");
    lh_status_t status = LH_OK;
    if (ends == NULL) return LH_OK;
    for (size_t end = 0; end < 2; end++) {
        const json_value_t *cards = json_item(ends, end);
        if (json_size(ends) != 2 || !json_is_list(cards) || json_size(cards) > PROBE_CARDS)
            return record_refuse(path, row, "cards", ends, "two lists of at most 8 cards");
        for (size_t i = 0; status == LH_OK && i < json_size(cards); i++)
            status = read_card(path, row, json_item(cards, i), &f->cards[end][i]);
        f->card_count[end] = (uint32_t)json_size(cards);
    }
    return status;
}

static lh_status_t read_link_row(const char *path, size_t row, const json_value_t *link,
                                 probe_pair_t *p)
{
    const json_value_t *sites = json_member(link, "sites");
    const json_value_t *addresses = json_member(link, "addresses");
    lh_status_t status = LH_OK;
    for (size_t i = 0; status == LH_OK && i < 2; i++) {
        status = read_link_text(path, row, "sites", json_item(sites, i), p->site[i],
                                sizeof(p->site[i]));
        if (status == LH_OK)
            status = read_link_text(path, row, "addresses", json_item(addresses, i), p->address[i],
                                    sizeof(p->address[i]));
    }
    if (status == LH_OK)
        status = read_link_text(path, row, "plugin", json_member(link, "plugin"), p->plugin,
                                sizeof(p->plugin));
    if (status == LH_OK)
        status = read_link_text(path, row, "tuned", json_member(link, "tuned"), p->figures.tuned,
                                sizeof(p->figures.tuned));
    if (status == LH_OK) status = read_whole(path, row, link, &p->figures);
    if (status == LH_OK) status = read_cards(path, row, link, &p->figures);
    return status == LH_OK ? read_ways(path, row, link, &p->figures) : status;
}

/* Arrays have an item more than the file's lists, so that an empty list has one, too. */
static lh_status_t read_rows(const char *path, const json_value_t *root, link_record_t *out)
{
    const json_value_t *links = json_member(root, "links");
    const size_t rows = json_size(links);
    if (json_whole(json_member(root, "version")) != RECORD_VERSION || !json_is_list(links))
        return fail(LH_INVALID, "%s: not a record of links; expected version %d and a list, links",
                    path, RECORD_VERSION);
    if (rows > RECORD_ROWS)
        return fail(LH_INVALID, "%s: %zu links; expected at most %d", path, rows, RECORD_ROWS);
    out->pairs = mem_array(rows + 1, sizeof(*out->pairs));
    lh_status_t status = out->pairs == NULL ? LH_NO_MEMORY : LH_OK;
    for (size_t i = 0; status == LH_OK && i < rows; i++)
        status = read_link_row(path, i, json_item(links, i), &out->pairs[i]);
    out->pair_count = (uint32_t)rows;
    return status;
}

static lh_status_t read_machine(const char *path, size_t row, const json_value_t *machine,
                                probe_words_t *out)
{
    static const char list[] = "machines";
    const json_value_t *measured = json_member(machine, "measured");
    lh_status_t status = LH_OK;
    double number = 0;
    for (size_t i = 0; status == LH_OK && i < COUNT(machine_rows); i++)
        status = read_text_in(path, list, row, machine_rows[i].key,
                              json_member(machine, machine_rows[i].key),
                              (char *)out + machine_rows[i].offset, machine_rows[i].room);
    if (status == LH_OK && !read_figure(measured, 0, most_number, &number))
        status = record_refuse_in(path, list, row, "measured", measured, "a number from 0 to 1e18");
    if (status == LH_OK) out->measured_s = (uint64_t)number;
    return status;
}

static lh_status_t read_machine_rows(const char *path, const json_value_t *root, link_record_t *out)
{
    const json_value_t *machines = json_member(root, "machines");
    const size_t rows = json_size(machines);
    if (machines == NULL) return LH_OK;
    if (!json_is_list(machines) || rows > RECORD_MACHINES)
        return fail(LH_INVALID, "%s: machines is no list of at most %d", path, RECORD_MACHINES);
    out->words = mem_array(rows + 1, sizeof(*out->words));
    lh_status_t status = out->words == NULL ? LH_NO_MEMORY : LH_OK;
    for (size_t i = 0; status == LH_OK && i < rows; i++)
        status = read_machine(path, i, json_item(machines, i), &out->words[i]);
    out->word_count = (uint32_t)rows;
    return status;
}

/* They are lines for people: damaged ones are no reason to measure links anew. */
static lh_status_t read_machines(const char *path, const json_value_t *root, link_record_t *out)
{
    const lh_status_t status = read_machine_rows(path, root, out);
    if (status == LH_OK || status == LH_NO_MEMORY) return status;
    (void)snprintf(out->left_out, sizeof(out->left_out), "%s", fail_reason());
    fail_clear();
    mem_free(out->words);
    out->words = NULL;
    out->word_count = 0;
    return LH_OK;
}

lh_status_t link_record_parse(const char *path, const char *text, size_t length, link_record_t *out)
{
    json_document_t *document;
    link_record_t r = {0};
    lh_status_t status = json_parse(path, text, length, RECORD_VALUES, &document);
    if (status != LH_OK) return status;
    status = read_rows(path, json_root(document), &r);
    if (status == LH_OK) status = read_machines(path, json_root(document), &r);
    json_free(document);
    if (status == LH_OK)
        *out = r;
    else
        link_record_free(&r);
    return status;
}

void link_record_free(link_record_t *r)
{
    mem_free(r->pairs);
    mem_free(r->words);
    *r = (link_record_t){0};
}

static char *record_path(const job_t *job)
{
    return path_join(job->pipeline.folder, "links.json");
}

/* One that is missing or can't be used is empty. */
static void record_load(const job_t *job, link_record_t *out)
{
    char *text = NULL, *path = record_path(job);
    size_t length;
    *out = (link_record_t){0};
    if (path == NULL || !file_exists(path)) {
        mem_free(path);
        return;
    }
    lh_status_t status = file_read(path, RECORD_BYTES, &text, &length);
    if (status == LH_OK) status = link_record_parse(path, text, length, out);
    if (status != LH_OK) {
        log_line(LH_LOG_WARN, "%s; the record is ignored", fail_reason());
        fail_clear();
    }
    if (out->left_out[0] != '\0')
        log_line(LH_LOG_WARN, "%s; what its machines said is ignored, its links count",
                 out->left_out);
    mem_free(text);
    mem_free(path);
}

void link_record_load(const job_t *job, probe_pair_t **out, uint32_t *count)
{
    link_record_t r;
    record_load(job, &r);
    *out = r.pairs;
    *count = r.pair_count;
    mem_free(r.words);
}

/* ---- writing ---- */

static void put_two(json_writer_t *w, const char *key, const char *first, const char *second)
{
    json_open(w, key, '[');
    json_put_text(w, NULL, first);
    json_put_text(w, NULL, second);
    json_close(w);
}

static void write_cards(json_writer_t *w, const probe_figures_t *f)
{
    json_open(w, "cards", '[');
    for (int end = 0; end < 2; end++) {
        json_open(w, NULL, '[');
        for (uint32_t i = 0; i < f->card_count[end]; i++) {
            const probe_card_t *c = &f->cards[end][i];
            json_open(w, NULL, '{');
            json_put_text(w, "name", c->name);
            json_put_u64(w, "bytes_per_second", c->rate);
            json_put_u64(w, "round_trip_ns", c->round_trip_ns);
            json_put_real(w, "loss", c->loss);
            json_close(w);
        }
        json_close(w);
    }
    json_close(w);
}

static void write_link_row(json_writer_t *w, const probe_pair_t *p)
{
    const probe_figures_t *f = &p->figures;
    json_open(w, NULL, '{');
    put_two(w, "sites", p->site[0], p->site[1]);
    put_two(w, "addresses", p->address[0], p->address[1]);
    json_put_text(w, "plugin", p->plugin);
    json_put_text(w, "tuned", f->tuned);
    for (size_t i = 0; i < COUNT(whole_rows); i++) {
        const uint64_t number = *(uint64_t *)field_of(f, whole_rows[i].offset);
        if (number != 0 || !whole_rows[i].optional) json_put_u64(w, whole_rows[i].key, number);
    }
    for (size_t i = 0; i < COUNT(small_rows); i++)
        json_put_u64(w, small_rows[i].key, *(uint32_t *)field_of(f, small_rows[i].offset));
    for (size_t i = 0; i < COUNT(pair_rows); i++) {
        const uint64_t *ways = field_of(f, pair_rows[i].offset);
        if (ways[0] == 0 && ways[1] == 0 && pair_rows[i].optional) continue;
        json_open(w, pair_rows[i].key, '[');
        for (int way = 0; way < 2; way++)
            json_put_u64(w, NULL, ways[way]);
        json_close(w);
    }
    for (size_t i = 0; i < COUNT(share_rows); i++) {
        const double *ways = field_of(f, share_rows[i].offset);
        if (!(ways[0] > 0) && !(ways[1] > 0) && share_rows[i].optional) continue;
        json_open(w, share_rows[i].key, '[');
        for (int way = 0; way < 2; way++)
            json_put_real(w, NULL, ways[way]);
        json_close(w);
    }
    if (f->card_count[0] + f->card_count[1] > 0) write_cards(w, f);
    json_close(w);
}

void link_record_rows(json_writer_t *w, const char *key, const probe_pair_t *pairs, uint32_t count)
{
    json_open(w, key, '[');
    for (uint32_t i = 0; i < count; i++)
        if (pairs[i].figures.measured_s != 0) write_link_row(w, &pairs[i]);
    json_close(w);
}

static void write_machine(json_writer_t *w, const probe_words_t *m)
{
    json_open(w, NULL, '{');
    json_put_u64(w, "measured", m->measured_s);
    for (size_t i = 0; i < COUNT(machine_rows); i++)
        json_put_text(w, machine_rows[i].key, (const char *)m + machine_rows[i].offset);
    json_close(w);
}

void link_record_text(const probe_pair_t *pairs, uint32_t count, const probe_words_t *words,
                      uint32_t word_count, text_t *out)
{
    json_writer_t w = {.to = out, .style = 1};
    json_open(&w, NULL, '{');
    json_put_u64(&w, "version", RECORD_VERSION);
    link_record_rows(&w, "links", pairs, count);
    if (word_count > 0) {
        json_open(&w, "machines", '[');
        for (uint32_t i = 0; i < word_count; i++)
            write_machine(&w, &words[i]);
        json_close(&w);
    }
    json_close(&w);
}

/* Whether two rows of a list are of one thing. */
typedef bool (*record_same_t)(const void *a, const void *b);

static bool is_same_link(const void *a, const void *b)
{
    return link_probe_same(a, b);
}

static bool is_same_machine(const void *a, const void *b)
{
    const probe_words_t *one = a, *two = b;
    return strcmp(one->site, two->site) == 0 && strcmp(one->address, two->address) == 0 &&
           strcmp(one->plugin, two->plugin) == 0;
}

/* Behind the `fresh` new rows of a list go the old ones, `bytes` each, but those of which there is a new
 * one, `most` in all; how many these are. New rows are first, so that they are kept where the record would
 * be longer than it may be. */
static uint32_t record_add_old(void *list, uint32_t fresh, const void *old, uint32_t count,
                               size_t bytes, uint32_t most, record_same_t same)
{
    uint32_t kept = fresh;
    for (uint32_t i = 0; i < count && kept < most; i++) {
        const char *row = (const char *)old + i * bytes;
        bool replaced = false;
        for (uint32_t j = 0; j < fresh; j++)
            replaced |= same(row, (const char *)list + j * bytes);
        if (!replaced) memcpy((char *)list + bytes * kept++, row, bytes);
    }
    return kept;
}

/* Whether figures are nothing but the record's, as link_crowd_scale makes them of more ranks than there
 * were now: plans and jobs of as many as before go by what these had. */
static bool is_scaled(const probe_figures_t *now, const probe_figures_t *old)
{
    probe_figures_t few = *old;
    if (now->together_ranks == 0 || now->together_ranks >= old->together_ranks) return false;
    link_crowd_scale(&few, (uint32_t)now->together_ranks);
    return now->measured_s == few.measured_s && now->beside_at_s == few.beside_at_s &&
           now->beside_pairs == few.beside_pairs &&
           memcmp(now->together, few.together, sizeof(few.together)) == 0 &&
           memcmp(now->beside, few.beside, sizeof(few.beside)) == 0;
}

/* Of the new rows those that were measured, now or before. */
static uint32_t rows_merge(const probe_pair_t *pairs, uint32_t count, const link_record_t *old,
                           probe_pair_t *out)
{
    uint32_t fresh = 0;
    for (uint32_t i = 0; i < count && fresh < RECORD_ROWS; i++)
        if (pairs[i].figures.measured_s != 0) out[fresh++] = pairs[i];
    for (uint32_t i = 0; i < fresh; i++)
        for (uint32_t j = 0; j < old->pair_count; j++)
            if (link_probe_same(&out[i], &old->pairs[j]) &&
                is_scaled(&out[i].figures, &old->pairs[j].figures))
                out[i] = old->pairs[j];
    return record_add_old(out, fresh, old->pairs, old->pair_count, sizeof(*out), RECORD_ROWS,
                          is_same_link);
}

static uint32_t words_merge(const probe_words_t *words, uint32_t count, const link_record_t *old,
                            probe_words_t *out)
{
    uint32_t fresh = 0;
    for (; fresh < count && fresh < RECORD_MACHINES; fresh++)
        out[fresh] = words[fresh];
    return record_add_old(out, fresh, old->words, old->word_count, sizeof(*out), RECORD_MACHINES,
                          is_same_machine);
}

/* A failed read of the old record was told as a warning, and it counts as empty. */
static lh_status_t record_merge(const job_t *job, const probe_pair_t *pairs, uint32_t count,
                                const probe_words_t *words, uint32_t word_count, link_record_t *out)
{
    link_record_t old;
    record_load(job, &old);
    out->pairs = mem_array((size_t)old.pair_count + count + 1, sizeof(*out->pairs));
    out->words = mem_array((size_t)old.word_count + word_count + 1, sizeof(*out->words));
    const bool made = out->pairs != NULL && out->words != NULL;
    if (made) {
        out->pair_count = rows_merge(pairs, count, &old, out->pairs);
        out->word_count = words_merge(words, word_count, &old, out->words);
    }
    link_record_free(&old);
    return made ? LH_OK : LH_NO_MEMORY;
}

void link_record_keep(const job_t *job, const probe_pair_t *pairs, uint32_t count,
                      const probe_words_t *words, uint32_t word_count)
{
    link_record_t all = {0};
    text_t text = {0};
    char *path = record_path(job);
    lh_status_t status = path == NULL ? LH_NO_MEMORY
                                      : record_merge(job, pairs, count, words, word_count, &all);
    if (status == LH_OK) {
        link_record_text(all.pairs, all.pair_count, all.words, all.word_count, &text);
        status = text_status(&text);
    }
    if (status == LH_OK) status = folder_make(job->pipeline.folder);
    if (status == LH_OK) status = file_replace(path, text.data, text.length);
    if (status != LH_OK) {
        log_line(LH_LOG_WARN, "what was measured of links is not kept: %s", fail_reason());
        fail_clear();
    }
    text_free(&text);
    link_record_free(&all);
    mem_free(path);
}
