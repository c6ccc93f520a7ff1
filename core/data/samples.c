/* samples.c - document, sample and shuffle index of Megatron's GPTDataset, and its blends.
 *
 * Three tables make the order. documents: the numbers of all sequences, epoch after epoch,
 * shuffled. cuts: laid end to end in that order, where each sample begins. shuffle: which cut
 * sample i reads. The two shuffles draw from one generator, in this order, as Megatron's do. With
 * sequences of 3, 2 and 4 tokens, samples of 4 and the order 2, 0, 1:
 *
 *     tokens       a b c d | e f g | h i       of the sequences 2, 0 and 1
 *     cut 0        a b c d   e                 place 0, offset 0
 *     cut 1                  e f g   h i       place 1, offset 0
 *
 * Where the last epoch is needed in part only, and in a small part, its sequences and samples are
 * shuffled apart from the others: else the few samples of it would stand all over the run. */
#include <data/samples.h>

#include <math.h>

#include <base/memory.h>
#include <base/status.h>
#include <base/text.h>
#include <config/job.h>

enum { SHARED_TOKENS = 1 }; /* a sample's last token is the next one's first: labels are shifted */
/* A last epoch of which less than this is used is kept apart, so that its few samples are not
 * spread over the whole run. */
static const double separate_below = 0.80;

/* In the sequences that take part, which are one epoch. */
static uint64_t tokens_in(const samples_how_t *how)
{
    uint64_t tokens = 0;
    for (uint64_t i = how->first; i < how->end; i++)
        tokens += (uint64_t)how->set->lengths[i];
    return tokens;
}

/* Sets epochs, count and separate_final_epoch; *before_final: samples without the last epoch. As
 * many epochs as the samples that are wanted need; count is what these have, which may be more.
 * Sums that don't fit 64 bits become UINT64_MAX and are refused with what an index can't hold. */
static lh_status_t epochs_plan(const samples_how_t *how, samples_t *s, uint64_t *before_final)
{
    const uint64_t per_epoch = s->tokens_per_epoch;
    uint64_t wanted_tokens, tokens;
    if (!checked_mul(how->wanted, how->sequence, &wanted_tokens) ||
        !checked_add(wanted_tokens, SHARED_TOKENS, &wanted_tokens))
        return fail(LH_INVALID, "%s: %llu samples of %llu tokens are too many", how->name,
                    (unsigned long long)how->wanted, (unsigned long long)how->sequence);
    if (per_epoch < (how->wanted == 0 ? how->sequence + SHARED_TOKENS : 1))
        return fail(LH_INVALID, "%s has %llu tokens, one sample takes %llu", how->name,
                    (unsigned long long)per_epoch,
                    (unsigned long long)how->sequence + SHARED_TOKENS);

    /* rounded up */
    s->epochs = how->wanted == 0 ? 1 : (wanted_tokens - 1) / per_epoch + 1;
    if (!checked_mul(s->epochs, per_epoch, &tokens) ||
        !checked_mul(s->epochs, how->end - how->first, &s->document_count))
        tokens = s->document_count = UINT64_MAX;
    s->count = (tokens - SHARED_TOKENS) / how->sequence;
    if (s->document_count >= UINT32_MAX || s->count >= UINT32_MAX)
        return fail(LH_INVALID, "%s: %llu epochs of %llu sequences are more than an index can hold",
                    how->name, (unsigned long long)s->epochs,
                    (unsigned long long)(how->end - how->first));
    lh_assert(s->count >= how->wanted);
    if (s->epochs == 1) return LH_OK;

    *before_final = ((s->epochs - 1) * per_epoch - SHARED_TOKENS) / how->sequence;
    lh_assert(*before_final <= how->wanted);
    /* How many samples the last epoch is needed for, against how many it has. */
    const uint64_t from_final = how->wanted - *before_final;
    const uint64_t in_epoch = (per_epoch - SHARED_TOKENS) / how->sequence;
    s->separate_final_epoch = from_final < (uint64_t)(separate_below * (double)in_epoch);
    return LH_OK;
}

/* The table of sequences; with a separate last epoch two shuffles of parts. */
static void documents_fill(const samples_how_t *how, samples_t *s, mt19937_t *random)
{
    const uint64_t range = how->end - how->first;
    for (uint64_t i = 0; i < s->document_count; i++)
        s->documents[i] = (uint32_t)(how->first + i % range);
    const uint64_t together = s->document_count - (s->separate_final_epoch ? range : 0);
    lh_assert(together <= s->document_count);
    samples_mt19937_shuffle(random, s->documents, together);
    samples_mt19937_shuffle(random, s->documents + together, s->document_count - together);
}

