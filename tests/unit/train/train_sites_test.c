/* train_sites_test.c - two sites with folders of their own find the checkpoint to go on from, and count their
 * starts: two ranks as threads, each the only one of its site, which tell each other by a table between them. */
#include <unit/checkpoint/small_state.h>

#include <pthread.h>
#include <string.h>

#include <checkpoint/incarnation.h>
#include <train/train_sites.h>

enum { SITES = 2, ROOM = 64 << 10 };
#define RUN "00112233445566778899aabbccddeeff"
#define OTHER "ffeeddccbbaa99887766554433221100"

/* What the gathers of both go through. */
typedef struct table {
    pthread_barrier_t turn;
    char said[SITES][ROOM];
} table_t;

typedef struct site {
    char folder[96];
    job_t job;
    train_how_t how;
    train_ranks_t ranks;
    world_t *world;
    trainer_t trainer;
    lh_status_t status;
    char reason[512];
} site_t;

typedef struct sites {
    scratch_t *scratch;
    site_t *site; /* [SITES] */
} sites_t;

static table_t table;

static lh_status_t table_gather(void *context, const void *mine, size_t bytes, void *all)
{
    const train_ranks_t *own = context;
    if (bytes > ROOM) return fail(LH_INVALID, "%zu bytes", bytes);
    memcpy(table.said[own->rank], mine, bytes);
    (void)pthread_barrier_wait(&table.turn);
    for (uint32_t r = 0; r < SITES; r++)
        memcpy((char *)all + r * bytes, table.said[r], bytes);
    (void)pthread_barrier_wait(&table.turn);
    return LH_OK;
}

/* Two of one step have the same manifest where all of this is the same. incarnation 0: it says none. */
static void save(const site_t *s, uint64_t step, const char *run, uint32_t incarnation,
                 uint64_t seed)
{
    float values[SMALL_MOST] = {0};
    const void *data[SMALL_TENSORS] = {values, values, values, values};
    const checkpoint_scalar_t scalar = {MANIFEST_INCARNATION, incarnation};
    const checkpoint_meta_t meta = {.run = run,
                                    .step = step,
                                    .seed = seed,
                                    .scalars = &scalar,
                                    .scalar_count = incarnation > 0};
    commit_t *c;
    assert_int_equal(commit_begin(s->folder, &meta, "", &c), LH_OK);
    assert_int_equal(commit_write_all(c, 0, small_tensors, data, SMALL_TENSORS, 0), LH_OK);
    assert_int_equal(commit_finish(c, NULL, NULL), LH_OK);
}

/* A failure's sentence is its thread's. */
static void *site_note(site_t *s, lh_status_t status)
{
    s->status = status;
    (void)snprintf(s->reason, sizeof(s->reason), "%s", status == LH_OK ? "" : fail_reason());
    return NULL;
}

static void *find(void *context)
{
    site_t *s = context;
    return site_note(s, train_sites_find(&s->trainer, LH_OK));
}

static void *count_start(void *context)
{
    site_t *s = context;
    return site_note(s, train_sites_incarnation(&s->trainer));
}

static void in_all(sites_t *s, void *(*body)(void *context))
{
    pthread_t threads[SITES];
    for (uint32_t r = 0; r < SITES; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, body, &s->site[r]), 0);
    for (uint32_t r = 0; r < SITES; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
}

static void forget_found(site_t *s)
{
    checkpoint_close(s->trainer.resumed);
    s->trainer.resumed = NULL;
    train_sites_close(&s->trainer);
}

static void find_all(sites_t *s)
{
    for (uint32_t r = 0; r < SITES; r++)
        forget_found(&s->site[r]);
    in_all(s, find);
}

/* Both go on from the one with this seed. */
static void check_found(sites_t *s, uint64_t step, uint64_t seed)
{
    find_all(s);
    for (uint32_t r = 0; r < SITES; r++) {
        assert_string_equal(s->site[r].reason, "");
        assert_int_equal(s->site[r].status, LH_OK);
        assert_non_null(s->site[r].trainer.resumed);
        assert_int_equal(s->site[r].trainer.resumed->manifest->meta.step, step);
        assert_int_equal(s->site[r].trainer.resumed->manifest->meta.seed, seed);
    }
}

static void check_refused(sites_t *s, uint64_t step)
{
    char sentence[80];
    (void)snprintf(sentence, sizeof(sentence), "sites have different checkpoints of step %llu, ",
                   (unsigned long long)step);
    find_all(s);
    for (uint32_t r = 0; r < SITES; r++) {
        assert_int_equal(s->site[r].status, LH_MISMATCH);
        assert_non_null(strstr(s->site[r].reason, sentence));
    }
}

/* What was saved does not stay for the next case. */
static void empty(sites_t *s)
{
    for (uint32_t r = 0; r < SITES; r++) {
        forget_found(&s->site[r]);
        assert_int_equal(folder_remove(s->site[r].folder), LH_OK);
    }
}

/* Step 20 was saved in one site alone, the other went on from 10 and made it again. */
static void of_two_of_a_step_that_of_the_later_start_counts(void **state)
{
    sites_t *s = *state;
    for (uint32_t later = 0; later < SITES; later++) {
        for (uint32_t r = 0; r < SITES; r++)
            save(&s->site[r], 10, RUN, 1, 10);
        save(&s->site[1 - later], 20, RUN, 1, 20);
        save(&s->site[later], 20, RUN, 2, 21);
        check_found(s, 20, 21);
        empty(s);
    }
}

