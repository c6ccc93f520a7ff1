/* manual.c - which build this is; longhaul(1) and longhaul.ini(5) as roff, and completion for bash and zsh.
 *
 * All of them are walks over three tables: the commands with their flags, the sections with their
 * keys, the plugins' keys. What is in none of the tables stands here as text: exit codes, the
 * environment, files. The pages are made when the program is built, by the program (CMakeLists.txt),
 * so they are of its version and can't drift from it.
 *
 * roff is written with the man macros alone, which groff and mandoc share. A line that begins with
 * a dot or a quote is an order, a backslash begins an escape, and a bare hyphen may become a dash:
 * append_roff writes all three so that they are text.
 *
 * The completion script holds the tables as lists of words. It asks the program nothing, so that a
 * key of the keyboard never waits for plugins to be loaded. */
#include <cli/manual.h>

#include <gnu/libc-version.h>

#include <openssl/crypto.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <yyjson.h>
#include <zlib.h>
#include <zstd.h>

#include <longhaul/plugin.h>

#include <config/options.h>

/* ---- roff ---- */

/* A text of any kind within a line. */
static void append_roff(const char *text, text_t *out)
{
    if (*text == '.' || *text == '\'') text_append(out, "\\&");
    for (; *text != '\0'; text++) {
        if (*text == '\\')
            text_append(out, "\\e");
        else if (*text == '-')
            text_append(out, "\\-");
        else if (*text == '\n')
            text_append(out, " ");
        else
            text_append_n(out, text, 1);
    }
}

/* "train" in bold as the term of a list, and the paragraph behind it is what follows. */
static void append_term(const char *bold, const char *plain, text_t *out)
{
    text_append(out, ".TP\n\\fB");
    append_roff(bold, out);
    text_append(out, "\\fR");
    append_roff(plain, out);
    text_append(out, "\n");
}

typedef struct term {
    const char *term, *text;
} term_t;

static void append_terms(const char *title, const term_t *rows, size_t count, text_t *out)
{
    text_printf(out, ".SH %s\n", title);
    for (size_t i = 0; i < count; i++) {
        append_term(rows[i].term, "", out);
        append_roff(rows[i].text, out);
        text_append(out, "\n");
    }
}
#define APPEND_TERMS(title, rows, out) \
    append_terms(title, rows, sizeof(rows) / sizeof((rows)[0]), out)

/* The order of status.h. */
static const term_t exit_codes[] = {
    {"0", "Done."},
    {"1", "An input or the configuration was refused, or a device, a file or a save failed: the "
          "sentence on stderr says which. Starting it again gives the same."},
    {"2", "The command line was wrong."},
    {"3",
     "A rank, a link or a GPU was lost, or the others did not come within [launch] join_timeout, "
     "rejoin or quorum_timeout. Go on with --resume."},
    {"4", "Too many steps in a row were not finite ([train] not_finite_limit)."},
    {"5", "A mistake of longhaul itself, found by an assertion."},
    {"75",
     "Stopped by SIGTERM, SIGINT, a terminal that closed or longhaul stop, here or on another "
     "machine of the job. Where steps were made the last one is saved: go on with --resume."},
    {"128 + N",
     "Ended at once by signal N, as by a second SIGTERM; 143 where another machine was."},
};

static const term_t environment[] = {
    {"LONGHAUL_CORE", "1: a crash may leave a core, which holds weights and tokens."},
    {"XDG_CACHE_HOME, HOME", "Where the records of longhaul bench device lie, and the choices of "
                             "kernels that [device] tune has timed."},
    {"JOURNAL_STREAM", "Set by systemd: where stderr is the journal's, lines begin with their "
                       "priority."},
    {"TERM, NO_COLOR", "Whether the line of progress renews itself."},
    {"LC_ALL, LC_CTYPE, LANG", "Whether its bar may be of other characters than ASCII's."},
    {"RANK, OMPI_COMM_WORLD_RANK, PMIX_RANK, SLURM_PROCID",
     "With what belongs to them: the place of a process that torchrun, mpirun, a PMIx server or "
     "srun has started."},
};

static const term_t files[] = {
    {"PREFIX/lib/longhaul", "Plugins, found beside the folder of the program."},
    {"FOLDER/train.log, rank-N.log", "Lines of a run, with times of day. [pipeline] folder names "
                                     "FOLDER."},
    {"FOLDER/metrics.jsonl, report.html, status.json", "Figures of a run."},
    {"FOLDER/checkpoints", "Checkpoints, each a folder that longhaul verify reads back."},
};

static void append_head(const char *title, const char *section, text_t *out)
{
    text_append(out, ".\\\" Made by longhaul help --as: see its tables.\n");
    text_printf(out, ".TH %s %s \"\" \"longhaul %s\" \"Longhaul\"\n", title, section, LH_VERSION);
}

