/* check_print.h - what longhaul-check says: a line or an object for each check, and refusals. */
#ifndef CHECK_PRINT_H
#define CHECK_PRINT_H

#include "check.h"

void print_json(const check_t *c, const outcome_t *o);
void print_line(const check_t *c, const outcome_t *o);
/* results: [RESULTS] how many came to each. */
void print_sum(const char *name, const uint32_t *results);
/* The reason of the last failure, on stderr. */
void print_reason(void);

#endif
