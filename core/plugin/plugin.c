/* plugin.c - a plugin that is loaded; what one of each kind must bring; signatures of functions;
 * and where a plugin came from.
 *
 * A kind is one row here, with its required functions, and one api in the SDK's header of that
 * name: whoever adds a kind adds both. */
#include <plugin/plugin.h>

#include <ctype.h>
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <stdio.h>
#include <string.h>

#include <base/memory.h>
#include <base/text.h>

/* A row of required_t: a function's name, for the sentence, and its place. */
#define NEED(T, f)         \
    {                      \
#f, offsetof(T, f) \
    }
#define MODEL(f) NEED(lh_model_api_t, f)
#define TRANSPORT(f) NEED(lh_transport_api_t, f)
#define OPTIMIZER(f) NEED(lh_optimizer_api_t, f)
#define DEVICE(f) NEED(lh_device_api_t, f)
#define END     \
    {           \
        NULL, 0 \
    }

/* All functions of an api that its header does not call optional. */
static const required_t model_required[] = {
    MODEL(open), MODEL(close), MODEL(describe), MODEL(record), END,
};
static const required_t transport_required[] = {
    TRANSPORT(open),
    TRANSPORT(close),
    TRANSPORT(nic_count),
    TRANSPORT(nic_info),
    TRANSPORT(listen),
    TRANSPORT(accept),
    TRANSPORT(admit),
    TRANSPORT(close_listener),
    TRANSPORT(connect),
    TRANSPORT(cancel),
    TRANSPORT(close_conn),
    TRANSPORT(register_memory),
    TRANSPORT(release_memory),
    TRANSPORT(isend),
    TRANSPORT(irecv),
    TRANSPORT(poll),
    END,
};
static const required_t optimizer_required[] = {
    OPTIMIZER(open),
    OPTIMIZER(close),
    OPTIMIZER(describe),
    END,
};
static const required_t device_required[] = {
    DEVICE(count),     DEVICE(open),       DEVICE(close),      DEVICE(properties),
    DEVICE(alloc),     DEVICE(release),    DEVICE(stream_new), DEVICE(stream_free),
    DEVICE(event_new), DEVICE(event_free), DEVICE(record),     DEVICE(wait),
    DEVICE(test),      DEVICE(copy),       DEVICE(fill),       END,
};

