/* data/protobuf.h - walks the fields of a protobuf message. */
#ifndef DATA_PROTOBUF_H
#define DATA_PROTOBUF_H

#include <base/status.h>

typedef enum wire { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 } wire_t;

typedef struct message { /* zero but for these three */
    const char *path;    /* for sentences */
    const char *bytes;
    size_t length;
    size_t base; /* where bytes stands in the file */
    size_t at;
} message_t;

typedef struct field {
    uint32_t number;
    wire_t wire;
    uint64_t value;    /* of a varint or a fixed one  */
    message_t message; /* of bytes: what is inside    */
} field_t;

/* *more is false at the end of the message. */
lh_status_t message_next(message_t *m, field_t *out, bool *more) LH_MUST_CHECK;
/* Refuses a field of another type than the format has. */
lh_status_t field_expect(const message_t *m, const field_t *f, wire_t wire,
                         const char *name) LH_MUST_CHECK;
float field_float(const field_t *f);

#endif
