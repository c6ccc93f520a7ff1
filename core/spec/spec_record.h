/* spec/spec_record.h - a part's lines become calls of the recorder. */
#ifndef SPEC_SPEC_RECORD_H
#define SPEC_SPEC_RECORD_H

#include <spec/spec_model.h>

/* lh_model_api_t.record: the part's output, 0 after a refusal. */
lh_value_t spec_record(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                       lh_value_t input);

/* Appends what rotary, alibi and constant take. */
void spec_record_help(text_t *out);

#endif
