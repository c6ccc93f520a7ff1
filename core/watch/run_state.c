/* run_state.c - the state of a run, kept up to date from what training tells; who is late; and both
 * as JSON.
 *
 * A rank is late in one of three ways, told in this order: it is silent, where a heartbeat comes
 * each 250 ms; it is behind, for a second in a step that another has left; or it is slow. The last
 * is seen by how long each rank's steps wait for others: whoever all wait for waits itself the least. Such
 * shares are taken over windows of some seconds, as one of them says little. */
#include <watch/run_state.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <format/json.h>
#include <watch/metrics.h>

static void state_text(char *to, size_t room, const char *from)
{
    (void)snprintf(to, room, "%s", from == NULL ? "" : from);
}

void run_state_begin(run_state_t *s, const run_start_t *start)
{
    const uint64_t restarts = s->restarts;
    *s = (run_state_t){.pid = (uint64_t)getpid(),
                       .started_wall = sys()->wall_ns(),
                       .started_at = sys()->now_ns(),
                       .steps = start->steps,
                       .first_step = start->first_step,
                       .save_every = start->save_every,
                       .tokens_per_step = start->tokens_per_step,
                       .parameters = start->parameters,
                       .restarts = restarts,
                       .launcher_restarts = start->restarts,
                       .ranks = start->ranks,
                       .sites = start->sites,
                       .flops_per_step = start->flops_per_step,
                       .peak_flops = start->peak_flops};
    s->last.step = start->first_step;
    s->last.loss = s->last.cross_entropy = (double)NAN;
    s->last.applied = true;
    s->evaluation.loss = (double)NAN;
    s->step_at = s->started_at;
    state_text(s->name, sizeof(s->name), start->name);
    state_text(s->model, sizeof(s->model), start->model);
    if (start->restart_reason != NULL)
        state_text(s->restart_reason, sizeof(s->restart_reason), start->restart_reason);
    if (gethostname(s->host, sizeof(s->host) - 1) != 0) s->host[0] = '\0';
}

/* The mean follows a run that gets slower without jumping at every save. */
void run_state_step(run_state_t *s, const step_report_t *step)
{
    s->last = *step;
    s->step_at = sys()->now_ns();
    s->seconds_a_step = s->seconds_a_step <= 0 ? step->seconds
                                               : 0.95 * s->seconds_a_step + 0.05 * step->seconds;
    s->seconds_sum += step->seconds;
    for (int i = 0; i < STEP_PARTS; i++)
        s->part_sum[i] += step->part_s[i];
    for (int i = 0; i < STEP_SCOPES; i++)
        s->exposed_sum[i] += step->exposed_s[i];
    s->least_exposed_sum += step->least_exposed_s;
    if (!step->applied) s->refused++;
}

void run_state_evaluated(run_state_t *s, const evaluation_report_t *e)
{
    s->evaluation = *e;
    s->evaluation_wall = sys()->wall_ns();
}

void run_state_saved(run_state_t *s, const save_report_t *save)
{
    if (save->reason == NULL && !save->committed) return;
    if (save->has_room) {
        s->has_room = true;
        s->checkpoint_free_bytes = save->free_bytes;
    }
    if (save->memory) {
        if (save->reason == NULL) {
            s->kept.step = save->step;
            s->kept.wall = sys()->wall_ns();
            s->snapshots++;
        } else {
            s->snapshot_failures++;
        }
        return;
    }
    run_save_t *to = save->reason == NULL ? &s->saved : &s->failed;
    to->step = save->step;
    to->wall = sys()->wall_ns();
    state_text(to->text, sizeof(to->text), save->reason == NULL ? save->path : save->reason);
    if (save->reason != NULL && save->step == s->asked_step) s->asked_failed = *to;
    if (save->reason == NULL)
        s->saves++;
    else
        s->failures++;
}

void run_state_end(run_state_t *s, const run_end_t *end)
{
    s->ended = true;
    s->last.step = end->steps;
    s->end_status = end->status;
    s->end_wall = sys()->wall_ns();
    state_text(s->end_reason, sizeof(s->end_reason), end->reason);
}

/* ---- who is late ---- */

/* A window of shares, of so many steps at least; a silence, or a standstill, that is told; and how
 * much less than the rest a slow rank waits, as a share of the time. Ranks tell what a step has
 * waited at its end: a window may have a step more of one rank than of another. */
#define WINDOW_NS UINT64_C(5000000000)
#define WINDOW_STEPS 10
#define LATE_NS UINT64_C(1000000000)
#define SLOW_SHARE 0.1

