/* schedule.c - makes tables of rows, and checks that they can be run.
 *
 * A table may have any order that its data allows, with one rule more: a program of a chunk takes
 * the micro-batches in order. So gradients are summed in the order of micro-batches, whatever the
 * table, and have the same bits.
 *
 * The check is one walk over the rows with a few counters for each chunk: which micro-batch is
 * next in each direction, and which micro-batch holds which frame. Every table goes through it, the
 * generated ones too. Sentences name the line of the file, what was found and what was expected. */
#include <program/schedule.h>

#include <ctype.h>
#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>

/* The largest file; fields of a row; letters of a wrong field that a sentence shows. */
enum { FILE_BYTES = 512 << 20, FIELDS = 4, FOUND = 40 };

const char *const schedule_programs[SCHEDULE_PROGRAMS] = {
    [SCHEDULE_FORWARD] = "forward",
    [SCHEDULE_BACKWARD] = "backward",
    [SCHEDULE_BACKWARD_INPUT] = "backward_input",
    [SCHEDULE_BACKWARD_WEIGHTS] = "backward_weights",
};

/* ---- the check ---- */

/* How far a chunk is: for each program the micro-batch that is next, all before it being done. */
typedef struct chunk_state {
    uint32_t forward, input, weights;
    uint32_t frames; /* how many different frames it has used, numbered from 0 */
} chunk_state_t;

typedef struct checker {
    const schedule_t *s;
    chunk_state_t *chunks; /* [chunks] */
    uint32_t *frame_of;    /* [chunks][micro-batches] the frame that a forward row took */
    uint32_t *holder;      /* [chunks][frames] 1 + the row that took the frame; 0: it is free */
} checker_t;

/* "steps.csv:7: backward 1 of chunk 0", or "row 7 of the depth-first table: ...". */
static const char *row_text(const schedule_t *s, const schedule_row_t *row, char out[256])
{
    char where[160];
    if (row->line > 0)
        (void)snprintf(where, sizeof(where), "%.140s:%u", s->name, row->line);
    else
        (void)snprintf(where, sizeof(where), "row %u of the %.100s table",
                       (uint32_t)(row - s->rows) + 1, s->name);
    (void)snprintf(out, 256, "%s: %s of micro-batch %u through chunk %u", where,
                   schedule_programs[row->program], row->micro_batch, row->chunk);
    return out;
}

/* Refuses a row whose micro-batch is not the next one of its program and chunk. */
static lh_status_t order_check(const checker_t *c, const schedule_row_t *row, uint32_t next)
{
    char text[256];
    const uint32_t most = c->s->micro_batches;
    if (row->micro_batch == next) return LH_OK;
    row_text(c->s, row, text);
    if (next == most)
        return fail(LH_INVALID, "%s comes again; each of %u is expected once", text, most);
    return fail(LH_INVALID, "%s, expected is micro-batch %u: a chunk takes them in order", text,
                next);
}

/* Refuses a row where what it reads is not there: `program` through `chunk` must come before it. */
static lh_status_t after_check(const checker_t *c, const schedule_row_t *row, bool there,
                               uint32_t program, uint32_t chunk)
{
    char text[256];
    if (there) return LH_OK;
    return fail(LH_INVALID, "%s comes before its %s through chunk %u, expected behind it",
                row_text(c->s, row, text), schedule_programs[program], chunk);
}

/* A forward row takes a free frame. Numbers are used from 0 on without gaps, so that the largest
 * says how many micro-batches are under way at once. A row that only goes forward leaves nothing
 * and holds no frame. */
