/* trainer.c - brings a training run up. What can be refused without a device is refused before one
 * is opened, and the folder of checkpoints is taken before that.
 *
 * The processes that save are forked already (train_how_t, writer). The order of trainer_open is
 * forced from two sides. A resumed run must choose the kernels of the run before, so the folder of
 * checkpoints is taken and the newest one found before the session is opened. And the program's
 * shapes depend on the data, which is checked against the vocabulary of the model: so session,
 * data, programs, in this order.
 *
 * What a run's bits depend on is gathered as lines of text (t->identity) while it is opened, and
 * compared with the checkpoint's after each part: so a changed option is refused before the next
 * part is made, which costs more time.
 *
 * Links between sites are measured beside all this, from trainer_open_comm until the ranks connect, which
 * goes by what was found. Most of it keeps one processor busy. What takes all of them, timing kernels,
 * touching the host's memory and drawing weights, comes when that is over: a probe on a busy machine finds
 * less than a link has, and paces never rise above what it has found. */
#include <train/trainer.h>

#include <math.h>
#include <stdio.h>
#include <sys/resource.h>

#include <base/memory.h>
#include <checkpoint/manifest.h>
#include <engine/engine.h>
#include <engine/kernel_choice.h>
#include <engine/weights.h>
#include <session/snapshot.h>
#include <train/train_memory.h>
#include <train/train_sites.h>
#include <train/train_start.h>

/* ---- session, data, programs ---- */

/* Of every key as it stands, included files and --set applied. It is told in the manifest. */
static lh_status_t digest_config(const job_t *job, char out[SHA256_TEXT])
{
    text_t all = {0};
    for (uint32_t i = 0; i < document_section_count(job->document); i++) {
        const document_section_t *s = document_section(job->document, i);
        for (uint32_t k = 0; k < s->entry_count; k++)
            text_printf(&all, "%s.%s=%s\n", s->name, s->entries[k]->key, s->entries[k]->value);
    }
    lh_status_t status = text_status(&all);
    if (status == LH_OK) status = digest_of(all.data == NULL ? "" : all.data, all.length, out);
    text_free(&all);
    return status;
}

/* Kernels of the run before are asked for by name where the same bits are promised; a device that
 * lacks one refuses. */
static lh_status_t open_session(trainer_t *t)
{
    bool others;
    lh_status_t status = train_start_by_others(t, &others);
    const bool same = t->resumed != NULL && t->job->train.same_bits && !others;
    const char *variants = same ? t->resumed->manifest->meta.variants : NULL;
    const session_how_t how = {.job = t->job,
                               .registry = t->how->registry,
                               .vocab = t->how->vocab,
                               .given = t->how->given,
                               .given_count = t->how->given_count,
                               .variants = variants == NULL || *variants == '\0' ? NULL : variants,
                               .comm = t->comm.comm};
    if (status == LH_OK) status = session_open(&how, &t->session);
    if (status != LH_OK) return status;
    snapshot_identity(t->session, &t->identity);
    snapshot_identity_tokenizer(t->how->tokenizer, &t->identity);
    train_start_sums(t, &t->identity);
    train_start_layout(t, &t->identity);
    status = text_status(&t->identity);
    if (status == LH_OK)
        status = train_agree_text(&t->agree, engine_properties(t->session->engine)->fingerprint,
                                  &t->devices);
    return status == LH_OK ? train_start_check_bits(t) : status;
}

/* The training split, opened first, stands beside the others: what it has checked is not checked
 * again. */
static lh_status_t open_split(const trainer_t *t, uint32_t split, batches_t **out)
{
    const uint32_t vocab = (uint32_t)weights_parameters(t->session->weights)->vocab;
    return step_batches_open(t->job, split, t->samples, vocab, t->how->eod, t->data, out);
}

/* Ranks on several machines read files of their own under one name. Different files of one name
 * would train without an error, and to no purpose. */
static lh_status_t check_same_data(trainer_t *t, uint64_t train, uint64_t valid)
{
    char own[64];
    text_t all = {0};
    (void)snprintf(own, sizeof(own), "train %016llx, held out %016llx", (unsigned long long)train,
                   (unsigned long long)valid);
    lh_status_t status = train_agree_text(&t->agree, own, &all);
    if (status == LH_OK && !text_equal(all.data, own))
        status = fail(LH_MISMATCH,
                      "data.train = %s: the ranks' token files differ (digests: %s); all must have "
                      "the same",
                      t->job->data.train, all.data);
    text_free(&all);
    return status;
}

