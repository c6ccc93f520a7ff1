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

#include <spec/spec_read.h>

/* Where [model] plugin = spec: reads the job's sections and gives the registry a model plugin of
 * that name, which lives as long as the registry. Any other job stays as it is, and may not have
 * such sections. The job outlives the registry. */
lh_status_t spec_adopt(const job_t *job, registry_t *registry) LH_MUST_CHECK;
/* As spec_adopt, of sections that are no job's, for whoever judges a spec by itself. The document
 * outlives the registry. */
lh_status_t spec_adopt_sections(const document_t *document, registry_t *registry) LH_MUST_CHECK;

/* All sections, with every mistake that can be found without the ops: names twice, unknown, unused,
 * in a circle. The document outlives the spec. *out: spec_free. */
lh_status_t spec_read(const document_t *document, spec_t **out) LH_MUST_CHECK;

/* Appends the keys of [spec] and [spec.parameter.NAME], and the calls that are no ops. */
void spec_help(text_t *out);

#endif
