/* digest.c - checksums by OpenSSL and xxHash. */
#include <base/digest.h>

#include <openssl/evp.h>
#include <stdio.h>
#include <xxhash.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>

struct sha256 {
    EVP_MD_CTX *context;
};

lh_status_t sha256_new(sha256_t **out)
{
    sha256_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;

    s->context = EVP_MD_CTX_new();
    if (s->context == NULL || EVP_DigestInit_ex(s->context, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(s->context);
        mem_free(s);
        return fail(LH_NO_MEMORY, "out of memory: SHA-256");
    }
    *out = s;
    return LH_OK;
}

void sha256_add(sha256_t *s, const void *bytes, size_t length)
{
    (void)EVP_DigestUpdate(s->context, bytes, length);
}

void sha256_end(sha256_t *s, char out[SHA256_TEXT])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    (void)EVP_DigestFinal_ex(s->context, digest, &length);
    for (unsigned int i = 0; i < 32; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", digest[i]);
    EVP_MD_CTX_free(s->context);
    mem_free(s);
}

lh_status_t sha256_of(const void *bytes, size_t length, char out[SHA256_TEXT])
{
    sha256_t *s;
    const lh_status_t status = sha256_new(&s);
    if (status != LH_OK) return status;
    sha256_add(s, bytes, length);
    sha256_end(s, out);
    return LH_OK;
}

lh_status_t sha256_file(const char *path, char out[SHA256_TEXT])
{
    enum { BLOCK = 1 << 20 };
    int fd;
    uint64_t size;
    sha256_t *s;
    lh_status_t status = file_open(path, &fd, &size);
    if (status != LH_OK) return status;

    char *block = mem_new(BLOCK);
    if (block == NULL) {
        status = LH_NO_MEMORY;
        goto close_fd;
    }
    status = sha256_new(&s);
    if (status != LH_OK) goto free_block;
    for (uint64_t at = 0; at < size && status == LH_OK; at += BLOCK) {
        const size_t part = size - at < BLOCK ? (size_t)(size - at) : (size_t)BLOCK;
        status = file_pread(fd, path, block, part, at);
        if (status == LH_OK) sha256_add(s, block, part);
    }
    sha256_end(s, out);

free_block:
    mem_free(block);
close_fd:
    (void)sys()->close(fd);
    return status;
}

uint64_t xxh3(const void *bytes, size_t length)
{
    return XXH3_64bits(bytes, length);
}
