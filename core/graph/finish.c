/* finish.c - frees regions before the engine is closed; closing finds them empty. */
#include <graph/finish.h>

#include <graph/engine_state.h>

/* A frozen parameter has no master: its value is all there is of it. */
static bool has_master(const weights_t *w)
{
    if (w->master == NULL) return false;
    for (uint32_t i = 0; i < w->parameters->count; i++)
        if (w->value->pieces[i].present && !w->master->pieces[i].present) return false;
    return true;
}

lh_status_t engine_finish(engine_t *e)
{
    const lh_status_t status = engine_wait(e);
    if (status != LH_OK) return status;
    region_t *const list[] = {&e->scratch, &e->inputs, &e->outputs, &e->constants, &e->caches};
    for (uint32_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
        region_release(list[i], e->api);
    for (uint32_t i = 0; i < ARENAS; i++)
        region_release(&e->arenas[i], e->api);
    for (uint32_t i = 0; i < e->weights_count; i++) {
        weights_t *w = e->weights[i];
        if (w->grad != NULL) region_release(&w->grad->region, e->api);
        if (has_master(w)) region_release(&w->value->region, e->api);
    }
    return LH_OK;
}

void weights_release(weights_t *w, uint32_t space)
{
    if (space == SPACE_PARAMETER && has_master(w))
        region_release(&w->master->region, w->engine->api);
    for (uint32_t i = 0; i < w->store_count; i++)
        if (w->stores[i]->holds == LH_HOLDS_STATE && w->stores[i]->state + SPACE_STATE == space)
            region_release(&w->stores[i]->region, w->engine->api);
}
