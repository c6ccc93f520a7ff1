/* tcp_crc.h - CRC32C (Castagnoli) of what goes over the wire, as fast as the processor can. */
#ifndef TCP_CRC_H
#define TCP_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Continues from `crc` (0 to begin with): tcp_crc(tcp_crc(0, a), b) is the CRC of a followed by b.
 */
uint32_t tcp_crc(uint32_t crc, const void *bytes, size_t length);

/* The ways this processor has, slowest first, so that a test can compare them. */
typedef uint32_t (*tcp_crc_way_t)(uint32_t crc, const uint8_t *bytes, size_t length);
size_t tcp_crc_ways(tcp_crc_way_t out[4]);

#endif
