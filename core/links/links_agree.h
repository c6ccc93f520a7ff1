/* links/links_agree.h - while it trains: what ranks tell each other of links between sites, and what all of
 * them find by it alike. */
#ifndef LINKS_LINKS_AGREE_H
#define LINKS_LINKS_AGREE_H

#include <links/links.h>

/* What this rank has to tell of its links to each site: [sites], but for `sent`, which only who starts
 * messages knows, and which becomes 0. */
void links_tell(const links_t *l, link_told_t *rows);
/* Between two steps: what all ranks have told of a step that is over, [ranks x sites], the same on all of
 * them. Where a way has another length, or loses more, connections over it are tuned anew on all
 * ranks; and where it has another rate, which paces have followed already, that is noted. Each table once. */
void links_agree(links_t *l, const link_told_t *all, uint64_t step);
/* A row for each way from a site to another, in the order of sites, `room` at most; how many. */
uint32_t links_borders(const links_t *l, const link_told_t *all, link_border_t *rows,
                       uint32_t room);
/* Links that are other since the last call, on any pair of sites, oldest first and `room` at most; how
 * many. What nobody asks for is kept up to LINKS_CHANGES, and the rest is lost. */
uint32_t links_changes(links_t *l, link_change_t *rows, uint32_t room);

#endif
