/* text.c - growing strings, texts that others wrote made harmless, times and numbers as people read
 * them, and UTF-8.
 *
 * What UTF-8 is, is libutf8proc's to say. Only the common cases are decided here, as they are most
 * of a corpus: ASCII eight bytes at a time, and in the header ASCII and plain three-byte
 * characters. */
#include <base/text.h>

#include <ctype.h>
#include <locale.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <utf8proc.h>

#include <base/memory.h>

/* Makes room for `more` bytes and a NUL. False once an allocation has failed, for good. */
static bool text_reserve(text_t *t, size_t more)
{
    if (t->failed) return false;
    char *data = mem_grow(t->data, &t->capacity, t->length + more + 1, 1);
    if (data == NULL) {
        t->failed = true;
        return false;
    }
    t->data = data;
    return true;
}

void text_append_n(text_t *t, const char *bytes, size_t length)
{
    if (!text_reserve(t, length)) return;
    lh_assert(t->length + length < t->capacity);
    memcpy(t->data + t->length, bytes, length);
    t->length += length;
    t->data[t->length] = '\0';
}

void text_append(text_t *t, const char *text)
{
    text_append_n(t, text, strlen(text));
}

void text_vprintf(text_t *t, const char *fmt, va_list args)
{
    va_list again;
    va_copy(again, args);
    const int length = vsnprintf(NULL, 0, fmt, args);
    if (length >= 0 && text_reserve(t, (size_t)length)) {
        (void)vsnprintf(t->data + t->length, (size_t)length + 1, fmt, again);
        t->length += (size_t)length;
    }
    va_end(again);
}

void text_printf(text_t *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    text_vprintf(t, fmt, args);
    va_end(args);
}

/* The characters that turn the direction of the text around them, by which a name can be made to
 * look like another one: U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069. */
static bool turns_text(const char *at)
{
    const unsigned char *p = (const unsigned char *)at;
    if (p[0] == 0xd8) return p[1] == 0x9c;
    if (p[0] != 0xe2 || (p[1] != 0x80 && p[1] != 0x81)) return false;
    if (p[1] == 0x81) return p[2] >= 0xa6 && p[2] <= 0xa9;
    return p[2] == 0x8e || p[2] == 0x8f || (p[2] >= 0xaa && p[2] <= 0xae);
}

/* C1 controls first: as two bytes they are valid UTF-8, and some terminals obey them. */
size_t text_control(const char *at)
{
    const unsigned char c = (unsigned char)at[0], next = c == 0 ? 0 : (unsigned char)at[1];
    if (c == 0xc2 && next >= 0x80 && next <= 0x9f) return 2;
    if (c >= 0x80) return text_utf8_character(at) == 0 || turns_text(at);
    return (c != 0 && c < 0x20) || c == 0x7f;
}

void text_append_shown(text_t *t, const char *text, bool lines)
{
    while (*text != '\0') {
        const size_t bytes = lines && (*text == '\n' || *text == '\t') ? 0 : text_control(text);
        for (size_t i = 0; i < bytes; i++)
            text_printf(t, "\\x%02x", (unsigned char)text[i]);
        const size_t plain = bytes == 0 ? text_utf8_character(text) : 0;
        text_append_n(t, text, plain);
        text += bytes + plain;
    }
}

void text_free(text_t *t)
{
    mem_free(t->data);
    *t = (text_t){0};
}

lh_status_t text_status(const text_t *t)
{
    return t->failed ? LH_NO_MEMORY : LH_OK;
}

bool text_equal(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

bool text_starts(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool text_ends(const char *text, const char *suffix)
{
    const size_t length = strlen(text), tail = strlen(suffix);
    return length >= tail && strcmp(text + length - tail, suffix) == 0;
}

char *text_trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        length--;
    text[length] = '\0';
    return text;
}

/* Wagner and Fischer's table, of which one row is kept: row[j] is the distance of the first i
 * characters of a to the first j of b, diagonal that of one less of each. */
size_t text_distance(const char *a, const char *b)
{
    enum { LONGEST = 63 };
    size_t row[LONGEST + 1];
    const size_t rows = strlen(a), columns = strlen(b);
    if (rows > LONGEST || columns > LONGEST) return rows > columns ? rows : columns;

    for (size_t j = 0; j <= columns; j++)
        row[j] = j;
    for (size_t i = 1; i <= rows; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            const size_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            size_t best = row[j] + 1 < row[j - 1] + 1 ? row[j] + 1 : row[j - 1] + 1;
            row[j] = best < change ? best : change;
        }
    }
    return row[columns];
}

void text_nearest_offer(text_nearest_t *n, const char *name)
{
    const size_t distance = text_distance(n->typed, name);
    if (n->best != NULL && distance >= n->distance) return;
    n->best = name;
    n->distance = distance;
}

const char *text_nearest_name(const text_nearest_t *n)
{
    enum { FAR = 3 };
    if (n->best == NULL || n->distance > FAR || n->distance >= strlen(n->typed)) return NULL;
    return n->best;
}

/* strtod follows the locale of the process, strtod_l one that nobody else can set. Made once and
 * never freed: threads may be using it. */
static locale_t c_locale;
static void text_locale_make(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

static locale_t text_locale(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, text_locale_make);
    return c_locale;
}

double text_real(const char *text, char **end)
{
    const locale_t c = text_locale();
    return c != (locale_t)0 ? strtod_l(text, end, c) : strtod(text, end);
}

/* Where there is none, it only asks which one this thread has. */
void text_locale_hold(void)
{
    (void)uselocale(text_locale());
}

