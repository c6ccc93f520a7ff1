/* unicode.c - classes from utf8proc's tables, and GPT-2's alphabet of bytes. */
#include <tokenizer/unicode.h>

#include <string.h>

#include <utf8proc.h>

static bool is_white_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

static const uint8_t category_class[] = {
    [UTF8PROC_CATEGORY_LU] = CLASS_LETTER | CLASS_WORD,
    [UTF8PROC_CATEGORY_LL] = CLASS_LETTER | CLASS_WORD,
    [UTF8PROC_CATEGORY_LT] = CLASS_LETTER | CLASS_WORD,
    [UTF8PROC_CATEGORY_LM] = CLASS_LETTER | CLASS_WORD,
    [UTF8PROC_CATEGORY_LO] = CLASS_LETTER | CLASS_WORD,
    [UTF8PROC_CATEGORY_MN] = CLASS_WORD,
    [UTF8PROC_CATEGORY_MC] = CLASS_WORD,
    [UTF8PROC_CATEGORY_ME] = CLASS_WORD,
    [UTF8PROC_CATEGORY_ND] = CLASS_NUMBER | CLASS_WORD,
    [UTF8PROC_CATEGORY_NL] = CLASS_NUMBER | CLASS_WORD,
    [UTF8PROC_CATEGORY_NO] = CLASS_NUMBER,
    [UTF8PROC_CATEGORY_PC] = CLASS_PUNCTUATION | CLASS_WORD,
    [UTF8PROC_CATEGORY_PD] = CLASS_PUNCTUATION,
    [UTF8PROC_CATEGORY_PS] = CLASS_PUNCTUATION,
    [UTF8PROC_CATEGORY_PE] = CLASS_PUNCTUATION,
    [UTF8PROC_CATEGORY_PI] = CLASS_PUNCTUATION,
    [UTF8PROC_CATEGORY_PF] = CLASS_PUNCTUATION,
    [UTF8PROC_CATEGORY_PO] = CLASS_PUNCTUATION,
    [UTF8PROC_CATEGORY_CO] = 0,
};

/* Word characters beyond letters, marks, decimal digits and connectors: circled and squared letters
 * are alphabetic, and the two joiners belong to words. */
static bool is_other_word(uint32_t c)
{
    return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
           (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
           (c >= 0x1F170 && c <= 0x1F189);
}

uint8_t unicode_class(uint32_t character)
{
    if (character >= UTF8_BAD) return 0;
    if (is_white_space(character)) return CLASS_SPACE;

    uint8_t class = category_class[utf8proc_category((utf8proc_int32_t)character)];
    if (character < 0x80 && character > 0x20 && character != 0x7F && (class & CLASS_WORD) == 0)
        class |= CLASS_PUNCTUATION;
    if (is_other_word(character)) class |= CLASS_WORD;
    return class;
}

void unicode_classes_fill(unicode_classes_t *out)
{
    for (uint32_t c = 0; c < UNICODE_COMMON; c++)
        out->of[c] = unicode_class(c);
}

static bool is_printable_byte(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
           (byte >= 0xAE && byte <= 0xFF);
}

uint32_t byte_character(uint8_t byte)
{
    if (is_printable_byte(byte)) return byte;
    /* the others, in order, follow U+0100: 0-32, 127-160, 173 */
    return 0x100u + (byte <= 32 ? byte : byte <= 160 ? byte - 94u : 67u);
}

int byte_of_character(uint32_t character)
{
    if (character < 0x100) return is_printable_byte(character) ? (int)character : -1;
    const uint32_t n = character - 0x100;
    if (n > 67) return -1;
    return n <= 32 ? (int)n : n <= 66 ? (int)n + 94 : 173;
}
