/* train_step.c - one optimizer step: its batch, the rounds of forward and backward, the update behind
 * them, and what is read and told of it.
 *
 * The order inside a step is what hides communication: all rounds of forward and backward are
 * launched, and their list of calls starts the sum of each gradient over the ranks as soon as it is
 * complete; the update's first calls start to gather the losses and wait for those sums. What the
 * host alone knows (whether to stop, the save under way) travels beside the update too, as an
 * agreement, so that a step of many ranks has one place where the host waits for them; where tokens
 * are masked, a second one before the first round.
 *
 * On a device that queues work a step is queued whole, update included, before its loss is awaited,
 * and where nothing is due between them the next step as well: the device has work while the host
 * reads figures, calls hooks and tells. Figures then come a step's time late, and a stop or a save that
 * somebody asks for is of the step after. The batch behind all that is queued is gathered before
 * anything is waited for, also where the device must wait: for a save, an evaluation, or a hook that
 * takes loss or norm, which has them before more is queued. What is saved is copied while the rounds of
 * the step behind the save run. */
#include <train/train_step.h>

#include <base/sys.h>
#include <data/batches.h>
#include <engine/engine.h>
#include <engine/program.h>
#include <train/train_memory.h>
#include <train/train_save.h>

/* Global sample index of the first sequence of the batch that is queued next: the cursor is that of
 * steps which are finished. */
static uint64_t batch_begin(const trainer_t *t)
{
    const uint64_t batch = t->job->train.batch;
    lh_assert(t->queued >= t->step);
    const uint64_t cursor = batch_skips_after(&t->skips, t->cursor, t->queued - t->step, batch);
    return batch_skips_next(&t->skips, cursor, batch);
}

/* The same of a micro-batch of this rank. Ranks take neighbouring slices of the global batch: share.first is
 * where this rank's begins. The index depends on the cursor that the steps before have left and not
 * on which run makes it, which is what makes a resume exact. */
static uint64_t first_sample(const trainer_t *t, uint64_t micro_batch)
{
    return batch_begin(t) + t->layout.share.first + micro_batch * t->layout.share.rows;
}

/* Phase dpo: scores the pairs of all micro-batches, which turns weights of 1 and -1 into those of the loss's
 * gradient, summed over pairs. *total: pairs of the global batch, over all ranks. */
static lh_status_t score_pairs(trainer_t *t, double *total)
{
    preference_sum_t *sum = &t->pairs[t->queued % STAGING_SLOTS];
    lh_status_t status = LH_OK;
    *sum = (preference_sum_t){0};
    for (uint64_t i = 0; i < t->layout.share.micro_batches && status == LH_OK; i++)
        status = preference_score(t->programs.preference, &t->batch[i], true, sum);
    double all[] = {sum->pairs, sum->loss, sum->margin, sum->won};
    if (status == LH_OK) status = train_agree_sum(&t->agree, all, 4);
    *sum = (preference_sum_t){all[0], all[1], all[2], all[3]};
    *total = all[0];
    return status;
}

/* The sum of token weights over the global batch, all ranks' micro-batches. Where no token is masked the
 * sum is known without asking anybody. Else every rank must ask, even one whose own tokens all
 * count: a gather takes all. */
static lh_status_t total_weight(trainer_t *t, double *total)
{
    const batch_share_t *share = &t->layout.share;
    const uint64_t tokens = share->rows * t->job->train.sequence;
    *total = (double)(t->job->train.batch * t->job->train.sequence);
    if (batches_weigh_all(t->data)) return LH_OK;
    *total = 0;
    for (uint64_t i = 0; i < share->micro_batches; i++)
        for (uint64_t k = 0; k < tokens; k++)
            *total += (double)t->batch[i].weights[k];
    return train_agree_sum(&t->agree, total, 1);
}

/* This rank's share of the batch that is queued next, unless it was gathered ahead. A micro-batch that
 * has fewer sequences than the program takes is padded with rows of weight 0. */
static lh_status_t batch_gather(trainer_t *t)
{
    const batch_share_t *share = &t->layout.share;
    lh_status_t status = LH_OK;
    if (t->gathered == t->queued + 1) return LH_OK;
    for (uint64_t i = 0; i < share->micro_batches && status == LH_OK; i++) {
        const uint64_t used = batch_share_rows(share, i);
        lh_assert(used <= share->rows);
        status = batches_fill(t->data, first_sample(t, i), used, &t->batch[i]);
        if (status == LH_OK && used < share->rows)
            batches_pad(t->data, used, share->rows, &t->batch[i]);
    }
    if (status == LH_OK) t->gathered = t->queued + 1;
    return status;
}

