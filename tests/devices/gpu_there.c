/* gpu_there.c - exit code 0 where the cuda device opens with the real libraries; else 77, and why. */
#include <stdio.h>

#include "device_rig.h"

int main(void)
{
    if (rig_offers("cuda", (const rig_setting_t[]){{0}})) return 0;
    fprintf(stderr, "%s\n", rig_reason());
    return 77;
}