static lh_status_t frame_take(checker_t *c, const schedule_row_t *row)
{
    char text[256];
    const schedule_t *s = c->s;
    chunk_state_t *chunk = &c->chunks[row->chunk];
    const size_t first = (size_t)row->chunk * s->micro_batches;
    if (row->frame > chunk->frames || row->frame >= s->micro_batches)
        return fail(LH_INVALID, "%s takes frame %u, expected is one of 0 to %u: the next new one",
                    row_text(s, row, text), row->frame,
                    chunk->frames < s->micro_batches ? chunk->frames : s->micro_batches - 1);
    uint32_t *holder = &c->holder[first + row->frame];
    if (*holder != 0)
        return fail(LH_INVALID,
                    "%s takes frame %u, which micro-batch %u holds until its last way back; "
                    "expected is a free one",
                    row_text(s, row, text), row->frame, s->rows[*holder - 1].micro_batch);
    if (!s->forward_only) *holder = (uint32_t)(row - s->rows) + 1;
    c->frame_of[first + row->micro_batch] = row->frame;
    if (row->frame == chunk->frames) chunk->frames++;
    return LH_OK;
}

/* A row on the way back has the frame that its forward row took; the last of them gives it back. */
static lh_status_t frame_match(checker_t *c, const schedule_row_t *row, bool give_back)
{
    char text[256];
    const size_t first = (size_t)row->chunk * c->s->micro_batches;
    const uint32_t taken = c->frame_of[first + row->micro_batch];
    if (row->frame != taken)
        return fail(LH_INVALID, "%s has frame %u, expected is %u, which its forward took",
                    row_text(c->s, row, text), row->frame, taken);
    if (give_back) c->holder[first + row->frame] = 0;
    return LH_OK;
}

/* A forward row: its micro-batch must have been through the chunk before. */
static lh_status_t forward_check(checker_t *c, const schedule_row_t *row)
{
    chunk_state_t *chunk = &c->chunks[row->chunk];
    const uint32_t m = row->micro_batch;
    lh_status_t status = order_check(c, row, chunk->forward);
    if (status == LH_OK && row->chunk > 0)
        status = after_check(c, row, chunk[-1].forward > m, SCHEDULE_FORWARD, row->chunk - 1);
    if (status == LH_OK) status = frame_take(c, row);
    chunk->forward++;
    return status;
}

/* The way back of a chunk needs its own way there and the gradient from the chunk behind it.
 * `backward` is both halves at once; the weights' half may come any time after the input's. */
static lh_status_t backward_check(checker_t *c, const schedule_row_t *row)
{
    chunk_state_t *chunk = &c->chunks[row->chunk];
    const uint32_t m = row->micro_batch;
    const bool input = row->program != SCHEDULE_BACKWARD_WEIGHTS;
    const bool weights = row->program != SCHEDULE_BACKWARD_INPUT;
    lh_status_t status = LH_OK;
    if (input) status = order_check(c, row, chunk->input);
    if (status == LH_OK && weights) status = order_check(c, row, chunk->weights);
    if (status == LH_OK)
        status = after_check(c, row, chunk->forward > m, SCHEDULE_FORWARD, row->chunk);
    if (status == LH_OK && row->chunk + 1 < c->s->chunks)
        status = after_check(c, row, chunk[1].input > m, SCHEDULE_BACKWARD, row->chunk + 1);
    if (status == LH_OK && !input)
        status = after_check(c, row, chunk->input > m, SCHEDULE_BACKWARD_INPUT, row->chunk);
    if (status == LH_OK) status = frame_match(c, row, weights);
    chunk->input += input;
    chunk->weights += weights;
    return status;
}

/* All micro-batches went through all chunks, there and back. */
static lh_status_t end_check(const checker_t *c)
{
    const schedule_t *s = c->s;
    for (uint32_t i = 0; i < s->chunks; i++) {
        const chunk_state_t *chunk = &c->chunks[i];
        const uint32_t next[] = {chunk->forward, chunk->input, chunk->weights};
        for (uint32_t k = 0; k < (s->forward_only ? 1 : 3); k++)
            if (next[k] < s->micro_batches)
                return fail(LH_INVALID,
                            "%s: micro-batch %u goes %s chunk %u in no row, expected is one for "
                            "each of %u",
                            s->name, next[k], k == 0 ? "forward through" : "back through", i,
                            s->micro_batches);
    }
    return LH_OK;
}