/* The same while the device works at what is queued. A failure is forgotten here: the step that needs
 * the batch meets it again and tells it, as by then the steps before are finished and may be saved. */
static void batch_gather_ahead(trainer_t *t)
{
    uint64_t clock = sys()->now_ns();
    if (batch_gather(t) != LH_OK) fail_clear();
    trainer_clock(t, PART_DATA, &clock);
}

/* Gathers the batch and divides each token's weight by the sum over all of the global batch: how the
 * batch is cut does not change the loss. The loss of a step is the mean over tokens that count, of the
 * global batch. Dividing each weight by the global sum here, once, lets every micro-batch and rank add
 * its own part without knowing the others. */
static lh_status_t fill_batch(trainer_t *t)
{
    const batch_share_t *share = &t->layout.share;
    const uint64_t tokens = share->rows * t->job->train.sequence;
    double total;
    lh_status_t status = batch_gather(t);
    t->gathered = 0; /* weights change below */
    if (status == LH_OK)
        status = t->programs.preference != NULL ? score_pairs(t, &total) : total_weight(t, &total);
    if (status != LH_OK) return status;
    if (total <= 0)
        return fail(LH_INVALID, "step %llu: every token of the batch is masked",
                    (unsigned long long)t->queued + 1);
    const float scale = (float)(1 / total);
    for (uint64_t i = 0; i < share->micro_batches; i++)
        for (uint64_t k = 0; k < tokens; k++)
            t->batch[i].weights[k] *= scale;
    return LH_OK;
}

/* Round i of the schedule: the inputs of its micro-batches, one after the other. Queues the round
 * and returns as soon as the device has it; nothing is read back here. Inputs are copied by
 * program_input, so t->batch may be filled again for the next step. */
static lh_status_t step_round(trainer_t *t, uint64_t i)
{
    const batch_share_t *share = &t->layout.share;
    const uint64_t count = t->programs.schedule->round_micro_batches;
    lh_assert((i + 1) * count <= share->micro_batches);
    const uint64_t tokens = share->rows * t->job->train.sequence;
    int32_t(*seeds)[4] = t->seeds + i * count;
    /* Random ops mix these words into their counter: seed of the job, step, and the index in the
     * global batch of the micro-batch's first sequence. */
    for (uint64_t m = 0; m < count; m++) {
        /* Of the global batch, so that what is drawn does not depend on who draws it. */
        const uint64_t first = share->first + (i * count + m) * share->rows;
        seeds[m][0] = (int32_t)(uint32_t)t->job->train.seed;
        seeds[m][1] = (int32_t)(uint32_t)t->queued;
        seeds[m][2] = (int32_t)(uint32_t)first;
    }
    program_t *p = t->programs.train;

    lh_status_t status = session_rows_give(&t->batch[i * count], count, tokens, p);
    if (status == LH_OK && program_has_input(p, LH_INPUT_SEED))
        status = program_input(p, LH_INPUT_SEED, seeds, count * sizeof(seeds[0]));
    if (status == LH_OK) status = program_run(p, (uint32_t)i);
    return status;
}

static uint64_t step_rows_bytes(const trainer_t *t)
{
    return t->session->groups.count * LH_STEP_WORDS * sizeof(float);
}

/* A row of the step input for each parameter group: they differ in the learning rate only. Norm and
 * whether the step counts are computed on the device, for all groups alike, and come back in the
 * same rows (OUTPUT_STEP). */
static lh_status_t step_update(trainer_t *t, double rate)
{
    lh_assert(t->session->groups.count > 0);
    for (uint32_t g = 0; g < t->session->groups.count; g++) {
        float *row = t->step_rows + g * LH_STEP_WORDS;
        memset(row, 0, LH_STEP_WORDS * sizeof(float));
        row[LH_STEP_LEARNING_RATE] = (float)(rate * t->session->groups.rates[g]);
        row[LH_STEP_GRAD_SCALE] = 1;
        row[LH_STEP_NUMBER] = (float)(t->queued + 1);
        row[LH_STEP_APPLY] = 1;
        row[LH_STEP_MAX_NORM] = (float)t->job->optimizer.clip;
    }
    const lh_status_t status = program_input(t->programs.update, LH_INPUT_STEP, t->step_rows,
                                             step_rows_bytes(t));
    return status == LH_OK ? program_run(t->programs.update, 0) : status;
}

