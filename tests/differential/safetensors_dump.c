/* safetensors_dump.c - PACK: prints, for each file in the pack (u32 length, bytes), what its header
 * says or
 * "-" where it is refused; safetensors_rules.py compares that with rules written down anew. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <format/safetensors.h>

static void dump(const safetensors_t *s)
{
    const uint64_t data = 8 + s->header_bytes;
    (void)printf("=");
    for (uint32_t i = 0; i < s->count; i++) {
        const safetensor_t *t = &s->tensors[i];
        (void)printf("%s:%s:", t->name, t->dtype->name);
        for (uint32_t k = 0; k < t->rank; k++)
            (void)printf("%llu,", (unsigned long long)t->shape[k]);
        (void)printf(":%llu-%llu;", (unsigned long long)(t->offset - data),
                     (unsigned long long)(t->offset - data + t->bytes));
    }
    (void)printf("\n");
}

static int one(const char *bytes, size_t length)
{
    char path[64];
    safetensors_t *s;
    const int fd = memfd_create("safetensors", MFD_CLOEXEC);
    if (fd < 0 || write(fd, bytes, length) != (ssize_t)length) return 1;
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (safetensors_open(path, NULL, &s) == LH_OK) {
        dump(s);
        safetensors_close(s);
    } else {
        (void)puts("-");
    }
    return close(fd);
}

int main(int argc, char **argv)
{
    unsigned char head[4];
    FILE *f = argc == 2 ? fopen(argv[1], "rb") : NULL;
    int result = f == NULL ? 2 : 0;
    while (result == 0 && fread(head, 1, 4, f) == 4) {
        const size_t length = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16;
        char *bytes = malloc(length + 1);
        if (bytes == NULL || fread(bytes, 1, length, f) != length) result = 1;
        if (result == 0) result = one(bytes, length);
        free(bytes);
    }
    if (f != NULL) (void)fclose(f);
    return result;
}
