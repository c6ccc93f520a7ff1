/* event_file_test.c - event files against the format's published checksum and a reader of its own.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <unit/full_disk.h>
#include <watch/watch.h>

#include <cmocka.h>

static char folder[] = "/tmp/event_file_test_XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return folder_remove(folder) != LH_OK;
}

/* From TensorBoard's own test: masked_crc.rs. */
static void the_checksum_is_the_published_one(void **state)
{
    (void)state;
    static const char data[] = "\x1a\x11"
                               "CRC test, one two";
    assert_int_equal(watch_events_crc(data, sizeof(data) - 1), 0x5794D08A);
}

static char *read_only_file(size_t *length)
{
    char command[256], path[512];
    (void)snprintf(command, sizeof(command), "ls %s/events.out.tfevents.*", folder);
    FILE *f = popen(command, "r");
    assert_non_null(fgets(path, sizeof(path), f));
    (void)pclose(f);
    path[strcspn(path, "\n")] = '\0';
    char *data;
    assert_int_equal(file_read(path, 1 << 20, &data, length), LH_OK);
    return data;
}

static uint32_t u32(const char *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

static void a_full_disk_costs_whole_records(void **state)
{
    (void)state;
    watch_events_t *f;
    sys_t full = sys_real;
    full.write = write_while_space;
    sys_use(&full);
    space = SIZE_MAX;
    assert_int_equal(watch_events_open(folder, &f), LH_OK);
    for (uint64_t step = 1; step <= 4; step++) {
        space = step == 2 ? 20 : step == 3 ? 0 : SIZE_MAX;
        watch_events_scalar(f, step, "train/loss", 2.5);
    }
    watch_events_close(f);
    sys_use(NULL);

    size_t length, at = 0;
    char *data = read_only_file(&length);
    int records = 0;
    for (uint64_t bytes; at < length; at += 16 + bytes, records++) {
        memcpy(&bytes, data + at, 8);
        assert_true(at + 16 + bytes <= length);
        if (records > 0) assert_int_equal(data[at + 12 + 10], records == 1 ? 1 : 4); /* its step */
    }
    assert_int_equal(records, 3);
    mem_free(data);
    assert_int_equal(folder_remove(folder), LH_OK);
    assert_int_equal(folder_make(folder), LH_OK);
}

static void records_hold_version_then_scalars(void **state)
{
    (void)state;
    watch_events_t *f;
    assert_int_equal(watch_events_open(folder, &f), LH_OK);
    watch_events_scalar(f, 7, "train/loss", 2.5);
    watch_events_scalar(f, 300, "train/loss", -1);
    watch_events_close(f);

    size_t length, at = 0;
    char *data = read_only_file(&length);
    int records = 0;
    while (at < length) {
        uint64_t bytes;
        memcpy(&bytes, data + at, 8);
        assert_int_equal(u32(data + at + 8), watch_events_crc(data + at, 8));
        assert_true(at + 16 + bytes <= length);
        assert_int_equal(u32(data + at + 12 + bytes), watch_events_crc(data + at + 12, bytes));
        const char *event = data + at + 12;
        assert_int_equal(event[0], 0x09); /* wall time */
        if (records == 0)
            assert_memory_equal(event + 9,
                                "\x1a\x0d"
                                "brain.Event:2",
                                15);
        if (records == 1) {
            /* step 7; summary of 19 bytes { value of 17 { tag of 10, simple value 2.5 } } */
            assert_memory_equal(event + 9,
                                "\x10\x07\x2a\x13\x0a\x11\x0a\x0a"
                                "train/loss\x15",
                                19);
            assert_int_equal(u32(event + 28), 0x40200000);
            assert_int_equal(bytes, 32);
        }
        if (records == 2) assert_memory_equal(event + 9, "\x10\xac\x02\x2a", 4); /* step 300 */
        records++;
        at += 16 + bytes;
    }
    assert_int_equal(records, 3);
    mem_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_checksum_is_the_published_one),
        cmocka_unit_test(a_full_disk_costs_whole_records),
        cmocka_unit_test(records_hold_version_then_scalars),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
