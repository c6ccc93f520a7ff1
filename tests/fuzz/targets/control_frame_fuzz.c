/* control_frame_fuzz.c - a stream of the control plane's frames; what is accepted is written again
 * to the same bytes. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <control/control_frame.h>

static void same_payload(const frame_t *f, text_t *again)
{
    FUZZ_ASSERT(!again->failed && again->length == f->length &&
                memcmp(again->data, f->payload, f->length) == 0);
    text_free(again);
}

static void walk_hello(const frame_t *f)
{
    frame_hello_t h;
    text_t again = {0};
    if (!fuzz_accepted(frame_read_hello(f, &h))) return;
    if (h.version != FRAME_VERSION) { /* three numbers are known of it, and no text is read */
        FUZZ_ASSERT(*h.site == '\0' && *h.host == '\0' && h.fact_count == 0);
        return;
    }
    frame_write_hello(&again, &h);
    const unsigned char *at = h.facts;
    for (uint32_t i = 0; i < h.fact_count; i++) {
        const char *name, *value;
        frame_next_fact(&at, &name, &value);
        frame_put_text(&again, name, FRAME_FACT_TEXT);
        frame_put_text(&again, value, FRAME_FACT_TEXT);
    }
    same_payload(f, &again);
}

static void walk_welcome(const frame_t *f)
{
    frame_welcome_t w;
    text_t again = {0};
    if (!fuzz_accepted(frame_read_welcome(f, &w))) return;
    frame_put_u64(&again, w.job);
    frame_put_u32(&again, w.epoch);
    frame_put_u32(&again, w.size);
    frame_put_text(&again, w.address, FRAME_FACT_TEXT);
    const unsigned char *at = w.places;
    for (uint32_t i = 0; i < w.size; i++) {
        frame_place_t place;
        frame_next_place(&at, &place);
        frame_put_u32(&again, place.pid);
        frame_put_text(&again, place.site, FRAME_FACT_TEXT);
        frame_put_text(&again, place.host, FRAME_FACT_TEXT);
    }
    same_payload(f, &again);
}

static void walk_rest(const frame_t *f)
{
    frame_notice_t notice;
    frame_beat_t beat;
    frame_gather_t part;
    frame_regroup_t regroup;
    text_t again = {0};
    if (fuzz_accepted(frame_read_regroup(f, &regroup))) {
        frame_write_regroup(&again, &regroup);
        same_payload(f, &again);
    }
    if (fuzz_accepted(frame_read_notice(f, &notice))) {
        frame_write_notice(&again, &notice);
        same_payload(f, &again);
    }
    if (fuzz_accepted(frame_read_beat(f, &beat))) {
        progress_t progress = {.step = beat.step, .waited_ns = beat.waited_ns};
        memcpy(progress.text, beat.text, strlen(beat.text) + 1);
        frame_write_beat(&again, &progress);
        same_payload(f, &again);
    }
    if (fuzz_accepted(frame_read_gather(f, &part))) {
        frame_write_gather(&again, &part);
        same_payload(f, &again);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_part_t copy;
    uint32_t serial = 0;
    size_t at = 0, used;
    frame_t frame;
    /* A block of its own, so that a step over its end is seen. */
    copy.bytes = malloc(size + 1);
    FUZZ_ASSERT(copy.bytes != NULL);
    if (size > 0) memcpy(copy.bytes, bytes, size);
    const unsigned char *stream = (const unsigned char *)copy.bytes;
    for (lh_status_t status = LH_OK; status == LH_OK; at += used) {
        used = 0;
        status = frame_cut(stream + at, size - at, serial++, FRAME_SMALL, &frame, &used);
        if (status != LH_OK) break;
        FUZZ_ASSERT(used == FRAME_HEAD + frame.length && used <= size - at);
        walk_hello(&frame);
        walk_welcome(&frame);
        walk_rest(&frame);
    }
    fail_clear();
    free(copy.bytes);
    return 0;
}
