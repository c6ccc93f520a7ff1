/* cuda_fatbin.h - the plugin's own kernels, compiled: cubins for the GPUs of CMakeLists.txt and PTX for
 * later ones. No bytes where the build had no nvcc. */
#ifndef CUDA_FATBIN_H
#define CUDA_FATBIN_H

#include <stdint.h>

extern const uint8_t cuda_fatbin[];
extern const uint64_t cuda_fatbin_bytes;

#endif
