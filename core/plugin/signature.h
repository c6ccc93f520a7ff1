/* plugin/signature.h - "f64(u64 step, f64 peak)", the text that LH_FUNCTION writes, as a struct. */
#ifndef PLUGIN_SIGNATURE_H
#define PLUGIN_SIGNATURE_H

#include <plugin/call.h>

typedef struct signature {
    uint32_t result; /* CALL_* */
    uint32_t count;
    struct {
        uint32_t type; /* CALL_*, never STATUS */
        char name[32];
    } params[CALL_PARAMS];
} signature_t;

/* NULL, or what is wrong. */
const char *signature_parse(const char *text, signature_t *out);
const char *call_type_text(uint32_t type); /* "f64" */

#endif
