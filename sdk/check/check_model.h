/* check_model.h - the kit's own model, for checks of what is not a model: parameters that several
 * ranks can share, small ones and odd ones. */
#ifndef CHECK_MODEL_H
#define CHECK_MODEL_H

#include <longhaul/model.h>

enum { CHECK_MODEL_VOCAB = 37 };
extern const lh_model_api_t check_model;

#endif
