/* cuda_library.h - NVIDIA's libraries, as one device has opened them. */
#ifndef CUDA_LIBRARY_H
#define CUDA_LIBRARY_H

#include <longhaul/host.h>

#include "cuda_api.h"

typedef struct cuda_library {
    const lh_host_t *host;
    const char *key;    /* "[device] libraries": names `folders` */
    int driver_version; /* 1000 major + 10 minor, of the CUDA that it supports */
    size_t cublas_version;
    char cublas_name[32];
    size_t cudnn_version; /* 10000 major + 100 minor + patch; 0: not opened */
    const char *cudnn_name;
#define CUDA_FIELD(name, parameters) cuda_result_t(*name) parameters;
    CUDA_DRIVER_CALLS(CUDA_FIELD)
#undef CUDA_FIELD
#define CUBLAS_FIELD(name, parameters) cublas_status_t(*name) parameters;
    CUBLAS_CALLS(CUBLAS_FIELD)
#undef CUBLAS_FIELD
    cublas_version_call_t *cublasLtGetVersion;
} cuda_library_t;

/* The oldest driver that has every call of cuda_api.h: CUDA 12.0. */
enum { CUDA_DRIVER_NEEDED = 12000 };

enum { CUDA_PLACES_BYTES = 512 };
/* A library in one of `folders` (NULL, or names between colons), or by the loader's rules. NULL: says
 * in `error` what dlopen said of the last try. */
void *cuda_library_open(const char *folders, const char *name, char error[CUDA_PLACES_BYTES]);
/* "in FOLDERS, then where the system's loader looks", in `out` or constant. */
const char *cuda_library_places(const char *folders, char out[CUDA_PLACES_BYTES]);

/* Finds the driver's library and starts it; l->key is set. LH_NO_DEVICE after host->fail() where
 * there is no such library or no GPU, or the driver is too old. */
lh_status_t cuda_library_driver(cuda_library_t *l, const lh_host_t *host, const char *folders);
/* Then cuBLASLt, of a version that this driver can serve. */
lh_status_t cuda_library_cublas(cuda_library_t *l, const char *folders);
/* Then cuDNN, in builds that have a use for it. */
lh_status_t cuda_library_cudnn(cuda_library_t *l, const char *folders);

#endif
