/* pasted_key.c - takes off what people put around a key, then looks at what is left. */
#include <config/pasted_key.h>

#include <ctype.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/text.h>

enum {
    HEX_DIGITS = 32,      /* alone: half a key */
    HEX_NAME_DIGITS = 64, /* of a file in a folder: shorter ones are names made of digests */
    CODED = 43,           /* base64 of 32 bytes, without = */
    WORD = 8,             /* names are words; base64 has a - or _ in 32 characters */
};

/* One pair of quotes, then 0x or what leads to the folder that a path starts from anyway. */
static char *bare(const char *text)
{
    size_t length = strlen(text);
    if (length >= 2 && (*text == '"' || *text == '\'') && text[length - 1] == *text) {
        text++;
        length -= 2;
    }
    if (length > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
        text += 2;
        length -= 2;
    }
    while (length > 2 && text[0] == '.' && text[1] == '/') {
        text += 2;
        length -= 2;
    }
    return mem_text_n(text, length);
}

/* Two digits and a colon, as fingerprints are written, too. */
static bool is_hex(const char *text, size_t least)
{
    size_t digits = 0;
    for (; *text != '\0'; text++)
        if (isxdigit((unsigned char)*text))
            digits++;
        else if (*text != ':')
            return false;
    return digits >= least;
}

/* Either alphabet. Of 43 random characters, a digit or a sign is among nearly all. */
static bool is_base64(const char *text)
{
    const size_t length = strcspn(text, "="), ends = strlen(text + length);
    size_t upper = 0, lower = 0, others = 0, joints = 0;
    if (length < CODED || ends > 2 || strspn(text + length, "=") != ends) return false;
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (!isalnum(c) && strchr("+/-_", c) == NULL) return false;
        upper += isupper(c) != 0;
        lower += islower(c) != 0;
        joints += c == '-' || c == '_';
        others += !isalpha(c);
    }
    return upper > 0 && lower > 0 && others > 0 && joints <= length / WORD;
}

static bool leads_somewhere(const char *folder, const char *path, bool to_folder)
{
    char *above = to_folder ? path_folder(path) : mem_text(path);
    char *whole = above == NULL ? NULL : path_join(folder, above);
    const bool there = whole != NULL && file_exists(whole);
    mem_free(whole);
    mem_free(above);
    return there;
}

/* "/mnt/Team7/...", of which a part may not be there yet. */
static bool is_absolute(const char *path)
{
    if (*path != '/') return false;
    char *first = mem_text_n(path, 1 + strcspn(path + 1, "/"));
    const bool there = first != NULL && first[1] != '\0' && file_exists(first);
    mem_free(first);
    return there;
}

bool pasted_key(const char *text, const char *folder)
{
    char *value = bare(text);
    if (value == NULL) {
        fail_clear();
        return false;
    }
    const char *name = path_name(value);
    bool pasted = is_hex(value, HEX_DIGITS) || is_hex(name, HEX_NAME_DIGITS);
    if (!pasted && !leads_somewhere(folder, value, false))
        pasted = is_base64(name) ||
                 (is_base64(value) && !is_absolute(value) && !leads_somewhere(folder, value, true));
    mem_free(value);
    return pasted;
}
