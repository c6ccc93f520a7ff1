/* train_sites_test.c - two sites with folders of their own find the checkpoint to go on from, and count their
 * starts: two ranks as threads, each the only one of its site, which tell each other by a table between them. */
#include <unit/train/two_sites.h>

#include <fcntl.h>

#include <base/log.h>

/* Warnings go to a file, too. */
static int log_begin(sites_t *s)
{
    const int fd = open(scratch_path(s->scratch, "log"), O_RDWR | O_CREAT | O_APPEND, 0600);
    assert_true(fd >= 0);
    log_also(fd, "log");
    return fd;
}

static void log_stop(int fd)
{
    log_also(-1, "");
    assert_int_equal(close(fd), 0);
}

static uint32_t log_count(sites_t *s, const char *words)
{
    size_t length;
    uint32_t count = 0;
    char *text = scratch_read(scratch_path(s->scratch, "log"), &length);
    for (const char *at = text; (at = strstr(at, words)) != NULL; at++)
        count++;
    mem_free(text);
    return count;
}

static void *count_start(void *context)
{
    site_t *s = context;
    return site_note(s, train_sites_incarnation(&s->trainer));
}

/* All say the same. */
static void check_ended(sites_t *s, lh_status_t status, const char *why)
{
    find_all(s);
    for (uint32_t r = 0; r < SITES; r++) {
        assert_int_equal(s->site[r].status, status);
        assert_non_null(strstr(s->site[r].reason, why));
        assert_null(s->site[r].trainer.resumed);
    }
}

static void check_refused(sites_t *s, uint64_t step, const char *why)
{
    char sentence[80];
    (void)snprintf(sentence, sizeof(sentence), "sites have different checkpoints of step %llu, ",
                   (unsigned long long)step);
    find_all(s);
    for (uint32_t r = 0; r < SITES; r++) {
        assert_int_equal(s->site[r].status, LH_MISMATCH);
        assert_non_null(strstr(s->site[r].reason, sentence));
        assert_non_null(strstr(s->site[r].reason, why));
    }
}

/* Step 20 was saved in one site alone, the other went on from 10 and made it again. */
static void of_two_of_a_step_that_of_the_later_start_counts(void **state)
{
    sites_t *s = *state;
    for (uint32_t later = 0; later < SITES; later++) {
        for (uint32_t r = 0; r < SITES; r++)
            site_save(&s->site[r], 10, RUN, 1, 10);
        site_save(&s->site[1 - later], 20, RUN, 1, 20);
        site_save(&s->site[later], 20, RUN, 2, 21);
        check_found(s, 20, 21);
        empty_sites(s);
    }
}

static void a_newer_step_of_an_earlier_start_is_passed_over(void **state)
{
    sites_t *s = *state;
    for (uint32_t later = 0; later < SITES; later++) {
        for (uint32_t r = 0; r < SITES; r++)
            site_save(&s->site[r], 10, RUN, 3, 10);
        for (uint64_t step = 20; step <= 60; step += 20)
            site_save(&s->site[1 - later], step, RUN, 3, step);
        site_save(&s->site[later], 20, RUN, 5, 21);
        site_save(&s->site[later], 30, RUN, 5, 31);
        check_found(s, 30, 31);
        empty_sites(s);
    }
}

/* All sites had 20 of the later start, so nothing newer was left: a person has renamed what was set aside. */
static void what_somebody_has_put_back_counts(void **state)
{
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++)
        site_save(&s->site[r], 20, RUN, 2, 21);
    site_save(&s->site[0], 40, RUN, 1, 40);
    check_found(s, 40, 40);
}

/* Nobody has made anything since. */
static void a_start_that_saved_nothing_does_not_count(void **state)
{
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++)
        site_save(&s->site[r], 10, RUN, 1, 10);
    site_save(&s->site[1], 20, RUN, 1, 20);
    check_found(s, 20, 20);
}

