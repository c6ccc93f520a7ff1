/* vote_file.c - a file of a few lines, replaced as a whole.
 *
 *     longhaul votes 1
 *     system 6cbb02d0-...          start of the system
 *     hosts 0b1c...                digest of all machines and their ranks
 *     epoch 7                      the least that its ranks can be of
 *     layout ..-.
 *     met 6:....                   0:? where they have not
 *     tried 7:..-.                 ? where they were to meet in none
 *
 * The new file is locked under a name of its own before it takes the old one's place, so that there is no
 * moment at which another launcher could lock what counts. A crash of the launcher leaves the old or the
 * new one; what a crash of the system leaves does not count, so that nothing is synced. */
#include <launch/vote_file.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include <base/digest.h>
#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>

enum { VOTES_MOST = 8192, BOOT_TEXT = 64 };

/* Another one after each start; the same in all containers of a machine. "": not known. */
static void read_boot(char out[BOOT_TEXT])
{
    out[0] = '\0';
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd < 0 ? -1 : read(fd, out, BOOT_TEXT - 1);
    if (fd >= 0) (void)close(fd);
    out[got > 0 ? got : 0] = '\0';
    out[strcspn(out, " \n")] = '\0';
}

/* A layout means something only for the hosts that it was made for. */
static lh_status_t hosts_key(const job_t *job, char out[SHA256_TEXT])
{
    text_t all = {0};
    for (uint32_t m = 0; m < members_machines(job); m++) {
        machine_t at;
        members_machine(job, m, &at);
        text_printf(&all, "%s/%s:%u%s\n", at.site->name, at.host, at.ranks,
                    m < members_hosts(job) ? "" : " spare");
    }
    text_printf(&all, "prefer %s\n", job->launch.prefer == NULL ? "" : job->launch.prefer);
    lh_status_t status = text_status(&all);
    if (status == LH_OK) status = digest_of(all.data, all.length, out);
    text_free(&all);
    return status;
}

static bool is_layout_or_none(const job_t *job, const char *layout)
{
    return strcmp(layout, "?") == 0 || members_are(job, layout);
}

/* Whether it is such a file, of this job and start. */
static bool vote_parse(const vote_file_t *v, const job_t *job, const char *text,
                       launch_place_t *place)
{
    char boot[BOOT_TEXT], system[BOOT_TEXT], hosts[SHA256_TEXT];
    launch_place_t p = {0};
    unsigned epoch, met;
    int end = 0;
    read_boot(boot);
    if (sscanf(text,
               "longhaul votes 1\nsystem %63s\nhosts %64s\nepoch %u\nlayout %256s\nmet %u:%256s\n"
               "tried %2144s\nend%n",
               system, hosts, &epoch, p.layout, &met, p.met, p.tried, &end) != 7 ||
        end == 0 || strcmp(text + end, "\n") != 0)
        return false;
    if (boot[0] == '\0' || strcmp(boot, system) != 0 || strcmp(hosts, v->key) != 0) return false;
    if (epoch == 0 || met >= epoch || !members_are(job, p.layout) ||
        !is_layout_or_none(job, p.met) || (met == 0) != (strcmp(p.met, "?") == 0))
        return false;
    place->epoch = epoch;
    place->met_epoch = met;
    (void)snprintf(place->layout, sizeof(place->layout), "%s", p.layout);
    (void)snprintf(place->met, sizeof(place->met), "%s", met == 0 ? "" : p.met);
    (void)snprintf(place->tried, sizeof(place->tried), "%s",
                   strcmp(p.tried, "?") == 0 ? "" : p.tried);
    return true;
}

/* Locked, or -1: it is not there, or not to be had. */
static int open_locked(const char *path, bool *held)
{
    struct stat st;
    const int fd = sys_open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0);
    *held = false;
    if (fd < 0) return -1;
    const bool own = sys()->fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
                     (st.st_mode & 077) == 0;
    if (own && flock(fd, LOCK_EX | LOCK_NB) == 0 && file_is(fd, path)) return fd;
    *held = own && errno == EWOULDBLOCK;
    (void)sys()->close(fd);
    return -1;
}

