/* mem_tree.c - folders and files as nodes, copied only where they change. */
#include <crash/mem_fs.h>

#include <stdlib.h>
#include <string.h>

#include <base/digest.h>

enum { CHUNK = 1 << 20, ALIGNMENT = 16, NODES_MORE = 64, ENTRIES_MORE = 8 };

typedef struct chunk {
    struct chunk *next;
    size_t used, size;
    _Alignas(ALIGNMENT) uint8_t memory[];
} chunk_t;

struct pool {
    chunk_t *chunks;
};

pool_t *pool_new(void)
{
    pool_t *p = calloc(1, sizeof(*p));
    if (p == NULL) abort();
    return p;
}

void *pool_take(pool_t *p, size_t bytes)
{
    const size_t wanted = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (p->chunks == NULL || p->chunks->size - p->chunks->used < wanted) {
        const size_t size = wanted > CHUNK ? wanted : CHUNK;
        chunk_t *c = malloc(sizeof(*c) + size);
        if (c == NULL) abort();
        c->next = p->chunks;
        c->used = 0;
        c->size = size;
        p->chunks = c;
    }
    void *memory = p->chunks->memory + p->chunks->used;
    p->chunks->used += wanted;
    return memory;
}

static void free_after(chunk_t *first)
{
    while (first != NULL) {
        chunk_t *next = first->next;
        free(first);
        first = next;
    }
}

void pool_reset(pool_t *p)
{
    if (p->chunks == NULL) return;
    free_after(p->chunks->next);
    p->chunks->next = NULL;
    p->chunks->used = 0;
}

void pool_free(pool_t *p)
{
    if (p == NULL) return;
    free_after(p->chunks);
    free(p);
}

void mem_tree_shadow(mem_tree_t *tree, const mem_tree_t *from, pool_t *pool)
{
    *tree = (mem_tree_t){.count = from->count, .room = from->count, .pool = pool};
    tree->nodes = pool_take(pool, from->count * sizeof(from->nodes[0]));
    memcpy(tree->nodes, from->nodes, from->count * sizeof(from->nodes[0]));
    for (uint32_t i = 0; i < tree->count; i++)
        tree->nodes[i].owned = false;
}

/* The node, there if it was not; a name says whether it is a folder. */
static mem_node_t *node_of(mem_tree_t *tree, uint32_t inode)
{
    if (inode >= tree->room) {
        const uint32_t room = inode + NODES_MORE;
        mem_node_t *nodes = pool_take(tree->pool, room * sizeof(*nodes));
        memset(nodes, 0, room * sizeof(*nodes));
        if (tree->count > 0) memcpy(nodes, tree->nodes, tree->count * sizeof(*nodes));
        tree->nodes = nodes;
        tree->room = room;
    }
    if (inode >= tree->count) tree->count = inode + 1;
    return &tree->nodes[inode];
}

void mem_tree_prepare(mem_tree_t *tree, const mem_tree_t *later)
{
    for (uint32_t i = later->count; i-- > 0;)
        node_of(tree, i)->folder = later->nodes[i].folder;
}

static mem_node_t *own_folder(mem_tree_t *tree, uint32_t inode)
{
    mem_node_t *n = node_of(tree, inode);
    n->folder = true;
    if (n->owned && n->count < n->room) return n;
    mem_entry_t *entries = pool_take(tree->pool, (n->count + ENTRIES_MORE) * sizeof(*entries));
    if (n->count > 0) memcpy(entries, n->entries, n->count * sizeof(*entries));
    n->entries = entries;
    n->room = n->count + ENTRIES_MORE;
    n->owned = true;
    return n;
}

