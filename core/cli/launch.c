/* launch.c - which rank this process is, how it meets the others, and its goodbye. */
#include <cli/launch_state.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <cli/launch_facts.h>
#include <comm/control_socket.h>
#include <comm/host_world.h>

#define LAUNCH_MS UINT64_C(1000000) /* ns */

enum { TOLD_GRACE_MS = 2500, LOOK_MS = 50, DAY_S = 86400 };

typedef struct meeting { /* of a rank with the others */
    cli_t *cli;
    secret_t *secret;
    launch_facts_t facts;
    published_t *published;
    char *file; /* where rank 0 tells its address, or NULL */
    pthread_t warden;
    int warden_fd; /* eventfd that ends it; -1: none runs */
} meeting_t;

bool launch_is_here(const launch_t *l, const char *host, bool asked)
{
    const size_t length = strcspn(host, "."), own = strcspn(l->host, ".");
    if (strcmp(host, l->host) == 0) return true;
    if (asked) return false;
    if (strcmp(host, "localhost") == 0) return true;
    /* "t1" and "t1.example.org" are one machine, "t1.a" and "t1.b" are not. */
    return length == own && memcmp(host, l->host, length) == 0 &&
           (host[length] == '\0' || l->host[own] == '\0');
}

/* Only who started it knows whether a rank comes first; a launcher is with rank 0 if that is its.
 */
static bool find_lead(const cli_t *cli, const launch_t *l)
{
    const job_site_t *site;
    const job_host_t *host;
    if (!l->starts) return l->place.rank == 0;
    job_rank_place(cli->job, 0, &site, &host);
    return host == NULL || launch_is_here(l, host->name, cli_flag(cli, "host") != NULL);
}

lh_status_t launch_open(cli_t *cli)
{
    launch_t *l = mem_new(sizeof(*l));
    if (l == NULL) return LH_NO_MEMORY;
    cli->launch = l;
    l->place = (launch_place_t){.size = 1};
    l->leads = true;
    if ((cli->command->needs & CLI_HAS_RANKS) == 0 || cli->job == NULL) return LH_OK;

    const char *host = cli_flag(cli, "host");
    if (host != NULL)
        (void)snprintf(l->host, sizeof(l->host), "%s", host);
    else if (gethostname(l->host, sizeof(l->host) - 1) != 0)
        (void)snprintf(l->host, sizeof(l->host), "localhost");
    lh_status_t status = place_find(cli->job, &l->place);
    if (status != LH_OK) return status;
    if (host != NULL && cli->job->site_count == 0)
        return fail(LH_INVALID, "--host %s: the job has no [site.NAME] whose hosts it could be of",
                    host);
    l->starts = l->place.by == NULL && job_ranks(cli->job) > 1;
    l->leads = find_lead(cli, l);
    if (l->place.ours) {
        board_row_t *board;
        (void)prctl(PR_SET_NAME, "longhaul"); /* it was started as /proc/self/exe */
        status = launch_map_board(l->place.board, l->place.row + 1, &board);
        if (status == LH_OK) l->row = &board[l->place.row];
        (void)close(l->place.board);
    }
    return status;
}

void launch_close(cli_t *cli)
{
    launch_t *l = cli->launch;
    if (l == NULL) return;
    if (l->logs) log_as_rank(l->place.rank, -1, "");
    if (l->row != NULL) (void)munmap(l->row - l->place.row, (l->place.row + 1) * sizeof(*l->row));
    mem_free(l);
    cli->launch = NULL;
}

bool launch_leads(const cli_t *cli)
{
    return cli->launch == NULL || cli->launch->leads;
}

bool launch_is_started(const cli_t *cli)
{
    return cli->launch != NULL && cli->launch->place.ours;
}

uint32_t launch_rank(const cli_t *cli)
{
    return cli->launch == NULL ? 0 : cli->launch->place.rank;
}

uint32_t launch_size(const cli_t *cli)
{
    return cli->launch == NULL ? 1 : cli->launch->place.size;
}

