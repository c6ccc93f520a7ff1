/* figures.c - the state of a run in Prometheus' text format.
 *
 * Times and waits are counters of seconds and not gauges of the last step: whoever scrapes each
 * quarter of a minute sees all steps in between, and rate() of two counters is the share that one
 * has in the other. A figure that is not known is left out, as a gap is truer than a nought. */
#include <watch/figures.h>

#include <math.h>
#include <stdio.h>

#include <base/text.h>
#include <watch/metrics.h>

typedef struct figures {
    text_t *out;
    char run[2 * STATE_TEXT]; /* as a label's value, escaped */
} figures_t;

/* A label's value: backslash, quote and new line are escaped; control characters become blanks. */
static void figures_escape(const char *from, char *to, size_t room)
{
    size_t length = 0;
    lh_assert(room > 0);
    for (; *from != '\0' && length + 3 < room; from++) {
        const char c = *from;
        if (c == '\\' || c == '"') to[length++] = '\\';
        to[length++] = (unsigned char)c < ' ' ? ' ' : c;
    }
    to[length] = '\0';
    to[text_utf8_prefix(to, length)] = '\0';
}

/* The two lines that every name has once, before its samples. */
static void figures_name(figures_t *f, const char *name, const char *type, const char *help)
{
    text_printf(f->out, "# HELP longhaul_%s %s\n# TYPE longhaul_%s %s\n", name, help, name, type);
}

/* labels: more of them, as `,part="data"`, or "". */
static void figures_sample(figures_t *f, const char *name, const char *labels, double value)
{
    text_printf(f->out, "longhaul_%s{run=\"%s\"%s} %.17g\n", name, f->run, labels, value);
}

static void figures_one(figures_t *f, const char *name, const char *type, const char *help,
                        double value)
{
    if (!isfinite(value)) return;
    figures_name(f, name, type, help);
    figures_sample(f, name, "", value);
}

static void figures_gauge(figures_t *f, const char *name, const char *help, double value)
{
    figures_one(f, name, "gauge", help, value);
}

static void figures_counter(figures_t *f, const char *name, const char *help, double value)
{
    figures_one(f, name, "counter", help, value);
}

/* Seconds since 1970, as PromQL's time(); left out where it has not happened. */
static void figures_moment(figures_t *f, const char *name, const char *help, uint64_t wall)
{
    figures_gauge(f, name, help, wall == 0 ? (double)NAN : (double)wall * 1e-9);
}

static void figures_of_run(figures_t *f, const run_state_t *s)
{
    char model[2 * STATE_TEXT], host[2 * STATE_TEXT];
    figures_escape(s->model, model, sizeof(model));
    figures_escape(s->host, host, sizeof(host));
    figures_name(f, "run_info", "gauge", "What the run is; always 1.");
    text_printf(f->out, "longhaul_run_info{run=\"%s\",model=\"%s\",host=\"%s\",version=\"%s\"} 1\n",
                f->run, model, host, LH_VERSION);
    figures_gauge(f, "running", "1 while it trains, 0 once it has ended.", !s->ended);
    figures_gauge(f, "ranks", "Ranks of the job.", s->ranks);
    figures_gauge(f, "sites", "Sites of the job.", s->sites);
    figures_gauge(f, "parameters", "Parameters of the model.", (double)s->parameters);
    figures_moment(f, "start_time_seconds", "When training began or was gone on with.",
                   s->started_wall);
    figures_counter(f, "restarts_total", "How often training was gone on with in this folder.",
                    (double)s->restarts);
    figures_counter(f, "launcher_restarts_total",
                    "Of these, by the launcher of this run, after a lost rank or link.",
                    (double)s->launcher_restarts);
}