lh_status_t run_lateness_new(const control_t *control, const world_t *world, lateness_t *out)
{
    *out = (lateness_t){.control = world == NULL ? NULL : control, .world = world};
    if (out->control == NULL) return LH_OK;
    const uint32_t size = world->row.size;
    out->step = mem_array(size, sizeof(*out->step));
    out->since = mem_array(size, sizeof(*out->since));
    out->waited = mem_array(size, sizeof(*out->waited));
    out->share = mem_array(size, sizeof(*out->share));
    if (out->step != NULL && out->since != NULL && out->waited != NULL && out->share != NULL)
        return LH_OK;
    run_lateness_free(out);
    return LH_NO_MEMORY;
}

void run_lateness_free(lateness_t *l)
{
    mem_free(l->step);
    mem_free(l->since);
    mem_free(l->waited);
    mem_free(l->share);
    *l = (lateness_t){0};
}

static void lateness_add(lateness_t *l, uint32_t rank, const char *why)
{
    lh_assert(rank < l->world->row.size && l->shown <= LATE_SHOWN);
    l->count++;
    if (l->shown == LATE_SHOWN) return;
    late_rank_t *late = &l->late[l->shown++];
    late->rank = rank;
    world_rank_text(l->world, rank, late->name, sizeof(late->name));
    state_text(late->why, sizeof(late->why), why);
}

/* True: the rank is silent or behind, and told. Heartbeats are of different moments, so that steps
 * which are seen of two ranks may differ by many: only who does not move is behind. */
static bool lateness_judge(lateness_t *l, uint32_t rank, const control_member_t *m,
                           uint64_t furthest, uint64_t now)
{
    char why[sizeof(l->late[0].why)];
    const uint64_t step = m->progress.step;
    lh_assert(rank < l->world->row.size);
    if (l->since[rank] == 0 || l->step[rank] != step) {
        l->step[rank] = step;
        l->since[rank] = now;
    }
    if (m->silent_ns >= LATE_NS)
        (void)snprintf(why, sizeof(why), "silent for %.1f s", (double)m->silent_ns * 1e-9);
    else if (step < furthest && now - l->since[rank] >= LATE_NS)
        (void)snprintf(why, sizeof(why), "in step %llu for %.0f s, where another is in step %llu",
                       (unsigned long long)step, (double)(now - l->since[rank]) * 1e-9,
                       (unsigned long long)furthest);
    else
        return false;
    lateness_add(l, rank, why);
    return true;
}

/* The shares of the window that ends now; the window before the first has none. */
static void lateness_turn_window(lateness_t *l, uint64_t now)
{
    const double seconds = (double)(now - l->window_at) * 1e-9;
    control_member_t m;
    l->known = l->window_at != 0;
    for (uint32_t r = 0; r < l->world->row.size; r++) {
        if (!control_member(l->control, r, &m)) m.progress.waited_ns = l->waited[r];
        l->share[r] = (double)(m.progress.waited_ns - l->waited[r]) * 1e-9 / seconds;
        l->waited[r] = m.progress.waited_ns;
    }
    l->window_at = now;
}

/* One rank that waits much less than the next one: that one holds up the rest. Where several do, it
 * is the work that is uneven, or a link, and no rank is to be named. */
static void lateness_judge_slow(lateness_t *l)
{
    const uint32_t size = l->world->row.size;
    uint32_t least = 0;
    double next = INFINITY;
    if (!l->known || size < 2) return;
    for (uint32_t r = 1; r < size; r++)
        if (l->share[r] < l->share[least]) least = r;
    for (uint32_t r = 0; r < size; r++)
        if (r != least && l->share[r] < next) next = l->share[r];
    if (next - l->share[least] < SLOW_SHARE) return;
    char why[sizeof(l->late[0].why)];
    (void)snprintf(why, sizeof(why), "slow: it waits %.0f%% of the time, others %.0f%% and more",
                   100 * l->share[least], 100 * next);
    lateness_add(l, least, why);
}

void run_lateness_look(lateness_t *l)
{
    uint64_t furthest = 0;
    const uint64_t now = sys()->now_ns();
    control_member_t m;
    if (l->control == NULL) return;
    l->count = l->shown = 0;
    for (uint32_t r = 0; r < l->world->row.size; r++)
        if (control_member(l->control, r, &m) && m.progress.step > furthest)
            furthest = m.progress.step;
    bool told = false;
    for (uint32_t r = 0; r < l->world->row.size; r++)
        if (control_member(l->control, r, &m))
            told = lateness_judge(l, r, &m, furthest, now) || told;
    const bool steps = furthest < l->window_step || furthest - l->window_step >= WINDOW_STEPS;
    if (l->window_at == 0 || (steps && now - l->window_at >= WINDOW_NS)) {
        lateness_turn_window(l, now);
        l->window_step = furthest;
    }
    if (!told) lateness_judge_slow(l);
}

