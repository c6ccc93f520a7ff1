/* spec/spec.h - an architecture written down in the INI: read from [spec.*], checked, and handed
 * to everybody else as a model plugin like any other.
 *
 * [model] plugin = spec is no file. What a plugin's tables say, the sections say: [spec.options]
 * its options, [spec.parameter.NAME] its parameters, [spec.config] its keys of config.json, and
 * [spec.embedding], [spec.block], [spec.head] what record() calls. So import, check, plan,
 * training and export read one description and know nothing of how it was written.
 *
 * It is a part of the core and not a shared object, because it consists of what the core has
 * already: lines that know file and number, tables of options, rows of ops. A plugin would need
 * each of them handed over its border. docs/specs.md has the syntax. */
#ifndef SPEC_SPEC_H
#define SPEC_SPEC_H

#include <plugin/registry.h>

#include <spec/spec_text.h>

enum { SPEC_PARTS = 3, SPEC_CLASSES = 26, SPEC_OPTIONS = 64, SPEC_LINES = 256 };

/* Where [model] plugin = spec: reads the job's sections and gives the registry a model plugin of
 * that name, which lives as long as the registry. Any other job stays as it is, and may not have
 * such sections. The job outlives the registry. */
lh_status_t spec_adopt(const job_t *job, registry_t *registry) LH_MUST_CHECK;

/* Appends the keys of [spec] and [spec.parameter.NAME], and the calls that are no ops. */
void spec_help(text_t *out);

/* ---- what was read; for the files of this folder and their tests ---- */

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

/* All sections, with every mistake that can be found without the ops: names twice, unknown, unused,
 * in a circle. The document outlives the spec. *out: spec_free. */
lh_status_t spec_read(const document_t *document, spec_t **out) LH_MUST_CHECK;
void spec_free(spec_t *s); /* NULL does nothing */

/* Second half of spec_read: what names mean and who reads what (spec_check.c). */
lh_status_t spec_check(spec_t *s) LH_MUST_CHECK;

/* "file:line: [spec.block] q", for sentences. */
void spec_where_line(const document_section_t *section, const document_entry_t *at, char *out,
                     size_t room);
/* The option of that name; NULL: none. */
const lh_option_t *spec_find_option(const spec_t *s, const char *name, uint32_t *index);
/* An index, or the count where there is none of that name. */
uint32_t spec_find_value(const spec_t *s, const char *name);
uint32_t spec_find_line(const spec_part_t *part, const char *name, uint32_t before);
/* Whether the part's blocks have the parameter. */
bool spec_part_has(const spec_t *s, const spec_part_t *part, const spec_parameter_t *p);
const spec_parameter_t *spec_find_parameter(const spec_t *s, const spec_part_t *part,
                                            const char *name);
/* "line.slot": the length of the line's name; 0: there is no dot. */
size_t spec_slot_dot(const char *name);

/* An input of the recording by its name in a line, input(positions); 0: none. */
uint32_t spec_input(const char *name);
/* Appends what rotary, alibi and constant take. */
void spec_makers_help(text_t *out);

/* The model's functions, lh_model_api_t (spec_model.c, spec_record.c). */
lh_status_t spec_model_open(const lh_host_t *host, const void *config, lh_model_t **out);
void spec_model_close(lh_model_t *m);
lh_status_t spec_model_describe(lh_model_t *m, lh_model_info_t *out);
lh_value_t spec_model_record(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                             lh_value_t input);

/* ---- an opened model ---- */

struct lh_model {
    const spec_t *spec;
    const void *config;
    const char **texts;   /* [option_count] words of choices, texts; NULL: a number, or not set */
    spec_value_t *values; /* [spec->value_count], worked out */
    uint8_t *valued;      /* [value_count] 1: is known       */
    lh_param_t *rows;     /* those that are there            */
    uint32_t row_count;
    const spec_parameter_t **of; /* [row_count] */
    uint8_t *classes;            /* [blocks] */
    uint64_t blocks, hidden, vocab, max_tokens;
    spec_pool_t pool;
};

/* Names of numbers, for spec_evaluate: options, values, and in a block its number. */
typedef struct spec_scope {
    lh_model_t *model;
    bool in_block;
    uint32_t block;
} spec_scope_t;
spec_names_t spec_scope_names(spec_scope_t *scope, const char *where);
/* Whether the parameter is there with these options. */
bool spec_model_has(const lh_model_t *m, const spec_parameter_t *p);

#endif
