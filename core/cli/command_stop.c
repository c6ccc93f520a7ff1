/* command_stop.c - longhaul stop FOLDER [--now] and longhaul save FOLDER: a run is asked through its
 * folder, from another shell or another machine that sees the folder.
 *
 * Both wait: `stop` until no process has the folder any more, `save` until the checkpoint is
 * committed, so that what follows in a script may rely on it. A run that does not take the request
 * within TAKE_S is told of, and the request taken back. */
#include <cli/cli.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

#include <base/log.h>
#include <launch/request.h>
#include <watch/run_state.h>

/* PAUSE_NS: between two looks at the folder. MOVE_S: nobody may have it for so long where rank 0 goes to another
 * machine. */
enum { TAKE_S = 10, MOVE_S = 2, PAUSE_NS = 50000000, NS_PER_S = 1000000000 };

static void ask_pause(void)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    (void)nanosleep(&pause, NULL);
}

/* Whether the ranks have failed, as by a loss: whoever has the folder may start them again, or is about to end.
 * Where rank 0 is on another machine from then on its launcher gives the folder, and another one takes it. */
static bool ranks_failed(const run_look_t *look)
{
    const json_value_t *end = json_member(json_root(look->status), "end");
    return json_is_yes(json_member(end, "failed"));
}

static bool run_may_move(const char *folder)
{
    run_look_t look;
    if (run_look(folder, &look) != LH_OK) {
        fail_clear();
        return false;
    }
    const bool may = ranks_failed(&look);
    run_look_free(&look);
    return may;
}

/* Until the run has taken the request, or has ended by itself. Where it may move the folder is free for MOVE_S before
 * that is the end. *moved: another process has it now than the one that was asked, or nobody had it meanwhile. */
static lh_status_t ask_until_taken(const char *folder, const run_look_t *look, uint32_t which,
                                   const char *word, bool *moved)
{
    uint64_t waited = 0, free_ns = 0;
    lh_status_t status = request_put(folder, which, word);
    *moved = false;
    if (status != LH_OK) return status;
    for (; request_pending(folder, which); waited += PAUSE_NS) {
        char holder[FOLDER_HOLDER];
        const bool is_free = folder_lock_look(folder, holder) == FOLDER_FREE;
        const bool moves = is_free && run_may_move(folder);
        *moved = *moved || moves;
        free_ns = is_free ? free_ns + PAUSE_NS : 0;
        const bool gone = is_free && (!moves || free_ns >= (uint64_t)MOVE_S * NS_PER_S);
        if (gone || waited >= (uint64_t)TAKE_S * NS_PER_S) {
            request_withdraw(folder, which);
            if (gone) return LH_OK;
            return fail(LH_TIMED_OUT, "%s: %s does not take the request within %d s", folder,
                        run_look_holder(look), TAKE_S);
        }
        ask_pause();
    }
    char holder[FOLDER_HOLDER] = "";
    const bool other = folder_lock_look(folder, holder) == FOLDER_HELD && holder[0] != '\0' &&
                       look->holder[0] != '\0' && strcmp(holder, look->holder) != 0;
    *moved = *moved || (other && run_may_move(folder));
    return LH_OK;
}

/* A folder in which a run is at work, or may be. */
static lh_status_t look_at_work(const char *folder, run_look_t *out)
{
    for (uint64_t waited = 0;; waited += PAUSE_NS) {
        const lh_status_t status = run_look(folder, out);
        if (status != LH_OK || out->held != FOLDER_FREE) return status;
        const bool moves = ranks_failed(out) && out->age_s < 2 * MOVE_S &&
                           waited < (uint64_t)MOVE_S * NS_PER_S;
        run_look_free(out);
        if (!moves) break;
        ask_pause();
    }
    return fail(LH_INVALID, "%s: no run is at work here", folder);
}

/* ---- stop ---- */

