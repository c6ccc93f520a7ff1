/* memory_image_test.c - snapshots that stay in memory: what a saver describes is found again and
 * becomes a checkpoint of the same values; whatever byte of it changes, it is not taken. */
#include <unit/checkpoint/rank_world.h>

#include <base/file.h>
#include <base/memory.h>
#include <checkpoint/memory_image.h>

enum { RANKS = 3, SESSION = 77 };

/* A memory as a rank's launcher holds it. */
typedef struct kept {
    int fd;
    writer_t *writer;
    world_place_t place;
    const char *model; /* NULL: nothing is said */
} kept_t;

/* One rank's writer, in this process, with room for a guest of as many bytes. */
static void kept_open_as(kept_t *k, uint32_t rank, const char *folder, bool guest, bool apart)
{
    *k = (kept_t){.fd = memfd_create("snapshots", MFD_CLOEXEC)};
    assert_true(k->fd >= 0);
    k->place = (world_place_t){.folder = folder, .rank = rank, .ranks = RANKS};
    k->place.count = world_share(rank, RANKS, k->place.tensors, k->place.which);
    const writer_how_t how = {.folder = folder,
                              .keep = {.newest = 9},
                              .rank = rank,
                              .ranks = RANKS,
                              .memory = true,
                              .memory_fd = dup(k->fd),
                              .apart = apart,
                              .leads = apart && rank == 0};
    assert_int_equal(writer_start(&how, &k->writer), LH_OK);
    writer_session(k->writer, SESSION);
    assert_int_equal(writer_layout(k->writer, k->place.tensors, k->place.count), LH_OK);
    const uint64_t bytes = writer_slot_bytes(k->writer);
    if (guest) assert_int_equal(writer_guests(k->writer, &bytes, 1), LH_OK);
}

static void kept_open(kept_t *k, uint32_t rank, const char *folder, bool guest)
{
    kept_open_as(k, rank, folder, guest, false);
}

static void kept_close(kept_t *k)
{
    writer_close(k->writer);
    assert_int_equal(close(k->fd), 0);
}

/* A snapshot of a step; whole: all ranks have said that theirs is. Returns its slot. */
static uint32_t kept_take(kept_t *k, uint64_t step, bool whole)
{
    const checkpoint_meta_t meta = {
        .run = "test", .model = k->model, .step = step, .seed = UINT64_MAX, .cursor = 10 * step};
    writer_result_t result;
    uint32_t slot;
    assert_int_equal(writer_begin(k->writer), LH_OK);
    assert_int_equal(writer_reserve(k->writer), LH_OK);
    for (uint32_t i = 0; i < k->place.count; i++) {
        void *place;
        assert_int_equal(writer_place(k->writer, i, &place), LH_OK);
        for (uint64_t e = 0; e < k->place.tensors[i].part.count; e++)
            ((float *)place)[e] = world_value(step, k->place.which[i],
                                              k->place.tensors[i].part.first + e);
    }
    assert_int_equal(writer_submit_memory(k->writer, &meta, false, &slot), LH_OK);
    assert_int_equal(writer_wait(k->writer, &result), LH_OK);
    assert_string_equal(result.reason, "");
    assert_int_equal(result.status, LH_OK);
    writer_settle(k->writer, whole);
    return slot;
}

/* A save to the disk, which all ranks have written and rank 0 has committed; whole: so has who leads elsewhere. */
static void kept_save(kept_t ranks[RANKS], uint64_t step, bool whole, writer_result_t *result)
{
    const checkpoint_meta_t meta = {.run = "test", .step = step, .seed = UINT64_MAX};
    uint32_t slot;
    for (uint32_t r = 0; r < RANKS; r++) {
        writer_t *w = ranks[r].writer;
        assert_int_equal(writer_begin(w), LH_OK);
        assert_int_equal(writer_reserve(w), LH_OK);
        for (uint32_t i = 0; i < ranks[r].place.count; i++) {
            void *place;
            assert_int_equal(writer_place(w, i, &place), LH_OK);
            memset(place, (int)step, ranks[r].place.tensors[i].part.count * sizeof(float));
        }
        assert_int_equal(writer_submit_memory(w, &meta, true, &slot), LH_OK);
        assert_int_equal(writer_wait(w, result), LH_OK);
        assert_string_equal(result->reason, "");
        writer_write(w);
        assert_int_equal(writer_wait(w, result), LH_OK);
        assert_string_equal(result->reason, "");
    }
    writer_commit(ranks[0].writer);
    assert_int_equal(writer_wait(ranks[0].writer, result), LH_OK);
    for (uint32_t r = 0; r < RANKS; r++)
        writer_settle(ranks[r].writer, whole);
}