/* What a rank says that ends the job for all; as many as ranks may say 1: they leave with their machine. */
#define STOP_ALL ((double)(1 << 20))

/* Each rank may have been asked to stop, and may have written what it saves: one exchange for all of
 * it. stop counts ranks that were asked to stop, save is trainer_save_word, and asked is rank 0's
 * alone: somebody wants a checkpoint of `step`, the last that is queued. */
static lh_status_t agree_begin(trainer_t *t, uint64_t step)
{
    const lh_status_t status = train_memory_start(t);
    if (status != LH_OK) return status;
    t->agreed[AGREE_STOP] = !sys_stop_requested() ? 0 : sys_stop_by_hand() ? STOP_ALL : 1;
    t->agreed[AGREE_SAVE] = trainer_save_word(t);
    t->agreed[AGREE_ASKED] = t->how->save_asked != NULL && train_agree_rank(&t->agree) == 0 &&
                             t->how->save_asked(t->how->save_context, step);
    t->agreed[AGREE_EXPOSED] = t->exposed_s;
    t->agreed_step = step;
    return train_agree_start(&t->agree, t->agreed, AGREE_NUMBERS);
}

/* How many steps are queued behind the one whose figures are due. */
static uint32_t steps_behind(const trainer_t *t)
{
    lh_assert(t->queued > t->step && t->queued - t->step <= STAGING_SLOTS);
    return (uint32_t)(t->queued - t->step) - 1;
}

typedef struct step_loss { /* of the global batch */
    double all, cross_entropy;
} step_loss_t;

/* This rank's, which is the step's where there is no other. Waits for the device to finish the
 * backward pass of the step's last round. */
static lh_status_t read_own_loss(const trainer_t *t, step_loss_t *out)
{
    float mine[2];
    const lh_status_t status = program_output_of(t->programs.train, OUTPUT_LOSS, steps_behind(t),
                                                 mine, sizeof(mine));
    if (status == LH_OK) *out = (step_loss_t){(double)mine[0], (double)mine[1]};
    return status;
}

/* Losses of ranks are divided by the global weight already, so the step's is their sum: in double,
 * in the order of ranks, and each rank's two terms in F32 before that, as OUTPUT_LOSS has them. */
static lh_status_t sum_losses(const trainer_t *t, step_loss_t *out)
{
    const uint32_t ranks = train_agree_size(&t->agree);
    if (ranks == 1) return LH_OK;
    *out = (step_loss_t){0};
    const uint64_t bytes = program_output_bytes(t->programs.update, OUTPUT_LOSSES);
    const uint64_t terms = bytes / sizeof(float) / ranks;
    lh_assert(terms == 1 || terms == 2);
    const lh_status_t status = program_output_of(t->programs.update, OUTPUT_LOSSES, steps_behind(t),
                                                 t->losses, bytes);
    for (uint32_t r = 0; status == LH_OK && r < ranks; r++) {
        const float *mine = t->losses + r * terms;
        const float extra = terms == 2 ? mine[1] : 0;
        out->all += (double)(mine[0] + extra);
        out->cross_entropy += (double)mine[0];
    }
    return status;
}

/* In phase dpo what the device adds up has the gradient of the loss and not its value: that was known
 * before the step was queued. What the model adds by itself comes from there. */
static void loss_prefer(const trainer_t *t, step_loss_t *loss)
{
    const preference_sum_t *sum = &t->pairs[t->step % STAGING_SLOTS];
    if (t->programs.preference == NULL) return;
    loss->all -= loss->cross_entropy;
    loss->cross_entropy = sum->loss / sum->pairs;
    loss->all += loss->cross_entropy;
}

/* Rates are over the wall time from report to report, so that they include what happens between
 * steps. The time of telling itself counts as PART_WATCH of the next step. */
