/* control/control_facts.h - what ranks found before step 0, side by side: who differs. */
#ifndef CONTROL_CONTROL_FACTS_H
#define CONTROL_CONTROL_FACTS_H

#include <control/control_frame.h>

typedef struct rank_facts {
    frame_hello_t hello; /* its texts are owned by whoever calls */
} rank_facts_t;

/* True if all say the same. Else appends a line for each fact that differs: its values and the
 * ranks that have them. */
bool facts_agree(const rank_facts_t *ranks, uint32_t count, text_t *table);

#endif
