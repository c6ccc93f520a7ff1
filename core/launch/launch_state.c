/* launch_state.c - where this process stands among the ranks, and the board on which ranks tell
 * their launcher how they fare.
 *
 * A rank that dies has no time to send anything: what it was doing stands in its row already, and
 * the launcher reads it there after the process is gone. Shared memory and not a pipe, as a pipe
 * that nobody reads would stop the rank, and as only the last word counts. */
#include <launch/launch_state.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <config/quantity.h>

extern char **environ;

/* Seconds; see launch_patience. */
enum { DAY_S = 86400 };

/* The launcher maps all rows, a rank those up to its own. */
lh_status_t launch_map_board(int fd, uint32_t rows, board_row_t **out)
{
    void *memory = mmap(NULL, rows * sizeof(board_row_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                        0);
    if (memory == MAP_FAILED) return fail_io(errno, "cannot share memory between ranks");
    *out = memory;
    return LH_OK;
}

/* Names are compared and not resolved: what a name leads to differs between machines. */
bool launch_is_here(const launch_t *l, const char *host, bool asked)
{
    if (strcmp(host, l->host) == 0) return true;
    if (asked) return false;
    if (strcmp(host, "localhost") == 0) return true;
    return members_same_host(host, l->host);
}

const char *launch_address(const launch_t *l, const char *layout)
{
    machine_t at;
    if (layout[0] == '\0') return l->how.job->launch.address;
    members_machine(l->how.job, members_leader(l->how.job, layout), &at);
    return at.address;
}

/* A machine that was lost may take a while to come back; where others may take its place, no longer
 * than rejoin says. */
uint64_t launch_join_ns(const launch_t *l)
{
    const job_launch_t *how = &l->how.job->launch;
    const bool longer = l->place.epoch > 1 &&
                        (how->rejoin_ns > how->join_timeout_ns || members_change(l->how.job));
    return longer ? how->rejoin_ns : how->join_timeout_ns;
}

/* Where stages run first on rank 0's machine, this rank has nothing to do but to wait for them: up
 * to seven days. */
uint64_t launch_patience(const launch_t *l)
{
    const uint64_t join = launch_join_ns(l);
    if (l->place.epoch > 1) return join;
    return l->waits || l->place.waits ? UINT64_C(7000000000) * DAY_S : join;
}

/* The first words count: what fails after the first is mostly its consequence. The flag is stored
 * last, so that a launcher that sees it sees all of the words. */
void launch_write_row(board_row_t *row, int code, bool died, const char *sentence)
{
    if (atomic_load(&row->has_words) != 0) return;
    row->code = code;
    row->died = died;
    (void)snprintf(row->words, sizeof(row->words), "%s", sentence);
    atomic_store(&row->has_words, 1);
}

/* Lines go to train.log as well, until launch_log_close. -1: to stderr alone, as where it can't be opened, which
 * has a reason then, or may not be begun. */
static int train_log_open(const launch_t *l, bool begins)
{
    int fd = -1;
    char *path = job_path(l->how.job, "train.log");
    const bool opened = path != NULL && (begins || file_exists(path)) &&
                        file_begin(path, O_APPEND, &fd) == LH_OK;
    if (opened) log_also(fd, path);
    mem_free(path);
    return opened ? fd : -1;
}

/* Rank 0's log may be closed by now, or have been another process's. */
static void train_log_add(const launch_t *l, int32_t level, const char *kind, const char *sentence)
{
    const bool goes_on = l != NULL && l->meets && l->leads && !l->follows && l->how.resume;
    if (l == NULL || (!l->began && !goes_on)) return;
    const int fd = train_log_open(l, l->began);
    if (fd >= 0) log_note(level, "%s: %s", kind, sentence);
    launch_log_close(fd);
}

void launch_note_end(const launch_t *l, const char *sentence)
{
    train_log_add(l, LH_LOG_ERROR, "longhaul", sentence);
}

void launch_note_restart(const launch_t *l, const char *sentence)
{
    train_log_add(l, LH_LOG_WARN, "warning", sentence);
}

/* The log of a run that begins is another one's until then; and ranks that don't train (bench, check) have none,
 * and may meet while a training in that folder writes it. So does the leader that an old rank 0 has not heard of
 * yet. */
int launch_log_open(const launch_t *l)
{
    if (l->how.leads == NULL || (!l->how.resume && l->place.epoch <= 1)) return -1;
    if (l->row != NULL && l->row->follows) return -1;
    const int fd = train_log_open(l, false);
    if (fd < 0) fail_clear(); /* they go to stderr alone */
    return fd;
}

void launch_log_close(int fd)
{
    if (fd < 0) return;
    log_also(-1, "");
    (void)sys()->close(fd);
}

/* True: the sentence is told, or will be, and the caller prints nothing. A rank with a log of its
 * own writes it there as well: an error only where nobody else tells it, so that one failure is one
 * line on the terminal. */
static bool say_last(const launch_t *l, int code, bool died, const char *sentence)
{
    if (l == NULL || (l->place.size == 1 && l->row == NULL)) return false;
    if (l->row != NULL) launch_write_row(l->row, code, died, sentence);
    const bool told = l->row != NULL || l->quiet; /* by another process */
    if (!l->logs) return told;
    if (told)
        log_line(LH_LOG_INFO, "longhaul: %s", sentence); /* to its own file */
    else
        log_line(LH_LOG_ERROR, "%s", sentence);
    return true;
}

bool launch_last_words(const launch_t *l, int code, const char *sentence)
{
    return say_last(l, code, false, sentence);
}

bool launch_died(const launch_t *l, int code, const char *sentence)
{
    return say_last(l, code, true, sentence);
}

/* Reads variables as numbers, strictly: a table of starters, tried in order.
 *
 * A starter is known by the variables that it sets, which users do not set by hand. A variable that
 * is set and can't be read is refused, never taken for missing: a rank that believed itself alone
 * would train by itself, in the same folder as the others. */
typedef struct starter {
    const char *name;
    const char *rank, *size, *here; /* variables; size and here may be missing */
    const char *job;                /* names the job; NULL                      */
    const char *step;               /* of that job; NULL                        */
    const char *again;              /* how often it was begun again under that name; NULL */
} starter_t;

/* The innermost first: torchrun may run under Slurm, mpirun too. srun of Slurm sets the variables
 * of a step; a batch script, which is no rank, has none of them. */
static const starter_t starters[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", NULL, NULL, NULL},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "PMIX_NAMESPACE", NULL, NULL},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL, "SLURM_JOB_ID", "SLURM_STEP_ID",
     "SLURM_RESTART_COUNT"},
    {"PMIx", "PMIX_RANK", NULL, NULL, "PMIX_NAMESPACE", NULL, NULL},
};