/* Bytes of T up to and with field f: what an older plugin must have at least. */
#define UP_TO(T, f) (offsetof(T, f) + sizeof(((T *)0)->f))
#define KIND(K, n, T, last) \
    [LH_KIND_##             \
        K] = {#n, #n "s", #n, offsetof(lh_plugin_t, n), sizeof(T), UP_TO(T, last), n##_required}

/* By LH_KIND_*. Parts have no api: they bring tables alone. */
static const plugin_kind_t kinds[] = {
    KIND(MODEL, model, lh_model_api_t, record),
    KIND(TRANSPORT, transport, lh_transport_api_t, poll),
    KIND(OPTIMIZER, optimizer, lh_optimizer_api_t, describe),
    KIND(DEVICE, device, lh_device_api_t, fill),
    [LH_KIND_PARTS] = {"parts", "parts", NULL, 0, 0, 0, NULL},
};

/* The number comes from a file or an INI as often as from code. */
const plugin_kind_t *plugin_kind(uint32_t kind)
{
    return kind == 0 || kind >= sizeof(kinds) / sizeof(kinds[0]) ? NULL : &kinds[kind];
}

/* Each function pointer is read by memcpy at its offset: no cast is needed, and its type does not
 * matter where only NULL is asked for. */
bool plugin_is_without_messages(const lh_transport_api_t *t)
{
    return t->collectives != NULL && t->nic_count == NULL;
}

const char *plugin_kind_lacks(const plugin_kind_t *kind, const void *api)
{
    lh_assert(api != NULL && kind->required != NULL);
    const bool opens_only = kind == plugin_kind(LH_KIND_TRANSPORT) &&
                            plugin_is_without_messages(api);
    for (const required_t *r = kind->required; r->name != NULL; r++) {
        if (opens_only && r->offset >= offsetof(lh_transport_api_t, nic_count)) continue;
        void (*fn)(void);
        memcpy(&fn, (const char *)api + r->offset, sizeof(fn));
        if (fn == NULL) return r->name;
    }
    return NULL;
}

/* For sentences, also about numbers that no kind has. */
const char *plugin_kind_text(uint32_t kind)
{
    const plugin_kind_t *k = plugin_kind(kind);
    return k != NULL ? k->name : "unknown";
}

const char *plugin_kind_folder(uint32_t kind)
{
    const plugin_kind_t *k = plugin_kind(kind);
    return k != NULL ? k->folder : "unknown";
}

/* Tables in the form in which core/config parses, checks and prints options. */
option_table_t plugin_options(const plugin_t *plugin)
{
    return (option_table_t){.rows = plugin->options,
                            .count = plugin->option_count,
                            .owner = plugin->name,
                            .config_size = plugin->row.config_size};
}

option_table_t plugin_rule_options(const lh_rule_t *rule)
{
    return (option_table_t){.rows = rule->options,
                            .count = rule->option_count,
                            .owner = rule->name,
                            .config_size = rule->config_size};
}

/* Rules are few: they are looked through. */
const lh_rule_t *plugin_rule(const plugin_t *plugin, const char *name)
{
    text_nearest_t near = {.typed = name};
    for (uint32_t i = 0; i < plugin->rule_count; i++) {
        if (strcmp(plugin->rules[i].name, name) == 0) return &plugin->rules[i];
        text_nearest_offer(&near, plugin->rules[i].name);
    }
    const char *best = text_nearest_name(&near);
    (void)fail(LH_INVALID, "plugin '%s' has no rule '%s'%s%s%s", plugin->name, name,
               best != NULL ? "; did you mean '" : "", best != NULL ? best : "",
               best != NULL ? "'?" : "");
    return NULL;
}

bool plugin_is_name(const char *text, size_t most)
{
    if (text == NULL || !islower((unsigned char)text[0])) return false;
    size_t length = 0;
    while (islower((unsigned char)text[length]) || isdigit((unsigned char)text[length]) ||
           text[length] == '_')
        length++;
    return text[length] == '\0' && length <= most;
}

bool plugin_name_fits(const char *name)
{
    return plugin_is_name(name, sizeof(((lh_plugin_t *)0)->name) - 1);
}

/* The sentence of a name that does not fit, for all who ask. */
lh_status_t plugin_refuse_name(const char *name)
{
    return fail(LH_INVALID, "'%s' is no plugin's name: expected [a-z][a-z0-9_]*, at most %zu bytes",
                name, sizeof(((lh_plugin_t *)0)->name) - 1);
}

/* The plugin's part must be a name before anything is made of it; what stands behind the colon is
 * for whoever looks it up. */
lh_status_t plugin_name_split(const char *text, char plugin[32], const char **name)
{
    const char *colon = strchr(text, ':');
    const size_t length = colon == NULL ? 0 : (size_t)(colon - text);
    if (length == 0 || length > 31 || colon[1] == '\0')
        return fail(LH_INVALID, "'%s': expected plugin:name", text);
    memcpy(plugin, text, length);
    plugin[length] = '\0';
    if (!plugin_name_fits(plugin)) return plugin_refuse_name(plugin);
    *name = colon + 1;
    return LH_OK;
}

/* Signatures: "TYPE(TYPE name, ...)", as LH_FUNCTION writes them. The text comes from a plugin:
 * nothing in it is trusted, and what a careless author could write by hand is refused with its
 * reason. */
static const char *const type_texts[] = {
    [CALL_STATUS] = "status", [CALL_I64] = "i64", [CALL_U64] = "u64",
    [CALL_F64] = "f64",       [CALL_STR] = "str", [CALL_TENSOR] = "tensor",
};

const char *plugin_type_text(uint32_t type)
{
    return type >= CALL_STATUS && type <= CALL_TENSOR ? type_texts[type] : "nothing";
}

/* Of the letters, digits and underscores at the text's start. */
static size_t word_length(const char *text)
{
    size_t length = 0;
    while (isalnum((unsigned char)text[length]) || text[length] == '_')
        length++;
    return length;
}

/* The CALL_* of the word at *text, which moves behind it; 0 for a word that is no type. */
static uint32_t read_type(const char **text)
{
    const size_t length = word_length(*text);
    for (uint32_t type = CALL_STATUS; type <= CALL_TENSOR; type++) {
        if (strlen(type_texts[type]) != length || memcmp(type_texts[type], *text, length) != 0)
            continue;
        *text += length;
        return type;
    }
    return 0;
}

/* Reads "TYPE name" and moves *text behind it. NULL, or what is wrong. */
static const char *read_param(const char **text, plugin_signature_t *s)
{
    const uint32_t type = read_type(text);
    if (type == 0) return "a parameter's type is none of i64, u64, f64, str, tensor";
    if (type == CALL_STATUS) return "a parameter can't be a status";
    if (**text != ' ') return "a parameter lacks its name";
    while (**text == ' ')
        (*text)++;
    const size_t length = word_length(*text);
    if (length == 0 || isdigit((unsigned char)**text)) return "a parameter lacks its name";
    if (length >= sizeof(s->params[0].name)) return "a parameter's name has more than 31 letters";
    if (s->count == CALL_PARAMS) return "more than 16 parameters";

    memcpy(s->params[s->count].name, *text, length);
    s->params[s->count].name[length] = '\0';
    s->params[s->count].type = type;
    for (uint32_t i = 0; i < s->count; i++)
        if (strcmp(s->params[i].name, s->params[s->count].name) == 0)
            return "two parameters have one name";
    s->count++;
    *text += length;
    return NULL;
}

/* Strict, as nobody types these: blanks stand after a type and after a comma, and nowhere else. */
const char *plugin_signature_parse(const char *text, plugin_signature_t *out)
{
    plugin_signature_t s = {0};
    s.result = read_type(&text);
    if (s.result == 0) return "the result's type is none of status, i64, u64, f64, str, tensor";
    if (*text++ != '(') return "no '(' follows the result's type";
    if (*text == ')') {
        text++;
    } else {
        /* One parameter after the other, as long as commas follow. */
        for (char end = ','; end == ',';) {
            const char *fault = read_param(&text, &s);
            if (fault != NULL) return fault;
            end = *text;
            if (end != ',' && end != ')') return "neither ',' nor ')' follows a parameter";
            text++;
            while (*text == ' ' && end == ',')
                text++;
        }
    }
    if (*text != '\0') return "text follows ')'";
    if (out != NULL) *out = s;
    return NULL;
}

/* Where a plugin came from: the build id in its notes, which tells two builds of one version apart,
 * and the libraries behind it in the loader's list. */
typedef struct search {
    uintptr_t base; /* of the library that is looked for */
    char *build;    /* [PLUGIN_BUILD], filled */
} search_t;

/* Name and text of a note each end at a multiple of four bytes; a length near 2^32 does not wrap,
 * as size_t is wider. */
static size_t note_padded(size_t bytes)
{
    return (bytes + 3) & ~(size_t)3;
}

/* A note is a head, a name and a text. The file has been loaded, but its notes may say anything:
 * each length is held against what is left. */
static void read_notes(const char *at, size_t left, char out[PLUGIN_BUILD])
{
    ElfW(Nhdr) head;
    while (left > sizeof(head)) {
        memcpy(&head, at, sizeof(head));
        const size_t name = note_padded(head.n_namesz), text = note_padded(head.n_descsz);
        const size_t whole = sizeof(head) + name + text;
        if (name > left || text > left || whole > left) return;
        const unsigned char *id = (const unsigned char *)at + sizeof(head) + name;
        if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == sizeof(ELF_NOTE_GNU) &&
            memcmp(at + sizeof(head), ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0 &&
            2 * (size_t)head.n_descsz < PLUGIN_BUILD)
            for (uint32_t i = 0; i < head.n_descsz; i++)
                (void)snprintf(out + 2 * i, 3, "%02x", id[i]);
        at += whole;
        left -= whole;
    }
}

/* Called by dl_iterate_phdr, under the loader's lock, for each library of the process until one
 * returns 1: the one that is mapped at s->base, whose notes are read where they lie in memory. */
static int look_at_library(struct dl_phdr_info *info, size_t size, void *context)
{
    const search_t *s = context;
    (void)size;
    if (info->dlpi_addr != s->base) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_NOTE)
            read_notes((const char *)(info->dlpi_addr + p->p_vaddr), p->p_memsz, s->build);
    }
    return 1;
}

