/* link_tuner.c - rules of tuning anew: how much must be other, and for how long.
 *
 * A figure that goes up and down must not move parameters with it. So a step counts only beside others in
 * turn, what is near the figure in force counts as the same, and the way back, to a shorter way or to
 * fewer losses, takes twice as many steps each time: with parameters for the longer and the lossier link
 * nothing goes wrong but that memory is held. A rate has its own such rule, by which its pace was lowered
 * or raised (link_probe_follow); here only its outcome is looked at. */
#include <links/link_tuner.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* TUNER_STEPS: in turn, before a figure counts. TUNER_RARELY: the longest patience is below twice this, and
 * after so many steps in which nothing speaks for a change it is the shortest again. */
enum { TUNER_STEPS = 20, TUNER_RARELY = 1000 };
static const double off_share = 0.1;
/* Schedulers of busy machines add so much to a round trip, and more than a tenth on a short link. */
static const uint64_t trip_jitter_ns = 1000000;
/* Of packets: less is too little to tell. What differs by no more than a factor of two is the same. */
static const double loss_least = 3e-6, loss_factor = 2;

void link_tuner_begin(link_tuner_t *t, const probe_figures_t *opened)
{
    *t = (link_tuner_t){.now = {.round_trip_ns = opened->round_trip_ns, .kept = {1, 1}},
                        .patience = TUNER_STEPS};
    for (int way = 0; way < 2; way++)
        t->now.loss[way] = fmax(opened->loss[way], 0);
}

/* *back: it is a change to what is easier, of which there are not to be many. */
static bool tuner_trip(link_tuner_t *t, uint64_t trip_ns, bool *back)
{
    const double now = (double)trip_ns, force = (double)t->now.round_trip_ns;
    const bool is_off = fabs(now - force) > off_share * force + (double)trip_jitter_ns;
    if (trip_ns == 0 || force <= 0) return false;
    if (!is_off || t->off == 0 || (now > force) != t->longer) {
        t->off = 0;
        t->off_ns = UINT64_MAX;
    }
    if (!is_off) return false;
    t->longer = now > force;
    t->off++;
    if (trip_ns < t->off_ns) t->off_ns = trip_ns;
    if (t->off < (t->longer ? (uint32_t)TUNER_STEPS : t->patience)) return false;
    *back = *back || !t->longer;
    t->now.round_trip_ns = t->off_ns;
    t->off = 0;
    return true;
}

/* Twenty steps, and how rarely a higher one is tried, have been the pace's matter. */
static bool tuner_rate(double *force, double kept)
{
    if (kept <= 0 || fabs(kept - *force) <= off_share * fmax(kept, *force)) return false;
    *force = kept;
    return true;
}

/* A turn of a million packets has told it, which is more than a moment, so that more counts at once. */
static bool tuner_loss(link_tuner_t *t, int way, double loss, bool *back)
{
    const double now = fmax(loss, loss_least), force = fmax(t->now.loss[way], loss_least);
    if (loss < 0) return false;
    const bool more = now > loss_factor * force, less = loss_factor * now < force;
    t->less[way] = less ? t->less[way] + 1 : 0;
    if (!more && (!less || t->less[way] < t->patience)) return false;
    *back = *back || less;
    t->now.loss[way] = loss;
    t->less[way] = 0;
    return true;
}

uint32_t link_tuner_step(link_tuner_t *t, const tuner_figures_t *seen)
{
    bool back = false;
    uint32_t why = tuner_trip(t, seen->round_trip_ns, &back) ? TUNED_TRIP : 0;
    for (int way = 0; way < 2; way++) {
        if (tuner_loss(t, way, seen->loss[way], &back)) why |= TUNED_LOSS;
        if (tuner_rate(&t->now.kept[way], seen->kept[way])) why |= TUNED_RATE;
    }
    if ((why & (TUNED_TRIP | TUNED_LOSS)) != 0)
        t->calm = 0;
    else if (t->off == 0 && t->less[0] == 0 && t->less[1] == 0)
        t->calm++;
    if (back && t->patience < TUNER_RARELY) t->patience *= 2;
    if (t->calm >= TUNER_RARELY) {
        t->patience = TUNER_STEPS;
        t->calm = 0;
    }
    return why;
}

/* ---- in words ---- */

/* Behind what is there, with a comma between; what there is no room for is cut. */
static void tuner_say(char *out, size_t room, const char *fmt, ...) LH_PRINTF(3, 4);

static void tuner_say(char *out, size_t room, const char *fmt, ...)
{
    size_t at = strlen(out);
    va_list args;
    if (at > 0 && at + 2 < room) {
        memcpy(out + at, ", ", 3);
        at += 2;
    }
    va_start(args, fmt);
    (void)vsnprintf(out + at, room - at, fmt, args);
    va_end(args);
}

void link_tuner_text(const link_change_t *c, char *out, size_t room)
{
    static const char *const ways[2] = {"there", "back"};
    char what[320] = "";
    for (int way = 0; way < 2; way++)
        if (c->now.kept[way] != c->before.kept[way])
            tuner_say(what, sizeof(what), "%.3g Gb/s %s instead of %.3g",
                      8e-9 * (double)c->rate[way] * c->now.kept[way], ways[way],
                      8e-9 * (double)c->rate[way] * c->before.kept[way]);
    if (c->now.round_trip_ns != c->before.round_trip_ns)
        tuner_say(what, sizeof(what), "%.2f ms instead of %.2f",
                  1e-6 * (double)c->now.round_trip_ns, 1e-6 * (double)c->before.round_trip_ns);
    for (int way = 0; way < 2; way++)
        if (c->now.loss[way] != c->before.loss[way])
            tuner_say(what, sizeof(what), "a loss of %.1e %s instead of %.1e", c->now.loss[way],
                      ways[way], c->before.loss[way]);
    (void)snprintf(out, room, "%s-%s: %s from step %llu on%s%s", c->site[0], c->site[1], what,
                   (unsigned long long)c->step, c->tuned[0] != '\0' ? "; " : "", c->tuned);
}

void link_tuner_changes(const lh_tuning_t *before, const lh_tuning_t *after, char *out, size_t room)
{
    out[0] = '\0';
    if (after->inflight_bytes != before->inflight_bytes)
        tuner_say(out, room, "window %.3g MB instead of %.3g", 1e-6 * (double)after->inflight_bytes,
                  1e-6 * (double)before->inflight_bytes);
    if (after->streams != before->streams)
        tuner_say(out, room, "%u streams instead of %u", after->streams, before->streams);
    if (after->chunk_bytes != before->chunk_bytes)
        tuner_say(out, room, "chunks of %.3g KiB instead of %.3g",
                  (double)after->chunk_bytes / 1024, (double)before->chunk_bytes / 1024);
    if (after->buffer_bytes != before->buffer_bytes)
        tuner_say(out, room, "buffers of %.3g MiB instead of %.3g",
                  (double)after->buffer_bytes / 1048576, (double)before->buffer_bytes / 1048576);
    if (after->control != before->control) tuner_say(out, room, "another congestion control");
}
