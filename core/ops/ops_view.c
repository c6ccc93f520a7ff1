/* ops_view.c - columns, concatenation, repetition and heads: shapes, gradients, copies.
 *
 * A row [w] is seen as groups of equal width: [t, w] with rows s apart is [t, groups, w / groups]
 * with strides [s, w / groups, 1], and some columns of each group are [t, groups, count] with the
 * same strides, `from` elements further on. So every one of these ops is one copy between two such
 * parts, or one for each of its inputs. */
#include <ops/ops_view.h>

#include <ops/op_rows.h>

static const lh_option_t columns_attributes[] = {
    LH_OPTION_U32(lh_columns_t, groups, "groups", "1", NULL, "equal parts of a row: heads"),
    LH_OPTION_U64(lh_columns_t, from, "from", "0", NULL, "first column of each part"),
    LH_OPTION_U64(lh_columns_t, count, "count", "0", NULL, "columns of each; 0: all behind from"),
    LH_OPTION_U64(lh_columns_t, width, "width", "0", NULL, "columns of x in all; 0: as x has"),
};
static const lh_option_t concat_attributes[] = {
    LH_OPTION_U32(lh_concat_t, groups, "groups", "1", NULL, "equal parts of a row: heads"),
    LH_OPTION_CHOICE(lh_concat_t, shared, "shared", "no", "no|yes", "b is one part for all"),
};
static const lh_option_t repeat_attributes[] = {
    LH_OPTION_U32(lh_repeat_t, times, "times", NULL, "1..65536", "how often"),
};
static const lh_option_t heads_attributes[] = {
    LH_OPTION_U64(lh_heads_t, width, "width", NULL, NULL, "columns of a row of y"),
};

/* ---- columns ---- */

/* complete(): one group, all columns behind the first, and of columns the width of x. */
static void columns_complete(void *attributes, const lh_arg_t *args)
{
    lh_columns_t *how = attributes;
    if (how->groups == 0) how->groups = 1;
    if (args[0].rank != 2) return;
    if (how->width == 0) how->width = args[0].shape[1];
    const uint64_t part = how->width / how->groups;
    if (how->count == 0 && how->from < part) how->count = part - how->from;
}

/* Of columns_grad: width is given, count follows from gy. */
static void columns_grad_complete(void *attributes, const lh_arg_t *args)
{
    lh_columns_t *how = attributes;
    if (how->groups == 0) how->groups = 1;
    if (args[0].rank == 2 && how->count == 0) how->count = args[0].shape[1] / how->groups;
}

/* Whether the columns lie within a part of a row of `width`. */
static lh_status_t columns_fit(const char *op, const lh_columns_t *how)
{
    if (how->groups == 0 || how->width % how->groups != 0)
        return fail(LH_INVALID, "%s: %llu columns are not %u equal parts", op,
                    (unsigned long long)how->width, how->groups);
    const uint64_t part = how->width / how->groups;
    if (how->count == 0 || how->from >= part || how->count > part - how->from)
        return fail(LH_INVALID, "%s: columns %llu to %llu of %llu", op,
                    (unsigned long long)how->from, (unsigned long long)(how->from + how->count),
                    (unsigned long long)part);
    return LH_OK;
}

/* x [t, w] gives y [t, groups * count]. */
static lh_status_t columns_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                 uint32_t arg_count)
{
    (void)host, (void)arg_count;
    LH_SLOTS(LH_COLUMNS_TEXT);
    const lh_columns_t *how = attributes;
    const arg_rule_t rule = {"x", FLOATS, 2, {ANY, how->width}};
    lh_status_t status = op_args_check("columns", args, &rule, 1);
    if (status == LH_OK) status = columns_fit("columns", how);
    if (status != LH_OK) return status;
    op_arg_set(&args[out_y], args[in_x].dtype, 2, args[in_x].shape[0], how->groups * how->count);
    return LH_OK;
}

