/* check_print.c - prints what checks came to. Texts and names of a plugin can't steer a terminal.
 */
#include "check_print.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/text.h>

/* NULL: out of memory. JSON is UTF-8; of another text it has what a terminal shows. */
static json_t *json_of(const char *text)
{
    json_t *same = json_string(text);
    if (same != NULL) return same;
    text_t shown = {0};
    text_append_shown(&shown, text, true);
    json_t *value = shown.failed ? NULL : json_string(shown.data);
    text_free(&shown);
    return value;
}

void print_json(const check_t *c, const outcome_t *o)
{
    json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:f}", "check", c->name, "sentence", c->sentence,
                            "result", result_text(o->result), "reason", "", "seconds", o->seconds);
    json_t *reason = json_of(o->sentence);
    if (row != NULL && reason != NULL) (void)json_object_set(row, "reason", reason);
    char *text = row == NULL ? NULL : json_dumps(row, JSON_COMPACT | JSON_PRESERVE_ORDER);
    if (text != NULL) (void)printf("%s\n", text);
    free(text);
    json_decref(reason);
    json_decref(row);
}

/* Further lines stand below the first. */
static void print_shown(FILE *to, const char *text)
{
    text_t shown = {0};
    text_append_shown(&shown, text, true);
    for (const char *at = shown.data; at != NULL && *at != '\0'; at++)
        (void)fputs(*at == '\n' ? "\n         " : (char[]){*at, '\0'}, to);
    if (shown.failed) (void)fputs("(out of memory)", to);
    text_free(&shown);
}

static void print_below(const char *what, const char *text)
{
    if (text[0] == '\0') return;
    (void)printf("         %s", what);
    print_shown(stdout, text);
    (void)putchar('\n');
}

void print_line(const check_t *c, const outcome_t *o)
{
    (void)printf("%-8s %-28s %s (%.2f s)\n", result_text(o->result), c->name, c->sentence,
                 o->seconds);
    print_below("", o->sentence);
    print_below("it printed: ", o->said);
}

void print_sum(const char *name, const uint32_t *results)
{
    print_shown(stdout, name);
    (void)printf(": %u passed, %u warn, %u skipped, %u failed\n", results[RESULT_PASS],
                 results[RESULT_WARN], results[RESULT_SKIP],
                 results[RESULT_FAIL] + results[RESULT_CRASH] + results[RESULT_TIMEOUT]);
}

void print_reason(void)
{
    (void)fputs("longhaul-check: ", stderr);
    print_shown(stderr, fail_reason());
    (void)fputc('\n', stderr);
}