static void where_nothing_tells_which_is_later_all_are_refused(void **state)
{
    sites_t *s = *state;
    static const char one[] = ", as both were made in one incarnation: ",
                      none[] = ", as not both say in which incarnation they were made: ",
                      runs[] = ", as they are of two runs: ";
    static const struct {
        const char *run, *why;
        uint32_t here, there; /* incarnations of step 20 */
    } cases[] = {{RUN, one, 2, 2},  {RUN, none, 0, 0},   {RUN, none, 2, 0},
                 {RUN, none, 0, 2}, {OTHER, runs, 1, 2}, {OTHER, runs, 2, 1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        site_save(&s->site[0], 20, RUN, cases[i].here, 20);
        site_save(&s->site[1], 20, cases[i].run, cases[i].there, 21);
        check_refused(s, 20, cases[i].why);
        empty_sites(s);
    }
}

/* Checkpoints of a version that wrote no number. */
static void without_numbers_the_newest_step_counts(void **state)
{
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++)
        site_save(&s->site[r], 10, RUN, 0, 10);
    site_save(&s->site[0], 20, RUN, 4, 20);
    site_save(&s->site[1], 30, RUN, 0, 30);
    check_found(s, 30, 30);
}

/* Step 30 was saved in one site alone; the other made it again, without applying the steps before it. What
 * that one has gone on from is good, and the first one's 30 is no part of it. */
static void a_later_start_counts_though_its_step_is_refused(void **state)
{
    sites_t *s = *state;
    for (uint32_t later = 0; later < SITES; later++) {
        for (uint32_t r = 0; r < SITES; r++)
            site_save(&s->site[r], 20, RUN, 1, 20);
        site_save(&s->site[1 - later], 30, RUN, 1, 30);
        site_save_refused(&s->site[later], 30, RUN, 2, 31, 3);
        const int log = log_begin(s);
        check_found(s, 20, 20);
        assert_int_equal(log_count(s, "step 30 is passed over, as the 3 steps before it were not "
                                      "applied: the run goes on from step 20"),
                         later + 1);
        for (uint32_t r = 0; r < SITES; r++)
            train_sites_loaded(&s->site[r].trainer);
        log_stop(log);
        assert_true(site_has(&s->site[1 - later], "stale-", 30));
        assert_true(site_has(&s->site[later], "", 30));
        empty_sites(s);
    }
}

/* It would have nothing good to go on from. */
static void before_a_refused_step_alone_a_good_one_of_an_earlier_start_is_taken(void **state)
{
    sites_t *s = *state;
    for (uint32_t later = 0; later < SITES; later++) {
        site_save(&s->site[1 - later], 30, RUN, 1, 30);
        site_save_refused(&s->site[later], 30, RUN, 2, 31, 3);
        check_found(s, 30, 30);
        empty_sites(s);
        for (uint32_t r = 0; r < SITES; r++)
            site_save_refused(&s->site[r], 20, RUN, 1, 20, 3);
        site_save_refused(&s->site[later], 30, RUN, 2, 31, 3);
        check_found(s, 30, 31);
        empty_sites(s);
    }
}

static void of_many_steps_that_are_set_aside_each_is_told(void **state)
{
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++)
        site_save(&s->site[r], 10, RUN, 1, 10);
    for (uint64_t step = 11; step <= 30; step++)
        site_save(&s->site[1], step, RUN, 1, step);
    site_save_refused(&s->site[0], 60, RUN, 2, 60, 1);
    const int log = log_begin(s);
    check_found(s, 10, 10);
    for (uint32_t r = 0; r < SITES; r++)
        train_sites_loaded(&s->site[r].trainer);
    log_stop(log);
    for (uint64_t step = 11; step <= 30; step++)
        assert_true(site_has(&s->site[1], "stale-", step) && !site_has(&s->site[1], "", step));
    assert_int_equal(log_count(s,
                               " was made in incarnation 1 of the run, which has gone on without "
                               "it in incarnation 2: it is set aside there as stale-step-"),
                     20);
    assert_true(site_has(&s->site[1], "", 10));
}

