/* draw.c - writes a recording as dot text and has Graphviz draw it.
 *
 * Ops are rounded boxes, blue on the way there and orange on the way back; what comes from outside
 * a recording has shapes of its own. Values are edges with their dtype and shape. */
#include <graph/draw.h>

#include <errno.h>
#include <spawn.h>
#include <sys/wait.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <graph/recording.h>
#include <longhaul/dtype.h>

extern char **environ;

/* "BF16 [4096 x 512]", with a multiplication sign. */
static void write_shape(text_t *out, const lh_arg_t *arg)
{
    text_printf(out, "%s [", lh_dtype_name(arg->dtype));
    for (uint32_t i = 0; i < arg->rank; i++)
        text_printf(out, "%s%llu", i == 0 ? "" : " × ", (unsigned long long)arg->shape[i]);
    text_append(out, "]");
}

/* Appends text for a dot string, with a backslash before quotes and backslashes. */
static void write_quoted(text_t *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') text_append(out, "\\");
        text_append_n(out, text, 1);
    }
}

/* Appends one attribute, unless it is zero, which stands for the usual everywhere. */
static void write_attribute(text_t *out, const lh_option_t *option, const void *attributes)
{
    const char *at = (const char *)attributes + option->offset;
    uint32_t u32;
    uint64_t u64;
    double f64;
    switch (option->type) {
    case LH_OPT_F64:
        memcpy(&f64, at, sizeof(f64));
        if (f64 != 0) text_printf(out, "\\n%s = %g", option->key, f64);
        return;
    case LH_OPT_U32:
        memcpy(&u32, at, sizeof(u32));
        if (u32 != 0) text_printf(out, "\\n%s = %u", option->key, u32);
        return;
    case LH_OPT_CHOICE: {
        memcpy(&u32, at, sizeof(u32));
        const char *word = option->range == NULL ? "" : option->range;
        for (uint32_t i = 0; i < u32 && *word != '\0'; i++)
            word += strcspn(word, "|") + (word[strcspn(word, "|")] == '|');
        if (u32 != 0) text_printf(out, "\\n%s = %.*s", option->key, (int)strcspn(word, "|"), word);
        return;
    }
    case LH_OPT_BOOL:
        if (*at != 0) text_printf(out, "\\n%s", option->key);
        return;
    default:
        memcpy(&u64, at, sizeof(u64));
        if (u64 != 0) text_printf(out, "\\n%s = %llu", option->key, (unsigned long long)u64);
    }
}

/* An op with those attributes that are not zero. */
static void write_node(text_t *out, const recording_t *r, uint32_t n)
{
    const graph_node_t *node = &r->nodes[n];
    const lh_op_t *row = &node->op->row;
    text_printf(out, "  n%u [label=\"", n);
    write_quoted(out, row->name);
    for (uint32_t i = 0; i < row->attribute_count && node->attributes != NULL; i++)
        write_attribute(
            out,
            (const lh_option_t *)((const char *)row->attributes + (size_t)i * row->attribute_size),
            node->attributes);
    text_printf(out, "\", fillcolor=\"%s\"];\n", node->backward ? "#fde7d3" : "#dbe9fb");
}

/* A value that no node makes, drawn by its kind: run-time inputs and constants as plain text,
 * arguments as ellipses, parameters as boxes. The names of inputs are by LH_INPUT_*. */
static void write_source(text_t *out, const recording_t *r, lh_value_t v)
{
    static const char *const inputs[] = {"",       "tokens",  "positions", "document starts",
                                         "labels", "weights", "step",      "seed",
                                         "lengths"};
    const graph_value_t *value = &r->values[v];
    text_printf(out, "  v%u [label=\"", v);
    const char *look = "shape=box, style=filled, fillcolor=\"#e3f4e1\"";
    switch (value->kind) {
    case VALUE_PARAM: write_quoted(out, value->name); break;
    case VALUE_INPUT:
        lh_assert(value->which < sizeof(inputs) / sizeof(inputs[0]));
        text_append(out, inputs[value->which]);
        look = "shape=plaintext, style=\"\"";
        break;
    case VALUE_CONSTANT:
        text_append(out, "constant");
        look = "shape=plaintext, style=\"\"";
        break;
    default:
        text_append(out, "from outside");
        look = "shape=ellipse, style=filled, fillcolor=\"#eeeeee\"";
    }
    text_append(out, "\\n");
    write_shape(out, &value->arg);
    text_printf(out, "\", %s];\n", look);
}

/* An edge from the maker of a value to a node that reads it. */
static void write_edge(text_t *out, const recording_t *r, uint32_t n, uint32_t slot)
{
    const graph_node_t *node = &r->nodes[n];
    const lh_value_t v = node->slots[slot];
    const graph_value_t *value = &r->values[v];
    const bool made = value->kind == VALUE_RESULT || value->kind == VALUE_GRADIENT;
    text_printf(out, "  %c%u -> n%u [", made ? 'n' : 'v', made ? value->node : v, n);
    if (made) { /* a source says itself what it is */
        text_printf(out, "headlabel=\" %s \"", node->op->slot_name[slot]);
        const op_t *maker = r->nodes[value->node].op;
        text_append(out, ", label=\" ");
        if (maker->out_count > 1 && value->slot != maker->in_count)
            text_printf(out, "%s: ", maker->slot_name[value->slot]);
        write_shape(out, &value->arg);
        text_append(out, "\"");
    }
    text_append(out, "];\n");
}

