/* restart.c - a count of restarts over a window that slides, and the failure that comes again.
 *
 * A job that loses a rank every few hours is to go on for weeks, so what is counted is restarts
 * within a time and not since the start. The window alone would let a rank that dies in each attempt
 * at the same step die as often as is allowed, and start a long load each time; that one is told
 * apart by what it does: rank, step and cause are the same. The step is that of the rank that was
 * lost. Its own machine reads it on the board, all others know it by the rank's last heartbeat, which
 * is why one is sent as a step begins (control_progress). Steps that take less than some 20 ms are not all
 * told: then its own machine alone may see the loop, and the others wait for it in vain. */
#include <launch/restart.h>

#include <inttypes.h>

#include <base/memory.h>

uint64_t restart_count(const restarts_t *r, uint64_t now)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < r->made && i < r->most; i++)
        count += now - r->times[i % r->most] < r->window_ns;
    return count;
}

static bool restart_is_same(const restart_cause_t *a, const restart_cause_t *b)
{
    return a->rank == b->rank && a->step == b->step && a->how == b->how;
}

/* The times are a ring of as many as may be made: of older ones nobody asks. */
enum restart_answer restart_judge(restarts_t *r, const restart_cause_t *cause, uint64_t now)
{
    r->same = r->same > 0 && restart_is_same(&r->last, cause) ? r->same + 1 : 1;
    r->last = *cause;
    if (r->most == 0) return RESTART_NEVER;
    if (r->same >= RESTART_SAME) return RESTART_LOOP;
    if (restart_count(r, now) >= r->most) return RESTART_SPENT;
    if (r->times == NULL) r->times = mem_array(r->most, sizeof(*r->times));
    if (r->times == NULL) return RESTART_SPENT;
    r->times[r->made++ % r->most] = now;
    return RESTART_AGAIN;
}

void restart_tell(const restarts_t *r, enum restart_answer answer, uint64_t now, text_t *out)
{
    char window[24];
    text_duration((double)r->window_ns * 1e-9, window);
    switch (answer) {
    case RESTART_AGAIN:
        text_printf(out, "; starting again, %" PRIu64 " of %" PRIu64 " within %s",
                    restart_count(r, now), r->most, window);
        break;
    case RESTART_NEVER: break;
    case RESTART_SPENT:
        text_printf(out,
                    "; not started again: %" PRIu64 " restart%s within %s, as [launch] restart "
                    "allows",
                    r->most, r->most == 1 ? "" : "s", window);
        break;
    case RESTART_LOOP:
        text_printf(out,
                    "; not started again: the same rank was lost in the same step by the same "
                    "cause %d times",
                    RESTART_SAME);
        break;
    }
}

void restart_free(restarts_t *r)
{
    mem_free(r->times);
    r->times = NULL;
}

bool restart_is_loss(const control_culprit_t *culprit, bool met, bool first)
{
    const bool late = culprit->status == LH_TIMED_OUT || culprit->status == LH_UNREACHABLE;
    if (culprit->status == LH_OK) return met;
    if (late && !met) return false;
    return !late || !first || culprit->step > 0;
}
