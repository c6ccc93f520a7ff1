/* train_step.c - one optimizer step: batch, forward and backward of every micro-batch, update. */
#include <train/trainer.h>

#include <math.h>

#include <base/stop.h>
#include <base/sys.h>
#include <engine/program.h>

void trainer_clock(trainer_t *t, uint32_t part, uint64_t *since)
{
    lh_assert(part < STEP_PARTS);
    const uint64_t now = sys()->now_ns();
    t->part_ns[part] += now - *since;
    *since = now;
}

/* Global sample index of the first sequence of a pass of this rank. */
static uint64_t first_sample(const trainer_t *t, uint64_t pass)
{
    return t->step * t->job->train.batch + t->layout.share.first + pass * t->layout.share.rows;
}

/* The sum of token weights over the global batch, all ranks' passes. */
static lh_status_t total_weight(trainer_t *t, double *total)
{
    const batch_share_t *share = &t->layout.share;
    const uint64_t tokens = share->rows * t->job->train.sequence;
    *total = (double)(t->job->train.batch * t->job->train.sequence);
    if (batches_weigh_all(t->data)) return LH_OK;
    *total = 0;
    for (uint64_t i = 0; i < share->passes; i++)
        for (uint64_t k = 0; k < tokens; k++)
            *total += (double)t->batch[i].weights[k];
    return agree_sum(&t->agree, total, 1);
}

/* This rank's share of the global batch, each token's weight divided by the sum over all of it: how
 * the batch is cut does not change the loss. */
static lh_status_t fill_batch(trainer_t *t)
{
    const batch_share_t *share = &t->layout.share;
    const uint64_t rows = share->rows, tokens = rows * t->job->train.sequence;
    double total;
    lh_status_t status = LH_OK;
    for (uint64_t i = 0; i < share->passes && status == LH_OK; i++) {
        const uint64_t used = batch_share_rows(share, i);
        status = batches_fill(t->data, first_sample(t, i), used, &t->batch[i]);
        if (status == LH_OK && used < rows) batches_pad(t->data, used, rows, &t->batch[i]);
    }
    if (status == LH_OK) status = total_weight(t, &total);
    if (status != LH_OK) return status;
    if (total <= 0)
        return fail(LH_INVALID, "step %llu: every token of the batch is masked",
                    (unsigned long long)t->step + 1);
    const float scale = (float)(1 / total);
    for (uint64_t i = 0; i < share->passes; i++)
        for (uint64_t k = 0; k < tokens; k++)
            t->batch[i].weights[k] *= scale;
    return LH_OK;
}

/* Round i of the schedule: the inputs of its micro-batches, one after the other. */
static lh_status_t run_round(trainer_t *t, uint64_t i)
{
    const batch_share_t *share = &t->layout.share;
    const uint64_t count = t->programs.schedule->round_micro_batches;
    lh_assert((i + 1) * count <= share->passes);
    const uint64_t bytes = count * share->rows * t->job->train.sequence * 4;
    const batch_rows_t *b = &t->batch[i * count];
    int32_t(*seeds)[4] = t->seeds + i * count;
    for (uint64_t m = 0; m < count; m++) {
        /* Of the global batch, so that what is drawn does not depend on who draws it. */
        const uint64_t first = share->first + (i * count + m) * share->rows;
        seeds[m][0] = (int32_t)(uint32_t)t->job->train.seed;
        seeds[m][1] = (int32_t)(uint32_t)t->step;
        seeds[m][2] = (int32_t)(uint32_t)first;
    }
    program_t *p = t->programs.train;

    lh_status_t status = program_input(p, LH_INPUT_TOKENS, b->tokens, bytes);
    if (status == LH_OK) status = program_input(p, LH_INPUT_POSITIONS, b->positions, bytes);
    if (status == LH_OK)
        status = program_input(p, LH_INPUT_STARTS, b->starts, count * (b->max_documents + 1) * 4);
    if (status == LH_OK) status = program_input(p, LH_INPUT_LABELS, b->labels, bytes);
    if (status == LH_OK) status = program_input(p, LH_INPUT_WEIGHTS, b->weights, bytes);
    if (status == LH_OK && program_has_input(p, LH_INPUT_SEED))
        status = program_input(p, LH_INPUT_SEED, seeds, count * sizeof(seeds[0]));
    if (status == LH_OK) status = program_run(p, (uint32_t)i);
    return status;
}

