/* config/quantity.h - values as people write them: "64MiB", "250ms", "100Gbps", "1.5k", "yes".
 *
 * The same parser serves options, their defaults and ranges, and calls from INI text. It never asks
 * the locale. A text that is not a value gives false; the caller, who knows file and key, says so
 * with quantity_wants().
 *
 * All functions leave *out alone where they return false, take the whole text or nothing (no blanks
 * around it), and may be called from any thread. */
#ifndef CONFIG_QUANTITY_H
#define CONFIG_QUANTITY_H

#include <longhaul/option.h>

/* Whole numbers: 8, 10k, 1.5M, 2G, 1T (powers of 1000; 0.5 is refused, it is not whole). Overflow
 * is no value, rather than a wrong one. */
bool quantity_u64(const char *text, uint64_t *out);
bool quantity_i64(const char *text, int64_t *out);
/* 3e-4, -1, .5; finite, decimal. Underscores, hexadecimal, nan and inf are no values. */
bool quantity_f64(const char *text, double *out);
/* 4096, 4KiB, 64MiB, 1GiB, 1TiB; kB, MB, GB, TB are powers of 1000. */
bool quantity_bytes(const char *text, uint64_t *out);
/* Nanoseconds from 10us, 250ms, 1.5s, 2min, 1h, 7d. A bare number other than 0 lacks its unit. */
bool quantity_duration(const char *text, uint64_t *out);
/* Bytes per second from 400Gbps, 100Mbps, 12.5GB/s, 1GiB/s. A bare number other than 0 lacks its
 * unit. */
bool quantity_rate(const char *text, uint64_t *out);
/* yes | no */
bool quantity_bool(const char *text, bool *out);
/* Index of text in "ring|tree". "" is never one of the choices. */
bool quantity_choice(const char *text, const char *choices, uint32_t *out);
/* A whole number in any of the units above: what a u64 of a called function may be. Where two
 * tables have a unit of one name, "" and 0 among them, they mean the same number. */
bool quantity_any(const char *text, uint64_t *out);

/* "a size such as 4096, 64KiB or 1GiB": what a value of type LH_OPT_* looks like. */
const char *quantity_wants(uint32_t type);

#endif
