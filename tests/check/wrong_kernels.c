/* wrong_kernels.c - a launch that spoils what the right one made. */
#include "wrong_plugin.h"

lh_kernel_t right_row;

lh_status_t launch_and_add(lh_prepared_t *k, const lh_launch_t *call)
{
    const lh_status_t status = right_row.launch(k, call);
    *(uint8_t *)call->args[call->arg_count - 1].address ^= 0xff;
    ((uint8_t *)call->args[call->arg_count - 1].address)[1] ^= 0x7f;
    return status;
}
