/* mem_fs.c - the calls of sys_t on a tree in memory, each change written to the journal. */
#include <crash/mem_fs.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include <base/file.h>

enum { PATH_MOST = 512, LISTED_MOST = 256 };

static mem_fs_t *disk; /* the one in force */

static void copy_tree(mem_tree_t *to, const mem_tree_t *from, pool_t *pool)
{
    mem_tree_shadow(to, from, pool);
    for (uint32_t i = 0; i < to->count; i++) {
        mem_node_t *n = &to->nodes[i];
        if (n->count > 0) {
            mem_entry_t *entries = pool_take(pool, n->count * sizeof(*entries));
            memcpy(entries, n->entries, n->count * sizeof(*entries));
            for (uint32_t k = 0; k < n->count; k++) {
                const size_t length = strlen(entries[k].name) + 1;
                entries[k].name = memcpy(pool_take(pool, length), n->entries[k].name, length);
            }
            n->entries = entries;
        }
        n->room = n->count;
        if (n->capacity > 0) n->data = memcpy(pool_take(pool, n->capacity), n->data, n->capacity);
    }
}

mem_fs_t *mem_fs_new(const mem_tree_t *tree)
{
    static mem_node_t first[MEM_ROOT + 1] = {[MEM_ROOT] = {.folder = true}};
    const mem_tree_t nothing = {.nodes = first, .count = MEM_ROOT + 1};
    mem_fs_t *fs = calloc(1, sizeof(*fs));
    if (fs == NULL) abort();
    fs->pool = pool_new();
    copy_tree(&fs->start, tree == NULL ? &nothing : tree, fs->pool);
    mem_tree_shadow(&fs->live, &fs->start, fs->pool);
    return fs;
}

void mem_fs_free(mem_fs_t *fs)
{
    if (fs == NULL) return;
    if (disk == fs) disk = NULL;
    pool_free(fs->pool);
    free(fs->changes);
    free(fs);
}

void mem_fs_use(mem_fs_t *fs)
{
    disk = fs;
}

mem_fs_t *mem_fs_used(void)
{
    return disk;
}

static void change(mem_fs_t *fs, const mem_change_t *c)
{
    if (fs->count == fs->room) {
        fs->room = fs->room == 0 ? 1024 : 2 * fs->room;
        fs->changes = realloc(fs->changes, fs->room * sizeof(*fs->changes));
        if (fs->changes == NULL) abort();
    }
    fs->changes[fs->count++] = *c;
    if (c->kind != CHANGE_LOST) mem_tree_apply(&fs->live, c);
}

void mem_fs_mark(mem_fs_t *fs, uint64_t number)
{
    change(fs, &(mem_change_t){.kind = CHANGE_MARK, .at = number});
}

static const char *keep_name(const char *name)
{
    const size_t length = strlen(name) + 1;
    return memcpy(pool_take(disk->pool, length), name, length);
}

static int refuse(int error)
{
    errno = error;
    return -1;
}

/* The folder that a path lies in; its name in there. 0 and errno: none. */
static uint32_t folder_of(const char *path, const char **name)
{
    char folder[PATH_MOST];
    *name = path_name(path);
    const size_t length = (size_t)(*name - path);
    if (length >= sizeof(folder) || **name == '\0') return (uint32_t)(refuse(EINVAL) + 1);
    memcpy(folder, path, length);
    folder[length] = '\0';
    const uint32_t found = mem_tree_find(&disk->live, folder);
    if (found == 0) return (uint32_t)(refuse(ENOENT) + 1);
    if (!disk->live.nodes[found].folder) return (uint32_t)(refuse(ENOTDIR) + 1);
    return found;
}

static mem_file_t *file_of(int fd)
{
    const int index = fd - MEM_FIRST_FD;
    if (disk == NULL || index < 0 || index >= MEM_FILES || disk->files[index].inode == 0) {
        errno = EBADF;
        return NULL;
    }
    return &disk->files[index];
}

/* A dotted folder, and something in it. */
static void count_hidden(const char *path)
{
    const char *dot = strstr(path, "/.");
    if (dot != NULL && strchr(dot + 1, '/') != NULL) disk->looked_behind_dots++;
}

static int mem_open(const char *path, int flags, mode_t mode)
{
    const char *name;
    (void)mode;
    count_hidden(path);
    uint32_t inode = mem_tree_find(&disk->live, path);
    if (inode == 0 && (flags & O_CREAT) == 0) return refuse(ENOENT);
    if (inode != 0 && (flags & O_CREAT) != 0 && (flags & O_EXCL) != 0) return refuse(EEXIST);
    const bool folder = inode != 0 && disk->live.nodes[inode].folder;
    if (inode != 0 && !folder && (flags & O_DIRECTORY) != 0) return refuse(ENOTDIR);
    if (folder && (flags & O_ACCMODE) != O_RDONLY) return refuse(EISDIR);

    int index = 0;
    while (index < MEM_FILES && disk->files[index].inode != 0)
        index++;
    if (index == MEM_FILES) return refuse(EMFILE);
    if (inode == 0) {
        const uint32_t parent = folder_of(path, &name);
        if (parent == 0) return -1;
        inode = disk->live.count;
        change(disk,
               &(mem_change_t){
                   .kind = CHANGE_NAME, .inode = parent, .target = inode, .name = keep_name(name)});
    } else if ((flags & O_TRUNC) != 0 && disk->live.nodes[inode].size > 0) {
        change(disk, &(mem_change_t){.kind = CHANGE_SIZE, .inode = inode});
    }
    disk->files[index] = (mem_file_t){.inode = inode, .writes = (flags & O_ACCMODE) != O_RDONLY};
    return MEM_FIRST_FD + index;
}

