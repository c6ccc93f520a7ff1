/* blend.c - parses a weighted list of data sets and mixes them. */
#include <data/blend.h>

#include <math.h>
#include <stdlib.h>

#include <base/memory.h>
#include <base/text.h>

/* "name:weight" or "name"; a colon inside a folder's name is none of ours. */
static lh_status_t part_parse(char *text, blend_part_t *out, bool *has_weight)
{
    char *colon = strrchr(text, ':');
    *has_weight = colon != NULL && strchr(colon, '/') == NULL;
    out->weight = 1;
    if (*has_weight) {
        char *end;
        out->weight = strtod(colon + 1, &end);
        if (*text_trim(colon + 1) == '\0' || *text_trim(end) != '\0' || !(out->weight > 0) ||
            out->weight > 1e15)
            return fail(LH_INVALID,
                        "data set '%s': '%s' is no weight, a number above 0 is expected", text,
                        colon + 1);
        *colon = '\0';
    }
    const char *name = text_trim(text);
    if (*name == '\0') return fail(LH_INVALID, "a data set of a blend has no name");
    if (strlen(name) >= BLEND_NAME)
        return fail(LH_INVALID, "data set '%.64s...': a name of %zu bytes, at most %d are allowed",
                    name, strlen(name), BLEND_NAME - 1);
    memcpy(out->name, name, strlen(name) + 1);
    return LH_OK;
}

static lh_status_t parts_parse(char *text, blend_list_t *list)
{
    uint32_t weights = 0;
    double sum = 0;
    char *rest = NULL;
    for (char *part = strtok_r(text, ",", &rest); part != NULL; part = strtok_r(NULL, ",", &rest)) {
        bool has_weight;
        if (list->count == BLEND_SETS)
            return fail(LH_INVALID, "more than %d data sets in a blend", BLEND_SETS);
        const lh_status_t status = part_parse(part, &list->parts[list->count], &has_weight);
        if (status != LH_OK) return status;
        sum += list->parts[list->count++].weight;
        weights += has_weight ? 1 : 0;
    }
    if (list->count == 0) return fail(LH_INVALID, "no data set is named");
    if (list->count > 1 && weights != list->count)
        return fail(LH_INVALID,
                    "%u of %u data sets have a weight; each needs one, as in a:0.7, b:0.3", weights,
                    list->count);
    for (uint32_t i = 0; i < list->count; i++)
        list->parts[i].weight /= sum;
    return LH_OK;
}

lh_status_t blend_parse(const char *text, blend_list_t *out)
{
    blend_list_t list = {.parts = mem_array(BLEND_SETS, sizeof(*list.parts))};
    char *copy = mem_text(text);
    lh_status_t status = LH_NO_MEMORY;
    if (list.parts != NULL && copy != NULL) status = parts_parse(copy, &list);
    mem_free(copy);
    if (status != LH_OK) {
        blend_list_free(&list);
        return status;
    }
    *out = list;
    return LH_OK;
}

void blend_list_free(blend_list_t *list)
{
    mem_free(list->parts);
    *list = (blend_list_t){0};
}

uint64_t blend_wanted(double weight, uint64_t samples)
{
    return (uint64_t)ceil(ceil((double)samples * weight) * 1.005);
}

lh_status_t blend_new(const blend_list_t *list, uint64_t samples, blend_t *out)
{
    if (samples >= UINT32_MAX)
        return fail(LH_INVALID, "a blend of %llu samples, at most %u are possible",
                    (unsigned long long)samples, UINT32_MAX - 1);
    blend_t b = {.count = samples};
    b.set = mem_array(samples, sizeof(*b.set));
    b.sample = mem_array(samples, sizeof(*b.sample));
    uint64_t *taken = mem_array(list->count, sizeof(*taken));
    if (b.set == NULL || b.sample == NULL || taken == NULL) {
        mem_free(taken);
        blend_free(&b);
        return LH_NO_MEMORY;
    }
    for (uint64_t i = 0; i < samples; i++) {
        const double at = i == 0 ? 1.0 : (double)i;
        uint32_t furthest = 0;
        double most = -INFINITY;
        for (uint32_t k = 0; k < list->count; k++) {
            const double behind = list->parts[k].weight * at - (double)taken[k];
            if (behind > most) {
                most = behind;
                furthest = k;
            }
        }
        b.set[i] = (uint16_t)furthest;
        b.sample[i] = (uint32_t)taken[furthest]++;
    }
    mem_free(taken);
    *out = b;
    return LH_OK;
}

void blend_free(blend_t *blend)
{
    mem_free(blend->sample);
    mem_free(blend->set);
    *blend = (blend_t){0};
}
