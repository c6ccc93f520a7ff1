/* cpu_device.h - the device's functions. */
#ifndef LH_CPU_DEVICE_H
#define LH_CPU_DEVICE_H

#include <longhaul/draft/memory.h>

#include "cpu.h"

extern const lh_device_api_t cpu_device_api;
extern const lh_memory_api_t cpu_memory_draft;

#endif
