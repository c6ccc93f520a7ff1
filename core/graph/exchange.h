/* graph/exchange.h - how a program reaches other ranks: parallel/ puts calls into flows that start
 * a transfer and wait for it, by ticket; the executor hands them back here.
 *
 * The graph does not know what moves; the order of starts is the same on all ranks because their
 * programs are. */
#ifndef GRAPH_EXCHANGE_H
#define GRAPH_EXCHANGE_H

#include <graph/engine.h>

typedef struct exchange exchange_t;
struct exchange {
    /* A program is written but not yet planned: puts calls into its flow. */
    lh_status_t (*arrange)(exchange_t *x, program_t *p);
    /* The flow value of a parameter for the visit that the flow is in, where the weights are cut.
     * 0 after a failure; NULL: they are whole. */
    uint32_t (*value)(exchange_t *x, program_t *p, uint32_t parameter);
    /* The flow value that a parameter's gradient is added into, where it is whole only for a
     * bucket. NULL: the store of gradients is. */
    uint32_t (*gradient)(exchange_t *x, program_t *p, uint32_t parameter);
    /* Memory is allocated, nothing has run. */
    lh_status_t (*build)(exchange_t *x);
    /* In a step. What a start reads has been written; start returns at once. A wait for what was
     * not started since the last wait returns at once. */
    lh_status_t (*start)(exchange_t *x, uint32_t ticket);
    lh_status_t (*wait)(exchange_t *x, uint32_t ticket);
};

/* Before the first program_new; x outlives the engine. */
void engine_use_exchange(engine_t *e, exchange_t *x);

#endif
