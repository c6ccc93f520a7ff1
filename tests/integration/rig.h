/* rig.h - a whole engine for a test: plugins loaded as in a run, a model with options, an
 * optimizer. The device is named by the environment variable LH_TEST_DEVICE ("reference" where
 * unset) and gets LH_TEST_THREADS threads (2). Every failure fails the test with its sentence. */
#ifndef RIG_H
#define RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail /* cmocka's; the core's fail() is meant here */

#include <comm/comm.h>
#include <control/world.h>
#include <engine/engine.h>
#include <graph/op_table.h>
#include <parallel/update.h>
#include <plugin/host.h>

enum { RIG_CONFIG = 4096, RIG_BATCH_INPUTS = 5, RIG_KERNELS = 96 };

typedef struct rig {
    host_t *host;
    registry_t *registry;
    struct plugins *plugins; /* that hold host and registry */
    op_table_t *ops;
    const plugin_t *device, *model_plugin, *optimizer_plugin, *rules;
    _Alignas(64) char device_config[RIG_CONFIG];
    _Alignas(64) char model_config[RIG_CONFIG];
    _Alignas(64) char optimizer_config[RIG_CONFIG];
    _Alignas(64) char rule_config[RIG_CONFIG];
    lh_model_t *model;
    lh_optimizer_t *optimizer;
    engine_t *engine;
    weights_t *weights;
    const parameters_t *parameters;
    plugin_t lean; /* the device without its kernels of rig_how_t.lacking */
    lh_kernel_t lean_kernels[RIG_KERNELS];
} rig_t;

typedef struct rig_option {
    const char *key, *value;
} rig_option_t;

#define OK(call) rig_ok(call, #call, __FILE__, __LINE__)
void rig_ok(lh_status_t status, const char *what, const char *file, int line);

/* options ends with a row of NULL. */
void rig_open(rig_t *rig, const char *model, const rig_option_t *options, lh_dtype_t compute);
typedef struct rig_how {
    const char *model;
    const plugin_t *made;        /* instead of the plugin of that name; NULL */
    const rig_option_t *options; /* ends with a row of NULL */
    lh_dtype_t compute;
    const char *variants;      /* as engine_how_t.variants; NULL */
    bool unordered;            /* as engine_how_t.unordered */
    const char *lacking;       /* an op of which the device has no kernel here; NULL */
    const lh_model_api_t *api; /* instead of the plugin's own; NULL */
    const plugin_t *parts;     /* one more plugin with ops and kernels; NULL */
    /* Beside its threads; ends with a row of NULL, or is NULL. */
    const rig_option_t *device_options;
} rig_how_t;
void rig_open_how(rig_t *rig, const rig_how_t *how);
void rig_close(rig_t *rig);
const char *rig_device(void);
/* A folder that the build knows, or where a copy of the test that runs elsewhere finds it: the variable
 * of that name. */
const char *rig_folder(const char *name, const char *built);

/* zero0 with rules:adamw of betas 0.9 and 0.95, epsilon 1e-8. */
program_t *rig_update(rig_t *rig, double decay);
/* With another optimizer plugin, beside other ranks: comm is connected by the caller after
 * engine_build, *transfers freed after rig_close. */
program_t *rig_update_over(rig_t *rig, double decay, const char *optimizer, uint32_t rounds,
                           comm_t *comm, transfers_t **transfers);
/* Runs it: clip 0 is none. Returns the gradient norm it saw; *applied may be NULL. */
float rig_step(program_t *update, uint64_t step, double rate, double clip, bool *applied);

/* ---- several ranks, each a process of its own ---- */

enum { RIG_RANKS = 4 }; /* at most */

typedef struct rig_rank {
    uint32_t rank, ranks;
    world_t *world;
    control_t *control;
    job_t *job; /* nothing but what it must say */
    comm_t *comm;
    published_t *published;
    transfers_t *transfers; /* of rig_rank_update; NULL */
} rig_rank_t;

/* Forks the ranks, in each of which `body` is called once they have met; it closes the rank. Fails
 * the test unless all return. */
void rig_over_ranks(uint32_t ranks, void (*body)(rig_rank_t *r, void *context), void *context);
/* Before rig_rank_open: by which plugin ranks of this machine exchange, in place of the default. */
void rig_rank_transport(rig_rank_t *r, const char *plugin);
/* After rig_open: what the rank communicates with. Between engine_build and the first run the caller
 * calls comm_connect. */
void rig_rank_open(rig_rank_t *r, rig_t *rig);
program_t *rig_rank_update(rig_rank_t *r, rig_t *rig, double decay, const char *optimizer);
/* Closes the rig too. All ranks call it. */
void rig_rank_close(rig_rank_t *r, rig_t *rig);

/* A program of the rig's model, before engine_build. */
program_t *rig_program(rig_t *rig, const program_how_t *how);
/* All gradients, one parameter after the other; the caller frees them. */
float *rig_gradients(const rig_t *rig);
/* A batch of joined rows: labels are tokens shifted by one. `rows` [sequences, sequence + 1]; every
 * token weighs 1 / weight_sum. */
void rig_batch(program_t *p, const int32_t *rows, uint64_t sequences, uint64_t sequence,
               double weight_sum);
/* As many micro-batches of `sequences` each, one after the other: of a round of several. */
void rig_batches(program_t *p, const int32_t *rows, uint64_t micro_batches, uint64_t sequences,
                 uint64_t sequence, double weight_sum);
float rig_loss(program_t *p);

#endif
