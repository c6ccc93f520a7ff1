/* device_memory.c - a device's memory as others reach it (share), and memory that it has not made: another
 * process's (adopt) and the host's (wrap), of draft/memory.h.
 *
 * What two processes see of each other is checked by two: the one that shares is started before either
 * opens the device, as a driver need not survive a fork. */
#include "device_memory.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <longhaul/draft/memory.h>

#include <base/memory.h>

#include "check_host.h"
#include "node_run.h"

enum { BYTES = 3 << 16 };

typedef struct scene {
    opened_t on;
    void *config;
    const lh_device_api_t *api;
    const lh_memory_api_t *draft; /* NULL: it has none of it */
} scene_t;

typedef struct piece {
    lh_memory_t *memory;
    lh_place_t place;
} piece_t;

/* Of two processes at once: a device may be one process's alone, which is no fault of this check. */
static void scene_open(subject_t *s, scene_t *c, bool beside_another)
{
    *c = (scene_t){.api = s->plugin->device,
                   .draft = lh_draft_api(&s->plugin->row, LH_DRAFT_MEMORY)};
    c->config = subject_config(s, s->plugin);
    subject_need_device(s, c->config);
    check_host_faults(NULL);
    if (opened_open(s->plugin, check_host(), c->config, &c->on) == LH_OK) return;
    if (beside_another && check_host_reason()[0] != '\0')
        check_skip("two processes can't open it at once: %s", check_host_reason());
    check_fault("it can't be opened: %s", check_host_reason());
}

static void scene_close(scene_t *c)
{
    opened_close(&c->on);
    mem_free(c->config);
}

static piece_t piece_new(const scene_t *c, uint32_t space)
{
    piece_t p = {0};
    void *address = NULL;
    check_ok(c->api->alloc(c->on.device, space, BYTES, &p.memory, &address), "alloc");
    p.place = (lh_place_t){p.memory, 0, address};
    return p;
}

static uint8_t byte_at(uint64_t i, uint8_t seed)
{
    return (uint8_t)(i * 31 + seed + (i >> 8));
}

static void bytes_fill(void *to, uint8_t seed)
{
    for (uint64_t i = 0; i < BYTES; i++)
        ((uint8_t *)to)[i] = byte_at(i, seed);
}

static void bytes_check(const void *at, uint8_t seed, const char *what)
{
    for (uint64_t i = 0; i < BYTES; i++)
        if (((const uint8_t *)at)[i] != byte_at(i, seed))
            check_fault("%s: byte %llu is %u, expected %u", what, (unsigned long long)i,
                        ((const uint8_t *)at)[i], byte_at(i, seed));
}

/* Through pinned memory, by the device's own copies. */
static void place_write(scene_t *c, const lh_place_t *to, uint8_t seed)
{
    const piece_t host = piece_new(c, LH_SPACE_PINNED);
    bytes_fill(host.place.address, seed);
    check_ok(c->api->copy(c->on.stream, to, &host.place, BYTES), "copy");
    check_ok(opened_wait(&c->on), "test");
    c->api->release(host.memory);
}

static void place_check(scene_t *c, const lh_place_t *from, uint8_t seed, const char *what)
{
    const piece_t host = piece_new(c, LH_SPACE_PINNED);
    check_ok(c->api->copy(c->on.stream, &host.place, from, BYTES), "copy");
    check_ok(opened_wait(&c->on), "test");
    bytes_check(host.place.address, seed, what);
    c->api->release(host.memory);
}

static const char *space_text(uint32_t space)
{
    return space == LH_SPACE_DEVICE ? "device memory" : "pinned memory";
}

/* False: it does not share this, and has said so as it must. */
static bool piece_share(const scene_t *c, const piece_t *p, uint32_t space, uint32_t kind,
                        lh_share_t *out)
{
    *out = (lh_share_t){.struct_size = sizeof(*out), .fd = -1};
    check_host_faults(NULL);
    const lh_status_t status = c->api->share(p->memory, kind, out);
    if (status == LH_UNSUPPORTED && check_host_reason()[0] != '\0') return false;
    if (status != LH_OK)
        check_fault("share of %s as kind %u says '%s'%s, expected '%s' and why, or a share",
                    space_text(space), kind, status_text(status),
                    check_host_reason()[0] == '\0' ? " without a reason" : "",
                    status_text(LH_UNSUPPORTED));
    if (out->kind != kind || out->bytes < BYTES || out->token_length > sizeof(out->token) ||
        (out->fd < 0) != (kind == LH_SHARE_PEER && out->token_length > 0))
        check_fault("share of %s as kind %u gives kind %u, %llu bytes, descriptor %d, %u bytes of "
                    "token",
                    space_text(space), kind, out->kind, (unsigned long long)out->bytes, out->fd,
                    out->token_length);
    return true;
}

