/* train/identity.h - what a run's bits depend on besides its checkpoint: a resume that changes it
 * would be another run. */
#ifndef TRAIN_IDENTITY_H
#define TRAIN_IDENTITY_H

#include <base/text.h>
#include <train/session.h>

/* Appends "section.key = value" lines: the model's options, the data and its order, the batch and
 * the precision. Steps, schedule, evaluation and saving may change between runs and are not among
 * them. */
void identity_text(const session_t *s, text_t *out);
/* The part of it that says which model it is: where nothing is trained. */
void identity_model(const job_t *job, const plugin_t *plugin, const void *config, text_t *out);
/* tokenizer_digest of what makes its text; 0, where that is not known, says nothing. */
void identity_tokenizer(uint64_t digest, text_t *out);

/* Refuses with the first value that differs of those that both texts name; `then` is what the
 * checkpoint at `path` holds. */
lh_status_t identity_compare(const char *path, const char *then, const char *now) LH_MUST_CHECK;
/* The same of the model and its tokenizer alone. What an import says of itself has no such lines.
 */
lh_status_t identity_compare_model(const char *path, const char *then,
                                   const char *now) LH_MUST_CHECK;

#endif