bool launch_is_spread(const cli_t *cli)
{
    const launch_t *l = cli->launch;
    if (l == NULL || l->place.ours) return false;
    if (!l->starts) return l->place.size > 1;
    for (uint32_t r = 0; r < job_ranks(cli->job); r++) {
        const job_site_t *site;
        const job_host_t *host;
        job_rank_place(cli->job, r, &site, &host);
        if (host != NULL && !launch_is_here(l, host->name, cli_flag(cli, "host") != NULL))
            return true;
    }
    return false;
}

bool launch_has_links(const cli_t *cli, uint32_t scope)
{
    const job_t *job = cli->job;
    const launch_place_t *p = &cli->launch->place;
    if (job->site_count == 0) {
        /* Who starts ranks elsewhere may put them on several machines. */
        const bool spread = p->size > 1 && !p->ours && p->here != p->size;
        const bool several = p->size > 1 || job_ranks(job) > 1;
        return (scope == LH_LINK_NODE && several) || (scope == LH_LINK_SITE && spread);
    }
    bool found = scope == LH_LINK_WAN && job->site_count > 1;
    for (uint32_t i = 0; i < job->site_count; i++) {
        const job_site_t *site = &job->sites[i];
        found = found || (scope == LH_LINK_SITE && site->host_count > 1);
        for (uint32_t k = 0; k < site->host_count; k++)
            found = found || (scope == LH_LINK_NODE && site->hosts[k].ranks > 1);
    }
    return found;
}

void launch_tell_skip(cli_t *cli, bool skip)
{
    cli->launch->skip = skip;
}

void launch_waits(cli_t *cli)
{
    cli->launch->waits = true;
}

bool launch_last_words(const cli_t *cli, int code, const char *sentence)
{
    const launch_t *l = cli->launch;
    if (l == NULL || l->place.size == 1) return false;
    if (l->row != NULL && atomic_load(&l->row->has_words) == 0) {
        l->row->code = code;
        (void)snprintf(l->row->words, sizeof(l->row->words), "%s", sentence);
        atomic_store(&l->row->has_words, 1);
    }
    const bool told = l->row != NULL || l->quiet; /* by another process */
    if (!l->logs) return told;
    if (told)
        log_line(LH_LOG_INFO, "longhaul: %s", sentence); /* to its own file */
    else
        log_line(LH_LOG_ERROR, "%s", sentence);
    return true;
}

/* What other ranks print goes to a file; warnings and errors are also on the terminal. What stands
 * there may be another run's, under way: only a training that begins takes it away. */
static lh_status_t open_log(cli_t *cli)
{
    char name[32];
    const uint32_t rank = launch_rank(cli);
    if (rank == 0) return LH_OK;
    (void)snprintf(name, sizeof(name), "rank-%u.log", rank);
    lh_status_t status = folder_make(cli->job->pipeline.folder);
    char *path = status == LH_OK ? job_path(cli->job, name) : NULL;
    if (path == NULL) return status == LH_OK ? LH_NO_MEMORY : status;
    int fd = -1;
    status = file_begin(path, O_APPEND | O_RDWR, &fd);
    if (status == LH_OK && dup2(fd, STDOUT_FILENO) < 0)
        status = fail(LH_IO, "cannot write %s", path);
    if (status == LH_OK) {
        log_as_rank(rank, fd, path);
        cli->launch->logs = true;
    }
    mem_free(path);
    return status;
}

static lh_status_t open_secret(meeting_t *m)
{
    const launch_place_t *p = &m->cli->launch->place;
    const char *file = m->cli->job->launch.secret;
    if (p->ours) {
        const lh_status_t status = secret_from_fd(p->secret, &m->secret);
        (void)close(p->secret);
        return status;
    }
    if (file == NULL)
        return fail(LH_INVALID,
                    "%u ranks that %s has started share no key: name a file in [launch] secret; it "
                    "is made at the first start",
                    p->size, p->by);
    return secret_open(file, true, &m->secret);
}

uint64_t launch_patience(const cli_t *cli)
{
    const uint64_t join = cli->job->launch.join_timeout_ns;
    return cli->launch->waits ? UINT64_C(7000000000) * DAY_S : join;
}

