/* members_test.c - layouts of a job's hosts: what ranks they give, which comes next, and that two groups
 * of machines that can't see each other never both go on. */
#include <unit/base/scratch_files.h>

#include <config/job_load.h>
#include <config/members.h>

#include <base/memory.h>

#include <torture.h>

enum { PLACES = 7, MACHINES = 8, WITNESS = 7, HOSTS = 5 };

/* tokyo has a spare that is too small for t2. Machines: t1 t2 o1 o2 k1, then ts os, then a witness. */
static char at_o1[] = "10.0.0.3";
static job_host_t tokyo[] = {{"t1", 1, 0, NULL}, {"t2", 2, 1, NULL}},
                  osaka[] = {{"o1", 2, 3, at_o1}, {"o2", 2, 5, NULL}},
                  kyoto[] = {{"k1", 3, 7, NULL}}, tokyo_spare[] = {{"ts", 1, 0, NULL}},
                  osaka_spare[] = {{"os", 4, 0, NULL}};
static job_site_t sites[] = {
    {.name = "tokyo", .hosts = tokyo, .host_count = 2, .spares = tokyo_spare, .spare_count = 1},
    {.name = "osaka", .hosts = osaka, .host_count = 2, .spares = osaka_spare, .spare_count = 1},
    {.name = "kyoto", .hosts = kyoto, .host_count = 1},
};

static job_t witnessed_job(uint32_t go_on_with, char *prefer, char *witness)
{
    return (job_t){.path = "a.ini",
                   .sites = sites,
                   .site_count = 3,
                   .site_ranks = 10,
                   .all_sites = sites,
                   .all_site_count = 3,
                   .launch = {.go_on_with = go_on_with, .prefer = prefer, .witness = witness}};
}

static job_t new_job(uint32_t go_on_with, char *prefer)
{
    return witnessed_job(go_on_with, prefer, NULL);
}

static void a_layout_gives_ranks_to_machines(void **state)
{
    static const struct {
        const char *layout;
        uint32_t ranks, machine, of, first;
    } rows[] = {
        {".....", 10, 0, 1, 0}, {".....", 10, 4, 3, 7}, {".....", 10, 6, 0, 0},
        {"-....", 9, 1, 2, 0},  {"-....", 9, 0, 0, 0},  {"a....", 10, 5, 1, 0},
        {"..a..", 10, 6, 2, 3}, {"..a..", 10, 2, 0, 0}, {"--.-.", 5, 4, 3, 2},
    };
    const job_t job = new_job(GO_ON_RANKS, NULL);
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint32_t first;
        assert_true(members_are(&job, rows[i].layout));
        assert_int_equal(members_ranks(&job, rows[i].layout), rows[i].ranks);
        assert_int_equal(members_ranks_of(&job, rows[i].layout, rows[i].machine, &first),
                         rows[i].of);
        if (rows[i].of > 0) assert_int_equal(first, rows[i].first);
    }
    static const char *const none[] = {"",      "....",  "......", "-----",
                                       "b....", "....a", "..aa.",  "..A.."};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        assert_false(members_are(&job, none[i]));
    assert_int_equal(members_find(&job, "osaka", "os"), 6);
    assert_int_equal(members_find(&job, "tokyo", "os"), MEMBERS_NONE);
}

static void a_machine_has_a_name_with_a_domain_or_without(void **state)
{
    static const struct {
        const char *one, *other;
        bool same;
    } rows[] = {{"t1", "t1", true},          {"t1", "t1.lan", true},   {"t1.lan", "t1.lan", true},
                {"t1.lan", "t1.wan", false}, {"t1", "t11.lan", false}, {"t1", "t2", false}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(members_same_host(rows[i].one, rows[i].other), rows[i].same);
        assert_int_equal(members_same_host(rows[i].other, rows[i].one), rows[i].same);
    }
}

