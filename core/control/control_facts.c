/* control_facts.c - a table that is written only when two ranks differ. */
#include <control/control_facts.h>

enum { TABLE_BYTES = 1500, VALUES_SHOWN = 4 };

static const char *value_of(const rank_facts_t *rank, const char *wanted)
{
    const unsigned char *at = rank->hello.facts;
    const char *name, *value;
    for (uint32_t i = 0; i < rank->hello.fact_count; i++) {
        frame_next_fact(&at, &name, &value);
        if (strcmp(name, wanted) == 0) return value;
    }
    return NULL;
}

static bool same_value(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* "ranks 0-2, 5 (tokyo/t1)": all that have the value of rank `first`, and where that one is. */
static void append_ranks(const rank_facts_t *ranks, uint32_t count, uint32_t first,
                         const char *name, text_t *out)
{
    const char *value = value_of(&ranks[first], name);
    const frame_hello_t *where = &ranks[first].hello;
    uint32_t members = 0;
    text_t list = {0};
    for (uint32_t r = first; r < count; r++) {
        uint32_t end = r;
        while (end < count && same_value(value_of(&ranks[end], name), value))
            end++;
        if (end == r) continue;
        text_printf(&list, members > 0 ? ", %u" : "%u", r);
        if (end - r > 1) text_printf(&list, "-%u", end - 1);
        members += end - r;
        r = end;
    }
    text_printf(out, "%s on rank%s %s", value == NULL ? "(not set)" : value, members > 1 ? "s" : "",
                list.failed ? "?" : list.data);
    if (where->host[0] != '\0')
        text_printf(out, " (%s%s%s)", where->site, where->site[0] != '\0' ? "/" : "", where->host);
    text_free(&list);
}

static bool is_first_with(const rank_facts_t *ranks, uint32_t rank, const char *name)
{
    for (uint32_t r = 0; r < rank; r++)
        if (same_value(value_of(&ranks[r], name), value_of(&ranks[rank], name))) return false;
    return true;
}

static void append_row(const rank_facts_t *ranks, uint32_t count, const char *name, text_t *out)
{
    uint32_t values = 0;
    text_printf(out, "\n%s: ", name);
    for (uint32_t r = 0; r < count && values < VALUES_SHOWN; r++) {
        if (!is_first_with(ranks, r, name)) continue;
        if (values++ > 0) text_append(out, "; ");
        append_ranks(ranks, count, r, name, out);
    }
}

static bool is_same_list(const frame_hello_t *a, const frame_hello_t *b)
{
    const unsigned char *at_a = a->facts, *at_b = b->facts;
    if (a->fact_count != b->fact_count) return false;
    for (uint32_t i = 0; i < a->fact_count; i++) {
        const char *name_a, *value_a, *name_b, *value_b;
        frame_next_fact(&at_a, &name_a, &value_a);
        frame_next_fact(&at_b, &name_b, &value_b);
        if (strcmp(name_a, name_b) != 0 || strcmp(value_a, value_b) != 0) return false;
    }
    return true;
}

/* Each name once: at the first rank that has it. */
static bool came_before(const rank_facts_t *ranks, uint32_t rank, const char *name)
{
    for (uint32_t r = 0; r < rank; r++)
        if (value_of(&ranks[r], name) != NULL) return true;
    return false;
}

static bool all_have(const rank_facts_t *ranks, uint32_t count, const char *name, const char *value)
{
    for (uint32_t r = 0; r < count; r++)
        if (!same_value(value_of(&ranks[r], name), value)) return false;
    return true;
}

bool facts_agree(const rank_facts_t *ranks, uint32_t count, text_t *table)
{
    uint32_t left_out = 0;
    bool agree = true;
    for (uint32_t r = 1; agree && r < count; r++)
        agree = is_same_list(&ranks[0].hello, &ranks[r].hello);
    if (agree) return true;
    for (uint32_t r = 0; r < count; r++) {
        const unsigned char *at = ranks[r].hello.facts;
        for (uint32_t i = 0; i < ranks[r].hello.fact_count; i++) {
            const char *name, *value;
            frame_next_fact(&at, &name, &value);
            if (all_have(ranks, count, name, value) || came_before(ranks, r, name)) continue;
            if (table->length > TABLE_BYTES)
                left_out++;
            else
                append_row(ranks, count, name, table);
        }
    }
    if (left_out > 0) text_printf(table, "\nand %u more", left_out);
    return false;
}