/* gy [t, groups * count] gives gx [t, width]. */
static lh_status_t columns_grad_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                      uint32_t arg_count)
{
    (void)host, (void)arg_count;
    LH_SLOTS(LH_COLUMNS_GRAD_TEXT);
    const lh_columns_t *how = attributes;
    lh_status_t status = columns_fit("columns_grad", how);
    const arg_rule_t rule = {"gy", FLOATS, 2, {ANY, how->groups * how->count}};
    if (status == LH_OK) status = op_args_check("columns_grad", args, &rule, 1);
    if (status != LH_OK) return status;
    op_arg_set(&args[out_gx], args[in_gy].dtype, 2, args[in_gy].shape[0], how->width);
    return LH_OK;
}

/* The attributes have been completed, so the gradient finds the width of x in them. */
static void columns_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                             const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)forward;
    if (wanted[0]) into[0] = op_record(g, "columns_grad", attributes, from[0], 0);
}

/* A rank's heads are whole parts; a part is never cut. */
static lh_status_t groups_split(const char *op, uint32_t groups, uint32_t ways)
{
    if (groups % ways == 0) return LH_OK;
    return fail(LH_UNSUPPORTED, "%s: %u parts of a row are not for %u ranks", op, groups, ways);
}

static lh_status_t columns_split(const lh_host_t *host, const void *attributes, uint32_t part,
                                 uint32_t ways, void *out)
{
    (void)host, (void)part;
    const lh_columns_t *how = attributes;
    lh_columns_t *one = out;
    const lh_status_t status = groups_split("columns", how->groups, ways);
    if (status != LH_OK) return status;
    *one = *how;
    one->groups /= ways;
    one->width /= ways;
    return LH_OK;
}

/* ---- concat ---- */

static void concat_complete(void *attributes, const lh_arg_t *args)
{
    (void)args;
    lh_concat_t *how = attributes;
    if (how->groups == 0) how->groups = 1;
}

/* Whether an input is one part, which all groups get. */
static bool is_shared(const lh_concat_t *how, uint32_t slot)
{
    LH_SLOTS(LH_CONCAT_TEXT);
    return slot == in_b && how->shared != 0;
}

/* Columns of a part of y that an input of `width` columns gives. */
static uint64_t part_width(const lh_concat_t *how, uint32_t slot, uint64_t width)
{
    return is_shared(how, slot) ? width : width / how->groups;
}

/* a, b, c and d of as many rows give y, as wide as all of them. */
static lh_status_t concat_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                uint32_t arg_count)
{
    (void)host, (void)arg_count;
    LH_SLOTS(LH_CONCAT_TEXT);
    const lh_concat_t *how = attributes;
    const uint64_t t = args[in_a].shape[0];
    const uint32_t same = IS(args[in_a].dtype);
    const arg_rule_t rules[] = {{"a", FLOATS, 2, {ANY, ANY}},
                                {"b", same, 2, {t, ANY}},
                                {"c", same, 2, {t, ANY}},
                                {"d", same, 2, {t, ANY}}};
    const lh_status_t status = op_args_check("concat", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    uint64_t width = 0;
    for (uint32_t i = in_a; i <= in_d; i++) {
        const uint64_t w = args[i].shape[1];
        if (args[i].dtype == LH_DTYPE_NONE) continue;
        if (how->groups == 0 || w > UINT64_MAX / 4 / how->groups ||
            (!is_shared(how, i) && w % how->groups != 0))
            return fail(LH_INVALID, "concat: %llu columns of input %s are not %u equal parts",
                        (unsigned long long)w, rules[i].slot, how->groups);
        width += how->groups * part_width(how, i, w);
    }
    op_arg_set(&args[out_y], args[in_a].dtype, 2, t, width);
    return LH_OK;
}

/* Each input's columns of gy. */
static void concat_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                            const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    LH_SLOTS(LH_CONCAT_TEXT);
    const lh_concat_t *how = attributes;
    uint64_t at = 0;
    for (uint32_t i = in_a; i <= in_d; i++) {
        lh_arg_t arg;
        if (forward[i] == 0 || g->api->shape(g, forward[i], &arg) != LH_OK) continue;
        const uint64_t count = part_width(how, i, arg.shape[1]);
        const lh_columns_t part = {sizeof(part), how->groups, at, count, 0};
        const lh_repeat_t all = {sizeof(all), how->groups};
        if (wanted[i]) into[i] = op_record(g, "columns", &part, from[0], 0);
        if (wanted[i] && is_shared(how, i) && how->groups > 1)
            into[i] = op_record(g, "repeat_grad", &all, into[i], 0);
        at += count;
    }
}

