/* launch_state.c - a row of memory for each rank, shared by a launcher and the ranks that it started.
 *
 * A rank that dies has no time to send anything: what it was doing stands in its row already, and the
 * launcher reads it there after the process is gone. */
#include <launch/launch_state.h>

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>

enum { DAY_S = 86400 };

lh_status_t state_map_board(int fd, uint32_t rows, board_row_t **out)
{
    void *memory = mmap(NULL, rows * sizeof(board_row_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                        0);
    if (memory == MAP_FAILED) return fail_io(errno, "cannot share memory between ranks");
    *out = memory;
    return LH_OK;
}

bool state_is_here(const launch_t *l, const char *host, bool asked)
{
    const size_t length = strcspn(host, "."), own = strcspn(l->host, ".");
    if (strcmp(host, l->host) == 0) return true;
    if (asked) return false;
    if (strcmp(host, "localhost") == 0) return true;
    /* "t1" and "t1.example.org" are one machine, "t1.a" and "t1.b" are not. */
    return length == own && memcmp(host, l->host, length) == 0 &&
           (host[length] == '\0' || l->host[own] == '\0');
}

uint64_t state_patience(const launch_t *l)
{
    const uint64_t join = l->how.job->launch.join_timeout_ns;
    return l->waits ? UINT64_C(7000000000) * DAY_S : join;
}

/* The first words count. */
void state_write_row(board_row_t *row, int code, bool died, const char *sentence)
{
    if (atomic_load(&row->has_words) != 0) return;
    row->code = code;
    row->died = died;
    (void)snprintf(row->words, sizeof(row->words), "%s", sentence);
    atomic_store(&row->has_words, 1);
}

/* Rank 0's log may be closed by now, or have been another process's. */
void state_note_end(const launch_t *l, const char *sentence)
{
    int fd;
    if (!l->began) return;
    char *path = job_path(l->how.job, "train.log");
    if (path != NULL && file_begin(path, O_APPEND, &fd) == LH_OK) {
        log_also(fd, path);
        log_note("longhaul: %s", sentence);
        log_also(-1, "");
        (void)sys()->close(fd);
    }
    mem_free(path);
}

bool state_say_last(const launch_t *l, int code, bool died, const char *sentence)
{
    if (l->place.size == 1) return false;
    if (l->row != NULL) state_write_row(l->row, code, died, sentence);
    const bool told = l->row != NULL || l->quiet; /* by another process */
    if (!l->logs) return told;
    if (told)
        log_line(LH_LOG_INFO, "longhaul: %s", sentence); /* to its own file */
    else
        log_line(LH_LOG_ERROR, "%s", sentence);
    return true;
}
