/* call_fuzz.c - a call as it stands in an INI, over the core's own functions. What was bound runs.
 */
#include <fuzz/fuzz.h>

#include <plugin/call.h>
#include <plugin/plugin.h>
#include <session/step_layout.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const call_variable_t variables[] = {{"step", CALL_U64}, {"loss", CALL_F64}};
    static const call_value_t values[] = {{.u64 = 7}, {.f64 = 0.5}};
    const call_scope_t scope = {.functions = rate_functions,
                                .function_count = rate_function_count,
                                .variables = variables,
                                .variable_count = 2};
    fuzz_part_t text;
    call_t *call;
    call_value_t out;
    fuzz_cut(bytes, size, 0, &text, 1);
    for (uint32_t type = CALL_STATUS; type <= CALL_STR; type++) {
        if (!fuzz_accepted(call_bind(text.bytes, "fuzz", &scope, type, &call))) continue;
        (void)fuzz_accepted(call_run(call, values, &out));
        call_free(call);
    }
    (void)plugin_signature_parse(text.bytes, NULL);
    fuzz_parts_free(&text, 1);
    return 0;
}
