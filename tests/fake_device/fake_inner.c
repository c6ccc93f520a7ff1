/* fake_inner.c - the only file that knows what the device within is made of. */
#include "cpu.h"

extern const lh_plugin_t fake_inner_plugin;
void fake_inner_configure(uint64_t config[32], uint64_t threads);
void fake_inner_thread(lh_device_t *inner);

void fake_inner_configure(uint64_t config[32], uint64_t threads)
{
    const cpu_config_t mine = {.threads = threads};
    _Static_assert(sizeof(mine) <= 32 * sizeof(uint64_t), "the cpu's options grew");
    memcpy(config, &mine, sizeof(mine));
}

/* The number of OpenMP threads belongs to the thread that asks for them. */
void fake_inner_thread(lh_device_t *inner)
{
    inner->openmp.set_threads((int)inner->threads);
}