static uint32_t steps_found(int fd, uint64_t steps[MEMORY_SLOTS])
{
    memory_found_t found;
    memory_find(fd, &found);
    for (uint32_t i = 0; i < found.count; i++)
        steps[i] = found.images[i].key.step;
    const uint32_t count = found.count;
    memory_found_close(&found);
    return count;
}

static void what_is_left_in_memory_becomes_a_checkpoint(void **state)
{
    scratch_t *s = *state;
    kept_t ranks[RANKS];
    memory_found_t found[RANKS];
    for (uint32_t r = 0; r < RANKS; r++) {
        kept_open(&ranks[r], r, s->folder, false);
        (void)kept_take(&ranks[r], 5, true);
        (void)kept_take(&ranks[r], 7, true);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        memory_find(ranks[r].fd, &found[r]);
    for (uint64_t step = 5; step <= 7; step += 2) {
        memory_image_t *first = NULL;
        for (uint32_t r = 0; r < RANKS; r++)
            for (uint32_t i = 0; i < found[r].count; i++) {
                memory_image_t *image = &found[r].images[i];
                if (image->key.step != step) continue;
                assert_int_equal(image->key.rank, r);
                assert_int_equal(image->key.session, SESSION);
                assert_int_equal(memory_image_write(image, s->folder, 0, 128), LH_OK);
                if (r == 0) first = image;
            }
        assert_non_null(first);
        char self[SHA256_TEXT];
        saver_share_t share = memory_image_share(first, s->folder, 0);
        share.leads = true;
        assert_int_equal(saver_share_commit(&share, self), LH_OK);
        for (uint32_t of = 1; of <= 4; of++)
            world_check(s->folder, step, of);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        memory_found_close(&found[r]);
        kept_close(&ranks[r]);
    }
}

/* All ranks' images of a step into one folder; `parent`: what who leads there takes for the one before. */
static lh_status_t commit_apart(kept_t ranks[RANKS], uint64_t step, const char *folder,
                                const char *parent, char self[SHA256_TEXT])
{
    memory_found_t found[RANKS];
    memory_image_t *first = NULL;
    for (uint32_t r = 0; r < RANKS; r++) {
        memory_find(ranks[r].fd, &found[r]);
        for (uint32_t i = 0; i < found[r].count; i++) {
            if (found[r].images[i].key.step != step) continue;
            assert_int_equal(memory_image_write(&found[r].images[i], folder, 0, 128), LH_OK);
            if (r == 0) first = &found[r].images[i];
        }
    }
    assert_non_null(first);
    saver_share_t share = memory_image_share(first, folder, 0);
    share.leads = share.apart = true;
    share.parent = parent;
    const lh_status_t status = saver_share_commit(&share, self);
    if (status != LH_OK) saver_share_abandon(&share);
    for (uint32_t r = 0; r < RANKS; r++)
        memory_found_close(&found[r]);
    return status;
}

/* Whoever leads in a folder may have missed a checkpoint, or have one that others have not. */
static void folders_of_sites_get_the_same_whatever_each_had_before(void **state)
{
    scratch_t *s = *state;
    kept_t ranks[RANKS];
    char own[SHA256_TEXT], other[SHA256_TEXT];
    for (uint32_t r = 0; r < RANKS; r++) {
        kept_open(&ranks[r], r, s->folder, false);
        if (r == 0) writer_parent(ranks[r].writer, "of rank 0");
        (void)kept_take(&ranks[r], 5, true);
        (void)kept_take(&ranks[r], 7, true);
    }
    char *elsewhere = path_join(s->folder, "elsewhere");
    assert_int_equal(mkdir(elsewhere, 0700), 0);
    assert_int_equal(commit_apart(ranks, 5, s->folder, "of rank 0", own), LH_OK);
    assert_int_equal(commit_apart(ranks, 5, elsewhere, "of another leader", other), LH_OK);
    assert_string_equal(own, other);
    /* Again, as it failed elsewhere: the same is there. Another one is not overwritten. */
    assert_int_equal(commit_apart(ranks, 5, elsewhere, "", other), LH_OK);
    assert_string_equal(own, other);
    world_check(elsewhere, 5, 2);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (r == 0) writer_parent(ranks[r].writer, "of a later run");
        (void)kept_take(&ranks[r], 9, true);
        (void)kept_take(&ranks[r], 5, true);
    }
    assert_int_not_equal(commit_apart(ranks, 5, elsewhere, "", other), LH_OK);
    world_check(elsewhere, 5, 2);
    for (uint32_t r = 0; r < RANKS; r++)
        kept_close(&ranks[r]);
    mem_free(elsewhere);
}

