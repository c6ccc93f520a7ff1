/* launch_members.c - which ranks a launcher has.
 *
 * In a job whose machines may change that is another number after each meeting that rank 0 has called
 * for: it tells all ranks the next layout before they end, and each launcher finds its own ranks in it. A
 * launcher that has none, of a spare, of a machine that was left out or of the witness, starts one
 * process that is no rank and keeps rank 0 company: so it waits in the same loop, and is ended by the
 * same signals. So does one whose ranks could not reach rank 0, until another machine leads.
 *
 * What a launcher has taken part in, and was told of, is its vote (control_members.c). It is on the disk
 * before ranks start by it. */
#include <launch/launch_members.h>

#include <sys/wait.h>
#include <unistd.h>

#include <base/log.h>
#include <base/memory.h>
#include <control/control_conn.h>

/* The place of one more rank of this machine. */
static void starter_add_rank(starter_t *s, uint32_t rank, uint32_t machine, const char *host,
                             const char *site)
{
    lh_assert(s->count < s->most);
    started_t *r = &s->ranks[s->count++];
    *r = (started_t){.rank = rank,
                     .machine = machine,
                     .host = host,
                     .site = site,
                     .pidfd = -1,
                     .memory = r->memory};
}

static bool starter_is_here(const starter_t *s, const char *host)
{
    return launch_is_here(s->launch, host, s->launch->how.machine != NULL);
}

/* How many ranks this machine has at the most: those of all hosts, and spares, that it is. */
static uint32_t starter_most(const starter_t *s)
{
    const job_t *job = s->launch->how.job;
    uint32_t most = 0;
    if (job->site_count == 0) return job_ranks(job);
    for (uint32_t i = 0; i < job->site_count; i++) {
        const job_site_t *site = &job->sites[i];
        for (uint32_t k = 0; k < site->host_count; k++)
            if (starter_is_here(s, site->hosts[k].name)) most += site->hosts[k].ranks;
        for (uint32_t k = 0; k < site->spare_count; k++)
            if (starter_is_here(s, site->spares[k].name)) most += site->spares[k].ranks;
    }
    const bool witness = members_witness(job) != MEMBERS_NONE &&
                         starter_is_here(s, job->launch.witness);
    return most == 0 && witness ? 1 : most;
}

/* Of a job whose members are known by a layout. A machine without ranks sends a herald, and so does one
 * that elects: that of the first which has ranks. */
static void starter_find_members(starter_t *s)
{
    const job_t *job = s->launch->how.job;
    uint32_t herald = MEMBERS_NONE;
    machine_t at;
    bool leads = false;
    s->place.size = members_ranks(job, s->place.layout);
    for (uint32_t m = 0; m < members_machines(job); m++) {
        uint32_t first;
        members_machine(job, m, &at);
        if (!starter_is_here(s, at.host)) continue;
        const uint32_t ranks = members_ranks_of(job, s->place.layout, m, &first);
        leads = leads || (ranks > 0 && first == 0);
        for (uint32_t r = first; r < first + ranks && !s->place.elects; r++)
            starter_add_rank(s, r, m, at.host, at.site->name);
        if (herald == MEMBERS_NONE || (ranks > 0 && s->place.elects)) herald = m;
    }
    const bool news = leads != s->launch->leads;
    s->launch->leads = leads;
    if (news && s->launch->how.leads != NULL) s->launch->how.leads(s->launch->how.context, leads);
    if (!leads) s->launch->follows = false; /* it has heard where rank 0 is */
    s->place.herald = s->count == 0;
    if (!s->place.herald) return;
    members_machine(job, herald, &at);
    starter_add_rank(s, JOB_RANKS - 1, herald, at.host, at.site->name);
}

/* Which ranks are this machine's now. */
static void starter_find_ranks(starter_t *s)
{
    const job_t *job = s->launch->how.job;
    s->count = 0;
    if (s->place.layout[0] != '\0') {
        starter_find_members(s);
        return;
    }
    s->place.size = job_ranks(job);
    for (uint32_t r = 0; r < s->place.size; r++) {
        const job_site_t *site;
        const job_host_t *host;
        job_rank_place(job, r, &site, &host);
        if (host == NULL)
            starter_add_rank(s, r, 0, s->launch->host, "");
        else if (starter_is_here(s, host->name))
            starter_add_rank(s, r, 0, host->name, site->name);
    }
}

lh_status_t starter_make_ranks(starter_t *s)
{
    s->most = starter_most(s);
    if (s->most == 0)
        return fail(LH_INVALID,
                    "this machine is '%s', which no [site.*] hosts names; --host NAME says which "
                    "one it is",
                    s->launch->host);
    s->ranks = mem_array(s->most, sizeof(*s->ranks));
    if (s->ranks == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < s->most; i++)
        s->ranks[i].memory = -1;
    starter_find_ranks(s);
    return LH_OK;
}

