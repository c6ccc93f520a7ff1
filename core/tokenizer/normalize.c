/* normalize.c - the steps of a normalizer, from one buffer to the other.
 *
 * Most texts are not changed by most steps: a text that is composed already is recognised by its
 * bytes and not copied. A file may hold replacements that double the text at every step, so growth
 * has a bound. */
#include <tokenizer/normalize.h>

#include <utf8proc.h>

#include <base/memory.h>
#include <tokenizer/unicode_patterns.h>

static const char space_mark[] = "\xE2\x96\x81"; /* U+2581 */

/* What a text may become: real normalizers stay far below it, a file made to fill the memory does
 * not. */
enum { GROWTH = 64, GROWTH_MORE = 64 * 1024 };

lh_status_t normalize_check_growth(const text_t *out, size_t from)
{
    if (out->length <= from * GROWTH + GROWTH_MORE) return LH_OK;
    return fail(LH_INVALID, "the tokenizer's normalizer makes more than %zu bytes of %zu",
                from * GROWTH + GROWTH_MORE, from);
}

/* Frees what a step owns, of whichever kind it is: the rest is NULL. */
static void normalize_step_free(normalize_step_t *step)
{
    mem_free(step->from);
    mem_free(step->to);
    pattern_regex_free(step->regex);
    normalize_charsmap_free(&step->spaces.charsmap);
    piece_trie_free(&step->spaces.kept);
}

lh_status_t normalizer_add(normalizer_t *n, normalize_step_t step)
{
    normalize_step_t *steps = mem_grow(n->steps, &n->room, n->count + 1, sizeof(*steps));
    if (steps == NULL) {
        normalize_step_free(&step);
        return LH_NO_MEMORY;
    }
    n->steps = steps;
    steps[n->count++] = step;
    return LH_OK;
}

void normalizer_free(normalizer_t *n)
{
    for (size_t i = 0; i < n->count; i++)
        normalize_step_free(&n->steps[i]);
    mem_free(n->steps);
    *n = (normalizer_t){0};
}

/* Steps without a regex have no match: matches are found by the step's number. */
lh_status_t normalize_scratch_open(const normalizer_t *n, normalize_scratch_t *s)
{
    *s = (normalize_scratch_t){0};
    s->matches = mem_array(n->count, sizeof(*s->matches));
    if (s->matches == NULL) return LH_NO_MEMORY;
    for (; s->match_count < n->count; s->match_count++) {
        const pattern_regex_t *regex = n->steps[s->match_count].regex;
        if (regex == NULL) continue;
        const lh_status_t status = pattern_match_new(regex, &s->matches[s->match_count]);
        if (status != LH_OK) {
            normalize_scratch_close(s);
            return status;
        }
    }
    return LH_OK;
}

void normalize_scratch_close(normalize_scratch_t *s)
{
    for (size_t i = 0; i < s->match_count; i++)
        pattern_match_free(s->matches[i]);
    mem_free(s->matches);
    mem_free(s->characters);
    text_free(&s->texts[0]);
    text_free(&s->texts[1]);
    *s = (normalize_scratch_t){0};
}

/* True if NFC can't change the text, as far as its bytes tell. Nothing below U+0300 composes with
 * anything, and with NFC nothing below it changes by itself; 0xCC is the first byte of U+0300. */
static bool is_composed(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        i += text_utf8_ascii(text + i, length - i);
        if (i < length && (unsigned char)text[i] >= 0xCC) return false;
    }
    return true;
}

/* Decomposes into UTF-32 and encodes that again, composed or not. utf8proc is asked for the size
 * first, as one character may become 18. */
