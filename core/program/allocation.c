/* allocation.c - one allocation of a device. */
#include <program/allocation.h>

#include <base/memory.h>

lh_status_t allocation_take(allocation_t *r, uint64_t bytes, uint64_t alignment, uint64_t *offset)
{
    lh_assert(alignment > 0 && (alignment & (alignment - 1)) == 0);
    uint64_t at, end;
    if (!checked_add(r->bytes, alignment - 1, &at) ||
        !checked_add(at & ~(alignment - 1), bytes, &end))
        return fail(LH_INVALID, "the %s need more than 2^64 bytes", r->name);
    *offset = at & ~(alignment - 1);
    r->bytes = end;
    return LH_OK;
}

lh_status_t allocation_alloc(allocation_t *r, const lh_device_api_t *api, lh_device_t *device)
{
    if (r->bytes == 0 || r->memory != NULL) return LH_OK;
    return api->alloc(device, r->space, r->bytes, &r->memory, &r->address);
}

void allocation_release(allocation_t *r, const lh_device_api_t *api)
{
    if (r->memory != NULL) api->release(r->memory);
    r->memory = NULL;
    r->address = NULL;
}

lh_place_t allocation_place(const allocation_t *r, uint64_t offset)
{
    lh_place_t place = {.memory = r->memory, .offset = offset};
    if (r->address != NULL) place.address = (char *)r->address + offset;
    return place;
}