/* Whether all machines of the job are this one. */
static bool starter_is_one(const starter_t *s)
{
    const job_t *job = s->launch->how.job;
    for (uint32_t m = 0; m < members_machines(job); m++) {
        machine_t at;
        members_machine(job, m, &at);
        if (!starter_is_here(s, at.host)) return false;
    }
    return true;
}

bool starter_is_alone(const starter_t *s)
{
    return starter_is_one(s) && s->count == s->place.size && !s->place.herald;
}

bool starter_leaves_alone(const starter_t *s)
{
    return s->leave_by != 0 && !s->job_stops;
}

bool starter_is_asked_for_all(const starter_t *s)
{
    const bool waits = s->place.herald && !s->place.elects;
    return !starter_is_alone(s) && !starter_leaves_alone(s) && !waits;
}

/* Some systems lead a machine's own name to itself (127.0.1.1): if it comes to lead it would listen where
 * no other reaches it, and that is told before it is needed. No other name is looked up, as that may
 * take long. */
static void starter_check_addresses(const starter_t *s)
{
    const job_t *job = s->launch->how.job;
    char own[LAUNCH_HOST] = "", at_address[CONTROL_ADDRESS];
    if (gethostname(own, sizeof(own) - 1) != 0) return;
    for (uint32_t m = 0; m < members_places(job); m++) {
        machine_t at;
        uint16_t port;
        int fd;
        members_machine(job, m, &at);
        if (!starter_is_here(s, at.host) || strcmp(at.address, at.host) != 0 ||
            !members_same_host(at.address, own))
            continue;
        if (control_listen(at.address, 0, &fd, &port) != LH_OK) {
            fail_clear();
            continue;
        }
        if (control_local(fd, at_address))
            log_line(LH_LOG_WARN,
                     "%s/%s is %s here, where no other machine reaches it if it comes to lead; "
                     "name its address in [site.%s] addresses",
                     at.site->name, at.host, at_address, at.site->name);
        (void)close(fd);
    }
}

/* As the job names this machine: it may call itself otherwise at its next start, by --host or with a
 * domain, and of two files each would have its vote. */
static const char *starter_name(const starter_t *s)
{
    const job_t *job = s->launch->how.job;
    for (uint32_t m = 0; m < members_machines(job); m++) {
        machine_t at;
        members_machine(job, m, &at);
        if (starter_is_here(s, at.host)) return at.host;
    }
    return s->launch->host;
}

lh_status_t starter_remember(starter_t *s)
{
    launch_t *l = s->launch;
    const job_t *job = l->how.job;
    s->votes = (vote_file_t){.fd = -1};
    members_all(job, s->place.layout);
    if (!l->how.votes || !members_change(job) || starter_is_one(s)) return LH_OK;
    starter_check_addresses(s);
    return vote_file_open(job, starter_name(s), l->how.resume, &s->place, &s->votes);
}

lh_status_t starter_note_met(starter_t *s)
{
    bool news = false;
    for (uint32_t i = 0; i < s->count; i++) {
        const control_told_t *t = &s->board[i].told;
        const bool witness = s->place.herald && atomic_load(&t->met_epoch) != 0;
        const uint32_t epoch = witness ? atomic_load(&t->met_epoch) : atomic_load(&s->board[i].met);
        if (epoch == 0 || epoch < s->place.epoch) continue;
        /* It was told of another layout, of that epoch too, which may meet by its vote. */
        if (witness && epoch == s->place.epoch && s->place.tried[0] != '\0' &&
            strcmp(t->met, s->place.layout) != 0)
            continue;
        /* Those have met without this machine, and lead by themselves. */
        if (witness) memcpy(s->place.layout, t->met, sizeof(s->place.layout));
        if (witness) s->place.elects = false;
        s->place.epoch = epoch + 1;
        s->place.facts = witness ? 0 : s->board[i].facts; /* of what it has not loaded: not known */
        s->place.met_epoch = epoch;
        memcpy(s->place.met, s->place.layout, sizeof(s->place.met));
        s->place.tried[0] = '\0';
        news = true;
    }
    return news ? vote_file_write(&s->votes, &s->place) : LH_OK;
}

int started_code(const started_t *r)
{
    const bool coded = WIFEXITED(r->how) && WEXITSTATUS(r->how) != EXIT_DONE;
    return coded ? WEXITSTATUS(r->how) : EXIT_LOST;
}

/* What rank 0 has told the ranks that they are next; NULL: nothing. */
static const control_told_t *starter_told(const starter_t *s)
{
    const control_told_t *best = NULL;
    for (uint32_t i = 0; i < s->count; i++) {
        const control_told_t *t = &s->board[i].told;
        if (atomic_load(&t->epoch) == 0 || !members_are(s->launch->how.job, t->layout)) continue;
        if (best == NULL || atomic_load(&t->epoch) > atomic_load(&best->epoch)) best = t;
    }
    return best;
}