static lh_status_t read_variable_number(const char *variable, uint64_t most, uint32_t *out)
{
    uint64_t number;
    const char *text = getenv(variable);
    if (text == NULL || !quantity_u64(text, &number) || number > most)
        return fail(LH_INVALID, "the variable %s is '%s', expected a whole number up to %llu",
                    variable, text == NULL ? "" : text, (unsigned long long)most);
    *out = (uint32_t)number;
    return LH_OK;
}

/* A variable that a starter does not have is NULL here. */
static bool is_set(const char *variable)
{
    return variable != NULL && getenv(variable) != NULL;
}

/* torchrun's own store may listen on MASTER_PORT already; then the next one is ours. */
static lh_status_t read_master(launch_place_t *p)
{
    uint32_t port;
    const char *address = getenv("MASTER_ADDR"), *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (address == NULL || !is_set("MASTER_PORT"))
        return fail(LH_INVALID,
                    "RANK is set as torchrun does, but MASTER_ADDR and MASTER_PORT are not: where "
                    "is rank 0?");
    if ((size_t)snprintf(p->address, sizeof(p->address), "%s", address) >= sizeof(p->address))
        return fail(LH_INVALID, "MASTER_ADDR is longer than %zu bytes", sizeof(p->address) - 1);
    const lh_status_t status = read_variable_number("MASTER_PORT", 65534, &port);
    if (status != LH_OK) return status;
    if (store != NULL && strcmp(store, "True") == 0) port++;
    p->port = (uint16_t)port;
    return LH_OK;
}

/* What names the job becomes part of a file's name: slashes, blanks and dots become dashes, and
 * what is too long is cut. */
static void append_name(const char *text, char out[PLACE_MEETING])
{
    size_t length = strlen(out);
    for (; text != NULL && *text != '\0' && length + 1 < PLACE_MEETING; text++)
        out[length++] = strchr("/\\ .", *text) == NULL ? *text : '-';
    out[length] = '\0';
}