/* The digest of the training data is part of the identity, that of the held-out data is not:
 * evaluating on other data changes no weight. */
static lh_status_t open_data(trainer_t *t)
{
    uint64_t digest, valid = 0;
    lh_status_t status = step_samples(t->job, t->cursor, t->step, &t->skips, &t->samples);
    if (status == LH_OK) status = open_split(t, SPLIT_TRAIN, &t->data);
    if (status == LH_OK) status = batches_digest(t->data, &digest);
    if (status != LH_OK) return status;
    text_printf(&t->identity, "data.content = %016llx\n", (unsigned long long)digest);
    status = text_status(&t->identity);
    if (status == LH_OK) status = train_start_check_bits(t);
    if (status == LH_OK && t->layout.score.use != 0) status = open_split(t, SPLIT_VALID, &t->valid);
    if (status == LH_OK && t->valid != NULL) status = batches_digest(t->valid, &valid);
    return status == LH_OK ? check_same_data(t, digest, valid) : status;
}

/* The micro-batches' rows lie one after the other, so that one run can take several. Five arrays for all
 * micro-batches together, cut into views, so that a round of several micro-batches hands each array over
 * in one piece. */
static lh_status_t make_batches(trainer_t *t)
{
    const batch_share_t *share = &t->layout.share;
    const uint64_t count = share->micro_batches, tokens = share->rows * t->job->train.sequence;
    const uint64_t documents = t->layout.train.max_documents;
    t->batch = mem_array(count, sizeof(*t->batch));
    if (t->batch == NULL) return LH_NO_MEMORY;
    const lh_status_t status = session_rows_new(count * tokens, count * (documents + 1),
                                                &t->batch[0]);
    const batch_rows_t *b = &t->batch[0];
    t->seeds = mem_array(count, sizeof(*t->seeds));
    if (status != LH_OK || t->seeds == NULL) return LH_NO_MEMORY;
    for (uint64_t i = 0; i < count; i++)
        t->batch[i] = (batch_rows_t){.max_documents = documents,
                                     .tokens = b->tokens + i * tokens,
                                     .labels = b->labels + i * tokens,
                                     .positions = b->positions + i * tokens,
                                     .weights = b->weights + i * tokens,
                                     .starts = b->starts + i * (documents + 1)};
    return LH_OK;
}

/* Pure arithmetic; asked twice, before and after the data is known. */
static step_layout_t layout_of(const trainer_t *t, uint64_t documents_per_sample)
{
    return step_layout(t->job, train_agree_rank(&t->agree), train_agree_size(&t->agree),
                       documents_per_sample);
}

/* The order of micro-batches must be that of the checkpoint, and all ranks' the same, though each
 * may read a file of its own. */
static lh_status_t check_schedule(trainer_t *t)
{
    text_t own = {0}, all = {0};
    step_accumulation_text(t->job, t->programs.schedule, &own);
    text_printf(&t->identity, "parallel.accumulation = %s\n", own.failed ? "" : own.data);
    lh_status_t status = text_status(&own);
    if (status == LH_OK) status = text_status(&t->identity);
    if (status == LH_OK) status = train_start_check_bits(t);
    if (status == LH_OK && t->job->parallel.schedule != NULL)
        status = train_agree_text(&t->agree, own.data, &all);
    if (status == LH_OK && all.length > 0 && !text_equal(all.data, own.data))
        status = fail(LH_MISMATCH, "parallel.schedule = %s: the ranks' files differ (%s)",
                      t->job->parallel.schedule, all.data);
    text_free(&own);
    text_free(&all);
    return status;
}

/* What a rank is about to take of its device. Two ranks have one if machine, name and place agree. */
typedef struct memory_need {
    uint64_t needed, free_bytes; /* needed 0: not known, or the host's own memory */
    char device[96];             /* its name and its PCI path */
} memory_need_t;

/* All that share one device, this rank with them. */
typedef struct memory_share {
    uint32_t ranks;
    uint64_t needed,
        free_bytes; /* the least that any of them has seen: each takes some as it opens */
} memory_share_t;

static void memory_own(const trainer_t *t, const memory_report_t *m, memory_need_t *out)
{
    const engine_t *e = t->session->engine;
    const lh_device_properties_t *p = engine_properties(e);
    lh_device_memory_t device;
    *out = (memory_need_t){0};
    if ((p->flags & LH_DEVICE_HOST_ACCESS) != 0 || !engine_device_memory(e, &device)) return;
    out->needed = m->total_bytes - m->bytes[MEMORY_LIBRARY];
    out->free_bytes = device.free_bytes;
    (void)snprintf(out->device, sizeof(out->device), "%s %s", p->name, p->pci_path);
}