/* What status.json says now that all is over; a run that never trained has nothing to say. */
static void tell_stopped(const char *folder)
{
    run_look_t look;
    uint64_t saved = 0;
    if (run_look(folder, &look) != LH_OK) {
        fail_clear();
        cli_print_line("%s: ended", folder);
        return;
    }
    const json_value_t *at = json_member(json_member(json_root(look.status), "saved"), "step");
    const uint64_t step = run_look_count(&look, "step");
    const bool is_saved = json_count(at, &saved) && saved == step;
    if (look.status == NULL)
        cli_print_line("%s: ended", folder);
    else
        cli_print_line("%s: ended after step %llu%s", folder, (unsigned long long)step,
                       is_saved ? ", which is saved" : "");
    run_look_free(&look);
}

static int stop_command(cli_t *cli)
{
    run_look_t look;
    char holder[FOLDER_HOLDER];
    const bool now = cli_flag(cli, "now") != NULL;
    const char *word = now ? REQUEST_NOW : "stop";
    bool moved;
    lh_status_t status = look_at_work(cli->name, &look);
    if (status != LH_OK) return status;
    /* Whoever takes a folder removes what it finds asked there; a stop that is asked twice is one. */
    status = ask_until_taken(cli->name, &look, REQUEST_STOP, word, &moved);
    if (status == LH_OK && moved) {
        run_look_free(&look);
        if (run_look(cli->name, &look) != LH_OK) {
            tell_stopped(cli->name);
            return EXIT_DONE;
        }
        if (look.held != FOLDER_FREE)
            status = ask_until_taken(cli->name, &look, REQUEST_STOP, word, &moved);
    }
    const bool known = look.held == FOLDER_HELD;
    char asked[FOLDER_HOLDER];
    (void)snprintf(asked, sizeof(asked), "%s", look.holder);
    if (status == LH_OK && look.held != FOLDER_FREE)
        log_line(LH_LOG_INFO, "%s is asked to end", run_look_holder(&look));
    run_look_free(&look);
    if (status != LH_OK) return status;
    /* Something may start it again as soon as it has ended, which is another run. */
    bool held = known, again = false;
    while (held && !again) {
        ask_pause();
        held = folder_lock_look(cli->name, holder) == FOLDER_HELD;
        again = held && asked[0] != '\0' && holder[0] != '\0' && strcmp(holder, asked) != 0;
    }
    /* Where no lock tells, its status does. */
    bool trains = !known;
    while (trains) {
        trains = run_look(cli->name, &look) == LH_OK;
        if (!trains) break;
        trains = run_look_is_heard(&look);
        run_look_free(&look);
        if (trains) ask_pause();
    }
    fail_clear();
    if (again)
        cli_print_line("%s: ended; now there is %s", cli->name, holder);
    else
        tell_stopped(cli->name);
    return EXIT_DONE;
}

const command_t command_stop = {
    .name = "stop",
    .summary =
        "end a run as SIGTERM does, after the step at hand and a save, and wait for it; NAME is "
        "[pipeline] folder",
    .needs = CLI_TAKES_NAME,
    .run = stop_command,
    .nameless = "which run? [pipeline] folder was expected",
    .flags = {{"now", NULL, "without a save, as a second SIGTERM does"}},
};

/* ---- save ---- */

/* Of which training it was asked, by when that began; and the step that was asked for before. For how long nobody
 * has had the folder since ranks have failed. */
typedef struct save_asked {
    char training[TEXT_TIME];
    uint64_t before, asked, free_ns; /* asked: what was taken of it; 0: not yet */
} save_asked_t;

static const char *save_training(const run_look_t *look)
{
    const char *started = json_text(json_member(json_root(look->status), "started"));
    return started == NULL ? "" : started;
}

static lh_status_t save_ask(const char *folder, const run_look_t *look, save_asked_t *out)
{
    (void)snprintf(out->training, sizeof(out->training), "%s", save_training(look));
    out->before = run_look_count(look, "asked_step");
    out->asked = 0;
    bool moved;
    return ask_until_taken(folder, look, REQUEST_SAVE, "save", &moved);
}

