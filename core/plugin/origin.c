/* origin.c - reads the notes of a loaded library, and the loader's list behind it. */
#include <plugin/origin.h>

#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <stdio.h>

#include <base/memory.h>

typedef struct search {
    uintptr_t base;
    char *build;
} search_t;

/* Name and text of a note each end at a multiple of four bytes. */
static size_t padded(size_t bytes)
{
    return (bytes + 3) & ~(size_t)3;
}

static void read_notes(const char *at, size_t left, char out[ORIGIN_BUILD])
{
    ElfW(Nhdr) head;
    while (left > sizeof(head)) {
        memcpy(&head, at, sizeof(head));
        const size_t name = padded(head.n_namesz), text = padded(head.n_descsz);
        const size_t whole = sizeof(head) + name + text;
        if (name > left || text > left || whole > left) return;
        const unsigned char *id = (const unsigned char *)at + sizeof(head) + name;
        if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == sizeof(ELF_NOTE_GNU) &&
            memcmp(at + sizeof(head), ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0 &&
            2 * (size_t)head.n_descsz < ORIGIN_BUILD)
            for (uint32_t i = 0; i < head.n_descsz; i++)
                (void)snprintf(out + 2 * i, 3, "%02x", id[i]);
        at += whole;
        left -= whole;
    }
}

/* Called for each library of the process; only the one that is mapped at s->base is read. */
static int look_at(struct dl_phdr_info *info, size_t size, void *context)
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

lh_status_t origin_find(const struct link_map *loaded, origin_t *out)
{
    origin_t o = {.base = loaded->l_addr};
    text_t libraries = {0};
    search_t s = {loaded->l_addr, o.build};
    (void)dl_iterate_phdr(look_at, &s);
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

bool origin_is_on_stack(const origin_t *o)
{
    enum { FRAMES = 64 };
    void *frames[FRAMES];
    Dl_info info;
    const int count = backtrace(frames, FRAMES);
    for (int i = 0; i < count; i++) {
        /* A call that does not return may be a function's last instruction. */
        const void *call = (const char *)frames[i] - 1;
        if (dladdr(call, &info) != 0 && (uintptr_t)info.dli_fbase == o->base) return true;
    }
    return false;
}

void origin_free(origin_t *o)
{
    mem_free(o->libraries);
    *o = (origin_t){.libraries = NULL};
}
