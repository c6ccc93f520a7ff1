/* shared_folder.c - a mark among the leftovers of a folder. */
#include <checkpoint/shared_folder.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>

enum { PAUSE_US = 20000, NS_PER_MS = 1000000, NAME_ROOM = 48 };

static char *mark_path(const char *folder, uint64_t session)
{
    char name[NAME_ROOM];
    (void)snprintf(name, sizeof(name), ".tmp-shared-%016llx", (unsigned long long)session);
    return path_join(folder, name);
}

lh_status_t shared_folder_mark(const char *folder, uint64_t session)
{
    char *path = mark_path(folder, session);
    if (path == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    const int fd = sys_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    if (fd < 0 || sys()->close(fd) != 0) status = fail(LH_IO, "%s: cannot create", path);
    mem_free(path);
    return status;
}

lh_status_t shared_folder_look(const char *folder, uint64_t session)
{
    const uint64_t until = sys()->now_ns() + (uint64_t)SHARED_FOLDER_MS * NS_PER_MS;
    struct stat found;
    char *path = mark_path(folder, session);
    if (path == NULL) return LH_NO_MEMORY;
    bool seen;
    while (!(seen = sys()->stat(path, &found) == 0) && sys()->now_ns() < until)
        (void)usleep(PAUSE_US);
    mem_free(path);
    if (seen) return LH_OK;
    errno = 0;
    return fail(LH_MISMATCH,
                "%s: what rank 0 has just made there is not seen from here; all hosts must see the "
                "same [checkpoint] folder",
                folder);
}

void shared_folder_unmark(const char *folder, uint64_t session)
{
    char *path = mark_path(folder, session);
    if (path != NULL) (void)sys()->unlink(path);
    mem_free(path);
}