void manual_flag_value(const cli_flag_t *flag, text_t *out)
{
    if (flag->value != NULL) text_printf(out, " %s", flag->value);
}

static void append_flags(const command_t *c, text_t *out)
{
    for (uint32_t i = 0; i < CLI_FLAGS && c->flags[i].name != NULL; i++) {
        text_t name = {0}, value = {0};
        text_printf(&name, "--%s", c->flags[i].name);
        manual_flag_value(&c->flags[i], &value);
        append_term(name.failed ? "" : name.data, value.data == NULL ? "" : value.data, out);
        append_roff(c->flags[i].help, out);
        text_append(out, "\n");
        out->failed = out->failed || name.failed || value.failed;
        text_free(&name);
        text_free(&value);
    }
}

/* Usage ends with a line's end, which is no part of a heading. */
static void append_command(const command_t *c, text_t *out)
{
    text_t usage = {0};
    cli_usage(c, &usage);
    out->failed = out->failed || usage.failed;
    text_append(out, ".SS ");
    append_roff(c->name, out);
    text_append(out, "\n.nf\n");
    if (!usage.failed) append_roff(text_trim(usage.data), out);
    text_append(out, "\n.fi\n.PP\n");
    append_roff(c->summary, out);
    text_append(out, "\n");
    append_flags(c, out);
    text_free(&usage);
}

static void append_man(text_t *out)
{
    uint32_t count;
    const command_t *const *all = cli_commands(&count);
    append_head("LONGHAUL", "1", out);
    text_append(out,
                ".SH NAME\nlonghaul \\- trains large language models on one machine or several "
                "sites\n"
                ".SH SYNOPSIS\n\\fBlonghaul\\fR \\fICOMMAND\\fR [\\fIPIPELINE.ini\\fR | "
                "\\fINAME\\fR] [\\fIflags\\fR]\n.br\n\\fBlonghaul \\-\\-version\\fR\n"
                ".SH DESCRIPTION\nOne INI file, longhaul.ini(5), describes a whole job, from "
                "raw text to a Hugging Face folder. "
                "\\fBlonghaul run\\fR carries it out.\n.PP\n\\fB\\-\\-set\\fR "
                "\\fIsection.key=value\\fR sets a key of the INI on the command line; "
                "\\fB\\-\\-plugins\\fR \\fIDIR\\fR takes plugins from another folder; "
                "\\fB\\-\\-\\fR ends the flags.\n.SH COMMANDS\n");
    for (uint32_t i = 0; i < count; i++)
        append_command(all[i], out);
    APPEND_TERMS("EXIT STATUS", exit_codes, out);
    APPEND_TERMS("ENVIRONMENT", environment, out);
    APPEND_TERMS("FILES", files, out);
    text_append(out, ".SH SEE ALSO\nlonghaul.ini(5)\n");
}

/* ---- longhaul.ini(5) ---- */

static void append_keys(const lh_option_t *rows, uint32_t count, text_t *out)
{
    for (uint32_t i = 0; i < count; i++) {
        text_t rest = {0};
        if (rows[i].fallback == NULL)
            text_append(&rest, " (required; ");
        else if (rows[i].fallback[0] == '\0')
            text_append(&rest, " (not set; ");
        else
            text_printf(&rest, " = %s (", rows[i].fallback);
        options_append_kind(&rows[i], &rest);
        text_append(&rest, ")");
        out->failed = out->failed || rest.failed;
        append_term(rows[i].key, rest.failed ? "" : rest.data, out);
        append_roff(rows[i].help, out);
        text_append(out, "\n");
        text_free(&rest);
    }
}

/* Of each plugin that can be used. */
static lh_status_t append_plugin(void *context, const plugin_t *p)
{
    text_t *out = context;
    text_printf(out, ".SS %s ", plugin_kind_text(p->kind));
    append_roff(p->name, out);
    text_append(out, "\n");
    append_roff(p->summary, out);
    text_append(out, "\n");
    append_keys(p->options, p->option_count, out);
    for (uint32_t i = 0; i < p->rule_count; i++) {
        text_append(out, ".PP\nrule \\fB");
        append_roff(p->name, out);
        text_append(out, ":");
        append_roff(p->rules[i].name, out);
        text_append(out, "\\fR: ");
        append_roff(p->rules[i].help, out);
        text_append(out, "; keys of [rule.");
        append_roff(p->rules[i].name, out);
        text_append(out, "]:\n");
        append_keys(p->rules[i].options, p->rules[i].option_count, out);
    }
    return LH_OK;
}

