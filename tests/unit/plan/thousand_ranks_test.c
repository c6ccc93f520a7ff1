/* thousand_ranks_test.c - plans of a thousand ranks against sums that can be made by hand: what crosses each
 * border, and what ranks hold that were not planned themselves.
 *
 * With P parameters in BF16 and E(s) of them owned by the ranks of site s, a step sends from site a to
 * site b, where gradients cross as BF16,
 *
 *    zero1           sums 2 E(b), which b's ranks add; values 2 E(a), which a's ranks have updated
 *    zero3, a site   sums 2 P, as each of two sites has all parts from the other; no values
 *    zero3           sums 2 E(b) a micro-batch; values 2 E(a) once a pass, forward and backward
 *
 * E follows from the rule of shards.h: of u blocks of a parameter, member m of n has those from k u / n to
 * (k + 1) u / n, rounded down, with k = (m + parameter) mod n. */
#include <unit/plan/plan_kit.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/text.h>
#include <config/job_load.h>
#include <engine/engine.h>
#include <engine/weights.h>
#include <plan/step_plan.h>

enum { RANKS = 1000, MOST_SITES = 10, VOCAB = 16384, BLOCK = 4096 };

static const char ini[] = "[pipeline]\nname = large\nstages = train\n"
                          "[data]\ntrain = corpus\n"
                          "[model]\nplugin = llama\nvocab = 16384\nblocks = 2\nhidden = 512\n"
                          "ffn = 1536\nheads = 8\nmax_tokens = 16\n"
                          "[train]\nsequence = 16\nbatch = 1000\nmicro_batch = 1\nsteps = 1\n"
                          "precision = bf16\n"
                          "[comm]\nborder = bf16\n"
                          "[device]\nplugin = cpu\nthreads = 1\n";

/* Sites of equally many ranks, five on a machine. */
static job_t *job_of(uint32_t sites, const char *plugin, const char *cut)
{
    text_t text = {0};
    job_t *job;
    text_printf(&text,
                "%s[optimizer]\nplugin = %s\ncut = %s\nrule = rules:adamw\n"
                "learning_rate = 1e-3\n",
                ini, plugin, cut);
    for (uint32_t s = 0; s < sites; s++) {
        text_printf(&text, "[site.s%u]\nhosts = ", s);
        for (uint32_t h = 0; h < RANKS / sites / 5; h++)
            text_printf(&text, "%sh%u-%u:5", h == 0 ? "" : ",\n  ", s, h);
        text_append(&text, "\n");
    }
    char *path = path_join(folder, "large.ini");
    assert_false(text.failed);
    ok(file_replace(path, text.data, text.length));
    ok(job_load(path, NULL, 0, &job));
    mem_free(path);
    text_free(&text);
    registry_use_job(registry, job);
    return job;
}

/* E(s) of all sites, and P. */
static double elements_of_sites(const parameters_t *p, uint32_t sites, double own[MOST_SITES])
{
    double all = 0;
    memset(own, 0, MOST_SITES * sizeof(*own));
    for (uint32_t i = 0; i < p->count; i++) {
        const uint64_t elements = p->items[i].elements, u = (elements + BLOCK - 1) / BLOCK;
        if (p->items[i].storage != i) continue;
        all += (double)elements;
        for (uint64_t m = 0; m < RANKS; m++) {
            const uint64_t k = (m + i) % RANKS;
            uint64_t begin = k * u / RANKS * BLOCK, end = (k + 1) * u / RANKS * BLOCK;
            if (begin > elements) begin = elements;
            if (end > elements) end = elements;
            own[m / (RANKS / sites)] += (double)(end - begin);
        }
    }
    return all;
}

