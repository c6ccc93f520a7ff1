/* image.c - copies a file into a sealed memfd. */
#include <plugin/image.h>

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <plugin/trust.h>

static lh_status_t copy_file(int from, const char *path, uint64_t size, int to)
{
    enum { PIECE = 1 << 20 };
    const size_t piece = size < PIECE ? (size_t)size : (size_t)PIECE;
    char *buffer = mem_new(piece);
    if (buffer == NULL) return LH_NO_MEMORY;

    lh_status_t status = LH_OK;
    for (uint64_t at = 0; status == LH_OK && at < size; at += piece) {
        const size_t bytes = size - at < piece ? (size_t)(size - at) : piece;
        status = file_pread(from, path, buffer, bytes, at);
        if (status == LH_OK) status = file_write(to, path, buffer, bytes);
    }
    mem_free(buffer);
    return status;
}

static lh_status_t seal_and_map(image_t *image, const char *path, uint64_t size)
{
    char what[512];
    (void)snprintf(what, sizeof(what), "the copy of %s", path);
    const lh_status_t status = file_seal(image->fd, what);
    if (status != LH_OK) return status;
    void *map = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, image->fd, 0);
    if (map == MAP_FAILED) return fail(LH_IO, "%s: cannot map its copy", path);
    image->map = (peek_image_t){map, (size_t)size};
    return sha256_of(map, (size_t)size, image->sha256);
}

lh_status_t image_open(const char *path, const char *name, uint64_t limit, image_t *out)
{
    char label[48];
    image_t image = {.fd = -1};
    int from;
    uint64_t size;

    lh_status_t status = trust_open(path, limit, &from, &size);
    if (status != LH_OK) return status;
    (void)snprintf(label, sizeof(label), "longhaul.%.31s", name);
    image.fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (image.fd < 0) {
        status = fail(LH_IO, "%s: no memory file for its copy", path);
        goto close_file;
    }
    status = copy_file(from, path, size, image.fd);
    if (status == LH_OK) status = seal_and_map(&image, path, size);
    if (status == LH_OK)
        *out = image;
    else
        image_close(&image);

close_file:
    (void)sys()->close(from);
    return status;
}

void image_close(image_t *image)
{
    if (image->map.bytes != NULL)
        (void)munmap((void *)(uintptr_t)image->map.bytes, image->map.size);
    if (image->fd >= 0) (void)close(image->fd);
    *image = (image_t){.fd = -1};
}
