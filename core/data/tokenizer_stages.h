/* data/tokenizer_stages.h - the stages of a tokenizer.json around its model. */
#ifndef DATA_TOKENIZER_STAGES_H
#define DATA_TOKENIZER_STAGES_H

#include <data/tokenizer_inside.h>

/* Each takes what stands under its key: NULL and null mean that there is no such stage. */
lh_status_t tokenizer_read_normalizer(tokenizer_t *t, const char *path,
                                      json_t *value) LH_MUST_CHECK;
/* Decides between bytes and characters too: t->spelled. */
lh_status_t tokenizer_read_pretokenizer(tokenizer_t *t, const char *path,
                                        json_t *value) LH_MUST_CHECK;
lh_status_t tokenizer_read_decoder(tokenizer_t *t, const char *path, json_t *value) LH_MUST_CHECK;

#endif
