/* spec/spec_check.h - what the names in a spec mean, and that each is known, used and in no
 * circle. */
#ifndef SPEC_SPEC_CHECK_H
#define SPEC_SPEC_CHECK_H

#include <spec/spec_read.h>

/* Second half of spec_read: what names mean and who reads what. Marks what is used. */
lh_status_t spec_check(spec_t *s) LH_MUST_CHECK;

/* An index, or the count where there is none of that name. */
uint32_t spec_find_value(const spec_t *s, const char *name);
uint32_t spec_find_line(const spec_part_t *part, const char *name, uint32_t before);
/* The part's line that adds to the sum; NULL: none. */
spec_line_t *spec_find_adding(const spec_part_t *part, const char *name);
/* Begins sentences about a key of a parameter's section: "arch.ini:7: [spec.parameter.w] shape". */
void spec_where_parameter(const spec_parameter_t *p, const char *key, char *out, size_t room);
/* Whether the part's blocks have the parameter. */
bool spec_part_has(const spec_t *s, const spec_part_t *part, const spec_parameter_t *p);
const spec_parameter_t *spec_find_parameter(const spec_t *s, const spec_part_t *part,
                                            const char *name);
/* "line.slot": the length of the line's name; 0: there is no dot. */
size_t spec_slot_dot(const char *name);
/* An input of the recording by its name in a line, input(positions); 0: none. */
uint32_t spec_input(const char *name);

#endif