/* Which of two is meant can't be known though there are many steps above one of them. */
static void what_lies_below_many_steps_is_compared_too(void **state)
{
    sites_t *s = *state;
    site_save(&s->site[0], 20, RUN, 2, 21);
    site_save(&s->site[1], 20, RUN, 2, 22);
    for (uint64_t step = 21; step <= 40; step++)
        site_save(&s->site[1], step, RUN, 1, step);
    check_refused(s, 20, ", as both were made in one incarnation: ");
}

static void a_good_step_below_many_refused_ones_is_taken(void **state)
{
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++) {
        site_save(&s->site[r], 10, RUN, 1, 10);
        for (uint32_t step = 11; step <= 30; step++)
            site_save_refused(&s->site[r], step, RUN, 1, step, step - 10);
    }
    check_found(s, 10, 10);
}

static void that_sites_have_different_runs_is_told(void **state)
{
    sites_t *s = *state;
    site_save(&s->site[0], 10, RUN, 1, 10);
    site_save(&s->site[1], 20, OTHER, 1, 20);
    const int log = log_begin(s);
    check_found(s, 20, 20);
    log_stop(log);
    assert_int_equal(log_count(s, "site tokyo: its checkpoint of step 10 is of another run than "
                                  "that of step 20, from which all go on"),
                     1);
}

/* As all would have found as they loaded it: they go on from what is whole, the newest first. */
static void where_good_ones_turn_out_damaged_refused_ones_are_taken(void **state)
{
    sites_t *s = *state;
    static const uint64_t taken[] = {40, 20, 50, 30, 10};
    for (uint32_t r = 0; r < SITES; r++)
        for (uint64_t step = 10; step <= 50; step += 10)
            site_save_refused(&s->site[r], step, RUN, 1, step, step / 10 % 2);
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
        check_found(s, taken[i], taken[i]);
        for (uint32_t r = 0; r < SITES; r++)
            checkpoint_exclude(&s->site[r].trainer.below, s->site[r].trainer.resumed);
    }
    check_ended(s, LH_CORRUPT, ": none of any site's checkpoints is whole");
}

/* As where all have loaded its copies, and found each of them damaged. */
static void a_step_that_was_named_and_is_damaged_everywhere_is_refused(void **state)
{
    sites_t *s = *state;
    const uint64_t named = 20;
    for (uint32_t r = 0; r < SITES; r++) {
        site_save(&s->site[r], 10, RUN, 1, 10);
        site_save(&s->site[r], named, RUN, 1, 20);
        s->site[r].how.resume_step = &named;
    }
    check_found(s, named, 20);
    for (uint32_t r = 0; r < SITES; r++)
        checkpoint_exclude(&s->site[r].trainer.below, s->site[r].trainer.resumed);
    check_ended(s, LH_CORRUPT, "--resume 20: no site's copy of that checkpoint is whole");
}

/* As where the other's launcher has started its rank again before training had begun. */
static void what_is_named_to_rank_0_alone_counts_for_all(void **state)
{
    sites_t *s = *state;
    const uint64_t named = 10;
    for (uint32_t r = 0; r < SITES; r++) {
        site_save(&s->site[r], named, RUN, 1, 10);
        site_save(&s->site[r], 20, RUN, 1, 20);
    }
    s->site[0].how.resume_step = &named;
    check_found(s, named, 10);
    s->site[0].how.resume_step = NULL;
    s->site[1].how.resume_step = &named;
    check_found(s, 20, 20);
}