/* A rank that is planned by itself, beside what was said of it. */
static void rank_is_as_told(const plan_programs_how_t *how, const plan_ranks_t *ranks,
                            uint32_t rank, uint32_t sites, double own[MOST_SITES], double *all)
{
    static const uint32_t held[] = {MEMORY_PARAMETERS, MEMORY_GRADIENTS, MEMORY_MASTER,
                                    MEMORY_STATE};
    plan_programs_how_t one = *how;
    plan_programs_t p;
    step_plan_t plan;
    memory_report_t memory;
    world_t *world;
    ok(world_plan(how->session.job, rank, &world));
    one.session.world = world;
    ok(plan_programs_open(&one, &p));
    ok(step_plan_new(p.programs.train, p.programs.update, p.programs.schedule->rounds,
                     p.session->transfers, NULL, &plan));
    assert_true(plan.border_bytes > 0);
    assert_int_equal(plan.border_bytes, ranks->border_bytes[rank]);
    plan_programs_memory(&p, &memory);
    for (uint32_t k = 0; k < sizeof(held) / sizeof(held[0]); k++)
        assert_int_equal(memory.bytes[held[k]], ranks->memory[rank].bytes[held[k]]);
    /* The rest is bounded, to the bytes of kernels that a rank's few blocks ask for. */
    assert_true((double)memory.total_bytes < 1.001 * (double)ranks->memory[rank].total_bytes);
    uint64_t sum = 0;
    for (uint32_t k = 0; k < MEMORY_KINDS; k++)
        sum += k == MEMORY_PINNED ? 0 : ranks->memory[rank].bytes[k];
    assert_int_equal(sum, ranks->memory[rank].total_bytes);
    *all = elements_of_sites(weights_parameters(p.session->weights), sites, own);
    step_plan_free(&plan);
    plan_programs_close(&p);
    world_free(world);
}

static const double *crosses(const plan_ranks_t *r, uint32_t sites, uint32_t what, uint32_t from,
                             uint32_t to)
{
    return &r->crosses[((size_t)what * sites + from) * sites + to];
}

typedef struct layout {
    const char *plugin, *cut;
    uint32_t sites, rank; /* that is planned by itself, too */
} layout_t;

static void what_crosses_each_border(void **state)
{
    (void)state;
    static const layout_t layouts[] = {
        {"zero1", "data", 10, 637}, {"zero3", "site", 2, 999}, {"zero3", "data", 10, 44}};
    for (uint32_t l = 0; l < sizeof(layouts) / sizeof(layouts[0]); l++) {
        const layout_t *at = &layouts[l];
        const uint32_t sites = at->sites;
        double own[MOST_SITES], all;
        plan_ranks_t ranks;
        job_t *job = job_of(sites, at->plugin, at->cut);
        const plan_programs_how_t how = {
            .session = {.job = job, .registry = registry, .vocab = VOCAB}};
        ok(plan_programs_of_ranks(&how, &ranks));
        assert_int_equal(ranks.count, RANKS);
        assert_int_equal(ranks.planned, 4);
        uint32_t by_itself = 0;
        for (uint32_t r = 0; r < RANKS; r++)
            by_itself += ranks.by_itself[r];
        assert_int_equal(by_itself, 4);
        assert_true(ranks.by_itself[0] && !ranks.by_itself[at->rank]);
        rank_is_as_told(&how, &ranks, at->rank, sites, own, &all);
        const bool inside = strcmp(at->cut, "site") == 0,
                   gathers = strcmp(at->plugin, "zero3") == 0;
        for (uint32_t a = 0; a < sites; a++)
            for (uint32_t b = 0; b < sites; b++) {
                if (a == b) continue;
                const double sums = *crosses(&ranks, sites, CROSSING_SUMS, a, b);
                const double values = *crosses(&ranks, sites, CROSSING_VALUES, a, b);
                assert_true(sums == 2 * (inside ? all : own[b]));
                if (inside)
                    assert_true(values == 0);
                else if (gathers) /* what stays from one pass to the other is gathered once */
                    assert_true(values >= 2 * own[a] && values <= 2 * 2 * own[a]);
                else
                    assert_true(values == 2 * own[a]);
            }
        plan_ranks_free(&ranks);
        job_free(job);
    }
}

static int start_quietly(void **state)
{
    log_threshold(LH_LOG_WARN);
    return plan_start(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_crosses_each_border),
    };
    return cmocka_run_group_tests(tests, start_quietly, plan_stop);
}
