/* call_faults.h - a sys_t above another one in which the n-th call goes wrong. */
#ifndef TESTS_CALL_FAULTS_H
#define TESTS_CALL_FAULTS_H

#include <base/sys.h>

typedef enum call_fault {
    CALL_NONE,   /* only counts                                                                */
    CALL_FAILS,  /* the n-th call, with `error`; half of a write got there; what an fsync or a
                    close should have brought to the disk is lost for good                     */
    CALL_SHORT,  /* the n-th call, if it writes, writes half and says so                       */
    CALL_AGAIN,  /* the n-th call is interrupted: EINTR; if a signal may interrupt it at all   */
    CALL_FULL,   /* the n-th call that needs space, and every such one after it, with `error`     */
    CALL_FROZEN, /* the n-th and all after it do nothing: what the process did is what was done
                    before, as if it had been killed there                                     */
} call_fault_t;

typedef struct call_faults {
    const sys_t *below;
    call_fault_t kind;
    uint32_t at; /* 1 is the first call */
    int error;
    uint32_t calls;
    const char *struck; /* name of the call; NULL: not yet */
} call_faults_t;

extern call_faults_t call_faults;
/* Puts the table in force; sys_use(below) takes it away again. */
void call_faults_use(const sys_t *below, call_fault_t kind, uint32_t at, int error);

#endif
