/* golden_ranks_test.c - PyTorch's loss curves come out of 2 and 4 ranks, at every ZeRO stage. */
#include "golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <comm/comm.h>
#include <comm/control_socket.h>
#include <comm/host_world.h>

enum { TOKENS = GOLDEN_BATCH * GOLDEN_SEQUENCE, MOST = 4 };

typedef struct way {
    uint32_t ranks;
    const char *optimizer;
    lh_dtype_t compute;
} way_t;

static const way_t ways[] = {
    {2, "zero0", LH_DTYPE_F32}, {2, "zero1", LH_DTYPE_BF16}, {4, "zero2", LH_DTYPE_F32},
    {4, "zero3", LH_DTYPE_F32}, {4, "zero3", LH_DTYPE_BF16},
};

enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

typedef struct one_case {
    const golden_model_t *model;
    const way_t *way;
} one_case_t;

typedef struct meeting {
    secret_t *secret;
    int listener;
    uint16_t port;
    char ini[64];
} meeting_t;

typedef struct rank {
    const one_case_t *c;
    world_t *world;
    control_t *control;
    job_t *job;
    rig_t rig;
    comm_t *comm;
    transfers_t *transfers;
    program_t *train, *update;
} rank_t;

static void join(rank_t *r, const meeting_t *m, uint32_t self)
{
    const control_how_t how = {.rank = self,
                               .size = r->c->way->ranks,
                               .host = "here",
                               .site = "",
                               .address = "127.0.0.1",
                               .port = m->port,
                               .listener = self == 0 ? m->listener : -1,
                               .port_fd = -1,
                               .join_ns = 60000000000,
                               .secret = m->secret};
    OK(control_open(&how, &r->control, &r->world));
    OK(job_load(m->ini, NULL, 0, &r->job));
}

static void open_rank(rank_t *r, const meeting_t *m, published_t **published)
{
    const way_t *way = r->c->way;
    const uint32_t rows = GOLDEN_BATCH / way->ranks;
    rig_open(&r->rig, r->c->model->plugin, r->c->model->options, way->compute);
    OK(world_publish(r->rig.host, r->world, m->secret, published));
    const comm_how_t comm = {.job = r->job,
                             .registry = r->rig.registry,
                             .world = r->world,
                             .control = r->control,
                             .thread = true};
    OK(comm_open(&comm, &r->comm));
    r->update = rig_update_over(&r->rig, 0.1, way->optimizer, 1, r->comm, &r->transfers);
    const program_how_t how = {.use = USE_TRAIN,
                               .sequences = rows,
                               .rows = GOLDEN_SEQUENCE,
                               .micro_batches = 1,
                               .replicas = way->ranks};
    OK(program_new(r->rig.engine, r->rig.weights, &how, &r->train));
    OK(engine_build(r->rig.engine));
    OK(comm_connect(r->comm));
    golden_weights(r->c->model, &r->rig);
    OK(transfers_renew(r->transfers));
}

/* One step of this rank's rows; the ranks' losses add up to the batch's. */
static double step(rank_t *r, uint32_t number, double *norm)
{
    const uint32_t ranks = r->c->way->ranks, rows = GOLDEN_BATCH / ranks;
    int32_t batch[GOLDEN_BATCH * (GOLDEN_SEQUENCE + 1)];
    double all[MOST], sum = 0;
    golden_batch(r->c->model, number, batch);
    rig_batch(r->train, batch + r->world->row.rank * rows * (GOLDEN_SEQUENCE + 1), rows,
              GOLDEN_SEQUENCE, TOKENS);
    OK(program_run(r->train, 0));
    const double mine = (double)rig_loss(r->train);
    *norm = (double)rig_step(r->update, number + 1, 3e-3, 1.0, NULL);
    OK(control_gather(r->control, &mine, sizeof(mine), all));
    for (uint32_t i = 0; i < ranks; i++)
        sum += all[i];
    return sum;
}

