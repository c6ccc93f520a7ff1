/* cuda_plugin.c - the cuda device: options and kernel table.
 *
 * Rows, best first: cuBLASLt for products, then the plugin's own kernels for every op of ops.h. */
#include "cuda_device.h"
#include "cuda_rows.h"

static const lh_option_t options[] = {
    LH_OPTION_STRING(
        cuda_config_t, libraries, "libraries", "",
        "folders, between colons, to look for NVIDIA's libraries in first: libcuda and "
        "libcublasLt"),
    LH_OPTION_STRING(cuda_config_t, index, "index", "auto",
                     "which GPU; auto: a rank's number on its machine; a number puts all ranks on "
                     "that one"),
    LH_OPTION_BOOL(
        cuda_config_t, capture, "capture", "yes",
        "lists of launches become graphs; no: each is launched anew, to look for faults"),
    LH_OPTION_BOOL(cuda_config_t, tf32, "tf32", "no",
                   "F32 products may round their inputs to TF32 (10 bits of mantissa)"),
};

static const lh_kernel_t kernels[] = {{.op = "matmul",
                                       .fits = cuda_product_fits,
                                       .prepare = cuda_product_prepare,
                                       .launch = cuda_product_launch,
                                       .release = cuda_product_release},
#define KERNEL_ROW(name, text)     \
    {.op = #name,                  \
     .fits = cuda_rows_fits,       \
     .prepare = cuda_rows_prepare, \
     .launch = cuda_rows_launch,   \
     .release = cuda_rows_release},
                                      LH_OPS_BASE(KERNEL_ROW) LH_OPS_MORE(KERNEL_ROW)
#undef KERNEL_ROW
};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_DEVICE,
    .config_size = sizeof(cuda_config_t),
    .name = "cuda",
    .version = "0.1.0",
    .summary = "an NVIDIA GPU: cuBLASLt and own kernels, over the driver's API",
    LH_TABLE_OPTIONS(options),
    LH_TABLE_KERNELS(kernels),
    .device = &cuda_device_api,
};