/* To begin anew would look like success. A file was never a checkpoint. */
static void where_nothing_is_whole_the_start_is_refused(void **state)
{
    sites_t *s = *state;
    const uint64_t named = 20;
    char name[96];
    for (uint32_t r = 0; r < SITES; r++) {
        assert_int_equal(folder_make(s->site[r].folder), LH_OK);
        (void)snprintf(name, sizeof(name), "%s/step-%012u", r == 0 ? "tokyo" : "osaka", 20u);
        (void)scratch_write(s->scratch, name, "", 0);
        find_all(s);
        all_well(s);
        assert_null(s->site[r].trainer.resumed);
        empty_sites(s);

        site_save(&s->site[r], 20, RUN, 1, 20);
        (void)strncat(name, "/manifest.json", sizeof(name) - strlen(name) - 1);
        (void)scratch_write(s->scratch, name, "{", 1);
        for (int resume = 0; resume < 2; resume++) {
            s->site[0].how.resume = s->site[1].how.resume = resume == 1;
            check_ended(s, LH_CORRUPT, ": none of any site's checkpoints is whole");
        }
        s->site[0].how.resume_step = s->site[1].how.resume_step = &named;
        check_ended(s, LH_CORRUPT, "--resume 20: no site's copy of that checkpoint is whole");
        s->site[0].how.resume_step = s->site[1].how.resume_step = NULL;
        assert_true(site_has(&s->site[r], "", 20));
        assert_int_equal(folder_remove(s->site[r].folder), LH_OK);
    }
}

/* Whichever file that is: it needs no other site's copy, and keeps its own, or tells it where that lacks one. */
static void what_the_disk_fails_to_read_once_is_not_damaged(void **state)
{
    sites_t *s = *state;
    for (uint32_t first = 0; first < SITES; first++) {
        uint32_t behind = 0;
        bool failed = true;
        for (uint32_t r = first; r < SITES; r++)
            site_save(&s->site[r], 20, RUN, 1, 20);
        for (; failed; behind++) {
            disk_fails_once(behind);
            check_found(s, 20, 20);
            failed = disk_is_well();
            for (uint32_t r = first; r < SITES; r++)
                assert_non_null(s->site[r].trainer.resumed->files);
        }
        assert_true(behind > 4); /* to tell it, and to open it */
        empty_sites(s);
    }
}

static int mkdir_without_room(const char *path, mode_t mode)
{
    if (strstr(path, "/osaka/.tmp-step-") == NULL) return sys_real.mkdir(path, mode);
    errno = ENOSPC;
    return -1;
}

/* No byte travels then, so that the two need no links. */
static void osaka_is_full(sites_t *s, void *(*body)(void *context))
{
    sys_t calls = sys_real;
    calls.mkdir = mkdir_without_room;
    for (uint32_t r = 0; r < SITES; r++)
        assert_int_equal(writer_layout(s->site[r].trainer.writer, small_tensors, SMALL_TENSORS),
                         LH_OK);
    sys_use(&calls);
    in_all(s, body);
    sys_use(NULL);
    for (uint32_t r = 0; r < SITES; r++) {
        assert_int_equal(s->site[r].status, LH_IO);
        assert_non_null(strstr(s->site[r].reason, "No space left on device"));
    }
}

static void *fetch_step(void *context)
{
    site_t *s = context;
    return site_note(s, train_sites_fetch(&s->trainer, &s->brought));
}

static void why_a_copy_did_not_come_is_told_by_all(void **state)
{
    sites_t *s = *state;
    site_save(&s->site[0], 20, RUN, 1, 20);
    check_found(s, 20, 20);
    osaka_is_full(s, fetch_step);
    assert_non_null(strstr(s->site[0].reason, "rank 1: "));
}

static void *load_again(void *context)
{
    site_t *s = context;
    bool again;
    const bool lost = s->ranks.rank == 1;
    if (lost) (void)fail(LH_CORRUPT, "a byte is another one");
    return site_note(s, train_sites_again(&s->trainer, lost, &again));
}

static ssize_t pread_without_data(int fd, void *to, size_t bytes, off_t at)
{
    (void)fd, (void)to, (void)bytes, (void)at;
    errno = EIO;
    return -1;
}

