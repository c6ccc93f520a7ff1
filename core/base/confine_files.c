/* confine_files.c - Landlock: a ruleset of what may be read and written, then the end of all else.
 * Numbers that a build machine's headers may not know yet stand here. */
#include <base/confine.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RIGHTS(first, last) ((UINT64_C(2) << (last)) - (UINT64_C(1) << (first)))

enum { VERSION_REFER = 2, VERSION_TRUNCATE, VERSION_NETWORK, VERSION_DEVICES, VERSION_SCOPES };
enum { REFER_BIT = 13, TRUNCATE_BIT, DEVICES_BIT };
static const uint64_t first_rights = RIGHTS(0, 12); /* of version 1 */
static const uint64_t both_ports = RIGHTS(0, 1);    /* bind and connect of TCP */
static const uint64_t both_scopes = RIGHTS(0,
                                           1); /* abstract sockets, signals to processes outside */
static const uint64_t refer_right = UINT64_C(1) << REFER_BIT;
static const uint64_t truncate_right = UINT64_C(1) << TRUNCATE_BIT;
static const uint64_t devices_right = UINT64_C(1) << DEVICES_BIT;

typedef struct ruleset { /* of the newest version known here; the kernel takes zeros for unknown */
    uint64_t files, network, scopes;
} ruleset_t;

static ruleset_t ruleset_of(long version)
{
    ruleset_t r = {.files = first_rights};
    if (version >= VERSION_REFER) r.files |= refer_right;
    if (version >= VERSION_TRUNCATE) r.files |= truncate_right;
    if (version >= VERSION_NETWORK) r.network = both_ports;
    if (version >= VERSION_DEVICES) r.files |= devices_right;
    if (version >= VERSION_SCOPES) r.scopes = both_scopes;
    return r;
}

static uint64_t rights_of(bool writes, bool folder)
{
    uint64_t rights = LANDLOCK_ACCESS_FS_READ_FILE;
    if (folder) rights |= LANDLOCK_ACCESS_FS_READ_DIR;
    if (!writes) return rights;
    rights |= LANDLOCK_ACCESS_FS_WRITE_FILE | truncate_right;
    if (folder)
        rights |= LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
                  LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE | refer_right;
    return rights;
}

static bool allow(int rules, const ruleset_t *handled, const char *path, bool writes)
{
    struct stat st;
    const int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0) return true; /* nothing to allow */
    struct landlock_path_beneath_attr beneath = {.parent_fd = fd};
    bool done = fstat(fd, &st) == 0;
    if (done) {
        beneath.allowed_access = rights_of(writes, S_ISDIR(st.st_mode)) & handled->files;
        done = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0) == 0;
    }
    (void)close(fd);
    return done;
}

bool confine_files(const confine_t *c)
{
    const long version = syscall(SYS_landlock_create_ruleset, NULL, 0,
                                 LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 1) return false;
    const ruleset_t handled = ruleset_of(version);
    const int rules = (int)syscall(SYS_landlock_create_ruleset, &handled, sizeof(handled), 0);
    if (rules < 0) return false;
    bool done = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
    for (uint32_t i = 0; done && c->read[i] != NULL; i++)
        done = allow(rules, &handled, c->read[i], false);
    for (uint32_t i = 0; done && c->write[i] != NULL; i++)
        done = allow(rules, &handled, c->write[i], true);
    if (done) done = syscall(SYS_landlock_restrict_self, rules, 0) == 0;
    (void)close(rules);
    return done;
}
