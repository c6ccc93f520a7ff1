/* links_words.c - words of machines, before and after.
 *
 * What a plugin tells of its cards and of the kernel are lines for people, and they are kept as such:
 * which counters a card has, and what they mean, no two drivers have in common. Of what is said
 * afterwards only lines that are other are kept, which are those of counters that rose and of links that
 * changed. A site's first rank measures, so there are few such machines. Rank 0 alone writes the record,
 * so the words go to it and to nobody else: all ranks' parts are as long as the longest may be, which to
 * all of a thousand ranks would be gigabytes. */
#include <links/links_words.h>

#include <stdio.h>
#include <string.h>

#include <base/memory.h>
#include <base/sys.h>

typedef struct words_part {                /* of a rank, as it travels */
    uint32_t before, after;                /* bytes of text, without a NUL */
    char text[PROBE_BEFORE + PROBE_AFTER]; /* that of before, and behind it the other */
} words_part_t;
_Static_assert(sizeof(words_part_t) <= CONTROL_COLLECT_MOST, "a part is no longer than any may be");

/* A line of its own for the record: what a driver writes may be any bytes. */
static void words_line(void *context, const char *line)
{
    text_t *out = context;
    if (out->length > 0) text_append(out, "\n");
    for (const char *at = line; *at != '\0'; at++) {
        const char shown = *at >= ' ' && *at <= '~' ? *at : '?';
        text_append_n(out, &shown, 1);
    }
}

/* Nothing where the plugin has no words, or no card. */
static lh_status_t words_ask(const links_t *l, text_t *out)
{
    const carrier_t *c = l->carriers[LH_LINK_WAN];
    if (c->api->cards != NULL && c->api->cards(c->plugin->host, words_line, out) != LH_OK)
        fail_clear();
    return text_status(out);
}

lh_status_t links_words_before(links_t *l)
{
    return l->said.length > 0 ? LH_OK : words_ask(l, &l->said);
}

static bool has_line(const char *text, const char *line, size_t length)
{
    for (const char *at = text;; at++) {
        const size_t own = strcspn(at, "\n");
        if (own == length && memcmp(at, line, length) == 0) return true;
        at += own;
        if (*at == '\0') return false;
    }
}

/* The lines that were not said before. */
static void words_other(const text_t *before, const text_t *now, text_t *out)
{
    for (const char *at = now->length > 0 ? now->data : ""; *at != '\0';) {
        const size_t length = strcspn(at, "\n");
        if (!has_line(before->data, at, length)) {
            if (out->length > 0) text_append(out, "\n");
            text_append_n(out, at, length);
        }
        at += length;
        if (*at == '\n') at++;
    }
}

/* Of as many whole lines as fit into `room` with a NUL. */
static uint32_t words_length(const text_t *t, size_t room)
{
    size_t length = t->length;
    if (length >= room)
        for (length = room - 1; length > 0 && t->data[length] != '\n';)
            length--;
    return (uint32_t)length;
}

/* What a rank has to say; before 0: nothing. */
static void words_put(words_part_t *part, const text_t *before, const text_t *after)
{
    part->before = words_length(before, PROBE_BEFORE);
    part->after = words_length(after, PROBE_AFTER);
    if (part->before > 0) memcpy(part->text, before->data, part->before);
    if (part->after > 0) memcpy(part->text + part->before, after->data, part->after);
}

/* As it was told to this rank; the sites' names and addresses all know. */
static void words_take(const links_t *l, uint32_t rank, const words_part_t *part,
                       probe_words_t *out)
{
    const world_t *w = l->how.world;
    const uint32_t site = w->ranks[rank].site, other = site == 0 ? 1 : 0;
    const probe_pair_t *p = &l->pairs[links_pair(site, other)];
    (void)snprintf(out->site, sizeof(out->site), "%s", world_site_name(w, site));
    (void)snprintf(out->address, sizeof(out->address), "%s", p->address[site > other]);
    (void)snprintf(out->plugin, sizeof(out->plugin), "%s", p->plugin);
    out->measured_s = sys()->wall_ns() / 1000000000;
    memcpy(out->before, part->text, part->before);
    memcpy(out->after, part->text + part->before, part->after);
}

static lh_status_t words_keep(links_t *l, const words_part_t *all)
{
    const uint32_t size = l->how.world->row.size, sites = l->how.world->row.sites;
    l->words = mem_array(sites, sizeof(*l->words));
    if (l->words == NULL) return LH_NO_MEMORY;
    for (uint32_t r = 0; r < size && l->word_count < sites; r++)
        if (all[r].before > 0 && all[r].before < PROBE_BEFORE && all[r].after < PROBE_AFTER)
            words_take(l, r, &all[r], &l->words[l->word_count++]);
    return LH_OK;
}

lh_status_t links_words_collect(links_t *l)
{
    text_t now = {0}, after = {0};
    const bool keeps = l->how.world->row.rank == 0;
    lh_assert(l->words == NULL);
    words_part_t *mine = mem_new(sizeof(*mine));
    words_part_t *all = keeps ? mem_array(l->how.world->row.size, sizeof(*all)) : NULL;
    lh_status_t status = mine == NULL || (keeps && all == NULL) ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK && l->said.length > 0) status = words_ask(l, &now);
    if (status == LH_OK && l->said.length > 0) words_other(&l->said, &now, &after);
    if (status == LH_OK) status = text_status(&after);
    if (status == LH_OK) {
        words_put(mine, &l->said, &after);
        status = links_collect(l, mine, sizeof(*mine), all);
    }
    if (status == LH_OK && keeps) status = words_keep(l, all);
    text_free(&now);
    text_free(&after);
    mem_free(mine);
    mem_free(all);
    return status;
}

const probe_words_t *links_words(const links_t *l, uint32_t *count)
{
    *count = l->word_count;
    return l->words;
}