/* What became of a save, by its kind: "saved", "not_saved" or "asked_not_saved". A later step that is saved will do; that
 * a later one was not says nothing of the asked one, which may still be written. */
static const json_value_t *save_outcome(const run_look_t *look, const char *kind, uint64_t asked)
{
    uint64_t step = 0;
    const json_value_t *save = json_member(json_root(look->status), kind);
    const bool known = json_count(json_member(save, "step"), &step);
    return known && (step == asked || (step > asked && strcmp(kind, "saved") == 0)) ? save : NULL;
}

/* The ranks have failed and may start again, also where the folder is free for a moment. The price is that an end
 * is told that much later. */
static bool save_may_come(const run_look_t *look, save_asked_t *of)
{
    if (look->held == FOLDER_UNKNOWN || !ranks_failed(look)) return false;
    of->free_ns = look->held == FOLDER_FREE ? of->free_ns + PAUSE_NS : 0;
    return of->free_ns < (uint64_t)MOVE_S * NS_PER_S;
}

/* LH_AGAIN: it is not known yet. */
static lh_status_t judge_save(const char *folder, const run_look_t *look, save_asked_t *of)
{
    uint64_t step = 0;
    const uint64_t taken = run_look_count(look, "asked_step");
    const bool trains = run_look_is_heard(look) || save_may_come(look, of);
    /* Somebody else may ask for a later one meanwhile. */
    if (of->asked == 0 && taken > of->before) of->asked = taken;
    if (of->asked == 0 && trains) return LH_AGAIN;
    /* A run that ended before it came to the request has saved its last step. */
    const uint64_t asked = of->asked == 0 ? run_look_count(look, "step") : of->asked;
    const json_value_t *saved = save_outcome(look, "saved", asked);
    const json_value_t *failed = save_outcome(look, "asked_not_saved", asked);
    if (failed == NULL) failed = save_outcome(look, "not_saved", asked);
    if (saved != NULL) {
        (void)json_count(json_member(saved, "step"), &step);
        cli_print_line("step %llu saved to %s", (unsigned long long)step,
                       json_text(json_member(saved, "path")));
        return LH_OK;
    }
    if (failed != NULL) {
        (void)json_count(json_member(failed, "step"), &step);
        return fail_io(0, "%s: step %llu was not saved: %s", folder, (unsigned long long)step,
                       json_text(json_member(failed, "reason")));
    }
    if (trains) return LH_AGAIN;
    return fail_io(0, "%s: the run has ended, and step %llu was not saved", folder,
                   (unsigned long long)asked);
}

static int save_command(cli_t *cli)
{
    run_look_t look;
    lh_status_t status = look_at_work(cli->name, &look);
    if (status != LH_OK) return status;
    save_asked_t asked = {.before = 0};
    if (!run_look_trains(&look))
        status = fail(LH_INVALID, "%s: nothing is trained here now: %s", cli->name,
                      run_look_holder(&look));
    if (status == LH_OK) status = save_ask(cli->name, &look, &asked);
    run_look_free(&look);
    if (status != LH_OK) return status;
    do {
        ask_pause();
        status = run_look(cli->name, &look);
        if (status != LH_OK) return status;
        /* Ranks that were lost take what was asked of them along: those after them are asked anew. */
        const bool lost = run_look_trains(&look) &&
                          strcmp(save_training(&look), asked.training) != 0;
        if (lost) status = save_ask(cli->name, &look, &asked);
        if (status == LH_OK) status = lost ? LH_AGAIN : judge_save(cli->name, &look, &asked);
        run_look_free(&look);
    } while (status == LH_AGAIN);
    return status;
}

const command_t command_save = {
    .name = "save",
    .summary = "have a run save a checkpoint after the step at hand, and wait for it; NAME is "
               "[pipeline] folder",
    .needs = CLI_TAKES_NAME,
    .run = save_command,
    .nameless = "which run? [pipeline] folder was expected",
};
