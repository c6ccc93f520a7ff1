/* cuda_plugin.c - the cuda device: options and kernel table.
 *
 * Rows, best first: cuBLASLt for products, cuDNN for attention in builds that have its headers, then
 * the plugin's own kernels for every op of ops.h. */
#include "cuda_device.h"
#include "cuda_rows.h"

static const lh_option_t options[] = {
    LH_OPTION_STRING(cuda_config_t, libraries, "libraries", "",
                     "folders, between colons, to look for NVIDIA's libraries in first: libcuda, "
                     "libcublasLt and libcudnn"),
    LH_OPTION_STRING(cuda_config_t, index, "index", "auto",
                     "which GPU; auto: a rank's number on its machine; a number puts all ranks on "
                     "that one"),
    LH_OPTION_BOOL(
        cuda_config_t, capture, "capture", "yes",
        "lists of launches become graphs; no: each is launched anew, to look for faults"),
    LH_OPTION_BOOL(cuda_config_t, tf32, "tf32", "no",
                   "F32 products may round their inputs to TF32 (10 bits of mantissa)"),
    LH_OPTION_CHOICE(cuda_config_t, attention, "attention", "cudnn", "cudnn|own",
                     "what it can do of attention is cuDNN's, in builds that have it; own: the "
                     "plugin's kernels do all of it"),
};

#define KERNEL_ROW(name, calls, ...)    \
    {.op = name,                        \
     .fits = cuda_##calls##_fits,       \
     .prepare = cuda_##calls##_prepare, \
     .launch = cuda_##calls##_launch,   \
     .release = cuda_##calls##_release, \
     __VA_ARGS__},
#define OWN_ROW(name, text) KERNEL_ROW(#name, rows, )
/* clang-format off */
static const lh_kernel_t kernels[] = {
    KERNEL_ROW("matmul", product, .bind = cuda_product_bind)
#ifdef LH_CUDNN
    KERNEL_ROW("attention", sdpa, .bind = cuda_sdpa_bind)
    KERNEL_ROW("attention_grad", sdpa, .bind = cuda_sdpa_bind)
#endif
    LH_OPS_BASE(OWN_ROW) LH_OPS_MORE(OWN_ROW)
};
/* clang-format on */
#undef OWN_ROW
#undef KERNEL_ROW

static const lh_draft_t drafts[] = {{LH_DRAFT_MEMORY, &cuda_memory_api}};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_DEVICE,
    .config_size = sizeof(cuda_config_t),
    .name = "cuda",
    .version = "0.1.0",
    .summary = "an NVIDIA GPU: cuBLASLt and own kernels, over the driver's API",
    LH_TABLE_OPTIONS(options),
    LH_TABLE_KERNELS(kernels),
    LH_TABLE_DRAFTS(drafts),
    .device = &cuda_device_api,
};
