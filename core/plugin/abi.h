/* plugin/abi.h - reads structs and tables built by a plugin that may be older or newer than this
 * host: what is missing becomes zero, what is unknown must be zero. */
#ifndef PLUGIN_ABI_H
#define PLUGIN_ABI_H

#include <base/status.h>

enum { ABI_MAX_STRUCT = 64 * 1024 };

/* `what` ("acme.so: lh_plugin_v2") begins the sentence. limit: bytes known to belong to the plugin
 * at src. min_size: up to the last field that every version has. */
lh_status_t abi_import(void *dst, size_t dst_size, const void *src, size_t min_size, size_t limit,
                       const char *what) LH_MUST_CHECK;
lh_status_t abi_import_row(void *dst, size_t dst_size, const void *table, uint32_t row_size,
                           uint32_t index, size_t min_size, const char *what) LH_MUST_CHECK;

#endif
