/* cli/bench_links.h - longhaul bench links, over the ranks of the job itself. */
#ifndef CLI_BENCH_LINKS_H
#define CLI_BENCH_LINKS_H

#include <cli/cli.h>

int bench_links(cli_t *cli);

#endif
