/* data/blend.h - which data set each sample of a blend comes from, as Megatron's
 * build_blending_indices chooses: always the one that is furthest behind its weight. */
#ifndef DATA_BLEND_H
#define DATA_BLEND_H

#include <base/status.h>

enum { BLEND_SETS = 256, BLEND_NAME = 1024 };

typedef struct blend_part {
    char name[BLEND_NAME];
    double weight; /* of a sum of 1 */
} blend_part_t;

typedef struct blend_list {
    blend_part_t *parts;
    uint32_t count;
} blend_list_t;

/* "corpus", or "a:0.7, b:0.3": every one has a weight, or there is one alone. */
lh_status_t blend_parse(const char *text, blend_list_t *out) LH_MUST_CHECK;
void blend_list_free(blend_list_t *list);

/* Samples that a set must have for a blend of `samples`, with Megatron's half per cent to spare. */
uint64_t blend_wanted(double weight, uint64_t samples);

typedef struct blend {
    uint64_t count;
    uint16_t *set;    /* [count] which data set       */
    uint32_t *sample; /* [count] its how-manyeth one  */
} blend_t;

lh_status_t blend_new(const blend_list_t *list, uint64_t samples, blend_t *out) LH_MUST_CHECK;
void blend_free(blend_t *blend);

#endif