static void read_votes(vote_file_t *v, const job_t *job, launch_place_t *place)
{
    char text[VOTES_MOST];
    const ssize_t got = sys()->pread(v->fd, text, sizeof(text) - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    if (vote_parse(v, job, text, place)) return;
    log_line(LH_LOG_WARN,
             "%s is not of this job's hosts, or not of this start of the system: this machine "
             "remembers no meeting",
             v->path);
}

lh_status_t vote_file_open(const job_t *job, const char *host, bool resume, launch_place_t *place,
                           vote_file_t *out)
{
    char name[LAUNCH_HOST + 16], boot[BOOT_TEXT];
    bool held;
    vote_file_t v = {.fd = -1};
    *out = v;
    read_boot(boot);
    if (boot[0] == '\0') return LH_OK; /* nothing would count */
    (void)snprintf(name, sizeof(name), ".votes-%.63s", host);
    for (char *c = name; *c != '\0'; c++)
        if (*c == '/') *c = '-';
    lh_status_t status = hosts_key(job, v.key);
    if (status == LH_OK) status = folder_make(job->pipeline.folder);
    v.path = status == LH_OK ? job_path(job, name) : NULL;
    if (v.path == NULL) return status == LH_OK ? LH_NO_MEMORY : status;
    v.fd = open_locked(v.path, &held);
    if (held) {
        log_line(LH_LOG_WARN,
                 "%s is locked: another launcher is this machine too, and its votes are not this "
                 "one's",
                 v.path);
        mem_free(v.path);
        v.path = NULL;
    } else if (v.fd >= 0 && resume) {
        read_votes(&v, job, place);
    } else if (file_exists(v.path)) {
        if (resume)
            log_line(LH_LOG_WARN,
                     "%s is not a file of this user's alone: this machine remembers no meeting",
                     v.path);
        if (sys()->unlink(v.path) != 0) status = fail_io(errno, "%s: cannot remove it", v.path);
    }
    *out = v;
    return status;
}

static lh_status_t write_votes(const vote_file_t *v, const launch_place_t *p, text_t *out)
{
    char boot[BOOT_TEXT];
    read_boot(boot);
    if (boot[0] == '\0') return fail_io(0, "/proc/sys/kernel/random/boot_id can't be read");
    text_printf(out,
                "longhaul votes 1\nsystem %s\nhosts %s\nepoch %u\nlayout %s\nmet %u:%s\ntried %s\n"
                "end\n",
                boot, v->key, p->epoch, p->layout, p->met_epoch, p->met_epoch == 0 ? "?" : p->met,
                p->tried[0] == '\0' ? "?" : p->tried);
    return text_status(out);
}

/* The descriptor of the new file holds the lock from here on. */
static lh_status_t replace_votes(vote_file_t *v, const text_t *text, const char *beside)
{
    (void)sys()->unlink(beside);
    const int fd = sys_open(beside, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (fd < 0) return fail_io(errno, "%s: cannot create", beside);
    lh_status_t status = LH_OK;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) status = fail_io(errno, "%s: cannot lock", beside);
    if (status == LH_OK) status = file_write(fd, beside, text->data, text->length);
    if (status == LH_OK && sys_rename(beside, v->path) != 0)
        status = fail_io(errno, "%s: cannot rename %s to it", v->path, beside);
    if (status != LH_OK) {
        (void)sys()->close(fd);
        (void)sys()->unlink(beside);
        return status;
    }
    if (v->fd >= 0) (void)sys()->close(v->fd);
    v->fd = fd;
    return LH_OK;
}

/* An old vote that is read again is one that is given twice. */
static lh_status_t make_void(const vote_file_t *v)
{
    char reason[512];
    (void)snprintf(reason, sizeof(reason), "%s", fail_reason());
    if (sys()->unlink(v->path) != 0 && errno != ENOENT &&
        (v->fd < 0 || sys_ftruncate(v->fd, 0) != 0))
        return fail_io(errno,
                       "%s: what this machine has promised can't be written (%s), nor what "
                       "stands there be removed",
                       v->path, reason);
    log_line(LH_LOG_WARN, "%s; a launcher that is started anew here will remember no meeting",
             reason);
    fail_clear();
    return LH_OK;
}

lh_status_t vote_file_write(vote_file_t *v, const launch_place_t *place)
{
    text_t text = {0}, beside = {0};
    if (v->path == NULL) return LH_OK;
    text_printf(&beside, "%s.new", v->path);
    lh_status_t status = write_votes(v, place, &text);
    if (status == LH_OK) status = text_status(&beside);
    if (status == LH_OK) status = replace_votes(v, &text, beside.data);
    if (status != LH_OK) status = make_void(v);
    text_free(&beside);
    text_free(&text);
    return status;
}

void vote_file_close(vote_file_t *v, bool done)
{
    if (done && v->path != NULL) (void)sys()->unlink(v->path);
    if (v->fd >= 0) (void)sys()->close(v->fd);
    mem_free(v->path);
    *v = (vote_file_t){.fd = -1};
}
