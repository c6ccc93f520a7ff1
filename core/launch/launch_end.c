/* launch_end.c - how the ranks of this machine have ended: why, in one line for all of them; whether they start
 * again; and the exit code.
 *
 * All of it is judged behind the last rank's end, from what is left then: exit codes and signals, the board,
 * which outlives the ranks, and what the launcher itself was asked. No other launcher is asked, so that an end is
 * never waited for to be explained. The price: of what happened elsewhere this machine says what its ranks were
 * told or saw, and no more.
 *
 * An end may be several at once, as a machine is asked to stop while a rank dies. launch_end_code looks at them in
 * the order in which one goes before another: what a person asked for goes before a loss. */
#include <launch/launch_end.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include <base/log.h>
#include <base/sys.h>
#include <launch/launch_state.h>
#include <launch/machine.h>
#include <launch/orphans.h>
#include <launch/restart.h>

bool launch_end_is_death(const starter_t *s, const started_t *r)
{
    lh_assert(r >= s->ranks && r < s->ranks + s->count);
    const board_row_t *row = &s->board[r - s->ranks];
    if (WIFSIGNALED(r->how)) return true;
    if (atomic_load(&row->has_words) != 0) return row->died;
    return WEXITSTATUS(r->how) == EXIT_DONE && atomic_load(&row->closed) == 0;
}

bool launch_end_is_own(const starter_t *s)
{
    if (s->first == NULL || s->place.herald) return false;
    if (launch_end_is_death(s, s->first)) return true;
    const board_row_t *row = &s->board[s->first - s->ranks];
    const control_culprit_t *culprit = &row->culprit;
    bool own = false;
    for (uint32_t i = 0; i < s->count; i++)
        own = own || s->ranks[i].rank == culprit->rank;
    /* Of ranks that have not come, and of a new layout, rank 0 tells, and is no loss itself. */
    const bool absent = culprit->status == LH_TIMED_OUT && atomic_load(&row->met) == 0;
    const bool told = absent || atomic_load(&row->told.epoch) != 0;
    return own && culprit->status != LH_OK && !told;
}

/* The kernel's own kill has no other mark than its count. */
static void started_tell_memory(const starter_t *s, const started_t *r, text_t *out)
{
    machine_kills_t now;
    if (WTERMSIG(r->how) != SIGKILL || r->killed) return;
    machine_kills_read("/", &now);
    machine_kills_tell(&s->kills, &now, out);
}

/* "rank 2 on tokyo/t1 was killed by signal 9 (Killed) in step 41, all-reduce ..." */
static void started_tell_death(const starter_t *s, const started_t *r, const char *words,
                               text_t *out)
{
    lh_assert(r >= s->ranks && r < s->ranks + s->count);
    progress_t progress;
    char phrase[PROGRESS_PHRASE];
    control_progress_read(&s->board[r - s->ranks].word, &progress);
    control_progress_phrase(&progress, phrase);
    text_printf(out, "rank %u on %s%s%s ", r->rank, r->site, r->site[0] != '\0' ? "/" : "",
                r->host);
    if (WIFSIGNALED(r->how)) {
        text_printf(out, "was killed by signal %d (%s)%s", WTERMSIG(r->how),
                    strsignal(WTERMSIG(r->how)), phrase);
        started_tell_memory(s, r, out);
    } else if (words[0] != '\0') {
        text_printf(out, "failed%s: %s", phrase, words);
    } else {
        text_printf(out, "ended with code %d and without a word%s", WEXITSTATUS(r->how), phrase);
    }
}

static void starter_tell(const starter_t *s, const char *sentence)
{
    log_end(sentence);
    launch_note_end(s->launch, sentence);
}

/* One line for the whole machine: the rank's own words where it had time for some, else how it
 * died. */
static void starter_say_end(const starter_t *s, text_t *line)
{
    lh_assert(s->first != NULL);
    const started_t *r = s->first;
    const board_row_t *row = &s->board[r - s->ranks];
    char words[BOARD_WORDS] = "";
    if (atomic_load(&row->has_words) != 0)
        (void)snprintf(words, sizeof(words), "%.*s", BOARD_WORDS - 1, row->words);
    if (!launch_end_is_death(s, r) && words[0] != '\0')
        text_printf(line, "%s", words);
    else
        started_tell_death(s, r, words, line);
}

/* Who was lost, and whether that is a loss at all. A rank of this machine that died is known best
 * here; of all else its ranks have left whom the control plane named. */
static bool starter_find_cause(const starter_t *s, restart_cause_t *out)
{
    const started_t *r = s->first;
    const board_row_t *row = &s->board[r - s->ranks];
    if (launch_end_is_death(s, r)) {
        progress_t progress;
        control_progress_read(&row->word, &progress);
        *out = (restart_cause_t){r->rank, progress.step,
                                 WIFSIGNALED(r->how) ? WTERMSIG(r->how) : LH_PEER_LOST};
        return true;
    }
    *out = (restart_cause_t){row->culprit.rank, row->culprit.step, row->culprit.status};
    return restart_is_loss(&row->culprit, atomic_load(&row->met) != 0, s->place.epoch <= 1);
}

