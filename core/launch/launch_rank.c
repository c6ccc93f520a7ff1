/* launch_rank.c - a rank from its start to its goodbye: what it will be compared by, where rank 0
 * is, the meeting, the command's body, and a watchdog that ends a rank which does not come to its
 * end.
 *
 * Ranks meet before step 0 over one TCP connection each to rank 0, with a key that proves that they
 * belong to the job; what differs between them is shown as one table then, as no run of different
 * programs or options can be explained afterwards. */
#include <launch/launch_rank.h>

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <base/thread.h>
#include <control/control_open.h>
#include <control/control_stop.h>
#include <control/world.h>
#include <launch/launch_door.h>
#include <launch/launch_state.h>

/* Characters: of a value that is shown whole, and of a digest. */
enum { VALUE_SHOWN = 100, HASH_SHOWN = 16 };

/* Takes copies. A value that is too long to be shown is shown by its beginning and its digest. */
static lh_status_t facts_add(launch_facts_t *f, const char *name, const char *value)
{
    char hash[SHA256_TEXT], shown[VALUE_SHOWN + 1];
    control_fact_t *rows = mem_grow(f->rows, &f->capacity, f->count + 1u, sizeof(*rows));
    if (rows == NULL) return LH_NO_MEMORY;
    f->rows = rows;
    if (strlen(value) > VALUE_SHOWN) {
        const lh_status_t status = digest_of(value, strlen(value), hash);
        if (status != LH_OK) return status;
        (void)snprintf(shown, sizeof(shown), "%.60s... sha256 %.*s", value, HASH_SHOWN, hash);
        value = shown;
    }
    char *own_name = mem_text(name), *own_value = mem_text(value);
    if (own_name == NULL || own_value == NULL) {
        mem_free(own_name);
        mem_free(own_value);
        return LH_NO_MEMORY;
    }
    rows[f->count++] = (control_fact_t){own_name, own_value};
    return LH_OK;
}

/* The program by its bytes: two builds of one version may compute different bits. */
static lh_status_t facts_add_program(launch_facts_t *f)
{
    char hash[SHA256_TEXT], value[64];
    const lh_status_t status = file_digest("/proc/self/exe", hash);
    if (status != LH_OK) return status;
    (void)snprintf(value, sizeof(value), "%s sha256 %.*s", LH_VERSION, HASH_SHOWN, hash);
    return facts_add(f, "program", value);
}

static lh_status_t facts_add_plugin(launch_facts_t *f, const plugin_t *p)
{
    char name[96], value[VALUE_SHOWN + 1];
    (void)snprintf(name, sizeof(name), "%s plugin %s", plugin_kind_text(p->kind), p->name);
    (void)snprintf(value, sizeof(value), "%.40s abi %u sha256 %.*s", p->version, p->row.abi_version,
                   HASH_SHOWN, p->sha256);
    return facts_add(f, name, value);
}

/* What must be the same on all ranks. Where files lie, how many threads a machine has and where
 * rank 0 listens may differ. */
static bool facts_has_key(const char *section, const char *key)
{
    static const char *const sections[] = {
        "data",     "model",  "train",      "optimizer", "group.*", "rule.*",
        "parts.*",  "hook.*", "checkpoint", "comm",      "site.*",  "transport.*",
        "parallel", "spec",   "spec.*",     "adapter.*", "dpo"};
    if (strcmp(section, "device") == 0) return strcmp(key, "plugin") == 0;
    if (strcmp(section, "launch") == 0)
        return strcmp(key, "ranks_per_node") == 0 || text_starts(key, "restart") ||
               strcmp(key, "rejoin") == 0 || strcmp(key, "notice") == 0 ||
               strcmp(key, "go_on_with") == 0 || strcmp(key, "prefer") == 0 ||
               strcmp(key, "witness") == 0;
    if (strcmp(section, "checkpoint") == 0 && strcmp(key, "folder") == 0) return false;
    if (strcmp(section, "dpo") == 0 && strcmp(key, "reference") == 0) return false;
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++)
        if (fnmatch(sections[i], section, 0) == 0) return true;
    return false;
}