/* Rank and size from the starter's variables; where the ranks meet from its own, or from the name
 * of the job, by which rank 0 leaves its address in a file. */
static lh_status_t read_starter(const job_t *job, const starter_t *s, launch_place_t *p)
{
    p->by = s->name;
    lh_status_t status = read_variable_number(s->rank, JOB_RANKS, &p->rank);
    if (status == LH_OK && is_set(s->size)) {
        status = read_variable_number(s->size, JOB_RANKS, &p->size);
    } else if (status == LH_OK) {
        p->size = job_ranks(job);
        if (s->size != NULL)
            status = fail(LH_INVALID,
                          "%s is set as %s does, but %s is not: how many ranks are there?", s->rank,
                          s->name, s->size);
    }
    if (status == LH_OK && is_set(s->here))
        status = read_variable_number(s->here, JOB_RANKS, &p->here);
    if (status != LH_OK) return status;
    if (p->rank >= p->size)
        return fail(LH_INVALID, "%s says that this is rank %u of %u: ranks count from 0", s->name,
                    p->rank, p->size);
    if (s->job == NULL) return read_master(p);
    append_name(getenv(s->job), p->meeting);
    if (s->step != NULL) {
        append_name("-", p->meeting);
        append_name(getenv(s->step), p->meeting);
    }
    /* A rank 0 that was killed has left its address under the job's name, which is the same when the
     * job is put back into the queue: who read it there would wait for nobody. */
    if (is_set(s->again)) {
        append_name("-", p->meeting);
        append_name(getenv(s->again), p->meeting);
    }
    if (p->meeting[0] == '\0')
        return fail(LH_INVALID, "%s is set as %s does, but %s is not", s->rank, s->name, s->job);
    return LH_OK;
}

/* What the starter does and what the INI says must be the same number of ranks: one of them is a
 * mistake, and which one only the user knows. */
static lh_status_t check_job(const job_t *job, const launch_place_t *p)
{
    const document_entry_t *e = document_entry(document_find(job->document, "launch"),
                                               "ranks_per_node");
    if (job->site_count > 0 && job->site_ranks != p->size)
        return fail(LH_INVALID, "%s starts %u ranks, [site.*] hosts name %u", p->by, p->size,
                    job->site_ranks);
    if (e != NULL && p->here != 0 && job->site_count == 0 && job->launch.ranks_per_node != p->here)
        return fail(LH_INVALID,
                    "%s starts %u ranks on this machine, [launch] ranks_per_node says %llu", p->by,
                    p->here, (unsigned long long)job->launch.ranks_per_node);
    /* Where the starter does not tell how many are here, fewer in all are fewer here. */
    if (e != NULL && p->here == 0 && job->site_count == 0 && job->launch.ranks_per_node > p->size)
        return fail(LH_INVALID, "%s starts %u ranks, [launch] ranks_per_node says %llu", p->by,
                    p->size, (unsigned long long)job->launch.ranks_per_node);
    return LH_OK;
}

/* Where the job has hosts: a layout is never empty then, but for one that was not met in yet. */
static bool read_members(const char *text, launch_place_t *p, int *length)
{
    unsigned herald, elects, machine, met;
    if (*text == '\0') return true;
    if (sscanf(text, " herald=%u elects=%u machine=%u layout=%256s met=%u:%256s tried=%2144s%n",
               &herald, &elects, &machine, p->layout, &met, p->met, p->tried, length) != 7)
        return false;
    p->herald = herald != 0;
    p->elects = elects != 0;
    p->machine = machine;
    p->met_epoch = met;
    return true;
}

/* The one variable that a launcher of ours sets: all in one, as it is to be unset at once. */
static lh_status_t read_ours(const char *text, launch_place_t *p)
{
    unsigned rank, size, port, row, skip, waits, door, epoch;
    unsigned long long facts;
    int end = 0, more = 0;
    char address[PLACE_ADDRESS];
    if (sscanf(
            text,
            "rank=%u size=%u port=%u row=%u skip=%u waits=%u door=%u epoch=%u facts=%llx board=%d "
            "secret=%d listener=%d memory=%d address=%255s%n",
            &rank, &size, &port, &row, &skip, &waits, &door, &epoch, &facts, &p->board, &p->secret,
            &p->listener, &p->memory, address, &end) != 14 ||
        !read_members(text + end, p, &more) || text[end + more] != '\0' || rank >= size ||
        size > JOB_RANKS || port > UINT16_MAX)
        return fail(LH_INVALID, "the variable " PLACE_OURS
                                " is for ranks that longhaul starts itself: unset it");
    p->by = "longhaul";
    p->ours = true;
    p->rank = rank;
    p->size = size;
    p->port = (uint16_t)port;
    p->row = row;
    p->skip = skip != 0;
    p->waits = waits != 0;
    p->door = door != 0;
    p->herald = p->herald || p->door;
    p->epoch = epoch;
    p->facts = facts;
    (void)snprintf(p->address, sizeof(p->address), "%s", address);
    return LH_OK;
}

