/* train_memory_test.c - what two sites find in the memory of their launchers: the later start counts, then the
 * newer step, beside what is on their disks. Each site's memory holds the images of a job of one rank. */
#include <unit/train/two_sites.h>

#include <checkpoint/memory_image.h>
#include <train/train_memory.h>

enum { IMAGE_TENSOR = 1024, IMAGE_MANIFEST = 16 << 10 };

/* A memory with nothing in it. */
static char *memory_open(const site_t *s, memory_slots_t *slots)
{
    *slots = (memory_slots_t){.count = 0};
    const uint64_t bytes = memory_slots_add(
        slots, memory_slot_bytes((uint64_t)SMALL_TENSORS * IMAGE_TENSOR, IMAGE_MANIFEST));
    assert_int_equal(ftruncate(s->memory, (off_t)bytes), 0);
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->memory, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

static void forget_images(const site_t *s)
{
    memory_slots_t slots;
    char *memory = memory_open(s, &slots);
    memory_slots_write(&slots, memory);
}

/* As a saver describes what its trainer has copied. The session is the site's own. */
static void keep_image(const sites_t *all, uint32_t site, uint32_t slot, uint64_t step,
                       const char *run, uint32_t incarnation, uint32_t refused)
{
    checkpoint_tensor_t tensors[SMALL_TENSORS];
    uint64_t offset[SMALL_TENSORS];
    checkpoint_scalar_t scalars[2];
    const uint32_t count = site_scalars(scalars, incarnation, refused);
    for (uint32_t i = 0; i < SMALL_TENSORS; i++) {
        tensors[i] = small_tensors[i];
        tensors[i].part = tensor_part_whole(tensors[i].rank, tensors[i].shape);
        offset[i] = (uint64_t)i * IMAGE_TENSOR;
    }
    const save_job_t job = {
        .meta = {.run = run, .step = step, .seed = step, .scalars = scalars, .scalar_count = count},
        .tensors = tensors,
        .offset = offset,
        .count = SMALL_TENSORS};
    const memory_key_t key = {.session = 77 + site, .step = step, .rank = 0, .ranks = 1};
    memory_slots_t slots;
    char *memory = memory_open(&all->site[site], &slots);
    assert_int_equal(
        memory_describe(&job, &key, memory + slots.slot[slot].begin, slots.slot[slot].bytes),
        LH_OK);
}

static void *rescue(void *context)
{
    site_t *s = context;
    return site_note(s, train_memory_rescue(&s->trainer, LH_OK));
}

/* The step that was found in memory alone; 0: none was. */
static void check_rescued(sites_t *s, uint64_t step)
{
    for (uint32_t r = 0; r < SITES; r++) {
        forget_found(&s->site[r]);
        s->site[r].trainer.memory.rescued = 0;
    }
    in_all(s, rescue);
    all_well(s);
    for (uint32_t r = 0; r < SITES; r++)
        assert_int_equal(s->site[r].trainer.memory.rescued, step);
}

/* For the next case: folders and memories without anything. */
static void begin_anew(sites_t *s)
{
    empty_sites(s);
    for (uint32_t r = 0; r < SITES; r++) {
        assert_int_equal(folder_make(s->site[r].folder), LH_OK);
        forget_images(&s->site[r]);
    }
}

/* Both were at 20, and made 28 together, or one of them alone; then the other went on by itself. It has yet to
 * save what it has made. */
static void of_two_images_that_of_the_later_start_is_taken(void **state)
{
    sites_t *s = *state;
    for (uint32_t later = 0; later < SITES; later++)
        for (uint64_t step = 24; step <= 28; step += 2) {
            for (uint32_t r = 0; r < SITES; r++)
                site_save(&s->site[r], 20, RUN, 1, 20);
            keep_image(s, 1 - later, 0, 26, RUN, 1, 0);
            keep_image(s, 1 - later, 1, 28, RUN, 1, 0);
            keep_image(s, later, 0, 22, RUN, 2, 0);
            keep_image(s, later, 1, step, RUN, 2, 0);
            check_rescued(s, step);
            assert_true(site_has(&s->site[later], "", step));
            assert_false(site_has(&s->site[1 - later], "", step));
            assert_false(site_has(&s->site[1 - later], "", 26));
            check_found(s, step, step);
            const manifest_t *m = s->site[later].trainer.resumed->manifest;
            assert_int_equal(incarnation_of(m).number, 2);
            begin_anew(s);
        }
}

static void an_image_of_the_later_start_goes_before_a_newer_checkpoint(void **state)
{
    sites_t *s = *state;
    for (uint32_t later = 0; later < SITES; later++) {
        for (uint32_t r = 0; r < SITES; r++)
            site_save(&s->site[r], 20, RUN, 1, 20);
        site_save(&s->site[1 - later], 30, RUN, 1, 30);
        keep_image(s, later, 0, 24, RUN, 2, 0);
        check_rescued(s, 24);
        check_found(s, 24, 24);
        begin_anew(s);
    }
}

static void a_checkpoint_of_the_later_start_goes_before_a_newer_image(void **state)
{
    sites_t *s = *state;
    for (uint32_t later = 0; later < SITES; later++) {
        for (uint32_t r = 0; r < SITES; r++)
            site_save(&s->site[r], 20, RUN, 1, 20);
        site_save(&s->site[later], 22, RUN, 2, 22);
        keep_image(s, 1 - later, 0, 28, RUN, 1, 0);
        check_rescued(s, 0);
        check_found(s, 22, 22);
        assert_false(site_has(&s->site[1 - later], "", 28));
        begin_anew(s);
    }
}

/* Of one start, of different runs, and where it is not known. */
static void where_no_start_is_the_later_one_the_newest_step_is_taken(void **state)
{
    sites_t *s = *state;
    static const struct {
        const char *run;
        uint32_t here, there;
    } cases[] = {{RUN, 2, 2}, {RUN, 0, 0}, {RUN, 2, 0}, {RUN, 0, 2}, {OTHER, 1, 2}, {OTHER, 2, 1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        site_save(&s->site[0], 20, RUN, cases[i].here, 20);
        keep_image(s, 0, 0, 24, RUN, cases[i].here, 0);
        keep_image(s, 1, 0, 28, cases[i].run, cases[i].there, 0);
        check_rescued(s, 28);
        check_found(s, 28, 28);
        begin_anew(s);
        site_save(&s->site[0], 28, RUN, cases[i].here, 20);
        keep_image(s, 1, 0, 28, cases[i].run, cases[i].there, 0);
        check_rescued(s, 0);
        begin_anew(s);
    }
}

/* Nothing was made since that anybody has kept. */
static void a_start_that_kept_nothing_does_not_count(void **state)
{
    sites_t *s = *state;
    const incarnation_t started = {.number = 2, .run = RUN};
    site_save(&s->site[0], 20, RUN, 1, 20);
    assert_int_equal(incarnation_write(s->site[0].folder, &started), LH_OK);
    keep_image(s, 1, 0, 28, RUN, 1, 0);
    check_rescued(s, 28);
    check_found(s, 28, 28);
}

/* A checkpoint that nobody would go on from does not keep anybody from what is whole in memory. */
static void what_is_no_good_on_disk_hides_no_image(void **state)
{
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++) {
        site_save(&s->site[r], 20, RUN, 1, 20);
        site_save_refused(&s->site[r], 30, RUN, 1, 30, 4);
    }
    keep_image(s, 0, 0, 25, RUN, 1, 0);
    check_rescued(s, 25);
    check_found(s, 25, 25);
    begin_anew(s);
    for (uint32_t r = 0; r < SITES; r++)
        site_save(&s->site[r], 20, RUN, 1, 20);
    (void)scratch_write(s->scratch, "osaka/step-000000000030", "", 0);
    keep_image(s, 0, 0, 25, RUN, 1, 0);
    check_rescued(s, 25);
    check_found(s, 25, 25);
}

/* It is newer than what is in memory. */
static void what_the_disk_fails_to_read_once_hides_no_checkpoint(void **state)
{
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++)
        site_save(&s->site[r], 20, RUN, 1, 20);
    site_save(&s->site[1], 30, RUN, 1, 30);
    keep_image(s, 0, 0, 25, RUN, 1, 0);
    disk_fails_once(0);
    check_rescued(s, 0);
    assert_true(disk_is_well());
    assert_false(site_has(&s->site[0], "", 25));
    check_found(s, 30, 30);
}

