/* protobuf.c - varints, fixed values and length-delimited fields, each checked against the end. */
#include <data/protobuf.h>

static lh_status_t truncated(const message_t *m)
{
    return fail(LH_INVALID, "%s: the protobuf is cut off at byte %zu", m->path,
                m->base + m->length);
}

static lh_status_t read_varint(message_t *m, uint64_t *out)
{
    uint64_t value = 0;

    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (m->at == m->length) return truncated(m);
        const uint8_t byte = (uint8_t)m->bytes[m->at++];
        if (shift < 64) value |= (uint64_t)(byte & 0x7F) << shift;
        if ((byte & 0x80) == 0) {
            *out = value;
            return LH_OK;
        }
    }
    return fail(LH_INVALID, "%s: a number of more than ten bytes at byte %zu", m->path,
                m->base + m->at);
}

static lh_status_t read_fixed(message_t *m, size_t size, uint64_t *out)
{
    if (m->length - m->at < size) return truncated(m);
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)(uint8_t)m->bytes[m->at + i] << (8 * i);
    m->at += size;
    *out = value;
    return LH_OK;
}

static lh_status_t read_bytes(message_t *m, message_t *out)
{
    uint64_t length;
    const lh_status_t status = read_varint(m, &length);
    if (status != LH_OK) return status;
    if (length > m->length - m->at)
        return fail(LH_INVALID,
                    "%s: the protobuf is cut off at byte %zu: a field of %llu bytes starts "
                    "at byte %zu",
                    m->path, m->base + m->length, (unsigned long long)length, m->base + m->at);
    *out = (message_t){.path = m->path,
                       .bytes = m->bytes + m->at,
                       .length = (size_t)length,
                       .base = m->base + m->at};
    m->at += (size_t)length;
    return LH_OK;
}

lh_status_t message_next(message_t *m, field_t *out, bool *more)
{
    *more = m->at < m->length;
    if (!*more) return LH_OK;

    const size_t start = m->base + m->at;
    uint64_t tag = 0;
    const lh_status_t status = read_varint(m, &tag);
    if (status != LH_OK) return status;
    *out = (field_t){.number = (uint32_t)(tag >> 3), .wire = (wire_t)(tag & 7)};
    if (tag >> 3 == 0 || tag > UINT32_MAX)
        return fail(LH_INVALID, "%s: no protobuf field starts at byte %zu", m->path, start);
    switch (tag & 7) {
    case WIRE_VARINT: return read_varint(m, &out->value);
    case WIRE_FIXED64: return read_fixed(m, 8, &out->value);
    case WIRE_BYTES: return read_bytes(m, &out->message);
    case WIRE_FIXED32: return read_fixed(m, 4, &out->value);
    default:
        return fail(LH_INVALID, "%s: the protobuf field at byte %zu has the unknown type %u",
                    m->path, start, (unsigned)(tag & 7));
    }
}

lh_status_t field_expect(const message_t *m, const field_t *f, wire_t wire, const char *name)
{
    if (f->wire == wire) return LH_OK;
    return fail(LH_INVALID, "%s: the field %s before byte %zu has protobuf type %d, expected %d",
                m->path, name, m->base + m->at, (int)f->wire, (int)wire);
}

float field_float(const field_t *f)
{
    const uint32_t bits = (uint32_t)f->value;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}
