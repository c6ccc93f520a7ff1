/* tcp_frame_fuzz.c - heads, greetings and welcomes of the tcp transport. The first byte says what
 * the rest is, and whether its checksum is made right. What is read, written and read again is the
 * same. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <longhaul/crc32c.h>
#include <tcp_frame.h>

static void try_head(uint8_t *bytes, bool mend)
{
    frame_t f;
    uint8_t written[HEAD_BYTES];
    if (mend) {
        memset(bytes + 4, 0, 4);
        const uint32_t crc = lh_crc32c(0, bytes, HEAD_PROVEN);
        for (int i = 0; i < 4; i++)
            bytes[4 + i] = (uint8_t)(crc >> 8 * i);
    }
    if (frame_read(bytes, &f) != NULL) return;
    FUZZ_ASSERT(f.type > 0 && f.type < FRAME_TYPES && f.stream < STREAMS_MAX);
    FUZZ_ASSERT(f.length <= PAYLOAD_MAX);
    FUZZ_ASSERT(f.type != FRAME_DATA ||
                (f.total <= MESSAGE_MAX && f.offset <= f.total && f.length <= f.total - f.offset));
    frame_write(&f, written);
    FUZZ_ASSERT(memcmp(written, bytes, HEAD_BYTES) == 0);
}

static void try_greeting(const uint8_t *bytes)
{
    greeting_t g;
    uint8_t written[HELLO_BYTES];
    if (greeting_read(bytes, &g) != NULL) return;
    FUZZ_ASSERT(g.stream < g.streams && g.streams <= STREAMS_MAX);
    greeting_write(&g, written);
    FUZZ_ASSERT(memcmp(written, bytes, HELLO_BYTES) == 0);
}

static void try_welcome(const uint8_t *bytes)
{
    welcome_t w;
    uint8_t written[WELCOME_BYTES];
    if (welcome_read(bytes, &w) != NULL) return;
    FUZZ_ASSERT(w.answer == WELCOME || welcome_reason(w.answer) != NULL);
    welcome_write(&w, written);
    FUZZ_ASSERT(memcmp(written, bytes, WELCOME_BYTES) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    uint8_t block[HELLO_BYTES > HEAD_BYTES ? HELLO_BYTES : HEAD_BYTES] = {0};
    if (size < 1) return 0;
    const size_t rest = size - 1 < sizeof(block) ? size - 1 : sizeof(block);
    memcpy(block, bytes + 1, rest);
    if (bytes[0] % 4 == 0) try_head(block, false);
    if (bytes[0] % 4 == 1) try_head(block, true);
    if (bytes[0] % 4 == 2) try_greeting(block);
    if (bytes[0] % 4 == 3) try_welcome(block);
    return 0;
}
