/* launch.c - which of the three this process is: a launcher, which starts the ranks of its machine
 * (launch_start.c); a rank of several, by whoever it was started (launch_rank.c); or alone.
 *
 * It is decided once, in launch_open, from the environment and the INI, and never asked of the
 * user: the same command line works in all three. What commands ask afterwards (who leads, who is
 * spread over machines, whose words are printed) follows from that and changes nothing.
 *
 * l may be NULL in most functions here: a command that has no job has no launch. */
#include <launch/launch.h>

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <launch/launch_door.h>
#include <launch/launch_rank.h>
#include <launch/launch_start.h>
#include <launch/launch_state.h>

/* A rank leads if it is rank 0; a launcher, if the INI puts rank 0 on its machine. */
static bool find_lead(const launch_t *l)
{
    const job_site_t *site;
    const job_host_t *host;
    if (!l->starts) return l->place.rank == 0;
    job_rank_place(l->how.job, 0, &site, &host);
    return host == NULL || launch_is_here(l, host->name, l->how.machine != NULL);
}

/* Of this process, for an assertion that fails, which has no launch_t at hand; or NULL. */
static board_row_t *own_row;

/* The launcher prints it, with the rank's name and step. */
static bool tell_launcher(const char *sentence)
{
    if (own_row == NULL) return false;
    launch_write_row(own_row, EXIT_INTERNAL, true, sentence);
    return true;
}

/* A launcher of ours started this process as a rank: it maps the board up to its own row, and from
 * here on its last words go there. The descriptor is closed, the mapping stays. */
static lh_status_t open_started(launch_t *l)
{
    board_row_t *board;
    sys_reopen_watch();
    (void)prctl(PR_SET_NAME, "longhaul"); /* it was started as /proc/self/exe */
    /* What this rank starts is not to keep the port open after the ranks have met. */
    if (l->place.listener >= 0) (void)fcntl(l->place.listener, F_SETFD, FD_CLOEXEC);
    if (l->place.memory >= 0) (void)fcntl(l->place.memory, F_SETFD, FD_CLOEXEC);
    const lh_status_t status = launch_map_board(l->place.board, l->place.row + 1, &board);
    if (status == LH_OK) l->row = own_row = &board[l->place.row];
    if (l->row != NULL) l->again = (launch_again_t){l->row->restarts, l->row->before};
    status_assert_tell(tell_launcher);
    (void)close(l->place.board);
    return status;
}

/* A command that may run on several ranks finds out which of them this process is. */
static lh_status_t open_ranks(launch_t *l)
{
    const char *machine = l->how.machine;
    if (machine != NULL)
        (void)snprintf(l->host, sizeof(l->host), "%s", machine);
    else if (gethostname(l->host, sizeof(l->host) - 1) != 0)
        (void)snprintf(l->host, sizeof(l->host), "localhost");
    const lh_status_t status = launch_place_find(l->how.job, &l->place);
    if (status != LH_OK) return status;
    if (machine != NULL && l->how.job->site_count == 0)
        return fail(LH_INVALID, "--host %s: the job has no [site.NAME] whose hosts it could be of",
                    machine);
    l->starts = l->place.by == NULL && job_ranks(l->how.job) > 1;
    l->leads = find_lead(l);
    if (l->place.ours) return open_started(l);
    if (l->starts || l->place.size == 1) sys_stop_at_once(EXIT_TERMINATED);
    return LH_OK;
}

/* Where it fails *out is set all the same: the sentence may be the launcher's to print, and the row
 * to tell it by may be mapped already. */
lh_status_t launch_open(const launch_how_t *how, launch_t **out)
{
    launch_t *l = mem_new(sizeof(*l));
    if (l == NULL) return LH_NO_MEMORY;
    *out = l;
    *l = (launch_t){.how = *how, .place = {.size = 1, .memory = -1}, .leads = true};
    return how->ranks && how->job != NULL ? open_ranks(l) : LH_OK;
}

/* closed is the rank's last word to its launcher: code 0 without it is no success, as a plugin may
 * have called exit. The mapping begins with row 0, whichever row is this rank's. */
void launch_close(launch_t *l)
{
    if (l == NULL) return;
    (void)launch_door_shut(l, EXIT_REFUSED);
    secret_free(l->secret);
    if (l->logs) log_as_rank(l->place.rank, -1, "");
    own_row = NULL;
    if (l->row != NULL) atomic_store(&l->row->closed, 1);
    if (l->row != NULL) (void)munmap(l->row - l->place.row, (l->place.row + 1) * sizeof(*l->row));
    mem_free(l);
}

bool launch_leads(const launch_t *l)
{
    return l == NULL || l->leads;
}

