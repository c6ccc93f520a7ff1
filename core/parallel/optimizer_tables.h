/* parallel/optimizer_tables.h - the job's optimizer, and what its tables of spaces and moves come
 * to over the ranks that there are: which data is whole and which is cut, what is summed and
 * gathered when, and a sentence for what is not built. Reads descriptions only: no device, no
 * memory of the job, no other rank.
 *
 * An optimizer plugin describes and does not communicate (longhaul/optimizer.h). A SPACE is a kind
 * of data, such as gradients, with the group of ranks by which it is cut; a MOVE brings data from
 * one space to another at a moment of the step, such as a sum of gradients over a group. Replicated
 * training and the ZeRO stages are such tables. Here they are read once, checked, and sorted into
 * the few places that the core has for them; what fits none is refused, not approximated. */
#ifndef PARALLEL_OPTIMIZER_TABLES_H
#define PARALLEL_OPTIMIZER_TABLES_H

#include <longhaul/optimizer.h>

#include <control/world.h>
#include <graph/parameters.h>

enum { TABLE_SPACES = 32, TABLE_MOVES = 64 };

/* What to do with a parameter: the update itself, recorded by a rule of a parts plugin. */
typedef struct optimizer_rule { /* a rule row with its parsed options */
    const lh_rule_t *rule;      /* imported */
    const void *config;
} optimizer_rule_t;

/* Parameters that share a rule and a decay: [group.NAME] of the job. Group g is row g of
 * LH_INPUT_STEP; group 0 is [optimizer] itself. */
typedef struct optimizer_group {
    uint32_t rule; /* index into rules */
    double decay;  /* a factor without unit; parameters flagged LH_PARAM_NO_DECAY get 0 instead */
} optimizer_group_t;

/* The job's optimizer, and over which ranks it is spread. Lists belong to the caller. */
typedef struct optimizer_how {
    const lh_optimizer_api_t *api;
    lh_optimizer_t *optimizer; /* opened; closed by the caller after engine_close  */
    const optimizer_rule_t *rules;
    uint32_t rule_count;
    const optimizer_group_t *groups;
    uint32_t group_count;
    const uint32_t *group_of; /* [parameters] index into groups; NULL: all 0      */
    uint32_t rounds;          /* runs of the training program in a step */
    const world_t *world;     /* NULL: alone                                     */
} optimizer_how_t;

/* The group and the rule of a parameter, by its index; borrowed from `how`. */
const optimizer_group_t *optimizer_group_of(const optimizer_how_t *how, uint32_t parameter);
const lh_rule_t *optimizer_rule_of(const optimizer_how_t *how, uint32_t parameter);

/* Tables as one rank uses them; they are the same on all ranks of a job. A group of one rank cuts
 * nothing: what is cut by such a group is whole, and a REDUCE or GATHER over it makes two spaces
 * one. Spaces and moves are named by their index; TABLE_SPACES and TABLE_MOVES stand for none. */
typedef struct optimizer_tables {
    lh_space_t spaces[TABLE_SPACES];
    lh_move_t moves[TABLE_MOVES]; /* in the order in which a step runs them */
    /* Counts of rows; each row is a copy of the plugin's, cut or filled up to the size that the
     * core knows. */
    uint32_t space_count, move_count;
    /* [space_count] The space in whose memory space i lies: i itself, or the space that i was
     * joined with. root[root[i]] is root[i]. */
    uint32_t root[TABLE_SPACES];
    /* The lasting space of each kind; TABLE_SPACES: there is none. */
    uint32_t value, grad, master, state;
    /* The whole form of a space that is cut: the gradients that the backward pass adds into, the
     * values that an instance reads; TABLE_SPACES: none. */
    uint32_t wide_grad, wide_value;
    lh_dtype_t grad_dtype, master_dtype; /* 0: the table names none */

    /* All that is cut is cut by one group, so that an element's gradient, master and states lie on
     * one rank. */
    uint32_t cut; /* LH_GROUP_* of that group; LH_GROUP_SELF: nothing is cut */
    /* Moves between several ranks; TABLE_MOVES: none. */
    uint32_t sum;          /* sums a bucket's gradients over the group    */
    uint32_t across;       /* sums the result of `sum` over sites         */
    uint32_t value_gather; /* gathers new values after the update         */
    uint32_t instance;     /* gathers an instance's values before its use */
    uint64_t bucket_bytes; /* 0: the host's choice                        */
} optimizer_tables_t;

/* Asks the optimizer and checks what it says. `train` is all that the optimizer may know of the
 * job. LH_UNSUPPORTED: the table asks for what is not built; LH_INVALID: it contradicts itself. The
 * sentence names the space or the move. *out owns nothing. */
lh_status_t optimizer_tables_read(const lh_optimizer_api_t *api, lh_optimizer_t *optimizer,
                                  const lh_train_t *train, optimizer_tables_t *out) LH_MUST_CHECK;
/* As optimizer_tables_read, for a job's parameters, of which `train` is made. frozen: [parameters];
 * compute: the dtype of values. */
lh_status_t optimizer_tables_of(const optimizer_how_t *how, const parameters_t *parameters,
                                const bool *frozen, lh_dtype_t compute,
                                optimizer_tables_t *out) LH_MUST_CHECK;
/* Whether data of a root space is cut over more than one rank; false for TABLE_SPACES. */
bool optimizer_tables_is_cut(const optimizer_tables_t *t, uint32_t space);

/* The row of a move, borrowed from the tables; NULL for TABLE_MOVES. */
const lh_move_t *optimizer_tables_move(const optimizer_tables_t *t, uint32_t move);

#endif