static void figures_of_steps(figures_t *f, const run_state_t *s)
{
    const step_report_t *r = &s->last;
    const bool made = s->seconds_a_step > 0;
    figures_gauge(f, "step", "Steps made since the start of training.", (double)r->step);
    figures_gauge(f, "planned_steps", "Steps that the run is to make.", (double)s->steps);
    figures_gauge(f, "loss", "Loss of the last step, over the global batch.", r->loss);
    figures_gauge(f, "cross_entropy", "The same without what the model adds to it.",
                  r->cross_entropy);
    if (made) {
        figures_gauge(f, "learning_rate", "Learning rate of the last step.", r->learning_rate);
        figures_gauge(f, "gradient_norm", "Global norm of the gradients, before clipping.",
                      r->gradient_norm);
        figures_gauge(f, "tokens", "Tokens since the start of training.", (double)r->tokens);
        /* What is gone on with from an earlier step has fewer than were told before: a counter that fell a
         * little would be taken for one that began anew, and all of it for new. */
        figures_counter(f, "tokens_total",
                        "Tokens of this run, since it began or was gone on with.",
                        (double)((r->step - s->first_step) * s->tokens_per_step));
        figures_gauge(f, "tokens_per_second", "Tokens a second in the last step, of all ranks.",
                      r->tokens_per_s);
        figures_gauge(f, "step_seconds", "Mean time of a step, over some twenty.",
                      s->seconds_a_step);
        figures_gauge(f, "left_seconds", "Time that is left at that pace.",
                      (double)(s->steps - r->step) * s->seconds_a_step);
    }
    if (made && s->peak_flops > 0)
        figures_gauge(f, "peak_ratio", "Share of the measured rate of the device's matmuls.",
                      s->flops_per_step / s->seconds_a_step / s->peak_flops);
    figures_counter(f, "refused_steps_total", "Steps of this run that were not applied.",
                    (double)s->refused);
    figures_counter(f, "steps_seconds_total", "Time of all steps of this run.", s->seconds_sum);
    figures_name(f, "part_seconds_total", "counter", "Time of the parts of steps of this run.");
    for (int i = 0; i < STEP_PARTS; i++) {
        char label[64];
        (void)snprintf(label, sizeof(label), ",part=\"%s\"", step_part_names[i]);
        figures_sample(f, "part_seconds_total", label, s->part_sum[i]);
    }
    if (s->ranks < 2) return;
    figures_name(f, "exposed_seconds_total", "counter",
                 "Time that steps of rank 0 waited for transfers, by class of link.");
    for (int i = LH_LINK_NODE; i < STEP_SCOPES; i++) {
        char label[64];
        (void)snprintf(label, sizeof(label), ",link=\"%s\"", step_scope_names[i]);
        figures_sample(f, "exposed_seconds_total", label, s->exposed_sum[i]);
    }
    figures_counter(f, "least_exposed_seconds_total",
                    "Of each step the time that the rank which waited least waited for transfers, "
                    "a step later.",
                    s->least_exposed_sum);
}

static void figures_of_saves(figures_t *f, const run_state_t *s, uint64_t free_bytes)
{
    if (s->evaluation_wall != 0) {
        figures_gauge(f, "evaluation_loss", "Held-out loss, mean over tokens.", s->evaluation.loss);
        figures_gauge(f, "evaluation_step", "The step after which it was found.",
                      (double)s->evaluation.step);
    }
    figures_name(f, "saves_total", "counter", "Checkpoints of this run, by what became of them.");
    figures_sample(f, "saves_total", ",result=\"committed\"", (double)s->saves);
    figures_sample(f, "saves_total", ",result=\"failed\"", (double)s->failures);
    if (s->saved.wall != 0)
        figures_gauge(f, "saved_step", "Step of the last checkpoint of this run.",
                      (double)s->saved.step);
    figures_moment(f, "saved_time_seconds", "When it was committed.", s->saved.wall);
    if (s->snapshots + s->snapshot_failures > 0) {
        figures_name(f, "snapshots_total", "counter",
                     "Snapshots that stay in memory, by what became of them.");
        figures_sample(f, "snapshots_total", ",result=\"kept\"", (double)s->snapshots);
        figures_sample(f, "snapshots_total", ",result=\"failed\"", (double)s->snapshot_failures);
    }
    if (s->kept.wall != 0)
        figures_gauge(f, "snapshot_step", "Step of the last snapshot that is whole in memory.",
                      (double)s->kept.step);
    if (free_bytes != UINT64_MAX)
        figures_gauge(f, "free_bytes", "Room left in the run's folder.", (double)free_bytes);
    if (s->has_room)
        figures_gauge(f, "checkpoint_free_bytes",
                      "Room left where checkpoints are, as the last save was written and none "
                      "before it removed for it.",
                      (double)s->checkpoint_free_bytes);
}

static void figures_of_ranks(figures_t *f, const lateness_t *late, const control_t *control)
{
    control_counts_t counts;
    if (control == NULL) return;
    control_counts(control, &counts);
    figures_gauge(f, "late_ranks", "Ranks that the others wait for.", late->count);
    figures_counter(f, "strangers_total",
                    "Connections to rank 0 that did not prove to have the job's key.",
                    (double)counts.strangers);
    figures_name(f, "control_bytes_total", "counter", "Bytes of the control plane at rank 0.");
    figures_sample(f, "control_bytes_total", ",direction=\"sent\"", (double)counts.bytes_sent);
    figures_sample(f, "control_bytes_total", ",direction=\"received\"",
                   (double)counts.bytes_received);
}