/* The ranks of this machine are others from here on, or none. */
static lh_status_t starter_become(starter_t *s, const control_told_t *told)
{
    s->followed = s->followed || !s->launch->leads;
    /* Rank 0 may know of less than this machine: epochs never go back. */
    if (atomic_load(&told->epoch) > s->place.epoch) s->place.epoch = atomic_load(&told->epoch);
    memcpy(s->place.layout, told->layout, sizeof(s->place.layout));
    /* Who can't remember all that it took part in has no vote any more. */
    if (!members_try(s->place.tried, s->place.epoch, told->layout)) {
        if (s->place.met_epoch != 0)
            log_line(LH_LOG_WARN,
                     "%d layouts in a row did not meet: this machine has no vote any more until it "
                     "has met the others",
                     MEMBERS_TRIES);
        s->place.met_epoch = 0;
        s->place.tried[0] = '\0';
    }
    s->regroups++;
    s->place.elects = false;
    starter_find_ranks(s);
    return vote_file_write(&s->votes, &s->place);
}

bool starter_follows(starter_t *s, lh_status_t *status)
{
    const control_told_t *told = starter_told(s);
    *status = told == NULL ? LH_OK : starter_become(s, told);
    return told != NULL;
}

/* Ranks that have met before did not reach rank 0 in all the time that it had: they look for another
 * machine to lead. */
static bool starter_elects(starter_t *s)
{
    bool unreached = false;
    machine_t at;
    for (uint32_t i = 0; i < s->count; i++)
        unreached = unreached || atomic_load(&s->board[i].told.unreached) != 0;
    if (!unreached || s->place.herald || s->place.epoch <= 1 || s->place.layout[0] == '\0' ||
        !members_change(s->launch->how.job))
        return false;
    members_machine(s->launch->how.job, members_leader(s->launch->how.job, s->place.layout), &at);
    log_line(LH_LOG_WARN,
             "rank 0 on %s/%s was not reached in %llu s; those that are here look for another "
             "machine to lead",
             at.site->name, at.host,
             (unsigned long long)(s->launch->how.job->launch.rejoin_ns / 1000000000u));
    s->place.elects = true;
    starter_find_ranks(s);
    return true;
}

/* A spare was given the ranks of rank 0's machine, and the others have not come to it: they came too late, or
 * have not heard of that. It is a spare as after a start of its launcher, without a vote as before, and goes to
 * whoever leads instead: its launcher that ended here would be missed as soon as they look for it.
 *
 * Not without end: a spare that reaches the others and that they don't reach would be given those ranks again
 * and again, as whoever is there keeps them. Once its launcher has ended they decide without it. */
static bool starter_is_spare_again(starter_t *s, lh_status_t *status)
{
    enum { VAIN_MOST = 3 };
    const job_t *job = s->launch->how.job;
    const board_row_t *row = &s->board[s->first - s->ranks];
    bool lacked = false;
    if (s->place.herald || s->place.epoch <= 1 || s->place.met_epoch != 0) return false;
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->ranks[i].machine < members_hosts(job)) return false;
        lacked = lacked || atomic_load(&s->board[i].told.lacked) != 0;
    }
    if (!lacked || ++s->vain == VAIN_MOST) return false;
    text_t line = {0};
    text_printf(&line, "%s; this machine waits as a spare again",
                atomic_load(&row->has_words) != 0 ? row->words : "ranks are missing");
    const char *sentence = line.failed ? "this machine waits as a spare again" : line.data;
    log_line(LH_LOG_WARN, "%s", sentence);
    launch_note_restart(s->launch, sentence);
    text_free(&line);
    members_all(job, s->place.layout);
    s->place.epoch = 1;
    s->place.tried[0] = '\0';
    starter_find_ranks(s);
    *status = vote_file_write(&s->votes, &s->place);
    return true;
}

/* A machine without a majority was told that it has waited for others as long as it is to: the end here,
 * which no herald is else. */
static bool starter_gave_up(const starter_t *s)
{
    return s->board[s->first - s->ranks].culprit.status == LH_TIMED_OUT;
}

bool starter_regroups(starter_t *s, lh_status_t *status)
{
    enum { PAUSE_US = 200000 };
    const bool herald = s->place.herald, waited = herald && !s->place.elects;
    const control_told_t *told = starter_told(s);
    text_t line = {0};
    *status = LH_OK;
    if (s->first == NULL || s->first_stop != 0) return false;
    if (told == NULL && (starter_elects(s) || starter_is_spare_again(s, status))) return true;
    if (told == NULL) {
        if (!herald || started_code(s->first) != EXIT_LOST || starter_gave_up(s)) return false;
        (void)usleep(PAUSE_US);
        return true;
    }
    text_free(&s->ended);
    text_append(&s->ended, told->reason);
    text_append(&line, told->reason);
    *status = starter_become(s, told);
    if (waited && s->place.herald) {
        text_free(&line);
        return true; /* nothing has changed here */
    }
    text_append(&line, s->place.herald ? "; this machine waits"
                       : waited        ? "; this machine waited"
                                       : "; starting again");
    const char *sentence = line.failed ? "starting again with other machines" : line.data;
    log_line(LH_LOG_WARN, "%s", sentence);
    launch_note_restart(s->launch, sentence);
    text_free(&line);
    return true;
}
