/* memory_table.c - memory per rank and kind, as JSON and as HTML. */
#include <watch/memory_table.h>

#include <watch/progress.h>

/* More ranks than this are told by metrics.jsonl; the report shows the first and the largest. */
enum { RANKS_SHOWN = 8 };

static void kinds_json(const memory_report_t *m, const char *name, text_t *out)
{
    text_printf(out, "\"%s\": {", name);
    for (uint32_t k = 0; k < MEMORY_KINDS; k++)
        if (m->bytes[k] > 0)
            text_printf(out, "\"%s\": %llu, ", memory_kind_text(k),
                        (unsigned long long)m->bytes[k]);
    text_printf(out, "\"total\": %llu}", (unsigned long long)m->total_bytes);
}

lh_status_t memory_table_metrics(metrics_t *m, const run_end_t *end)
{
    text_t line = {0};
    text_printf(&line, "{\"step\": %llu, \"memory\": [", (unsigned long long)end->steps);
    for (uint32_t i = 0; i < end->memory_count; i++) {
        const rank_memory_t *r = &end->memory[i];
        text_printf(&line, "%s{\"rank\": %u, ", i == 0 ? "" : ", ", r->rank);
        kinds_json(&r->planned, "planned", &line);
        text_append(&line, ", ");
        kinds_json(&r->measured, "measured", &line);
        if (r->device_bytes > 0)
            text_printf(&line, ", \"device\": %llu", (unsigned long long)r->device_bytes);
        text_printf(&line, ", \"resident\": %llu}", (unsigned long long)r->resident_bytes);
    }
    text_append(&line, "]}\n");
    const lh_status_t status = text_status(&line);
    if (status == LH_OK) metrics_line(m, line.data, (int)line.length);
    text_free(&line);
    return status;
}

static void cell(uint64_t bytes, text_t *out)
{
    char size[16];
    if (bytes > 0) bytes_text((double)bytes, size);
    text_printf(out, "<td class=\"n\">%s</td>", bytes > 0 ? size : "");
}

/* The first ranks, or the first and the largest. */
static uint32_t choose(const run_end_t *end, const rank_memory_t *shown[RANKS_SHOWN])
{
    const rank_memory_t *most = &end->memory[0];
    uint32_t count = 0;
    for (uint32_t i = 0; i < end->memory_count; i++)
        if (end->memory[i].measured.total_bytes > most->measured.total_bytes)
            most = &end->memory[i];
    if (end->memory_count <= RANKS_SHOWN) {
        for (uint32_t i = 0; i < end->memory_count; i++)
            shown[count++] = &end->memory[i];
        return count;
    }
    shown[count++] = &end->memory[0];
    if (most != shown[0]) shown[count++] = most;
    return count;
}

static bool is_used(const rank_memory_t *const *shown, uint32_t count, uint32_t kind)
{
    for (uint32_t i = 0; i < count; i++)
        if (shown[i]->planned.bytes[kind] > 0 || shown[i]->measured.bytes[kind] > 0) return true;
    return false;
}

static void head(const rank_memory_t *const *shown, uint32_t count, text_t *out)
{
    text_append(out, "<h2>Memory</h2><div class=\"panel\"><table><tr><th>kind</th>");
    for (uint32_t i = 0; i < count; i++)
        if (count > 1)
            text_printf(out, "<th class=\"n\">rank %u planned</th><th class=\"n\">measured</th>",
                        shown[i]->rank);
        else
            text_append(out, "<th class=\"n\">planned</th><th class=\"n\">measured</th>");
    text_append(out, "</tr>");
}

/* A row of what is measured alone. */
static void measured_row(const char *name, const rank_memory_t *const *shown, uint32_t count,
                         bool device, text_t *out)
{
    text_printf(out, "<tr><td>%s</td>", name);
    for (uint32_t i = 0; i < count; i++) {
        text_append(out, "<td></td>");
        cell(device ? shown[i]->device_bytes : shown[i]->resident_bytes, out);
    }
    text_append(out, "</tr>");
}

static void write_ranks(const run_end_t *end, text_t *out)
{
    const rank_memory_t *shown[RANKS_SHOWN];
    const uint32_t count = choose(end, shown);
    head(shown, count, out);
    for (uint32_t k = 0; k < MEMORY_KINDS; k++) {
        if (!is_used(shown, count, k)) continue;
        text_printf(out, "<tr><td>%s</td>", memory_kind_text(k));
        for (uint32_t i = 0; i < count; i++) {
            cell(shown[i]->planned.bytes[k], out);
            cell(shown[i]->measured.bytes[k], out);
        }
        text_append(out, "</tr>");
    }
    text_append(out, "<tr><td><b>total, without pinned</b></td>");
    for (uint32_t i = 0; i < count; i++) {
        cell(shown[i]->planned.total_bytes, out);
        cell(shown[i]->measured.total_bytes, out);
    }
    text_append(out, "</tr>");
    if (shown[0]->device_bytes > 0) measured_row("held on the device", shown, count, true, out);
    measured_row("process, at its peak", shown, count, false, out);
    text_append(out, "</table><p class=\"sub\">Measured: pages in memory where the host reaches "
                     "them, else what the device gave. What libraries keep is part of the process "
                     "only.");
    if (count < end->memory_count)
        text_printf(out, " Shown are rank 0 and the largest of %u; metrics.jsonl has all.",
                    end->memory_count);
    text_append(out, "</p></div>\n");
}

void memory_table_write(const run_start_t *start, const run_end_t *end, text_t *out)
{
    if (end->memory_count > 0) {
        write_ranks(end, out);
        return;
    }
    if (start->memory == NULL) return;
    const rank_memory_t own = {.planned = *start->memory, .resident_bytes = end->resident_bytes};
    const run_end_t alone = {.memory = &own, .memory_count = 1};
    write_ranks(&alone, out);
}