/* A parameter's gradient ends in a box of its own; the part's output in an ellipse. */
static void write_ends(text_t *out, const recording_t *r, bool backward)
{
    for (lh_value_t v = 1; v < r->value_count && backward; v++) {
        const graph_value_t *value = &r->values[v];
        if (value->kind != VALUE_GRADIENT) continue;
        text_printf(out, "  g%u [label=\"gradient of ", v);
        write_quoted(out, value->name);
        text_append(out, "\\n");
        write_shape(out, &value->arg);
        text_printf(out, "\", shape=box, style=filled, fillcolor=\"#f9d7d7\"];\n  n%u -> g%u;\n",
                    value->node, v);
    }
    if (r->output == 0) return;
    const graph_value_t *value = &r->values[r->output];
    const bool made = value->kind == VALUE_RESULT;
    text_append(out, "  output [shape=ellipse, style=filled, fillcolor=\"#eeeeee\"];\n");
    text_printf(out, "  %c%u -> output [label=\" ", made ? 'n' : 'v',
                made ? value->node : r->output);
    write_shape(out, &value->arg);
    text_append(out, "\"];\n");
}

/* Whether a node is drawn; those of the reverse pass are only if asked for. */
static bool is_drawn(const recording_t *r, uint32_t n, bool backward)
{
    return backward || !r->nodes[n].backward;
}

/* Whether a node that is drawn reads a value, or the part returns it. */
static bool feeds_something(const recording_t *r, lh_value_t v, bool backward)
{
    for (uint32_t n = 1; n < r->node_count; n++)
        for (uint32_t s = 0; is_drawn(r, n, backward) && s < r->nodes[n].op->in_count; s++)
            if (r->nodes[n].slots[s] == v) return true;
    return v == r->output;
}

/* Sources come first, if something that is drawn reads them; then each op with the edges that end
 * in it. */
void draw_dot(const recording_t *r, const draw_how_t *how, text_t *out)
{
    text_append(out, "digraph recording {\n  label=\"");
    write_quoted(out, how->title == NULL ? "" : how->title);
    text_append(out, "\"; labelloc=t; fontname=\"Helvetica\"; fontsize=18; rankdir=TB;\n"
                     "  node [shape=box, style=\"rounded,filled\", fontname=\"Helvetica\", "
                     "fontsize=11, color=\"#555555\"];\n"
                     "  edge [fontname=\"Helvetica\", fontsize=9, color=\"#777777\", "
                     "fontcolor=\"#555555\", labelfontsize=8, labelfontcolor=\"#999999\"];\n");
    for (lh_value_t v = 1; v < r->value_count; v++) {
        const uint32_t kind = r->values[v].kind;
        if (kind == VALUE_NONE || kind == VALUE_RESULT || kind == VALUE_GRADIENT) continue;
        if (feeds_something(r, v, how->backward)) write_source(out, r, v);
    }
    for (uint32_t n = 1; n < r->node_count; n++) {
        if (!is_drawn(r, n, how->backward)) continue;
        write_node(out, r, n);
        for (uint32_t s = 0; s < r->nodes[n].op->in_count; s++)
            if (r->nodes[n].slots[s] != 0) write_edge(out, r, n, s);
    }
    write_ends(out, r, how->backward);
    text_append(out, "}\n");
}

/* Starts dot, found by PATH, and waits for its end. Its messages go to this process's output. That
 * dot is not installed has a sentence of its own, as the user can mend that. */
static lh_status_t run_dot(const char *from, const char *path)
{
    char *const arguments[] = {"dot", "-Tsvg", "-o", (char *)path, (char *)from, NULL};
    pid_t child;
    const int error = posix_spawnp(&child, "dot", NULL, NULL, arguments, environ);
    if (error == ENOENT)
        return fail(LH_UNSUPPORTED,
                    "%s can't be drawn: Graphviz' dot is not installed (package graphviz)", path);
    if (error != 0) {
        errno = error;
        return fail_io(errno, "start dot to draw %s", path);
    }
    int ended = 0;
    pid_t waited;
    do
        waited = waitpid(child, &ended, 0);
    while (waited < 0 && errno == EINTR);
    if (waited < 0) return fail_io(errno, "wait for dot");
    if (WIFEXITED(ended) && WEXITSTATUS(ended) == 0) return LH_OK;
    return fail(LH_INVALID, "dot could not draw %s (status %d)", path, ended);
}

/* The dot text lies beside the picture for as long as dot runs. */
lh_status_t draw_svg(const char *dot, const char *path)
{
    text_t from = {0};
    text_printf(&from, "%s.dot", path);
    lh_status_t status = text_status(&from);
    if (status == LH_OK) status = file_replace(from.data, dot, strlen(dot));
    if (status == LH_OK) {
        status = run_dot(from.data, path);
        (void)sys()->unlink(from.data);
    }
    text_free(&from);
    return status;
}
