/* quantity_fuzz.c - values as people write them, against every type of option. A number that was
 * understood, printed and read again is the same. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <config/options.h>
#include <config/quantity.h>

typedef struct config {
    uint64_t whole, bytes, time, rate;
    double real;
    char *text, *path;
    uint32_t choice, narrow;
    bool yes;
} config_t;

static const lh_option_t rows[] = {
    LH_OPTION_U64(config_t, whole, "whole", "1", "1..1T", "h"),
    LH_OPTION_BYTES(config_t, bytes, "bytes", "1", "..1TiB", "h"),
    LH_OPTION_DURATION(config_t, time, "time", "1s", "1ms..", "h"),
    LH_OPTION_RATE(config_t, rate, "rate", "1Gbps", NULL, "h"),
    LH_OPTION_F64(config_t, real, "real", "1", "-5..5", "h"),
    LH_OPTION_STRING(config_t, text, "text", "", "h"),
    LH_OPTION_PATH(config_t, path, "path", "", "h"),
    LH_OPTION_CHOICE(config_t, choice, "choice", "a", "a|b|ring|tree", "h"),
    LH_OPTION_BOOL(config_t, yes, "yes", "no", "h"),
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

static void whole_again(bool (*parse)(const char *, uint64_t *), const char *text, const char *unit)
{
    uint64_t value, again;
    char printed[64];
    if (!parse(text, &value)) return;
    (void)snprintf(printed, sizeof(printed), "%llu%s", (unsigned long long)value, unit);
    FUZZ_ASSERT(parse(printed, &again) && again == value);
}

static void numbers(const char *text)
{
    int64_t negative;
    double real, again;
    char printed[64];
    whole_again(quantity_u64, text, "");
    whole_again(quantity_bytes, text, "B");
    whole_again(quantity_duration, text, "ns");
    whole_again(quantity_rate, text, "B/s");
    whole_again(quantity_any, text, "");
    if (quantity_i64(text, &negative)) {
        int64_t same;
        (void)snprintf(printed, sizeof(printed), "%lld", (long long)negative);
        FUZZ_ASSERT(quantity_i64(printed, &same) && same == negative);
    }
    if (quantity_f64(text, &real)) {
        (void)snprintf(printed, sizeof(printed), "%.17g", real);
        FUZZ_ASSERT(quantity_f64(printed, &again) && again == real);
    }
}

/* What a parsed option says of itself sets it to the same again. */
static void options(const char *text)
{
    for (uint32_t i = 0; i < ROWS; i++) {
        config_t first = {0}, second = {0};
        char a[OPTION_TEXT], b[OPTION_TEXT];
        if (!fuzz_accepted(option_set(&rows[i], text, "fuzz", NULL, &first))) continue;
        const char *shown = option_text(&rows[i], &first, a);
        if (rows[i].type != LH_OPT_DURATION && rows[i].type != LH_OPT_RATE && shown != NULL) {
            FUZZ_ASSERT(option_set(&rows[i], shown, "fuzz", NULL, &second) == LH_OK);
            FUZZ_ASSERT(strcmp(shown, option_text(&rows[i], &second, b)) == 0);
        }
        options_free(rows, ROWS, &first);
        options_free(rows, ROWS, &second);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_part_t text;
    fuzz_cut(bytes, size, '\0', &text, 1);
    numbers(text.bytes);
    options(text.bytes);
    fuzz_parts_free(&text, 1);
    return 0;
}