/* What a row of the figures of links is of. */
enum { LINK_RATE, LINK_TRIP, LINK_LOADED_TRIP, LINK_LOSS, LINK_FIGURES };
static const struct {
    const char *name, *help;
} link_names[LINK_FIGURES] = {
    [LINK_RATE] = {"link_bytes_per_second", "Rate of a link between sites, as it was measured."},
    [LINK_TRIP] = {"link_round_trip_seconds", "Least round trip of a link, as it was measured."},
    [LINK_LOADED_TRIP] = {"link_loaded_round_trip_seconds", "The same while the link was full."},
    [LINK_LOSS] = {"link_loss_ratio", "Packets that were lost of those sent, as it was measured."},
};

/* way: from site[0] to site[1], or back. NAN: not measured, or told once for both ways. */
static double link_figure(const probe_figures_t *p, uint32_t which, int way)
{
    lh_assert(which < LINK_FIGURES && (way == 0 || way == 1));
    const uint64_t once[] = {[LINK_TRIP] = p->round_trip_ns, [LINK_LOADED_TRIP] = p->loaded_ns};
    switch (which) {
    case LINK_RATE: return (double)p->rate[way];
    case LINK_LOSS: return p->loss[way] < 0 ? (double)NAN : p->loss[way];
    default: return way > 0 || once[which] == 0 ? (double)NAN : (double)once[which] * 1e-9;
    }
}

static void figures_of_links(figures_t *f, const run_start_t *start)
{
    uint32_t measured = 0;
    for (uint32_t i = 0; i < start->link_count; i++)
        measured += start->links[i].figures.measured_s != 0;
    for (uint32_t which = 0; measured > 0 && which < LINK_FIGURES; which++) {
        figures_name(f, link_names[which].name, "gauge", link_names[which].help);
        for (uint32_t i = 0; i < 2 * start->link_count; i++) {
            const probe_pair_t *p = &start->links[i / 2];
            const int way = (int)(i % 2);
            char from[2 * WORLD_SITE_NAME], to[2 * WORLD_SITE_NAME], labels[256];
            const double value = p->figures.measured_s == 0 ? (double)NAN
                                                            : link_figure(&p->figures, which, way);
            if (!isfinite(value)) continue;
            figures_escape(p->site[way], from, sizeof(from));
            figures_escape(p->site[1 - way], to, sizeof(to));
            (void)snprintf(labels, sizeof(labels), ",from=\"%s\",to=\"%s\"", from, to);
            figures_sample(f, link_names[which].name, labels, value);
        }
    }
}

/* What a row of the figures of flows is of. */
enum { FLOW_SENT, FLOW_RECEIVED, FLOW_AGAIN, FLOW_RATE, FLOW_TRIP, FLOW_LOSS, FLOW_FIGURES };
typedef struct figure_name {
    const char *name, *type, *help;
} figure_name_t;

static const figure_name_t flow_names[FLOW_FIGURES] = {
    [FLOW_SENT] = {"link_sent_bytes_total", "counter", "Bytes that rank 0 sent to another site."},
    [FLOW_RECEIVED] = {"link_received_bytes_total", "counter",
                       "Bytes that rank 0 received from another site."},
    [FLOW_AGAIN] = {"link_retransmitted_bytes_total", "counter",
                    "Bytes that rank 0 sent to another site again, as they were lost."},
    [FLOW_RATE] = {"link_now_bytes_per_second", "gauge",
                   "Rate of rank 0's fastest link to another site while it sent."},
    [FLOW_TRIP] = {"link_now_round_trip_seconds", "gauge",
                   "Round trip of rank 0's slowest link to another site, as it is now."},
    [FLOW_LOSS] = {"link_now_loss_ratio", "gauge",
                   "Packets that rank 0's link to another site lost of the last million; a bound "
                   "until so many were sent."},
};

static double flow_figure(const link_flow_t *l, uint32_t which)
{
    switch (which) {
    case FLOW_SENT: return (double)l->sent;
    case FLOW_RECEIVED: return (double)l->received;
    case FLOW_AGAIN: return (double)l->retransmitted;
    case FLOW_RATE: return l->bytes_per_second == 0 ? (double)NAN : (double)l->bytes_per_second;
    case FLOW_LOSS: return l->packets > 0 ? l->loss : (double)NAN;
    default: return l->round_trip_ns == 0 ? (double)NAN : (double)l->round_trip_ns * 1e-9;
    }
}

static const char *flow_site(const world_t *w, uint32_t site)
{
    return site < w->row.sites ? world_site_name(w, site) : "";
}

