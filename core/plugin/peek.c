/* peek.c - finds lh_plugin_v2 in an ELF image. The image is the sealed copy: what is checked here
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

/* Rows of a section with the strings that they name; read by index, as the file may place them
 * anywhere. */
typedef struct table {
    const unsigned char *rows;
    const char *text;     /* ends with a NUL */
    uint64_t bytes, size; /* of the rows, of the text */
} table_t;

static const char *read_table(peek_image_t m, const Elf64_Ehdr *e, const Elf64_Shdr *s,
                              table_t *out)
{
    if (s->sh_link >= e->e_shnum) return "an ELF file with odd headers";
    const Elf64_Shdr strings = section_header(m, e, s->sh_link);
    *out = (table_t){.rows = at(m, s->sh_offset, s->sh_size),
                     .text = at(m, strings.sh_offset, strings.sh_size),
                     .bytes = s->sh_size,
                     .size = strings.sh_size};
    if (out->text == NULL || out->rows == NULL) return "truncated";
    return out->size == 0 || out->text[out->size - 1] != '\0' ? "truncated" : NULL;
}

/* NULL: the name lies outside of the strings. */
static const char *symbol_at(const table_t *t, uint64_t index, Elf64_Sym *out)
{
    memcpy(out, t->rows + index * sizeof(*out), sizeof(*out));
    return out->st_name < t->size ? t->text + out->st_name : NULL;
}

static uint64_t symbol_count(const table_t *t)
{
    return t->bytes / sizeof(Elf64_Sym);
}

static bool find_symbol(const table_t *t, const char *name, Elf64_Sym *out)
{
    for (uint64_t i = 0; i < symbol_count(t); i++) {
        const char *is = symbol_at(t, i, out);
        if (is != NULL && strcmp(is, name) == 0) return true;
    }
    return false;
}

const char *peek(peek_image_t image, peek_head_t *out)
{
    Elf64_Ehdr e;
    const char *wrong = check_headers(image, &e);
    for (uint32_t i = 0; wrong == NULL && i < e.e_shnum; i++) {
        const Elf64_Shdr s = section_header(image, &e, i);
        table_t symbols;
        Elf64_Sym sym;
        if (s.sh_type != SHT_DYNSYM) continue;
        wrong = read_table(image, &e, &s, &symbols);
        if (wrong == NULL && find_symbol(&symbols, LH_PLUGIN_SYMBOL, &sym))
            return read_head(image, &e, &sym, out);
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

/* The first section of a type; false: there is none, or it says that it is longer than the file. */
static bool section_of(peek_image_t m, uint32_t type, Elf64_Ehdr *e, Elf64_Shdr *out)
{
    if (check_headers(m, e) != NULL) return false;
    for (uint32_t i = 0; i < e->e_shnum; i++) {
        *out = section_header(m, e, i);
        if (out->sh_type == type) return out->sh_size <= m.size;
    }
    return false;
}

static bool table_of(peek_image_t m, uint32_t type, table_t *out)
{
    Elf64_Ehdr e;
    Elf64_Shdr s;
    return section_of(m, type, &e, &s) && read_table(m, &e, &s, out) == NULL;
}

void peek_each_symbol(peek_image_t image, void (*each)(void *context, const peek_symbol_t *symbol),
                      void *context)
{
    table_t symbols;
    if (!table_of(image, SHT_DYNSYM, &symbols)) return;
    for (uint64_t i = 1; i < symbol_count(&symbols); i++) {
        Elf64_Sym sym;
        const char *name = symbol_at(&symbols, i, &sym);
        const uint32_t binding = ELF64_ST_BIND(sym.st_info);
        if (name == NULL || *name == '\0' || binding == STB_LOCAL ||
            ELF64_ST_VISIBILITY(sym.st_other) == STV_HIDDEN)
            continue;
        each(context, &(peek_symbol_t){.name = name,
                                       .defined = sym.st_shndx != SHN_UNDEF,
                                       .weak = binding == STB_WEAK});
    }
}

void peek_each_needed(peek_image_t image, void (*each)(void *context, const char *name),
                      void *context)
{
    table_t dynamic;
    if (!table_of(image, SHT_DYNAMIC, &dynamic)) return;
    for (uint64_t i = 0; i < dynamic.bytes / sizeof(Elf64_Dyn); i++) {
        Elf64_Dyn row;
        memcpy(&row, dynamic.rows + i * sizeof(row), sizeof(row));
        if (row.d_tag == DT_NULL) return;
        if (row.d_tag == DT_NEEDED && row.d_un.d_val < dynamic.size)
            each(context, dynamic.text + row.d_un.d_val);
    }
}

/* Every object has crtbegin's frame_dummy; libgcc's __builtin_cpu_supports brings another, which
 * only the file's own symbols tell of: a stripped file has none. */
uint32_t peek_constructors(peek_image_t image)
{
    Elf64_Ehdr e;
    Elf64_Shdr s;
    Elf64_Sym sym;
    table_t own;
    if (!section_of(image, SHT_INIT_ARRAY, &e, &s)) return 0;
    const uint64_t count = s.sh_size / sizeof(uint64_t);
    const uint64_t known = table_of(image, SHT_SYMTAB, &own) &&
                                   find_symbol(&own, "__cpu_indicator_init", &sym)
                               ? 2
                               : 1;
    return count > known ? (uint32_t)(count - known) : 0;
}
