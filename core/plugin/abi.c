/* abi.c - copies what both sides know of a struct.
 *
 * A plugin that is older has a shorter struct: what is missing becomes zero, which every later field
 * takes for "not set". One that is newer has a longer one: what is unknown must be zero, as a value
 * there asks for something that this host can't give. So both directions work without a list of
 * versions, and what can't work is refused by name. */
#include <plugin/abi.h>

static lh_status_t copy_known(void *dst, size_t dst_size, const void *src, size_t src_size,
                              const char *what)
{
    for (size_t i = dst_size; i < src_size; i++)
        if (((const unsigned char *)src)[i] != 0)
            return fail(LH_ABI,
                        "%s has %zu bytes and uses those behind the %zu that this host knows", what,
                        src_size, dst_size);
    memset(dst, 0, dst_size);
    memcpy(dst, src, src_size < dst_size ? src_size : dst_size);
    return LH_OK;
}

static lh_status_t check_size(size_t size, size_t min_size, const char *what)
{
    if (size < min_size || size > ABI_MAX_STRUCT)
        return fail(LH_ABI, "%s has %zu bytes, expected %zu to %d", what, size, min_size,
                    ABI_MAX_STRUCT);
    if (size % 8 != 0) /* would cut a pointer in half */
        return fail(LH_ABI, "%s has %zu bytes, expected a multiple of 8", what, size);
    return LH_OK;
}

lh_status_t abi_import(void *dst, size_t dst_size, const void *src, size_t min_size, size_t limit,
                       const char *what)
{
    uint32_t size;
    if (limit < sizeof(size))
        return fail(LH_ABI, "%s does not lie in the plugin's own memory", what);
    memcpy(&size, src, sizeof(size));
    const lh_status_t status = check_size(size, min_size, what);
    if (status != LH_OK) return status;
    if (size > limit)
        return fail(LH_ABI, "%s has %u bytes, but only %zu are the plugin's own", what, size,
                    limit);
    return copy_known(dst, dst_size, src, size, what);
}

lh_status_t abi_import_row(void *dst, size_t dst_size, const void *table, uint32_t row_size,
                           uint32_t index, size_t min_size, const char *what)
{
    if (table == NULL) return fail(LH_ABI, "%s is NULL", what);
    const lh_status_t status = check_size(row_size, min_size, what);
    if (status != LH_OK) return status;
    return copy_known(dst, dst_size, (const char *)table + (size_t)row_size * index, row_size,
                      what);
}