/* What became of the ranks is told; whether they start again. A stop that was asked for is final. Ranks that met
 * only to hear that their stage is done (skip) are no loss where they don't come: machines that have
 * ended well behind it have no reason to, and the stages that are left are this one's. */
static bool starter_restarts(starter_t *s, int *code)
{
    restart_cause_t cause;
    enum restart_answer answer = RESTART_NEVER;
    const uint64_t now = sys()->now_ns();
    text_t line = {0};
    *code = started_code(s->first);
    starter_say_end(s, &line);
    if (*code == EXIT_LOST && s->first_stop == 0 && starter_find_cause(s, &cause))
        answer = restart_judge(&s->restarts, &cause, now);
    text_free(&s->ended);
    if (!line.failed) text_append(&s->ended, line.data);
    restart_tell(&s->restarts, answer, now, &line);
    const board_row_t *row = &s->board[s->first - s->ranks];
    const bool needless = answer != RESTART_AGAIN && s->launch->skip && *code == EXIT_LOST &&
                          s->first_stop == 0 && !launch_end_is_death(s, s->first) &&
                          atomic_load(&row->met) == 0;
    if (needless) {
        *code = EXIT_DONE;
        text_append(&line,
                    "; nothing was left to do for those ranks: the job goes on without them");
    }
    const char *sentence = line.failed ? "a rank has ended" : line.data;
    if (answer == RESTART_AGAIN || needless) {
        log_line(LH_LOG_WARN, "%s", sentence);
        launch_note_restart(s->launch, sentence);
    } else {
        starter_tell(s, sentence);
    }
    text_free(&line);
    return answer == RESTART_AGAIN;
}

/* Ranks that make no steps, as they start, end by the SIGTERM that was passed on. Where every machine
 * is told to stop, one may hear of another's end before its own ranks have their signal: before the
 * first step nothing was lost by that. */
static bool starter_ended_as_asked(const starter_t *s)
{
    const started_t *r = s->first;
    progress_t progress;
    if (s->first_stop == 0 || r == NULL) return false;
    if (WIFSIGNALED(r->how)) return WTERMSIG(r->how) == SIGTERM || WTERMSIG(r->how) == SIGINT;
    control_progress_read(&s->board[r - s->ranks].word, &progress);
    return WEXITSTATUS(r->how) == EXIT_LOST && progress.step == 0;
}

/* A rank that has ended with the whole job, as some machine was asked to stop; NULL: none has. */
static const board_row_t *starter_find_stop(const starter_t *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->board[i].culprit.status == STATUS_STOPPED) return &s->board[i];
    return NULL;
}

/* The ranks of this machine were lost with others as it was asked to stop, and nobody heard of that: the other
 * machines start theirs again, and would wait for it. Its ranks start once more, to tell them; as those that
 * rank 0 has told of, where it has. */
static bool starter_starts_to_tell(starter_t *s, lh_status_t *status)
{
    const started_t *r = s->first;
    *status = LH_OK;
    if (s->first_stop == 0 || s->tells || r == NULL || WIFSIGNALED(r->how) ||
        WEXITSTATUS(r->how) != EXIT_LOST || !starter_is_asked_for_all(s) ||
        starter_find_stop(s) != NULL)
        return false;
    text_t line = {0};
    starter_say_end(s, &line);
    const bool follows = starter_follows(s, status); /* its ranks are others from here on */
    s->tells = *status == LH_OK && (follows || s->restarts.most > 0);
    if (s->tells) log_line(LH_LOG_WARN, "%s", line.failed ? "a rank has ended" : line.data);
    text_free(&line);
    return s->tells;
}

/* All ranks had agreed that one machine leaves, and ended by that save: a stop of the job that came behind it
 * changes nothing of it, and the others start theirs again. Those of this machine, which was asked to stop, start
 * once more to tell them. Where none may start again the others have ended by that save as well. */
static bool starter_comes_again_to_tell(starter_t *s)
{
    static const char sentence[] = "the job was asked to stop as a machine was about to leave it: "
                                   "the ranks here start once more to tell the others";
    bool left = s->first_stop != 0 && !s->tells && starter_is_asked_for_all(s) &&
                s->restarts.most > 0;
    for (uint32_t i = 0; i < s->count; i++)
        left = left && atomic_load(&s->board[i].leaves) != 0;
    if (!left) return false;
    s->tells = true;
    s->leave_by = 0; /* what was to be saved by then is */
    text_free(&s->ended);
    text_append(&s->ended, sentence);
    log_line(LH_LOG_WARN, "%s", sentence);
    return true;
}