static lh_status_t concat_split(const lh_host_t *host, const void *attributes, uint32_t part,
                                uint32_t ways, void *out)
{
    (void)host, (void)part;
    const lh_concat_t *how = attributes;
    lh_concat_t *one = out;
    const lh_status_t status = groups_split("concat", how->groups, ways);
    if (status != LH_OK) return status;
    *one = *how;
    one->groups /= ways;
    return LH_OK;
}

/* ---- repeat ---- */

static void repeat_complete(void *attributes, const lh_arg_t *args)
{
    (void)args;
    lh_repeat_t *how = attributes;
    if (how->times == 0) how->times = 1;
}

static bool repeat_vanishes(const void *attributes)
{
    return ((const lh_repeat_t *)attributes)->times == 1;
}

/* x [t, w] gives y [t, times * w]. */
static lh_status_t repeat_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                uint32_t arg_count)
{
    (void)host, (void)arg_count;
    LH_SLOTS(LH_REPEAT_TEXT);
    const lh_repeat_t *how = attributes;
    const lh_arg_t *x = &args[in_x];
    const arg_rule_t rule = {"x", FLOATS, 2, {ANY, ANY}};
    const lh_status_t status = op_args_check("repeat", args, &rule, 1);
    if (status != LH_OK) return status;
    if (how->times == 0 || x->shape[1] > UINT64_MAX / how->times)
        return fail(LH_INVALID, "repeat: %llu columns %u times", (unsigned long long)x->shape[1],
                    how->times);
    op_arg_set(&args[out_y], x->dtype, 2, x->shape[0], how->times * x->shape[1]);
    return LH_OK;
}

/* gy [t, times * w] gives gx [t, w]. */
static lh_status_t repeat_grad_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                     uint32_t arg_count)
{
    (void)host, (void)arg_count;
    LH_SLOTS(LH_REPEAT_GRAD_TEXT);
    const lh_repeat_t *how = attributes;
    const lh_arg_t *gy = &args[in_gy];
    const arg_rule_t rule = {"gy", FLOATS, 2, {ANY, ANY}};
    const lh_status_t status = op_args_check("repeat_grad", args, &rule, 1);
    if (status != LH_OK) return status;
    if (how->times == 0 || gy->shape[1] % how->times != 0)
        return fail(LH_INVALID, "repeat_grad: %llu columns are not %u equal parts",
                    (unsigned long long)gy->shape[1], how->times);
    op_arg_set(&args[out_gx], gy->dtype, 2, gy->shape[0], gy->shape[1] / how->times);
    return LH_OK;
}

static void repeat_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                            const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)forward;
    if (wanted[0]) into[0] = op_record(g, "repeat_grad", attributes, from[0], 0);
}

static lh_status_t repeat_split(const lh_host_t *host, const void *attributes, uint32_t part,
                                uint32_t ways, void *out)
{
    (void)host, (void)attributes, (void)part, (void)out;
    return fail(LH_UNSUPPORTED, "repeat: a row is not cut for %u ranks before it is repeated",
                ways);
}

/* ---- heads ---- */

