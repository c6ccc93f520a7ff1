/* import_paths.c - folders that are known, and the files that links of the model's folder lead to:
 * the Hugging Face cache is made of such. */
#include <cli/import_paths.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>

/* Where the loader looks for the libraries of a plugin that a model's row names. */
static const char *const libraries[] = {"/usr", "/lib", "/lib64", "/etc/ld.so.cache"};
enum { LIBRARIES = sizeof(libraries) / sizeof(libraries[0]) };

typedef struct listing {
    import_paths_t *paths;
    const char *folder;
} listing_t;

/* Only a regular file: a folder would bring all that lies in it. */
static bool leads_to_file(const char *path)
{
    struct stat st;
    return sys()->lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && sys()->stat(path, &st) == 0 &&
           S_ISREG(st.st_mode);
}

static int add_link(void *context, const char *name)
{
    const listing_t *l = context;
    import_paths_t *p = l->paths;
    char *path = path_join(l->folder, name);
    if (path == NULL) return -1;
    if (!leads_to_file(path)) {
        mem_free(path);
        return 0;
    }
    char **links = mem_grow(p->links, &p->link_room, p->link_count + 1, sizeof(*links));
    if (links == NULL) {
        mem_free(path);
        return -1;
    }
    p->links = links;
    p->links[p->link_count++] = path;
    return 0;
}

lh_status_t import_paths_find(const cli_t *cli, import_paths_t *out)
{
    const char *from = cli->job->import.from;
    import_paths_t p = {.write = {cli->job->pipeline.folder, "/dev/null"}};
    listing_t listing = {&p, from};
    fail_clear();
    /* A folder that cannot be listed is the import's to tell of. */
    if (sys()->list(from, add_link, &listing) != 0 && fail_reason()[0] != '\0') goto no_memory;
    p.read = mem_array(p.link_count + LIBRARIES + 3u, sizeof(*p.read));
    if (p.read == NULL) goto no_memory;
    uint32_t count = 0;
    p.read[count++] = from;
    p.read[count++] = registry_folder(cli->plugins);
    for (uint32_t i = 0; i < LIBRARIES; i++)
        p.read[count++] = libraries[i];
    for (uint32_t i = 0; i < p.link_count; i++)
        p.read[count++] = p.links[i];
    *out = p;
    return LH_OK;
no_memory:
    import_paths_free(&p);
    return LH_NO_MEMORY;
}

void import_paths_free(import_paths_t *p)
{
    for (uint32_t i = 0; i < p->link_count; i++)
        mem_free(p->links[i]);
    mem_free(p->links);
    mem_free(p->read);
    *p = (import_paths_t){.read = NULL};
}