/* All have saved and ended as another machine was told to leave: these start again, and wait for it
 * or for what is there. It counts as a restart: somebody who takes machines away all the time is no
 * less to be noticed than a loss. */
static bool starter_goes_on(starter_t *s)
{
    progress_t progress = {0};
    bool left = s->first_stop == 0 && s->launch->how.job->launch.notice_ns > 0;
    for (uint32_t i = 0; i < s->count; i++)
        left = left && atomic_load(&s->board[i].leaves) != 0;
    if (!left) return false;
    control_progress_read(&s->board[0].word, &progress);
    const restart_cause_t cause = {.step = progress.step, .how = SIGTERM};
    const uint64_t now = sys()->now_ns();
    const enum restart_answer answer = restart_judge(&s->restarts, &cause, now);
    text_t line = {0};
    text_printf(&line, "another machine was told to leave, and left %s",
                atomic_load(&s->board[0].leaves) == LEAVES_SAVED ? "after a save"
                                                                 : "without a save");
    text_free(&s->ended);
    if (!line.failed) text_append(&s->ended, line.data);
    restart_tell(&s->restarts, answer, now, &line);
    const char *sentence = line.failed ? "another machine left" : line.data;
    log_line(LH_LOG_WARN, "%s", sentence);
    launch_note_restart(s->launch, sentence);
    text_free(&line);
    return answer == RESTART_AGAIN;
}

/* A machine whose ranks did not come to their end in time leaves without their save. */
static bool starter_left_late(const starter_t *s, char sentence[128])
{
    bool late = false;
    char notice[24];
    for (uint32_t i = 0; s->leave_by != 0 && i < s->count; i++)
        late = late || s->ranks[i].killed;
    text_duration((double)s->launch->how.job->launch.notice_ns * 1e-9, notice);
    (void)snprintf(sentence, 128,
                   "ranks were killed: no save came to its end within [launch] notice = %s",
                   notice);
    return late;
}

static void starter_say_stop(const starter_t *s, text_t *line)
{
    text_printf(line, "stopped by signal %d (%s) while no step was under way", s->first_stop,
                strsignal(s->first_stop));
}

void launch_end_tell_stop(const starter_t *s)
{
    text_t line = {0};
    starter_say_stop(s, &line);
    starter_tell(s, line.failed ? "stopped by a signal" : line.data);
    text_free(&line);
}

/* Memory and devices of a rank that can't be ended are not free: nothing starts again here. as_asked: all ended
 * by a stop that this machine was asked for. */
static bool starter_left_stuck(const starter_t *s, bool as_asked)
{
    const started_t *stuck = orphans_find_rank(s);
    text_t line = {0};
    if (stuck == NULL) return false;
    if (as_asked) {
        starter_say_stop(s, &line);
        text_append(&line, "; ");
    } else if (s->first != NULL) {
        starter_say_end(s, &line);
        text_append(&line, "; not started again: ");
    }
    text_printf(&line, "rank %u (process %d) can't be ended", stuck->rank, (int)stuck->stuck);
    starter_tell(s, line.failed ? "a rank can't be ended" : line.data);
    text_free(&line);
    return true;
}

int launch_end_code(starter_t *s, bool *again)
{
    char sentence[128];
    *again = false;
    if (s->stops > 1) {
        (void)snprintf(sentence, sizeof(sentence), "ended at once by a second signal, %d (%s)",
                       s->last_stop, strsignal(s->last_stop));
        launch_note_end(s->launch, sentence);
        return 128 + s->last_stop;
    }
    const board_row_t *stop = starter_find_stop(s);
    if (stop != NULL && s->first_stop == 0) {
        starter_tell(s, atomic_load(&stop->has_words) != 0 ? stop->words
                                                           : "another machine was asked to stop");
        return EXIT_TERMINATED; /* with a rank that can't be ended, too: nobody is to start again */
    }
    const bool as_asked = stop != NULL || starter_ended_as_asked(s);
    if (starter_left_stuck(s, as_asked)) return as_asked ? EXIT_TERMINATED : EXIT_LOST;
    lh_status_t status;
    *again = starter_starts_to_tell(s, &status);
    if (*again) return EXIT_LOST;
    if (status != LH_OK) return status;
    if (as_asked) {
        launch_end_tell_stop(s);
        return EXIT_TERMINATED;
    }
    if (starter_left_late(s, sentence)) {
        starter_tell(s, sentence);
        return EXIT_LOST;
    }
    int code = EXIT_DONE;
    *again = starter_regroups(s, &status);
    if (status != LH_OK) return status;
    if (*again) return EXIT_LOST;
    if (s->first != NULL) {
        *again = starter_restarts(s, &code);
        return code;
    }
    for (uint32_t i = 0; i < s->count; i++)
        if (s->ranks[i].how != 0) code = WEXITSTATUS(s->ranks[i].how);
    if (code == EXIT_TERMINATED) *again = starter_comes_again_to_tell(s) || starter_goes_on(s);
    return code;
}
