/* spec/spec_text.h - the small language of a spec's lines: text becomes a tree, once, with every
 * mistake a sentence; numbers in it are worked out when the options of a model are known.
 *
 *     expression = term {(+ | -) term}
 *     term       = factor {(* | /) factor}
 *     factor     = number | name | call | ( expression ) | - factor
 *     call       = name ( [argument {, argument}] )
 *     argument   = [keyword =] expression
 *
 * A tree does not know what its names mean: in a shape they are options, in a line of a block they
 * are tensors, options or words of a choice, as the op's own table says. So one grammar serves
 * shapes, conditions and calls of ops. Whole numbers stay whole: a division with a remainder, or a
 * difference below 0, is refused and not rounded, as each such number is a size. */
#ifndef SPEC_SPEC_TEXT_H
#define SPEC_SPEC_TEXT_H

#include <base/text.h>

/* Bytes of a name, NUL included; brackets and minus signs inside of each other; nodes of a text. */
enum { SPEC_NAME = 64, SPEC_DEPTH = 16, SPEC_NODES = 256 };

/* Memory that is freed together: trees, rows and texts of one spec. Zero-initialise. */
typedef struct spec_pool {
    void **owned;
    size_t count, capacity;
} spec_pool_t;

/* Zeroed; NULL after fail(LH_NO_MEMORY). */
void *spec_pool_new(spec_pool_t *pool, size_t count, size_t size);
char *spec_pool_text(spec_pool_t *pool, const char *text, size_t length);
void spec_pool_free(spec_pool_t *pool);

enum { SPEC_NODE_NUMBER = 1, SPEC_NODE_WORD, SPEC_NODE_CALL, SPEC_NODE_OPERATOR };

typedef struct spec_node {
    uint32_t kind;           /* SPEC_NODE_*                                                 */
    char sign;               /* of an operator: + - * /, or ~ for a minus sign before one  */
    char keyword[SPEC_NAME]; /* of an argument; "" where it has none                       */
    char text[SPEC_NAME];    /* the number as typed, the word, what is called              */
    struct spec_node *first; /* arguments, operands                                        */
    struct spec_node *next;  /* beside it                                                  */
} spec_node_t;

/* where ("qwen3.ini:12: wq") begins every sentence. A list is expressions with commas between, as
 * nodes that are beside each other. Nodes are the pool's. */
lh_status_t spec_parse(const char *text, const char *where, spec_pool_t *pool,
                       spec_node_t **out) LH_MUST_CHECK;
lh_status_t spec_parse_list(const char *text, const char *where, spec_pool_t *pool,
                            spec_node_t **out) LH_MUST_CHECK;

/* "; did you mean 'wq'?", or "" where no name was near: the end of a sentence. */
enum { SPEC_MEANT = SPEC_NAME + 24 };
const char *spec_meant(const text_nearest_t *near, char out[SPEC_MEANT]);

/* What a call says: that of an op makes a tensor; the others stand by themselves in a line. */
enum { SPEC_MAKES = 0, SPEC_ACCUMULATES, SPEC_LOSS };
uint32_t spec_call_kind(const spec_node_t *call);
/* Whether it is total(NAME, count=N), which reads a sum. */
bool spec_call_is_total(const spec_node_t *node);

/* ---- numbers ---- */

/* A flag is the whole number 0 or 1, remembered as a flag because options write it yes or no. */
enum { SPEC_WHOLE = 1, SPEC_REAL, SPEC_FLAG, SPEC_TEXT };

typedef struct spec_value {
    uint32_t kind; /* SPEC_WHOLE ...            */
    uint64_t whole;
    double real;
    const char *text; /* the word of a choice, a text option; or a name that means nothing */
} spec_value_t;

/* What names mean. find gives false for a name that means nothing. */
typedef struct spec_names {
    const char *where; /* begins sentences */
    bool (*find)(void *context, const char *name, spec_value_t *out);
    /* For "did you mean". */
    void (*offer)(void *context, text_nearest_t *near);
    void *context;
} spec_names_t;

/* Whether a call is of a function on numbers: or(a, b) is b where a is 0; if(c, a, b); is(name,
 * word); not(c). */
bool spec_is_function(const char *name);

/* A word that means nothing is itself: the word of a choice. */
lh_status_t spec_evaluate(const spec_node_t *node, const spec_names_t *names,
                          spec_value_t *out) LH_MUST_CHECK;
/* As spec_evaluate, and the result must be a number: what a size, a condition, a real is. */
lh_status_t spec_whole(const spec_node_t *node, const spec_names_t *names,
                       uint64_t *out) LH_MUST_CHECK;
lh_status_t spec_real(const spec_node_t *node, const spec_names_t *names,
                      double *out) LH_MUST_CHECK;
/* A value as an option's text: reals so that they read back as the same bits. */
void spec_value_text(const spec_value_t *value, text_t *out);

#endif