/* A row for each key of a section that is compared. */
static lh_status_t facts_add_section(launch_facts_t *f, const document_section_t *s)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < s->entry_count; i++) {
        const document_entry_t *e = s->entries[i];
        char name[128];
        if (!facts_has_key(s->name, e->key)) continue;
        (void)snprintf(name, sizeof(name), "[%s] %s", s->name, e->key);
        status = facts_add(f, name, e->value);
    }
    return status;
}

lh_status_t launch_facts_collect(const job_t *job, const registry_t *plugins, launch_facts_t *out)
{
    launch_facts_t f = {0};
    lh_status_t status = facts_add_program(&f);
    for (uint32_t i = 0; status == LH_OK && i < registry_count(plugins); i++)
        status = facts_add_plugin(&f, registry_at(plugins, i));
    for (uint32_t i = 0; status == LH_OK && i < document_section_count(job->document); i++)
        status = facts_add_section(&f, document_section(job->document, i));
    if (status != LH_OK) {
        launch_facts_free(&f);
        return status;
    }
    *out = f;
    return LH_OK;
}

/* Never 0, which says that there is none. */
static lh_status_t facts_digest(const launch_facts_t *f, uint64_t *out)
{
    text_t all = {0};
    for (uint32_t i = 0; i < f->count; i++) {
        text_append_n(&all, f->rows[i].name, strlen(f->rows[i].name) + 1);
        text_append_n(&all, f->rows[i].value, strlen(f->rows[i].value) + 1);
    }
    const lh_status_t status = text_status(&all);
    if (status == LH_OK) *out = digest_xxh3(all.data, all.length) | 1;
    text_free(&all);
    return status;
}

void launch_facts_free(launch_facts_t *f)
{
    for (uint32_t i = 0; i < f->count; i++) {
        mem_free((void *)(uintptr_t)f->rows[i].name);
        mem_free((void *)(uintptr_t)f->rows[i].value);
    }
    mem_free(f->rows);
    *f = (launch_facts_t){0};
}

/* How long a rank that was told of the job's end has to come to its own, and how often the file with rank
 * 0's address is looked for, and whether the machine's other ranks are ready. */
enum { TOLD_GRACE_MS = 2500, LOOK_MS = 50, READY_MS = 5 };
/* How long a process that is no rank looks for rank 0, which listens now and then. */
#define HERALD_NS (UINT64_C(86400000000000) * 365)

/* Everything that a rank holds between its start and its end; lives on the stack of
 * launch_rank_run. */
typedef struct meeting {
    launch_t *launch;
    secret_t *secret;
    control_members_t members;
    launch_facts_t facts;
    published_t *published;
    char *file;                /* where rank 0 tells its address, or NULL */
    control_culprit_t culprit; /* where the launcher has no row for it */
    pthread_t watchdog;
    int watchdog_fd; /* eventfd that ends it; -1: none runs */
} meeting_t;

static control_culprit_t *meeting_culprit(meeting_t *m)
{
    return m->launch->row != NULL ? &m->launch->row->culprit : &m->culprit;
}

/* Rank 0 has told this rank why the job ends, and prints it for all. Who has lost rank 0 was told by
 * nobody, and nobody else may be left to print that. */
static bool meeting_is_told(meeting_t *m)
{
    const control_culprit_t *culprit = meeting_culprit(m);
    return culprit->status != LH_OK && culprit->told;
}

/* What other ranks print goes to a file; warnings and errors are also on the terminal. What stands
 * there may be another run's, under way: only a training that begins takes it away. */
static lh_status_t rank_open_log(launch_t *l)
{
    char name[32];
    const uint32_t rank = l->place.rank;
    if (rank == 0) return LH_OK;
    (void)snprintf(name, sizeof(name), "rank-%u.log", rank);
    lh_status_t status = folder_make(l->how.job->pipeline.folder);
    char *path = status == LH_OK ? job_path(l->how.job, name) : NULL;
    if (path == NULL) return status == LH_OK ? LH_NO_MEMORY : status;
    int fd = -1;
    status = file_begin(path, O_APPEND | O_RDWR, &fd);
    if (status == LH_OK && dup2(fd, STDOUT_FILENO) < 0)
        status = fail_io(errno, "cannot write %s", path);
    if (status == LH_OK) {
        log_as_rank(rank, fd, path);
        l->logs = true;
    }
    mem_free(path);
    return status;
}