void launch_place_write(const launch_place_t *p, text_t *out)
{
    lh_assert(p->rank < p->size && p->board >= 0 && p->secret >= 0);
    text_printf(out,
                PLACE_OURS "=rank=%u size=%u port=%u row=%u skip=%u waits=%u door=%u epoch=%u "
                           "facts=%llx board=%d secret=%d listener=%d memory=%d address=%s",
                p->rank, p->size, p->port, p->row, p->skip ? 1u : 0u, p->waits ? 1u : 0u,
                p->door ? 1u : 0u, p->epoch, (unsigned long long)p->facts, p->board, p->secret,
                p->listener, p->memory, p->address);
    if (p->layout[0] == '\0') return; /* no hosts, or too many */
    text_printf(out, " herald=%u elects=%u machine=%u layout=%s met=%u:%s tried=%s",
                p->herald ? 1u : 0u, p->elects ? 1u : 0u, p->machine, p->layout, p->met_epoch,
                p->met[0] == '\0' ? "?" : p->met, p->tried[0] == '\0' ? "?" : p->tried);
}

/* A launcher of ours goes before all others: it may itself run under one of them, whose variables
 * its ranks inherit. Of the others the first of the table that has set its variables counts. */
lh_status_t launch_place_find(const job_t *job, launch_place_t *out)
{
    launch_place_t p = {.size = 1, .listener = -1, .board = -1, .secret = -1, .memory = -1};
    const char *ours = getenv(PLACE_OURS);
    lh_status_t status = LH_OK;
    if (ours != NULL) {
        status = read_ours(ours, &p);
        (void)unsetenv(PLACE_OURS); /* what a rank starts is no rank */
        if (status == LH_OK) *out = p;
        return status;
    }
    for (size_t i = 0; status == LH_OK && i < sizeof(starters) / sizeof(starters[0]); i++) {
        const starter_t *s = &starters[i];
        const bool step = s->step == NULL || (is_set(s->size) && is_set(s->step));
        if (!is_set(s->rank) || !step) continue;
        status = read_starter(job, s, &p);
        if (status == LH_OK) status = check_job(job, &p);
        break;
    }
    if (status == LH_OK) *out = p;
    return status;
}

lh_status_t launch_copy_environment(char ***out, uint32_t *count)
{
    *count = 0;
    while (environ[*count] != NULL)
        ++*count;
    *out = mem_array(*count + 2u, sizeof(**out));
    if (*out == NULL) return LH_NO_MEMORY;
    memcpy(*out, environ, *count * sizeof(**out));
    return LH_OK;
}

/* Only what is safe between fork and exec. */
noreturn void launch_become(const launch_place_t *own, char *const *words, char *const *variables,
                            pid_t launcher, const sigset_t *mask, const cpu_set_t *processors)
{
    const int kept[] = {own->board, own->secret, own->listener, own->memory};
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(EXIT_INTERNAL);
    /* Ctrl-C in a terminal is the launcher's to pass on, once. */
    (void)setpgid(0, 0);
    /* In a group of its own it would be stopped as it writes to a terminal with `stty tostop`. */
    (void)signal(SIGTTOU, SIG_IGN);
    /* Without a terminal it means logs, and must not end a rank that has not come that far. */
    if (!sys_has_terminal()) (void)signal(SIGHUP, SIG_IGN);
    (void)sigprocmask(SIG_SETMASK, mask, NULL);
    if (nothing >= 0) (void)dup2(nothing, STDIN_FILENO);
    if (processors != NULL) (void)sched_setaffinity(0, sizeof(*processors), processors);
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        if (kept[i] >= 0) (void)fcntl(kept[i], F_SETFD, 0);
    (void)execve("/proc/self/exe", words, variables);
    _exit(EXIT_INTERNAL);
}
