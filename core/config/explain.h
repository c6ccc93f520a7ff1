/* config/explain.h - every effective value of a section with where it comes from, in INI form, so
 * that the output can be saved and run again. */
#ifndef CONFIG_EXPLAIN_H
#define CONFIG_EXPLAIN_H

#include <config/options.h>

/* Appends "[section]" and a line a key: "batch = 8   ; pipeline.ini:12, overrides base.ini:3". */
void explain_section(const options_how_t *how, text_t *out);

/* Appends what a table offers: "key = default   range   help", aligned. */
void explain_table(const lh_option_t *rows, uint32_t count, text_t *out);

#endif