/* Rank 0 tells where it listens in a file of the job's folder: an address that a liar put there
 * leads to somebody who does not have the key. */
static lh_status_t tell_address(meeting_t *m, control_how_t *how, int *listener)
{
    uint16_t port;
    text_t text = {0};
    lh_status_t status = control_listen(how->address, how->port, listener, &port);
    if (status == LH_OK) {
        text_printf(&text, "%s %u\n", how->address, port);
        status = text_status(&text);
    }
    if (status == LH_OK) status = folder_make(m->cli->job->pipeline.folder);
    if (status == LH_OK) status = file_replace(m->file, text.data, text.length);
    text_free(&text);
    return status;
}

static lh_status_t read_address(meeting_t *m, launch_place_t *p)
{
    enum { FILE_BYTES = 512 };
    const uint64_t end = sys()->now_ns() + launch_patience(m->cli);
    while (!file_exists(m->file)) {
        if (sys()->now_ns() > end)
            return fail(LH_TIMED_OUT,
                        "rank 0 has not told its address in %s: is the folder shared by all ranks? "
                        "Else set [launch] address and port",
                        m->file);
        (void)poll(NULL, 0, LOOK_MS);
    }
    char *text;
    size_t length;
    unsigned port;
    const lh_status_t status = file_read(m->file, FILE_BYTES, &text, &length);
    if (status != LH_OK) return status;
    const bool good = sscanf(text, "%255s %u", p->address, &port) == 2 && port <= UINT16_MAX;
    mem_free(text);
    if (!good) return fail(LH_INVALID, "%s holds no address and port", m->file);
    p->port = (uint16_t)port;
    return LH_OK;
}

/* The INI first, then who started the ranks, then the file. */
static lh_status_t find_zero(meeting_t *m, control_how_t *how)
{
    launch_place_t *p = &m->cli->launch->place;
    const job_launch_t *set = &m->cli->job->launch;
    char name[PLACE_MEETING + 16];
    if (!p->ours && set->address != NULL)
        (void)snprintf(p->address, sizeof(p->address), "%s", set->address);
    if (!p->ours && set->port != 0) p->port = (uint16_t)set->port;
    how->address = p->address;
    how->port = p->port;
    how->listener = p->listener;
    if (p->meeting[0] == '\0' || (set->address != NULL && set->port != 0)) return LH_OK;

    (void)snprintf(name, sizeof(name), "rendezvous-%s", p->meeting);
    m->file = job_path(m->cli->job, name);
    if (m->file == NULL) return LH_NO_MEMORY;
    if (p->rank != 0) {
        const lh_status_t status = read_address(m, p);
        how->port = p->port;
        return status;
    }
    if (p->address[0] == '\0')
        (void)snprintf(p->address, sizeof(p->address), "%s",
                       p->here == p->size ? "127.0.0.1" : m->cli->launch->host);
    return tell_address(m, how, &how->listener);
}

static lh_status_t meet(meeting_t *m)
{
    cli_t *cli = m->cli;
    const launch_t *l = cli->launch;
    const job_site_t *site;
    const job_host_t *host;
    lh_status_t status = open_secret(m);
    /* All plugins that the job names are loaded here, so that they can be compared. */
    if (status == LH_OK) status = cli_check(cli);
    if (status == LH_OK) status = facts_collect(cli->job, cli->plugins, &m->facts);
    job_rank_place(cli->job, l->place.rank, &site, &host);
    control_how_t how = {.rank = l->place.rank,
                         .size = l->place.size,
                         .host = host != NULL ? host->name : l->host,
                         .site = site != NULL ? site->name : "",
                         .port_fd = -1,
                         .join_ns = cli->job->launch.join_timeout_ns,
                         .patience_ns = launch_patience(cli),
                         .word = l->row != NULL ? &l->row->word : NULL,
                         .secret = m->secret,
                         .facts = m->facts.rows,
                         .fact_count = m->facts.count};
    if (status == LH_OK) status = find_zero(m, &how);
    if (status == LH_OK) status = control_open(&how, &cli->control, &cli->world);
    if (status != LH_OK) return status;
    if (l->row != NULL) atomic_store(&l->row->met, 1);
    control_progress(cli->control, 0, "its start");
    return world_publish(cli->host, cli->world, m->secret, &m->published);
}

