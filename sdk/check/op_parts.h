/* op_parts.h - the check of expand, fuses and product. */
#ifndef OP_PARTS_H
#define OP_PARTS_H

#include "subject.h"

/* Ends in a fault, a skip or neither, as all checks. */
void op_parts_check(subject_t *s);

#endif
