/* scrape_request_fuzz.c - what a stranger sends to the port of figures. More bytes never change what
 * was decided, and what is a page is so by its first line alone. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <watch/scrape.h>

/* As a connection reads: byte after byte, up to the first decision. */
static uint32_t decide(const char *bytes, size_t size, size_t *taken)
{
    uint32_t what = SCRAPE_MORE;
    for (*taken = 0; *taken < size && what == SCRAPE_MORE; (*taken)++)
        what = scrape_request(bytes, *taken + 1);
    return what;
}

static void address(const char *text)
{
    char host[SCRAPE_HOST], again[SCRAPE_HOST], joined[SCRAPE_HOST + 16];
    uint16_t port, same;
    if (scrape_address(text, host, &port) != LH_OK) return;
    (void)snprintf(joined, sizeof(joined), strchr(host, ':') != NULL ? "[%s]:%u" : "%s:%u", host,
                   port);
    FUZZ_ASSERT(scrape_address(joined, again, &same) == LH_OK && same == port);
    FUZZ_ASSERT(strcmp(host, again) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_part_t part;
    size_t taken;
    fuzz_cut(bytes, size < SCRAPE_BYTES ? size : SCRAPE_BYTES, '\0', &part, 1);
    const uint32_t what = decide(part.bytes, part.size, &taken);
    FUZZ_ASSERT(what <= SCRAPE_LARGE);
    FUZZ_ASSERT(what != SCRAPE_MORE || part.size < SCRAPE_BYTES);
    FUZZ_ASSERT(what != SCRAPE_LARGE || taken == SCRAPE_BYTES);
    if (what == SCRAPE_PAGE) FUZZ_ASSERT(memcmp(part.bytes, "GET /metrics", 12) == 0);
    if (what == SCRAPE_HEAD) FUZZ_ASSERT(memcmp(part.bytes, "HEAD /metrics", 13) == 0);
    if (what != SCRAPE_MORE) FUZZ_ASSERT(scrape_request(part.bytes, taken) == what);
    address(part.bytes);
    fuzz_parts_free(&part, 1);
    return 0;
}
