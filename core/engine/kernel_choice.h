/* engine/kernel_choice.h - finds and prepares the kernel of each distinct call, once.
 *
 * Kernels are rows of plugins, by op, dtypes and device. The first row whose op and dtypes match
 * and whose fits() and prepare() agree is taken: the device's own rows first, then those that
 * other plugins list for it. Calls with equal op, attributes and arguments share one prepared
 * kernel: equal blocks have equal calls, so there are some tens of kernels for thousands of calls.
 * Rows are not asked to measure (LH_KERNEL_TUNE), so that the choice is the same in each run; what
 * was chosen can be written down and asked for again, so that a resumed run has the same bits or
 * is refused.
 *
 * Called by the control thread while programs are planned; a step reads what was found and calls
 * nothing here. */
#ifndef ENGINE_KERNEL_CHOICE_H
#define ENGINE_KERNEL_CHOICE_H

#include <base/text.h>
#include <graph/recording.h>
#include <plugin/registry.h>

/* A distinct call and what was found for it. Stays where it is until kernel_choice_free; launches
 * point into it. */
typedef struct kernel {
    const op_t *op;
    void *attributes; /* a copy */
    char *line;       /* names the call: "matmul ... =" without the end */
    lh_arg_t args[OP_SLOTS];
    uint32_t arg_count;
    const lh_kernel_t *row;
    lh_prepared_t *prepared;
    lh_kernel_plan_t plan;
    lh_cost_t cost;
} kernel_t;

typedef struct kernel_choice kernel_choice_t;

/* Borrowed, and read until kernel_choice_free. */
typedef struct kernel_choice_how {
    const plugin_t *device;
    lh_device_t *opened;
    const void *config; /* the device's */
    const plugin_t *const *plugins;
    uint32_t plugin_count;
    lh_stream_t *stream;
    uint64_t scratch_limit_bytes;
    const char *variants; /* NULL, or lines of kernel_choice_text to be followed */
} kernel_choice_how_t;

lh_status_t kernel_choice_new(const kernel_choice_how_t *how, kernel_choice_t **out) LH_MUST_CHECK;
/* Releases what was prepared; the stream has drained. */
void kernel_choice_free(kernel_choice_t *c);

/* *out lives until kernel_choice_free. Refused with every row's reason. */
lh_status_t kernel_choose(kernel_choice_t *c, const op_t *op, const void *attributes,
                          const lh_arg_t *args, kernel_t **out) LH_MUST_CHECK;
/* Whether a row matches and its fits() agrees; prepares nothing. For passes that fuse. */
bool kernel_is_offered(const kernel_choice_t *c, const op_t *op, const void *attributes,
                       const lh_arg_t *args);

/* Bytes of scratch of the kernel that needs most: kernels run one after the other and share it. */
uint64_t kernel_choice_scratch(const kernel_choice_t *c);
/* Bytes that all kernels keep in the host's heap, for weights packed for them, say. */
uint64_t kernel_choice_host_bytes(const kernel_choice_t *c);
/* One line each, sorted: "matmul bf16[8,4] ... = matmul.bf16.onednn 3". */
void kernel_choice_text(const kernel_choice_t *c, text_t *out);

#endif
