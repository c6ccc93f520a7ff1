/* event_file.c - one record per scalar, built in a buffer on the stack. */
#include <watch/event_file.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>

enum { TAG_LIMIT = 128, RECORD_LIMIT = 256 };

struct event_file {
    file_records_t file;
    char path[512];
    uint32_t table[256]; /* CRC-32C, reflected */
};

typedef struct buffer {
    unsigned char bytes[RECORD_LIMIT];
    size_t length;
} buffer_t;

static void put(buffer_t *b, const void *bytes, size_t length)
{
    memcpy(b->bytes + b->length, bytes, length);
    b->length += length;
}

static void put_byte(buffer_t *b, unsigned char byte)
{
    b->bytes[b->length++] = byte;
}

static void put_varint(buffer_t *b, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        put_byte(b, (unsigned char)(value | 0x80));
    put_byte(b, (unsigned char)value);
}

static void make_table(uint32_t table[256])
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
        table[i] = crc;
    }
}

static uint32_t masked_crc(const uint32_t table[256], const unsigned char *bytes, size_t length)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < length; i++)
        crc = crc >> 8 ^ table[(crc ^ bytes[i]) & 0xff];
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

uint32_t event_crc(const void *bytes, size_t length)
{
    uint32_t table[256];
    make_table(table);
    return masked_crc(table, bytes, length);
}

/* Frames data as a record: length, its checksum, data, its checksum; all little-endian. */
static void write_record(event_file_t *f, const buffer_t *data)
{
    unsigned char record[RECORD_LIMIT + 16];
    const uint64_t length = data->length;
    const uint32_t head = masked_crc(f->table, (const unsigned char *)&length, 8);
    const uint32_t tail = masked_crc(f->table, data->bytes, data->length);

    memcpy(record, &length, 8);
    memcpy(record + 8, &head, 4);
    memcpy(record + 12, data->bytes, data->length);
    memcpy(record + 12 + data->length, &tail, 4);
    if (file_records_add(&f->file, record, data->length + 16) || f->file.lost > 1) return;
    log_line(LH_LOG_WARN, "%s: cannot write: %s; records are lost until it can be written", f->path,
             strerror(errno));
}

static void put_wall_time(buffer_t *b)
{
    const double seconds = (double)sys()->wall_ns() * 1e-9;
    put_byte(b, 0x09); /* field 1, 64 bits */
    put(b, &seconds, 8);
}

static void write_version(event_file_t *f)
{
    static const char version[] = "brain.Event:2", writer[] = "longhaul";
    buffer_t b = {.length = 0};

    put_wall_time(&b);
    put_byte(&b, 0x1A); /* field 3: file_version */
    put_varint(&b, sizeof(version) - 1);
    put(&b, version, sizeof(version) - 1);
    put_byte(&b, 0x52); /* field 10: source_metadata { 1: writer } */
    put_varint(&b, sizeof(writer) + 1);
    put_byte(&b, 0x0A);
    put_varint(&b, sizeof(writer) - 1);
    put(&b, writer, sizeof(writer) - 1);
    write_record(f, &b);
}

/* The name has host and process in it, as TensorBoard wants it, so two runs never share a file. */
lh_status_t event_file_open(const char *folder, event_file_t **out)
{
    event_file_t *f = mem_new(sizeof(*f));
    if (f == NULL) return LH_NO_MEMORY;

    char host[64] = "localhost";
    (void)gethostname(host, sizeof(host) - 1);
    lh_status_t status = LH_OK;
    const int length = snprintf(f->path, sizeof(f->path), "%s/events.out.tfevents.%010llu.%s.%d",
                                folder, (unsigned long long)(sys()->wall_ns() / 1000000000u), host,
                                (int)getpid());
    if (length < 0 || (size_t)length >= sizeof(f->path)) {
        status = fail(LH_INVALID, "%s: path too long for an event file", folder);
        goto free_file;
    }
    status = file_begin(f->path, O_TRUNC | O_APPEND, &f->file.fd);
    if (status != LH_OK) goto free_file;
    make_table(f->table);
    write_version(f);
    *out = f;
    return LH_OK;

free_file:
    mem_free(f);
    return status;
}

void event_file_scalar(event_file_t *f, uint64_t step, const char *tag, double value)
{
    const size_t tag_length = strnlen(tag, TAG_LIMIT);
    const float simple = (float)value;
    buffer_t b = {.length = 0};

    put_wall_time(&b);
    if (step != 0) {
        put_byte(&b, 0x10); /* field 2: step */
        put_varint(&b, step);
    }
    const size_t entry = 1 + (tag_length > 127 ? 2u : 1u) + tag_length + 5;
    put_byte(&b, 0x2A); /* field 5: summary { 1: value { 1: tag, 2: simple_value } } */
    put_varint(&b, 1 + (entry > 127 ? 2u : 1u) + entry);
    put_byte(&b, 0x0A);
    put_varint(&b, entry);
    put_byte(&b, 0x0A);
    put_varint(&b, tag_length);
    put(&b, tag, tag_length);
    put_byte(&b, 0x15);
    put(&b, &simple, 4);
    write_record(f, &b);
}

void event_file_close(event_file_t *f)
{
    if (f == NULL) return;
    if (f->file.lost > 0)
        log_line(LH_LOG_WARN, "%s: %llu records were lost", f->path,
                 (unsigned long long)f->file.lost);
    (void)sys()->close(f->file.fd);
    mem_free(f);
}