static lh_status_t append_man_ini(cli_t *cli, text_t *out)
{
    uint32_t count;
    const job_section_t *sections = job_sections(&count);
    append_head("LONGHAUL.INI", "5", out);
    text_append(out,
                ".SH NAME\nlonghaul.ini \\- a job of longhaul(1)\n.SH DESCRIPTION\n"
                "An INI file of sections and keys. A key that is not known is an error with the "
                "nearest known name. Sizes, times and rates carry their unit (64MiB, 250ms, "
                "10Gbps); paths are relative to the file in which they stand; \\fBinclude = "
                "FILE\\fR ahead of the first section reads another file first. "
                "\\fBlonghaul check\\fR prints every value in force and where it came from.\n"
                ".SH SECTIONS\n");
    for (uint32_t i = 0; i < count; i++) {
        text_append(out, ".SS [");
        append_roff(sections[i].name, out);
        text_append(out, "]\n");
        append_roff(sections[i].help, out);
        text_append(out, "\n");
        append_keys(sections[i].rows, sections[i].count, out);
    }
    text_append(out, ".SH PLUGINS\nTheir keys stand in [model], [transport.*], [optimizer] and "
                     "[device], those of parts in [parts.NAME].\n");
    const lh_status_t status = registry_each(cli->plugins, append_plugin, out);
    text_append(out, ".SH SEE ALSO\nlonghaul(1)\n");
    return status;
}

/* ---- completion ---- */

/* Words of the tables are names of our own and of plugins that were checked: letters, digits, dots
 * and underscores, which a shell takes as they are. */
static void append_keys_of(const char *section, const lh_option_t *rows, uint32_t count,
                           text_t *out)
{
    for (uint32_t i = 0; i < count; i++)
        if (!text_ends(rows[i].key, "*")) text_printf(out, " %s.%s=", section, rows[i].key);
}

static lh_status_t append_plugin_name(void *out, const plugin_t *p)
{
    text_printf(out, " %s", p->name);
    return LH_OK;
}

static lh_status_t append_plugin_keys(void *context, const plugin_t *p)
{
    text_t *out = context;
    static const char *const sections[] = {
        [LH_KIND_MODEL] = "model", [LH_KIND_OPTIMIZER] = "optimizer", [LH_KIND_DEVICE] = "device"};
    if (p->kind == LH_KIND_TRANSPORT) {
        append_keys_of("transport.node", p->options, p->option_count, out);
        append_keys_of("transport.site", p->options, p->option_count, out);
        append_keys_of("transport.wan", p->options, p->option_count, out);
    } else if (p->kind < sizeof(sections) / sizeof(sections[0]) && sections[p->kind] != NULL) {
        append_keys_of(sections[p->kind], p->options, p->option_count, out);
    }
    for (uint32_t i = 0; i < p->rule_count; i++) {
        text_t section = {0};
        text_printf(&section, "rule.%s", p->rules[i].name);
        if (!section.failed)
            append_keys_of(section.data, p->rules[i].options, p->rules[i].option_count, out);
        out->failed = out->failed || section.failed;
        text_free(&section);
    }
    return LH_OK;
}

/* Sections whose names end in a star are named by the job: their keys can't be offered. */
static void append_words(cli_t *cli, lh_status_t *status, text_t *out)
{
    uint32_t count;
    const job_section_t *sections = job_sections(&count);
    text_append(out, "_longhaul_keys='");
    for (uint32_t i = 0; i < count; i++)
        if (!text_ends(sections[i].name, "*"))
            append_keys_of(sections[i].name, sections[i].rows, sections[i].count, out);
    if (*status == LH_OK) *status = registry_each(cli->plugins, append_plugin_keys, out);
    text_append(out, "'\n_longhaul_names='op plugin functions rules hooks");
    for (uint32_t i = 0; i < count; i++)
        if (!text_ends(sections[i].name, "*")) text_printf(out, " %s", sections[i].name);
    if (*status == LH_OK) *status = registry_each(cli->plugins, append_plugin_name, out);
    text_append(out, "'\n");
}

/* For each command: its flags, those with a value, and what its words are. */
static void append_command_words(const command_t *c, text_t *out)
{
    const bool job = (c->needs & (CLI_NEEDS_JOB | CLI_MAY_TAKE_JOB)) != 0;
    const bool plugins = (c->needs & (CLI_NEEDS_PLUGINS | CLI_NEEDS_JOB)) != 0;
    text_printf(out, "        %s) flags='%s%s", c->name, job ? " --set" : "",
                plugins ? " --plugins" : "");
    for (uint32_t i = 0; i < CLI_FLAGS && c->flags[i].name != NULL; i++)
        text_printf(out, " --%s", c->flags[i].name);
    text_append(out, "' values='");
    for (uint32_t i = 0; i < CLI_FLAGS && c->flags[i].name != NULL; i++)
        if (c->flags[i].value != NULL && !cli_flag_may_lack_value(&c->flags[i]))
            text_printf(out, " --%s", c->flags[i].name);
    text_append(out, "' ;;\n");
}

