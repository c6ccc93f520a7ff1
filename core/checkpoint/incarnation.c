/* incarnation.c - the number of a start, in the name of a file without bytes.
 *
 *     .incarnation-000000000007-5f0c...    number, and the id of the run
 *
 * A name and no contents: a disk that is full still takes one, and there is no moment at which it is half
 * written. The new name is on the disk before older ones go, as are those of folders that were made for it: a
 * save of this start may come to its end in another site alone. Where a crash leaves several the highest
 * counts. A manifest may come from anywhere, and its run's id becomes part of a name: digits alone do.
 *
 * Names may come from anywhere, too: of a damaged folder, or from somebody's hand. A number that starts can't
 * have counted to is ignored, and any other is counted on from, so that a wrong one never ends a run. */
#include <checkpoint/incarnation.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <checkpoint/checkpoint_folder.h>

#define INCARNATION_HEAD ".incarnation-"
#define RUN_DIGITS "0123456789abcdef"
/* Decimal digits that are read. */
enum { INCARNATION_DIGITS = 15, INCARNATION_NAME = 80 };
_Static_assert(INCARNATION_MOST < UINT64_C(1) << 53, "a manifest's scalar is a double");

incarnation_t incarnation_of(const manifest_t *m)
{
    const uint64_t number = manifest_incarnation(m);
    incarnation_t made = {.number = number <= INCARNATION_MOST ? number : 0};
    if (m->meta.run != NULL) (void)snprintf(made.run, sizeof(made.run), "%s", m->meta.run);
    return made;
}

bool incarnation_later(const incarnation_t *a, const incarnation_t *b)
{
    return b->number > 0 && a->number > b->number && strcmp(a->run, b->run) == 0;
}

uint64_t incarnation_after(uint64_t seen)
{
    return seen < INCARNATION_MOST ? seen + 1 : INCARNATION_MOST;
}

static bool incarnation_parse(const char *name, incarnation_t *out)
{
    if (!text_starts(name, INCARNATION_HEAD)) return false;
    const char *digits = name + sizeof(INCARNATION_HEAD) - 1;
    const size_t length = strspn(digits, "0123456789");
    if (length == 0 || length > INCARNATION_DIGITS || digits[length] != '-') return false;
    const char *run = digits + length + 1;
    const size_t run_length = strspn(run, RUN_DIGITS);
    if (run[run_length] != '\0' || run_length >= sizeof(out->run)) return false;
    *out = (incarnation_t){.number = strtoull(digits, NULL, 10)};
    memcpy(out->run, run, run_length + 1);
    return out->number <= INCARNATION_MOST;
}

/* For sys()->list: 0 goes on. */
static int incarnation_see(void *context, const char *name)
{
    incarnation_t *last = context, found;
    if (incarnation_parse(name, &found) && found.number > last->number) *last = found;
    return 0;
}

lh_status_t incarnation_read(const char *folder, incarnation_t *out)
{
    incarnation_t last = {.number = 0};
    errno = 0;
    if (sys()->list(folder, incarnation_see, &last) != 0 && errno != ENOENT)
        return fail_io(errno, "%s: cannot list the folder", folder);
    *out = last;
    return LH_OK;
}

typedef struct older { /* than what has just been written */
    const char *folder;
    uint64_t number;
} older_t;

/* An older one that can't be removed does no harm. What only looks like one is left to a person. */
static int incarnation_tidy(void *context, const char *name)
{
    const older_t *o = context;
    incarnation_t found;
    if (!text_starts(name, INCARNATION_HEAD)) return 0;
    if (!incarnation_parse(name, &found)) {
        log_line(LH_LOG_WARN, "%s/%s: no start of a run has this name: it is ignored", o->folder,
                 name);
        return 0;
    }
    if (found.number >= o->number) return 0;
    char *path = path_join(o->folder, name);
    if (path != NULL) (void)sys()->unlink(path);
    mem_free(path);
    return 0;
}

lh_status_t incarnation_write(const char *folder, const incarnation_t *value)
{
    const bool plain = value->run[strspn(value->run, RUN_DIGITS)] == '\0';
    older_t older = {folder, value->number};
    char name[INCARNATION_NAME];
    lh_assert(value->number > 0 && value->number <= INCARNATION_MOST);
    lh_status_t status = checkpoint_folder_make(folder);
    if (status != LH_OK) return status;
    (void)snprintf(name, sizeof(name), INCARNATION_HEAD "%012llu-%s",
                   (unsigned long long)value->number, plain ? value->run : "");
    char *path = path_join(folder, name);
    if (path == NULL) return LH_NO_MEMORY;
    const int fd = sys_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    /* Where there is no number more the name may be there already, which is all that it takes. */
    if (fd < 0 && errno != EEXIST) status = fail_io(errno, "%s: cannot create", path);
    if (fd >= 0 && sys_fsync(fd) != 0) status = fail_io(errno, "%s: cannot sync", path);
    if (fd >= 0 && sys()->close(fd) != 0 && status == LH_OK)
        status = fail_io(errno, "%s: cannot close", path);
    if (status == LH_OK) status = folder_sync(folder);
    mem_free(path);
    if (status == LH_OK) (void)sys()->list(folder, incarnation_tidy, &older);
    return status;
}