/* Walks the shuffled sequences, sequence tokens from cut to cut. A cut that would fall behind a
 * sequence's last token falls on it: the shared token is taken from there. */
static void cuts_fill(samples_t *s)
{
    uint64_t place = 0, offset = 0;
    s->cuts[0] = (sample_cut_t){0};
    for (uint64_t k = 1; k <= s->count; k++) {
        uint64_t left = s->sequence + SHARED_TOKENS;
        for (;;) {
            lh_assert(place < s->document_count);
            const uint64_t here = (uint64_t)s->set->lengths[s->documents[place]] - offset;
            if (here >= left) break;
            left -= here;
            place++;
            offset = 0;
        }
        /* The shared token belongs to the next sample too. */
        offset += left - SHARED_TOKENS;
        s->cuts[k] = (sample_cut_t){(uint32_t)place, (uint32_t)offset};
    }
}

/* The order of samples; those that reach into a separate last epoch are shuffled by themselves. */
static void shuffle_fill(samples_t *s, uint64_t before_final, mt19937_t *random)
{
    for (uint64_t i = 0; i < s->count; i++)
        s->shuffle[i] = (uint32_t)i;
    const uint64_t together = s->separate_final_epoch ? before_final : s->count;
    lh_assert(together <= s->count);
    samples_mt19937_shuffle(random, s->shuffle, together);
    samples_mt19937_shuffle(random, s->shuffle + together, s->count - together);
}

static lh_status_t samples_fill(const samples_how_t *how, samples_t *s)
{
    uint64_t before_final = 0;
    const lh_status_t status = epochs_plan(how, s, &before_final);
    if (status != LH_OK) return status;
    s->documents = mem_array(s->document_count, sizeof(*s->documents));
    s->cuts = mem_array(s->count + 1, sizeof(*s->cuts));
    s->shuffle = mem_array(s->count, sizeof(*s->shuffle));
    if (s->documents == NULL || s->cuts == NULL || s->shuffle == NULL) return LH_NO_MEMORY;

    mt19937_t random;
    samples_mt19937_seed(&random, (uint32_t)how->seed);
    documents_fill(how, s, &random);
    cuts_fill(s);
    shuffle_fill(s, before_final, &random);
    return LH_OK;
}

/* Bounds are those of numpy's generator and of the types in an index. */
lh_status_t samples_new(const samples_how_t *how, samples_t **out)
{
    if (how->seed > UINT32_MAX)
        return fail(LH_INVALID, "[data] seed is %llu, numpy's generator takes at most %u",
                    (unsigned long long)how->seed, UINT32_MAX);
    if (how->end > INT32_MAX)
        return fail(LH_INVALID, "%s: %llu sequences, an index holds at most %d", how->name,
                    (unsigned long long)how->end, INT32_MAX);
    if (how->first == how->end) return fail(LH_INVALID, "%s has no sequences", how->name);
    lh_assert(how->first <= how->end && how->end <= how->set->sequences);
    lh_assert(how->sequence > 0);

    samples_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;
    s->set = how->set;
    s->sequence = how->sequence;
    s->tokens_per_epoch = tokens_in(how);
    const lh_status_t status = samples_fill(how, s);
    if (status != LH_OK) {
        samples_free(s);
        return status;
    }
    *out = s;
    return LH_OK;
}

void samples_free(samples_t *s)
{
    if (s == NULL) return;
    mem_free(s->shuffle);
    mem_free(s->cuts);
    mem_free(s->documents);
    mem_free(s);
}

/* Reads from sequence to sequence until the sample is full. */
lh_status_t samples_read(const samples_t *s, uint64_t i, int32_t *tokens, uint8_t *begins)
{
    lh_assert(i < s->count);
    /* Where the sample begins; it ends where it is full. */
    const sample_cut_t cut = s->cuts[s->shuffle[i]];
    uint64_t left = s->sequence + SHARED_TOKENS, offset = cut.offset;
    if (begins != NULL) memset(begins, 0, left);
    for (uint64_t place = cut.place; left > 0; place++) {
        lh_assert(place < s->document_count);
        const uint32_t document = s->documents[place];
        const uint64_t here = (uint64_t)s->set->lengths[document] - offset;
        const uint64_t count = here < left ? here : left;
        const lh_status_t status = indexed_read(s->set, document, offset, count, tokens);
        if (status != LH_OK) return status;
        tokens += count;
        if (begins != NULL) {
            if (count > 0) *begins = 1;
            begins += count;
        }
        left -= count;
        offset = 0;
    }
    return LH_OK;
}