/* COMP_WORDBREAKS has "=", so that section.key= comes to the function as two words: only what
 * stands before the sign is completed. */
static lh_status_t append_bash(cli_t *cli, text_t *out)
{
    uint32_t count;
    lh_status_t status = LH_OK;
    const command_t *const *all = cli_commands(&count);
    text_printf(out, "# Completion of longhaul %s for bash, made by longhaul help --as bash.\n",
                LH_VERSION);
    append_words(cli, &status, out);
    text_append(out, "_longhaul_commands='");
    for (uint32_t i = 0; i < count; i++)
        text_printf(out, "%s%s", i == 0 ? "" : " ", all[i]->name);
    text_append(out, "'\n"
                     "_longhaul()\n{\n"
                     "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}"
                     " command=${COMP_WORDS[1]:-} flags='' values=''\n"
                     "    COMPREPLY=()\n"
                     "    if [ \"$COMP_CWORD\" -le 1 ]; then\n"
                     "        COMPREPLY=($(compgen -W \"$_longhaul_commands --version --help\" --"
                     " \"$word\"))\n"
                     "        return\n"
                     "    fi\n"
                     "    case $command in\n");
    for (uint32_t i = 0; i < count; i++)
        append_command_words(all[i], out);
    text_append(
        out,
        "    esac\n"
        "    if [ \"$before\" = --set ]; then\n"
        "        compopt -o nospace 2>/dev/null\n"
        "        COMPREPLY=($(compgen -W \"$_longhaul_keys\" -- \"$word\"))\n"
        "    elif [ \"$before\" = --plugins ]; then\n"
        "        COMPREPLY=($(compgen -d -- \"$word\"))\n"
        "    elif [[ \" $values \" == *\" $before \"* ]]; then\n"
        "        COMPREPLY=($(compgen -f -- \"$word\"))\n"
        "    elif [[ $word == -* ]]; then\n"
        "        COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"
        "    elif [ \"$command\" = help ]; then\n"
        "        COMPREPLY=($(compgen -W \"$_longhaul_commands $_longhaul_names\" -- \"$word\"))\n"
        "    else\n"
        "        compopt -o filenames 2>/dev/null\n"
        "        COMPREPLY=($(compgen -f -- \"$word\"))\n"
        "    fi\n"
        "}\n"
        "complete -F _longhaul longhaul\n");
    return status;
}

/* zsh takes functions of bash's kind; so there is one completion and not two that drift. */
static lh_status_t append_zsh(cli_t *cli, text_t *out)
{
    text_append(out, "#compdef longhaul\nautoload -U +X bashcompinit && bashcompinit\n");
    return append_bash(cli, out);
}

lh_status_t manual_append(cli_t *cli, const char *form, text_t *out)
{
    if (strcmp(form, "man-ini") == 0) return append_man_ini(cli, out);
    if (strcmp(form, "bash") == 0) return append_bash(cli, out);
    if (strcmp(form, "zsh") == 0) return append_zsh(cli, out);
    if (strcmp(form, "man") != 0)
        return fail(LH_INVALID, "help --as %s: man, man-ini, bash or zsh", form);
    append_man(out);
    return LH_OK;
}

/* ---- which build ---- */

/* Libraries that can say so are asked for the version that is loaded, which an update of the system
 * changes without a build; of the others stands here what the build found. The commit comes from
 * the program's own file (main.c), as it alone is linked anew with every commit. */
void manual_append_version(const char *commit, text_t *out)
{
    char pcre2[64] = "";
    const unsigned xxhash = XXH_versionNumber(); /* 10000 * major + 100 * minor + release */
    (void)pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
    text_printf(out, "longhaul %s\n", LH_VERSION);
    text_printf(out, "commit     %s\n", commit);
    text_printf(out, "compiler   %s, %s\n", LH_COMPILER, LH_BUILT_FOR);
    text_printf(out, "plugin ABI %u.%u, entry lh_plugin_v%u\n", LH_ABI_MAJOR, LH_ABI_MINOR,
                LH_ABI_MAJOR);
    text_printf(out,
                "libraries  glibc %s; %s; PCRE2 %s; utf8proc %s; xxHash %u.%u.%u; yyjson %s; "
                "zlib %s; zstd %s\n",
                gnu_get_libc_version(), OpenSSL_version(OPENSSL_VERSION), pcre2, utf8proc_version(),
                xxhash / 10000, xxhash / 100 % 100, xxhash % 100, YYJSON_VERSION_STRING,
                zlibVersion(), ZSTD_versionString());
    text_printf(out, "built with inih %s; libffi %s\n", LH_INIH_VERSION, LH_FFI_VERSION);
}