/* x [t, w] gives y [t * w / width, width]: rows are cut into heads, or heads joined to rows. */
static lh_status_t heads_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                               uint32_t arg_count)
{
    (void)host, (void)arg_count;
    LH_SLOTS(LH_HEADS_TEXT);
    const uint64_t width = ((const lh_heads_t *)attributes)->width;
    const uint64_t t = args[in_x].shape[0], w = args[in_x].shape[1];
    const arg_rule_t rule = {"x", FLOATS, 2, {ANY, ANY}};
    const lh_status_t status = op_args_check("heads", args, &rule, 1);
    if (status != LH_OK) return status;
    if (width == 0 || (w % width != 0 && (width % w != 0 || t % (width / w) != 0)))
        return fail(LH_INVALID, "heads: [%llu, %llu] can't be rows of %llu", (unsigned long long)t,
                    (unsigned long long)w, (unsigned long long)width);
    const uint64_t rows = w % width == 0 ? t * (w / width) : t / (width / w);
    op_arg_set(&args[out_y], args[in_x].dtype, 2, rows, width);
    return LH_OK;
}

static void heads_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                           const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)attributes;
    lh_arg_t x;
    if (!wanted[0] || g->api->shape(g, forward[0], &x) != LH_OK) return;
    const lh_heads_t back = {sizeof(back), 0, x.shape[1]};
    into[0] = op_record(g, "heads", &back, from[0], 0);
}

/* ---- copies ---- */

/* `count` columns of each of `groups` parts of rows of an argument [t, w]; a part begins `step`
 * elements behind the one before. */
static lh_arg_t parts_of(const lh_arg_t *arg, uint64_t groups, uint64_t step, uint64_t count)
{
    if (groups == 1)
        return (lh_arg_t){.dtype = arg->dtype,
                          .rank = 2,
                          .shape = {arg->shape[0], count},
                          .stride = {arg->stride[0], 1}};
    return (lh_arg_t){.dtype = arg->dtype,
                      .rank = 3,
                      .shape = {arg->shape[0], groups, count},
                      .stride = {arg->stride[0], step, 1}};
}

/* Rows of an argument, `joined` of them taken together: [t / joined, joined, w]. */
static lh_arg_t rows_of(const lh_arg_t *arg, uint64_t joined)
{
    return (lh_arg_t){.dtype = arg->dtype,
                      .rank = 3,
                      .shape = {arg->shape[0] / joined, joined, arg->shape[1]},
                      .stride = {joined * arg->stride[0], arg->stride[0], 1}};
}

static void columns_move(const lh_columns_t *how, const lh_arg_t *wide, const lh_arg_t *narrow,
                         lh_arg_t *of_wide, lh_arg_t *of_narrow)
{
    *of_wide = parts_of(wide, how->groups, how->width / how->groups, how->count);
    *of_narrow = parts_of(narrow, how->groups, how->count, how->count);
}

/* Inputs that are left out have no copy. */
static bool concat_move(const lh_concat_t *how, const lh_arg_t *args, uint32_t index,
                        op_move_t *out)
{
    LH_SLOTS(LH_CONCAT_TEXT);
    uint64_t at = 0;
    for (uint32_t i = in_a; i <= in_d; i++) {
        if (args[i].dtype == LH_DTYPE_NONE) continue;
        const uint64_t count = part_width(how, i, args[i].shape[1]);
        if (index-- == 0) {
            *out = (op_move_t){.in = i, .out = out_y, .to_at = at};
            out->from = parts_of(&args[i], how->groups, is_shared(how, i) ? 0 : count, count);
            out->to = parts_of(&args[out_y], how->groups, args[out_y].shape[1] / how->groups,
                               count);
            return true;
        }
        at += count;
    }
    return false;
}

static void heads_move(const lh_arg_t *x, const lh_arg_t *y, op_move_t *out)
{
    const uint64_t w = x->shape[1], width = y->shape[1];
    if (width <= w) {
        out->from = parts_of(x, w / width, width, width);
        out->to = w == width ? parts_of(y, 1, width, width) : rows_of(y, w / width);
    } else {
        out->from = rows_of(x, width / w);
        out->to = parts_of(y, width / w, w, w);
    }
}

