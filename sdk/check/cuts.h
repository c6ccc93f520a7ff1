/* cuts.h - a model's parts as two tensor ranks would compute them: parameters are cut as their rows
 * say, ops get the attributes that split() gives, and the results are held against those of one
 * rank. Run by the kit alone, op by op, in double. */
#ifndef CUTS_H
#define CUTS_H

#include "tiny_model.h"

/* A check. Instances that do not divide by two are passed over; skips where none does. */
void model_is_cut(subject_t *s);

#endif
