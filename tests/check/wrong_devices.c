/* wrong_devices.c - devices that are wrong in one thing; the right one is the reference. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <longhaul/draft/memory.h>

#include "wrong_plugin.h"

static lh_status_t claim_words(lh_device_t *d, lh_device_properties_t *out)
{
    const lh_status_t status = right_plugin.device->properties(d, out);
    out->flags |= LH_DEVICE_WORDS;
    return status;
}

WRONG(words_without_functions)
{
    device.properties = claim_words;
}

static lh_status_t where_else(const lh_host_t *host, const void *config, uint32_t index,
                              char *pci_path, size_t room)
{
    (void)host, (void)config, (void)index;
    (void)snprintf(pci_path, room, "0000:1b:00.0");
    return LH_OK;
}

WRONG(place_that_changes)
{
    device.where = where_else;
}

static lh_status_t alloc_anything(lh_device_t *d, uint32_t space, uint64_t bytes, lh_memory_t **out,
                                  void **address)
{
    return right_plugin.device->alloc(d, space, bytes > (uint64_t)1 << 40 ? 64 : bytes, out,
                                      address);
}

WRONG(memory_without_end)
{
    device.alloc = alloc_anything;
}

static lh_status_t copy_half(lh_stream_t *s, const lh_place_t *to, const lh_place_t *from,
                             uint64_t bytes)
{
    return right_plugin.device->copy(s, to, from, bytes == 1 << 20 ? bytes / 2 : bytes);
}

WRONG(copies_of_a_half)
{
    device.copy = copy_half;
}

static struct { /* what is shared or wrapped, one at a time */
    const lh_host_t *host;
    lh_memory_t *memory;
    void *address;
    uint64_t bytes;
} last;

static lh_status_t open_and_keep_host(const lh_host_t *host, const void *config, uint32_t index,
                                      lh_device_t **out)
{
    last.host = host;
    return right_plugin.device->open(host, config, index, out);
}

static lh_status_t alloc_and_keep(lh_device_t *d, uint32_t space, uint64_t bytes, lh_memory_t **out,
                                  void **address)
{
    const lh_status_t status = right_plugin.device->alloc(d, space, bytes, out, address);
    if (status == LH_OK) last.memory = *out, last.address = *address, last.bytes = bytes;
    return status;
}

static lh_status_t share_copy(LH_UNUSED lh_memory_t *m, uint32_t kind, lh_share_t *out)
{
    if (kind != LH_SHARE_MEMFD) return last.host->fail(last.host, LH_UNSUPPORTED, "a memfd only");
    const int fd = memfd_create("copy", MFD_CLOEXEC);
    if (fd < 0 || write(fd, last.address, last.bytes) != (ssize_t)last.bytes)
        return last.host->fail(last.host, LH_NO_MEMORY, "no memfd");
    *out = (lh_share_t){.struct_size = sizeof(*out), .kind = kind, .fd = fd, .bytes = last.bytes};
    return LH_OK;
}

WRONG(a_share_that_is_a_copy)
{
    device.open = open_and_keep_host;
    device.alloc = alloc_and_keep;
    device.share = share_copy;
}

static lh_status_t share_handle(LH_UNUSED lh_memory_t *m, uint32_t kind, lh_share_t *out)
{
    if (kind != LH_SHARE_PEER) return last.host->fail(last.host, LH_UNSUPPORTED, "a handle only");
    *out = (lh_share_t){.struct_size = sizeof(*out),
                        .kind = kind,
                        .fd = -1,
                        .token_length = 1,
                        .bytes = last.bytes};
    return LH_OK;
}

static lh_status_t adopt_memory_of_its_own(lh_device_t *d, const lh_share_t *share,
                                           lh_memory_t **out, void **address)
{
    return right_plugin.device->alloc(d, LH_SPACE_DEVICE, share->bytes, out, address);
}

static const lh_memory_api_t adopting = {.struct_size = sizeof(adopting),
                                         .adopt = adopt_memory_of_its_own};

static void drafts_add_memory(const lh_memory_api_t *api)
{
    drafts[it.draft_count++] = (lh_draft_t){.name = LH_DRAFT_MEMORY, .api = api};
    it.draft_size = sizeof(drafts[0]);
}

WRONG(a_peer_that_is_not_reached)
{
    device.open = open_and_keep_host;
    device.alloc = alloc_and_keep;
    device.share = share_handle;
    drafts_add_memory(&adopting);
}

/* Right: what it shares can't be adopted on this machine, and it says so. */
static lh_status_t adopt_nothing(LH_UNUSED lh_device_t *d, LH_UNUSED const lh_share_t *share,
                                 LH_UNUSED lh_memory_t **out, LH_UNUSED void **address)
{
    return last.host->fail(last.host, LH_UNSUPPORTED, "no peer is reached from here");
}

static const lh_memory_api_t adopting_nothing = {.struct_size = sizeof(adopting_nothing),
                                                 .adopt = adopt_nothing};

WRONG(a_peer_out_of_reach)
{
    device.open = open_and_keep_host;
    device.alloc = alloc_and_keep;
    device.share = share_handle;
    drafts_add_memory(&adopting_nothing);
}

/* Right: one process has the device, and any other hears so. */
static _Atomic pid_t *holder; /* in memory that all processes share; 0: none has it */

static lh_status_t open_alone(const lh_host_t *host, const void *config, uint32_t index,
                              lh_device_t **out)
{
    pid_t is = 0;
    if (!atomic_compare_exchange_strong(holder, &is, getpid()) && is != getpid())
        return host->fail(host, LH_NO_DEVICE, "another process has it");
    return open_and_keep_host(host, config, index, out);
}