static lh_status_t normalize_compose(const normalize_step_t *step, normalize_scratch_t *s,
                                     const char *text, size_t length, text_t *out)
{
    const utf8proc_option_t options = UTF8PROC_STABLE |
                                      (step->compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                      (step->compatible ? UTF8PROC_COMPAT : 0);
    const utf8proc_uint8_t *bytes = (const utf8proc_uint8_t *)text;
    const utf8proc_ssize_t wanted = utf8proc_decompose(bytes, (utf8proc_ssize_t)length, NULL, 0,
                                                       options);
    if (wanted < 0) { /* not UTF-8 */
        text_append_n(out, text, length);
        return text_status(out);
    }
    /* one more for the NUL that reencode writes */
    int32_t *characters = mem_grow(s->characters, &s->character_room, (size_t)wanted + 1,
                                   sizeof(*characters));
    if (characters == NULL) return LH_NO_MEMORY;
    s->characters = characters;
    (void)utf8proc_decompose(bytes, (utf8proc_ssize_t)length, characters, wanted, options);
    const utf8proc_ssize_t made = utf8proc_reencode(characters, wanted, options);
    text_append_n(out, (const char *)characters, made < 0 ? 0 : (size_t)made);
    return text_status(out);
}

/* The double array (Darts-clone) inside of a precompiled charsmap. Nothing in it is trusted: every
 * index is checked where it is used. Numbers are little-endian and not aligned. */
static uint32_t read_u32(const char *bytes)
{
    const unsigned char *b = (const unsigned char *)bytes;
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* The blob is a number of bytes, a trie of that size, and the replacements. It must end in a NUL,
 * so that the last replacement does; strings are not looked at otherwise until they are used. */
lh_status_t normalize_charsmap_read(const char *path, const char *bytes, size_t length,
                                    charsmap_t *out)
{
    charsmap_t map = {0};
    if (length == 0) {
        *out = map;
        return LH_OK;
    }
    if (length < 4)
        return fail(LH_INVALID, "%s: the charsmap has %zu bytes; it starts with 4", path, length);
    const uint32_t trie_bytes = read_u32(bytes);
    if (trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes >= length - 4)
        return fail(LH_INVALID, "%s: the charsmap's trie has %u bytes of the map's %zu", path,
                    trie_bytes, length);
    if (bytes[length - 1] != '\0')
        return fail(LH_INVALID, "%s: the charsmap's last replacement has no end", path);

    map.unit_count = trie_bytes / 4;
    map.string_bytes = length - 4 - trie_bytes;
    map.units = mem_array(map.unit_count, sizeof(*map.units));
    map.strings = mem_text_n(bytes + 4 + trie_bytes, map.string_bytes);
    if (map.units == NULL || map.strings == NULL) {
        normalize_charsmap_free(&map);
        return LH_NO_MEMORY;
    }
    for (size_t i = 0; i < map.unit_count; i++)
        map.units[i] = read_u32(bytes + 4 + i * 4);
    *out = map;
    return LH_OK;
}

void normalize_charsmap_free(charsmap_t *m)
{
    mem_free(m->units);
    mem_free(m->strings);
    *m = (charsmap_t){0};
}

/* Darts-clone packs an offset of 22 bits, which bit 9 shifts by eight more. */
static uint32_t unit_offset(uint32_t unit)
{
    return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* The longest entry, or the first that is met. */
static size_t charsmap_find(const charsmap_t *m, const char *text, size_t length, bool shortest,
                            const char **to)
{
    if (m->unit_count == 0) return 0;

    size_t longest = 0;
    uint32_t at = unit_offset(m->units[0]);
    for (size_t i = 0; i < length; i++) {
        const uint32_t byte = (unsigned char)text[i];
        at ^= byte;
        if (at >= m->unit_count) break;
        /* A unit has the byte that leads to it in its low 8 bits; bit 31 marks a value, which is no
         * child. Bit 8 says that a string ends here: its value is at the offset itself. */
        const uint32_t unit = m->units[at];
        if ((unit & ((1u << 31) | 0xFF)) != byte) break;
        at ^= unit_offset(unit);
        if ((unit >> 8 & 1) == 0) continue;
        if (at >= m->unit_count) break;
        const uint32_t start = m->units[at] & 0x7FFFFFFF;
        if (start >= m->string_bytes) break;
        *to = m->strings + start;
        longest = i + 1;
        if (shortest) break;
    }
    return longest;
}

size_t normalize_charsmap_longest(const charsmap_t *m, const char *text, size_t length,
                                  const char **to)
{
    return charsmap_find(m, text, length, false, to);
}

size_t normalize_charsmap_shortest(const charsmap_t *m, const char *text, size_t length,
                                   const char **to)
{
    return charsmap_find(m, text, length, true, to);
}

/* Whether an entry is the character `first`, or begins with it and `second`, an ASCII one. */
static bool charsmap_changes(const charsmap_t *m, unsigned char first, unsigned char second)
{
    const unsigned char text[2] = {first, second};
    const char *to;
    if (normalize_charsmap_longest(m, (const char *)text, 1, &to) == 1) return true;

    uint32_t at = unit_offset(m->units[0]);
    for (size_t i = 0; i < 2; i++) {
        at ^= text[i];
        if (at >= m->unit_count || (m->units[at] & ((1u << 31) | 0xFF)) != text[i]) return false;
        at ^= unit_offset(m->units[at]);
    }
    return true;
}

/* The first match of a step's string. */
static bool find_string(const normalize_step_t *step, const char *text, size_t length, size_t at,
                        size_t *start, size_t *end)
{
    lh_assert(step->from_length > 0);
    const char *found = step->from_length == 1
                            ? memchr(text + at, step->from[0], length - at)
                            : memmem(text + at, length - at, step->from, step->from_length);
    *start = found == NULL ? length : (size_t)(found - text);
    *end = found == NULL ? length : *start + step->from_length;
    return found != NULL;
}

/* All matches from left to right; what was put in is not looked at again. */
static lh_status_t normalize_replace(const normalize_step_t *step, pattern_match_t *match,
                                     const char *text, size_t length, text_t *out)
{
    bool found = length > 0;
    size_t at = 0, end;

    for (bool behind = false; found; behind = true, at = end) {
        size_t start;
        lh_status_t status = LH_OK;
        if (step->regex != NULL)
            status = pattern_regex_find(step->regex, match, text, length, at, behind, &found,
                                        &start, &end);
        else
            found = find_string(step, text, length, at, &start, &end);
        if (status != LH_OK) return status;
        text_append_n(out, text + at, start - at);
        if (found) text_append_n(out, step->to, step->to_length);
        status = normalize_check_growth(out, length);
        if (status != LH_OK) return status;
    }
    return text_status(out);
}

/* The next bit of text under the rules of spaces, and what it becomes. */
typedef struct space_part {
    const char *bytes;
    size_t length, taken; /* what it becomes; bytes of text that it stands for */
} space_part_t;

/* A piece that the user has defined is kept as it is; else the longest entry of the charsmap
 * counts; else one character, U+FFFD for a byte that is none. bytes lie in text, in the map or are
 * static. */
static space_part_t next_part(const space_rules_t *rules, const char *text, size_t length)
{
    int32_t value;
    const size_t kept = piece_trie_longest(&rules->kept, text, length, &value);
    if (kept > 0) return (space_part_t){text, kept, kept};

    const char *to;
    const size_t mapped = normalize_charsmap_longest(&rules->charsmap, text, length, &to);
    if (mapped > 0) return (space_part_t){to, strlen(to), mapped};
    uint32_t size;
    const uint32_t c = text_utf8_decode((const unsigned char *)text,
                                        (const unsigned char *)text + length, &size);
    if (c == TEXT_UTF8_BAD) return (space_part_t){"\xEF\xBF\xBD", 3, 1};
    return (space_part_t){text, size, size};
}

/* Spaces become marks here and not in a step behind, as the rules below look at the spaces. */
static void append_part(const space_rules_t *rules, const space_part_t *part, text_t *out)
{
    const char *from = part->bytes, *end = part->bytes + part->length;

    while (rules->escape && from < end) {
        const char *space = memchr(from, ' ', (size_t)(end - from));
        if (space == NULL) break;
        text_append_n(out, from, (size_t)(space - from));
        text_append(out, space_mark);
        from = space + 1;
    }
    text_append_n(out, from, (size_t)(end - from));
}

/* Without a charsmap and user-defined pieces, and with spaces left alone, runs between spaces are
 * copied as they are. */
static lh_status_t escape_only(const char *text, size_t length, text_t *out)
{
    for (size_t at = 0; at < length;) {
        const char *space = memchr(text + at, ' ', length - at);
        const size_t end = space == NULL ? length : (size_t)(space - text);
        text_append_n(out, text + at, end - at);
        if (space != NULL) text_append_n(out, space_mark, 3);
        at = end + 1;
    }
    return text_status(out);
}

void normalize_find_plain(space_rules_t *rules, bool space)
{
    const charsmap_t *map = &rules->charsmap;
    for (unsigned c = 0; c < 128; c++) {
        bool plain = (space || c != ' ') && rules->kept.first[c] == 0;
        for (unsigned next = 0; plain && map->unit_count > 0 && next < 128; next++)
            plain = !charsmap_changes(map, (unsigned char)c, (unsigned char)next);
        rules->plain[c] = plain;
    }
}

size_t normalize_plain_run(const space_rules_t *rules, const char *text, size_t length)
{
    size_t size = 0;
    while (size < length && (unsigned char)text[size] < 0x80 &&
           rules->plain[(unsigned char)text[size]] != 0)
        size++;
    return size > 0 && size < length && (unsigned char)text[size] >= 0x80 ? size - 1 : size;
}

/* What stands at the end of the text when all is done, in the form that spaces have by then. */
static void cut_spaces_at_end(const char *space, text_t *out)
{
    const size_t size = strlen(space);
    while (out->length >= size && memcmp(out->data + out->length - size, space, size) == 0)
        out->length -= size;
}

/* The rules of sentencepiece's normalizer.cc, for text that is UTF-8. */
static lh_status_t treat_spaces(const space_rules_t *rules, const char *text, size_t length,
                                text_t *out)
{
    const char *space = rules->escape ? space_mark : " ";
    const bool plain = rules->charsmap.unit_count == 0 && rules->kept.count == 0 &&
                       !rules->remove_extra && rules->escape;
    size_t at = 0;

    while (rules->remove_extra && at < length) {
        const space_part_t part = next_part(rules, text + at, length - at);
        if (part.length != 1 || part.bytes[0] != ' ') break;
        at += part.taken;
    }
    if (at == length) return LH_OK;
    if (rules->add_dummy_prefix) text_append(out, space);
    if (plain) return escape_only(text, length, out);

    /* True behind a space that was written, where further ones are extra; at the start too. */
    bool after_space = rules->remove_extra;
    while (at < length) {
        const size_t run = normalize_plain_run(rules, text + at, length - at);
        text_append_n(out, text + at, run);
        if (run > 0) after_space = false;
        at += run;
        if (at == length) break;
        space_part_t part = next_part(rules, text + at, length - at);
        at += part.taken;
        while (after_space && part.length > 0 && part.bytes[0] == ' ') {
            part.bytes++;
            part.length--;
        }
        if (part.length == 0) continue;
        append_part(rules, &part, out);
        const lh_status_t status = normalize_check_growth(out, length);
        if (status != LH_OK) return status;
        after_space = rules->remove_extra && part.bytes[part.length - 1] == ' ';
    }
    if (rules->remove_extra && !out->failed) cut_spaces_at_end(space, out);
    return text_status(out);
}

/* The end of what a reader sees as one character: a letter with its accents, a flag. */
static size_t grapheme_end(const char *text, size_t length, size_t at)
{
    const unsigned char *p = (const unsigned char *)text;
    utf8proc_int32_t state = 0;
    uint32_t size, left = text_utf8_decode(p + at, p + length, &size);

    for (at += size; at < length; at += size) {
        const uint32_t right = text_utf8_decode(p + at, p + length, &size);
        if (left == TEXT_UTF8_BAD || right == TEXT_UTF8_BAD ||
            utf8proc_grapheme_break_stateful((utf8proc_int32_t)left, (utf8proc_int32_t)right,
                                             &state))
            break;
        left = right;
    }
    return at;
}

/* What the shortest entry that text starts with becomes is appended; false: there is none. */
static bool append_mapped(const charsmap_t *map, const char *text, size_t length, text_t *out)
{
    const char *to;
    if (!normalize_charsmap_shortest(map, text, length, &to)) return false;
    text_append(out, to);
    return true;
}

/* Appends what a charsmap makes of a text in Hugging Face's way (spm_precompiled): of each grapheme
 * of up to five bytes the shortest entry that it starts with stands for all of it; else each of its
 * characters is looked for. rules has the map and its plain characters. */
static lh_status_t map_graphemes(const space_rules_t *rules, const char *text, size_t length,
                                 text_t *out)
{
    enum { GRAPHEME_MOST = 5 };
    const charsmap_t *map = &rules->charsmap;

    for (size_t at = 0; at < length;) {
        const size_t run = normalize_plain_run(rules, text + at, length - at);
        text_append_n(out, text + at, run);
        at += run;
        if (at == length) break;
        const lh_status_t status = normalize_check_growth(out, length);
        if (status != LH_OK) return status;
        const size_t end = grapheme_end(text, length, at);
        if (end - at <= GRAPHEME_MOST && append_mapped(map, text + at, end - at, out)) {
            at = end;
            continue;
        }
        while (at < end) {
            uint32_t size;
            (void)text_utf8_decode((const unsigned char *)text + at,
                                   (const unsigned char *)text + end, &size);
            if (!append_mapped(map, text + at, size, out)) text_append_n(out, text + at, size);
            at += size;
        }
    }
    return text_status(out);
}

/* Appends to out, which is empty, what step `index` makes of the text. */
static lh_status_t normalize_apply(const normalizer_t *n, size_t index, normalize_scratch_t *s,
                                   const char *text, size_t length, text_t *out)
{
    const normalize_step_t *step = &n->steps[index];

    switch (step->by) {
    case NORMALIZE_UNICODE: return normalize_compose(step, s, text, length, out);
    case NORMALIZE_PREPEND:
        if (length > 0) text_append_n(out, step->to, step->to_length);
        text_append_n(out, text, length);
        return text_status(out);
    case NORMALIZE_REPLACE: return normalize_replace(step, s->matches[index], text, length, out);
    case NORMALIZE_SPACES: return treat_spaces(&step->spaces, text, length, out);
    case NORMALIZE_CHARACTERS: return normalize_characters(step->rule, text, length, out);
    case NORMALIZE_STRIP: return normalize_strip(step->left, step->right, text, length, out);
    case NORMALIZE_PRECOMPILED: return map_graphemes(&step->spaces, text, length, out);
    }
    return LH_OK;
}

/* Whether a step leaves nothing of how the text begins. */
static bool drops_start(const normalize_step_t *step, pattern_match_t *match, const char *text,
                        size_t length)
{
    size_t start, end;
    bool found;
    if (length == 0) return false;
    switch (step->by) {
    case NORMALIZE_CHARACTERS: return normalize_drops(step->rule, text, length);
    case NORMALIZE_STRIP: return step->left && normalize_starts_with_space(text, length);
    case NORMALIZE_REPLACE:
        if (step->to_length > 0) return false;
        if (step->regex != NULL) /* normalize_replace tells of a failure */
            return pattern_regex_find(step->regex, match, text, length, 0, false, &found, &start,
                                      &end) == LH_OK &&
                   start == 0 && end > 0 && end < length;
        return length > step->from_length && memcmp(text, step->from, step->from_length) == 0;
    default: return false;
    }
}

/* Saves the copy of a text in the usual case; false only means that it is not known. */
static bool changes_nothing(const normalize_step_t *step, const char *text, size_t length)
{
    if (step->by == NORMALIZE_CHARACTERS)
        return text_utf8_ascii(text, length) == length &&
               !normalize_changes_ascii(step->rule, text, length);
    if (step->by != NORMALIZE_UNICODE) return false;
    if (step->compose && !step->compatible) return is_composed(text, length);
    return text_utf8_ascii(text, length) == length;
}

/* text moves from the caller's memory to one of the two buffers and then between them. A step reads
 * the one and writes the other, so it may append to its destination while it reads. */
lh_status_t normalize(const normalizer_t *n, normalize_scratch_t *s, const char *text,
                      size_t length, const char **out, size_t *out_length)
{
    lh_assert(s->match_count == n->count);
    const size_t from = length;
    size_t next = 0;

    s->dropped = false;
    for (size_t i = 0; i < n->count; i++) {
        s->dropped = s->dropped || drops_start(&n->steps[i], s->matches[i], text, length);
        if (changes_nothing(&n->steps[i], text, length)) continue;
        text_t *to = &s->texts[next];
        to->length = 0;
        to->failed = false;
        const lh_status_t status = normalize_apply(n, i, s, text, length, to);
        if (status != LH_OK) return status;
        const lh_status_t grown = normalize_check_growth(to, from);
        if (grown != LH_OK) return grown;
        text = to->data == NULL ? "" : to->data;
        length = to->length;
        next = 1 - next;
    }
    *out = text;
    *out_length = length;
    return LH_OK;
}
