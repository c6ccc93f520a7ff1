/* mem_fs_shared.h - mem_table for several threads: one call at a time. */
#ifndef TESTS_MEM_FS_SHARED_H
#define TESTS_MEM_FS_SHARED_H

#include <crash/mem_fs.h>

extern const sys_t mem_shared_table;
/* Marks while others may be at work. */
void mem_shared_mark(uint64_t number);

#endif