WRONG(a_device_of_one_process)
{
    holder = mmap(NULL, sizeof(*holder), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    device.open = open_alone;
    device.alloc = alloc_and_keep;
    device.share = share_handle;
    drafts_add_memory(&adopting_nothing);
}

static lh_status_t wrap_and_keep(lh_device_t *d, const void *address, uint64_t bytes,
                                 lh_memory_t **out)
{
    void *own;
    const lh_status_t status = right_plugin.device->alloc(d, LH_SPACE_PINNED, 64, out, &own);
    if (status != LH_OK) return status;
    memcpy(&last.address, &address, sizeof(address));
    last.memory = *out, last.bytes = bytes;
    return LH_OK;
}

static void release_and_clear(lh_memory_t *m)
{
    if (m == last.memory) memset(last.address, 0, last.bytes);
    right_plugin.device->release(m);
}

static const lh_memory_api_t wrapping = {.struct_size = sizeof(wrapping), .wrap = wrap_and_keep};

WRONG(a_wrapping_that_clears)
{
    device.release = release_and_clear;
    drafts_add_memory(&wrapping);
}

static lh_status_t count_nobody(const lh_host_t *host, LH_UNUSED const void *config, uint32_t *out)
{
    *out = 0;
    return host->fail(host, LH_NO_DEVICE, "no card answers");
}

static lh_status_t open_nobody(const lh_host_t *host, LH_UNUSED const void *config, uint32_t index,
                               LH_UNUSED lh_device_t **out)
{
    return host->fail(host, LH_NO_DEVICE, "no card %u", index);
}

/* Right, on a machine that lacks its device. */
WRONG(a_device_that_is_elsewhere)
{
    device.count = count_nobody;
    device.open = open_nobody;
}

static lh_status_t count_zero(LH_UNUSED const lh_host_t *host, LH_UNUSED const void *config,
                              uint32_t *out)
{
    *out = 0;
    return LH_OK;
}

WRONG(no_device_and_all_is_well)
{
    device.count = count_zero;
    device.open = open_nobody;
}

WRONG(a_row_for_no_op)
{
    for (uint32_t i = 0; i < it.kernel_count; i++)
        if (strcmp(kernels[i].op, "scale_update") == 0 || i == it.kernel_count - 1)
            kernels[i].op = "nobody.knows";
}

WRONG(no_row_for_copy)
{
    for (uint32_t i = 0; i < it.kernel_count; i++)
        if (strcmp(kernels[i].op, "copy") == 0) kernels[i] = kernels[--it.kernel_count];
}

static lh_kernel_t *row_of(const char *op)
{
    for (uint32_t i = 0; i < it.kernel_count; i++)
        if (strcmp(kernels[i].op, op) == 0) return &kernels[i];
    abort();
}

WRONG(a_wrong_sum)
{
    lh_kernel_t *row = row_of("activate");
    right_row = *row;
    row->launch = launch_and_add;
}

static lh_status_t launch_and_sleep(LH_UNUSED lh_prepared_t *k, LH_UNUSED const lh_launch_t *call)
{
    while (pause() != 0) /* which it always is */
        continue;
    return LH_OK;
}

WRONG(a_kernel_that_never_returns)
{
    row_of("activate")->launch = launch_and_sleep;
}

static uint64_t behind_row; /* bytes; 0: rows lie side by side */

static lh_status_t prepare_and_look(const lh_host_t *host, lh_device_t *d,
                                    const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                                    lh_prepared_t **out)
{
    const lh_arg_t *y = &desc->args[desc->arg_count - 1];
    const uint64_t size = y->dtype == LH_DTYPE_BF16 ? 2 : y->dtype == LH_DTYPE_F64 ? 8 : 4;
    behind_row = y->stride[0] > y->shape[1] ? y->shape[1] * size : 0;
    return right_row.prepare(host, d, desc, plan, out);
}

static lh_status_t launch_and_spill(lh_prepared_t *k, const lh_launch_t *call)
{
    const lh_status_t status = right_row.launch(k, call);
    if (behind_row != 0) ((uint8_t *)call->args[call->arg_count - 1].address)[behind_row] = 0;
    return status;
}

WRONG(a_byte_between_rows)
{
    lh_kernel_t *row = row_of("activate");
    right_row = *row;
    row->prepare = prepare_and_look;
    row->launch = launch_and_spill;
}

static lh_status_t prepare_without_add(const lh_host_t *host, lh_device_t *d,
                                       const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                                       lh_prepared_t **out)
{
    lh_arg_t args[LH_MAX_SLOTS];
    lh_kernel_desc_t other = *desc;
    memcpy(args, desc->args, desc->arg_count * sizeof(args[0]));
    for (uint32_t i = 0; i < desc->arg_count; i++)
        args[i].flags &= ~(uint32_t)LH_ARG_ADD;
    other.args = args;
    return right_row.prepare(host, d, &other, plan, out);
}

WRONG(gradients_that_replace)
{
    lh_kernel_t *row = row_of("layer_norm_grad");
    right_row = *row;
    row->prepare = prepare_without_add;
}

static lh_status_t launch_and_drift(lh_prepared_t *k, const lh_launch_t *call)
{
    static uint32_t drift;
    const lh_status_t status = right_row.launch(k, call);
    *(uint8_t *)call->args[call->arg_count - 1].address ^= (uint8_t)(drift++ & 1);
    return status;
}

WRONG(bits_that_drift)
{
    lh_kernel_t *row = row_of("activate");
    right_row = *row;
    row->launch = launch_and_drift;
}