/* ---- status.json ---- */

/* JSON has no NaN: what is not known is null. */
static void put_figure(json_writer_t *w, const char *key, double value)
{
    char digits[32] = "null";
    if (isfinite(value)) (void)snprintf(digits, sizeof(digits), "%.9g", value);
    json_put_as_is(w, key, digits);
}

static void put_wall(json_writer_t *w, const char *key, uint64_t wall)
{
    char text[TEXT_TIME];
    if (wall == 0) {
        json_put_nil(w, key);
        return;
    }
    text_time(wall, text);
    json_put_text(w, key, text);
}

static void put_save(json_writer_t *w, const char *key, const run_save_t *save, const char *what)
{
    if (save->wall == 0) {
        json_put_nil(w, key);
        return;
    }
    json_open(w, key, '{');
    json_put_u64(w, "step", save->step);
    put_wall(w, "time", save->wall);
    if (what != NULL) json_put_text(w, what, save->text);
    json_close(w);
}

static void put_step(json_writer_t *w, const run_state_t *s)
{
    const double left = (double)(s->steps - s->last.step) * s->seconds_a_step;
    json_put_u64(w, "step", s->last.step);
    json_put_u64(w, "steps", s->steps);
    json_put_u64(w, "first_step", s->first_step);
    put_figure(w, "loss", s->last.loss);
    put_figure(w, "learning_rate", s->last.learning_rate);
    put_figure(w, "gradient_norm", s->last.gradient_norm);
    json_put_u64(w, "tokens", s->last.tokens);
    put_figure(w, "tokens_per_s", s->last.tokens_per_s);
    put_figure(w, "seconds_a_step", s->seconds_a_step > 0 ? s->seconds_a_step : (double)NAN);
    put_figure(w, "seconds_left", s->seconds_a_step > 0 ? left : (double)NAN);
    put_figure(w, "in_step_s", (double)(sys()->now_ns() - s->step_at) * 1e-9);
    json_open(w, "parts", '{');
    for (int i = 0; i < STEP_PARTS; i++)
        put_figure(w, step_part_names[i], s->last.part_s[i]);
    json_close(w);
    if (s->ranks > 1) {
        json_open(w, "exposed", '{');
        for (int i = LH_LINK_NODE; i < STEP_SCOPES; i++)
            put_figure(w, step_scope_names[i], s->last.exposed_s[i]);
        json_close(w);
    }
}

static void put_late(json_writer_t *w, const lateness_t *l)
{
    json_put_u64(w, "late_count", l->count);
    json_open(w, "late", '[');
    for (uint32_t i = 0; i < l->shown; i++) {
        json_open(w, NULL, '{');
        json_put_u64(w, "rank", l->late[i].rank);
        json_put_text(w, "name", l->late[i].name);
        json_put_text(w, "why", l->late[i].why);
        json_close(w);
    }
    json_close(w);
}

static void put_end(json_writer_t *w, const run_state_t *s)
{
    if (!s->ended) {
        json_put_nil(w, "end");
        return;
    }
    json_open(w, "end", '{');
    put_wall(w, "time", s->end_wall);
    json_put_flag(w, "failed", s->end_status != LH_OK);
    json_put_text(w, "reason", s->end_reason);
    json_close(w);
}

void run_state_write(const run_state_t *s, const lateness_t *late, text_t *out)
{
    out->length = 0;
    out->failed = false;
    json_writer_t own = {.to = out, .style = 1}, *w = &own;
    json_open(w, NULL, '{');
    json_put_text(w, "name", s->name);
    json_put_text(w, "model", s->model);
    json_put_u64(w, "parameters", s->parameters);
    json_put_text(w, "host", s->host);
    json_put_u64(w, "process", s->pid);
    put_wall(w, "started", s->started_wall);
    put_wall(w, "written", sys()->wall_ns());
    put_step(w, s);
    json_put_u64(w, "refused_steps", s->refused);
    json_put_u64(w, "ranks", s->ranks);
    json_put_u64(w, "sites", s->sites);
    put_late(w, late);
    if (s->evaluation_wall == 0) {
        json_put_nil(w, "evaluation");
    } else {
        json_open(w, "evaluation", '{');
        json_put_u64(w, "step", s->evaluation.step);
        put_figure(w, "loss", s->evaluation.loss);
        put_wall(w, "time", s->evaluation_wall);
        json_close(w);
    }
    json_put_u64(w, "save_every", s->save_every);
    put_save(w, "saved", &s->saved, "path");
    put_save(w, "not_saved", &s->failed, "reason");
    put_save(w, "asked_not_saved", &s->asked_failed, "reason");
    put_save(w, "in_memory", &s->kept, NULL);
    json_put_u64(w, "asked_step", s->asked_step);
    json_put_u64(w, "restarts", s->restarts);
    json_put_u64(w, "launcher_restarts", s->launcher_restarts);
    json_put_text(w, "restart_reason", s->restart_reason);
    put_end(w, s);
    json_close(w);
    text_append(out, "\n");
}

