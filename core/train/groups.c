/* groups.c - sorts parameters by the globs of [group.NAME]. */
#include <train/groups.h>

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>

#include <base/memory.h>

static bool matches(const char *globs, const char *name)
{
    char list[512], *rest = NULL;
    if (globs == NULL || snprintf(list, sizeof(list), "%s", globs) >= (int)sizeof(list))
        return false;
    for (char *glob = strtok_r(list, ",", &rest); glob != NULL; glob = strtok_r(NULL, ",", &rest))
        if (fnmatch(text_trim(glob), name, 0) == 0) return true;
    return false;
}

/* A tied parameter is frozen with the one whose memory it shares. */
static void freeze(groups_t *g, const parameters_t *p, uint32_t parameter)
{
    for (uint32_t i = 0; i < p->count; i++)
        if (p->items[i].storage == p->items[parameter].storage) g->frozen[i] = true;
}

static lh_status_t group_fill(groups_t *g, const job_t *job, uint32_t index, const parameters_t *p)
{
    const job_group_t *group = &job->groups[index];
    const double decay = isnan(group->decay) ? job->optimizer.decay : group->decay;
    uint32_t matched = 0;
    g->list[index + 1] = (update_group_t){.rule = 0, .decay = decay};
    g->rates[index + 1] = group->rate;
    for (uint32_t i = 0; i < p->count; i++) {
        if (g->of[i] != 0 || !matches(group->match, p->items[i].name)) continue;
        g->of[i] = index + 1;
        if (group->frozen) freeze(g, p, i);
        matched++;
    }
    if (matched > 0) return LH_OK;
    return fail(LH_INVALID, "%s: [group.%s] match = %s matches no parameter of the model",
                job->path, group->name, group->match);
}

lh_status_t groups_new(const job_t *job, const parameters_t *parameters, groups_t *out)
{
    groups_t g = {.count = job->group_count + 1};
    g.list = mem_array(g.count, sizeof(*g.list));
    g.rates = mem_array(g.count, sizeof(*g.rates));
    g.of = mem_array(parameters->count, sizeof(*g.of));
    g.frozen = mem_array(parameters->count, sizeof(*g.frozen));
    lh_status_t status = LH_OK;
    if (g.list == NULL || g.rates == NULL || g.of == NULL || g.frozen == NULL)
        status = LH_NO_MEMORY;
    if (status == LH_OK) {
        g.list[0] = (update_group_t){.rule = 0, .decay = job->optimizer.decay};
        g.rates[0] = 1;
    }
    for (uint32_t i = 0; status == LH_OK && i < parameters->count; i++) {
        const parameter_t *own = &parameters->items[parameters->items[i].storage];
        if ((own->row->flags & LH_PARAM_FROZEN) != 0) freeze(&g, parameters, i);
    }
    for (uint32_t i = 0; status == LH_OK && i < job->group_count; i++)
        status = group_fill(&g, job, i, parameters);
    if (status != LH_OK) {
        groups_free(&g);
        return status;
    }
    *out = g;
    return LH_OK;
}

void groups_free(groups_t *g)
{
    mem_free(g->list);
    mem_free(g->rates);
    mem_free(g->of);
    mem_free(g->frozen);
    *g = (groups_t){0};
}