/* Walks all rows. Sets s->frames. */
static lh_status_t rows_check(checker_t *c, schedule_t *s)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < s->count; i++) {
        const schedule_row_t *row = &s->rows[i];
        lh_assert(row->program == SCHEDULE_FORWARD || !s->forward_only);
        status = row->program == SCHEDULE_FORWARD ? forward_check(c, row) : backward_check(c, row);
    }
    if (status == LH_OK) status = end_check(c);
    for (uint32_t i = 0; i < s->chunks; i++)
        if (c->chunks[i].frames > s->frames) s->frames = c->chunks[i].frames;
    return status;
}

/* Finds how many chunks and micro-batches the rows name; refuses more than the rows can serve. */
static lh_status_t sizes_find(schedule_t *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->rows[i].chunk >= s->chunks) s->chunks = s->rows[i].chunk + 1;
        if (s->rows[i].micro_batch >= s->micro_batches)
            s->micro_batches = s->rows[i].micro_batch + 1;
    }
    if (s->count == 0) return fail(LH_INVALID, "%s: has no row, expected at least one", s->name);
    const uint64_t least = (uint64_t)s->chunks * s->micro_batches * (s->forward_only ? 1 : 2);
    if (least <= s->count) return LH_OK;
    return fail(LH_INVALID,
                "%s: has %u rows, expected at least %llu for %u micro-batches through %u chunks",
                s->name, s->count, (unsigned long long)least, s->micro_batches, s->chunks);
}

/* There is a counter for each chunk and micro-batch; sizes_find has made sure that they are no more
 * than the rows. */
static lh_status_t schedule_check(schedule_t *s)
{
    lh_status_t status = sizes_find(s);
    if (status != LH_OK) return status;
    const size_t all = (size_t)s->chunks * s->micro_batches;
    checker_t c = {.s = s,
                   .chunks = mem_array(s->chunks, sizeof(*c.chunks)),
                   .frame_of = mem_array(all, sizeof(*c.frame_of)),
                   .holder = mem_array(all, sizeof(*c.holder))};
    const bool room = c.chunks != NULL && c.frame_of != NULL && c.holder != NULL;
    status = room ? rows_check(&c, s) : LH_NO_MEMORY;
    mem_free(c.chunks);
    mem_free(c.frame_of);
    mem_free(c.holder);
    return status;
}

/* ---- rounds ---- */

/* Whether the table repeats its first `rows` rows, each time for the next `micro_batches`. */
static bool rows_repeat(const schedule_t *s, uint32_t rows, uint32_t micro_batches)
{
    lh_assert(rows > 0);
    for (uint32_t i = 0; i < s->count; i++) {
        const schedule_row_t *first = &s->rows[i % rows], *row = &s->rows[i];
        if (first->micro_batch >= micro_batches || row->program != first->program ||
            row->chunk != first->chunk || row->frame != first->frame ||
            row->micro_batch != first->micro_batch + i / rows * micro_batches)
            return false;
    }
    return true;
}

/* Finds the shortest round, for which a program is written. A table that does not repeat itself is
 * one round. */
static void rounds_find(schedule_t *s)
{
    for (uint32_t each = 1; each <= s->micro_batches; each++) {
        const uint32_t rounds = s->micro_batches / each;
        if (s->micro_batches % each != 0 || s->count % rounds != 0 ||
            !rows_repeat(s, s->count / rounds, each))
            continue;
        s->rounds = rounds;
        s->round_rows = s->count / rounds;
        s->round_micro_batches = each;
        return;
    }
}

/* ---- generated tables ---- */

/* An empty table with room for `rows` rows. */
static lh_status_t schedule_new(const char *name, uint64_t rows, schedule_t **out)
{
    if (rows > SCHEDULE_ROWS)
        return fail(LH_INVALID,
                    "the %s table of a step has %llu rows, expected at most %d: fewer "
                    "and larger micro-batches",
                    name, (unsigned long long)rows, SCHEDULE_ROWS);
    schedule_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;
    s->name = mem_text(name);
    s->rows = mem_array(rows, sizeof(*s->rows));
    if (s->name == NULL || s->rows == NULL) {
        schedule_free(s);
        return LH_NO_MEMORY;
    }
    *out = s;
    return LH_OK;
}

