/* session/link_record.h - what was measured of the links between sites (links/link_probe.h), kept
 * as links.json in the pipeline's folder: the next start need not measure again, and plans and
 * benches read what a link gives.
 *
 * One process writes it, rank 0 of a run or of `bench links`; it is replaced as a whole, so a
 * reader sees the old or the new one. A row is kept until the same link is measured again; whether
 * it is still young enough is decided by who uses it. */
#ifndef SESSION_LINK_RECORD_H
#define SESSION_LINK_RECORD_H

#include <config/job.h>
#include <format/json.h>
#include <links/link_probe.h>

enum { LINK_RECORD_LEFT = 512 };

/* Owned by link_record_free. The words are of the machines that measured, where a record has them. */
typedef struct link_record {
    probe_pair_t *pairs;
    probe_words_t *words;
    uint32_t pair_count, word_count;
    char left_out[LINK_RECORD_LEFT]; /* what is wrong with words that its text has; "": nothing */
} link_record_t;

/* The rows of a record's text. What is damaged, of another version or out of range is refused with
 * a sentence; where that is in the words of machines, by which nothing goes, these alone are left out. */
lh_status_t link_record_parse(const char *path, const char *text, size_t length,
                              link_record_t *out) LH_MUST_CHECK;
void link_record_free(link_record_t *r);
/* The pairs of the job's record; one that is missing has no rows. One that can't be used is a warning, and none:
 * who measures links writes it anew. Where the words of machines alone can't be, the pairs count, with a
 * warning as well. *out may be NULL with *count 0; the caller frees it with mem_free. */
void link_record_load(const job_t *job, probe_pair_t **out, uint32_t *count);
/* Writes those of the rows that were measured, and the words (NULL: none), and keeps the record's
 * others, and those of which a job of fewer ranks has only taken its part (link_crowd_scale). A folder that
 * can't be written is a warning. */
void link_record_keep(const job_t *job, const probe_pair_t *pairs, uint32_t count,
                      const probe_words_t *words, uint32_t word_count);
/* The record as a text, and its list of rows alone. */
void link_record_text(const probe_pair_t *pairs, uint32_t count, const probe_words_t *words,
                      uint32_t word_count, text_t *out);
void link_record_rows(json_writer_t *w, const char *key, const probe_pair_t *pairs, uint32_t count);

#endif