/* Shares of a sum of 1; numbers that are left out are 0. */
static lh_status_t split_parse(const char *text, double shares[3])
{
    double sum = 0;
    const char *at = text;
    for (int i = 0; i < 3; i++) {
        char *end;
        shares[i] = 0;
        if (at == NULL) continue;
        shares[i] = text_real(at, &end);
        while (*end == ' ')
            end++;
        if (end == at || !(shares[i] >= 0) || shares[i] > JOB_SPLIT_MOST ||
            (*end != ',' && *end != '\0'))
            return fail(LH_INVALID,
                        "[data] split '%s': three numbers such as 969,30,1 are expected", text);
        sum += shares[i];
        at = *end == ',' ? end + 1 : NULL;
    }
    if (at != NULL || sum <= 0)
        return fail(LH_INVALID, "[data] split '%s': at most three numbers, not all 0, are expected",
                    text);
    for (int i = 0; i < 3; i++)
        shares[i] /= sum;
    return LH_OK;
}

/* Bounds are rounded and not shares, so that nothing is lost between two splits. */
lh_status_t samples_split(const char *text, uint64_t sequences, uint64_t out[3][2])
{
    double shares[3], bound = 0;
    const lh_status_t status = split_parse(text, shares);
    if (status != LH_OK) return status;
    for (int i = 0; i < 3; i++) {
        out[i][0] = (uint64_t)rint(bound * (double)sequences); /* half to even, as Python rounds */
        bound += shares[i];
        out[i][1] = (uint64_t)rint(bound * (double)sequences);
    }
    return LH_OK;
}

/* Mersenne twister (Matsumoto and Nishimura, 1998) and numpy's legacy shuffle. The constants are
 * the paper's. */
enum { SHIFT = 397 };

void samples_mt19937_seed(mt19937_t *g, uint32_t seed)
{
    for (uint32_t i = 0; i < MT19937_WORDS; i++) {
        g->words[i] = seed;
        seed = 1812433253u * (seed ^ (seed >> 30)) + i + 1;
    }
    g->next = MT19937_WORDS;
}

/* The next 624 words, in place. */
static void samples_mt19937_renew(mt19937_t *g)
{
    for (uint32_t i = 0; i < MT19937_WORDS; i++) {
        const uint32_t low = g->words[(i + 1) % MT19937_WORDS];
        const uint32_t mixed = (g->words[i] & 0x80000000u) | (low & 0x7fffffffu);
        g->words[i] = g->words[(i + SHIFT) % MT19937_WORDS] ^ (mixed >> 1) ^
                      ((mixed & 1) != 0 ? 0x9908b0dfu : 0);
    }
    g->next = 0;
}

