/* plugin/probe.h - a plugin is tried in a child first, so that one that crashes, hangs or leaves
 * when it is loaded costs a sentence, not the run. It is no prison: code that means harm is kept
 * out by who may write the file and by its pinned digest. So what it starts is taken away with the
 * child, but may leave the child's group and live on, as it could once the plugin is loaded. */
#ifndef PLUGIN_PROBE_H
#define PLUGIN_PROBE_H

#include <base/status.h>

enum { PROBE_MS = 5000 }; /* how long an attempt may take where nobody says otherwise */

/* Where the child stands, for the sentence when it dies there. */
enum { PROBE_LOADING = 1, PROBE_TABLES = 2, PROBE_SELFTEST = 3 };

typedef struct prober {
    const char *path;   /* begins every sentence                                          */
    const char *sha256; /* what was found good once in this process is not tried again    */
    uint32_t limit_ms;  /* of the whole attempt, by the parent's clock                    */
    /* Runs in the child only; its sentence becomes the caller's. */
    lh_status_t (*attempt)(void *context);
    void *context;
} prober_t;

/* LH_OK where the attempt ended well; else its status, or LH_ABI and how the child ended. */
lh_status_t probe(const prober_t *p) LH_MUST_CHECK;
/* The attempt says how far it is: PROBE_*. Does nothing where no child tries anything. */
void probe_reached(uint32_t stage);
bool probe_is_child(void); /* this process is one that tries a plugin */

#endif