/* By class of link: what carries those of the rank that tells. */
static void figures_of_transports(figures_t *f, const run_start_t *start)
{
    bool named = false;
    for (uint32_t k = LH_LINK_NODE; k < STEP_SCOPES; k++) {
        char card[128], labels[320];
        if (start->transports[k] == NULL) continue;
        if (!named)
            figures_name(f, "transport_info", "gauge",
                         "What carries rank 0's links of a class, and by which cards; always 1.");
        named = true;
        figures_escape(start->cards[k] == NULL ? "" : start->cards[k], card, sizeof(card));
        (void)snprintf(labels, sizeof(labels),
                       ",link=\"%s\",transport=\"%s\",security=\"%s\",cards=\"%s\"",
                       step_scope_names[k], start->transports[k],
                       start->security[k] == NULL ? "" : start->security[k], card);
        figures_sample(f, "transport_info", labels, 1);
    }
}

/* A sample of a way from one site to another, unless it is none; *named: the figure has its lines of type and help. */
static void figure_of_way(figures_t *f, const figure_name_t *of, bool *named, const char *from_site,
                          const char *to_site, double value)
{
    char from[2 * WORLD_SITE_NAME], to[2 * WORLD_SITE_NAME], labels[256];
    if (!isfinite(value)) return;
    if (!*named) figures_name(f, of->name, of->type, of->help);
    *named = true;
    figures_escape(from_site, from, sizeof(from));
    figures_escape(to_site, to, sizeof(to));
    (void)snprintf(labels, sizeof(labels), ",from=\"%s\",to=\"%s\"", from, to);
    figures_sample(f, of->name, labels, value);
}

/* While it trains: of the rank that tells, whose links are as busy as those of its neighbours. */
static void figures_of_flows(figures_t *f, const run_state_t *s, const world_t *w)
{
    const uint32_t count = w == NULL ? 0 : s->last.flow_count;
    for (uint32_t which = 0; which < FLOW_FIGURES; which++) {
        bool named = false;
        for (uint32_t i = 0; i < count; i++)
            figure_of_way(f, &flow_names[which], &named, w->ranks[w->row.rank].site_name,
                          flow_site(w, s->last.flows[i].site),
                          flow_figure(&s->last.flows[i], which));
    }
}

/* What a row of the figures of borders is of. */
enum { BORDERS_SENT, BORDERS_TRIP, BORDERS_LOSS, BORDERS_FIGURES };
static const figure_name_t border_names[BORDERS_FIGURES] = {
    [BORDERS_SENT] = {"border_sent_bytes_total", "counter",
                      "Bytes that all ranks of a site had to send to those of another."},
    [BORDERS_TRIP] = {"border_round_trip_seconds", "gauge",
                      "Least round trip that ranks of a site have to another, as it is now."},
    [BORDERS_LOSS] =
        {"border_loss_ratio", "gauge",
         "Packets that a rank of a site lost of its last million to another, the most."},
};

static double border_figure(const link_border_t *b, uint32_t which)
{
    switch (which) {
    case BORDERS_SENT: return (double)b->sent;
    case BORDERS_TRIP: return b->round_trip_ns == 0 ? (double)NAN : (double)b->round_trip_ns * 1e-9;
    default: return b->loss < 0 ? (double)NAN : b->loss;
    }
}

/* While it trains: of all ranks, as each has told the others at the end of a step. */
static void figures_of_borders(figures_t *f, const run_state_t *s, const world_t *w)
{
    const uint32_t count = w == NULL ? 0 : s->last.border_count;
    for (uint32_t which = 0; which < BORDERS_FIGURES; which++) {
        bool named = false;
        for (uint32_t i = 0; i < count; i++) {
            const link_border_t *b = &s->last.borders[i];
            figure_of_way(f, &border_names[which], &named, flow_site(w, b->from),
                          flow_site(w, b->to), border_figure(b, which));
        }
    }
}

void figures_write(const run_state_t *s, const lateness_t *late, const run_start_t *start,
                   uint64_t free_bytes, text_t *out)
{
    figures_t f = {.out = out};
    out->length = 0;
    out->failed = false;
    figures_escape(s->name, f.run, sizeof(f.run));
    figures_of_run(&f, s);
    figures_of_steps(&f, s);
    figures_of_saves(&f, s, free_bytes);
    figures_of_ranks(&f, late, s->ended ? NULL : start->control);
    figures_of_transports(&f, start);
    figures_of_links(&f, start);
    figures_of_flows(&f, s, s->ended ? NULL : start->world);
    figures_of_borders(&f, s, s->ended ? NULL : start->world);
}
