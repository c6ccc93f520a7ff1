/* links/carrier.h - a transport plugin opened for one class of link: its options, its listener, its
 * card's figures.
 *
 * A process has at most three carriers, one each for links inside a node, inside a site and between
 * sites. Which plugin carries a class is the job's choice, so it may differ from class to class,
 * but never from rank to rank. */
#ifndef LINKS_CARRIER_H
#define LINKS_CARRIER_H

#include <config/job.h>
#include <plugin/registry.h>

/* Opened and closed by one thread. `config` is the plugin's parsed options, which it may read until
 * `close`. Of several cards the first one is used. */
typedef struct carrier {
    uint32_t scope; /* LH_LINK_*: which [transport.*] */
    uint32_t security;
    const plugin_t *plugin;
    const lh_transport_api_t *api;
    lh_transport_t *transport;
    lh_listener_t *listener;
    void *config;
    lh_address_t address; /* of the listener */
    lh_nic_info_t nic;
    int wait_fd; /* -1: it can't be slept on */
} carrier_t;

extern const char *const carrier_levels[]; /* by LH_SECURITY_* */

/* The plugin of a class of link: what the INI names, else what transports/defaults.ini in the
 * folder of plugins says. The text is the job's or is written to `name`. NULL after fail(). */
const char *carrier_plugin(const job_t *job, const registry_t *r, uint32_t scope, char name[32]);

/* The plugin's own keys of [transport.SCOPE], which may hold options of several plugins side by side:
 * those of `names` (NULL: none) are known, too, and left alone. *config is freed with
 * job_free_config. */
lh_status_t carrier_parse(const job_t *job, registry_t *r, uint32_t scope, const plugin_t *plugin,
                          const char *const names[2], void **config) LH_MUST_CHECK;
/* Links are opened before the device is, whose kernels are chosen with all ranks, and a transport that has
 * several cards is to take those near the device: asks the plugin of [device], which opens nothing for
 * that, and tells transports by host->world. Once the world is published, as a rank's device goes by its
 * number, and before carrier_open. A device that says nothing is nowhere. */
lh_status_t carrier_tell_place(const job_t *job, registry_t *r) LH_MUST_CHECK;
/* Opens the plugin `name` with its keys of [transport.SCOPE] (other: the one that shares the
 * section, or NULL), checks that it can give the security that the section asks for, and listens.
 */
lh_status_t carrier_open(const job_t *job, registry_t *r, uint32_t scope, const char *name,
                         const char *other, carrier_t **out) LH_MUST_CHECK;
/* Refuses a level of security that the plugin gives on no card: needs none here, and opens nothing. */
lh_status_t carrier_check_level(const job_t *job, uint32_t scope,
                                const plugin_t *plugin) LH_MUST_CHECK;
/* What carrier_open would refuse of the plugin itself, such as a level of security that it cannot
 * give. Other failures count as no fault here: a machine without the card may check a job too. */
lh_status_t carrier_check(const job_t *job, registry_t *r, uint32_t scope, const char *name,
                          const char *other) LH_MUST_CHECK;
/* Whether its card reads and writes memory of a device where it lies. With `private` it does not: what is
 * sealed is sealed by the processor. */
bool carrier_takes_device(const carrier_t *c);
/* Connections and regions have been closed or end with it. NULL does nothing. */
void carrier_close(carrier_t *c);

#endif
