/* ib_facts.h - what facts of ib and apn over the stand-in of libibverbs share. */
#ifndef IB_FACTS_H
#define IB_FACTS_H

#include <transport_facts.h>

#include "fact_main.h"

/* An order to the stand-in in this process, and what it has counted; the fact is skipped where
 * another library is loaded. */
void ib_order(const char *text);
uint64_t ib_count(const char *name);
/* What this process sends from now on goes to that file, too; "": to none. */
void ib_tap(const char *path);

void ib_meet(end_t *e, uint32_t security);
/* The connection ends for that reason, whose sentence has these words. */
void ib_expect_end(end_t *e, lh_status_t why, const char *words);
/* end_join_with into e->conn; what this end has logged of it is in text. */
void ib_join_heard(end_t *e, const lh_conn_params_t *params, char *text, size_t room);
/* In main, before any fact: what both ends of one share. */
void ib_facts_begin(void);
/* A clock of time in which both ends ran, in ns, from the first call on at each: what a busy machine keeps
 * one of them from counts for nothing. */
uint64_t ib_ran_ns(const end_t *e);
/* Messages both ways, whose end is awaited, in ns of that clock. */
uint64_t ib_exchange(end_t *e, buffer_t *out, buffer_t *in, uint32_t messages, uint64_t bytes);
/* Neither end polls for a second while messages are under way both ways, of which more are posted than either
 * may send without hearing from the other, and `packets` of this end's at least have left: each write meets a
 * receive work request, and all arrive when both poll again. */
void ib_rest(end_t *e, uint32_t security, uint32_t messages, uint64_t bytes, uint64_t packets);
/* Messages of random sizes, while the fabric gets better and worse, receivers say not to be ready and
 * queue pairs fail: 3,000 each way, with torture `at_most`. Nothing is lost, doubled, reordered or torn,
 * nothing stands still, and no receiver was not ready but by order. Of two ports one or the other is
 * down at times. */
void ib_random_messages(end_t *e, uint32_t security, uint32_t ports, uint64_t at_most);

#endif
