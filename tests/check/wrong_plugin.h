/* wrong_plugin.h - a plugin that is right (compiled beside it under the name right_plugin), and
 * copies of its tables that the functions below make wrong in one thing each. FIXTURE_WRONG names
 * the one that runs when the plugin is loaded. */
#ifndef WRONG_PLUGIN_H
#define WRONG_PLUGIN_H

#include <longhaul/plugin.h>

enum { MOST = 64 };

extern const lh_plugin_t right_plugin;

/* What is exported: the right plugin's row, with these tables. */
LH_EXTERN LH_EXPORT lh_plugin_t lh_plugin_v2;
#define it lh_plugin_v2
extern lh_model_api_t model;
extern lh_optimizer_api_t optimizer;
extern lh_device_api_t device;
extern lh_transport_api_t transport;
extern lh_mapping_api_t mapping;
extern lh_option_t options[MOST];
extern lh_kernel_t kernels[MOST];
extern lh_op_t ops[MOST];
extern lh_rule_t rules[MOST];
extern lh_draft_t drafts[MOST];

/* A fault: a fixture of its own, named in CMakeLists.txt with the checks that it fails; or one of
 * those of planted.py, whose fixtures take the fault that LONGHAUL_PLANT names. */
#define WRONG(name)                                             \
    void name(void);                                            \
    __attribute__((constructor(101))) static void name##_(void) \
    {                                                           \
        static fault_t fault = {#name, name, NULL};             \
        fault.next = faults;                                    \
        faults = &fault;                                        \
    }                                                           \
    void name(void)

typedef struct fault {
    const char *name;
    void (*plant)(void);
    struct fault *next;
} fault_t;
extern fault_t *faults;

/* wrong_kernels.c */
extern lh_kernel_t right_row; /* of what the two below stand for */
lh_status_t launch_and_add(lh_prepared_t *k, const lh_launch_t *call);

#endif
