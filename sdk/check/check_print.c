/* check_print.c - prints what checks came to. Texts and names of a plugin can't steer a terminal.
 */
#include "check_print.h"

#include <stdio.h>
#include <stdlib.h>

#include <base/text.h>
#include <format/json.h>

/* JSON is UTF-8; of another text it has what a terminal shows. */
static void put_reason(json_writer_t *w, const char *text)
{
    text_t shown = {0};
    if (!text_utf8_valid(text, strlen(text))) text_append_shown(&shown, text, true);
    json_put_text(w, "reason", shown.data == NULL ? text : shown.data);
    text_free(&shown);
}

void print_json(const check_t *c, const outcome_t *o)
{
    text_t text = {0};
    json_writer_t w = {.to = &text, .style = JSON_TIGHT};
    json_open(&w, NULL, '{');
    json_put_text(&w, "check", c->name);
    json_put_text(&w, "sentence", c->sentence);
    json_put_text(&w, "result", result_text(o->result));
    put_reason(&w, o->sentence);
    json_put_real(&w, "seconds", o->seconds);
    json_close(&w);
    if (!text.failed) (void)printf("%s\n", text.data);
    text_free(&text);
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
