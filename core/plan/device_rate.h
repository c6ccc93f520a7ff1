/* plan/device_rate.h - how fast a device was when `longhaul bench device` measured it, kept in the
 * user's cache folder under a digest of the device's fingerprint.
 *
 * The time of a call is max(flops / peak, bytes / bandwidth) / efficiency + launch. Efficiencies
 * are measured: a kind of call has one for each size that was seen, and a call takes that of the
 * nearest.
 *
 * A record is one device's and one machine's: it is looked for by fingerprint, and where there is
 * none no time is shown at all, rather than one that was made up. Nothing here runs anything;
 * device_bench.h measures and fills it. */
#ifndef PLAN_DEVICE_RATE_H
#define PLAN_DEVICE_RATE_H

#include <engine/engine.h>

enum { CALL_KIND = 64 };

/* A point of the record. flops and bytes are the size of the call, efficiency what came of it. */
typedef struct op_rate {  /* of calls that are alike */
    char kind[CALL_KIND]; /* device_rate_kind() */
    double flops, bytes;  /* of one call */
    double efficiency;    /* share of the faster of peak and bandwidth; > 1: out of a cache */
} op_rate_t;

/* Owns ops; the rest is plain. peak_flops is by dtype since tensor cores make some many times
 * faster than others. */
typedef struct device_rate {
    char name[64], fingerprint[192]; /* as in lh_device_properties_t */
    double peak_flops[LH_DTYPES];    /* of a large matmul; 0: not measured */
    double bytes_per_second;         /* read and written together */
    double launch_s;
    op_rate_t *ops;
    uint32_t op_count;
    size_t op_capacity;
} device_rate_t;

/* "matmul nt BF16": op, for matmul which sides are transposed, dtype of the first floating input.
 */
void device_rate_kind(const program_call_t *call, char out[CALL_KIND]);
/* The dtype whose peak counts for the call. */
lh_dtype_t device_rate_dtype(const program_call_t *call);

/* Seconds of a call that reaches peak or bandwidth; 0 for one that neither computes nor moves. */
double device_rate_ideal(const device_rate_t *r, lh_dtype_t dtype, double flops, double bytes);
/* Seconds that the record promises. *measured is false when it knows no call of that kind: then the
 * efficiency counts as 1. Never fails: an unknown kind counts as perfect, and the caller says so.
 */
double device_rate_seconds(const device_rate_t *r, const program_call_t *call, bool *measured);
/* Adds what was measured; replaces an equal kind and size. */
lh_status_t device_rate_add(device_rate_t *r, const op_rate_t *op) LH_MUST_CHECK;
/* Leaves an empty record. */
void device_rate_free(device_rate_t *r);

/* The file of a fingerprint, whether it is there or not: $XDG_CACHE_HOME/longhaul/device-*.json, or
 * below ~/.cache. The caller frees with mem_free. Fails where no folder for caches is known. */
lh_status_t device_rate_path(const char *fingerprint, char **out) LH_MUST_CHECK;
/* *known is false, and *out empty, where nothing was recorded for this fingerprint. A record that
 * cannot be understood is refused. */
lh_status_t device_rate_load(const char *fingerprint, device_rate_t *out,
                             bool *known) LH_MUST_CHECK;
lh_status_t device_rate_save(const device_rate_t *r) LH_MUST_CHECK;

#endif
