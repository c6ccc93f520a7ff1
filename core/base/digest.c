/* digest.c - checksums by OpenSSL and xxHash, both of which use the processor's own instructions
 * where there are any. */
#include <base/digest.h>

#include <openssl/evp.h>
#include <stdio.h>

#define XXH_STATIC_LINKING_ONLY /* its state is a struct that we allocate */
#include <xxhash.h>

#include <base/memory.h>

/* OpenSSL's context is behind a struct of ours, so that no other file needs its headers. */
struct digest {
    EVP_MD_CTX *context;
};

lh_status_t digest_new(digest_t **out)
{
    digest_t *d = mem_new(sizeof(*d));
    if (d == NULL) return LH_NO_MEMORY;

    d->context = EVP_MD_CTX_new();
    if (d->context == NULL || EVP_DigestInit_ex(d->context, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(d->context);
        mem_free(d);
        return fail(LH_NO_MEMORY, "out of memory: SHA-256");
    }
    *out = d;
    return LH_OK;
}

/* A digest of memory does not fail once it has begun: OpenSSL's results are not looked at. */
void digest_add(digest_t *d, const void *bytes, size_t length)
{
    (void)EVP_DigestUpdate(d->context, bytes, length);
}

void digest_end(digest_t *d, char out[SHA256_TEXT])
{
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    (void)EVP_DigestFinal_ex(d->context, bytes, &length);
    lh_assert(length == 32);
    for (unsigned int i = 0; i < length; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    EVP_MD_CTX_free(d->context);
    mem_free(d);
}

lh_status_t digest_of(const void *bytes, size_t length, char out[SHA256_TEXT])
{
    digest_t *d;
    const lh_status_t status = digest_new(&d);
    if (status != LH_OK) return status;
    digest_add(d, bytes, length);
    digest_end(d, out);
    return LH_OK;
}

uint64_t digest_xxh3(const void *bytes, size_t length)
{
    return XXH3_64bits(bytes, length);
}

/* mem_new aligns to the 64 bytes that the state needs. */
struct digest_xxh3_run {
    XXH3_state_t state;
};

lh_status_t digest_xxh3_new(digest_xxh3_run_t **out)
{
    digest_xxh3_run_t *d = mem_new(sizeof(*d));
    if (d == NULL) return LH_NO_MEMORY;
    (void)XXH3_64bits_reset(&d->state);
    *out = d;
    return LH_OK;
}

/* It fails only without a state. */
void digest_xxh3_add(digest_xxh3_run_t *d, const void *bytes, size_t length)
{
    (void)XXH3_64bits_update(&d->state, bytes, length);
}

uint64_t digest_xxh3_take(digest_xxh3_run_t *d)
{
    const uint64_t hash = XXH3_64bits_digest(&d->state);
    (void)XXH3_64bits_reset(&d->state);
    return hash;
}

void digest_xxh3_free(digest_xxh3_run_t *d)
{
    mem_free(d);
}