/* A save to the disk goes through the slots whatever it is of. */
static void an_image_behind_steps_that_were_not_applied_is_not_taken(void **state)
{
    sites_t *s = *state;
    site_save(&s->site[0], 20, RUN, 1, 20);
    keep_image(s, 0, 0, 30, RUN, 1, 4);
    check_rescued(s, 0);
    keep_image(s, 0, 1, 25, RUN, 1, 0);
    check_rescued(s, 25);
    check_found(s, 25, 25);
}

static int memory_setup(void **state)
{
    if (sites_setup(state) != 0) return -1;
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++) {
        s->site[r].job.checkpoint.memory_every = 2;
        assert_int_equal(folder_make(s->site[r].folder), LH_OK);
        forget_images(&s->site[r]);
    }
    return 0;
}

/* How many snapshots a rank of this job keeps, by what the ranks of its world do. */
static uint64_t guests_by_ranks(const job_t *job, bool apart)
{
    world_t *w;
    uint64_t guests[64] = {0}, most = 0;
    assert_int_equal(world_plan(job, 0, &w), LH_OK);
    assert_true(w->row.size <= 64);
    for (uint32_t r = 0; r < w->row.size; r++) {
        const uint32_t partner = train_memory_partner(w, r);
        if (!apart && partner < w->row.size) guests[partner]++;
        for (uint32_t site = 0; apart && site < w->row.sites; site++)
            if (site != w->ranks[r].site)
                guests[world_site_rank(w, site, w->ranks[r].place % world_site_size(w, site))]++;
    }
    for (uint32_t r = 0; r < w->row.size; r++)
        if (guests[r] > most) most = guests[r];
    world_free(w);
    return most;
}