/* The start is not ended by it: all go back to the step before. No byte travels, so that the two need no links. */
static void a_copy_that_its_disk_does_not_give_is_damage(void **state)
{
    sites_t *s = *state;
    uint64_t slots[SITES] = {ROOM, ROOM};
    sys_t calls = sys_real;
    calls.pread = pread_without_data;
    for (uint32_t r = 0; r < SITES; r++) {
        site_save(&s->site[r], 10, RUN, 1, 10);
        s->site[r].trainer.memory.bytes = slots;
        assert_int_equal(writer_layout(s->site[r].trainer.writer, small_tensors, SMALL_TENSORS),
                         LH_OK);
    }
    site_save(&s->site[0], 20, RUN, 1, 20);
    check_found(s, 20, 20);
    const int log = log_begin(s);
    sys_use(&calls);
    in_all(s, fetch_step);
    sys_use(NULL);
    log_stop(log);
    assert_int_equal(log_count(s, "step 20 did not come: "), 1);
    assert_int_equal(log_count(s, "Input/output error"), 1);
    for (uint32_t r = 0; r < SITES; r++) {
        assert_int_equal(s->site[r].status, LH_OK);
        assert_false(s->site[r].brought);
        assert_non_null(s->site[r].trainer.resumed);
        checkpoint_exclude(&s->site[r].trainer.below, s->site[r].trainer.resumed);
    }
    assert_int_equal(checkpoint_clean(s->site[1].folder), LH_OK);
    assert_true(site_has(&s->site[0], "", 20) && !site_has(&s->site[1], "", 20));
    check_found(s, 10, 10);
}

/* Step 10 would take the place of one that tokyo has whole. */
static void no_older_step_is_taken_where_a_disk_has_no_room_for_a_whole_copy(void **state)
{
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++) {
        site_save(&s->site[r], 10, RUN, 1, 10);
        site_save(&s->site[r], 20, RUN, 1, 20);
    }
    check_found(s, 20, 20);
    osaka_is_full(s, load_again);
    for (uint32_t r = 0; r < SITES; r++)
        assert_true(site_has(&s->site[r], "", 20));
}

/* 0: the start needs none. */
static void check_counted(sites_t *s, uint64_t number)
{
    in_all(s, count_start);
    all_well(s);
    for (uint32_t r = 0; r < SITES; r++) {
        incarnation_t found;
        assert_int_equal(s->site[r].trainer.incarnation, number);
        assert_int_equal(incarnation_read(s->site[r].folder, &found), LH_OK);
        assert_int_equal(found.number, number);
        assert_string_equal(found.run, number > 0 ? RUN : "");
    }
}

static void a_start_counts_one_more_than_any_folder_has_seen(void **state)
{
    sites_t *s = *state;
    const incarnation_t seen = {.number = 4, .run = RUN};
    assert_int_equal(incarnation_write(s->site[1].folder, &seen), LH_OK);
    check_counted(s, 5);
    check_counted(s, 6);
}

/* Rank 0's site is new, or has been away: it can't know by itself which run this is. */
static void the_last_start_is_known_by_what_any_folder_has_seen(void **state)
{
    sites_t *s = *state;
    const incarnation_t last = {.number = 4, .run = OTHER}, older = {.number = 3, .run = RUN};
    for (uint32_t knows = 0; knows < SITES; knows++) {
        assert_int_equal(incarnation_write(s->site[knows].folder, &last), LH_OK);
        if (knows > 0) assert_int_equal(incarnation_write(s->site[0].folder, &older), LH_OK);
        find_all(s);
        all_well(s);
        for (uint32_t r = 0; r < SITES; r++) {
            const incarnation_t before = train_sites_before(&s->site[r].trainer);
            assert_null(s->site[r].trainer.resumed);
            assert_int_equal(before.number, 4);
            assert_string_equal(before.run, OTHER);
        }
        for (uint32_t r = 0; r <= knows; r++)
            assert_int_equal(folder_remove(s->site[r].folder), LH_OK);
    }
}

