/* flame.c - a tree of frames, laid out from left to right in the order in which they first ran. */
#include <watch/flame.h>

#include <stdio.h>

#include <base/memory.h>
#include <watch/chart.h>

enum { WIDTH = 1080, ROW = 20, DEPTHS = 5, LABEL = 48, LETTER = 6, NONE = 0 };
static const double least_width = 0.3;

typedef struct box {
    char label[LABEL];
    uint32_t parent, depth;       /* the first box is the step, and its own parent */
    uint32_t first, last, beside; /* children, and the next of its own parent; NONE */
    uint64_t ns, placed_ns;       /* placed: of its children so far */
    uint64_t at_ns;
} box_t;

typedef struct flame {
    box_t *boxes;
    uint32_t count;
    size_t capacity;
} flame_t;

/* The child of that name, made where there is none. */
static lh_status_t child(flame_t *f, uint32_t parent, const char *label, uint32_t *out)
{
    for (uint32_t i = f->boxes[parent].first; i != NONE; i = f->boxes[i].beside)
        if (strcmp(f->boxes[i].label, label) == 0) {
            *out = i;
            return LH_OK;
        }
    box_t *boxes = mem_grow(f->boxes, &f->capacity, f->count + 1u, sizeof(*boxes));
    if (boxes == NULL) return LH_NO_MEMORY;
    f->boxes = boxes;
    const uint32_t made = f->count++;
    boxes[made] = (box_t){.parent = parent, .depth = boxes[parent].depth + 1};
    (void)snprintf(boxes[made].label, LABEL, "%s", label);
    *(boxes[parent].first == NONE ? &boxes[parent].first
                                  : &boxes[boxes[parent].last].beside) = made;
    boxes[parent].last = made;
    *out = made;
    return LH_OK;
}

static lh_status_t add(flame_t *f, const profile_frame_t *frame)
{
    char part[LABEL];
    const bool update = strcmp(frame->list, frame->part) == 0;
    (void)snprintf(part, sizeof(part), "%s", frame->part);
    if (strcmp(frame->part, "blocks") == 0)
        (void)snprintf(part, sizeof(part), "block %u", (unsigned)frame->block);
    const char *const path[] = {frame->list, frame->backward ? "backward" : "forward", part,
                                frame->op};
    uint32_t at = 0;
    f->boxes[0].ns += frame->ns;
    for (uint32_t i = 0; i < sizeof(path) / sizeof(path[0]); i++) {
        if (update && (i == 1 || i == 2)) continue; /* has neither directions nor parts */
        const lh_status_t status = child(f, at, path[i], &at);
        if (status != LH_OK) return status;
        f->boxes[at].ns += frame->ns;
    }
    return LH_OK;
}

/* Colours of the page: products, attention, what waits for other ranks, the rest; then the boxes
 * that only hold others. */
static const char *colour(const box_t *b)
{
    if (b->first != NONE) return b->depth == 0 ? "p5" : "p0";
    if (strcmp(b->label, "matmul") == 0) return "p1";
    if (strncmp(b->label, "attention", strlen("attention")) == 0) return "p2";
    return strcmp(b->label, "wait") == 0 ? "p3" : "p4";
}

static void draw(const flame_t *f, const box_t *b, text_t *out)
{
    const double all = (double)f->boxes[0].ns;
    const double x = (double)b->at_ns / all * WIDTH, width = (double)b->ns / all * WIDTH;
    const double y = (double)(b->depth * ROW);
    if (width < least_width) return;
    text_printf(out,
                "<g><rect class=\"%s\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%d\"/><title>",
                colour(b), x, y, width, ROW - 1);
    if (b->parent != 0) {
        html_escape(out, f->boxes[b->parent].label);
        text_append(out, ", ");
    }
    html_escape(out, b->label);
    text_printf(out, ": %.3f ms, %.1f %%</title>", (double)b->ns * 1e-6, 100 * (double)b->ns / all);
    if (width > (double)(LETTER * (strlen(b->label) + 1))) {
        text_printf(out, "<text x=\"%.2f\" y=\"%.0f\">", x + LETTER / 2, y + ROW * 0.7);
        html_escape(out, b->label);
        text_append(out, "</text>");
    }
    text_append(out, "</g>");
}

static void draw_all(flame_t *f, text_t *out)
{
    text_printf(out, "<svg class=\"flame\" viewBox=\"0 0 %d %d\" role=\"img\">", WIDTH,
                ROW * DEPTHS);
    for (uint32_t i = 0; i < f->count; i++) { /* parents come before their children */
        box_t *b = &f->boxes[i], *parent = &f->boxes[b->parent];
        if (i > 0) {
            b->at_ns = parent->at_ns + parent->placed_ns;
            parent->placed_ns += b->ns;
        }
        draw(f, b, out);
    }
    text_append(out, "</svg>");
}

lh_status_t flame_draw(const profile_frame_t *frames, uint32_t count, text_t *out)
{
    flame_t f = {.count = 1};
    f.boxes = mem_grow(NULL, &f.capacity, 1, sizeof(*f.boxes));
    if (f.boxes == NULL) return LH_NO_MEMORY;
    f.boxes[0] = (box_t){.label = "step"};
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < count && status == LH_OK; i++)
        status = add(&f, &frames[i]);
    if (status == LH_OK && f.boxes[0].ns > 0) draw_all(&f, out);
    mem_free(f.boxes);
    return status;
}