/* As the last save of a run is, where one site's folder did not take it: it has the same manifest, and the next one
 * names it as the checkpoint before. */
static void a_save_that_failed_elsewhere_is_made_again(void **state)
{
    scratch_t *s = *state;
    kept_t ranks[RANKS];
    writer_result_t result;
    for (uint32_t r = 0; r < RANKS; r++)
        kept_open_as(&ranks[r], r, s->folder, false, true);
    kept_save(ranks, 5, false, &result);
    assert_int_equal(result.status, LH_OK);
    kept_save(ranks, 5, true, &result);
    assert_string_equal(result.reason, "");
    assert_int_equal(result.status, LH_OK);
    kept_save(ranks, 7, true, &result);
    assert_int_equal(result.status, LH_OK);
    checkpoint_t *before, *last;
    assert_int_equal(checkpoint_open_step(s->folder, 5, &before), LH_OK);
    assert_int_equal(checkpoint_open_step(s->folder, 7, &last), LH_OK);
    assert_string_equal(last->manifest->parent, before->manifest->self);
    checkpoint_close(before);
    checkpoint_close(last);
    for (uint32_t r = 0; r < RANKS; r++)
        kept_close(&ranks[r]);
}

/* What a message writes into a page that can't be had ends the process: all pages are taken before. */
static void room_for_guests_is_taken_before_a_snapshot(void **state)
{
    scratch_t *s = *state;
    kept_t k;
    unsigned char there[2];
    kept_open(&k, 1, s->folder, true);
    for (uint32_t slot = 0; slot < MEMORY_OWN; slot++) {
        char *guest = writer_slot(k.writer, 1, slot);
        assert_int_equal(mincore(guest, 2 * MEMORY_PAGE, there), 0);
        assert_int_equal(there[1] & 1, 0);
        assert_int_equal(kept_take(&k, 3 + slot, true), slot);
        assert_int_equal(mincore(guest, 2 * MEMORY_PAGE, there), 0);
        assert_int_equal(there[1] & 1, 1);
    }
    kept_close(&k);
}

/* Thousands of ranks have many lines of layout and kernels. */
static void what_a_run_says_about_itself_has_room(void **state)
{
    enum { LONG = 300 << 10 };
    scratch_t *s = *state;
    kept_t k;
    uint64_t steps[MEMORY_SLOTS];
    char *text = mem_new(LONG + 1);
    memset(text, '\n', LONG);
    kept_open(&k, 1, s->folder, false);
    k.model = text;
    writer_head(k.writer, 2 * LONG + 8192);
    assert_int_equal(writer_layout(k.writer, k.place.tensors, k.place.count), LH_OK);
    (void)kept_take(&k, 3, true);
    assert_int_equal(steps_found(k.fd, steps), 1);
    kept_close(&k);
    mem_free(text);
}

static void one_of_two_slots_is_whole_at_any_moment(void **state)
{
    scratch_t *s = *state;
    kept_t k;
    uint64_t steps[MEMORY_SLOTS];
    kept_open(&k, 1, s->folder, false);
    assert_int_equal(steps_found(k.fd, steps), 0);
    const uint32_t first = kept_take(&k, 3, true);
    assert_int_equal(kept_take(&k, 4, true), 1 - first);
    assert_int_equal(steps_found(k.fd, steps), 2);
    /* Where another rank has failed, the last whole one stays, and that one's place is taken. */
    assert_int_equal(kept_take(&k, 5, false), first);
    assert_int_equal(kept_take(&k, 6, true), first);
    assert_int_equal(writer_begin(k.writer), LH_OK); /* into the other: it is empty from here on */
    assert_int_equal(steps_found(k.fd, steps), 1);
    assert_int_equal(steps[0], 6);
    kept_close(&k);
}

