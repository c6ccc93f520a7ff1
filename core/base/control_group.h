/* base/control_group.h - the control group that this process is in, as cgroups(7) says: the folder in
 * which the kernel keeps the group's limits and counts, and the folders of the groups above it.
 *
 * A limit of a group holds for all below it, so who looks for one goes up as far as the hierarchy is
 * mounted. A container may see its own part of it alone: what its engine has set above that is not
 * to be found. Nothing here fails: what can't be read is no limit. */
#ifndef BASE_CONTROL_GROUP_H
#define BASE_CONTROL_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { CONTROL_GROUP_LINE = 4096 };

typedef struct control_group {
    bool unified; /* of version 2, whose files have other names than those of version 1 */
    size_t top;   /* so much of the folder is where the hierarchy is mounted */
    char folder[3 * CONTROL_GROUP_LINE];
} control_group_t;

/* What a hierarchy of groups limits: the kernel's controllers of memory and of processor time. */
typedef enum controller { CONTROLLER_MEMORY, CONTROLLER_PROCESSORS } controller_t;

/* The group in whose hierarchy that controller is: of version 1 where that has it, else of version 2.
 * root: the folder under which proc and the control groups lie, "/" but for tests. false: it can't be
 * found. */
bool control_group_find(const char *root, controller_t of, control_group_t *out);
/* Goes to the group above. false: this is the topmost that is mounted. */
bool control_group_rise(control_group_t *g);
/* A file of the group, to be read and closed; NULL: there is none. */
FILE *control_group_open(const control_group_t *g, const char *name);

#endif
