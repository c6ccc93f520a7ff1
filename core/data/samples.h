/* data/samples.h - the order in which a data set's tokens become training samples, exactly as
 * Megatron's GPTDataset makes it: sequences shuffled over all epochs, laid end to end, cut into
 * samples of sequence + 1 tokens that share one, and the samples shuffled. And which set each
 * sample of a blend comes from.
 *
 * The order is a pure function of the set's lengths, the sequence, the number of samples and the
 * seed. */
#ifndef DATA_SAMPLES_H
#define DATA_SAMPLES_H

#include <stdint.h>

#include <data/indexed.h>

/* What decides the order; copied by samples_new, the set must outlive the samples. */
typedef struct samples_how {
    const indexed_t *set;
    /* for messages: "the valid split of corpus" */
    const char *name;
    /* The sequences of the set that take part: a split's. */
    uint64_t first, end;
    uint64_t sequence; /* tokens a sample predicts                  */
    /* Samples that will be asked for; decides the number of epochs. 0: one epoch. */
    uint64_t wanted;
    uint64_t seed;
} samples_how_t;

typedef struct sample_cut { /* where a sample begins */
    uint32_t place;         /* in documents                  */
    uint32_t offset;        /* tokens into that sequence     */
} sample_cut_t;

/* An order that was made. Only read after samples_new, by any thread. Takes 4 bytes a sequence and
 * epoch and 12 a sample. */
typedef struct samples {
    const indexed_t *set;
    uint64_t sequence;
    uint64_t count; /* samples; at least as many as were wanted */
    /* how often each sequence is in the order, and the tokens of all of them once */
    uint64_t epochs, tokens_per_epoch;
    /* the last epoch is shuffled by itself, see samples.c */
    bool separate_final_epoch;
    /* [document_count] sequence numbers of the set, shuffled, epoch after epoch */
    uint32_t *documents;
    uint64_t document_count;
    /* [count + 1] where each sample begins, and where the last one ends */
    sample_cut_t *cuts;
    /* [count] sample i reads from cuts[shuffle[i]] */
    uint32_t *shuffle;
} samples_t;

lh_status_t samples_new(const samples_how_t *how, samples_t **out) LH_MUST_CHECK;
void samples_free(samples_t *s); /* NULL does nothing */

/* Tokens [sequence + 1] of sample i, and begins[k] = 1 where token k is the first taken from
 * another sequence of the set than the token before it (or from none); begins may be NULL. [any] */
lh_status_t samples_read(const samples_t *s, uint64_t i, int32_t *tokens,
                         uint8_t *begins) LH_MUST_CHECK;

/* Bounds [3][2] in sequences of train, valid and test: text is "969,30,1" or fewer numbers. */
lh_status_t samples_split(const char *text, uint64_t sequences, uint64_t out[3][2]) LH_MUST_CHECK;

/* Numpy's legacy RandomState, as far as a shuffle of integers needs it: Megatron's sample order is
 * made of nothing else. */
enum { MT19937_WORDS = 624 };

typedef struct mt19937 {
    uint32_t words[MT19937_WORDS];
    uint32_t next; /* index of the next word; MT19937_WORDS: make new ones */
} mt19937_t;

void samples_mt19937_seed(mt19937_t *g, uint32_t seed); /* RandomState(seed)         */
uint32_t samples_mt19937_next(mt19937_t *g);
void samples_mt19937_shuffle(mt19937_t *g, uint32_t *items, uint64_t count); /* count < 2^32 */

/* Which data set each sample of a blend comes from, as Megatron's build_blending_indices chooses:
 * always the one that is furthest behind its weight. */
enum { BLEND_SETS = 256, BLEND_NAME = 1024 };

typedef struct samples_blend_part {
    char name[BLEND_NAME];
    double weight; /* of a sum of 1 */
} samples_blend_part_t;

typedef struct samples_blend_list {
    samples_blend_part_t *parts;
    uint32_t count;
} samples_blend_list_t;

/* "corpus", or "a:0.7, b:0.3": every one has a weight, or there is one alone. */
lh_status_t samples_blend_parse(const char *text, samples_blend_list_t *out) LH_MUST_CHECK;
void samples_blend_list_free(samples_blend_list_t *list);

/* Samples that a set must have for a blend of `samples`, with Megatron's half per cent to spare. */
uint64_t samples_blend_wanted(double weight, uint64_t samples);

typedef struct samples_blend {
    uint64_t count;
    uint16_t *set;    /* [count] which data set       */
    uint32_t *sample; /* [count] which of its samples */
} samples_blend_t;

lh_status_t samples_blend_new(const samples_blend_list_t *list, uint64_t samples,
                              samples_blend_t *out) LH_MUST_CHECK;
void samples_blend_free(samples_blend_t *blend);

#endif
