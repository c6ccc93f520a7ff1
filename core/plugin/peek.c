/* peek.c - finds lh_plugin_v1 in an ELF image. The image is the sealed copy: what is checked here
 * is what dlopen will map. */
#include <plugin/peek.h>

#include <elf.h>

#include <longhaul/plugin.h>

#if defined(__x86_64__)
#define PEEK_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define PEEK_MACHINE EM_AARCH64
#else
#error "name this processor's ELF machine"
#endif

static const void *at(peek_image_t m, uint64_t offset, uint64_t bytes)
{
    return offset <= m.size && bytes <= m.size - offset ? m.bytes + offset : NULL;
}

static Elf64_Phdr program_header(peek_image_t m, const Elf64_Ehdr *e, uint32_t index)
{
    Elf64_Phdr header; /* copied: the file may place it anywhere */
    memcpy(&header, m.bytes + e->e_phoff + (uint64_t)index * sizeof(header), sizeof(header));
    return header;
}

static Elf64_Shdr section_header(peek_image_t m, const Elf64_Ehdr *e, uint32_t index)
{
    Elf64_Shdr header;
    memcpy(&header, m.bytes + e->e_shoff + (uint64_t)index * sizeof(header), sizeof(header));
    return header;
}

static const char *check_headers(peek_image_t m, Elf64_Ehdr *e)
{
    if (at(m, 0, sizeof(*e)) == NULL || memcmp(m.bytes, ELFMAG, SELFMAG) != 0)
        return "not an ELF file";
    memcpy(e, m.bytes, sizeof(*e));
    if (e->e_ident[EI_CLASS] != ELFCLASS64 || e->e_ident[EI_DATA] != ELFDATA2LSB ||
        e->e_type != ET_DYN)
        return "not a 64-bit shared object";
    if (e->e_machine != PEEK_MACHINE) return "for another processor";
    if (e->e_phentsize != sizeof(Elf64_Phdr) || e->e_shentsize != sizeof(Elf64_Shdr))
        return "an ELF file with odd headers";
    if (at(m, e->e_phoff, (uint64_t)e->e_phnum * sizeof(Elf64_Phdr)) == NULL ||
        at(m, e->e_shoff, (uint64_t)e->e_shnum * sizeof(Elf64_Shdr)) == NULL)
        return "truncated";
    for (uint32_t i = 0; i < e->e_phnum; i++) {
        const Elf64_Phdr p = program_header(m, e, i);
        /* A page behind the end would be SIGBUS, not an error, when the loader touches it. */
        if (p.p_type == PT_LOAD && at(m, p.p_offset, p.p_filesz) == NULL) return "truncated";
    }
    return NULL;
}

static const char *read_head(peek_image_t m, const Elf64_Ehdr *e, const Elf64_Sym *sym,
                             peek_head_t *out)
{
    if (ELF64_ST_TYPE(sym->st_info) != STT_OBJECT || sym->st_shndx == SHN_UNDEF)
        return "without data named " LH_PLUGIN_SYMBOL;
    for (uint32_t i = 0; i < e->e_phnum; i++) {
        const Elf64_Phdr p = program_header(m, e, i);
        if (p.p_type != PT_LOAD || sym->st_value < p.p_vaddr) continue;
        const uint64_t into = sym->st_value - p.p_vaddr;
        if (into >= p.p_filesz) continue;
        if (p.p_filesz - into < sizeof(*out) || sym->st_size < sizeof(*out))
            return "with less than 48 bytes of " LH_PLUGIN_SYMBOL;
        memcpy(out, m.bytes + p.p_offset + into, sizeof(*out));
        if (out->struct_size > sym->st_size || out->struct_size > p.p_filesz - into)
            return "with a struct_size larger than its " LH_PLUGIN_SYMBOL;
        return NULL;
    }
    return "with " LH_PLUGIN_SYMBOL " outside its file";
}

/* *found: the table has the symbol. */
static const char *search_symbols(peek_image_t m, const Elf64_Ehdr *e, const Elf64_Shdr *table,
                                  bool *found, peek_head_t *out)
{
    if (table->sh_link >= e->e_shnum) return "an ELF file with odd headers";
    const Elf64_Shdr strings = section_header(m, e, table->sh_link);
    const char *text = at(m, strings.sh_offset, strings.sh_size);
    const unsigned char *symbols = at(m, table->sh_offset, table->sh_size);
    if (text == NULL || symbols == NULL) return "truncated";
    if (strings.sh_size == 0 || text[strings.sh_size - 1] != '\0') return "truncated";

    for (uint64_t i = 0; i < table->sh_size / sizeof(Elf64_Sym); i++) {
        Elf64_Sym sym;
        memcpy(&sym, symbols + i * sizeof(sym), sizeof(sym));
        if (sym.st_name >= strings.sh_size || strcmp(text + sym.st_name, LH_PLUGIN_SYMBOL) != 0)
            continue;
        *found = true;
        return read_head(m, e, &sym, out);
    }
    return NULL;
}

const char *peek(peek_image_t image, peek_head_t *out)
{
    Elf64_Ehdr e;
    const char *wrong = check_headers(image, &e);
    for (uint32_t i = 0; wrong == NULL && i < e.e_shnum; i++) {
        const Elf64_Shdr s = section_header(image, &e, i);
        bool found = false;
        if (s.sh_type != SHT_DYNSYM) continue;
        wrong = search_symbols(image, &e, &s, &found, out);
        if (found) return wrong;
    }
    return wrong != NULL ? wrong : "without data named " LH_PLUGIN_SYMBOL;
}

uint64_t peek_room(peek_image_t image, uint64_t into)
{
    Elf64_Ehdr e;
    if (check_headers(image, &e) != NULL) return 0;
    for (uint32_t i = 0; i < e.e_phnum; i++) {
        const Elf64_Phdr p = program_header(image, &e, i);
        if (p.p_type == PT_LOAD && into >= p.p_vaddr && into - p.p_vaddr < p.p_memsz)
            return p.p_memsz - (into - p.p_vaddr);
    }
    return 0;
}
