/* tokenizer_rig.h - a tokenizer with what it works on, for tests that encode and decode by files. */
#ifndef TOKENIZER_RIG_H
#define TOKENIZER_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <tokenizer/tokenizer.h>

/* last: it has a macro named fail */
#include <cmocka.h>

typedef struct machine {
    tokenizer_t *t;
    tokenizer_scratch_t *scratch;
    token_ids_t ids;
    text_t text;
} machine_t;

static inline void machine_must(lh_status_t status)
{
    if (status != LH_OK) print_error("%s\n", fail_reason());
    assert_int_equal(status, LH_OK);
}

static inline void machine_open(machine_t *m, const char *path)
{
    *m = (machine_t){0};
    machine_must(tokenizer_load(path, NULL, &m->t));
    machine_must(tokenizer_scratch_new(m->t, &m->scratch));
}

static inline void machine_close(machine_t *m)
{
    text_free(&m->text);
    token_ids_free(&m->ids);
    tokenizer_scratch_free(m->scratch);
    tokenizer_free(m->t);
}

/* Into m->ids, in the place of those that were there. */
static inline void machine_encode(machine_t *m, const char *text, size_t length,
                                  token_spelling_t spelling)
{
    m->ids.count = 0;
    machine_must(tokenizer_encode(m->t, m->scratch, text, length, spelling, &m->ids));
}

#endif