/* Rank 0 is on the first machine of a layout, and listens there. */
static void a_layout_says_who_leads(void **state)
{
    static const struct {
        const char *layout, *address;
        uint32_t machine;
    } rows[] = {{".....", "t.example", 0}, {"a....", "ts", 5}, {"-....", "t2", 1},
                {"--...", "10.0.0.3", 2},  {"--a--", "os", 6}, {"----.", "k1", 4}};
    static char address[] = "t.example", witness[] = "w1";
    job_t job = witnessed_job(GO_ON_RANKS, NULL, witness);
    machine_t at;
    (void)state;
    job.launch.address = address;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const uint32_t leader = members_leader(&job, rows[i].layout);
        assert_int_equal(leader, rows[i].machine);
        members_machine(&job, leader, &at);
        assert_string_equal(at.address, rows[i].address);
    }
    assert_int_equal(members_places(&job), PLACES);
    assert_int_equal(members_machines(&job), MACHINES);
    assert_int_equal(members_witness(&job), WITNESS);
    assert_int_equal(members_find(&job, "", "w1"), WITNESS);
    members_machine(&job, WITNESS, &at);
    assert_string_equal(at.host, "w1");
    assert_null(at.address);
    assert_int_equal(at.ranks, 0);
}

/* The same ranks as a job whose INI has those hosts and no others. */
static void a_job_is_narrowed_to_its_layout(void **state)
{
    job_t job = new_job(GO_ON_RANKS, NULL);
    const job_site_t *site;
    const job_host_t *host;
    (void)state;
    assert_int_equal(members_narrow(&job, "-.a.-"), LH_OK);
    assert_int_equal(job.site_count, 2);
    assert_int_equal(job_ranks(&job), 6);
    static const char *const places[] = {"tokyo/t2", "tokyo/t2", "osaka/os",
                                         "osaka/os", "osaka/o2", "osaka/o2"};
    for (uint32_t r = 0; r < 6; r++) {
        char place[64];
        job_rank_place(&job, r, &site, &host);
        (void)snprintf(place, sizeof(place), "%s/%s", site->name, host->name);
        assert_string_equal(place, places[r]);
    }
    for (uint32_t i = 0; i < job.site_count; i++)
        mem_free(job.sites[i].hosts);
    mem_free(job.sites);
    job = new_job(GO_ON_RANKS, NULL);
    assert_int_equal(members_narrow(&job, "......"), LH_INVALID);
    assert_string_equal(fail_reason(), "'......' is no layout of the hosts of a.ini");
}

