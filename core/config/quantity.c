/* quantity.c - one exact decimal parser, and tables of units.
 *
 * Whole numbers with units are computed in integers throughout: digits as one number, a count of
 * places behind the point, then factor and divisor in 128 bits. A double would make 0.1GiB or
 * 12.5Gbps a neighbour of what was typed, and a limit that is off by one is hard to find. */
#include <config/quantity.h>

#include <ctype.h>
#include <math.h>

#include <base/memory.h>
#include <base/status.h>
#include <base/text.h>

/* value = digits * factor / divisor. */
typedef struct unit {
    const char *text;
    uint64_t factor;
    uint64_t divisor; /* 8 for bits; else 1 */
} unit_t;

#define K 1000ull
#define KI 1024ull

static const unit_t count_units[] = {
    {"", 1, 1}, {"k", K, 1}, {"M", K *K, 1}, {"G", K *K *K, 1}, {"T", K *K *K *K, 1}, {NULL, 0, 0},
};
static const unit_t byte_units[] = {
    {"", 1, 1},
    {"B", 1, 1},
    {"kB", K, 1},
    {"MB", K *K, 1},
    {"GB", K *K *K, 1},
    {"TB", K *K *K *K, 1},
    {"KiB", KI, 1},
    {"MiB", KI *KI, 1},
    {"GiB", KI *KI *KI, 1},
    {"TiB", KI *KI *KI *KI, 1},
    {NULL, 0, 0},
};
static const unit_t time_units[] = {
    {"ns", 1, 1},
    {"us", K, 1},
    {"ms", K *K, 1},
    {"s", K *K *K, 1},
    {"min", 60 * K *K *K, 1},
    {"h", 3600 * K *K *K, 1},
    {"d", 86400 * K *K *K, 1},
    {NULL, 0, 0},
};
static const unit_t rate_units[] = {
    {"bps", 1, 8},        {"kbps", K, 8},          {"Mbps", K *K, 8},
    {"Gbps", K *K *K, 8}, {"Tbps", K *K *K *K, 8}, {"B/s", 1, 1},
    {"kB/s", K, 1},       {"MB/s", K *K, 1},       {"GB/s", K *K *K, 1},
    {"KiB/s", KI, 1},     {"MiB/s", KI *KI, 1},    {"GiB/s", KI *KI *KI, 1},
    {NULL, 0, 0},
};

/* Units are compared as they are typed: "mb" is no unit, as it could mean two. NULL: not in this
 * table. */
static const unit_t *unit_find(const unit_t *units, const char *text)
{
    for (; units->text != NULL; units++)
        if (strcmp(units->text, text) == 0) return units;
    return NULL;
}

__extension__ typedef unsigned __int128 wide_t;

/* digits * factor / 10^places / divisor must be whole: "1.5k" is 1500, "0.5" is nothing. places <=
 * 12 keeps the divisor below 2^64: 8 * 10^12. */
static bool scale_digits(uint64_t digits, uint32_t places, const unit_t *unit, uint64_t *out)
{
    lh_assert(places <= 12 && unit->divisor > 0);
    wide_t value = (wide_t)digits * unit->factor;
    uint64_t divisor = unit->divisor;
    for (uint32_t i = 0; i < places; i++)
        divisor *= 10;
    if (value % divisor != 0) return false;
    value /= divisor;
    if (value > UINT64_MAX) return false;
    *out = (uint64_t)value;
    return true;
}

/* A zero needs no unit. A digit must stand on both sides of a point. tables is a list of tables
 * ended by NULL; the first unit that is found counts. */
static bool parse_whole(const char *text, const unit_t *const *tables, uint64_t *out)
{
    enum { PLACES = 12 };
    uint64_t digits = 0;
    uint32_t places = 0;
    bool point = false, any = false;

    for (; isdigit((unsigned char)*text) || (*text == '.' && !point && any); text++) {
        if (*text == '.') {
            if (!isdigit((unsigned char)text[1])) return false;
            point = true;
            continue;
        }
        any = true;
        if (point && ++places > PLACES) return false;
        if (!checked_mul(digits, 10, &digits) ||
            !checked_add(digits, (uint64_t)(*text - '0'), &digits))
            return false;
    }
    if (!any) return false;
    if (digits == 0 && *text == '\0') {
        *out = 0;
        return true;
    }
    for (; *tables != NULL; tables++) {
        const unit_t *unit = unit_find(*tables, text);
        if (unit != NULL) return scale_digits(digits, places, unit, out);
    }
    return false;
}