/* A rank that was told of the end and does not come to it, in a long kernel or a wait of somebody
 * else's, is ended. */
static void *ward(void *argument)
{
    meeting_t *m = argument;
    struct pollfd fds[2] = {{.fd = m->warden_fd, .events = POLLIN},
                            {.fd = control_fd(m->cli->control), .events = POLLIN}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR) {
    }
    if (fds[0].revents != 0) return NULL;
    if (poll(fds, 1, TOLD_GRACE_MS) != 0) return NULL;
    const char *reason = control_failure(m->cli->control);
    const int code = status_exit_code(control_status(m->cli->control));
    if (!launch_last_words(m->cli, code, reason)) log_line(LH_LOG_INFO, "longhaul: %s", reason);
    _exit(code);
}

static lh_status_t start_warden(meeting_t *m)
{
    m->warden_fd = eventfd(0, EFD_CLOEXEC);
    if (m->warden_fd < 0) return fail(LH_IO, "cannot watch the control plane");
    const int error = pthread_create(&m->warden, NULL, ward, m);
    if (error == 0) return LH_OK;
    (void)close(m->warden_fd);
    m->warden_fd = -1;
    return fail(LH_NO_MEMORY, "cannot watch the control plane: %s", strerror(error));
}

static void stop_warden(meeting_t *m)
{
    const uint64_t one = 1;
    if (m->warden_fd < 0) return;
    (void)!write(m->warden_fd, &one, sizeof(one));
    (void)pthread_join(m->warden, NULL);
    (void)close(m->warden_fd);
}

/* Rank 0 has looked whether the stage need run; what it says holds for all. */
static int run_body(meeting_t *m, int (*body)(cli_t *cli))
{
    const uint8_t mine = m->cli->launch->skip || m->cli->launch->place.skip;
    uint8_t *all = mem_new(launch_size(m->cli));
    if (all == NULL) return LH_NO_MEMORY;
    const lh_status_t status = control_gather(m->cli->control, &mine, 1, all);
    const bool skip = status == LH_OK && all[0] != 0;
    mem_free(all);
    if (status != LH_OK) return status;
    return skip ? EXIT_DONE : body(m->cli);
}

static void part(meeting_t *m)
{
    cli_t *cli = m->cli;
    world_unpublish(cli->host, m->published);
    world_free(cli->world);
    cli->world = NULL;
    facts_free(&m->facts);
    secret_free(m->secret);
    if (m->file != NULL && cli->launch->place.rank == 0) (void)sys()->unlink(m->file);
    mem_free(m->file);
}

static int be_rank(cli_t *cli, int (*body)(cli_t *cli))
{
    meeting_t m = {.cli = cli, .warden_fd = -1};
    int code = open_log(cli);
    if (code == LH_OK) code = meet(&m);
    /* A table of who differs is rank 0's to print. */
    if (code == LH_MISMATCH && cli->control == NULL) cli->launch->quiet = launch_rank(cli) > 0;
    if (code == LH_OK) code = start_warden(&m);
    if (code == LH_OK) code = run_body(&m, body);
    stop_warden(&m);
    if (cli->control != NULL) {
        const lh_status_t end = control_close(cli->control, code < 0 ? code : LH_OK, fail_reason());
        if (end != LH_OK) code = end;
        cli->control = NULL;
        const char *why = fail_reason();
        cli->launch->quiet = end != LH_OK && launch_rank(cli) > 0 &&
                             !(text_starts(why, "rank 0 ") && strstr(why, " was lost") != NULL);
    }
    part(&m);
    return code;
}

int launch_ranks(cli_t *cli, const char *command, int (*body)(cli_t *cli))
{
    const launch_t *l = cli->launch;
    if (l != NULL && l->starts) return launch_start(cli, command);
    if (l != NULL && l->place.size > 1) return be_rank(cli, body);
    return body(cli);
}