static int mem_close(int fd)
{
    mem_file_t *f = file_of(fd);
    if (f == NULL) return -1;
    f->inode = 0;
    return 0;
}

static ssize_t mem_pread(int fd, void *to, size_t bytes, off_t offset)
{
    const mem_file_t *f = file_of(fd);
    if (f == NULL) return -1;
    const mem_node_t *n = &disk->live.nodes[f->inode];
    if (n->folder) return refuse(EISDIR);
    const uint64_t at = (uint64_t)offset;
    if (at >= n->size) return 0;
    const uint64_t got = bytes < n->size - at ? bytes : n->size - at;
    memcpy(to, n->data + at, got);
    return (ssize_t)got;
}

static ssize_t mem_read(int fd, void *to, size_t bytes)
{
    mem_file_t *f = file_of(fd);
    if (f == NULL) return -1;
    const ssize_t got = mem_pread(fd, to, bytes, (off_t)f->offset);
    if (got > 0) f->offset += (uint64_t)got;
    return got;
}

/* Sector by sector, and where the file grows its size before the sector's bytes: a disk may get any
 * of them without the others. */
static ssize_t mem_pwrite(int fd, const void *from, size_t bytes, off_t offset)
{
    const mem_file_t *f = file_of(fd);
    if (f == NULL) return -1;
    if (disk->live.nodes[f->inode].folder) return refuse(EBADF);
    const uint8_t *data = memcpy(pool_take(disk->pool, bytes), from, bytes);
    uint64_t at = (uint64_t)offset;
    for (size_t done = 0; done < bytes;) {
        const size_t to_border = SECTOR - at % SECTOR;
        const size_t part = bytes - done < to_border ? bytes - done : to_border;
        if (disk->live.nodes[f->inode].size < at + part)
            change(disk, &(mem_change_t){.kind = CHANGE_SIZE, .inode = f->inode, .at = at + part});
        change(disk, &(mem_change_t){.kind = CHANGE_DATA,
                                     .inode = f->inode,
                                     .at = at,
                                     .bytes = (uint32_t)part,
                                     .data = data + done});
        at += part;
        done += part;
    }
    return (ssize_t)bytes;
}

static ssize_t mem_write(int fd, const void *from, size_t bytes)
{
    mem_file_t *f = file_of(fd);
    if (f == NULL) return -1;
    const ssize_t done = mem_pwrite(fd, from, bytes, (off_t)f->offset);
    if (done > 0) f->offset += (uint64_t)done;
    return done;
}

static int mem_fsync(int fd)
{
    const mem_file_t *f = file_of(fd);
    if (f == NULL) return -1;
    change(disk, &(mem_change_t){.kind = CHANGE_SYNC, .inode = f->inode});
    return 0;
}

void mem_fs_lose(mem_fs_t *fs, int fd, bool all)
{
    const mem_file_t *f = file_of(fd);
    if (f == NULL || !f->writes) return;
    change(fs, &(mem_change_t){.kind = CHANGE_LOST, .inode = f->inode, .at = all ? 1 : 0});
}

bool mem_fs_is_folder(const mem_fs_t *fs, int fd)
{
    const mem_file_t *f = file_of(fd);
    return f != NULL && fs->live.nodes[f->inode].folder;
}

static int mem_ftruncate(int fd, off_t length)
{
    const mem_file_t *f = file_of(fd);
    if (f == NULL) return -1;
    change(disk, &(mem_change_t){.kind = CHANGE_SIZE, .inode = f->inode, .at = (uint64_t)length});
    return 0;
}

static int mem_fallocate(int fd, off_t length)
{
    const mem_file_t *f = file_of(fd);
    if (f == NULL) return -1;
    if (disk->live.nodes[f->inode].size >= (uint64_t)length) return 0;
    return mem_ftruncate(fd, length);
}

static void describe(uint32_t inode, struct stat *out)
{
    const mem_node_t *n = &disk->live.nodes[inode];
    memset(out, 0, sizeof(*out));
    out->st_ino = inode;
    out->st_mode = n->folder ? S_IFDIR | 0755 : S_IFREG | 0644;
    out->st_size = (off_t)n->size;
}

static int mem_fstat(int fd, struct stat *out)
{
    const mem_file_t *f = file_of(fd);
    if (f == NULL) return -1;
    describe(f->inode, out);
    return 0;
}

