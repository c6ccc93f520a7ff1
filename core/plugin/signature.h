/* plugin/signature.h - "f64(u64 step, f64 peak)", the text that LH_FUNCTION writes, as a struct. */
#ifndef PLUGIN_SIGNATURE_H
#define PLUGIN_SIGNATURE_H

#include <stdint.h>

enum { CALL_PARAMS = 16 };

/* What a parameter or a result is. */
enum { CALL_STATUS = 1, CALL_I64 = 2, CALL_U64 = 3, CALL_F64 = 4, CALL_STR = 5, CALL_TENSOR = 6 };

typedef struct signature {
    uint32_t result; /* CALL_* */
    uint32_t count;
    struct {
        uint32_t type; /* CALL_*, never STATUS */
        char name[32];
    } params[CALL_PARAMS];
} signature_t;

/* NULL, or what is wrong with a signature; out may be NULL. */
const char *signature_parse(const char *text, signature_t *out);
const char *signature_type_text(uint32_t type); /* "f64" */

#endif
