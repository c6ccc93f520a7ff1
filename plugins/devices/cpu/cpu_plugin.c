/* cpu_plugin.c - the cpu device: options and kernel table.
 *
 * Every op of ops.h has one row with the same functions, which look the op up by its name: which
 * dtypes it takes and how it is computed is said in the kernel sources. */
#include "cpu_device.h"
#include "cpu_prepare.h"

static const lh_option_t options[] = {
    LH_OPTION_U64(
        cpu_config_t, threads, "threads", "0", "0..1024",
        "threads that compute; 0: as many as processors, and no more than a container's quota"),
    LH_OPTION_CHOICE(cpu_config_t, isa, "isa", "auto", "auto|baseline|avx2|avx512|avx512_bf16",
                     "instruction set of the kernels; auto: the best that the processor has"),
    LH_OPTION_BOOL(cpu_config_t, huge_pages, "huge_pages", "yes",
                   "asks the system for pages of 2 MiB"),
};

static const lh_kernel_t kernels[] = {
#define KERNEL_ROW(name, text) \
    {.op = #name,              \
     .fits = cpu_fits,         \
     .prepare = cpu_prepare,   \
     .launch = cpu_launch,     \
     .release = cpu_kernel_free},
    LH_OPS_BASE(KERNEL_ROW) LH_OPS_MORE(KERNEL_ROW)
#undef KERNEL_ROW
};

static const lh_draft_t drafts[] = {{LH_DRAFT_MEMORY, &cpu_memory_draft}};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_DEVICE,
    .config_size = sizeof(cpu_config_t),
    .name = "cpu",
    .version = "0.1.0",
    .summary = "the processors of this machine: oneDNN and own vector kernels",
    LH_TABLE_OPTIONS(options),
    LH_TABLE_KERNELS(kernels),
    LH_TABLE_DRAFTS(drafts),
    .device = &cpu_device_api,
    .selftest = cpu_selftest,
};
