/* version.c - which build this is.
 *
 * Libraries that can say so are asked for the version that is loaded, which an update of the system
 * changes without a build; of the others stands here what the build found. The commit comes from
 * the program's own file (main.c), as it alone is linked anew with every commit. */
#include <cli/version.h>

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

void version_append(const char *commit, text_t *out)
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