uint32_t samples_mt19937_next(mt19937_t *g)
{
    if (g->next == MT19937_WORDS) samples_mt19937_renew(g);
    uint32_t y = g->words[g->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* Uniform in [0, most]: draws masked with the smallest all-ones mask until one is not above. How
 * often it draws is part of numpy's stream, so another way to the same distribution would not
 * do. */
static uint32_t samples_mt19937_draw(mt19937_t *g, uint32_t most)
{
    uint32_t mask = most, value;
    for (uint32_t shift = 1; shift < 32; shift *= 2)
        mask |= mask >> shift;
    do {
        value = samples_mt19937_next(g) & mask;
    } while (value > most);
    return value;
}

/* Fisher and Yates's, from the end. */
void samples_mt19937_shuffle(mt19937_t *g, uint32_t *items, uint64_t count)
{
    lh_assert(count <= UINT32_MAX);
    for (uint64_t i = count; i-- > 1;) {
        const uint32_t j = samples_mt19937_draw(g, (uint32_t)i), item = items[i];
        items[i] = items[j];
        items[j] = item;
    }
}

/* "name:weight" or "name"; a colon inside a folder's name is none of ours. The text is cut up. */
static lh_status_t part_parse(char *text, samples_blend_part_t *out, bool *has_weight)
{
    char *colon = strrchr(text, ':');
    *has_weight = colon != NULL && strchr(colon, '/') == NULL;
    out->weight = 1;
    if (*has_weight) {
        char *end;
        out->weight = text_real(colon + 1, &end);
        if (*text_trim(colon + 1) == '\0' || *text_trim(end) != '\0' || !(out->weight > 0) ||
            out->weight > 1e15)
            return fail(LH_INVALID,
                        "data set '%s': '%s' is no weight, a number above 0 is expected", text,
                        colon + 1);
        *colon = '\0';
    }
    const char *name = text_trim(text);
    if (*name == '\0') return fail(LH_INVALID, "a data set of a blend has no name");
    if (strlen(name) >= BLEND_NAME)
        return fail(LH_INVALID, "data set '%.64s...': a name of %zu bytes, at most %d are allowed",
                    name, strlen(name), BLEND_NAME - 1);
    memcpy(out->name, name, strlen(name) + 1);
    return LH_OK;
}

/* All parts of a list; weights are made to sum to 1. */
static lh_status_t parts_parse(char *text, samples_blend_list_t *list)
{
    uint32_t weights = 0;
    double sum = 0;
    char *rest = NULL;
    for (char *part = strtok_r(text, ",", &rest); part != NULL; part = strtok_r(NULL, ",", &rest)) {
        bool has_weight;
        if (list->count == BLEND_SETS)
            return fail(LH_INVALID, "more than %d data sets in a blend", BLEND_SETS);
        const lh_status_t status = part_parse(part, &list->parts[list->count], &has_weight);
        if (status != LH_OK) return status;
        sum += list->parts[list->count++].weight;
        weights += has_weight ? 1 : 0;
    }
    if (list->count == 0) return fail(LH_INVALID, "no data set is named");
    if (list->count > 1 && weights != list->count)
        return fail(LH_INVALID,
                    "%u of %u data sets have a weight; each needs one, as in a:0.7, b:0.3", weights,
                    list->count);
    for (uint32_t i = 0; i < list->count; i++)
        list->parts[i].weight /= sum;
    return LH_OK;
}

lh_status_t samples_blend_parse(const char *text, samples_blend_list_t *out)
{
    samples_blend_list_t list = {.parts = mem_array(BLEND_SETS, sizeof(*list.parts))};
    char *copy = mem_text(text);
    lh_status_t status = LH_NO_MEMORY;
    if (list.parts != NULL && copy != NULL) status = parts_parse(copy, &list);
    mem_free(copy);
    if (status != LH_OK) {
        samples_blend_list_free(&list);
        return status;
    }
    *out = list;
    return LH_OK;
}

void samples_blend_list_free(samples_blend_list_t *list)
{
    mem_free(list->parts);
    *list = (samples_blend_list_t){0};
}

/* Both roundings and the half per cent are Megatron's, as the number decides the epochs of the set
 * and with them its order. */
uint64_t samples_blend_wanted(double weight, uint64_t samples)
{
    return (uint64_t)ceil(ceil((double)samples * weight) * 1.005);
}

/* Megatron's rule in its own floating point, so that ties fall alike: a set is behind by its weight
 * times the samples so far, minus what it has given. */
lh_status_t samples_blend_new(const samples_blend_list_t *list, uint64_t samples,
                              samples_blend_t *out)
{
    lh_assert(list->count > 0 && list->count <= BLEND_SETS);
    if (samples >= UINT32_MAX)
        return fail(LH_INVALID, "a blend of %llu samples, at most %u are possible",
                    (unsigned long long)samples, UINT32_MAX - 1);
    samples_blend_t b = {.count = samples};
    b.set = mem_array(samples, sizeof(*b.set));
    b.sample = mem_array(samples, sizeof(*b.sample));
    uint64_t *taken = mem_array(list->count, sizeof(*taken));
    if (b.set == NULL || b.sample == NULL || taken == NULL) {
        mem_free(taken);
        samples_blend_free(&b);
        return LH_NO_MEMORY;
    }
    for (uint64_t i = 0; i < samples; i++) {
        /* As Megatron has it: the first sample counts as if one had been given. */
        const double at = i == 0 ? 1.0 : (double)i;
        uint32_t furthest = 0;
        double most = -INFINITY;
        for (uint32_t k = 0; k < list->count; k++) {
            const double behind = list->parts[k].weight * at - (double)taken[k];
            if (behind > most) {
                most = behind;
                furthest = k;
            }
        }
        /* Which set, and the next one of its samples in its order. */
        b.set[i] = (uint16_t)furthest;
        b.sample[i] = (uint32_t)taken[furthest]++;
    }
    mem_free(taken);
    *out = b;
    return LH_OK;
}

void samples_blend_free(samples_blend_t *blend)
{
    mem_free(blend->sample);
    mem_free(blend->set);
    *blend = (samples_blend_t){0};
}