void schedule_free(schedule_t *s)
{
    if (s == NULL) return;
    mem_free(s->name);
    mem_free(s->rows);
    mem_free(s);
}

/* Checks a table and finds its rounds; frees it where it is refused. */
static lh_status_t schedule_finish(schedule_t *s, schedule_t **out)
{
    const lh_status_t status = schedule_check(s);
    if (status != LH_OK) {
        schedule_free(s);
        return status;
    }
    rounds_find(s);
    lh_assert(s->rounds * s->round_micro_batches == s->micro_batches);
    *out = s;
    return LH_OK;
}

/* Appends a row, for which schedule_new has made room. */
static void schedule_row_add(schedule_t *s, uint32_t program, uint32_t chunk, uint32_t micro_batch,
                             uint32_t frame)
{
    lh_assert(s->rows != NULL && program < SCHEDULE_PROGRAMS);
    s->rows[s->count++] = (schedule_row_t){program, chunk, micro_batch, frame, 0};
}

/* One frame: a micro-batch comes back before the next one goes. */
lh_status_t schedule_depth(uint32_t micro_batches, schedule_t **out)
{
    lh_assert(micro_batches > 0);
    schedule_t *s;
    const lh_status_t status = schedule_new("depth-first", 2 * (uint64_t)micro_batches, &s);
    if (status != LH_OK) return status;
    for (uint32_t m = 0; m < micro_batches; m++) {
        schedule_row_add(s, SCHEDULE_FORWARD, 0, m, 0);
        schedule_row_add(s, SCHEDULE_BACKWARD, 0, m, 0);
    }
    return schedule_finish(s, out);
}

/* Appends a row for each micro-batch, in frames of their own. */
static void schedule_rows_add(schedule_t *s, uint32_t program, uint32_t chunk,
                              uint32_t micro_batches)
{
    for (uint32_t m = 0; m < micro_batches; m++)
        schedule_row_add(s, program, chunk, m, m);
}

/* Each part, or leg of a block, is a chunk, and frame m is micro-batch m's: all are under way at once,
 * which is what this order costs in memory. */
lh_status_t schedule_breadth(uint32_t blocks, uint32_t leg_blocks, uint32_t legs, bool halves,
                             uint32_t micro_batches, schedule_t **out)
{
    lh_assert(micro_batches > 0 && leg_blocks <= blocks && (leg_blocks == 0 || legs > 0));
    lh_assert(!halves || blocks > 0);
    schedule_t *s;
    const uint32_t chunks = blocks + 2 + leg_blocks * (legs - 1);
    /* Of the first block, whose chunks stand behind chunk 0. */
    const uint32_t in_two = !halves ? 0 : leg_blocks > 0 ? legs : 1;
    const uint64_t rows = (2 * (uint64_t)chunks + in_two) * micro_batches;
    const lh_status_t status = schedule_new("breadth-first", rows, &s);
    if (status != LH_OK) return status;
    s->leg_blocks = leg_blocks;
    s->legs = legs;
    s->halves = halves;
    for (uint32_t c = 0; c < chunks; c++)
        schedule_rows_add(s, SCHEDULE_FORWARD, c, micro_batches);
    for (uint32_t c = chunks; c-- > 0;)
        schedule_rows_add(s, c > 0 && c <= in_two ? SCHEDULE_BACKWARD_INPUT : SCHEDULE_BACKWARD, c,
                          micro_batches);
    for (uint32_t c = in_two; c > 0; c--)
        schedule_rows_add(s, SCHEDULE_BACKWARD_WEIGHTS, c, micro_batches);
    return schedule_finish(s, out);
}