static void every_byte_that_changes_is_found(void **state)
{
    scratch_t *s = *state;
    kept_t k;
    uint64_t steps[MEMORY_SLOTS], bytes;
    kept_open(&k, 1, s->folder, false);
    const uint32_t slot = kept_take(&k, 9, true);
    assert_int_equal(steps_found(k.fd, steps), 1);
    uint8_t *at = writer_slot(k.writer, 0, slot);
    memory_image_t image;
    bytes = writer_slot_bytes(k.writer);
    assert_int_equal(memory_image_open((char *)at, bytes, &image), LH_OK);
    uint64_t found = 0, unused = 0;
    memory_image_close(&image);
    /* Each byte of the tensors, of what describes them and of the head: all but what pads pages. */
    for (uint64_t i = 0; i < 4 * MEMORY_PAGE; i++) {
        if (i >= 64 && i < MEMORY_PAGE) continue;
        at[i] ^= 0x10;
        const lh_status_t status = memory_image_open((char *)at, bytes, &image);
        if (status == LH_OK) {
            unused++;
            assert_int_equal(at[i], 0x10); /* nothing was there */
            memory_image_close(&image);
        } else {
            found++;
        }
        at[i] ^= 0x10;
    }
    assert_true(found > 1500 && unused > 0);
    for (uint32_t i = 0; i < k.place.count; i++) {
        void *place;
        const uint64_t size = writer_place_bytes(k.writer, i);
        assert_int_equal(writer_place(k.writer, i, &place), LH_OK);
        for (uint64_t b = 0; b < size; b++) {
            ((uint8_t *)place)[b] ^= 1;
            assert_int_equal(memory_image_open((char *)at, bytes, &image), LH_CORRUPT);
            ((uint8_t *)place)[b] ^= 1;
        }
    }
    assert_int_equal(steps_found(k.fd, steps), 1);
    kept_close(&k);
}

/* As a message brings it: the slot's bytes, in any part of them. */
static void an_image_is_the_same_with_a_partner(void **state)
{
    scratch_t *s = *state;
    kept_t own, partner;
    memory_found_t found;
    kept_open(&own, 0, s->folder, false);
    const uint32_t slot = kept_take(&own, 2, true);
    const uint64_t bytes = writer_slot_bytes(own.writer);
    const char *from = writer_slot(own.writer, 0, slot);
    kept_open(&partner, 2, s->folder, false);
    assert_int_equal(writer_guests(partner.writer, &bytes, 1), LH_OK);
    char *to = writer_slot(partner.writer, 1, slot);
    for (uint64_t part = 0; part < 2 * MEMORY_PAGE + 1000; part += 211) {
        memcpy(to, from, part);
        memory_find(partner.fd, &found);
        assert_int_equal(found.count, 0);
        memory_found_close(&found);
    }
    memcpy(to, from, bytes);
    memory_find(partner.fd, &found);
    assert_int_equal(found.count, 1);
    assert_int_equal(found.images[0].key.rank, 0);
    assert_int_equal(found.images[0].key.step, 2);
    memory_found_close(&found);
    kept_close(&partner);
    kept_close(&own);
}

static void a_memory_that_is_none_has_no_images(void **state)
{
    (void)state;
    memory_found_t found;
    memory_find(-1, &found);
    assert_int_equal(found.count, 0);
    memory_found_close(&found);
    const int fd = memfd_create("snapshots", MFD_CLOEXEC);
    for (off_t bytes = 0; bytes <= 3 * MEMORY_PAGE; bytes += MEMORY_PAGE / 2) {
        assert_int_equal(ftruncate(fd, bytes), 0);
        memory_find(fd, &found);
        assert_int_equal(found.count, 0);
        memory_found_close(&found);
    }
    assert_int_equal(close(fd), 0);
}

static int quiet(void **state)
{
    (void)state;
    log_threshold(LH_LOG_ERROR + 1);
    return 0;
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        FACT(what_is_left_in_memory_becomes_a_checkpoint),
        FACT(a_save_that_failed_elsewhere_is_made_again),
        FACT(folders_of_sites_get_the_same_whatever_each_had_before),
        FACT(room_for_guests_is_taken_before_a_snapshot),
        FACT(what_a_run_says_about_itself_has_room),
        FACT(one_of_two_slots_is_whole_at_any_moment),
        FACT(every_byte_that_changes_is_found),
        FACT(an_image_is_the_same_with_a_partner),
        FACT(a_memory_that_is_none_has_no_images),
    };
    return cmocka_run_group_tests(tests, quiet, NULL);
}
