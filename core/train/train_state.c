/* train_state.c - what opening, the loop and the saves do alike with the state of a run. */
#include <train/train_state.h>

#include <base/sys.h>

/* Each byte counts twice, as JSON writes a line feed as two. */
uint64_t trainer_manifest_head(const trainer_t *t)
{
    enum { REST = 8192 }; /* plugins, names, numbers */
    return 2 * (t->identity.length + t->variants.length + t->devices.length) + REST;
}

void trainer_doing(const trainer_t *t, uint64_t step, const char *text)
{
    if (t->how->control != NULL) control_progress(t->how->control, step, text);
}

void trainer_clock(trainer_t *t, uint32_t part, uint64_t *since)
{
    lh_assert(part < STEP_PARTS);
    const uint64_t now = sys()->now_ns();
    t->part_ns[part] += now - *since;
    *since = now;
}

bool trainer_stop_asked(const trainer_t *t)
{
    return t->stop || (train_agree_size(&t->agree) == 1 && sys_stop_requested());
}
