/* launch_door.c - the door as a process, and its launcher's end of it.
 *
 * A process and not a thread of the launcher: stages fork children of their own (to try a plugin, to
 * import), and no thread may hold a lock of the allocator or of OpenSSL at that moment. It is started as
 * a rank is, with a row of a board of its own: there the launcher writes what is asked of it, and it leaves
 * the sentence where another machine was asked. Then it sends its launcher the signal that a person would
 * have sent: whatever stage is at work ends as it does by that.
 *
 * A signal may end the launcher in its handler (sys_stop_at_once). So does the handler write on the board,
 * and waits for the door, which has SECOND_MS to tell all; it dies with its launcher. */
#include <launch/launch_door.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <control/control_door.h>

/* SECOND_MS: for the door to come to its end once it is asked for something, behind which it is killed. */
enum { SECOND_MS = 1500, LOOK_MS = 10 };

/* Of this process, for the handler of a signal. Set before sys_stop_tell, and left once that is NULL. */
static launch_door_t asked_door;

/* Async-signal-safe. False: it lives still. */
static bool door_has_ended(pid_t pid)
{
    for (uint32_t ms = 0; ms < SECOND_MS; ms += LOOK_MS) {
        const pid_t ended = waitpid(pid, NULL, WNOHANG);
        if (ended == pid || (ended < 0 && errno != EINTR)) return true;
        (void)poll(NULL, 0, LOOK_MS);
    }
    return false;
}

/* Whether another machine was asked to stop: the words are whole then. */
static bool door_was_told(const board_row_t *row)
{
    return atomic_load(&row->has_words) != 0 && control_stop_is(row->culprit.status);
}

/* sys_stop_tell's. Async-signal-safe. */
static bool door_tell(bool at_once, int *code)
{
    board_row_t *row = asked_door.row;
    const bool told = door_was_told(row);
    if (!told) atomic_store(&row->asked.what, at_once ? CONTROL_ASKS_END : CONTROL_ASKS_STOP);
    (void)door_has_ended(asked_door.pid);
    if (!told) return false;
    *code = row->code;
    sys_stop_say(row->words);
    return true;
}

/* Everything that the door's process needs, and what the launcher must give back whatever becomes of it. */
typedef struct opening {
    launch_place_t place;
    text_t text;
    char **variables;
    uint32_t variable_count;
} opening_t;

static lh_status_t opening_listen(launch_t *l, opening_t *o)
{
    const job_launch_t *how = &l->how.job->launch;
    members_all(l->how.job, o->place.layout);
    (void)snprintf(o->place.address, sizeof(o->place.address), "%s",
                   launch_address(l, o->place.layout));
    o->place.layout[0] = '\0'; /* a door has none */
    return control_listen(o->place.address, (uint16_t)how->port, &o->place.listener,
                          &o->place.port);
}

static lh_status_t opening_make_board(launch_t *l, opening_t *o)
{
    o->place.board = memfd_create("longhaul-door", MFD_CLOEXEC);
    if (o->place.board < 0 || sys()->ftruncate(o->place.board, (off_t)sizeof(board_row_t)) != 0)
        return fail_io(errno, "cannot share memory with the door");
    return launch_map_board(o->place.board, 1, &l->door.row);
}

static lh_status_t opening_start(launch_t *l, opening_t *o, char *const *words)
{
    sigset_t mask;
    launch_place_write(&o->place, &o->text);
    lh_status_t status = text_status(&o->text);
    if (status == LH_OK) status = launch_copy_environment(&o->variables, &o->variable_count);
    if (status != LH_OK) return status;
    o->variables[o->variable_count] = o->text.data;
    (void)sigprocmask(SIG_SETMASK, NULL, &mask);
    const pid_t launcher = getpid();
    (void)fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) launch_become(&o->place, words, o->variables, launcher, &mask, NULL);
    if (pid < 0) return fail_io(errno, "cannot start the door");
    (void)setpgid(pid, pid);
    l->door.pid = pid;
    return LH_OK;
}

static void opening_end(opening_t *o)
{
    const int own[] = {o->place.listener, o->place.board, o->place.secret};
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (own[i] >= 0) (void)close(own[i]);
    text_free(&o->text);
    mem_free(o->variables);
}

/* Once it was handed to the handler the row stays mapped, for as long as this process lives: another thread
 * may be in the handler. */
static void door_forget(launch_t *l)
{
    if (l->door.row != NULL && l->door.pid == 0) (void)munmap(l->door.row, sizeof(*l->door.row));
    l->door = (launch_door_t){0};
}