static mem_node_t *own_file(mem_tree_t *tree, uint32_t inode, uint64_t capacity)
{
    mem_node_t *n = node_of(tree, inode);
    n->hashed = false;
    if (n->owned && capacity <= n->capacity) return n;
    const uint64_t room = capacity > n->capacity ? capacity + SECTOR : n->capacity;
    uint8_t *data = pool_take(tree->pool, room);
    if (n->capacity > 0) memcpy(data, n->data, n->capacity);
    memset(data + n->capacity, tree->fill, room - n->capacity);
    n->data = data;
    n->capacity = room;
    n->owned = true;
    return n;
}

static void set_name(mem_node_t *folder, const char *name, uint32_t target)
{
    for (uint32_t i = 0; i < folder->count; i++) {
        if (strcmp(folder->entries[i].name, name) != 0) continue;
        if (target != 0)
            folder->entries[i].inode = target;
        else
            folder->entries[i] = folder->entries[--folder->count];
        return;
    }
    if (target != 0) folder->entries[folder->count++] = (mem_entry_t){name, target};
}

static void set_size(mem_tree_t *tree, uint32_t inode, uint64_t size)
{
    mem_node_t *n = own_file(tree, inode, size);
    if (size < n->size) memset(n->data + size, tree->fill, n->capacity - size);
    n->size = size;
}

void mem_tree_apply(mem_tree_t *tree, const mem_change_t *c)
{
    mem_node_t *n;
    switch (c->kind) {
    case CHANGE_NAME:
        if (c->target != 0) (void)node_of(tree, c->target);
        n = own_folder(tree, c->inode);
        set_name(n, c->name, c->target);
        if (c->target != 0 && c->at != 0) tree->nodes[c->target].folder = true;
        break;
    case CHANGE_RENAME:
        (void)node_of(tree, c->target);
        n = own_folder(tree, c->inode);
        set_name(n, c->name, 0);
        set_name(n, c->to, c->target);
        break;
    case CHANGE_SIZE: set_size(tree, c->inode, c->at); break;
    case CHANGE_DATA:
        n = own_file(tree, c->inode, c->at + c->bytes);
        memcpy(n->data + c->at, c->data, c->bytes);
        break;
    case CHANGE_LOST:
        n = own_file(tree, c->inode, 0);
        if (c->at != 0 && n->capacity > 0) memset(n->data, 0, n->capacity);
        break;
    case CHANGE_SYNC:
    case CHANGE_MARK: break;
    }
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 29;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ (x >> 32);
}

/* Entries stand in any order: their hashes are added. Behind a dotted name nobody looks who only
 * reads: there the name is all that counts. */
static uint64_t node_digest(mem_tree_t *tree, uint32_t inode, uint32_t depth)
{
    mem_node_t *n = &tree->nodes[inode];
    if (!n->folder) {
        if (!n->hashed) n->hash = digest_xxh3(n->data, (size_t)n->size) ^ mix(n->size + 1);
        n->hashed = true;
        return n->hash;
    }
    uint64_t sum = 0x1234567;
    for (uint32_t i = 0; i < n->count && depth < 16; i++) {
        const mem_entry_t *e = &n->entries[i];
        const uint64_t inside = e->name[0] == '.' ? 0 : node_digest(tree, e->inode, depth + 1);
        sum += mix(digest_xxh3(e->name, strlen(e->name)) ^ mix(inside));
    }
    return mix(sum);
}

uint64_t mem_tree_digest(mem_tree_t *tree)
{
    return node_digest(tree, MEM_ROOT, 0);
}

uint32_t mem_tree_find(const mem_tree_t *tree, const char *path)
{
    uint32_t at = MEM_ROOT;
    while (at != 0) {
        path += strspn(path, "/");
        if (*path == '\0') return at;
        const size_t length = strcspn(path, "/");
        const mem_node_t *n = &tree->nodes[at];
        at = 0;
        for (uint32_t i = 0; n->folder && i < n->count && at == 0; i++)
            if (strncmp(n->entries[i].name, path, length) == 0 &&
                n->entries[i].name[length] == '\0')
                at = n->entries[i].inode;
        path += length;
    }
    return 0;
}
