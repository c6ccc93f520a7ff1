/* tokenizer/normalize_characters.h - normalizers that look at one character at a time. For normalize.c
 * only. */
#ifndef TOKENIZER_NORMALIZE_CHARACTERS_H
#define TOKENIZER_NORMALIZE_CHARACTERS_H

#include <base/status.h>
#include <base/text.h>

/* What becomes of each character, of NORMALIZE_CHARACTERS. */
typedef enum character_rule {
    RULE_LOWER,      /* small letters                                        */
    RULE_NO_MARKS,   /* category M goes: StripAccents                        */
    RULE_NO_ACCENTS, /* category Mn goes: BERT's strip_accents, behind NFD   */
    RULE_NMT,        /* control characters go, odd spaces become spaces      */
    RULE_CLEAN,      /* BERT's clean_text: the same by other tables          */
    RULE_CHINESE,    /* spaces around Chinese characters                     */
} character_rule_t;

/* Appends to out, which is another text, what the rule makes of each character. */
lh_status_t normalize_characters(character_rule_t rule, const char *text, size_t length,
                                 text_t *out) LH_MUST_CHECK;
/* False: the rule leaves this text of ASCII as it is, as far as a look at each byte tells. */
bool normalize_changes_ascii(character_rule_t rule, const char *text, size_t length);

/* Whether nothing is left of the first character of a text that has one. */
bool normalize_drops(character_rule_t rule, const char *text, size_t length);
bool normalize_starts_with_space(const char *text, size_t length);

/* Appends the text without the white space at its ends. */
lh_status_t normalize_strip(bool left, bool right, const char *text, size_t length,
                            text_t *out) LH_MUST_CHECK;

#endif