lh_status_t launch_door_open(launch_t *l, char *const *words)
{
    const job_launch_t *how = &l->how.job->launch;
    opening_t o = {.place = {.rank = JOB_RANKS - 1,
                             .size = JOB_RANKS,
                             .listener = -1,
                             .board = -1,
                             .secret = -1,
                             .memory = -1,
                             .epoch = 1,
                             .herald = true,
                             .door = true}};
    lh_assert(l->starts && l->leads);
    if (l->door.pid != 0 || how->address == NULL || how->port == 0 || how->secret == NULL)
        return LH_OK; /* what is missing is told by the launch */
    lh_status_t status = l->secret != NULL ? LH_OK : secret_open(how->secret, true, &l->secret);
    if (status != LH_OK) return status;
    status = opening_listen(l, &o);
    if (status == LH_OK) status = opening_make_board(l, &o);
    if (status == LH_OK) status = secret_share(l->secret, &o.place.secret);
    if (status == LH_OK) status = opening_start(l, &o, words);
    opening_end(&o);
    if (status == LH_OK) {
        asked_door = l->door;
        sys_stop_tell(door_tell);
        return LH_OK;
    }
    door_forget(l);
    log_line(LH_LOG_WARN, "%s; machines that wait do not hear of a stop until the ranks meet",
             fail_reason());
    fail_clear();
    return LH_OK;
}

/* Asks the door for something, and waits until it is gone. Status and sentence of a stop of another machine's. */
static lh_status_t door_end(launch_t *l, uint32_t asks)
{
    lh_status_t status = LH_OK;
    if (l->door.pid == 0) return LH_OK;
    if (asks == CONTROL_ASKS_NOTHING)
        (void)kill(l->door.pid, SIGKILL);
    else if (!door_was_told(l->door.row))
        atomic_store(&l->door.row->asked.what, asks);
    if (!door_has_ended(l->door.pid)) {
        (void)kill(l->door.pid, SIGKILL);
        (void)waitpid(l->door.pid, NULL, 0);
    }
    if (door_was_told(l->door.row))
        status = fail_again(l->door.row->culprit.status, l->door.row->words);
    sys_stop_tell(NULL);
    door_forget(l);
    return status;
}

lh_status_t launch_door_pass(launch_t *l)
{
    return door_end(l, CONTROL_ASKS_PASS);
}

/* A stage that fails by itself is no stop: those that wait do so for the launcher that is started again. */
int launch_door_shut(launch_t *l, int code)
{
    if (l == NULL || l->door.pid == 0) return code;
    const bool asked = code == EXIT_TERMINATED || (code == LH_CANCELLED && sys_stop_requested());
    char own[BOARD_WORDS];
    (void)snprintf(own, sizeof(own), "%s", fail_reason());
    const lh_status_t status = door_end(l, asked ? CONTROL_ASKS_STOP : CONTROL_ASKS_NOTHING);
    if (status != LH_OK) return status;
    return code < 0 ? (int)fail_again(code, own) : code;
}

/* The launcher may be in a stage that ends behind a first signal, and at once by a second. */
static void door_signal(lh_status_t status)
{
    enum { BETWEEN_US = 100000 };
    (void)kill(getppid(), SIGTERM);
    if (status != STATUS_ENDED) return;
    (void)usleep(BETWEEN_US); /* two that are pending at once would be one */
    (void)kill(getppid(), SIGTERM);
}

int launch_door_run(launch_t *l)
{
    static const int ignored[] = {SIGTERM, SIGINT, SIGHUP};
    char sentence[CONTROL_STOP_TEXT];
    const job_site_t *site;
    const job_host_t *host;
    secret_t *secret = NULL;
    bool elsewhere = false;
    lh_assert(l->row != NULL);
    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
        (void)signal(ignored[i], SIG_IGN);
    job_rank_place(l->how.job, 0, &site, &host);
    lh_status_t status = secret_from_fd(l->place.secret, &secret);
    (void)close(l->place.secret);
    const control_door_how_t how = {.job = l->how.job,
                                    .listener = l->place.listener,
                                    .secret = secret,
                                    .site = site != NULL ? site->name : "",
                                    .host = host != NULL ? host->name : l->host,
                                    .asked = &l->row->asked};
    if (status == LH_OK) status = control_door_keep(&how, sentence, &elsewhere);
    secret_free(secret);
    if (!control_stop_is(status)) return status;
    if (elsewhere) {
        l->row->culprit.status = status;
        launch_write_row(l->row, status_exit_code(status), false, sentence);
        door_signal(status);
    }
    return status_exit_code(status);
}
