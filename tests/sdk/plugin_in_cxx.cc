// plugin_in_cxx.cc - the macros that a plugin needs, as C++20.
#include <longhaul/plugin.h>

struct config_t {
    uint64_t offset;
};

static const lh_option_t options[] = {
    LH_OPTION_U64(config_t, offset, "offset", "1", "0..9", "added"),
};

LH_FUNCTION(u64, shifted, (u64, value))
{
    return value + static_cast<const config_t *>(call->config)->offset;
}

static const lh_function_t functions[] = {
    LH_FUNCTION_ENTRY(shifted, "adds"),
};

static lh_status_t selftest(const lh_host_t *host)
{
    lh_cost_t cost = {};
    cost.struct_size = sizeof(cost);
    LH_FILL(lh_cost_t, &cost, .flops = 1);
    return LH_HAS(host, extension) && cost.flops > 0 ? LH_OK : LH_UNSUPPORTED;
}

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_PARTS,
    .config_size = sizeof(config_t),
    .name = "in_cxx",
    .version = "1",
    .summary = "C++",
    LH_TABLE_OPTIONS(options),
    LH_TABLE_FUNCTIONS(functions),
    .selftest = selftest,
};
