/* tcp_ledger.h - how connections of this rank to one site share the pace of its link. */
#ifndef TCP_LEDGER_H
#define TCP_LEDGER_H

#include "tcp.h"

/* The part of its pace that a connection has, of those in the list from `first` on (lh_conn_t.next) by
 * their site, service and `is_sending`. Pure. */
double ledger_share(const lh_conn_t *first, const lh_conn_t *c);
/* Likewise: whether it lets others go first, with what keeps it from standing still. Pure. */
bool ledger_yields(const lh_conn_t *first, const lh_conn_t *c);
/* Looks who sends, every 8 ms, and paces anew whose share has changed. For each poll. */
void ledger_settle(lh_transport_t *t);

#endif