static lh_status_t run_update(trainer_t *t, double rate)
{
    lh_assert(t->session->groups.count > 0);
    const uint32_t groups = t->session->groups.count;
    const uint64_t bytes = groups * LH_STEP_WORDS * sizeof(float);
    for (uint32_t g = 0; g < groups; g++) {
        float *row = t->step_rows + g * LH_STEP_WORDS;
        memset(row, 0, LH_STEP_WORDS * sizeof(float));
        row[LH_STEP_LEARNING_RATE] = (float)(rate * t->session->groups.rates[g]);
        row[LH_STEP_GRAD_SCALE] = 1;
        row[LH_STEP_NUMBER] = (float)(t->step + 1);
        row[LH_STEP_APPLY] = 1;
        row[LH_STEP_MAX_NORM] = (float)t->job->optimizer.clip;
    }
    lh_status_t status = program_input(t->programs.update, LH_INPUT_STEP, t->step_rows, bytes);
    if (status == LH_OK) status = program_run(t->programs.update, 0);
    if (status == LH_OK)
        status = program_output(t->programs.update, OUTPUT_STEP, t->step_rows, bytes);
    return status;
}

/* Each rank has the loss of its share, may have been asked to stop, and may have written what it
 * saves: one exchange for all,
 * which travels while parameters are updated, ahead of the new values. */
enum { AGREE_LOSS = 0, AGREE_CROSS_ENTROPY = 1, AGREE_STOP = 2, AGREE_SAVE = 3, AGREE_NUMBERS = 4 };

static lh_status_t agree_begin(trainer_t *t, double numbers[AGREE_NUMBERS])
{
    float mine[2];
    const lh_status_t status = program_output(t->programs.train, OUTPUT_LOSS, mine, sizeof(mine));
    if (status != LH_OK) return status;
    numbers[AGREE_LOSS] = (double)mine[0];
    numbers[AGREE_CROSS_ENTROPY] = (double)mine[1];
    numbers[AGREE_STOP] = stop_requested() ? 1 : 0;
    numbers[AGREE_SAVE] = trainer_save_word(t);
    return agree_start(&t->agree, numbers, AGREE_NUMBERS);
}

static void report(trainer_t *t, const double *numbers, double rate, bool applied)
{
    uint64_t now = sys()->now_ns();
    step_report_t r = {.step = t->step,
                       .loss = numbers[AGREE_LOSS],
                       .cross_entropy = numbers[AGREE_CROSS_ENTROPY],
                       .learning_rate = rate,
                       .gradient_norm = (double)t->step_rows[LH_STEP_NORM],
                       .applied = applied,
                       .tokens = t->tokens};
    for (int i = 0; i < STEP_PARTS; i++)
        r.part_s[i] = (double)t->part_ns[i] * 1e-9;
    if (t->comm.comm != NULL) {
        uint64_t exposed[STEP_SCOPES];
        comm_exposed(t->comm.comm, exposed);
        for (int i = 0; i < STEP_SCOPES; i++)
            r.exposed_s[i] = (double)exposed[i] * 1e-9;
    }
    r.seconds = (double)(now - t->begun_ns) * 1e-9;
    r.tokens_per_s = (double)(t->job->train.batch * t->job->train.sequence) / r.seconds;
    memset(t->part_ns, 0, sizeof(t->part_ns));
    t->begun_ns = now;
    if (t->how->observer != NULL) t->how->observer->step(t->how->observer, &r);
    trainer_clock(t, PART_WATCH, &now); /* of the next step, as its seconds begin above */
}

lh_status_t trainer_step(trainer_t *t, bool *applied)
{
    uint64_t clock = sys()->now_ns();
    double rate, numbers[AGREE_NUMBERS];

    trainer_doing(t, t->step + 1, NULL);
    if (t->comm.comm != NULL) comm_step(t->comm.comm, t->step + 1);
    lh_status_t status = bindings_learning_rate(t->bindings, t->step, &rate);
    if (status == LH_OK) status = fill_batch(t);
    if (status != LH_OK) return status;
    trainer_clock(t, PART_DATA, &clock);
    for (uint64_t i = 0; i < t->programs.schedule->rounds && status == LH_OK; i++)
        status = run_round(t, i);
    if (status == LH_OK) status = agree_begin(t, numbers);
    if (status != LH_OK) return status;
    trainer_clock(t, PART_COMPUTE, &clock);
    status = run_update(t, rate);
    if (status == LH_OK) status = agree_finish(&t->agree, numbers, AGREE_NUMBERS);
    if (status != LH_OK) return status;
    trainer_clock(t, PART_UPDATE, &clock);

    t->step++;
    t->tokens += t->job->train.batch * t->job->train.sequence;
    t->loss = numbers[AGREE_LOSS];
    t->stop = numbers[AGREE_STOP] > 0;
    *applied = t->step_rows[LH_STEP_APPLY] != 0;
    const step_facts_t facts = {.step = t->step,
                                .tokens = t->tokens,
                                .loss = t->loss,
                                .learning_rate = rate,
                                .norm = (double)t->step_rows[LH_STEP_NORM]};
    status = bindings_after_step(t->bindings, &facts);
    if (status != LH_OK) return status;
    trainer_clock(t, PART_WATCH, &clock);
    report(t, numbers, rate, *applied);
    return trainer_save_agreed(t, numbers[AGREE_SAVE]);
}