/* ---- descriptors ---- */

/* What the device writes shows through the descriptor, and the other way round; a mapping outlives the
 * memory. */
static void memfd_check(scene_t *c, piece_t *p, const lh_share_t *share)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), past = share->offset % page;
    uint8_t *all = mmap(NULL, BYTES + past, PROT_READ | PROT_WRITE, MAP_SHARED, share->fd,
                        (off_t)(share->offset - past));
    if (all == MAP_FAILED) check_fault("its memfd can't be mapped: %s", strerror(errno));
    place_write(c, &p->place, 1);
    bytes_check(all + past, 1, "what the device wrote, through the memfd");
    bytes_fill(all + past, 2);
    place_check(c, &p->place, 2, "what was written through the memfd, read by the device");
    c->api->release(p->memory);
    bytes_check(all + past, 2, "a mapping of the memfd, whose memory was released");
    (void)munmap(all, BYTES + past);
}

void shared_memory_is_the_memory(subject_t *s)
{
    static const uint32_t kinds[] = {LH_SHARE_DMABUF, LH_SHARE_MEMFD};
    scene_t c;
    uint32_t shared = 0;
    if (s->plugin->device->share == NULL) check_skip("it shares no memory");
    scene_open(s, &c, false);
    for (uint32_t space = LH_SPACE_DEVICE; space <= LH_SPACE_PINNED; space++) {
        for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
            lh_share_t share;
            piece_t p = piece_new(&c, space);
            const bool offered = piece_share(&c, &p, space, kinds[i], &share);
            shared += offered;
            if (offered && kinds[i] == LH_SHARE_DMABUF && c.api->arrived != NULL)
                check_ok(c.api->arrived(c.on.device), "arrived");
            if (offered && kinds[i] == LH_SHARE_MEMFD)
                memfd_check(&c, &p, &share);
            else
                c.api->release(p.memory);
            if (offered) (void)close(share.fd);
        }
    }
    scene_close(&c);
    if (shared == 0) check_skip("it shares nothing by a descriptor here: %s", check_host_reason());
}

/* ---- another process ---- */

/* A share and its descriptor, over a socket. kind 0: nothing of this is shared. */
static void share_tell(int channel, const lh_share_t *share)
{
    union { /* aligned as a header must be */
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr head;
    } control = {0};
    struct iovec data = {.iov_base = (void *)(uintptr_t)share, .iov_len = sizeof(*share)};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    if (share->fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(head), &share->fd, sizeof(int));
    }
    if (sendmsg(channel, &message, MSG_NOSIGNAL) != (ssize_t)sizeof(*share))
        check_fault("the process that adopts is gone");
}

static void share_hear(int channel, lh_share_t *out)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr head;
    } control = {0};
    struct iovec data = {.iov_base = out, .iov_len = sizeof(*out)};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    if (recvmsg(channel, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(*out))
        check_fault("the process that shares is gone");
    out->fd = -1;
    const struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head != NULL && head->cmsg_type == SCM_RIGHTS)
        memcpy(&out->fd, CMSG_DATA(head), sizeof(int));
}

/* Both ends have come to the same line, and say how it went. */
enum { WELL = 'x', NOT_ADOPTED = 'n' };
static char meet(int channel, char mark)
{
    if (send(channel, &mark, 1, MSG_NOSIGNAL) != 1 || recv(channel, &mark, 1, MSG_WAITALL) != 1)
        check_fault("the other process is gone");
    return mark;
}

/* What may be adopted: device memory by the plugin's own handle, pinned memory by its memfd. */
static const struct {
    uint32_t space, kind;
} adoptions[] = {{LH_SPACE_DEVICE, LH_SHARE_PEER}, {LH_SPACE_PINNED, LH_SHARE_MEMFD}};
enum { ADOPTIONS = sizeof(adoptions) / sizeof(adoptions[0]) };

static void giver_run(subject_t *s, int channel)
{
    scene_t c;
    scene_open(s, &c, true);
    for (uint32_t i = 0; i < ADOPTIONS; i++) {
        lh_share_t share;
        const piece_t p = piece_new(&c, adoptions[i].space);
        if (piece_share(&c, &p, adoptions[i].space, adoptions[i].kind, &share)) {
            place_write(&c, &p.place, 3);
            share_tell(channel, &share);
            if (share.fd >= 0) (void)close(share.fd);
            if (meet(channel, WELL) == WELL) /* it has read and written */
                place_check(&c, &p.place, 4,
                            "what the other process wrote into memory that it adopted");
        } else {
            share_tell(channel, &(lh_share_t){.struct_size = sizeof(share), .fd = -1});
        }
        (void)meet(channel, WELL); /* it has let go of it */
        c.api->release(p.memory);
    }
    scene_close(&c);
}

