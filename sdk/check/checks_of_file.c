/* checks_of_file.c - what can be said of a plugin before any of its code runs, and whether a run
 * would load it. */
#include "check.h"

#include <dlfcn.h>

#include <base/file.h>
#include <base/text.h>
#include <longhaul/plugin.h>

static void is_a_plugin(subject_t *s)
{
    if (s->head.kind == 0) check_fault("%s is %s", s->path, s->peek_fault);
    if (s->head.kind > LH_KIND_PARTS)
        check_fault("%s: kind %u is none that this host knows", s->path, s->head.kind);
}

static void name_is_the_file(subject_t *s)
{
    if (s->head.kind == 0) check_skip("%s", s->peek_fault);
    if (memchr(s->head.name, '\0', sizeof(s->head.name)) == NULL)
        check_fault("its name has no end within %zu bytes", sizeof(s->head.name));
    if (strcmp(s->head.name, s->name) != 0)
        check_fault("it calls itself '%s', the file is %s.so", s->head.name, s->name);
}

static void see_export(void *context, const image_symbol_t *symbol)
{
    (void)context;
    /* The address sanitizer's mark of a global beside each exported one. */
    if (text_starts(symbol->name, "__odr_asan.")) return;
    if (symbol->defined && strcmp(symbol->name, LH_PLUGIN_SYMBOL) != 0)
        check_fault("it exports '%s' too; link with sdk/cmake/plugin.version or lh_add_plugin, "
                    "which hide all but " LH_PLUGIN_SYMBOL,
                    symbol->name);
}

static void exports_one_symbol(subject_t *s)
{
    image_each_symbol(s->image.map, see_export, NULL);
}

static void load_needed(void *context, const char *name)
{
    (void)context;
    if (dlopen(name, RTLD_LAZY | RTLD_GLOBAL) == NULL)
        check_fault("it needs %s, which can't be loaded: %s", name, dlerror());
}

static void see_import(void *context, const image_symbol_t *symbol)
{
    (void)context;
    if (symbol->defined || symbol->weak) return;
    if (dlsym(RTLD_DEFAULT, symbol->name) == NULL)
        check_fault("it wants '%s', which no library that it names has; a plugin calls its host "
                    "through lh_host_t alone",
                    symbol->name);
}

static void imports_nothing_of_the_host(subject_t *s)
{
    image_each_needed(s->image.map, load_needed, NULL);
    image_each_symbol(s->image.map, see_import, NULL);
}

static void see_sanitizer(void *context, const image_symbol_t *symbol)
{
    if (strncmp(symbol->name, "__asan", 6) == 0 || strncmp(symbol->name, "__tsan", 6) == 0)
        *(bool *)context = true;
}

static void runs_nothing_when_loaded(subject_t *s)
{
    bool sanitized = false;
    image_each_symbol(s->image.map, see_sanitizer, &sanitized);
    if (sanitized) check_skip("a sanitizer adds constructors of its own");
    const uint32_t count = image_constructors(s->image.map);
    if (count > 0)
        check_warn("it runs %u function%s when it is loaded; state belongs to what open() returns",
                   count, count == 1 ? "" : "s");
}

static void loads(subject_t *s)
{
    const lh_status_t status = subject_load(s);
    if (status != LH_OK) check_fault("%s", fail_reason());
}

const check_t checks_of_file[] = {
    {"file.plugin", "it is a shared object for this machine that exports " LH_PLUGIN_SYMBOL,
     CHECK_EVERY_PLUGIN, true, 10, is_a_plugin, NULL},
    {"file.name", "the name in its header is that of its file", CHECK_EVERY_PLUGIN, true, 10,
     name_is_the_file, NULL},
    {"file.exports", "it exports " LH_PLUGIN_SYMBOL " and nothing else", CHECK_EVERY_PLUGIN, true,
     10, exports_one_symbol, NULL},
    {"file.imports", "all it wants from elsewhere is in the libraries that it names",
     CHECK_EVERY_PLUGIN, true, 30, imports_nothing_of_the_host, NULL},
    {"file.constructors", "no code of its own runs when it is loaded", CHECK_EVERY_PLUGIN, true, 10,
     runs_nothing_when_loaded, NULL},
    {"file.loads",
     "a run loads it: header, required functions, tables, defaults inside their ranges, selftest",
     CHECK_EVERY_PLUGIN, true, 60, loads, NULL},
    {0},
};
