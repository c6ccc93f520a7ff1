/* comm/comm_expect.h - what is known of links before ranks connect, for jobs that are planned: rows of
 * a record, which are found by the names of sites, as no address is known. */
#ifndef COMM_COMM_EXPECT_H
#define COMM_COMM_EXPECT_H

#include <comm/comm_agree.h>

/* Sets c->expected from c->known. */
lh_status_t comm_expect_pairs(comm_t *c) LH_MUST_CHECK;
/* What all ranks would tell (all[size]): files are mapped if the node's transport can, and links
 * between sites are as c->expected has them. Loads the transport plugin, and opens nothing. */
lh_status_t comm_expect_facts(comm_t *c, comm_facts_t *all) LH_MUST_CHECK;

#endif