/* A disk of 1 MiB, which is never full by itself. */
static int mem_fstatvfs(int fd, struct statvfs *out)
{
    if (file_of(fd) == NULL) return -1;
    *out = (struct statvfs){.f_frsize = SECTOR, .f_bavail = (1 << 20) / SECTOR};
    return 0;
}

static int mem_stat(const char *path, struct stat *out)
{
    count_hidden(path);
    const uint32_t inode = mem_tree_find(&disk->live, path);
    if (inode == 0) return refuse(ENOENT);
    describe(inode, out);
    return 0;
}

static int mem_mkdir(const char *path, mode_t mode)
{
    const char *name;
    (void)mode;
    if (mem_tree_find(&disk->live, path) != 0) return refuse(EEXIST);
    const uint32_t parent = folder_of(path, &name);
    if (parent == 0) return -1;
    change(disk, &(mem_change_t){.kind = CHANGE_NAME,
                                 .inode = parent,
                                 .target = disk->live.count,
                                 .name = keep_name(name),
                                 .at = 1});
    return 0;
}

/* All that is renamed here stays in its folder. */
static int mem_rename(const char *from, const char *to)
{
    const char *name, *new_name;
    const uint32_t inode = mem_tree_find(&disk->live, from);
    if (inode == 0) return refuse(ENOENT);
    const uint32_t parent = folder_of(from, &name), new_parent = folder_of(to, &new_name);
    if (parent == 0 || new_parent == 0) return -1;
    if (parent != new_parent) return refuse(EXDEV);
    const uint32_t old = mem_tree_find(&disk->live, to);
    if (old != 0 && disk->live.nodes[old].folder && !disk->live.nodes[inode].folder)
        return refuse(EISDIR);
    if (old != 0 && disk->live.nodes[old].count > 0) return refuse(ENOTEMPTY);
    change(disk, &(mem_change_t){.kind = CHANGE_RENAME,
                                 .inode = parent,
                                 .target = inode,
                                 .name = keep_name(name),
                                 .to = keep_name(new_name)});
    return 0;
}

static int mem_rename_new(const char *from, const char *to)
{
    return mem_tree_find(&disk->live, to) != 0 ? refuse(EEXIST) : mem_rename(from, to);
}

static int take_away(const char *path, bool folder)
{
    const char *name;
    const uint32_t inode = mem_tree_find(&disk->live, path);
    if (inode == 0) return refuse(ENOENT);
    const mem_node_t *n = &disk->live.nodes[inode];
    if (n->folder != folder) return refuse(folder ? ENOTDIR : EISDIR);
    if (n->count > 0) return refuse(ENOTEMPTY);
    const uint32_t parent = folder_of(path, &name);
    change(disk, &(mem_change_t){.kind = CHANGE_NAME, .inode = parent, .name = keep_name(name)});
    return 0;
}

static int mem_unlink(const char *path)
{
    return take_away(path, false);
}

static int mem_rmdir(const char *path)
{
    return take_away(path, true);
}

static int mem_lock(int fd)
{
    return file_of(fd) == NULL ? -1 : 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int mem_list(const char *path, int (*each)(void *context, const char *name), void *context)
{
    const char *names[LISTED_MOST];
    const uint32_t inode = mem_tree_find(&disk->live, path);
    if (inode == 0) return refuse(ENOENT);
    const mem_node_t *n = &disk->live.nodes[inode];
    if (!n->folder) return refuse(ENOTDIR);
    if (n->count > LISTED_MOST) return refuse(EOVERFLOW);
    const uint32_t count = n->count;
    for (uint32_t i = 0; i < count; i++)
        names[i] = n->entries[i].name;
    qsort(names, count, sizeof(names[0]), by_text);
    for (uint32_t i = 0; i < count; i++) {
        const int result = each(context, names[i]);
        if (result != 0) return result;
    }
    return 0;
}

static uint64_t mem_now_ns(void)
{
    return sys_real.now_ns();
}

static uint64_t mem_wall_ns(void)
{
    return sys_real.wall_ns();
}

static int mem_random(void *out, size_t bytes)
{
    uint8_t *to = out;
    for (size_t i = 0; i < bytes; i++) {
        disk->random = disk->random * 1664525u + 1013904223u;
        to[i] = (uint8_t)(disk->random >> 24);
    }
    return 0;
}

const sys_t mem_table = {
    .open = mem_open,
    .close = mem_close,
    .read = mem_read,
    .write = mem_write,
    .pread = mem_pread,
    .pwrite = mem_pwrite,
    .fsync = mem_fsync,
    .ftruncate = mem_ftruncate,
    .fallocate = mem_fallocate,
    .fstat = mem_fstat,
    .fstatvfs = mem_fstatvfs,
    .stat = mem_stat,
    .lstat = mem_stat,
    .mkdir = mem_mkdir,
    .rename = mem_rename,
    .rename_new = mem_rename_new,
    .unlink = mem_unlink,
    .rmdir = mem_rmdir,
    .lock = mem_lock,
    .list = mem_list,
    .now_ns = mem_now_ns,
    .wall_ns = mem_wall_ns,
    .random = mem_random,
};