static void report_step(trainer_t *t, const step_loss_t *loss, const step_facts_t *facts,
                        bool applied)
{
    uint64_t now = sys()->now_ns();
    step_report_t r = {.step = t->step,
                       .loss = loss->all,
                       .cross_entropy = loss->cross_entropy,
                       .learning_rate = facts->learning_rate,
                       .gradient_norm = facts->norm,
                       .applied = applied,
                       .tokens = t->tokens};
    if (t->programs.preference != NULL) {
        const preference_sum_t *sum = &t->pairs[(t->step - 1) % STAGING_SLOTS];
        r.pairs = sum->pairs;
        r.pairs_won = sum->won;
        r.margin = sum->margin / sum->pairs;
    }
    for (int i = 0; i < STEP_PARTS; i++)
        r.part_s[i] = (double)t->part_ns[i] * 1e-9;
    if (t->comm.comm != NULL) {
        uint64_t exposed[STEP_SCOPES];
        comm_exposed(t->comm.comm, exposed);
        r.least_exposed_s = t->least_exposed_s;
        t->exposed_s = 0;
        for (int i = 0; i < STEP_SCOPES; i++) {
            r.exposed_s[i] = (double)exposed[i] * 1e-9;
            t->exposed_s += r.exposed_s[i];
            control_waited(t->how->control, exposed[i]);
        }
        if (t->how->observer != NULL) {
            r.flow_count = comm_flows(t->comm.comm, r.flows, STEP_FLOWS);
            r.border_count = comm_borders(t->comm.comm, r.borders, STEP_BORDERS);
            r.change_count = comm_changes(t->comm.comm, r.changes, STEP_CHANGES);
        }
    }
    r.seconds = (double)(now - t->begun_ns) * 1e-9;
    r.tokens_per_s = (double)(t->job->train.batch * t->job->train.sequence) / r.seconds;
    memset(t->part_ns, 0, sizeof(t->part_ns));
    t->begun_ns = now;
    if (t->how->observer != NULL) t->how->observer->step(t->how->observer, &r);
    trainer_clock(t, PART_WATCH, &now); /* of the next step, as its seconds begin above */
}

/* Queues the rounds of a step. Where a save is being taken, the host copies as long as the device has
 * two rounds before it; what is left then is copied behind the last round, for which the update
 * waits. That counts as the save's time from when the device has nothing to do. */
static lh_status_t step_rounds(trainer_t *t, uint64_t *clock)
{
    lh_status_t status = LH_OK;
    for (uint64_t i = 0; i < t->programs.schedule->rounds && status == LH_OK; i++) {
        while (status == LH_OK && t->taking &&
               program_under_way(t->programs.train) == STAGING_SLOTS)
            status = trainer_take(t);
        if (status == LH_OK) status = step_round(t, i);
    }
    trainer_clock(t, PART_COMPUTE, clock);
    while (status == LH_OK && t->taking) {
        const bool idle = program_under_way(t->programs.train) == 0;
        status = trainer_take(t);
        trainer_clock(t, idle ? PART_SAVE : PART_COMPUTE, clock);
    }
    return status;
}

/* A device that queues work has it all before anything of it is waited for. One that has done the
 * work when a launch returns gains nothing by that; there the numbers that ranks agree on travel while
 * it makes the update, and the time of rounds is told from that of the update. */
lh_status_t train_step_queue(trainer_t *t)
{
    uint64_t clock = sys()->now_ns();

    trainer_doing(t, t->queued + 1, NULL);
    if (t->comm.comm != NULL) comm_step(t->comm.comm, t->queued + 1);
    double *rate = &t->rates[t->queued % STAGING_SLOTS];
    lh_status_t status = step_calls_rate(t->calls, t->queued, rate);
    if (status == LH_OK) status = fill_batch(t);
    if (status != LH_OK) return status;
    trainer_clock(t, PART_DATA, &clock);
    status = step_rounds(t, &clock);
    if (status == LH_OK && !engine_queues(t->session->engine))
        status = agree_begin(t, t->queued + 1);
    if (status == LH_OK) status = step_update(t, *rate);
    if (status == LH_OK) t->queued++;
    trainer_clock(t, PART_UPDATE, &clock);
    return status;
}

/* Whether a step may be queued behind the one that is queued, before that one's figures are read, so
 * that a device that queues work has some while the host reads, tells and gathers. Not where the
 * state between the two steps is needed: to save or evaluate it, to measure one of them alone, or to
 * forget what rounding for a border has taken from a step that was not applied (step_errors). All
 * ranks answer alike, also those that do not profile, so that they start the same transfers and
 * agreements in the same order. */