lh_status_t schedule_forward(uint32_t micro_batches, schedule_t **out)
{
    lh_assert(micro_batches > 0);
    schedule_t *s;
    const lh_status_t status = schedule_new("forward", micro_batches, &s);
    if (status != LH_OK) return status;
    s->forward_only = true;
    for (uint32_t m = 0; m < micro_batches; m++)
        schedule_row_add(s, SCHEDULE_FORWARD, 0, m, 0);
    return schedule_finish(s, out);
}

/* ---- tables of a user's own ---- */

static const struct {
    const char *name;
    uint32_t limit; /* the first number that is too large */
} fields[FIELDS] = {{"program", SCHEDULE_PROGRAMS},
                    {"chunk", SCHEDULE_CHUNKS},
                    {"micro_batch", SCHEDULE_MICRO_BATCHES},
                    {"frame", SCHEDULE_MICRO_BATCHES}};
static const char head[] = "program,chunk,micro_batch,frame";

/* A line, or a field of a line, without blanks around it. */
typedef struct found {
    const char *at;
    size_t length;
} found_t;

static found_t field_trimmed(const char *at, const char *end)
{
    while (at < end && isspace((unsigned char)*at))
        at++;
    while (end > at && isspace((unsigned char)end[-1]))
        end--;
    return (found_t){at, (size_t)(end - at)};
}

static bool field_is(found_t f, const char *text)
{
    return f.length == strlen(text) && memcmp(f.at, text, f.length) == 0;
}

/* How many letters of a field a sentence shows. */
static int field_shown(found_t f)
{
    return f.length < FOUND ? (int)f.length : FOUND;
}

/* A whole number below `limit`, in digits only. */
static bool digits_read(found_t f, uint32_t limit, uint32_t *out)
{
    uint64_t value = 0;
    for (size_t i = 0; i < f.length; i++) {
        if (f.at[i] < '0' || f.at[i] > '9') return false;
        value = value * 10 + (uint64_t)(f.at[i] - '0');
        if (value >= limit) return false;
    }
    *out = (uint32_t)value;
    return f.length > 0;
}

static bool program_of(found_t f, uint32_t *out)
{
    for (uint32_t i = 0; i < SCHEDULE_PROGRAMS; i++) {
        if (!field_is(f, schedule_programs[i])) continue;
        *out = i;
        return true;
    }
    return false;
}

/* A row: four fields, with blanks around them. A wrong field is refused first, then a wrong number
 * of fields. */
static lh_status_t row_parse(const char *name, uint32_t line, found_t text, schedule_row_t *out)
{
    uint32_t values[FIELDS], count = 0;
    const char *at = text.at, *end = text.at + text.length;
    for (bool more = true; more; count++) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const found_t f = field_trimmed(at, comma == NULL ? end : comma);
        more = comma != NULL;
        at = more ? comma + 1 : end;
        if (count >= FIELDS) continue;
        if (count == 0 && !program_of(f, &values[0]))
            return fail(LH_INVALID,
                        "%s:%u: program '%.*s', expected forward, backward, backward_input or "
                        "backward_weights",
                        name, line, field_shown(f), f.at);
        if (count > 0 && !digits_read(f, fields[count].limit, &values[count]))
            return fail(LH_INVALID, "%s:%u: %s '%.*s', expected a whole number from 0 to %u", name,
                        line, fields[count].name, field_shown(f), f.at, fields[count].limit - 1);
    }
    if (count != FIELDS)
        return fail(LH_INVALID, "%s:%u: %u fields, expected %d: %s", name, line, count, FIELDS,
                    head);
    *out = (schedule_row_t){values[0], values[1], values[2], values[3], line};
    return LH_OK;
}

