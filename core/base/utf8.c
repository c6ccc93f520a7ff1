/* utf8.c - the rules are libutf8proc's; ASCII is passed over eight bytes at a time. */
#include <base/utf8.h>

#include <string.h>

#include <utf8proc.h>

uint32_t utf8_decode_rare(const unsigned char *p, const unsigned char *end, uint32_t *length)
{
    utf8proc_int32_t character;
    const utf8proc_ssize_t bytes = utf8proc_iterate(p, end - p, &character);
    *length = bytes > 0 ? (uint32_t)bytes : 1;
    return bytes > 0 ? (uint32_t)character : UTF8_BAD;
}

size_t utf8_character(const char *at)
{
    uint32_t length;
    const unsigned char *p = (const unsigned char *)at;
    return utf8_decode(p, p + strnlen(at, 4), &length) == UTF8_BAD ? 0 : length;
}

size_t utf8_encode(uint32_t character, char out[4])
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)character, (utf8proc_uint8_t *)out);
}

size_t utf8_ascii(const char *text, size_t length)
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

size_t utf8_prefix(const char *text, size_t length)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + length;
    while (p < end) {
        p += utf8_ascii((const char *)p, (size_t)(end - p));
        while (p < end && *p >= 0x80) {
            uint32_t size;
            if (utf8_decode(p, end, &size) == UTF8_BAD)
                return (size_t)(p - (const unsigned char *)text);
            p += size;
        }
    }
    return length;
}

bool utf8_valid(const char *text, size_t length)
{
    return utf8_prefix(text, length) == length;
}