/* ---- a run seen from outside ----------------------------------------------------------------- */

/* The lock tells whether a run is at work in a folder, status.json what its training
 * does. Either may be missing: a run that prepares has no status yet, and one that has ended, or was
 * killed, no lock any more. */

enum { STATUS_LIMIT = 1 << 20, LOOK_REASON = 1024 };

/* What can't be read counts as not there: it is renewed each second. why: what is wrong with it then; "" where it is
 * well, or not there. */
static lh_status_t read_status(const char *folder, run_look_t *look, char why[LOOK_REASON])
{
    struct stat st;
    uint64_t step;
    char *path = path_join(folder, "status.json");
    why[0] = '\0';
    if (path == NULL) return LH_NO_MEMORY;
    const bool there = sys()->stat(path, &st) == 0;
    lh_status_t status = LH_OK;
    if (!there && errno != ENOENT) status = fail_io(errno, "%s: cannot stat", path);
    if (there) status = json_read(path, STATUS_LIMIT, UINT64_MAX, &look->status);
    if (there && status == LH_OK)
        status = json_take_count(path, json_root(look->status), "step", &step);
    if (there && status == LH_OK) {
        const double now = (double)sys()->wall_ns() * 1e-9;
        const double then = (double)st.st_mtim.tv_sec + (double)st.st_mtim.tv_nsec * 1e-9;
        look->age_s = now > then ? now - then : 0;
    }
    if (status != LH_OK) {
        (void)snprintf(why, LOOK_REASON, "%s", fail_reason());
        run_look_free(look);
    }
    fail_clear();
    mem_free(path);
    return LH_OK;
}

/* Nobody is seen at work, and there is no status.json that could be read. metrics.jsonl begins with the
 * first training of a folder, in every version. */
static lh_status_t refuse_look(const char *folder, const run_look_t *look, const char *why)
{
    const char *now = look->held == FOLDER_FREE
                          ? "no run is at work here"
                          : "whether a run is at work here can't be told (.run.lock can't be read, "
                            "or there are no locks)";
    char *metrics = path_join(folder, "metrics.jsonl");
    const bool trained = metrics != NULL && file_exists(metrics);
    mem_free(metrics);
    if (why[0] != '\0')
        return fail(LH_INVALID, "%s: %s, and nothing is known of what has trained here: %s", folder,
                    now, why);
    if (trained)
        return fail(LH_INVALID,
                    "%s: %s, and what has trained here left no status.json, as older versions did; "
                    "see its train.log and metrics.jsonl",
                    folder, now);
    return fail(LH_INVALID, "%s: %s, and none has trained here", folder, now);
}

lh_status_t run_look(const char *folder, run_look_t *out)
{
    struct stat st;
    char why[LOOK_REASON];
    run_look_t look = {0};
    const bool there = sys()->stat(folder, &st) == 0;
    if (!there && errno != ENOENT && errno != ENOTDIR)
        return fail_io(errno, "%s: cannot stat", folder);
    if (!there || !S_ISDIR(st.st_mode))
        return fail(LH_INVALID, "%s: there is no such folder; [pipeline] folder was expected",
                    folder);
    look.held = folder_lock_look(folder, look.holder);
    fail_clear();
    const lh_status_t status = read_status(folder, &look, why);
    if (status != LH_OK) return status;
    if (look.status == NULL && look.held != FOLDER_HELD) return refuse_look(folder, &look, why);
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

/* It is renewed each second. */
bool run_look_is_heard(const run_look_t *look)
{
    enum { SILENT_S = 10 };
    return run_look_trains(look) && (look->held != FOLDER_UNKNOWN || look->age_s < SILENT_S);
}
