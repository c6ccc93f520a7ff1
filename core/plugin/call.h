/* plugin/call.h - calls from INI text: "warmup_cosine(step, peak=1e-3, warmup=2k, total=100k)".
 *
 * Text is bound once, with every mistake a sentence; a bound call then runs without allocating. An
 * expression is a call, a variable, a number with or without unit, or a string in double quotes.
 * Arguments are positional or keyword=expression and may be calls. `name(...)` is looked up in the
 * functions of the scope, `plugin:name(...)` in the plugin's table. A parameter that is not given
 * but has the name and type of a variable gets the variable. Types never convert.
 *
 *     expression = number | "text" | variable | [plugin:]function([argument {, argument}])
 *     argument   = [keyword =] expression
 *
 * A small language of calls and not one of operators: sums and conditions belong in a plugin's
 * function, which a compiler has checked and a test can call. */
#ifndef PLUGIN_CALL_H
#define PLUGIN_CALL_H

#include <longhaul/function.h>

#include <plugin/plugin.h>

/* Of one text: calls inside of calls; values and calls in all. */
enum { CALL_DEPTH = 8, CALL_NODES = 64 };

/* Which member counts is the CALL_* type's to say. Texts and tensors are borrowed. */
typedef union call_value {
    int64_t i64;
    uint64_t u64;
    double f64;
    const char *str;
    lh_tensor_t *tensor;
} call_value_t;

/* What a text may name without quotes: step, loss. Its value comes with each call_run. */
typedef struct call_variable {
    const char *name;
    uint32_t type; /* CALL_* */
} call_variable_t;

typedef struct registry registry_t;

typedef struct call_scope {         /* everything here outlives the call */
    const lh_function_t *functions; /* without prefix: the core's own */
    uint32_t function_count;
    const call_variable_t *variables;
    uint32_t variable_count;
    registry_t *plugins;   /* NULL: no plugin's functions here     */
    const lh_host_t *host; /* handed to the functions without prefix */
    const void *config;
} call_scope_t;

typedef struct call call_t; /* a bound text */

/* where ("train.ini:12: learning_rate") begins every sentence; result is the CALL_* that the text
 * must give. */
lh_status_t call_bind(const char *text, const char *where, const call_scope_t *scope,
                      uint32_t result, call_t **out) LH_MUST_CHECK;
void call_free(call_t *c);
/* The row of the function whose result is the text's; NULL: it is a variable or a constant. */
const lh_function_t *call_target(const call_t *c);
/* Whether the text takes the scope's variable of that index, by its name or for a parameter that was not
 * given. */
bool call_reads(const call_t *c, uint32_t variable);

/* values: one for each variable of the scope, in its order. out may be NULL for CALL_STATUS. One
 * thread at a time per bound call. A result that is not finite is refused; a text is valid until
 * call_free. */
lh_status_t call_run(call_t *c, const call_value_t *values, call_value_t *out) LH_MUST_CHECK;

#endif
