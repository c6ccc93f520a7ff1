/* comma_locale.h - a program of which a library has called setlocale, also where no such locale is installed: while
 * comma_locale is set, strtod takes a point for the end of a number. */
#ifndef TESTS_COMMA_LOCALE_H
#define TESTS_COMMA_LOCALE_H

#include <locale.h>
#include <stdbool.h>
#include <stdlib.h>

static bool comma_locale;

/* Goes before the C library's, in all that is linked with the test. */
double strtod(const char *text, char **end)
{
    if (comma_locale) return (double)strtoll(text, end, 10);
    return strtod_l(text, end, newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

#endif
