/* snapshot.c - names tensors as <parameter> and <state>/<parameter>. */
#include <train/snapshot.h>

#include <stdio.h>

#include <base/memory.h>

static lh_status_t add_tensor(snapshot_t *s, uint32_t space, uint32_t index)
{
    weights_extent_t extent;
    if (!weights_extent(s->weights, space, index, &extent)) return LH_OK;

    const parameter_t *p = &weights_parameters(s->weights)->items[index];
    const size_t room = strlen(p->name) + (extent.name == NULL ? 0 : strlen(extent.name) + 1) + 1;
    char *name = mem_new(room);
    if (name == NULL) return LH_NO_MEMORY;
    (void)snprintf(name, room, "%s%s%s", extent.name == NULL ? "" : extent.name,
                   extent.name == NULL ? "" : "/", p->name);

    checkpoint_tensor_t *t = &s->tensors[s->count];
    *t = (checkpoint_tensor_t){.name = name, .dtype = LH_DTYPE_F32};
    if (extent.elements == p->elements) {
        t->rank = p->rank;
        memcpy(t->shape, p->shape, sizeof(t->shape));
    } else { /* a state with an extent of its own */
        t->rank = 1;
        t->shape[0] = extent.elements;
    }
    s->names[s->count] = name;
    s->spaces[s->count] = space;
    s->parameters[s->count] = index;
    s->count++;
    return LH_OK;
}

static uint32_t states_of(const weights_t *w, uint32_t index)
{
    weights_extent_t extent;
    uint32_t states = 0;
    while (weights_extent(w, SPACE_STATE + states, index, &extent))
        states++;
    return states;
}

lh_status_t snapshot_new(weights_t *w, snapshot_t **out)
{
    const parameters_t *p = weights_parameters(w);
    snapshot_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;

    uint32_t room = p->count;
    for (uint32_t i = 0; i < p->count; i++)
        room += states_of(w, i);
    s->weights = w;
    s->tensors = mem_array(room, sizeof(*s->tensors));
    s->spaces = mem_array(room, sizeof(*s->spaces));
    s->parameters = mem_array(room, sizeof(*s->parameters));
    s->names = mem_array(room, sizeof(char *));
    lh_status_t status = s->tensors == NULL || s->spaces == NULL || s->parameters == NULL ||
                                 s->names == NULL
                             ? LH_NO_MEMORY
                             : LH_OK;
    for (uint32_t i = 0; i < p->count && status == LH_OK; i++) {
        if (p->items[i].storage != i) continue;
        status = add_tensor(s, SPACE_PARAMETER, i);
        const uint32_t states = states_of(w, i);
        for (uint32_t k = 0; k < states && status == LH_OK; k++)
            status = add_tensor(s, SPACE_STATE + k, i);
    }
    if (status != LH_OK) {
        snapshot_free(s);
        return status;
    }
    *out = s;
    return LH_OK;
}

void snapshot_free(snapshot_t *s)
{
    if (s == NULL) return;
    for (uint32_t i = 0; i < s->count; i++)
        mem_free(s->names[i]);
    mem_free(s->names);
    mem_free(s->parameters);
    mem_free(s->spaces);
    mem_free(s->tensors);
    mem_free(s);
}

static uint64_t elements_of(const checkpoint_tensor_t *t)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < t->rank; i++)
        elements *= t->shape[i];
    return elements;
}

lh_status_t snapshot_take(const snapshot_t *s, writer_t *writer)
{
    for (uint32_t i = 0; i < s->count; i++) {
        const lh_status_t status = weights_read(s->weights, s->spaces[i], s->parameters[i], 0,
                                                elements_of(&s->tensors[i]), LH_DTYPE_F32,
                                                writer_place(writer, i));
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

static void shape_text(uint32_t rank, const uint64_t *shape, char out[96])
{
    int length = snprintf(out, 96, "[");
    for (uint32_t i = 0; i < rank; i++)
        length += snprintf(out + length, 96 - (size_t)length, "%s%llu", i == 0 ? "" : ", ",
                           (unsigned long long)shape[i]);
    (void)snprintf(out + length, 96 - (size_t)length, "]");
}

static lh_status_t load_tensor(const snapshot_t *s, checkpoint_t *from, uint32_t i)
{
    const checkpoint_tensor_t *want = &s->tensors[i];
    const manifest_tensor_t *have = checkpoint_find(from, want->name);
    if (have == NULL)
        return fail(LH_INVALID, "%s: holds no tensor %s, which the model needs", from->path,
                    want->name);
    if (have->rank != want->rank ||
        memcmp(have->shape, want->shape, want->rank * sizeof(*want->shape)) != 0) {
        char found[96], expected[96];
        shape_text(have->rank, have->shape, found);
        shape_text(want->rank, want->shape, expected);
        return fail(LH_INVALID, "%s: %s is %s, the model has %s", from->path, want->name, found,
                    expected);
    }
    const uint64_t elements = elements_of(want);
    const tensor_part_t whole = {.count = 0};
    float *values = mem_array(elements, sizeof(*values));
    if (values == NULL) return LH_NO_MEMORY;

    lh_status_t status = checkpoint_read(from, have, &whole, values);
    if (status == LH_OK)
        status = weights_write(s->weights, s->spaces[i], s->parameters[i], 0, elements,
                               LH_DTYPE_F32, values);
    mem_free(values);
    return status;
}

lh_status_t snapshot_load(const snapshot_t *s, checkpoint_t *from, bool states)
{
    lh_status_t status = checkpoint_refuse_extra(from, weights_parameters(s->weights));
    for (uint32_t i = 0; i < s->count && status == LH_OK; i++)
        if (states || s->spaces[i] == SPACE_PARAMETER) status = load_tensor(s, from, i);
    return status;
}

lh_status_t snapshot_load_weights(weights_t *w, checkpoint_t *from)
{
    snapshot_t *s;
    lh_status_t status = snapshot_new(w, &s);
    if (status != LH_OK) return status;
    status = snapshot_load(s, from, false);
    snapshot_free(s);
    return status;
}