/* What `check` tells by the INI alone is what ranks do. */
static void guests_are_foretold(void **state)
{
    (void)state;
    static char *const names[] = {"a1", "a2", "a3", "b1", "b2", "b3", "c1", "c2", "c3"};
    uint32_t seed = 7;
    for (int round = 0; round < 500; round++) {
        job_host_t hosts[3][3];
        job_site_t sites[3] = {{.name = "a"}, {.name = "b"}, {.name = "c"}};
        job_t job = {.sites = sites};
        uint32_t first = 0;
        seed = seed * 1664525 + 1013904223;
        job.site_count = 1 + (seed >> 8) % 3;
        for (uint32_t i = 0; i < job.site_count; i++) {
            seed = seed * 1664525 + 1013904223;
            sites[i].hosts = hosts[i];
            sites[i].host_count = 1 + (seed >> 8) % 3;
            for (uint32_t k = 0; k < sites[i].host_count; k++) {
                seed = seed * 1664525 + 1013904223;
                hosts[i][k] = (job_host_t){
                    .name = names[3 * i + k], .ranks = 1 + (seed >> 8) % 5, .first_rank = first};
                first += hosts[i][k].ranks;
            }
        }
        job.site_ranks = first;
        assert_int_equal(train_memory_guests(&job, false), guests_by_ranks(&job, false));
        if (job.site_count > 1)
            assert_int_equal(train_memory_guests(&job, true), guests_by_ranks(&job, true));
    }
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, memory_setup, sites_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guests_are_foretold),
        FACT(of_two_images_that_of_the_later_start_is_taken),
        FACT(an_image_of_the_later_start_goes_before_a_newer_checkpoint),
        FACT(a_checkpoint_of_the_later_start_goes_before_a_newer_image),
        FACT(where_no_start_is_the_later_one_the_newest_step_is_taken),
        FACT(a_start_that_kept_nothing_does_not_count),
        FACT(what_is_no_good_on_disk_hides_no_image),
        FACT(what_the_disk_fails_to_read_once_hides_no_checkpoint),
        FACT(an_image_behind_steps_that_were_not_applied_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
