/* bench_links.c - longhaul bench links PIPELINE.ini [--host NAME] [--json]: measures the links
 * between the sites of a job as its training would at the first start, and keeps the record.
 *
 * It is started on every machine of the job, as training is; rank 0 prints. */
#include <cli/bench_links.h>

#include <stdio.h>

#include <comm/comm.h>
#include <session/link_record.h>

static double gbit(uint64_t bytes_per_second)
{
    return 8e-9 * (double)bytes_per_second;
}

static void loss_text(const probe_figures_t *f, int way, char *out, size_t room)
{
    if (f->loss_most[way] < 0)
        (void)snprintf(out, room, "-");
    else if (f->loss[way] > 0)
        (void)snprintf(out, room, "%.1e", f->loss[way]);
    else
        (void)snprintf(out, room, "<%.0e", f->loss_most[way]);
}

static void print_pairs(const probe_pair_t *pairs, uint32_t count)
{
    printf("%-20s %-20s %8s %8s %8s %9s %9s %8s %6s\n", "from", "to", "trip_ms", "p99_ms",
           "load_ms", "Gb/s", "burst", "loss", "mtu");
    for (uint32_t i = 0; i < 2 * count; i++) {
        const probe_pair_t *p = &pairs[i / 2];
        const probe_figures_t *f = &p->figures;
        const int way = i % 2;
        char loss[32];
        if (f->measured_s == 0) continue;
        loss_text(f, way, loss, sizeof(loss));
        cli_print_line("%-20s %-20s %8.2f %8.2f %8.2f %9.3f %9.3f %8s %6llu", p->site[way],
                       p->site[!way], (double)f->round_trip_ns * 1e-6, (double)f->p99_ns * 1e-6,
                       (double)f->loaded_ns * 1e-6, gbit(f->rate[way]), gbit(f->burst[way]), loss,
                       (unsigned long long)f->path_mtu);
    }
    for (uint32_t i = 0; i < count; i++) {
        char text[512];
        if (pairs[i].figures.measured_s == 0) continue;
        link_probe_text(&pairs[i], text, sizeof(text));
        cli_print_line("%s (%.1f s)", text, (double)pairs[i].figures.took_ns * 1e-9);
    }
}

static lh_status_t print_json(const probe_pair_t *pairs, uint32_t count)
{
    text_t text = {0};
    link_record_text(pairs, count, &text);
    const lh_status_t status = text_status(&text);
    if (status == LH_OK) (void)puts(text.data);
    text_free(&text);
    return status;
}

static lh_status_t tell(cli_t *cli, const links_t *links)
{
    uint32_t count, measured = 0;
    const probe_pair_t *pairs = links_pairs(links, &count);
    for (uint32_t i = 0; i < count; i++)
        measured += pairs[i].figures.measured_s != 0;
    if (measured == 0)
        return fail(LH_INVALID,
                    "%s: its sites are all on one machine; expected sites that are "
                    "joined by a link",
                    cli->ini);
    link_record_keep(cli->job, pairs, count);
    if (cli_flag(cli, "json") != NULL) return print_json(pairs, count);
    print_pairs(pairs, count);
    return LH_OK;
}

static int measure(void *context)
{
    cli_t *cli = context;
    comm_t *comm = NULL;
    const comm_how_t how = {.job = cli->job,
                            .registry = cli->plugins,
                            .world = launch_world(cli->launch),
                            .control = launch_control(cli->launch)};
    lh_status_t status = comm_open(&how, &comm);
    if (status == LH_OK) status = links_probe(comm_links(comm), NULL, 0);
    if (status == LH_OK && launch_rank(cli->launch) == 0) status = tell(cli, comm_links(comm));
    if (status == LH_OK) status = control_barrier(how.control, "the end of the measurement");
    comm_close(comm);
    return status;
}

int bench_links(cli_t *cli)
{
    if (cli->job == NULL)
        return fail(LH_INVALID, "bench links: between which sites? expected a PIPELINE.ini with "
                                "two sections [site.NAME] or more");
    if (cli->job->site_count < 2)
        return fail(LH_INVALID,
                    "%s: %u sections [site.NAME]; expected two or more, whose links "
                    "are measured",
                    cli->ini, cli->job->site_count);
    cli->job->comm.probe = PROBE_ALWAYS;
    char **words;
    const lh_status_t status = cli_words(cli, cli->command, &words);
    if (status != LH_OK) return status;
    const int code = launch_ranks(cli->launch, words, measure, cli);
    cli_words_free(words);
    return code;
}