bool op_view_move(uint32_t view, const void *attributes, const lh_arg_t *args, uint32_t index,
                  op_move_t *out)
{
    const lh_arg_t *x = &args[0], *y = &args[1];
    const lh_columns_t *columns = attributes;
    const lh_repeat_t *repeat = attributes;
    if (view == VIEW_CONCAT) return concat_move(attributes, args, index, out);
    *out = (op_move_t){.in = 0, .out = 1};
    switch (view) {
    case VIEW_COLUMNS:
        columns_move(columns, x, y, &out->from, &out->to);
        out->from_at = columns->from;
        return index == 0;
    case VIEW_COLUMNS_GRAD:
        columns_move(columns, y, x, &out->to, &out->from);
        out->to_at = columns->from;
        return index == 0;
    case VIEW_REPEAT: /* the same part again and again */
        out->from = parts_of(x, repeat->times, 0, x->shape[1]);
        out->to = parts_of(y, repeat->times, x->shape[1], x->shape[1]);
        return index == 0;
    case VIEW_REPEAT_GRAD:
        out->from = parts_of(x, 1, 0, y->shape[1]);
        out->from_at = index * y->shape[1];
        out->to = parts_of(y, 1, 0, y->shape[1]);
        out->add = index > 0;
        return index < repeat->times;
    default:
        lh_assert(view == VIEW_HEADS);
        heads_move(x, y, out);
        return index == 0;
    }
}

/* Bytes of one copy; a view costs none, and no call is made of it. */
static void view_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                      lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, 0, args, arg_count);
}

/* In the order of ops_view_kinds below. heads puts columns into other rows; all others leave each
 * row to itself. */
static const lh_op_t rows[] = {
    {
        LH_OP_TEXT(LH_COLUMNS_TEXT),
        ATTRIBUTES(lh_columns_t, columns_attributes),
        .flags = LH_OP_ROWS,
        .shape = columns_shape,
        .cost = view_cost,
        .split = columns_split,
        .gradient = columns_gradient,
        .complete = columns_complete,
    },
    {
        LH_OP_TEXT(LH_COLUMNS_GRAD_TEXT),
        ATTRIBUTES(lh_columns_t, columns_attributes),
        .flags = LH_OP_ROWS,
        .shape = columns_grad_shape,
        .cost = view_cost,
        .split = columns_split,
        .complete = columns_grad_complete,
    },
    {
        LH_OP_TEXT(LH_CONCAT_TEXT),
        ATTRIBUTES(lh_concat_t, concat_attributes),
        .flags = LH_OP_ROWS,
        .shape = concat_shape,
        .cost = view_cost,
        .split = concat_split,
        .gradient = concat_gradient,
        .complete = concat_complete,
    },
    {
        LH_OP_TEXT(LH_REPEAT_TEXT),
        ATTRIBUTES(lh_repeat_t, repeat_attributes),
        .flags = LH_OP_ROWS,
        .shape = repeat_shape,
        .cost = view_cost,
        .split = repeat_split,
        .gradient = repeat_gradient,
        .complete = repeat_complete,
        .vanishes = repeat_vanishes,
    },
    {
        LH_OP_TEXT(LH_REPEAT_GRAD_TEXT),
        ATTRIBUTES(lh_repeat_t, repeat_attributes),
        .flags = LH_OP_ROWS,
        .shape = repeat_grad_shape,
        .cost = view_cost,
        .split = repeat_split,
        .complete = repeat_complete,
    },
    {
        LH_OP_TEXT(LH_HEADS_TEXT),
        ATTRIBUTES(lh_heads_t, heads_attributes),
        .shape = heads_shape,
        .cost = view_cost,
        .gradient = heads_gradient,
    },
};

const uint32_t ops_view_kinds[] = {
    VIEW_COLUMNS, VIEW_COLUMNS_GRAD, VIEW_CONCAT, VIEW_REPEAT, VIEW_REPEAT_GRAD, VIEW_HEADS,
};

_Static_assert(COUNT(ops_view_kinds) == COUNT(rows), "a kind for each row");

const op_rows_t ops_view = {rows, COUNT(rows)};
