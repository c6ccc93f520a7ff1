/* mem_fs.h - a file system in memory behind sys_t that keeps a journal of every change, so that
 * what a power loss may leave of them can be built and looked at.
 *
 * A change is one thing that a disk may or may not have got: a name that comes or goes, a rename, a
 * file's new size, the bytes of one sector. An fsync is a mark in the journal. */
#ifndef TESTS_MEM_FS_H
#define TESTS_MEM_FS_H

#include <base/sys.h>

enum { SECTOR = 512, MEM_ROOT = 1 /* inode of "/" */ };

typedef struct pool pool_t; /* memory that is given back all at once */

typedef struct mem_entry {
    const char *name;
    uint32_t inode;
} mem_entry_t;

typedef struct mem_node {
    bool folder;
    bool owned;  /* what it points to is this tree's alone and may be written to */
    bool hashed; /* hash is that of data */
    mem_entry_t *entries;
    uint32_t count, room; /* entries, and how many fit */
    uint8_t *data;
    uint64_t size, capacity;
    uint64_t hash;
} mem_node_t;

/* Nodes by inode; a node may be one that no name leads to. */
typedef struct mem_tree {
    mem_node_t *nodes;
    uint32_t count, room;
    pool_t *pool;
    uint8_t fill; /* what stands where a file has grown and no data came */
} mem_tree_t;

typedef enum mem_change_kind {
    CHANGE_NAME,   /* in folder `inode`, `name` leads to `target`; 0: it goes  */
    CHANGE_RENAME, /* in folder `inode`, `name` goes, `to` leads to `target`   */
    CHANGE_SIZE,   /* of file `inode`: `at` bytes                              */
    CHANGE_DATA,   /* `bytes` of file `inode` from `at` on, within one sector  */
    CHANGE_SYNC,   /* all changes of `inode` before this one are on the disk    */
    CHANGE_LOST,   /* of file `inode`: what is not yet on the disk never will be;
                      `at` 1: and what is there turns into zeros                 */
    CHANGE_MARK,   /* the test's own: `at` is its number                        */
} mem_change_kind_t;

typedef struct mem_change {
    mem_change_kind_t kind;
    uint32_t inode, target;
    const char *name, *to;
    uint64_t at;
    uint32_t bytes;
    const uint8_t *data;
} mem_change_t;

typedef struct mem_file {
    uint32_t inode; /* 0: the descriptor is free */
    uint64_t offset;
    bool writes;
} mem_file_t;

enum { MEM_FILES = 64, MEM_FIRST_FD = 1000 };

typedef struct mem_fs {
    mem_tree_t start; /* what was on the disk at first  */
    mem_tree_t live;  /* what a running program sees    */
    mem_change_t *changes;
    uint32_t count, room;
    pool_t *pool;
    mem_file_t files[MEM_FILES];
    uint32_t random;
    uint32_t
        looked_behind_dots; /* paths opened or asked for with a folder in them that is hidden */
} mem_fs_t;

/* An empty one; or one whose disk holds what `tree` shows (copied). */
mem_fs_t *mem_fs_new(const mem_tree_t *tree);
void mem_fs_free(mem_fs_t *fs);
/* The file system that the calls of mem_table work on. */
void mem_fs_use(mem_fs_t *fs);
mem_fs_t *mem_fs_used(void);
extern const sys_t mem_table;
void mem_fs_mark(mem_fs_t *fs, uint64_t number);
/* As after an fsync that failed: programs still see it, the disk will never have it. `all`: as
 * after a close that failed, on a file system that brings what was written to its server only then.
 */
void mem_fs_lose(mem_fs_t *fs, int fd, bool all);
bool mem_fs_is_folder(const mem_fs_t *fs, int fd);

pool_t *pool_new(void);
void *pool_take(pool_t *p, size_t bytes);
void pool_reset(pool_t *p);
void pool_free(pool_t *p);

/* A tree that shows what `from` does and copies a node when it changes. */
void mem_tree_shadow(mem_tree_t *tree, const mem_tree_t *from, pool_t *pool);
/* Room for every inode that `later` has, each a folder where it is one there: what an inode is does
 * not depend on its name. */
void mem_tree_prepare(mem_tree_t *tree, const mem_tree_t *later);
void mem_tree_apply(mem_tree_t *tree, const mem_change_t *change);
/* Of all that names lead to from "/" on, but for what lies in folders whose name begins with a dot:
 * equal for what looks equal to a program that does not look in there (mem_fs_t counts who does).
 */
uint64_t mem_tree_digest(mem_tree_t *tree);
/* 0: nothing there. */
uint32_t mem_tree_find(const mem_tree_t *tree, const char *path);

#endif
