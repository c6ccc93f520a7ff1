/* device_place.c - the place of a device that is not open yet.
 *
 * Links are opened before the device is: its kernels are chosen with all ranks. A transport that
 * has several cards is to take those near the device, so its plugin is asked where that is. */
#include <links/device_place.h>

#include <plugin/host.h>

/* Leaves what is in *path where the plugin does not tell. */
static lh_status_t place_ask(const job_t *job, const plugin_t *plugin, char *path, size_t room)
{
    void *config = NULL;
    const option_table_t options = plugin_options(plugin);
    if (plugin->device->where == NULL) return LH_OK;
    lh_status_t status = job_parse_plugin(job, "device", &options, NULL, 0, &config);
    if (status == LH_OK) status = plugin->device->where(plugin->host, config, 0, path, room);
    if (config != NULL) job_free_config(&options, config);
    return status;
}

/* What is wrong with the plugin, its options or the device is told when that is opened. */
lh_status_t device_place_tell(const job_t *job, registry_t *r)
{
    char path[32] = "";
    const plugin_t *plugin;
    if (job->device.plugin == NULL) return LH_OK;
    lh_status_t status = registry_load(r, LH_KIND_DEVICE, job->device.plugin, &plugin);
    if (status == LH_OK) status = place_ask(job, plugin, path, sizeof(path));
    if (status == LH_NO_MEMORY) return status;
    if (status != LH_OK) {
        fail_clear();
        path[0] = '\0';
    }
    path[sizeof(path) - 1] = '\0';
    host_set_device(registry_host(r), path);
    return LH_OK;
}
