/* secret.c - a key in memory that is wiped, its file, and what is derived from it.
 *
 * The secret itself encrypts nothing. Each use gets a key of its own by HKDF-SHA-256 (RFC 5869),
 * with what the key is for, the epoch and the two ranks in its info: a key that is lost in one
 * place says nothing of the others.
 *
 * The file's rules are those of ssh for private keys: the owner's, mode 0600, else it is refused
 * and not repaired, as whoever could read it may have done so already. */
#include <control/secret.h>

#include <errno.h>
#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <control/control_frame.h>

/* INFO_BYTES: of a purpose with its NUL and three numbers. */
enum { SECRET_BYTES = 32, SECRET_DIGITS = 2 * SECRET_BYTES, INFO_BYTES = 128 };

struct secret {
    unsigned char key[SECRET_BYTES];
};

/* A page of its own, which no core holds, and of which no freed block keeps a part. */
static secret_t *new_secret(void)
{
    void *page = mmap(NULL, sizeof(secret_t), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                      -1, 0);
    if (page == MAP_FAILED) {
        (void)fail(LH_NO_MEMORY, "out of memory for the job's key");
        return NULL;
    }
    (void)madvise(page, sizeof(secret_t), MADV_DONTDUMP);
    return page;
}

/* All bytes equal, as an empty or a made-up file has them: not a test of randomness. */
static bool is_weak(const unsigned char key[SECRET_BYTES])
{
    for (uint32_t i = 1; i < SECRET_BYTES; i++)
        if (key[i] != key[0]) return false;
    return true;
}

/* From the kernel; never from a generator of ours. */
lh_status_t secret_random(secret_t **out)
{
    secret_t *s = new_secret();
    if (s == NULL) return LH_NO_MEMORY;
    if (sys()->random(s->key, sizeof(s->key)) != 0) {
        secret_free(s);
        return fail_io(errno, "no random bytes for the job's key");
    }
    *out = s;
    return LH_OK;
}

/* OPENSSL_cleanse and not memset, which a compiler may leave out before memory that is given back.
 */
void secret_free(secret_t *s)
{
    if (s == NULL) return;
    OPENSSL_cleanse(s, sizeof(*s));
    (void)munmap(s, sizeof(*s));
}

/* -1: no hexadecimal digit. */
static int digit_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* text: what the file holds, with or without a new line at the end. Nothing of it stands in a
 * sentence. */
