/* checks_of_specs.c - what can be said of an architecture in an INI before it is a model. */
#include "check.h"

static void reads(subject_t *s)
{
    const lh_status_t status = subject_load(s);
    if (status != LH_OK) check_fault("%s", fail_reason());
}

const check_t checks_of_specs[] = {
    {"spec.reads",
     "its sections are an architecture: every name is known, read and given once, none in a circle",
     CHECK_SPEC, true, 60, reads, NULL},
    {0},
};