/* Libraries that were there before the plugin stand before it in the list. */
lh_status_t plugin_origin_find(const struct link_map *loaded, plugin_origin_t *out)
{
    plugin_origin_t o = {.base = loaded->l_addr};
    text_t libraries = {0};
    search_t s = {loaded->l_addr, o.build};
    (void)dl_iterate_phdr(look_at_library, &s);
    for (const struct link_map *m = loaded->l_next; m != NULL; m = m->l_next)
        text_printf(&libraries, "%s%s", libraries.length > 0 ? ", " : "", m->l_name);
    const lh_status_t status = text_status(&libraries);
    if (status != LH_OK) {
        text_free(&libraries);
        return status;
    }
    o.libraries = libraries.data;
    *out = o;
    return LH_OK;
}

/* Of the innermost FRAMES calls. A plugin's library does not count as the plugin. */
bool plugin_is_on_stack(const plugin_t *plugin)
{
    enum { FRAMES = 64 };
    void *frames[FRAMES];
    Dl_info info;
    const int count = backtrace(frames, FRAMES);
    for (int i = 0; i < count; i++) {
        /* A call that does not return may be a function's last instruction. */
        const void *call = (const char *)frames[i] - 1;
        if (dladdr(call, &info) != 0 && (uintptr_t)info.dli_fbase == plugin->origin.base)
            return true;
    }
    return false;
}

void plugin_origin_free(plugin_origin_t *o)
{
    mem_free(o->libraries);
    *o = (plugin_origin_t){.libraries = NULL};
}