static void who_is_there_decides_on_the_next_layout(void **state)
{
    static const struct {
        uint32_t go_on_with;
        const char *layout, *here, *next; /* here: x for each machine that is; next NULL: none */
    } rows[] = {
        {GO_ON_NONE, ".....", "xxxxx  ", "....."},  {GO_ON_NONE, ".....", "xxxx   ", NULL},
        {GO_ON_NONE, ".....", "xx xx x", "..a.."},  {GO_ON_NONE, ".....", "xx  x x", NULL},
        {GO_ON_NONE, ".....", " xxxxx ", "a...."},  {GO_ON_NONE, ".....", "x xxxx ", NULL},
        {GO_ON_NONE, "..a..", "xxxxx x", "..a.."},  {GO_ON_NONE, "..a..", "xxxxx  ", "....."},
        {GO_ON_RANKS, ".....", "xxxx   ", "....-"}, {GO_ON_RANKS, ".....", "x xx   ", ".-..-"},
        {GO_ON_RANKS, ".....", "xx  x x", "..a-."}, {GO_ON_RANKS, ".-..-", "xxxxx  ", "....."},
        {GO_ON_RANKS, ".....", "     x ", "a----"}, {GO_ON_RANKS, ".....", "       ", NULL},
        {GO_ON_SITES, ".....", "xxx x  ", "..--."}, {GO_ON_SITES, "..--.", "xxx x  ", "..--."},
        {GO_ON_SITES, "..--.", "xxxxx  ", "....."}, {GO_ON_SITES, ".....", "x x    ", NULL},
        {GO_ON_SITES, ".....", "xx x   ", "..---"}, {GO_ON_SITES, ".....", "xx x  x", "..a.-"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const job_t job = new_job(rows[i].go_on_with, NULL);
        bool here[MACHINES] = {false};
        char next[MEMBERS_TEXT];
        for (uint32_t m = 0; m < PLACES; m++)
            here[m] = rows[i].here[m] == 'x';
        const bool found = members_next(&job, rows[i].layout, here, next);
        if (found != (rows[i].next != NULL)) FAIL_TEST("row %zu: %d\n", i, found);
        if (found) assert_string_equal(next, rows[i].next);
    }
}

/* Every pair of groups without a machine in common, of every layout: never both; where a site that is
 * there is preferred, or a witness sees one of them, of two halves exactly one. */
static void of_two_groups_one_may_at_most(void **state)
{
    static char witness[] = "w1";
    static const char *const layouts[] = {".....", "-....", "..a..", "-.--.", "a---.", "--..-"};
    static char *const prefers[] = {NULL, "tokyo", "osaka", "kyoto"};
    (void)state;
    for (size_t p = 0; p < 8; p++)
        for (size_t l = 0; l < sizeof(layouts) / sizeof(layouts[0]); l++)
            for (uint32_t mask = 0; mask < 1u << MACHINES; mask++) {
                char *prefer = prefers[p % 4];
                const bool seen = p >= 4;
                const job_t job = witnessed_job(GO_ON_RANKS, prefer, seen ? witness : NULL);
                bool one[MACHINES], other[MACHINES];
                uint32_t mine = 0, all = 0, first;
                for (uint32_t m = 0; m < MACHINES; m++) {
                    const uint32_t ranks = members_ranks_of(&job, layouts[l], m, &first);
                    one[m] = (mask >> m & 1) != 0;
                    other[m] = !one[m];
                    mine += one[m] ? ranks : 0;
                    all += ranks;
                }
                const bool a = members_may(&job, layouts[l], one);
                const bool b = members_may(&job, layouts[l], other);
                assert_false(a && b);
                if (2 * mine != all) assert_int_equal(a, 2 * mine > all);
                if (prefer == NULL && !seen && 2 * mine == all) assert_false(a || b);
                if ((prefer != NULL && l == 0) || seen) assert_true(a || b);
            }
}

/* ---- partitions ------------------------------------------------------------------------------ */

/* A launcher: what it remembers, and the epoch in which its ranks run; 0: they do not. */
typedef struct node {
    char layout[MEMBERS_TEXT], met[MEMBERS_TEXT], tried[MEMBERS_TRIED];
    uint32_t epoch, met_epoch, runs, part;
    uint32_t vain; /* so often it was a spare that led, and others did not come */
    bool down;     /* the machine is lost, until the next cut */
} node_t;

typedef struct net {
    job_t job;
    node_t nodes[MACHINES];
    uint32_t parts, loss; /* messages that are lost, of 100 */
    uint64_t random;
    bool forgets;    /* launchers are started anew, and have no votes any more */
    uint32_t newest; /* epoch that has run */
    char ran[MEMBERS_TEXT];
    char met[MEMBERS_TEXT]; /* the layout of the last meeting, whoever knows; at first "" */
    uint32_t changes;       /* of the layout that runs */
    uint32_t led;           /* meetings with rank 0 elsewhere than on the job's first machine */
    uint32_t again;         /* decisions for the layout at hand */
    uint32_t vain;          /* times that a spare led and others did not come */
} net_t;

static uint32_t draw(net_t *n, uint32_t below)
{
    n->random = n->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(n->random >> 33) % below;
}

static bool arrives(net_t *n)
{
    return draw(n, 100) >= n->loss;
}

static void forget(net_t *n, uint32_t m)
{
    n->nodes[m] = (node_t){.epoch = 1, .part = n->nodes[m].part, .down = n->nodes[m].down};
    members_all(&n->job, n->nodes[m].layout);
}

static bool takes_part(const net_t *n, const char *layout, uint32_t m)
{
    uint32_t first;
    return members_ranks_of(&n->job, layout, m, &first) > 0;
}

static bool is_zero(const net_t *n, uint32_t m)
{
    return members_leader(&n->job, n->nodes[m].layout) == m;
}

/* Its ranks wait for rank 0, which is elsewhere. */
static bool elects(const net_t *n, uint32_t m)
{
    return !is_zero(n, m) && takes_part(n, n->nodes[m].layout, m);
}

/* Whether a group works: only then can it save, as each of its ranks has a part in that. */
static bool works(const net_t *n, const node_t *of)
{
    for (uint32_t m = 0; m < MACHINES && of->runs > 0; m++)
        if (takes_part(n, of->layout, m) &&
            (n->nodes[m].runs != of->runs || n->nodes[m].part != of->part || n->nodes[m].down))
            return false;
    return of->runs > 0;
}

/* Ranks end where a member of theirs is out of sight, and meet in the next epoch. */
static void end_broken(net_t *n)
{
    bool broken[MACHINES];
    for (uint32_t m = 0; m < MACHINES; m++)
        broken[m] = n->nodes[m].runs > 0 && !works(n, &n->nodes[m]);
    for (uint32_t m = 0; m < MACHINES; m++) {
        if (!broken[m]) continue;
        n->nodes[m].epoch = n->nodes[m].runs + 1;
        n->nodes[m].runs = 0;
    }
}

static void become(node_t *node, uint32_t epoch, const char *layout)
{
    node->runs = 0;
    if (epoch > node->epoch) node->epoch = epoch;
    (void)snprintf(node->layout, sizeof(node->layout), "%s", layout);
    if (members_try(node->tried, node->epoch, layout)) return;
    node->met_epoch = 0;
    node->tried[0] = '\0';
}

static void meet(node_t *node, uint32_t epoch)
{
    node->runs = node->met_epoch = epoch;
    memcpy(node->met, node->layout, sizeof(node->met));
    node->tried[0] = '\0';
}

static bool sees(const net_t *n, uint32_t one, uint32_t other)
{
    const node_t *a = &n->nodes[one], *b = &n->nodes[other];
    return a->part == b->part && !a->down && !b->down;
}

/* Who has come to a leader, by hellos that arrive: ranks of its layout, and heralds. Who elects has heralds
 * too that look for another leader, or have forgotten their ranks. */
static void look(net_t *n, uint32_t leader, member_record_t records[MACHINES], bool here[MACHINES])
{
    node_t *lead = &n->nodes[leader];
    for (uint32_t m = 0; m < MACHINES; m++) {
        node_t *at = &n->nodes[m];
        here[m] = m < members_machines(&n->job) && sees(n, m, leader) && at->runs == 0 &&
                  (m == leader || arrives(n));
        if (here[m] && strcmp(at->layout, lead->layout) != 0) {
            /* One that has ranks in the leader's layout, or believes to have some, is told of that first;
             * one that knows of a later layout counts once the leader has that (learns). */
            const bool told = takes_part(n, lead->layout, m) || takes_part(n, at->layout, m);
            const bool later = at->epoch > lead->epoch;
            here[m] = !later && (!told || (elects(n, leader) && draw(n, 2) == 0));
            if (!here[m] && !later && arrives(n)) become(at, lead->epoch, lead->layout);
        }
        records[m] = (member_record_t){here[m], at->met_epoch, at->met, at->tried, at->layout};
    }
}

/* A machine without ranks that has a vote is at the leader's port, then or when it comes there later. */
static void tell_voter(net_t *n, uint32_t leader, uint32_t voter, uint32_t epoch)
{
    node_t *w = &n->nodes[voter];
    const char *layout = n->nodes[leader].layout;
    const bool other = w->tried[0] != '\0' && strcmp(w->layout, layout) != 0;
    if (takes_part(n, layout, voter) || (voter != WITNESS && w->met_epoch == 0) || w->runs != 0 ||
        !sees(n, voter, leader) || !arrives(n) || epoch < w->epoch || (epoch == w->epoch && other))
        return;
    memmove(w->layout, layout, sizeof(w->layout));
    meet(w, epoch);
    w->epoch = epoch + 1;
    w->runs = 0;
}

/* Who has not forgotten decides nothing, and meets in nothing, without most of the last meeting. It takes
 * machines that are to have ranks, and others that are for it, who have been told before it meets; or all
 * that there are. */
static void check_most(const net_t *n, const bool *here, const char *layout, bool meets)
{
    bool to[MACHINES], all = true;
    for (uint32_t m = 0; m < PLACES; m++)
        all = all && here[m];
    for (uint32_t m = 0; m < MACHINES; m++)
        to[m] = here[m] &&
                (!meets || takes_part(n, layout, m) || strcmp(n->nodes[m].layout, layout) == 0);
    if (!n->forgets && n->met[0] != '\0' && !all && !members_may(&n->job, n->met, to))
        FAIL_TEST("%s is decided on without most of %s, which has met\n", layout, n->met);
}

/* All of the leader's layout are there: they meet if they may, though some may not hear that they
 * have. Who has ranks by another layout is told first. */
static bool try_to_meet(net_t *n, uint32_t leader, const member_record_t *records, const bool *here)
{
    const node_t *lead = &n->nodes[leader];
    char all[MEMBERS_TEXT], layout[MEMBERS_TEXT];
    uint32_t epoch = 0;
    bool same = true;
    memcpy(layout, lead->layout, sizeof(layout));
    for (uint32_t m = 0; m < MACHINES; m++) {
        const node_t *at = &n->nodes[m];
        const bool member = takes_part(n, lead->layout, m);
        const bool other = strcmp(at->layout, lead->layout) != 0;
        if (other && here[m] && (member || takes_part(n, at->layout, m))) return false;
        if (!member) continue;
        if (!here[m]) return false;
        if (at->epoch > epoch) epoch = at->epoch;
    }
    for (uint32_t m = 0; m < MACHINES; m++)
        if (takes_part(n, lead->layout, m) && n->nodes[m].epoch > 1)
            same = same && n->nodes[m].epoch == epoch;
    for (uint32_t m = 0; m < MACHINES && !same; m++)
        if (takes_part(n, lead->layout, m) && arrives(n)) become(&n->nodes[m], epoch, layout);
    if (!same) return true; /* they come again */
    members_all(&n->job, all);
    if (!(members_newest(&n->job, records) == 0 && strcmp(all, lead->layout) == 0) &&
        !members_meets(&n->job, records, lead->layout)) {
        const bool may = members_quorum(&n->job, records, lead->layout);
        for (uint32_t m = 0; m < MACHINES && may; m++)
            if (here[m] && !takes_part(n, layout, m) && arrives(n))
                become(&n->nodes[m], epoch, layout);
        return may; /* they come again */
    }
    check_most(n, here, lead->layout, true);
    memcpy(n->met, lead->layout, sizeof(n->met));
    for (uint32_t m = 0; m < MACHINES; m++)
        if (takes_part(n, lead->layout, m) && (m == leader || arrives(n)))
            meet(&n->nodes[m], epoch);
    for (uint32_t m = 0; m < members_machines(&n->job); m++)
        tell_voter(n, leader, m, epoch);
    return true;
}

/* The deadline: those that have come decide, as control_members.c does. Any machine may lead here. Who
 * elects decides for the layout at hand as well, once rank 0's machine has come. */
static void try_to_go_on(net_t *n, uint32_t leader, const member_record_t *records,
                         const bool *here)
{
    const node_t *lead = &n->nodes[leader];
    char next[MEMBERS_TEXT];
    uint32_t epoch = 0;
    for (uint32_t m = 0; m < MACHINES; m++)
        if (here[m] && n->nodes[m].epoch > epoch) epoch = n->nodes[m].epoch;
    if (!members_next(&n->job, lead->layout, here, next)) return;
    const bool same = strcmp(next, lead->layout) == 0;
    if ((same && !elects(n, leader)) || !members_quorum(&n->job, records, next)) return;
    check_most(n, here, next, false);
    n->again += same;
    for (uint32_t m = 0; m < MACHINES; m++)
        if (here[m] && (m == leader || arrives(n))) become(&n->nodes[m], epoch + 1, next);
}

/* A spare without a vote leads, and not all come: it is a spare as before, and at the third time its launcher
 * ends until it is started again. As starter_is_spare_again, though not only where no vote comes. */
static bool leads_in_vain(net_t *n, uint32_t leader, const bool *here)
{
    enum { VAIN_MOST = 3 };
    node_t *lead = &n->nodes[leader];
    bool lacks = false;
    if (leader < HOSTS || lead->met_epoch != 0 || !is_zero(n, leader)) return false;
    for (uint32_t m = 0; m < MACHINES; m++)
        lacks = lacks || (takes_part(n, lead->layout, m) && !here[m]);
    if (!lacks || draw(n, 2) == 0) return false;
    const uint32_t vain = lead->vain + 1;
    n->vain++;
    if (vain == VAIN_MOST)
        lead->down = true;
    else
        forget(n, leader);
    lead->vain = vain % VAIN_MOST;
    return true;
}

/* A leader that hears of a later layout than its own takes that. */
static bool learns(net_t *n, uint32_t leader)
{
    node_t *lead = &n->nodes[leader];
    for (uint32_t m = 0; m < MACHINES; m++) {
        const node_t *at = &n->nodes[m];
        if (!sees(n, m, leader) || at->runs > 0 || at->epoch <= lead->epoch ||
            strcmp(at->layout, lead->layout) == 0 || !arrives(n))
            continue;
        become(lead, at->epoch, at->layout);
        return true;
    }
    return false;
}

static void check_running(net_t *n)
{
    const node_t *found = NULL;
    for (uint32_t m = 0; m < MACHINES; m++) {
        const node_t *at = &n->nodes[m];
        if (!takes_part(n, at->layout, m) || !works(n, at)) continue;
        const bool two = found != NULL &&
                         (found->runs != at->runs || strcmp(found->layout, at->layout) != 0);
        if (two)
            FAIL_TEST("%s of epoch %u and %s of epoch %u both go on\n", found->layout, found->runs,
                      at->layout, at->runs);
        found = at;
    }
    if (found == NULL) return;
    /* Nobody goes on from where others have gone on since; but who has forgotten may. */
    if (!n->forgets && (found->runs < n->newest ||
                        (found->runs == n->newest && strcmp(found->layout, n->ran) != 0)))
        FAIL_TEST("%s of epoch %u goes on after %s of epoch %u\n", found->layout, found->runs,
                  n->ran, n->newest);
    n->changes += n->newest > 0 && strcmp(found->layout, n->ran) != 0;
    n->led += n->newest != found->runs && members_leader(&n->job, found->layout) != 0;
    n->newest = found->runs;
    memcpy(n->ran, found->layout, sizeof(n->ran));
}

/* As launchers do it: rank 0's machine, where somebody who waits sees it; else the first that is seen. At
 * times another one, as two may take themselves for it. */
static uint32_t choose_leader(net_t *n)
{
    const uint32_t who = draw(n, PLACES);
    const uint32_t zero = members_leader(&n->job, n->nodes[who].layout);
    uint32_t first = who;
    if (draw(n, 4) == 0) return who;
    if (sees(n, who, zero) && n->nodes[zero].runs == 0) return zero;
    for (uint32_t m = PLACES; m-- > 0;)
        if (sees(n, who, m) && n->nodes[m].runs == 0 && takes_part(n, n->nodes[m].layout, m))
            first = m;
    return first;
}

static void settle(net_t *n, uint32_t rounds)
{
    for (uint32_t i = 0; i < rounds; i++) {
        member_record_t records[MACHINES];
        bool here[MACHINES];
        end_broken(n);
        const uint32_t leader = choose_leader(n);
        if (n->nodes[leader].runs == 0 && !n->nodes[leader].down && !learns(n, leader)) {
            look(n, leader, records, here);
            const bool met = takes_part(n, n->nodes[leader].layout, leader) &&
                             try_to_meet(n, leader, records, here);
            if (!met && !leads_in_vain(n, leader, here)) try_to_go_on(n, leader, records, here);
        }
        check_running(n);
    }
}

/* Random cuts into up to three parts, machines that are down meanwhile (rank 0's as often as another),
 * messages that are lost in any of the exchanges, spares that lead and to which not all come, and
 * launchers that are started anew, one at a time, and have forgotten all. */
static net_t play(uint64_t seed, uint32_t cuts, uint32_t *went_on)
{
    static char *const prefers[] = {NULL, "tokyo", "osaka", "kyoto"};
    static char witness[] = "w1";
    net_t n = {.random = seed, .loss = 10, .forgets = seed / 8 % 2 != 0};
    n.job = witnessed_job(seed % 2 ? GO_ON_RANKS : GO_ON_SITES, prefers[seed / 2 % 4],
                          seed / 16 % 2 != 0 ? witness : NULL);
    for (uint32_t m = 0; m < MACHINES; m++)
        forget(&n, m);
    settle(&n, 60);
    for (uint32_t c = 0; c < cuts; c++) {
        const uint32_t before = n.newest;
        const uint32_t parts = 1 + draw(&n, 3);
        for (uint32_t m = 0; m < MACHINES; m++) {
            n.nodes[m].part = draw(&n, parts);
            n.nodes[m].down = draw(&n, 8) == 0;
        }
        if (c % 2 == 0 && n.newest > 0) n.nodes[members_leader(&n.job, n.ran)].down = true;
        if (n.forgets && draw(&n, 8) == 0) forget(&n, draw(&n, MACHINES));
        settle(&n, 40);
        *went_on += n.newest > before && parts > 1;
    }
    return n;
}

static void halves_that_do_not_see_each_other_never_both_go_on(void **state)
{
    const uint32_t runs = torture_wanted() ? 2000 : 200;
    uint32_t changes = 0, went_on = 0, led = 0, again = 0, vain = 0;
    (void)state;
    for (uint32_t i = 0; i < runs; i++) {
        const net_t n = play(UINT64_C(20261126) + i, 20, &went_on);
        changes += n.changes;
        led += n.led;
        again += n.again;
        vain += n.vain;
    }
    print_message(
        "%u jobs with 20 random cuts each: %u went on while cut, in %u layouts; %u meetings "
        "were led by another machine than the first; %u decided for the layout at hand; %u "
        "times a spare led in vain\n",
        runs, went_on, changes, led, again, vain);
    assert_true(went_on > runs && changes > runs && led > runs);
    assert_true(again > 0 && vain > 0);
}

/* Two hosts, each a half: without prefer both wait; the one that the witness sees goes on, and the other
 * half does not, though it sees the witness later. */
static void a_tie_goes_to_whom_the_witness_sees(void **state)
{
    static job_host_t a[] = {{"a1", 1, 0, NULL}}, b[] = {{"b1", 1, 1, NULL}};
    static job_site_t two[] = {{.name = "a", .hosts = a, .host_count = 1},
                               {.name = "b", .hosts = b, .host_count = 1}};
    static char witness[] = "w1";
    job_t job = {.path = "a.ini",
                 .sites = two,
                 .site_count = 2,
                 .site_ranks = 2,
                 .all_sites = two,
                 .all_site_count = 2,
                 .launch = {.go_on_with = GO_ON_RANKS, .witness = witness}};
    member_record_t records[3] = {
        {true, 3, "..", "", ".."}, {false, 3, "..", "", ".."}, {false, 3, "..", "", ".."}};
    (void)state;
    assert_false(members_quorum(&job, records, ".-"));
    records[2].here = true;
    assert_true(members_quorum(&job, records, ".-"));
    assert_false(members_meets(&job, records, ".-")); /* it has not been told yet */
    records[2].layout = ".-";
    records[2].tried = "4:.-";
    assert_true(members_meets(&job, records, ".-"));
    records[0].here = false; /* the same witness comes to the other half */
    records[1].here = true;
    assert_false(members_quorum(&job, records, "-."));
    records[2] = (member_record_t){true, 0, "", "", ".."}; /* and one that remembers nothing */
    assert_false(members_quorum(&job, records, "-."));
    job.launch.witness = NULL;
    assert_false(members_quorum(&job, records, "-."));
}

/* Three hosts and two, one rank each, and a spare for each site. */
static job_t uneven_job(uint32_t go_on_with)
{
    static job_host_t t[] = {{"t1", 1, 0, NULL}, {"t2", 1, 1, NULL}, {"t3", 1, 2, NULL}},
                      o[] = {{"o1", 1, 3, NULL}, {"o2", 1, 4, NULL}};
    static job_site_t both[] = {
        {.name = "tokyo", .hosts = t, .host_count = 3, .spares = tokyo_spare, .spare_count = 1},
        {.name = "osaka", .hosts = o, .host_count = 2, .spares = osaka_spare, .spare_count = 1},
    };
    return (job_t){.path = "a.ini",
                   .sites = both,
                   .site_count = 2,
                   .site_ranks = 5,
                   .all_sites = both,
                   .all_site_count = 2,
                   .launch = {.go_on_with = go_on_with}};
}

/* t1 is lost, and its site goes as a whole: o1 and o2 are not most, but t2 and t3 stand with them. Once they
 * have been told of that, these are for nobody else. */
static void who_is_left_out_with_its_site_has_its_vote(void **state)
{
    const job_t job = uneven_job(GO_ON_SITES);
    const member_record_t met = {true, 3, ".....", "", "....."}, gone = {.here = false},
                          told = {true, 3, ".....", "4:---..", "---.."};
    const bool here[PLACES] = {false, true, true, true, true};
    const member_record_t all_but_one[PLACES] = {gone, met, met, met, met},
                          one_told[PLACES] = {gone, told, met, told, told},
                          none_told[PLACES] = {gone, met, met, told, told},
                          rest[PLACES] = {met, told, told};
    char next[MEMBERS_TEXT];
    (void)state;
    assert_true(members_next(&job, ".....", here, next));
    assert_string_equal(next, "---..");
    assert_true(members_quorum(&job, all_but_one, next));
    assert_false(members_meets(&job, none_told, next));
    assert_true(members_meets(&job, one_told, next));
    assert_false(members_quorum(&job, rest, "...--"));
}

/* Whichever host is lost, the others go on where they all see each other, whatever their sites are: who
 * comes to the first of them is told, and comes again. */
static void without_one_host_all_others_go_on(void **state)
{
    (void)state;
    for (uint32_t lost = 0; lost < HOSTS; lost++)
        for (uint32_t sites_go = 0; sites_go < 2; sites_go++) {
            net_t n = {.random = lost, .job = uneven_job(sites_go ? GO_ON_SITES : GO_ON_RANKS)};
            for (uint32_t m = 0; m < MACHINES; m++)
                forget(&n, m);
            settle(&n, 60);
            const uint32_t before = n.newest;
            assert_true(before > 0);
            /* spares, too, as one would take the ranks */
            n.nodes[lost].down = n.nodes[HOSTS].down = n.nodes[HOSTS + 1].down = true;
            settle(&n, 60);
            if (n.newest <= before) FAIL_TEST("nobody goes on without host %u\n", lost);
        }
}

/* L decides for L x z, w for w x z, both for epoch 6, and few hear of it. x and z come to L first: they meet,
 * and are cut off before they hear that. Then they meet with w, in epoch 6 as well. */
static void of_two_layouts_that_met_in_one_epoch_it_takes_both(void **state)
{
    static job_host_t hosts[] = {
        {"L", 1, 0, NULL}, {"w", 1, 1, NULL}, {"x", 1, 2, NULL}, {"z", 1, 3, NULL}};
    static job_site_t site = {.name = "tokyo", .hosts = hosts, .host_count = 4};
    const job_t job = {.path = "a.ini",
                       .sites = &site,
                       .site_count = 1,
                       .site_ranks = 4,
                       .all_sites = &site,
                       .all_site_count = 1,
                       .launch = {.go_on_with = GO_ON_RANKS}};
    const member_record_t alone = {true, 6, ".-..", "", ".-.."},
                          met = {true, 6, "-...", "", "-..."},
                          told = {true, 5, "....", "6:.-..,6:-...", "-..."}, gone = {.here = false};
    const member_record_t w_and_z[] = {gone, met, gone, met}, l_and_x[] = {alone, gone, met, gone},
                          l_and_x_told[] = {alone, gone, told, gone},
                          l_x_and_z[] = {alone, gone, told, told};
    (void)state;
    assert_true(members_quorum(&job, w_and_z, "-.-."));
    assert_false(members_quorum(&job, l_and_x, ".-.-"));
    assert_false(members_quorum(&job, l_and_x_told, ".-.-"));
    assert_true(members_quorum(&job, l_x_and_z, ".-.."));
}

/* ts led `a-.-.` in vain, having met in `a....` with all others. The rest of that layout may have met in
 * it by another way, and gone on: what ts promised then counts as long as its vote does. */
static void a_spare_that_forgets_what_it_tried_has_no_vote(void **state)
{
    static char tokyo_goes_on[] = "tokyo";
    enum { T2 = 1, O2 = 3, TS = 5 };
    const job_t job = new_job(GO_ON_RANKS, tokyo_goes_on);
    const member_record_t other = {true, 5, "a....", "", "a...."};
    member_record_t records[MACHINES] = {[T2] = other, [O2] = other};
    (void)state;
    records[TS] = (member_record_t){true, 5, "a....", "6:a-.-.", "a-.-."};
    assert_false(members_quorum(&job, records, "a.-.-"));
    records[TS].tried = ""; /* forgotten, and yet it votes: two would go on */
    assert_true(members_quorum(&job, records, "a.-.-"));
    records[TS] = (member_record_t){true, 0, "", "", "....."}; /* as it is */
    assert_false(members_quorum(&job, records, "a.-.-"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layout_gives_ranks_to_machines),
        cmocka_unit_test(a_machine_has_a_name_with_a_domain_or_without),
        cmocka_unit_test(a_layout_says_who_leads),
        cmocka_unit_test(a_job_is_narrowed_to_its_layout),
        cmocka_unit_test(who_is_there_decides_on_the_next_layout),
        cmocka_unit_test(of_two_groups_one_may_at_most),
        cmocka_unit_test(halves_that_do_not_see_each_other_never_both_go_on),
        cmocka_unit_test(a_tie_goes_to_whom_the_witness_sees),
        cmocka_unit_test(who_is_left_out_with_its_site_has_its_vote),
        cmocka_unit_test(without_one_host_all_others_go_on),
        cmocka_unit_test(of_two_layouts_that_met_in_one_epoch_it_takes_both),
        cmocka_unit_test(a_spare_that_forgets_what_it_tried_has_no_vote),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
