/* spec/spec_read.h - what the sections [spec.*] of an INI say, in memory.
 *
 * Everything here is as it was written: trees of expressions, texts, where each stands. What
 * depends on the options of a job is worked out later, by the model (spec_model.h). */
#ifndef SPEC_SPEC_READ_H
#define SPEC_SPEC_READ_H

#include <plugin/registry.h>

#include <spec/spec_text.h>

enum { SPEC_PARTS = 3, SPEC_CLASSES = 26, SPEC_OPTIONS = 64, SPEC_LINES = 256 };

/* NAME = expression. */
typedef struct spec_line {
    const document_entry_t *at;
    spec_node_t *tree;
    bool used; /* some other line names it */
} spec_line_t;

/* [spec.embedding], [spec.head], or [spec.block] of a class. */
typedef struct spec_part {
    const document_section_t *section; /* NULL: the spec has none */
    const char *input;                 /* what the lines call the part's input: "x", "tokens" */
    uint32_t part;                     /* LH_PART_* */
    uint32_t class;                    /* of blocks: its number */
    spec_line_t *lines;
    uint32_t count;
    bool reads_input;
} spec_part_t;

/* [spec.parameter.NAME], as the table in spec_read.c parses it. Texts are the pool's. */
typedef struct spec_parameter_text {
    char *shape, *unit, *std, *hf, *hf_shape, *import, *export, *tied_to, *tied, *when, *classes;
    uint32_t part, cut, init, decay;
    bool frozen;
} spec_parameter_text_t;

typedef struct spec_parameter {
    const document_section_t *section;
    const char *name;
    spec_parameter_text_t text;
    spec_node_t *shape, *hf_shape, *unit, *std, *tied, *when; /* NULL where the text is empty */
    bool used;
} spec_parameter_t;

/* An option's row beside where it stands. */
typedef struct spec_option {
    const document_entry_t *at;
    bool used;
} spec_option_t;

/* [spec]. */
typedef struct spec_head {
    char *model_type, *architecture, *ignored, *prefix, *classes;
} spec_head_t;

typedef struct spec {
    const document_t *document;
    char where[600]; /* of [spec]: begins sentences about the whole */
    spec_pool_t pool;
    spec_head_t head;
    lh_option_t *rows; /* [option_count]; offsets are 8 bytes apart */
    spec_option_t *options;
    uint32_t option_count;
    spec_line_t *values; /* [spec.values] */
    uint32_t value_count;
    spec_parameter_t *parameters;
    uint32_t parameter_count;
    spec_part_t embedding, tail; /* tail: [spec.head] */
    spec_part_t blocks[SPEC_CLASSES];
    uint32_t class_count; /* 1 with [spec.block] */
    char letters[SPEC_CLASSES + 1];
    lh_hf_key_t *keys;
    uint32_t key_count;
    lh_hf_t hf;
    lh_model_api_t api;
    plugin_t plugin;
} spec_t;

/* All sections as they stand; that a name means something is spec_check's. The document outlives
 * the spec. *out: spec_free. */
lh_status_t spec_read_sections(const document_t *document, spec_t **out) LH_MUST_CHECK;
void spec_free(spec_t *s); /* NULL does nothing */

/* "file:line: [spec.block] q", for sentences. */
void spec_where_line(const document_section_t *section, const document_entry_t *at, char *out,
                     size_t room);
/* The option of that name; NULL: none. */
const lh_option_t *spec_find_option(const spec_t *s, const char *name, uint32_t *index);
/* Appends the keys of [spec] and [spec.parameter.NAME]. */
void spec_read_help(text_t *out);

#endif