static void a_newer_step_of_an_earlier_start_is_passed_over(void **state)
{
    sites_t *s = *state;
    for (uint32_t later = 0; later < SITES; later++) {
        for (uint32_t r = 0; r < SITES; r++)
            save(&s->site[r], 10, RUN, 3, 10);
        for (uint64_t step = 20; step <= 60; step += 20)
            save(&s->site[1 - later], step, RUN, 3, step);
        save(&s->site[later], 20, RUN, 5, 21);
        save(&s->site[later], 30, RUN, 5, 31);
        check_found(s, 30, 31);
        empty(s);
    }
}

/* All sites had 20 of the later start, so nothing newer was left: a person has renamed what was set aside. */
static void what_somebody_has_put_back_counts(void **state)
{
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++)
        save(&s->site[r], 20, RUN, 2, 21);
    save(&s->site[0], 40, RUN, 1, 40);
    check_found(s, 40, 40);
}

/* Nobody has made anything since. */
static void a_start_that_saved_nothing_does_not_count(void **state)
{
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++)
        save(&s->site[r], 10, RUN, 1, 10);
    save(&s->site[1], 20, RUN, 1, 20);
    check_found(s, 20, 20);
}

static void where_nothing_tells_which_is_later_all_are_refused(void **state)
{
    sites_t *s = *state;
    static const struct {
        const char *run;
        uint32_t here, there; /* incarnations of step 20 */
    } cases[] = {{RUN, 2, 2}, {RUN, 0, 0}, {RUN, 2, 0}, {RUN, 0, 2}, {OTHER, 1, 2}, {OTHER, 2, 1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        save(&s->site[0], 20, RUN, cases[i].here, 20);
        save(&s->site[1], 20, cases[i].run, cases[i].there, 21);
        check_refused(s, 20);
        empty(s);
    }
}

/* Checkpoints of a version that wrote no number. */
static void without_numbers_the_newest_step_counts(void **state)
{
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++)
        save(&s->site[r], 10, RUN, 0, 10);
    save(&s->site[0], 20, RUN, 4, 20);
    save(&s->site[1], 30, RUN, 0, 30);
    check_found(s, 30, 30);
}

/* 0: the start needs none. */
static void check_counted(sites_t *s, uint64_t number)
{
    in_all(s, count_start);
    for (uint32_t r = 0; r < SITES; r++) {
        incarnation_t found;
        assert_string_equal(s->site[r].reason, "");
        assert_int_equal(s->site[r].status, LH_OK);
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
        save(&s->site[r], 10, RUN, 9, 10);
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

/* Savers are forked while there is one thread. */
static void open_site(sites_t *all, uint32_t rank)
{
    static const char *const names[SITES] = {"tokyo", "osaka"};
    site_t *s = &all->site[rank];
    (void)snprintf(s->folder, sizeof(s->folder), "%s/%s", all->scratch->folder, names[rank]);
    s->job.checkpoint.folder = s->folder;
    s->job.checkpoint.apart = true;
    assert_int_equal(world_new(rank, SITES, &s->world), LH_OK);
    for (uint32_t r = 0; r < SITES; r++) {
        (void)snprintf(s->world->ranks[r].host, WORLD_HOST_NAME, "%s", names[r]);
        (void)snprintf(s->world->ranks[r].site_name, WORLD_SITE_NAME, "%s", names[r]);
    }
    world_number(s->world);
    s->ranks = (train_ranks_t){
        .rank = rank, .size = SITES, .context = &s->ranks, .gather = table_gather};
    s->how = (train_how_t){.job = &s->job, .world = s->world, .resume = true};
    s->trainer = (trainer_t){.how = &s->how, .job = &s->job, .run = RUN, .below = UINT64_MAX};
    assert_int_equal(train_agree_new(&s->ranks, &s->trainer.agree), LH_OK);
    const writer_how_t how = {.folder = s->folder,
                              .rank = rank,
                              .ranks = SITES,
                              .apart = true,
                              .leads = true,
                              .memory = true,
                              .memory_fd = -1};
    assert_int_equal(writer_start(&how, &s->trainer.writer), LH_OK);
}

static int sites_setup(void **state)
{
    void *scratch = NULL;
    sites_t *s = calloc(1, sizeof(*s));
    if (s == NULL || scratch_setup(&scratch) != 0) return -1;
    s->scratch = scratch;
    s->site = calloc(SITES, sizeof(*s->site));
    if (s->site == NULL || pthread_barrier_init(&table.turn, NULL, SITES) != 0) return -1;
    for (uint32_t r = 0; r < SITES; r++)
        open_site(s, r);
    *state = s;
    return 0;
}

static int sites_teardown(void **state)
{
    sites_t *s = *state;
    for (uint32_t r = 0; r < SITES; r++) {
        forget_found(&s->site[r]);
        writer_close(s->site[r].trainer.writer);
        train_agree_free(&s->site[r].trainer.agree);
        world_free(s->site[r].world);
    }
    (void)pthread_barrier_destroy(&table.turn);
    void *scratch = s->scratch;
    free(s->site);
    free(s);
    return scratch_teardown(&scratch);
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
        FACT(a_start_counts_one_more_than_any_folder_has_seen),
        FACT(a_number_that_somebody_made_up_does_not_end_starts),
        FACT(a_start_counts_one_more_than_its_checkpoint),
        FACT(without_folders_of_their_own_there_is_no_number),
        FACT(a_folder_that_takes_no_number_ends_the_start_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