static lh_status_t secret_parse(const char *path, const char *text, size_t length, secret_t *s)
{
    if (length == SECRET_DIGITS + 1 && text[SECRET_DIGITS] == '\n') length--;
    if (length != SECRET_DIGITS)
        return fail(LH_INVALID, "%s: a key is %d hexadecimal digits, here are %zu bytes", path,
                    SECRET_DIGITS, length);
    for (uint32_t i = 0; i < SECRET_BYTES; i++) {
        const int high = digit_value(text[2 * i]), low = digit_value(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return fail(LH_INVALID, "%s: byte %u is no hexadecimal digit", path,
                        high < 0 ? 2 * i : 2 * i + 1);
        s->key[i] = (unsigned char)(high * 16 + low);
    }
    if (is_weak(s->key))
        return fail(LH_INVALID, "%s: all bytes of the key are equal; make one of random bytes",
                    path);
    return LH_OK;
}

/* On the open file and not on its name, which may lead elsewhere the next moment. */
static lh_status_t check_owner(const char *path, int fd, struct stat *st)
{
    if (sys()->fstat(fd, st) != 0) return fail_io(errno, "%s", path);
    if (!S_ISREG(st->st_mode)) return fail(LH_INVALID, "%s is not a regular file", path);
    if (st->st_uid != geteuid())
        return fail(LH_INVALID, "%s belongs to user %u, the job runs as user %u", path,
                    (unsigned)st->st_uid, (unsigned)geteuid());
    if ((st->st_mode & 077) != 0)
        return fail(LH_INVALID,
                    "%s has mode %04o: others may read the job's key; expected 0600 (chmod 600)",
                    path, (unsigned)(st->st_mode & 07777));
    return LH_OK;
}

/* LH_AGAIN: it is not there. O_NONBLOCK, as a pipe under this name would make the open wait for
 * ever; check_owner then refuses it. The text is wiped whatever happens. */
static lh_status_t secret_read_file(const char *path, secret_t *s)
{
    char text[SECRET_DIGITS + 2];
    struct stat st;
    const int fd = sys_open(path, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0 && errno == ENOENT) return LH_AGAIN;
    if (fd < 0) return fail_io(errno, "cannot read the job's key %s", path);
    lh_status_t status = check_owner(path, fd, &st);
    const size_t length = st.st_size > (off_t)sizeof(text) ? sizeof(text) : (size_t)st.st_size;
    if (status == LH_OK) status = file_pread(fd, path, text, length, 0);
    if (status == LH_OK && st.st_size > (off_t)length)
        status = fail(LH_INVALID, "%s: a key is %d hexadecimal digits, here are %lld bytes", path,
                      SECRET_DIGITS, (long long)st.st_size);
    if (status == LH_OK) status = secret_parse(path, text, length, s);
    OPENSSL_cleanse(text, sizeof(text));
    (void)sys()->close(fd);
    return status;
}

/* Written under a name of its own and then linked: whoever comes first makes the key, and nobody
 * ever reads half of one. */
static lh_status_t make_file(const char *path)
{
    unsigned char key[SECRET_BYTES];
    char text[SECRET_DIGITS + 2];
    uint64_t serial;
    text_t temporary = {0};
    if (sys()->random(key, sizeof(key)) != 0 || sys()->random(&serial, sizeof(serial)) != 0)
        return fail_io(errno, "no random bytes for the job's key");
    for (uint32_t i = 0; i < SECRET_BYTES; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", key[i]);
    text[SECRET_DIGITS] = '\n';
    text_printf(&temporary, "%s.%016llx", path, (unsigned long long)serial);
    lh_status_t status = text_status(&temporary);
    if (status != LH_OK) return status;

    const int fd = sys_open(temporary.data, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (fd < 0) {
        status = fail_io(errno, "cannot make the job's key %s", path);
        goto free_name;
    }
    status = file_write(fd, temporary.data, text, SECRET_DIGITS + 1);
    if (status == LH_OK && sys_fsync(fd) != 0) status = fail_io(errno, "%s", temporary.data);
    (void)sys()->close(fd);
    if (status == LH_OK && sys()->link(temporary.data, path) != 0 && errno != EEXIST)
        status = fail_io(errno, "cannot make the job's key %s", path);
    (void)sys()->unlink(temporary.data);
free_name:
    OPENSSL_cleanse(text, sizeof(text));
    OPENSSL_cleanse(key, sizeof(key));
    text_free(&temporary);
    return status;
}

/* Hands out what was read with `status`, or drops it. */
static lh_status_t hand_out(const char *path, secret_t *s, lh_status_t status, secret_t **out)
{
    if (status == LH_AGAIN) status = fail(LH_INVALID, "the job's key %s is not there", path);
    if (status != LH_OK) {
        secret_free(s);
        return status;
    }
    *out = s;
    return LH_OK;
}

/* Where ranks of several machines come at the same time, one makes the file and all read it. */
lh_status_t secret_open(const char *path, bool make, secret_t **out)
{
    secret_t *s = new_secret();
    if (s == NULL) return LH_NO_MEMORY;
    lh_status_t status = secret_read_file(path, s);
    if (status == LH_AGAIN && make) {
        status = make_file(path);
        if (status == LH_OK) status = secret_read_file(path, s);
    }
    return hand_out(path, s, status, out);
}

lh_status_t secret_check(const char *path)
{
    secret_t s;
    lh_status_t status = secret_read_file(path, &s);
    OPENSSL_cleanse(&s, sizeof(s));
    return status == LH_AGAIN ? LH_OK : status; /* it is yet to be made */
}

/* Whoever waits does so before it has any rank that could say for whom; where rank 0's launcher was
 * refused, in vain. */
static void tell_key_missing(const char *path, control_wait_t *joins, uint64_t now)
{
    if (!control_wait_due(joins, now)) return;
    log_line(LH_LOG_WARN,
             "waiting for the job's key %s since %llu s: rank 0's launcher makes it at its start; "
             "where its folder is another one, copy it here",
             path, (unsigned long long)((now - joins->since) / 1000000000u));
}

/* A file that is copied here may be seen half. What is no key is therefore looked at again for
 * COPIED_IN_S; then it is a wrong key and not one on its way. */
lh_status_t secret_await(const char *path, uint64_t end_ns, secret_t **out)
{
    enum { LOOK_US = 100000, COPIED_IN_S = 2 };
    secret_t *s = new_secret();
    uint64_t whole_ns = 0; /* when what lies there must be a key: it is being copied until then */
    control_wait_t joins = {0};
    lh_status_t status;
    if (s == NULL) return LH_NO_MEMORY;
    for (;; (void)usleep(LOOK_US)) {
        status = secret_read_file(path, s);
        const uint64_t now = sys()->now_ns();
        if (status == LH_INVALID && whole_ns == 0)
            whole_ns = now + COPIED_IN_S * UINT64_C(1000000000);
        const uint64_t end = status == LH_INVALID && whole_ns < end_ns ? whole_ns : end_ns;
        if ((status != LH_AGAIN && status != LH_INVALID) || now >= end) break;
        if (status == LH_AGAIN) tell_key_missing(path, &joins, now);
    }
    return hand_out(path, s, status, out);
}

/* Memory without a name, sealed so that nobody who has it can change it. The key stands in no file
 * system, no environment and no command line. */
lh_status_t secret_share(const secret_t *s, int *fd)
{
    const int memory = memfd_create("longhaul-key", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0) return fail_io(errno, "cannot hand over the job's key");
    lh_status_t status = file_pwrite(memory, "the job's key", s->key, sizeof(s->key), 0);
    if (status == LH_OK) status = file_seal(memory, "the job's key");
    if (status != LH_OK) {
        (void)sys()->close(memory);
        return status;
    }
    *fd = memory;
    return LH_OK;
}

lh_status_t secret_from_fd(int fd, secret_t **out)
{
    secret_t *s = new_secret();
    if (s == NULL) return LH_NO_MEMORY;
    lh_status_t status = file_pread(fd, "the job's key", s->key, sizeof(s->key), 0);
    if (status == LH_OK && is_weak(s->key))
        status = fail(LH_INVALID, "the job's key that was handed over is none");
    if (status != LH_OK) {
        secret_free(s);
        return status;
    }
    *out = s;
    return LH_OK;
}

/* purpose, NUL, epoch, lower rank, higher rank: two infos are the same bytes only if all of these
 * are the same. */
static size_t write_info(const char *purpose, uint32_t epoch, uint32_t a, uint32_t b,
                         unsigned char info[INFO_BYTES])
{
    const uint32_t numbers[3] = {epoch, a < b ? a : b, a < b ? b : a};
    size_t length = strlen(purpose) + 1;
    memcpy(info, purpose, length);
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t shift = 0; shift < 32; shift += 8)
            info[length++] = (unsigned char)(numbers[i] >> shift);
    lh_assert(length <= INFO_BYTES); /* secret_derive refuses longer purposes */
    return length;
}

/* The salt is fixed, as both ends must know it and the secret is already uniform; what differs
 * between keys is in the info. */
lh_status_t secret_derive(const secret_t *s, const char *purpose, uint32_t epoch, uint32_t a,
                          uint32_t b, void *out, size_t bytes)
{
    lh_assert(bytes > 0);
    unsigned char info[INFO_BYTES];
    char digest[] = "SHA256", salt[] = "longhaul";
    if (strlen(purpose) > INFO_BYTES - 16)
        return fail(LH_INVALID, "a key's purpose is at most %d bytes: '%s'", INFO_BYTES - 16,
                    purpose);
    const size_t info_bytes = write_info(purpose, epoch, a, b, info);
    const OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)(uintptr_t)s->key,
                                          sizeof(s->key)),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt, sizeof(salt) - 1),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, info_bytes),
        OSSL_PARAM_construct_end(),
    };
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *context = kdf == NULL ? NULL : EVP_KDF_CTX_new(kdf);
    const bool derived = context != NULL && EVP_KDF_derive(context, out, bytes, params) > 0;
    EVP_KDF_CTX_free(context);
    EVP_KDF_free(kdf);
    return derived ? LH_OK : fail(LH_INVALID, "cannot derive %zu bytes for '%s'", bytes, purpose);
}