/* True: it was adopted. why: what adopt() said where it takes none of this kind. */
static bool taker_take(scene_t *c, int channel, char why[256])
{
    lh_share_t share;
    lh_place_t place = {0};
    share_hear(channel, &share);
    if (share.kind == 0) {
        (void)meet(channel, WELL);
        return false;
    }
    check_host_faults(NULL);
    const lh_status_t status = c->draft->adopt(c->on.device, &share, &place.memory, &place.address);
    if (share.fd >= 0) (void)close(share.fd);
    if (status == LH_UNSUPPORTED && check_host_reason()[0] != '\0') {
        (void)snprintf(why, 256, ": %s", check_host_reason());
        (void)meet(channel, NOT_ADOPTED);
        (void)meet(channel, WELL);
        return false;
    }
    if (status != LH_OK)
        check_fault("adopt of kind %u says '%s': %s", share.kind, status_text(status),
                    check_host_reason());
    place_check(c, &place, 3, "what another process wrote, in memory that was adopted");
    place_write(c, &place, 4);
    (void)meet(channel, WELL);
    c->api->release(place.memory);
    (void)meet(channel, WELL);
    return true;
}

static void taker_run(subject_t *s, int channel)
{
    scene_t c;
    uint32_t adopted = 0;
    char why[256] = "";
    scene_open(s, &c, true);
    for (uint32_t i = 0; i < ADOPTIONS; i++)
        adopted += taker_take(&c, channel, why);
    lh_place_t place = {0};
    const lh_share_t wrong = {.struct_size = sizeof(wrong), .kind = 77, .fd = -1, .bytes = BYTES};
    check_host_faults(NULL);
    if (c.draft->adopt(c.on.device, &wrong, &place.memory, &place.address) == LH_OK ||
        check_host_reason()[0] == '\0')
        check_fault("adopt takes a share of kind 77, or does not say why not");
    scene_close(&c);
    if (adopted == 0) check_skip("nothing that is shared here is adopted%s", why);
}

void memory_of_a_peer_is_reached(subject_t *s)
{
    int channels[2], how = 0;
    const lh_memory_api_t *draft = lh_draft_api(&s->plugin->row, LH_DRAFT_MEMORY);
    if (draft == NULL || draft->adopt == NULL || s->plugin->device->share == NULL)
        check_skip("it adopts no memory of another process");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channels) != 0)
        check_skip("no sockets: %s", strerror(errno));
    const pid_t pid = fork();
    if (pid < 0) check_skip("no second process: %s", strerror(errno));
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(channels[0]);
        giver_run(s, channels[1]);
        _exit(0);
    }
    (void)close(channels[1]);
    taker_run(s, channels[0]);
    (void)close(channels[0]);
    if (waitpid(pid, &how, 0) != pid || how != 0)
        check_fault("the process that shares ended with %d", how);
}

/* ---- the host's ---- */

/* Written before and after, by the host: the device must read what lies there, and leave it alone. */
void host_memory_is_an_input(subject_t *s)
{
    scene_t c;
    lh_place_t place = {0};
    const lh_memory_api_t *draft = lh_draft_api(&s->plugin->row, LH_DRAFT_MEMORY);
    if (draft == NULL || draft->wrap == NULL) check_skip("it wraps no memory of the host");
    scene_open(s, &c, false);
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) check_skip("no memory: %s", strerror(errno));
    bytes_fill(memory, 5);
    const lh_status_t status = c.draft->wrap(c.on.device, memory, BYTES, &place.memory);
    if (status == LH_UNSUPPORTED) check_skip("it wraps none here: %s", check_host_reason());
    check_ok(status, "wrap");
    place.address = memory;
    place_check(&c, &place, 5, "host memory that was wrapped, read by the device");
    bytes_fill(memory, 6);
    place_check(&c, &place, 6, "the same, written anew by the host");
    c.api->release(place.memory);
    bytes_check(memory, 6, "host memory whose wrapping was released");
    check_ok(c.draft->wrap(c.on.device, memory, BYTES, &place.memory), "wrap, again");
    c.api->release(place.memory);
    (void)munmap(memory, BYTES);
    scene_close(&c);
}
