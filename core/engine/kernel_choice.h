/* engine/kernel_choice.h - finds and prepares the kernel of each distinct call, once.
 *
 * Plugins list kernels as rows: op, dtypes, device. The first row whose op and dtypes match and
 * whose fits() and prepare() agree is taken: the device's own rows first, then those that other
 * plugins list for the device. Calls with equal op, attributes and arguments share one prepared
 * kernel: equal blocks have equal calls, so there are some tens of kernels for thousands of calls.
 * Rows are asked to measure (LH_KERNEL_TUNE) only where kernel_choice_tune says so: a measured
 * choice may be faster, and may differ from run to run. What was chosen can be written down and asked
 * for again: as a condition, so that a resumed run has the same bits or is refused, or as what is
 * known of earlier runs and of other ranks. A line names all of a call that a row may choose by: where
 * its places lie and whose memory they share, too. Older lines did not, and are followed by every call
 * that they fit.
 *
 * Called by the control thread while programs are planned; a step reads what was found and calls
 * nothing here. */
#ifndef ENGINE_KERNEL_CHOICE_H
#define ENGINE_KERNEL_CHOICE_H

#include <base/text.h>
#include <graph/op_table.h>
#include <graph/recording.h>
#include <plugin/registry.h>

/* A distinct call and what was found for it. Stays where it is until kernel_choice_free; launches
 * point into it. */
typedef struct kernel {
    const op_t *op;
    void *attributes;        /* a copy; NULL: the op has none */
    char *line;              /* names the call: a line of kernel_choice_text up to its " = " */
    lh_arg_t args[OP_SLOTS]; /* [arg_count] inputs, then outputs */
    uint32_t arg_count;
    const lh_kernel_t *row;  /* of a plugin */
    lh_prepared_t *prepared; /* owned */
    lh_kernel_plan_t plan;
    lh_cost_t cost; /* FLOPs and bytes of one launch */
} kernel_t;

typedef struct kernel_choice kernel_choice_t;

/* Copied; what the pointers name is read until kernel_choice_free. */
typedef struct kernel_choice_how {
    const op_table_t *ops; /* of the calls; rows of kernels name theirs */
    const plugin_t *device;
    lh_device_t *opened;
    const void *config;             /* the device's parsed options */
    const plugin_t *const *plugins; /* [plugin_count] whose rows may serve the device, too */
    uint32_t plugin_count;
    lh_stream_t *stream;
    uint64_t scratch_limit_bytes;
    bool unordered; /* rows that do not promise LH_KERNEL_ORDERED are taken too, and asked first
                             for what they have without that promise */
    const char *variants; /* NULL, or lines of kernel_choice_text to be followed */
} kernel_choice_how_t;

lh_status_t kernel_choice_new(const kernel_choice_how_t *how, kernel_choice_t **out) LH_MUST_CHECK;
/* Releases what was prepared; the stream has drained. */
void kernel_choice_free(kernel_choice_t *c);

/* From here on: choices that are taken where how.variants has none and the row still offers them, as
 * lines of kernel_choice_text (NULL: none; read until it is replaced); and whether rows may time what
 * they choose from where neither has any. Unless they may, a call takes what is known of one that
 * only lies otherwise, if nothing is known of itself. */
void kernel_choice_tune(kernel_choice_t *c, const char *known, bool tune);
/* For a plan of a run whose rows may time: from here on, what nothing is known of counts with as much
 * scratch as what timing might choose needs (LH_KERNEL_MOST). Nothing is launched then. */
void kernel_choice_bound(kernel_choice_t *c);

/* The kernel of a call. attributes: op->row.attributes_bytes; args: inputs, then outputs, compared
 * as bytes, so unused bytes are 0. *out lives until kernel_choice_free. LH_UNSUPPORTED, with every
 * row's reason, where no row will do. */
lh_status_t kernel_choose(kernel_choice_t *c, const op_t *op, const void *attributes,
                          const lh_arg_t *args, kernel_t **out) LH_MUST_CHECK;
/* Whether some row matches and its fits() agrees. Prepares nothing; fusion passes ask. */
bool kernel_is_offered(const kernel_choice_t *c, const op_t *op, const void *attributes,
                       const lh_arg_t *args);

/* Once for each call of a plan, whose places are known: checks that they lie as the kernel was told
 * when it was prepared (lh_arg_t.alignment), and lets it bind them. */
lh_status_t kernel_bind(const kernel_t *k, lh_launch_t *call) LH_MUST_CHECK;

/* Bytes of scratch of the kernel that needs most: kernels run one after the other and share it. */
uint64_t kernel_choice_scratch(const kernel_choice_t *c);
/* Bytes that all kernels together keep in the host's heap, as for packed weights. */
uint64_t kernel_choice_host_bytes(const kernel_choice_t *c);
/* A line for each choice whose plan has all of `flags`, sorted: call, " = ", the kernel's name and its
 * variant, as in "copy F32[8,4]@64 -> BF16[8,4]@64 = copy.any 0". */
void kernel_choice_text(const kernel_choice_t *c, uint32_t flags, text_t *out);
/* Whether two such texts have the same choice for every call of the first that the second names; the
 * second may have older lines. */
bool kernel_choice_agree(const char *a, const char *b);
/* How many calls of the first have the choice that the second has for them, or for one that only lies
 * otherwise if it does not name them. */
uint32_t kernel_choice_same(const char *a, const char *b);

#endif