/* Appends a row for each line behind the first, which names the fields. */
static lh_status_t lines_parse(schedule_t *s, const char *text, size_t length)
{
    size_t capacity = 0;
    uint32_t line = 0;
    bool headed = false;
    const char *end = text + length;
    for (const char *at = text; at < end;) {
        const char *feed = memchr(at, '\n', (size_t)(end - at));
        const found_t f = field_trimmed(at, feed == NULL ? end : feed);
        at = feed == NULL ? end : feed + 1;
        line++;
        if (f.length == 0 || f.at[0] == '#') continue;
        if (!headed && !field_is(f, head))
            return fail(LH_INVALID, "%s:%u: '%.*s', expected the names of the fields: %s", s->name,
                        line, field_shown(f), f.at, head);
        if (!headed) {
            headed = true;
            continue;
        }
        if (s->count == SCHEDULE_ROWS)
            return fail(LH_INVALID, "%s:%u: more rows than the %d that are read", s->name, line,
                        SCHEDULE_ROWS);
        schedule_row_t *rows = mem_grow(s->rows, &capacity, s->count + 1u, sizeof(*rows));
        if (rows == NULL) return LH_NO_MEMORY;
        s->rows = rows;
        const lh_status_t status = row_parse(s->name, line, f, &s->rows[s->count]);
        if (status != LH_OK) return status;
        s->count++;
    }
    return LH_OK;
}

lh_status_t schedule_parse(const char *name, const char *text, size_t length, schedule_t **out)
{
    schedule_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;
    s->name = mem_text(name);
    const lh_status_t status = s->name == NULL ? LH_NO_MEMORY : lines_parse(s, text, length);
    if (status == LH_OK) return schedule_finish(s, out);
    schedule_free(s);
    return status;
}

lh_status_t schedule_read(const char *path, schedule_t **out)
{
    char *text;
    size_t length;
    lh_status_t status = file_read(path, FILE_BYTES, &text, &length);
    if (status != LH_OK) return status;
    status = schedule_parse(path, text, length, out);
    mem_free(text);
    return status;
}

/* ---- chunks of a model ---- */

/* Chunks where each part is one, or several in legs. */
static uint32_t chunks_of_parts(const schedule_t *s, uint32_t blocks)
{
    return blocks + 2 + s->leg_blocks * (s->legs - 1);
}

/* There may be 1 to `blocks` chunks, or one for each part. With blocks + 1 a chunk would have no
 * block. A table with legs was made for these blocks. */
lh_status_t schedule_fits(const schedule_t *s, uint32_t blocks)
{
    lh_assert(s->leg_blocks == 0 || s->chunks == chunks_of_parts(s, blocks));
    if (s->chunks == 1 || s->chunks <= blocks || s->chunks == chunks_of_parts(s, blocks))
        return LH_OK;
    return fail(LH_INVALID,
                "%s: cuts the model into %u chunks, expected are 1 to %u, or %u with the embedding "
                "and the head by themselves: it has %u blocks",
                s->name, s->chunks, blocks > 0 ? blocks : 1, blocks + 2, blocks);
}

void schedule_parts(const schedule_t *s, uint32_t blocks, uint32_t chunk, uint32_t *first,
                    uint32_t *end)
{
    lh_assert(chunk < s->chunks);
    if (s->chunks == chunks_of_parts(s, blocks)) {
        const uint32_t in_legs = s->leg_blocks * s->legs;
        *first = chunk > 0 && chunk <= in_legs ? 1 + (chunk - 1) / s->legs
                 : chunk > 0                   ? chunk - in_legs + s->leg_blocks
                                               : 0;
        *end = *first + 1;
        return;
    }
    const uint64_t all = blocks;
    *first = chunk == 0 ? 0 : 1 + (uint32_t)(all * chunk / s->chunks);
    *end = chunk + 1 == s->chunks ? blocks + 2 : 1 + (uint32_t)(all * (chunk + 1) / s->chunks);
}

/* The embedding is chunk 0, the first blocks' legs stand behind it. */
uint32_t schedule_leg(const schedule_t *s, uint32_t chunk)
{
    lh_assert(chunk < s->chunks);
    return chunk > 0 && chunk <= s->leg_blocks * s->legs ? (chunk - 1) % s->legs : 0;
}
