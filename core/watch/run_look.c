/* run_look.c - the lock tells whether a run is at work in a folder, status.json what its training
 * does. Either may be missing: a run that prepares has no status yet, and one that has ended, or was
 * killed, no lock any more. */
#include <watch/run_look.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>

enum { STATUS_LIMIT = 1 << 20 };

/* What can't be parsed counts as not there: it is renewed each second. */
static lh_status_t read_status(const char *folder, run_look_t *look)
{
    struct stat st;
    char *path = path_join(folder, "status.json");
    if (path == NULL) return LH_NO_MEMORY;
    if (sys()->stat(path, &st) == 0 &&
        json_read(path, STATUS_LIMIT, UINT64_MAX, &look->status) == LH_OK) {
        const double now = (double)sys()->wall_ns() * 1e-9;
        const double then = (double)st.st_mtim.tv_sec + (double)st.st_mtim.tv_nsec * 1e-9;
        look->age_s = now > then ? now - then : 0;
    }
    fail_clear();
    mem_free(path);
    return LH_OK;
}

lh_status_t run_look(const char *folder, run_look_t *out)
{
    struct stat st;
    run_look_t look = {0};
    if (sys()->stat(folder, &st) != 0 || !S_ISDIR(st.st_mode))
        return fail(LH_INVALID, "%s: there is no such folder; [pipeline] folder was expected",
                    folder);
    look.held = folder_lock_look(folder, look.holder);
    fail_clear();
    const lh_status_t status = read_status(folder, &look);
    if (status != LH_OK) return status;
    if (look.status == NULL && look.held != FOLDER_HELD)
        return fail(LH_INVALID, "%s: no run is at work here, and none has trained here", folder);
    *out = look;
    return LH_OK;
}

void run_look_free(run_look_t *look)
{
    json_free(look->status);
    look->status = NULL;
}

uint64_t run_look_count(const run_look_t *look, const char *key)
{
    uint64_t value = 0;
    return json_count(json_member(json_root(look->status), key), &value) ? value : 0;
}

const char *run_look_holder(const run_look_t *look)
{
    return look->holder[0] == '\0' ? "a process" : look->holder;
}

bool run_look_trains(const run_look_t *look)
{
    return look->held != FOLDER_FREE && look->status != NULL &&
           json_is_nil(json_member(json_root(look->status), "end"));
}
