/* tokenizer/tokenizer_stages.h - the stages around the model of a tokenizer.json, for its reader.
 *
 * Each takes what stands under its key; NULL and null mean that there is no such stage. They come in
 * this order: the pretokenizer decides between bytes and characters (t->spelled), which the model
 * goes by. The last one fills t->frame. */
#ifndef TOKENIZER_TOKENIZER_STAGES_H
#define TOKENIZER_TOKENIZER_STAGES_H

#include <tokenizer/tokenizer_parts.h>

lh_status_t tokenizer_read_normalizer(tokenizer_t *t, const char *path,
                                      const json_value_t *value) LH_MUST_CHECK;
lh_status_t tokenizer_read_pretokenizer(tokenizer_t *t, const char *path,
                                        const json_value_t *value) LH_MUST_CHECK;
lh_status_t tokenizer_read_decoder(tokenizer_t *t, const char *path,
                                   const json_value_t *value) LH_MUST_CHECK;
lh_status_t tokenizer_read_post_processor(tokenizer_t *t, const char *path,
                                          const json_value_t *value) LH_MUST_CHECK;
/* Fills t->frame where there is no post_processor, by add_bos_token and add_eos_token of a
 * tokenizer_config.json (NULL: none). Once t->special is known. */
lh_status_t tokenizer_frame_by_config(tokenizer_t *t, const json_value_t *config) LH_MUST_CHECK;

#endif