bool quantity_u64(const char *text, uint64_t *out)
{
    return parse_whole(text, (const unit_t *const[]){count_units, NULL}, out);
}

/* Negated as unsigned, since -INT64_MIN is no int64_t. */
bool quantity_i64(const char *text, int64_t *out)
{
    const bool negative = *text == '-';
    uint64_t magnitude;
    if (!quantity_u64(text + negative, &magnitude)) return false;
    if (magnitude > (uint64_t)INT64_MAX + negative) return false;
    *out = negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return true;
}

bool quantity_bytes(const char *text, uint64_t *out)
{
    return parse_whole(text, (const unit_t *const[]){byte_units, NULL}, out);
}

bool quantity_duration(const char *text, uint64_t *out)
{
    return parse_whole(text, (const unit_t *const[]){time_units, NULL}, out);
}

bool quantity_rate(const char *text, uint64_t *out)
{
    return parse_whole(text, (const unit_t *const[]){rate_units, NULL}, out);
}

bool quantity_any(const char *text, uint64_t *out)
{
    return parse_whole(
        text, (const unit_t *const[]){count_units, byte_units, time_units, rate_units, NULL}, out);
}

/* [-+] digits [. digits] [e [-+] digits], so no "nan", "inf" or "0x1p3", which strtod would take.
 */
static bool looks_decimal(const char *text)
{
    size_t digits = 0;
    if (*text == '-' || *text == '+') text++;
    for (; isdigit((unsigned char)*text); text++)
        digits++;
    if (*text == '.')
        for (text++; isdigit((unsigned char)*text); text++)
            digits++;
    if (digits == 0) return false;
    if (*text == 'e' || *text == 'E') {
        text++;
        if (*text == '-' || *text == '+') text++;
        if (!isdigit((unsigned char)*text)) return false;
        while (isdigit((unsigned char)*text))
            text++;
    }
    return *text == '\0';
}

/* Checked by looks_decimal first, so text_real sees nothing that it reads in a way of its own. */
bool quantity_f64(const char *text, double *out)
{
    if (!looks_decimal(text)) return false;
    const double value = text_real(text, NULL);
    if (!isfinite(value)) return false;
    *out = value;
    return true;
}

/* Two words and no others: true, on and 1 are refused. */
bool quantity_bool(const char *text, bool *out)
{
    const bool yes = strcmp(text, "yes") == 0;
    if (!yes && strcmp(text, "no") != 0) return false;
    *out = yes;
    return true;
}

/* Compared byte by byte up to each bar, without copying the list. */
bool quantity_choice(const char *text, const char *choices, uint32_t *out)
{
    lh_assert(choices != NULL);
    const size_t length = strlen(text);
    if (length == 0) return false;
    for (uint32_t index = 0;; index++) {
        const size_t width = strcspn(choices, "|");
        if (width == length && memcmp(choices, text, length) == 0) {
            *out = index;
            return true;
        }
        if (choices[width] == '\0') return false;
        choices += width + 1;
    }
}

/* Goes behind "expected" in a sentence. */
const char *quantity_wants(uint32_t type)
{
    static const char *const wants[] = {
        [LH_OPT_BOOL] = "yes or no",
        [LH_OPT_U64] = "a whole number such as 8, 10k or 2M",
        [LH_OPT_F64] = "a number such as 0.1 or 3e-4",
        [LH_OPT_BYTES] = "a size such as 4096, 64KiB or 1GiB",
        [LH_OPT_DURATION] = "a time such as 10us, 250ms or 2s",
        [LH_OPT_RATE] = "a rate such as 400Gbps or 12GB/s",
        [LH_OPT_CHOICE] = "one of the choices",
        [LH_OPT_STRING] = "a text",
        [LH_OPT_U32] = "a whole number such as 8 or 10k",
        [LH_OPT_PATH] = "a path",
    };
    return type < sizeof(wants) / sizeof(wants[0]) && wants[type] != NULL ? wants[type] : "a value";
}