/* A launcher of ours hands the key over as an open file, so that no path or variable shows it. */
static lh_status_t meeting_open_secret(meeting_t *m)
{
    const launch_place_t *p = &m->launch->place;
    const char *file = m->launch->how.job->launch.secret;
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

/* Rank 0 tells where it listens in a file of the job's folder: an address that a liar put there
 * leads to somebody who does not have the key. */
static lh_status_t meeting_tell_address(meeting_t *m, control_how_t *how, int *listener)
{
    uint16_t port;
    text_t text = {0};
    lh_status_t status = control_listen(how->address, how->port, listener, &port);
    if (status == LH_OK) {
        text_printf(&text, "%s %u\n", how->address, port);
        status = text_status(&text);
    }
    if (status == LH_OK) status = folder_make(m->launch->how.job->pipeline.folder);
    if (status == LH_OK) status = file_replace(m->file, text.data, text.length);
    text_free(&text);
    return status;
}

/* Rank 0 may come later than this rank: the file is waited for, as long as ranks wait to join. */
static lh_status_t meeting_read_address(meeting_t *m, launch_place_t *p)
{
    enum { FILE_BYTES = 512 };
    const uint64_t end = sys()->now_ns() + launch_patience(m->launch);
    control_wait_t told = {0};
    while (!file_exists(m->file)) {
        if (sys()->now_ns() > end)
            return fail(LH_TIMED_OUT,
                        "rank 0 has not told its address in %s: is the folder shared by all ranks? "
                        "Else set [launch] address and port",
                        m->file);
        if (control_wait_due(&told, sys()->now_ns()))
            log_line(LH_LOG_WARN, "waiting for rank 0, which tells its address in %s", m->file);
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

/* Where rank 0 is: the INI says it first, then who started the ranks, then a file in the job's
 * folder. The file is for starters that name the job but no port; it needs a folder that all ranks
 * see. */
static lh_status_t meeting_find_zero(meeting_t *m, control_how_t *how)
{
    launch_place_t *p = &m->launch->place;
    const job_launch_t *set = &m->launch->how.job->launch;
    char name[PLACE_MEETING + 16];
    if (!p->ours && set->address != NULL)
        (void)snprintf(p->address, sizeof(p->address), "%s", set->address);
    if (!p->ours && set->port != 0) p->port = (uint16_t)set->port;
    how->address = p->address;
    how->port = p->port;
    how->listener = p->listener;
    if (p->meeting[0] == '\0' || (set->address != NULL && set->port != 0)) return LH_OK;

    (void)snprintf(name, sizeof(name), "rendezvous-%s", p->meeting);
    m->file = job_path(m->launch->how.job, name);
    if (m->file == NULL) return LH_NO_MEMORY;
    if (p->rank != 0) {
        const lh_status_t status = meeting_read_address(m, p);
        how->port = p->port;
        return status;
    }
    if (p->address[0] == '\0')
        (void)snprintf(p->address, sizeof(p->address), "%s",
                       p->here == p->size ? "127.0.0.1" : m->launch->host);
    return meeting_tell_address(m, how, &how->listener);
}

/* What the launcher asks, where it is one of ours. */
static control_asked_t *meeting_asked(const meeting_t *m)
{
    return m->launch->row != NULL ? &m->launch->row->asked : NULL;
}

static control_members_t meeting_members(launch_t *l)
{
    const launch_place_t *p = &l->place;
    return (control_members_t){.job = l->how.job,
                               .layout = p->layout,
                               .machine = p->machine,
                               .herald = p->herald,
                               .elects = p->elects,
                               .resumes = l->how.resume,
                               .met_epoch = p->met_epoch,
                               .met = p->met,
                               .tried = p->tried,
                               .told = l->row != NULL ? &l->row->told : NULL};
}

/* All ranks of this machine or none: one that came, and were ended as another can't, would end the meeting for
 * all. The launcher ends those that wait for one that has failed. A stop is for the others to hear. */
static lh_status_t meeting_await_ready(const meeting_t *m, board_row_t *first)
{
    const launch_t *l = m->launch;
    const uint64_t end = sys()->now_ns() + launch_patience(l);
    (void)atomic_fetch_add(&first->ready, 1);
    while (atomic_load(&first->ready) < first->asked_ready &&
           control_stop_asked(&l->row->asked) == LH_OK) {
        if (sys()->now_ns() > end)
            return fail(LH_PEER_LOST, "another rank of this machine is not ready to compute");
        (void)poll(NULL, 0, READY_MS);
    }
    return LH_OK;
}

/* A machine that can't compute any more is as good as lost, though its launcher lives: it would be waited for, come,
 * and fail in each start anew, for all. So it does not come, and spares or [launch] go_on_with decide. What its own
 * options are wrong in stays a refusal. The plan says for so long which of the machine's devices is this rank's. */
static lh_status_t meeting_is_ready(meeting_t *m, const world_t *plan)
{
    const launch_t *l = m->launch;
    board_row_t *first = l->row == NULL ? NULL : l->row - l->place.row;
    published_t *published = NULL;
    if (l->how.ready == NULL || first == NULL || first->asked_ready == 0 ||
        control_stop_asked(&l->row->asked) != LH_OK)
        return LH_OK;
    lh_status_t status = world_publish(l->how.host, plan, m->secret, &published);
    if (status == LH_OK) status = l->how.ready(l->how.context);
    world_unpublish(l->how.host, published);
    if (status == LH_OK) return meeting_await_ready(m, first);
    if (status == LH_INVALID || status == LH_UNSUPPORTED) return status;
    char why[1024];
    (void)snprintf(why, sizeof(why), "%s", fail_reason());
    return fail(LH_DEVICE_LOST, "%s; this machine takes no part", why);
}

/* Up to the world that all have met in. What can be refused without the others is refused first: a
 * missing plugin or a wrong option costs no other rank its patience. Facts are collected after
 * plugins are loaded, as their digests are among them. */
static lh_status_t meeting_begin(meeting_t *m)
{
    launch_t *l = m->launch;
    const job_site_t *site;
    const job_host_t *host;
    lh_status_t status = meeting_open_secret(m);
    /* All plugins that the job names are loaded here, so that they can be compared. */
    if (status == LH_OK) status = l->how.check(l->how.context);
    if (status == LH_OK) status = launch_facts_collect(l->how.job, l->how.plugins, &m->facts);
    uint64_t found = 0;
    if (status == LH_OK) status = facts_digest(&m->facts, &found);
    job_rank_place(l->how.job, l->place.rank, &site, &host);
    m->members = meeting_members(l);
    control_how_t how = {.rank = l->place.rank,
                         .size = l->place.size,
                         .members = l->place.layout[0] != '\0' ? &m->members : NULL,
                         .host = host != NULL ? host->name : l->host,
                         .site = site != NULL ? site->name : "",
                         .port_fd = -1,
                         .epoch = l->place.epoch,
                         .stayed = l->place.facts == found,
                         .join_ns = launch_join_ns(l),
                         .patience_ns = launch_patience(l),
                         .outage_ns = l->how.job->transports[LH_LINK_WAN].outage_ns,
                         .word = l->row != NULL ? &l->row->word : NULL,
                         .culprit = meeting_culprit(m),
                         .asked = meeting_asked(m),
                         .secret = m->secret,
                         .facts = m->facts.rows,
                         .fact_count = m->facts.count};
    world_t *plan = NULL;
    if (status == LH_OK && job_ranks(l->how.job) == l->place.size)
        status = world_plan(l->how.job, l->place.rank, &plan);
    how.plan = plan;
    if (status == LH_OK && plan != NULL) status = meeting_is_ready(m, plan);
    if (status == LH_OK) status = meeting_find_zero(m, &how);
    const int train_log = status == LH_OK && l->place.rank == 0 ? launch_log_open(l) : -1;
    if (status == LH_OK) status = control_open(&how, &l->control, &l->world);
    launch_log_close(train_log);
    world_free(plan);
    if (status != LH_OK) return status;
    l->world->inside_nodes = l->how.job->parallel.inside == INSIDE_NODE;
    if (l->row != NULL) {
        l->row->facts = found;
        atomic_store(&l->row->met, l->world->row.epoch);
    }
    control_progress(l->control, 0, "its start");
    return world_publish(l->how.host, l->world, m->secret, &m->published);
}

/* A rank that was told of the end and does not come to it, in a long kernel or a wait of somebody
 * else's, is ended here, with the job's reason as its last words. It waits for the control plane's
 * failure and for its own end, whichever comes first. _exit and not exit, which would run handlers
 * of libraries that may wait for the thread that hangs. */
static void *watchdog_run(void *argument)
{
    meeting_t *m = argument;
    struct pollfd fds[2] = {{.fd = m->watchdog_fd, .events = POLLIN},
                            {.fd = control_fd(m->launch->control), .events = POLLIN}};
    while (poll(fds, 2, -1) <= 0) {
    }
    if (fds[0].revents != 0) return NULL;
    if (poll(fds, 1, TOLD_GRACE_MS) != 0) return NULL;
    const char *reason = control_failure(m->launch->control);
    const int code = status_exit_code(control_status(m->launch->control));
    m->launch->quiet = meeting_is_told(m);
    if (!launch_last_words(m->launch, code, reason)) log_end(reason);
    _exit(code);
}

/* After the meeting, when there is a plane to watch. */
static lh_status_t watchdog_start(meeting_t *m)
{
    lh_assert(m->watchdog_fd < 0 && m->launch->control != NULL);
    m->watchdog_fd = eventfd(0, EFD_CLOEXEC);
    if (m->watchdog_fd < 0) return fail_io(errno, "cannot watch the control plane");
    const int error = thread_start(&m->watchdog, "lh-watchdog", watchdog_run, m);
    if (error == 0) return LH_OK;
    (void)close(m->watchdog_fd);
    m->watchdog_fd = -1;
    return fail(LH_NO_MEMORY, "cannot watch the control plane: %s", strerror(error));
}

/* Before the goodbye, which may take as long as the others need. */
static void watchdog_stop(meeting_t *m)
{
    const uint64_t one = 1;
    if (m->watchdog_fd < 0) return;
    (void)!write(m->watchdog_fd, &one, sizeof(one));
    (void)pthread_join(m->watchdog, NULL);
    (void)close(m->watchdog_fd);
}

/* Rank 0 has looked whether the stage need run; what it says holds for all. */
static int meeting_run(meeting_t *m, int (*body)(void *context), void *context)
{
    lh_assert(m->launch->control != NULL);
    const uint8_t mine = m->launch->skip || m->launch->place.skip;
    uint8_t *all = mem_new(m->launch->place.size);
    if (all == NULL) return LH_NO_MEMORY;
    const lh_status_t status = control_gather(m->launch->control, &mine, 1, all);
    const bool skip = status == LH_OK && all[0] != 0;
    mem_free(all);
    if (status != LH_OK) return status;
    return skip ? EXIT_DONE : body(context);
}

/* Gives back what the meeting took; each part of it may be missing, where the meeting failed.
 * Plugins see a process alone from here on. */
static void meeting_end(meeting_t *m)
{
    launch_t *l = m->launch;
    world_unpublish(l->how.host, m->published);
    world_free(l->world);
    l->world = NULL;
    launch_facts_free(&m->facts);
    secret_free(m->secret);
    if (m->file != NULL && l->place.rank == 0) (void)sys()->unlink(m->file);
    mem_free(m->file);
}

/* Nobody before this machine takes it in: the others come to it, and it decides for all. Where it can't
 * listen at its address another machine may, to which it then comes as a herald like others. LH_TIMED_OUT:
 * they have waited for others as long as [launch] quorum_timeout says. */
static lh_status_t herald_elects(launch_t *l, const control_how_t *herald,
                                 control_members_t *members)
{
    enum { SETTLE_MS = 2000, AGAIN_MS = 10000 };
    machine_t own;
    control_how_t how = *herald;
    members_machine(l->how.job, l->place.machine, &own);
    if (own.address == NULL) return fail(LH_UNREACHABLE, "a witness decides nothing by itself");
    how.rank = 0;
    how.size = 1;
    how.address = own.address;
    /* Others may notice the loss later, by as much as a link may be silent. */
    how.join_ns = SETTLE_MS * CONTROL_MS +
                  (how.outage_ns > 0 ? how.outage_ns : CONTROL_SILENCE_MS * CONTROL_MS);
    const int train_log = launch_log_open(l);
    lh_status_t status = control_open(&how, &l->control, &l->world);
    launch_log_close(train_log);
    if (status == LH_PEER_LOST || status == LH_TIMED_OUT || control_stop_is(status)) return status;
    log_line(LH_LOG_WARN, "this machine can't lead: %s", fail_reason());
    members->elects = false;
    how = *herald;
    how.join_ns = AGAIN_MS * CONTROL_MS;
    status = control_open(&how, &l->control, &l->world);
    const bool told = how.culprit->status == LH_TIMED_OUT;
    return status == LH_TIMED_OUT && !told ? fail(LH_PEER_LOST, "nobody leads so far") : status;
}

/* Of a command that does not train nobody comes later, and none leads elsewhere: the launcher is not to start
 * another herald. */
static void herald_gave_up(meeting_t *m, lh_status_t status)
{
    control_culprit_t *culprit = meeting_culprit(m);
    if (status == LH_TIMED_OUT && m->launch->how.leads == NULL && culprit->status == LH_OK)
        culprit->status = status;
}

/* A process that is no rank keeps rank 0 company until its machine is to have ranks, or the job is over;
 * or until rank 0 is lost, and its launcher starts another. It loads nothing: what is compared of it is the
 * program and the INI. */
static int herald_run(launch_t *l)
{
    meeting_t m = {.launch = l, .watchdog_fd = -1};
    machine_t own;
    m.members = meeting_members(l);
    members_machine(l->how.job, l->place.machine, &own);
    lh_status_t status = meeting_open_secret(&m);
    if (status == LH_OK) status = launch_facts_collect(l->how.job, l->how.plugins, &m.facts);
    const control_how_t how = {.rank = JOB_RANKS + l->place.machine,
                               .size = JOB_RANKS + l->place.machine + 1,
                               .members = &m.members,
                               .host = own.host,
                               .site = own.site->name,
                               .address = l->place.address,
                               .port = l->place.port,
                               .listener = -1,
                               .port_fd = -1,
                               .epoch = l->place.epoch,
                               .join_ns = l->how.leads != NULL ? HERALD_NS : launch_patience(l),
                               .outage_ns = l->how.job->transports[LH_LINK_WAN].outage_ns,
                               .culprit = meeting_culprit(&m),
                               .asked = meeting_asked(&m),
                               .secret = m.secret,
                               .facts = m.facts.rows,
                               .fact_count = m.facts.count};
    if (status == LH_OK) status = control_open(&how, &l->control, &l->world);
    herald_gave_up(&m, status);
    if (status == LH_UNREACHABLE && l->place.elects) status = herald_elects(l, &how, &m.members);
    lh_assert(status != LH_OK);
    meeting_end(&m);
    return l->row != NULL && l->row->told.over ? EXIT_DONE : status;
}

/* The whole life of a rank. Each step is taken only if all before it went well; what was opened is
 * closed in any case. How the job ended goes before how this rank did, so that all ranks end with
 * one sentence; where rank 0 prints it, this one is quiet. */
int launch_rank_run(launch_t *l, int (*body)(void *context), void *context)
{
    if (l->place.door) return launch_door_run(l);
    if (l->place.herald) return herald_run(l);
    meeting_t m = {.launch = l, .watchdog_fd = -1};
    int code = rank_open_log(l);
    if (code == LH_OK) code = meeting_begin(&m);
    if (l->control == NULL) l->quiet = meeting_is_told(&m);
    if (code == LH_OK) code = watchdog_start(&m);
    if (code == LH_OK) code = meeting_run(&m, body, context);
    watchdog_stop(&m);
    if (l->control != NULL) {
        /* A machine leaves, and the others start ranks again: spares and votes are needed more than before. */
        const bool leaves = l->row != NULL && atomic_load(&l->row->leaves) != 0;
        if (leaves && l->how.job->launch.restarts > 0) control_goes_on(l->control);
        const lh_status_t end = control_close(l->control, code < 0 ? code : LH_OK, fail_reason());
        if (end != LH_OK) code = end;
        l->control = NULL;
        l->quiet = end != LH_OK && meeting_is_told(&m);
    }
    meeting_end(&m);
    return code;
}
