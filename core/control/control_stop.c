/* control_stop.c - a stop that is asked for while ranks meet or open what they train.
 *
 * Ranks that make steps agree behind one of them that they end (core/train). Before that there is no step
 * to end behind: a rank that just ended would be taken for lost, or waited for. So the launcher that was
 * asked leaves its ranks alone and writes on the board what it was asked (control_asked_t). Each rank's
 * thread looks there at its turns, and tells rank 0; rank 0 ends the meeting, or the job, for all with one
 * sentence.
 *
 * Before the welcome that end waits for CONTROL_STOP_MS from the meeting's beginning, or until all have
 * come: machines that were told of a door's end, or whose ranks start again, are on their way, and would
 * find nobody to tell them. Ranks that start again have three times as long, as those of other machines may
 * still be ending; not for an end at once, which kills this rank before. Who comes later meets nobody. */
#include <control/control_stop.h>

#include <stdio.h>

#include <base/sys.h>
#include <control/control.h>
#include <control/control_members.h>

bool control_stop_is(lh_status_t status)
{
    return status == STATUS_STOPPED || status == STATUS_ENDED;
}

lh_status_t control_stop_asked(const control_asked_t *asked)
{
    if (asked == NULL) return LH_OK;
    switch (atomic_load(&asked->what)) {
    case CONTROL_ASKS_STOP: return atomic_load(&asked->heeds) != 0 ? LH_OK : STATUS_STOPPED;
    case CONTROL_ASKS_END: return STATUS_ENDED;
    default: return LH_OK;
    }
}

void control_stop_sentence(lh_status_t status, const char *site, const char *host,
                           char out[CONTROL_STOP_TEXT])
{
    const bool named = site[0] != '\0' || host[0] != '\0';
    (void)snprintf(out, CONTROL_STOP_TEXT, "%.63s%s%.63s %s while no step was under way", site,
                   site[0] != '\0' && host[0] != '\0' ? "/" : "", named ? host : "a machine",
                   status == STATUS_ENDED ? "was told to end at once" : "was asked to stop");
}

const char *control_stop_reason(lh_status_t status)
{
    return status == STATUS_ENDED ? "its machine was told to end at once"
                                  : "its machine was asked to stop";
}

/* Steps may be under way where a machine is to end at once: then the sentence says in which. */
void control_stop_note(control_t *c, lh_status_t status, uint32_t rank, const char *site,
                       const char *host)
{
    control_server_t *s = c->server;
    lh_assert(control_stop_is(status));
    if (status == STATUS_ENDED && s->welcomed) {
        control_tell(c, rank, status, true, control_stop_reason(status));
        return;
    }
    if (s->stop_status != LH_OK || s->refused || control_status(c) != LH_OK) return;
    s->stop_status = status;
    s->stop_rank = rank;
    control_stop_sentence(status, site, host, s->stop);
}

/* Heralds without ranks hear of it in control_server_run. */
bool control_stop_ends(control_t *c)
{
    const control_server_t *s = c->server;
    if (s->stop_status == LH_OK) return false;
    if (s->refused || control_status(c) != LH_OK) return true;
    if (!s->welcomed) control_members_end(c, s->stop_status, s->stop);
    control_end(c, s->stop_status, s->stop_rank, s->stop);
    return true;
}

void control_stop_turn(control_t *c, uint64_t now)
{
    const control_server_t *s = c->server;
    if (s->refused || control_status(c) != LH_OK) return;
    const lh_status_t asked = control_stop_asked(c->how.asked);
    if (asked != LH_OK) control_stop_note(c, asked, 0, c->site, c->host);
    const bool lacks = s->joined < c->how.size || control_elects(c);
    const bool again = c->how.epoch > 1 && !control_elects(c) && s->stop_status != STATUS_ENDED;
    const uint64_t most = (again ? 3u : 1u) * CONTROL_STOP_MS * CONTROL_MS;
    if (!s->welcomed && lacks && now < s->began_ns + most) return;
    (void)control_stop_ends(c);
}
