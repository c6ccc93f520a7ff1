/* ib_plugin.c - the options of `ib` and `apn`, and the rules in which they differ: one source, built
 * twice. `ib` is for links inside a site. `apn` (IB_BETWEEN_SITES) is for links between sites, where
 * a window is a thousand times larger, a lost packet costs a round trip, and nobody below holds a
 * sender back.
 *
 * An option explains itself with the formula that stands for it where it is not set, and says what the
 * letters in it are: b is the link's rate in bytes/s, t its round trip, p its loss, c the chunk, w the
 * window. */
#include "ib.h"

/* LEAST queue pairs; UNKNOWN: n of the ACK timeout where nothing was measured; PACE: without one set.
 *
 * Within a site 67 ms, and with 7 retries 0.5 s until a dead path is given up. Between sites four
 * queue pairs, as a link of several fibres spreads packets by their UDP source port, which each has
 * for itself; and 268 ms, as what nobody has measured may be 50 ms long. */
#ifdef IB_BETWEEN_SITES
#define IB_NAME "apn"
#define IB_SUMMARY "RDMA between sites: window, queue pairs and pace by the link's figures"
#define IB_PAIRS_LEAST 4
#define IB_TIMEOUT_UNKNOWN 16
#define IB_PACED true
#define IB_GATHERS false
#define IB_PACE "the rank's share of 0.97 b, b: the link's rate"
#else
#define IB_NAME "ib"
#define IB_SUMMARY \
    "RDMA over InfiniBand or RoCE inside a site: writes straight into the peer's receives"
#define IB_PAIRS_LEAST 1
#define IB_TIMEOUT_UNKNOWN 14
#define IB_PACED false
#define IB_GATHERS true
#define IB_PACE "none"
#endif
#define IB_TEXT_OF(number) #number
#define IB_TEXT(number) IB_TEXT_OF(number)

const ib_rules_t ib_rules = {.name = IB_NAME,
                             .pairs_least = IB_PAIRS_LEAST,
                             .timeout_unknown = IB_TIMEOUT_UNKNOWN,
                             .paced = IB_PACED,
                             .gathers = IB_GATHERS,
                             .seals = (IB_LEVELS & 1u << LH_SECURITY_PRIVATE) != 0};

static const lh_option_t options[] = {
    LH_OPTION_STRING(ib_config_t, device, "device", "",
                     "RDMA device whose addresses are taken, as ibv_devices names it; empty: any"),
    LH_OPTION_STRING(
        ib_config_t, bind, "bind", "auto",
        "address or interface of an RDMA device, to listen on and dial from, or up to 4 "
        "with commas between them, over which a connection spreads its queue pairs; "
        "auto: the address through which this machine meets rank 0's, else the first "
        "that belongs to a device"),
    LH_OPTION_STRING(ib_config_t, gid, "gid", "auto",
                     "GID of the port: its row of the port's table, or an address; auto: of the "
                     "address that is bound the row of RoCE v2, else of v1"),
    LH_OPTION_U64(ib_config_t, mtu, "mtu", "0", "0..4096",
                  "bytes of a packet's payload, 256 to 4096, no more than the port has; 0: as many "
                  "as it has"),
    LH_OPTION_U64(ib_config_t, port, "port", "0", "0..65535",
                  "port of a machine's first rank, counted up for its others; 0: any free one"),
    LH_OPTION_U64(
        ib_config_t, queue_pairs, "queue_pairs", "0", "0..16",
        "queue pairs of a connection; 0: max(" IB_TEXT(
            IB_PAIRS_LEAST) ", ports, p b t / (MTU x "
                            "0.02), w / (126 c), over soft-RoCE w / (128 MTU), between "
                            "sites 16 before t is known), p: the link's loss, b: its rate, t: its "
                            "round trip, w: the window, c: the chunk: what a lost packet "
                            "makes them send again stays below 2 %"),
    LH_OPTION_BYTES(
        ib_config_t, chunk_bytes, "chunk", "0", "0..67108864",
        "piece c of a message that one work request writes; 0: b x 100 us, b: the link's "
        "rate (posting one takes 1 us, 1 % of that), 1MiB to 8MiB"),
    LH_OPTION_BYTES(
        ib_config_t, window_bytes, "window", "0", NULL,
        "bytes w of a connection under way at once; 0: 1.25 b t + 2 c where the link's rate "
        "b and round trip t were measured, else 16 c, c: the chunk"),
    LH_OPTION_U64(ib_config_t, traffic_class, "traffic_class", "0", "0..255",
                  "traffic class of packets (RoCE: DSCP x 4); 0: the device's own"),
    LH_OPTION_U64(
        ib_config_t, ack_timeout, "ack_timeout", "0", "0..31",
        "n of the time 4.096 us x 2^n after which a packet counts as lost, 7 times; 0: "
        "the least with 4.096 us x 2^n >= 4 t + 1 ms + max(2 c, w - b t) / b, t: the link's round "
        "trip, b: its rate, c: the chunk, w: the window; where it was not measured " IB_TEXT(
            IB_TIMEOUT_UNKNOWN)),
    LH_OPTION_RATE(ib_config_t, pace, "pace", "0", NULL,
                   "most that a connection sends, by a bucket of two chunks; 0: " IB_PACE),
#ifdef IB_BETWEEN_SITES
    LH_OPTION_U64(ib_config_t, seal_threads, "seal_threads", "0", "0..16",
                  "threads that encrypt and decrypt with security = private; 0: half of the "
                  "processors of this rank, 1 to 4"),
#endif
    LH_OPTION_DURATION(
        ib_config_t, keepalive_ns, "keepalive", "1s", "0..1h",
        "a queue pair that was idle for so long sends one packet, so that a dead path "
        "is seen, and with it those that were for half as long; 0: never"),
};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,          .kind = LH_KIND_TRANSPORT, .config_size = sizeof(ib_config_t),
    .name = IB_NAME,           .version = "0.1.0",        .summary = IB_SUMMARY,
    LH_TABLE_OPTIONS(options), .transport = &ib_api,
};
