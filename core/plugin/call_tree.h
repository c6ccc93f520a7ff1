/* plugin/call_tree.h - a bound call: a tree of constants, variables and functions with libffi's
 * view of each. call_bind.c makes it, call.c runs it. */
#ifndef PLUGIN_CALL_TREE_H
#define PLUGIN_CALL_TREE_H

#include <ffi.h>

#include <plugin/call.h>

enum { NODE_CONSTANT = 1, NODE_VARIABLE = 2, NODE_FUNCTION = 3 };

typedef struct call_node {
    uint32_t kind;     /* NODE_*                        */
    uint32_t type;     /* CALL_* of what it gives       */
    uint32_t variable; /* index into the scope's        */
    uint32_t arg_count;
    uint32_t args[CALL_PARAMS]; /* indices of nodes, in the function's order */
    call_value_t value;         /* the constant, or the latest               */
    const char *name;           /* of the function                           */
    void (*fn)(void);
    lh_call_t call; /* the hidden first argument points here */
    const lh_call_t *call_pointer;
    ffi_cif cif;
    ffi_type *types[CALL_PARAMS + 1];
    void *values[CALL_PARAMS + 1];
} call_node_t;

struct call {
    char *text;  /* copy; names and strings lie in it */
    char *where; /* for sentences                     */
    uint32_t root;
    uint32_t count;
    call_node_t nodes[CALL_NODES];
};

#endif
