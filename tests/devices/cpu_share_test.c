/* An arena of the cpu device lies in huge pages unless [device] huge_pages is no; one that is shared
 * stays where it is, keeps what it holds, and is what a mapping of the descriptor sees from then on. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "device_rig.h"
#include <longhaul/draft/memory.h>

static rig_t rig;

static unsigned char byte_of(uint64_t i, uint64_t seed)
{
    return (unsigned char)((i * 2654435761u + seed) >> 7);
}

static void check_shared(uint64_t bytes)
{
    lh_memory_t *memory;
    void *address;
    lh_share_t share = {.struct_size = sizeof(share)}, again = {.struct_size = sizeof(again)};
    assert_int_equal(rig.api->alloc(rig.device, LH_SPACE_DEVICE, bytes, &memory, &address), LH_OK);
    unsigned char *own = address;
    for (uint64_t i = 0; i < bytes; i++)
        own[i] = byte_of(i, 1);

    assert_int_equal(rig.api->share(memory, LH_SHARE_MEMFD, &share), LH_OK);
    assert_true(share.kind == LH_SHARE_MEMFD && share.fd >= 0 && share.bytes == bytes);
    for (uint64_t i = 0; i < bytes; i++)
        if (own[i] != byte_of(i, 1)) fail_msg("byte %llu changed", (unsigned long long)i);

    unsigned char *other = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, share.fd,
                                (off_t)share.offset);
    assert_ptr_not_equal(other, MAP_FAILED);
    assert_memory_equal(own, other, bytes);
    own[0] = 77;
    own[bytes - 1] = 78;
    assert_true(other[0] == 77 && other[bytes - 1] == 78);
    other[bytes / 2] = 79;
    assert_int_equal(own[bytes / 2], 79);

    assert_true(ftruncate(share.fd, 0) != 0 && errno == EPERM); /* nobody can pull it away */
    assert_int_equal(rig.api->share(memory, LH_SHARE_MEMFD, &again), LH_OK);
    assert_true(again.fd != share.fd);
    (void)close(share.fd);
    (void)close(again.fd);
    rig.api->release(memory);
    assert_int_equal(other[bytes / 2], 79); /* a peer's mapping outlives it */
    (void)munmap(other, bytes);
}

static void shared_memory_stays_and_keeps_what_it_holds(void **state)
{
    (void)state;
    check_shared(2);
    check_shared(4096);
    check_shared(5000001);
    check_shared(150 << 20); /* more than is moved at a time */
}

static void memory_of_others_is_not_shared(void **state)
{
    static char mine[64];
    lh_memory_t *memory;
    lh_share_t share = {.struct_size = sizeof(share)};
    const lh_memory_api_t *api = lh_draft_api(rig.plugin, LH_DRAFT_MEMORY);
    (void)state;
    assert_int_equal(api->wrap(rig.device, mine, sizeof(mine), &memory), LH_OK);
    assert_int_equal(rig.api->share(memory, LH_SHARE_MEMFD, &share), LH_UNSUPPORTED);
    rig.api->release(memory);
}

/* What the kernel was asked of the mapping at address: 1 huge pages, 0 none, -1 it does not tell. */
static int huge_pages_asked_at(const void *address)
{
    FILE *maps = fopen("/proc/self/smaps", "re");
    char line[4096];
    bool here = false;
    int found = -1;
    while (maps != NULL && found < 0 && fgets(line, sizeof(line), maps) != NULL) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            here = begin <= (uintptr_t)address && (uintptr_t)address < end;
        else if (here && strncmp(line, "VmFlags:", strlen("VmFlags:")) == 0)
            found = strstr(line, " hg") != NULL;
    }
    if (maps != NULL) (void)fclose(maps);
    return found;
}

static void huge_pages_are_asked_for_unless_told_not_to(void **state)
{
    (void)state;
    const bool there = access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0;
    for (uint64_t huge = 0; huge < 2; huge++) {
        const rig_setting_t settings[] = {{"huge_pages", huge}, {"threads", 1}, {0}};
        rig_t own;
        lh_memory_t *memory;
        void *address;
        rig_open_with(&own, "cpu", settings);
        assert_int_equal(own.api->alloc(own.device, LH_SPACE_DEVICE, 4 << 20, &memory, &address),
                         LH_OK);
        const int asked = huge_pages_asked_at(address);
        if (asked >= 0) assert_int_equal(asked, there ? huge : 0);
        own.api->release(memory);
        rig_close(&own);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(huge_pages_are_asked_for_unless_told_not_to),
        cmocka_unit_test(shared_memory_stays_and_keeps_what_it_holds),
        cmocka_unit_test(memory_of_others_is_not_shared),
    };
    rig_open(&rig, "cpu", NULL);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_close(&rig);
    return failed;
}