/* Nobody takes any before all have told. Without a PCI path it is not known which are one; parts of a GPU
 * (MIG) have one path and one name, and memory each of its own. */
static lh_status_t memory_gather(const trainer_t *t, const memory_need_t *own, memory_share_t *out)
{
    const train_ranks_t *ranks = t->agree.ranks;
    const uint32_t size = train_agree_size(&t->agree), self = train_agree_rank(&t->agree);
    *out = (memory_share_t){1, own->needed, own->free_bytes};
    if (size == 1) return LH_OK;
    memory_need_t *all = mem_array(size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    const lh_status_t status = ranks->gather(ranks->context, own, sizeof(*own), all);
    const world_rank_t *row = t->how->world->ranks;
    for (uint32_t r = 0; status == LH_OK && r < size && own->needed > 0; r++) {
        if (r == self || engine_properties(t->session->engine)->pci_path[0] == '\0' ||
            strstr(own->device, " MIG ") != NULL || strcmp(row[r].host, row[self].host) != 0 ||
            strcmp(all[r].device, own->device) != 0)
            continue;
        out->ranks++;
        out->needed += all[r].needed;
        if (all[r].free_bytes < out->free_bytes) out->free_bytes = all[r].free_bytes;
    }
    mem_free(all);
    return status;
}

/* What would fit, by what is known of this plan: activations grow with the micro-batch, and with
 * recompute = full those that are saved for the way back are gone but for a block's. Estimates; of
 * other ranks on the device as of this one. */
static void memory_advise(const trainer_t *t, const memory_report_t *m, const memory_share_t *share,
                          text_t *out)
{
    const uint64_t micro = t->job->train.micro_batch;
    const struct {
        const char *key;
        uint64_t less;
    } ways[] = {
        {"micro_batch = 1", micro > 1 ? m->bytes[MEMORY_ACTIVATIONS] / micro * (micro - 1) : 0},
        {"recompute = full", t->job->train.recompute == RECOMPUTE_NONE ? m->saved_bytes : 0},
    };
    for (uint32_t i = 0; i < 2; i++) {
        const uint64_t less = ways[i].less * share->ranks;
        char size[16];
        if (less == 0 || less > share->needed) continue;
        text_bytes((double)(share->needed - less), size);
        text_printf(out, "; with [train] %s some %s, which would%s fit", ways[i].key, size,
                    share->needed - less <= share->free_bytes ? "" : " not");
    }
}

/* "this rank needs 2 GiB", or what all that share the device need, and this one of it. */
static void memory_who(const memory_share_t *share, const memory_need_t *own, char out[96])
{
    char all[16], mine[16];
    text_bytes((double)share->needed, all);
    text_bytes((double)own->needed, mine);
    if (share->ranks == 1)
        (void)snprintf(out, 96, "this rank needs %s", mine);
    else
        (void)snprintf(out, 96, "the %u ranks on it need %s, this one %s", share->ranks, all, mine);
}

/* Where the device's memory is not the host's: refused before any of it is taken. What a library keeps
 * is taken already. All ranks take part, as several may have one device. */
static lh_status_t memory_check(const trainer_t *t)
{
    memory_need_t own;
    memory_share_t share;
    memory_report_t m;
    char size[16], room[16], who[96];
    text_t kinds = {0};
    engine_memory(t->session->engine, &m);
    memory_own(t, &m, &own);
    lh_status_t status = memory_gather(t, &own, &share);
    if (status != LH_OK || share.needed <= share.free_bytes) return status;
    for (uint32_t k = 0; k < MEMORY_KINDS; k++) {
        if (k == MEMORY_PINNED || k == MEMORY_LIBRARY || m.bytes[k] == 0) continue;
        text_bytes((double)m.bytes[k], size);
        text_printf(&kinds, "%s%s %s", kinds.length > 0 ? ", " : "", engine_memory_text(k), size);
    }
    memory_advise(t, &m, &share, &kinds);
    text_bytes((double)share.free_bytes, room);
    memory_who(&share, &own, who);
    status = fail(LH_NO_MEMORY, "%s has %s free, %s: %s", own.device, room, who,
                  kinds.failed ? "" : kinds.data);
    text_free(&kinds);
    return status;
}

/* What takes all processors waits until links are measured; all_of_them: what comes next does. */
static lh_status_t trainer_quiet(trainer_t *t, bool all_of_them)
{
    return all_of_them && t->comm.comm != NULL ? train_comm_quiet(&t->comm) : LH_OK;
}

/* Kernels are timed on a machine that does nothing else. */
static lh_status_t trainer_plan(trainer_t *t)
{
    const lh_status_t status = trainer_quiet(t, t->job->device.tune);
    return status == LH_OK ? session_plan(t->session, &t->agree) : status;
}

/* A device that works in the host's memory has each of its threads touch what they are to work on. */
static lh_status_t trainer_build(trainer_t *t)
{
    engine_t *e = t->session->engine;
    const bool touches = (engine_properties(e)->flags & LH_DEVICE_HOST_ACCESS) != 0;
    const lh_status_t status = trainer_quiet(t, touches);
    return status == LH_OK ? engine_build(e) : status;
}

/* Here device memory is taken. The connections between ranks are made last, as they register that
 * memory. */
static lh_status_t trainer_make_programs(trainer_t *t)
{
    t->layout = layout_of(t, step_documents(t->job, t->data, t->valid, t->how->eod));
    lh_status_t status = make_batches(t);
    if (status == LH_OK)
        status = step_programs_new(t->session, &t->layout, t->agree.ranks, &t->programs);
    if (status == LH_OK) status = check_schedule(t);
    if (status == LH_OK) status = trainer_plan(t);
    if (status == LH_OK) status = memory_check(t);
    if (status == LH_OK) status = trainer_build(t);
    if (status == LH_OK) {
        engine_variants(t->session->engine, &t->variants);
        status = text_status(&t->variants);
    }
    if (status == LH_OK) status = train_memory_plan(t);
    if (status == LH_OK && t->comm.comm != NULL) status = train_comm_connect(&t->comm);
    if (status != LH_OK) return status;

    t->step_rows = mem_array((size_t)t->session->groups.count * LH_STEP_WORDS,
                             sizeof(*t->step_rows));
    if (t->step_rows == NULL) return LH_NO_MEMORY;
    if (train_agree_size(&t->agree) > 1) {
        t->losses = mem_new(program_output_bytes(t->programs.update, OUTPUT_LOSSES));
        if (t->losses == NULL) return LH_NO_MEMORY;
    }
    return LH_OK;
}

/* Weights only: an imported model has no optimizer state, which starts from zero. */
static lh_status_t load_imported(trainer_t *t)
{
    checkpoint_t *imported = NULL;
    /* Each rank reads and checks what it holds; one that fails ends the run. */
    lh_status_t status = checkpoint_open_newest(t->how->imported, &CHECKPOINT_ALL, &imported);
    if (status == LH_OK && imported == NULL)
        status = fail(LH_INVALID, "%s: holds no checkpoint; run the import stage first",
                      t->how->imported);
    if (status == LH_OK) status = snapshot_load(t->snapshot, imported, false);
    checkpoint_close(imported);
    return status;
}

/* The frozen model of phase dpo, whole on each rank: what [dpo] reference names, else what this run's
 * first weights are. Which it was is part of the identity, and all ranks must have the same. */
static lh_status_t load_reference(trainer_t *t)
{
    weights_t *reference = t->session->reference;
    char own[64] = "";
    text_t all = {0};
    uint64_t digest = 0;
    if (reference == NULL) return LH_OK;
    lh_status_t status = snapshot_load_reference(t->session, t->how->imported, t->identity.data,
                                                 &digest);
    (void)snprintf(own, sizeof(own), "%016llx", (unsigned long long)digest);
    if (status == LH_OK) status = train_agree_text(&t->agree, own, &all);
    if (status == LH_OK && !text_equal(all.data, own))
        status = fail(LH_MISMATCH, "the ranks' reference models differ (digests: %s)", all.data);
    text_printf(&t->identity, "dpo.reference = %s\n", own);
    if (status == LH_OK) status = text_status(&t->identity);
    if (status == LH_OK) status = train_start_check_bits(t);
    text_free(&all);
    return status;
}

/* Every store is given its initial value first, whatever is loaded over it; but for parameters where a run
 * goes on, as a checkpoint is loaded with all of them or not at all, and to draw them takes as long as that.
 * With cut values each rank has loaded its own slice, so all are gathered once before the first forward
 * pass. The reference comes before a resume, which puts newer checkpoints aside: not where it is refused. */
static lh_status_t start_weights(trainer_t *t)
{
    weights_t *weights = t->session->weights;
    lh_status_t status = t->resumed != NULL ? weights_initialize_states(weights)
                                            : weights_initialize(weights, t->job->train.seed,
                                                                 t->job->model.init_std);
    if (status == LH_OK) status = load_reference(t);
    if (status != LH_OK) return status;
    if (t->resumed != NULL)
        status = train_start_resume(t);
    else if (t->how->imported != NULL)
        status = load_imported(t);
    if (status != LH_OK || t->session->transfers == NULL) return status;
    return transfers_value_gather(t->session->transfers);
}

/* A manifest that could not be read again is refused now and not after hours, by all ranks alike.
 */
static lh_status_t check_manifest(trainer_t *t)
{
    const uint32_t ranks = train_agree_size(&t->agree);
    uint64_t own = 0;
    lh_status_t status = writer_manifest_bytes(t->writer, &own);
    double bytes = (double)(own +
                            (train_agree_rank(&t->agree) == 0 ? trainer_manifest_head(t) : 0));
    if (status == LH_OK) status = train_agree_sum(&t->agree, &bytes, 1);
    if (status != LH_OK || bytes <= MANIFEST_MOST) return status;
    return fail(LH_INVALID,
                "the manifest of a checkpoint would take %.0f bytes, at most %d are read again%s",
                bytes, MANIFEST_MOST,
                ranks == 1 ? ""
                           : ": fewer ranks, or an [optimizer] plugin that cuts less, make fewer "
                             "parts of tensors");
}

/* What every save consists of. Its memory is taken beside the first steps if one comes on the way;
 * the last save of one rank finds room in what steps needed. writer_ahead makes room in the
 * background, only where a save will come before the last one. */
static lh_status_t lay_out_saves(trainer_t *t)
{
    lh_assert(t->snapshot != NULL);
    const uint64_t every = t->job->checkpoint.every;
    lh_status_t status = LH_OK;
    if (!t->memory.on) /* which train_memory_plan has seen to */
        status = writer_layout(t->writer, t->snapshot->tensors, t->snapshot->count);
    if (status == LH_OK) status = check_manifest(t);
    if (status == LH_OK && every > 0 && (t->step / every + 1) * every < t->job->train.steps)
        writer_ahead(t->writer);
    return status;
}

/* Model, optimizer, device, with the digests of their files: for the manifest. */
static void list_manifest_plugins(trainer_t *t)
{
    const plugin_t *const plugins[] = {t->session->model_plugin, t->session->optimizer_plugin,
                                       t->session->device_plugin};
    for (size_t i = 0; i < sizeof(plugins) / sizeof(plugins[0]); i++) {
        const plugin_t *p = plugins[i];
        lh_assert(t->plugin_count < sizeof(t->plugins) / sizeof(t->plugins[0]));
        t->plugins[t->plugin_count++] = (checkpoint_plugin_t){.kind = plugin_kind_text(p->kind),
                                                              .name = p->name,
                                                              .version = p->version,
                                                              .sha256 = p->sha256,
                                                              .abi = p->row.abi_version};
    }
}

/* A world of one rank has no communicator at all; every use of t->comm.comm tests for that. */
static lh_status_t trainer_open_comm(trainer_t *t)
{
    const train_comm_how_t how = {.job = t->job,
                                  .registry = t->how->registry,
                                  .world = t->how->world,
                                  .control = t->how->control};
    if (how.world == NULL || how.world->row.size == 1) return LH_OK;
    return train_comm_open(&t->comm, &how);
}

/* A profile that somebody asked for is refused now rather than left out of the run's end. */
static lh_status_t check_profiler(const trainer_t *t)
{
    if (t->how->profiler == NULL || engine_can_profile(t->session->engine)) return LH_OK;
    return fail(LH_UNSUPPORTED,
                "device %s does not tell when an event was passed: no step can be profiled",
                t->session->device_plugin->name);
}

/* The calls of the INI are bound before the folder, the device and the data are opened: a typing
 * error in them costs nothing then. */
lh_status_t trainer_open(trainer_t *t, const train_how_t *how)
{
    *t = (trainer_t){.how = how,
                     .job = how->job,
                     .writer = how->writer,
                     .below = CHECKPOINT_ALL,
                     .saved_step = UINT64_MAX,
                     .valid_loss = NAN,
                     .valid_step = UINT64_MAX};
    lh_status_t status = trainer_open_comm(t);
    if (status == LH_OK)
        status = train_agree_new(t->comm.comm != NULL ? &t->comm.ranks : NULL, &t->agree);
    t->layout = layout_of(t, 0);
    if (status == LH_OK) status = digest_config(t->job, t->config);
    if (status == LH_OK) status = step_calls_new(t->job, how->registry, &t->calls);
    if (status == LH_OK) status = step_samples(t->job, 0, 0, &t->skips, &t->samples);
    if (status == LH_OK) status = train_start_find(t);
    if (status == LH_OK) status = open_session(t);
    if (status == LH_OK) status = check_profiler(t);
    if (status == LH_OK) status = open_data(t);
    if (status == LH_OK) status = trainer_make_programs(t);
    if (status == LH_OK && t->snapshot == NULL)
        status = snapshot_new(t->session->weights, t->session->transfers, &t->snapshot);
    if (status == LH_OK) status = start_weights(t);
    if (status == LH_OK) status = lay_out_saves(t);
    if (status == LH_OK) status = train_sites_incarnation(t);
    if (status != LH_OK) return status;

    checkpoint_close(t->resumed);
    t->resumed = NULL;
    train_sites_close(t);
    list_manifest_plugins(t);
    return LH_OK;
}

/* Links end before anything that lies in registered memory is freed. A writer that may wait for a
 * rank which is gone is left behind (writer_leave) instead of waited for. */
void trainer_close(trainer_t *t)
{
    checkpoint_close(t->resumed);
    train_comm_close(&t->comm, !t->failed);
    if (t->failed && train_agree_size(&t->agree) > 1)
        writer_leave(t->writer);
    else
        writer_close(t->writer);
    train_memory_close(t);
    train_sites_close(t);
    snapshot_free(t->snapshot);
    step_programs_free(&t->programs);
    batches_close(t->data);
    batches_close(t->valid);
    if (t->batch != NULL) session_rows_free(&t->batch[0]);
    mem_free(t->seeds);
    mem_free(t->batch);
    mem_free(t->step_rows);
    mem_free(t->losses);
    mem_free(t->profile);
    mem_free(t->frames);
    mem_free(t->ranks_memory);
    text_free(&t->variants);
    text_free(&t->identity);
    text_free(&t->devices);
    session_close(t->session);
    step_calls_free(t->calls);
    train_agree_free(&t->agree);
}

/* ---- what it holds ---- */

void trainer_planned_memory(const trainer_t *t, memory_report_t *out)
{
    engine_memory(t->session->engine, out);
    out->bytes[MEMORY_TRANSFERS] += t->comm.planned_bytes;
    out->total_bytes += t->comm.planned_bytes;
}

/* The memory of every rank, planned and measured, told to all at the end. Transfers are memory of
 * comm and not of the engine, so they are added to both columns. */
static rank_memory_t own_memory(const trainer_t *t)
{
    struct rusage usage = {0};
    lh_device_memory_t device;
    const engine_t *e = t->session->engine;
    rank_memory_t m = {.rank = train_agree_rank(&t->agree)};
    trainer_planned_memory(t, &m.planned);
    engine_memory_measured(e, &m.measured);
    if (t->comm.comm != NULL) {
        m.measured.bytes[MEMORY_TRANSFERS] += comm_bytes(t->comm.comm);
        m.measured.total_bytes += comm_bytes(t->comm.comm);
    }
    if (engine_device_memory(e, &device)) m.device_bytes = device.process_bytes;
    if (getrusage(RUSAGE_SELF, &usage) == 0) m.resident_bytes = (uint64_t)usage.ru_maxrss * 1024;
    return m;
}

/* A gather of structs as bytes, in the order of ranks. */
lh_status_t trainer_memory(trainer_t *t)
{
    const uint32_t size = train_agree_size(&t->agree);
    if (t->ranks_memory != NULL) return LH_OK; /* the last save has asked before */
    const rank_memory_t mine = own_memory(t);
    rank_memory_t *all = mem_array(size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    all[0] = mine;
    if (size > 1) {
        const train_ranks_t *ranks = t->agree.ranks;
        status = ranks->gather(ranks->context, &mine, sizeof(mine), all);
    }
    if (status != LH_OK) {
        mem_free(all);
        return status;
    }
    t->ranks_memory = all;
    return LH_OK;
}