static void curve(rank_t *r)
{
    const golden_model_t *model = r->c->model;
    const bool wide = r->c->way->compute == LH_DTYPE_F32;
    double losses[GOLDEN_STEPS], norms[GOLDEN_STEPS], tolerance, worst = 0, worst_norm = 0;
    assert_int_equal(golden_numbers(model, wide ? "loss_curve_fp32" : "loss_curve_bf16_autocast",
                                    losses, GOLDEN_STEPS),
                     GOLDEN_STEPS);
    golden_numbers(model, "gradient_norms_fp32", norms, GOLDEN_STEPS);
    golden_numbers(model, wide ? "curve_fp32_rel" : "curve_bf16_rel", &tolerance, 1);
    for (uint32_t i = 0; i < GOLDEN_STEPS; i++) {
        double norm;
        const double loss = step(r, i, &norm);
        worst = fmax(worst, fabs(loss - losses[i]) / losses[i]);
        worst_norm = fmax(worst_norm, fabs(norm - norms[i]) / norms[i]);
    }
    if (r->world->row.rank == 0)
        print_message("losses differ by at most %.2g, norms by %.2g\n", worst, worst_norm);
    assert_true(worst <= tolerance);
    assert_true(worst_norm <= (wide ? 1e-2 : 5e-2));
}

static void close_rank(rank_t *r, published_t *published)
{
    OK(transfers_finish(r->transfers));
    comm_stop(r->comm);
    OK(control_barrier(r->control, "the end"));
    comm_close(r->comm);
    world_unpublish(r->rig.host, published);
    rig_close(&r->rig);
    transfers_free(r->transfers);
    job_free(r->job);
    OK(control_close(r->control, LH_OK, ""));
    world_free(r->world);
}

static void be_rank(const one_case_t *c, const meeting_t *m, uint32_t self)
{
    rank_t r = {.c = c};
    published_t *published = NULL;
    join(&r, m, self);
    open_rank(&r, m, &published);
    curve(&r);
    close_rank(&r, published);
}

static void the_curve_is_that_of_pytorch(void **state)
{
    const one_case_t *c = *state;
    meeting_t m = {.listener = -1};
    assert_int_equal(setenv("LH_TEST_THREADS", "1", 1), 0);
    (void)snprintf(m.ini, sizeof(m.ini), "/tmp/longhaul-golden-%d.ini", (int)getpid());
    FILE *f = fopen(m.ini, "w");
    assert_non_null(f);
    (void)fputs("[pipeline]\nname = golden\nstages = prepare\nfolder = out\n[prepare]\n"
                "input = a.jsonl\ntokenizer = t.json\n",
                f);
    (void)fclose(f);
    OK(secret_random(&m.secret));
    OK(control_listen("127.0.0.1", 0, &m.listener, &m.port));

    pid_t pids[MOST];
    for (uint32_t i = 0; i < c->way->ranks; i++) {
        pids[i] = fork();
        if (pids[i] != 0) continue;
        /* A rank that fails ends: it must not go on with the tests that follow, and fork ranks. */
        (void)setenv("CMOCKA_TEST_ABORT", "1", 1);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_rank(c, &m, i);
        _exit(0);
    }
    (void)close(m.listener);
    bool well = true;
    for (uint32_t i = 0; i < c->way->ranks; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        well = well && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    (void)unlink(m.ini);
    secret_free(m.secret);
    assert_true(well);
}

int main(void)
{
    static one_case_t cases[GOLDEN_MODELS * WAYS];
    static char titles[GOLDEN_MODELS * WAYS][128];
    struct CMUnitTest tests[GOLDEN_MODELS * WAYS];
    if (strcmp(rig_device(), "cpu") != 0) return 77; /* ranks want memory that the host reaches */
    for (uint32_t i = 0; i < GOLDEN_MODELS * WAYS; i++) {
        cases[i] = (one_case_t){&golden_models[i / WAYS], &ways[i % WAYS]};
        (void)snprintf(titles[i], sizeof(titles[i]), "%s: %u ranks, %s, %s", cases[i].model->name,
                       cases[i].way->ranks, cases[i].way->optimizer,
                       cases[i].way->compute == LH_DTYPE_F32 ? "f32" : "bf16");
        tests[i] = (struct CMUnitTest){titles[i], the_curve_is_that_of_pytorch, NULL, NULL,
                                       &cases[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