/* Of the second one, which is the last that there is, nothing is left to count. */
static void a_number_that_somebody_made_up_does_not_end_starts(void **state)
{
    sites_t *s = *state;
    const incarnation_t seen = {.number = 4, .run = RUN};
    assert_int_equal(incarnation_write(s->site[1].folder, &seen), LH_OK);
    scratch_text(s->scratch, "osaka/.incarnation-999999999999999-" RUN, "");
    check_counted(s, 5);
    check_counted(s, 6);
    scratch_text(s->scratch, "osaka/.incarnation-1000000000000-" RUN, "");
    check_counted(s, INCARNATION_MOST);
    check_counted(s, INCARNATION_MOST);
}

/* Both folders were moved without what they had seen. */
static void a_start_counts_one_more_than_its_checkpoint(void **state)
{
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++)
        site_save(&s->site[r], 10, RUN, 9, 10);
    check_found(s, 10, 10);
    check_counted(s, 10);
    for (uint32_t r = 0; r < SITES; r++)
        s->site[r].job.checkpoint.apart = false; /* its number is enough */
    check_counted(s, 11);
}

static void without_folders_of_their_own_there_is_no_number(void **state)
{
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++)
        s->site[r].job.checkpoint.apart = false;
    check_counted(s, 0);
}

/* A machine that is left out holds what it had in memory. */
static void with_snapshots_in_memory_starts_are_counted_too(void **state)
{
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++) {
        s->site[r].job.checkpoint.apart = false;
        s->site[r].trainer.memory.keeps = true;
    }
    check_counted(s, 1);
    check_counted(s, 2);
}

/* The second is none. */
static void a_folder_that_takes_no_number_ends_the_start_of_all(void **state)
{
    sites_t *s = *state;
    (void)scratch_write(s->scratch, "osaka", "", 0);
    in_all(s, count_start);
    for (uint32_t r = 0; r < SITES; r++) {
        assert_int_equal(s->site[r].status, LH_IO);
        assert_non_null(strstr(s->site[r].reason, "osaka: cannot list the folder"));
        assert_int_equal(s->site[r].trainer.incarnation, 0);
    }
    assert_non_null(strstr(s->site[0].reason, "rank 1: "));
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, sites_setup, sites_teardown)
    const struct CMUnitTest tests[] = {
        FACT(of_two_of_a_step_that_of_the_later_start_counts),
        FACT(a_newer_step_of_an_earlier_start_is_passed_over),
        FACT(what_somebody_has_put_back_counts),
        FACT(a_start_that_saved_nothing_does_not_count),
        FACT(where_nothing_tells_which_is_later_all_are_refused),
        FACT(without_numbers_the_newest_step_counts),
        FACT(a_later_start_counts_though_its_step_is_refused),
        FACT(before_a_refused_step_alone_a_good_one_of_an_earlier_start_is_taken),
        FACT(of_many_steps_that_are_set_aside_each_is_told),
        FACT(what_lies_below_many_steps_is_compared_too),
        FACT(a_good_step_below_many_refused_ones_is_taken),
        FACT(that_sites_have_different_runs_is_told),
        FACT(where_good_ones_turn_out_damaged_refused_ones_are_taken),
        FACT(a_step_that_was_named_and_is_damaged_everywhere_is_refused),
        FACT(what_is_named_to_rank_0_alone_counts_for_all),
        FACT(where_nothing_is_whole_the_start_is_refused),
        FACT(what_the_disk_fails_to_read_once_is_not_damaged),
        FACT(why_a_copy_did_not_come_is_told_by_all),
        FACT(a_copy_that_its_disk_does_not_give_is_damage),
        FACT(no_older_step_is_taken_where_a_disk_has_no_room_for_a_whole_copy),
        FACT(a_start_counts_one_more_than_any_folder_has_seen),
        FACT(the_last_start_is_known_by_what_any_folder_has_seen),
        FACT(a_number_that_somebody_made_up_does_not_end_starts),
        FACT(a_start_counts_one_more_than_its_checkpoint),
        FACT(without_folders_of_their_own_there_is_no_number),
        FACT(with_snapshots_in_memory_starts_are_counted_too),
        FACT(a_folder_that_takes_no_number_ends_the_start_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