void launch_follow(launch_t *l)
{
    lh_assert(l != NULL && l->starts);
    l->leads = false;
    l->follows = true;
}

bool launch_starts(const launch_t *l)
{
    return l != NULL && l->starts;
}

bool launch_is_started(const launch_t *l)
{
    return l != NULL && l->place.ours;
}

uint32_t launch_rank(const launch_t *l)
{
    return l == NULL ? 0 : l->place.rank;
}

uint32_t launch_size(const launch_t *l)
{
    return l == NULL ? 1 : l->place.size;
}

/* A rank that a launcher of ours started follows that one. Ranks that somebody else started decide
 * each for itself; of launchers, those of a job that has a host elsewhere. */
bool launch_is_spread(const launch_t *l)
{
    if (l == NULL || l->place.ours) return false;
    if (!l->starts) return l->place.size > 1;
    for (uint32_t r = 0; r < job_ranks(l->how.job); r++) {
        const job_site_t *site;
        const job_host_t *host;
        job_rank_place(l->how.job, r, &site, &host);
        if (host != NULL && !launch_is_here(l, host->name, l->how.machine != NULL)) return true;
    }
    return false;
}

/* Before ranks have met, so from what INI and starter say. More classes than there will be are
 * better than one too few: who asks wants to know which transports may be needed. */
bool launch_has_links(const launch_t *l, uint32_t scope)
{
    const job_t *job = l->how.job;
    const launch_place_t *p = &l->place;
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

void launch_tell_skip(launch_t *l, bool skip)
{
    lh_assert(l != NULL);
    l->skip = skip;
}

void launch_waits(launch_t *l)
{
    lh_assert(l != NULL);
    l->waits = true;
}

void launch_note_signals(const launch_t *l, bool on)
{
    if (l == NULL || l->how.leads == NULL) return; /* it does not train */
    const bool of_ours = on && l->leads && !l->follows && (l->began || l->how.resume);
    char *path = of_ours ? job_path(l->how.job, "train.log") : NULL;
    sys_stop_log(path == NULL ? "" : path);
    if (of_ours && path == NULL) fail_clear();
    mem_free(path);
}

void launch_began(launch_t *l)
{
    if (l == NULL) return;
    l->began = true;
    if (l->row != NULL)
        atomic_store(&l->row->began, 1);
    else
        launch_note_signals(l, true); /* in stages behind the training, too */
}

const job_site_t *launch_site(const launch_t *l)
{
    const job_site_t *site = NULL;
    const job_host_t *host;
    if (l == NULL || l->how.job == NULL || !l->how.ranks || l->place.herald) return NULL;
    if (!l->starts && l->place.size > 1) {
        job_rank_place(l->how.job, l->place.rank, &site, &host);
        return site;
    }
    for (uint32_t m = 0; m < members_machines(l->how.job); m++) {
        machine_t at;
        members_machine(l->how.job, m, &at);
        if (launch_is_here(l, at.host, l->how.machine != NULL))
            return m == members_witness(l->how.job) ? NULL : at.site;
    }
    for (uint32_t r = 0; r < job_ranks(l->how.job); r++) {
        job_rank_place(l->how.job, r, &site, &host);
        if (host != NULL && launch_is_here(l, host->name, l->how.machine != NULL)) return site;
    }
    return NULL;
}

const char *launch_layout(const launch_t *l)
{
    const bool rank = l != NULL && l->place.ours && !l->place.herald;
    return rank && l->place.layout[0] != '\0' ? l->place.layout : NULL;
}

bool launch_is_herald(const launch_t *l)
{
    return l != NULL && l->place.herald;
}

void launch_leave(launch_t *l, bool saved)
{
    if (l != NULL && l->row != NULL) atomic_store(&l->row->leaves, saved ? LEAVES_SAVED : LEAVES);
}

launch_again_t launch_again(const launch_t *l)
{
    return l == NULL || l->again.reason == NULL ? (launch_again_t){.reason = ""} : l->again;
}

int launch_memory(const launch_t *l)
{
    return l == NULL ? -1 : l->place.memory;
}

control_t *launch_control(const launch_t *l)
{
    return l == NULL ? NULL : l->control;
}

const world_t *launch_world(const launch_t *l)
{
    return l == NULL ? NULL : l->world;
}

/* The three cases, in the order in which they exclude each other. */
int launch_ranks(launch_t *l, char *const *words, int (*body)(void *context), void *context)
{
    if (l != NULL && l->starts) return launch_start(l, words);
    /* One rank that is left of several listens for those that may come back. */
    const bool left = l != NULL && strchr(l->place.layout, MEMBER_GONE) != NULL;
    if (l != NULL && (l->place.size > 1 || left)) return launch_rank_run(l, body, context);
    return body(context);
}
