/* recorded_rig.c - see recorded_rig.h. */
#include "recorded_rig.h"

#include <base/memory.h>
#include <engine/program.h>
#include <engine/weights.h>

const lh_model_api_t *recorded_plain;

void recorded_open(recorded_t *r, recorded_part_t *part)
{
    const golden_model_t *m = &golden_models[0];
    static lh_model_api_t own;
    rig_t probe; /* for the plugin's own functions */
    rig_open(&probe, m->plugin, m->options, LH_DTYPE_F32);
    recorded_plain = probe.model_plugin->model;
    rig_close(&probe);
    own = *recorded_plain;
    own.record = part;
    const rig_how_t how = {
        .model = m->plugin, .options = m->options, .compute = LH_DTYPE_F32, .api = &own};
    rig_open_how(&r->rig, &how);
}

void recorded_train(recorded_t *r, uint32_t recompute)
{
    const program_how_t how = {.use = USE_TRAIN,
                               .sequences = GOLDEN_BATCH,
                               .rows = GOLDEN_SEQUENCE,
                               .micro_batches = 1,
                               .recompute = recompute};
    OK(program_new(r->rig.engine, r->rig.weights, &how, &r->train));
}

void recorded_run(recorded_t *r, uint32_t number)
{
    int32_t batch[GOLDEN_BATCH * (GOLDEN_SEQUENCE + 1)];
    golden_batch(&golden_models[0], number, batch);
    rig_batch(r->train, batch, GOLDEN_BATCH, GOLDEN_SEQUENCE, RECORDED_TOKENS);
    OK(program_run(r->train, 0));
    r->loss = rig_loss(r->train);
}

void recorded_gradients(recorded_t *r)
{
    const parameters_t *p = r->rig.parameters;
    r->gradients = mem_array(p->count, sizeof(*r->gradients));
    r->held = mem_array(p->count, sizeof(*r->held));
    for (uint32_t i = 0; i < p->count; i++) {
        weights_shard_t shard;
        if (p->items[i].storage != i) continue;
        assert_true(weights_shard(r->rig.weights, SPACE_GRAD, i, &shard));
        const uint64_t count = shard.slice.end - shard.slice.begin;
        r->held[i] = shard.slice;
        r->gradients[i] = mem_array(count + 1, sizeof(float));
        if (count > 0)
            OK(weights_read(r->rig.weights, SPACE_GRAD, i, shard.slice.begin, count, LH_DTYPE_F32,
                            r->gradients[i]));
    }
}

void recorded_free(recorded_t *r)
{
    for (uint32_t i = 0; i < r->rig.parameters->count; i++)
        mem_free(r->gradients[i]);
    mem_free(r->gradients);
    mem_free(r->held);
}

void recorded_compare(const recorded_t *alone, const recorded_t *together)
{
    const parameters_t *p = alone->rig.parameters;
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->items[i].storage != i) continue;
        const lh_slice_t held = together->held[i];
        for (uint64_t k = held.begin; k < held.end; k++)
            assert_true(2 * alone->gradients[i][k] == together->gradients[i][k - held.begin]);
    }
}
