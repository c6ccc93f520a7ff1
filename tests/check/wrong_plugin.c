/* wrong_plugin.c - the right plugin's row and tables, copied, and made wrong when it is loaded. */
#include "wrong_plugin.h"

#ifndef FIXTURE_CALLED
#define FIXTURE_CALLED FIXTURE_NAME
#endif

lh_plugin_t lh_plugin_v2 = {LH_PLUGIN_HEADER, .kind = FIXTURE_KIND, .config_size = 4096,
                            .name = FIXTURE_CALLED};

lh_model_api_t model;
lh_optimizer_api_t optimizer;
lh_device_api_t device;
lh_transport_api_t transport;
lh_mapping_api_t mapping;
lh_option_t options[MOST];
lh_kernel_t kernels[MOST];
lh_op_t ops[MOST];
lh_rule_t rules[MOST];
lh_draft_t drafts[MOST];

static void copy_tables(void)
{
    const lh_plugin_t head = it;
    it = right_plugin;
    memcpy(&it, &head, offsetof(lh_plugin_t, version));
#define COPY(field)                                                            \
    if (it.field##_count > 0)                                                  \
        memcpy(field##s, it.field##s, it.field##_count * sizeof(field##s[0])); \
    it.field##s = field##s
    COPY(option);
    COPY(kernel);
    COPY(op);
    COPY(rule);
    COPY(draft);
    if (it.model != NULL) model = *it.model, it.model = &model;
    if (it.optimizer != NULL) optimizer = *it.optimizer, it.optimizer = &optimizer;
    if (it.device != NULL) device = *it.device, it.device = &device;
    if (it.transport != NULL) transport = *it.transport, it.transport = &transport;
    if (transport.mapping != NULL) mapping = *transport.mapping, transport.mapping = &mapping;
}

fault_t *faults;

#ifdef FIXTURE_PLANTED
#include <stdlib.h>
void FIXTURE_WRONG(void);
void FIXTURE_WRONG(void)
{
    const char *name = getenv("LONGHAUL_PLANT");
    for (const fault_t *f = faults; f != NULL && name != NULL; f = f->next)
        if (strcmp(f->name, name) == 0) {
            f->plant();
            return;
        }
}
#else
void FIXTURE_WRONG(void);
#endif

#ifdef FIXTURE_EXPORTS
LH_EXPORT extern int another_symbol;
int another_symbol = 1;
#endif
#ifdef FIXTURE_IMPORTS
extern int nobody_has_this(void);
int (*wanted_by_nobody)(void) = nobody_has_this;
#endif

__attribute__((constructor)) static void make_wrong(void)
{
    copy_tables();
    FIXTURE_WRONG();
}
