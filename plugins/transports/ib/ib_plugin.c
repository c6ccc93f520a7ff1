/* ib_plugin.c - the rules and options of `ib`, for links inside a site. */
#include "ib.h"

/* 67 ms, and with 7 retries 0.5 s until a dead path is given up. */
const ib_rules_t ib_rules = {.name = "ib", .pairs_least = 1, .timeout_unknown = 14};

static const lh_option_t options[] = {
    LH_OPTION_STRING(ib_config_t, device, "device", "",
                     "RDMA device whose addresses are taken, as ibv_devices names it; empty: any"),
    LH_OPTION_STRING(ib_config_t, bind, "bind", "auto",
                     "address or interface of an RDMA device, to listen on and dial from; auto: "
                     "the address through which this machine meets rank 0's, else the first that "
                     "belongs to a device"),
    LH_OPTION_U64(ib_config_t, port, "port", "0", "0..65535",
                  "port of a machine's first rank, counted up for its others; 0: any free one"),
    LH_OPTION_U64(ib_config_t, queue_pairs, "queue_pairs", "0", "0..16",
                  "queue pairs of a connection; 0: 1, or as many as keep what a lost packet makes "
                  "them send again below 2 %"),
    LH_OPTION_BYTES(ib_config_t, chunk_bytes, "chunk", "0", "0..67108864",
                    "piece of a message that one work request writes; 0: what the line carries in "
                    "100 us, 1MiB to 8MiB"),
    LH_OPTION_BYTES(ib_config_t, window_bytes, "window", "0", NULL,
                    "bytes of a connection under way at once; 0: 1.25 x round trip x rate and two "
                    "chunks where the link was measured, else 16 chunks"),
    LH_OPTION_U64(ib_config_t, traffic_class, "traffic_class", "0", "0..255",
                  "traffic class of packets (RoCE: DSCP x 4); 0: the device's own"),
    LH_OPTION_U64(
        ib_config_t, ack_timeout, "ack_timeout", "0", "0..31",
        "t of the time 4.096 us x 2^t after which a packet counts as lost; 0: the least "
        "that is 4 round trips, 1 ms and two chunks where the link was measured, else 14"),
    LH_OPTION_DURATION(
        ib_config_t, keepalive_ns, "keepalive", "1s", "0..1h",
        "a queue pair that was idle for so long sends one packet, so that a dead path "
        "is seen; 0: never"),
};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_TRANSPORT,
    .config_size = sizeof(ib_config_t),
    .name = "ib",
    .version = "0.1.0",
    .summary =
        "RDMA over InfiniBand or RoCE inside a site: writes straight into the peer's receives",
    LH_TABLE_OPTIONS(options),
    .transport = &ib_api,
};
