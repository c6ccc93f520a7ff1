/* control_group.c - /proc/self/cgroup has the group's path, /proc/self/mountinfo where that hierarchy
 * is mounted and which part of it. */
#include <base/control_group.h>

#include <string.h>

static const char *const controller_names[] = {
    [CONTROLLER_MEMORY] = "memory",
    [CONTROLLER_PROCESSORS] = "cpu",
};

/* On the stack: whoever asks in the middle of something has no failed allocation to tell of. */
static FILE *control_group_file(const char *folder, const char *name)
{
    char path[4 * CONTROL_GROUP_LINE];
    const int length = snprintf(path, sizeof(path), "%s/%s", folder, name);
    return length < 0 || (size_t)length >= sizeof(path) ? NULL : fopen(path, "re");
}

/* Whether a word is one of those that commas part: that of processors is none of "cpuset,cpuacct". */
static bool control_group_lists(const char *list, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

/* A line is "hierarchy:controllers:path". Version 1 where it has the controller, else version 2. */
static bool control_group_path(const char *root, const char *controller,
                               char out[CONTROL_GROUP_LINE], bool *unified)
{
    char line[CONTROL_GROUP_LINE];
    bool found = false;
    FILE *f = control_group_file(root, "proc/self/cgroup");
    if (f == NULL) return false;
    while (!(found && !*unified) && fgets(line, sizeof(line), f) != NULL) {
        char *rest = line, *words[2];
        for (int i = 0; i < 2; i++)
            words[i] = strsep(&rest, ":");
        if (rest == NULL) continue;
        const bool second = strcmp(words[0], "0") == 0 && words[1][0] == '\0';
        if (!second && !control_group_lists(words[1], controller)) continue;
        rest[strcspn(rest, "\n")] = '\0';
        (void)snprintf(out, CONTROL_GROUP_LINE, "%s", rest);
        *unified = second;
        found = true;
    }
    (void)fclose(f);
    return found;
}

/* A line is "id parent device ROOT POINT options ... - TYPE source OPTIONS". */
static bool control_group_mount(const char *root, const char *controller, bool unified,
                                char part[CONTROL_GROUP_LINE], char point[CONTROL_GROUP_LINE])
{
    char line[CONTROL_GROUP_LINE], type[64], options[CONTROL_GROUP_LINE];
    bool found = false;
    FILE *f = control_group_file(root, "proc/self/mountinfo");
    if (f == NULL) return false;
    while (!found && fgets(line, sizeof(line), f) != NULL) {
        const char *end = strstr(line, " - ");
        if (end == NULL || sscanf(end, " - %63s %*s %4095s", type, options) != 2 ||
            sscanf(line, "%*s %*s %*s %4095s %4095s", part, point) != 2)
            continue;
        found = unified ? strcmp(type, "cgroup2") == 0
                        : strcmp(type, "cgroup") == 0 && control_group_lists(options, controller);
    }
    (void)fclose(f);
    return found;
}

bool control_group_find(const char *root, controller_t of, control_group_t *out)
{
    const char *controller = controller_names[of];
    char group[CONTROL_GROUP_LINE], part[CONTROL_GROUP_LINE], point[CONTROL_GROUP_LINE];
    *out = (control_group_t){0};
    if (!control_group_path(root, controller, group, &out->unified) ||
        !control_group_mount(root, controller, out->unified, part, point))
        return false;
    /* A container may see its own part of the hierarchy alone, under a path of its own. */
    const size_t length = strlen(part);
    const bool within = strncmp(group, part, length) == 0 &&
                        (group[length] == '/' || group[length] == '\0');
    const char *inside = within ? group + length : group;
    const int top = snprintf(out->folder, sizeof(out->folder), "%s%s", root, point);
    if (top < 0 || (size_t)top + strlen(inside) >= sizeof(out->folder)) return false;
    out->top = (size_t)top;
    memcpy(out->folder + top, inside, strlen(inside) + 1);
    return true;
}

bool control_group_rise(control_group_t *g)
{
    char *slash = strrchr(g->folder + g->top, '/');
    if (slash == NULL) return false;
    *slash = '\0';
    return true;
}

FILE *control_group_open(const control_group_t *g, const char *name)
{
    return control_group_file(g->folder, name);
}
