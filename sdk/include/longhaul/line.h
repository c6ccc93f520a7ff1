/* longhaul/line.h - a line of text that grows piece by piece, for what a plugin tells people line by line
 * (lh_transport_api_t.cards). */
#ifndef LH_LINE_H
#define LH_LINE_H

#include <stdarg.h>
#include <stdio.h>

#include <longhaul/base.h>

enum { LH_LINE_BYTES = 1024 };

/* Begins as all zeroes, which is an empty line. Its owner's, and used by one thread at a time. */
typedef struct lh_line {
    char text[LH_LINE_BYTES]; /* ends with a NUL */
    size_t length;            /* bytes, without the NUL */
} lh_line_t;

/* Appends to it; what there is no room for is cut off. */
LH_PRINTF(2, 3)
static inline void lh_line_add(lh_line_t *line, const char *fmt, ...)
{
    const size_t room = sizeof(line->text) - line->length;
    va_list args;
    va_start(args, fmt);
    const int more = vsnprintf(line->text + line->length, room, fmt, args);
    va_end(args);
    if (more > 0) line->length += (size_t)more < room ? (size_t)more : room - 1;
    line->text[line->length] = '\0'; /* also where the C library refused the format */
}

#endif
