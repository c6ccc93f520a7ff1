/* links_words.c - words of machines, before and after.
 *
 * What a plugin tells of its cards and of the kernel are lines for people, and they are kept as such:
 * which counters a card has, and what they mean, no two drivers have in common. Of what is said
 * afterwards only lines that are other are kept, which are those of counters that rose and of links that
 * changed. A site's first rank measures, so there are few such machines; lengths go ahead, as what
 * travels is as long for all ranks as for the one that has most to say. */
#include <links/links_words.h>

#include <stdio.h>
#include <string.h>

#include <base/memory.h>
#include <base/sys.h>

typedef struct words_lengths { /* of a rank, bytes without a NUL */
    uint32_t before, after;
} words_lengths_t;

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

/* As it is told to the other ranks; the sites' names and addresses all know. */
static void words_take(const links_t *l, uint32_t rank, const char *text, words_lengths_t length,
                       probe_words_t *out)
{
    const world_t *w = l->how.world;
    const uint32_t site = w->ranks[rank].site, other = site == 0 ? 1 : 0;
    const probe_pair_t *p = &l->pairs[links_pair(site, other)];
    (void)snprintf(out->site, sizeof(out->site), "%s", world_site_name(w, site));
    (void)snprintf(out->address, sizeof(out->address), "%s", p->address[site > other]);
    (void)snprintf(out->plugin, sizeof(out->plugin), "%s", p->plugin);
    out->measured_s = sys()->wall_ns() / 1000000000;
    memcpy(out->before, text, length.before);
    memcpy(out->after, text + length.before, length.after);
}

/* What travels is the text before and, without a gap, the one after; `most` bytes of each rank. */
static lh_status_t words_spread(links_t *l, const words_lengths_t *lengths, size_t most,
                                const text_t *after)
{
    const uint32_t size = l->how.world->row.size, self = l->how.world->row.rank;
    char *mine = mem_array(most, 1), *all = mem_array(size, most);
    probe_words_t *words = mem_array(l->how.world->row.sites, sizeof(*words));
    lh_status_t status = mine == NULL || all == NULL || words == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK && lengths[self].before > 0)
        memcpy(mine, l->said.data, lengths[self].before);
    if (status == LH_OK && lengths[self].after > 0)
        memcpy(mine + lengths[self].before, after->data, lengths[self].after);
    if (status == LH_OK) status = control_gather(l->how.control, mine, most, all);
    l->words = words;
    for (uint32_t r = 0; status == LH_OK && r < size; r++) {
        if (lengths[r].before == 0 || l->word_count == l->how.world->row.sites) continue;
        words_take(l, r, all + r * most, lengths[r], &words[l->word_count++]);
    }
    mem_free(mine);
    mem_free(all);
    return status;
}

lh_status_t links_words_gather(links_t *l)
{
    text_t now = {0}, after = {0};
    const uint32_t size = l->how.world->row.size;
    size_t most = 0;
    lh_status_t status = LH_OK;
    words_lengths_t mine = {0}, *all = mem_array(size, sizeof(*all));
    lh_assert(l->words == NULL);
    if (all == NULL) return LH_NO_MEMORY;
    if (l->said.length > 0) status = words_ask(l, &now);
    if (status == LH_OK && l->said.length > 0) words_other(&l->said, &now, &after);
    if (status == LH_OK) status = text_status(&after);
    mine.before = words_length(&l->said, PROBE_BEFORE);
    mine.after = words_length(&after, PROBE_AFTER);
    if (status == LH_OK) status = control_gather(l->how.control, &mine, sizeof(mine), all);
    for (uint32_t r = 0; status == LH_OK && r < size; r++) {
        if (all[r].before >= PROBE_BEFORE || all[r].after >= PROBE_AFTER)
            all[r] = (words_lengths_t){0};
        if ((size_t)all[r].before + all[r].after > most) most = all[r].before + all[r].after;
    }
    /* Of some thousands of ranks so much of each can't be gathered; then nothing is kept. */
    if (status == LH_OK && most > 0 && most <= control_gather_most(size))
        status = words_spread(l, all, most, &after);
    text_free(&now);
    text_free(&after);
    mem_free(all);
    return status;
}

const probe_words_t *links_words(const links_t *l, uint32_t *count)
{
    *count = l->word_count;
    return l->words;
}