static bool step_may_follow(const trainer_t *t)
{
    const job_train_t *train = &t->job->train;
    const uint64_t first = t->queued, every = t->job->checkpoint.every;
    lh_assert(first > 0);
    const transfers_t *transfers = t->session->transfers;
    if (!engine_queues(t->session->engine) || first >= train->steps || trainer_stop_asked(t))
        return false;
    if (transfers != NULL && transfers_keep_errors(transfers)) return false;
    if ((every != 0 && first % every == 0) || t->asked_step == first) return false;
    if (train_memory_due(t, first)) return false;
    if (t->programs.evaluation != NULL && first % train->evaluate_every == 0) return false;
    const uint64_t profiled = t->first_step + PROFILED_STEP;
    return first != profiled && first + 1 != profiled;
}

/* Nothing more is queued where the hook reads the figures, which may make it stop the run or change
 * what is next (train_step_finish). */
lh_status_t train_step_ahead(trainer_t *t)
{
    lh_status_t status = LH_OK;
    if (!engine_queues(t->session->engine)) return LH_OK;
    if (!step_calls_read_figures(t->calls) && step_may_follow(t)) status = train_step_queue(t);
    if (status == LH_OK && t->queued < t->job->train.steps) batch_gather_ahead(t);
    return status;
}

/* What a step that was not applied has left in the errors of a border is of a gradient that may be as
 * large as can be: the next sums would consist of it. All sums of the step are over, as its norm is made
 * of them, and those of the next have not begun. */
static void step_errors(const trainer_t *t, bool applied)
{
    const transfers_t *transfers = t->session->transfers;
    if (!applied && transfers != NULL) transfers_forget_errors(transfers);
}

/* Every rank reads from its own copy of the norm whether the step was applied, the same word, so all
 * agree without another exchange. */
lh_status_t train_step_finish(trainer_t *t, bool *applied)
{
    uint64_t clock = sys()->now_ns();
    const double rate = t->rates[t->step % STAGING_SLOTS];
    step_loss_t loss;

    trainer_doing(t, t->step + 1, NULL);
    lh_status_t status = LH_OK;
    if (engine_queues(t->session->engine)) status = agree_begin(t, t->queued);
    if (status == LH_OK) status = read_own_loss(t, &loss);
    if (status != LH_OK) return status;
    trainer_clock(t, PART_COMPUTE, &clock);
    status = program_output_of(t->programs.update, OUTPUT_STEP, steps_behind(t), t->step_rows,
                               step_rows_bytes(t));
    if (status == LH_OK) status = sum_losses(t, &loss);
    loss_prefer(t, &loss);
    if (status == LH_OK) status = train_agree_finish(&t->agree, t->agreed, AGREE_NUMBERS);
    if (status != LH_OK) return status;
    if (train_agree_size(&t->agree) > 1)
        t->least_exposed_s = train_agree_least(&t->agree, AGREE_NUMBERS, AGREE_EXPOSED);
    trainer_clock(t, PART_UPDATE, &clock);

    /* From here on the step is made: what fails below fails the run, but a save would name the new
     * step. */
    t->step++;
    t->cursor = batch_skips_after(&t->skips, t->cursor, 1, t->job->train.batch);
    t->tokens += t->job->train.batch * t->job->train.sequence;
    t->loss = loss.all;
    t->stop = t->agreed[AGREE_STOP] > 0;
    t->leaving = t->job->launch.notice_ns > 0 && t->agreed[AGREE_STOP] < STOP_ALL;
    if (t->agreed[AGREE_ASKED] > 0) t->asked_step = t->agreed_step;
    *applied = t->step_rows[LH_STEP_APPLY] != 0;
    step_errors(t, *applied);
    const step_facts_t facts = {.step = t->step,
                                .tokens = t->tokens,
                                .loss = t->loss,
                                .learning_rate = rate,
                                .norm = (double)t->step_rows[LH_STEP_NORM]};
    status = step_calls_after(t->calls, &facts);
    if (status != LH_OK) return status;
    trainer_clock(t, PART_WATCH, &clock);
    /* The hook has had its figures: from here on the device need not wait for who is told. */
    if (step_calls_read_figures(t->calls) && step_may_follow(t)) status = train_step_queue(t);
    if (status != LH_OK) return status;
    report_step(t, &loss, &facts, *applied);
    return trainer_save_agreed(t, t->agreed[AGREE_SAVE]);
}
