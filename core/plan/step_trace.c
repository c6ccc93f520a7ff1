/* step_trace.c - writes the profile of a step. */
#include <plan/step_trace.h>

#include <jansson.h>
#include <stdlib.h>

#include <base/file.h>
#include <base/memory.h>

/* Takes the reference. */
static lh_status_t json_write(json_t *root, const char *folder, const char *name, size_t flags)
{
    char *path = path_join(folder, name);
    char *text = root == NULL ? NULL : json_dumps(root, flags);
    lh_status_t status = LH_OK;
    if (path == NULL || text == NULL) status = fail(LH_NO_MEMORY, "no memory for %s", name);
    if (status == LH_OK) status = file_replace(path, text, strlen(text));
    free(text);
    mem_free(path);
    json_decref(root);
    return status;
}

lh_status_t step_profile_write(const char *folder, const profile_row_t *rows, uint32_t count,
                               double peak_flops, double bytes_per_second)
{
    double total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += (double)rows[i].ns;
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++) {
        const profile_row_t *r = &rows[i];
        json_array_append_new(
            list, json_pack("{s:s, s:b, s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f}", "part", r->part,
                            "backward", (int)r->backward, "op", r->op, "kernel", r->kernel, "calls",
                            (json_int_t)r->calls, "ns", (json_int_t)r->ns, "flops", r->flops,
                            "bytes", r->bytes, "share", total > 0 ? (double)r->ns / total : 0.0,
                            "of_limit", profile_row_of_limit(r, peak_flops, bytes_per_second)));
    }
    return json_write(list, folder, "profile.json", JSON_INDENT(1));
}

typedef struct track {
    json_t *events;
    double at_us;
} track_t;

static void track_add(track_t *t, const program_t *p, bool later, const char *phase)
{
    program_call_t call;
    for (uint32_t i = 0; program_call(p, later, i, &call); i++) {
        if (call.ns == 0) continue;
        const double us = (double)call.ns * 1e-3;
        json_array_append_new(
            t->events,
            json_pack("{s:s, s:s, s:s, s:f, s:f, s:i, s:i, s:{s:s, s:s, s:i, s:b, s:f, s:f}}",
                      "name", call.op == NULL ? "fill" : call.op->row.name, "cat", phase, "ph", "X",
                      "ts", t->at_us, "dur", us, "pid", 0, "tid", 0, "args", "kernel", call.kernel,
                      "part", call.part, "block", (int)call.block, "backward", (int)call.backward,
                      "flops", call.flops, "bytes", call.bytes));
        t->at_us += us;
    }
}

lh_status_t step_trace_write(const char *folder, const program_t *pass, const program_t *update)
{
    track_t track = {.events = json_array()};
    track_add(&track, pass, false, "first micro-batch");
    track_add(&track, pass, true, "later micro-batches");
    track_add(&track, update, false, "update");
    json_t *root = json_pack("{s:s, s:o}", "displayTimeUnit", "ms", "traceEvents", track.events);
    return json_write(root, folder, "profile.trace.json", JSON_COMPACT);
}