/* The calendar by counting, without the C library's, whose lock a thread may hold that failed.
 * Years begin in March here, so that a leap day is the last of its year; an era has 400 of them. */
void text_time(uint64_t wall_ns, char out[TEXT_TIME])
{
    enum { DAY_S = 86400, ERA_DAYS = 146097, DAYS_TO_1970 = 719468 };
    const uint64_t seconds = wall_ns / 1000000000u;
    const uint32_t ms = (uint32_t)(wall_ns / 1000000u % 1000), of_day = (uint32_t)(seconds % DAY_S);
    const uint32_t days = (uint32_t)(seconds / DAY_S) + DAYS_TO_1970, day = days % ERA_DAYS;
    const uint32_t year = (day - day / 1460 + day / 36524 - day / (ERA_DAYS - 1)) / 365;
    const uint32_t of_year = day - (365 * year + year / 4 - year / 100);
    const uint32_t march = (5 * of_year + 2) / 153; /* months since March */
    const uint32_t month = march < 10 ? march + 3 : march - 9;
    const uint32_t fields[] = {(days / ERA_DAYS * 400 + year + (month <= 2)) % 10000u,
                               month,
                               of_year - (153 * march + 2) / 5 + 1,
                               of_day / 3600,
                               of_day / 60 % 60,
                               of_day % 60,
                               ms};
    static const char form[TEXT_TIME] = "0000-11-22T33:44:55.666Z"; /* each digit: of which field */
    memcpy(out, form, TEXT_TIME);
    for (uint32_t at = TEXT_TIME - 1, left = 0; at-- > 0;) {
        if (form[at] < '0' || form[at] > '9') continue;
        if (form[at] != form[at + 1]) left = fields[form[at] - '0'];
        out[at] = (char)('0' + left % 10);
        left /= 10;
    }
}

void text_duration(double seconds, char out[24])
{
    const uint64_t s = seconds < 0 ? 0 : (uint64_t)(seconds + 0.5);
    if (seconds < 60)
        (void)snprintf(out, 24, "%.1f s", seconds);
    else if (s < 3600)
        (void)snprintf(out, 24, "%llum %02llus", (unsigned long long)(s / 60),
                       (unsigned long long)(s % 60));
    else
        (void)snprintf(out, 24, "%lluh %02llum", (unsigned long long)(s / 3600),
                       (unsigned long long)(s % 3600 / 60));
}

/* A number with a unit of a row, each `base` times the one before, with some three digits. A number
 * that would be rounded up to the next unit (999.6 of 1000) is written in that one. */
static void text_scaled(double number, double base, const char *const *units, int count, char *out)
{
    lh_assert(count > 0);
    int unit = 0;
    while (unit + 1 < count && number >= base * 0.9995) {
        number /= base;
        unit++;
    }
    const int decimals = unit == 0 || number >= 100 ? 0 : number >= 10 ? 1 : 2;
    (void)snprintf(out, 16, "%.*f%s", decimals, number, units[unit]);
}

void text_count(double count, char out[16])
{
    static const char *const units[] = {"", "k", "M", "G", "T", "P"};
    text_scaled(count, 1000, units, 6, out);
}

void text_bytes(double bytes, char out[16])
{
    static const char *const units[] = {" B", " KiB", " MiB", " GiB", " TiB"};
    text_scaled(bytes, 1024, units, 5, out);
}

/* libutf8proc refuses overlong forms, surrogates and cut characters itself. */
uint32_t text_utf8_decode_rare(const unsigned char *p, const unsigned char *end, uint32_t *length)
{
    utf8proc_int32_t character;
    const utf8proc_ssize_t bytes = utf8proc_iterate(p, end - p, &character);
    *length = bytes > 0 ? (uint32_t)bytes : 1;
    return bytes > 0 ? (uint32_t)character : TEXT_UTF8_BAD;
}

size_t text_utf8_character(const char *at)
{
    uint32_t length;
    const unsigned char *p = (const unsigned char *)at;
    return text_utf8_decode(p, p + strnlen(at, 4), &length) == TEXT_UTF8_BAD ? 0 : length;
}

size_t text_utf8_encode(uint32_t character, char out[4])
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)character, (utf8proc_uint8_t *)out);
}

uint64_t text_utf8_count(const char *text, size_t length)
{
    uint64_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += !text_utf8_follows(text[i]);
    return count;
}

/* Eight bytes at a time: a byte of ASCII has its upper bit clear. The loop behind it finds the
 * place in the word that has one set, and does the rest. */
size_t text_utf8_ascii(const char *text, size_t length)
{
    size_t i = 0;
    for (; i + 8 <= length; i += 8) {
        uint64_t word;
        memcpy(&word, text + i, 8);
        if ((word & 0x8080808080808080u) != 0) break;
    }
    while (i < length && (unsigned char)text[i] < 0x80)
        i++;
    return i;
}

/* Runs of ASCII are passed over as such, all else character by character. */
size_t text_utf8_prefix(const char *text, size_t length)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + length;
    while (p < end) {
        p += text_utf8_ascii((const char *)p, (size_t)(end - p));
        while (p < end && *p >= 0x80) {
            uint32_t size;
            if (text_utf8_decode(p, end, &size) == TEXT_UTF8_BAD)
                return (size_t)(p - (const unsigned char *)text);
            p += size;
        }
    }
    return length;
}

bool text_utf8_valid(const char *text, size_t length)
{
    return text_utf8_prefix(text, length) == length;
}
