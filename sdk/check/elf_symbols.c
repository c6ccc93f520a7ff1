/* elf_symbols.c - walks the section headers of an image that peek found sound. */
#include "elf_symbols.h"

#include <elf.h>

static const void *at(peek_image_t m, uint64_t offset, uint64_t bytes)
{
    return offset <= m.size && bytes <= m.size - offset ? m.bytes + offset : NULL;
}

/* The index-th section of a type; false: there is none. */
static bool section_of(peek_image_t m, uint32_t type, Elf64_Shdr *out)
{
    Elf64_Ehdr e;
    memcpy(&e, m.bytes, sizeof(e));
    for (uint32_t i = 0; i < e.e_shnum; i++) {
        memcpy(out, m.bytes + e.e_shoff + (uint64_t)i * sizeof(*out), sizeof(*out));
        if (out->sh_type == type) return true;
    }
    return false;
}

static const char *strings_of(peek_image_t m, const Elf64_Shdr *s, uint64_t *bytes)
{
    Elf64_Ehdr e;
    Elf64_Shdr strings;
    memcpy(&e, m.bytes, sizeof(e));
    if (s->sh_link >= e.e_shnum) return NULL;
    memcpy(&strings, m.bytes + e.e_shoff + (uint64_t)s->sh_link * sizeof(strings), sizeof(strings));
    const char *text = at(m, strings.sh_offset, strings.sh_size);
    if (text == NULL || strings.sh_size == 0 || text[strings.sh_size - 1] != '\0') return NULL;
    *bytes = strings.sh_size;
    return text;
}

void elf_each_symbol(peek_image_t m, void (*each)(void *context, const elf_symbol_t *symbol),
                     void *context)
{
    Elf64_Shdr table;
    uint64_t bytes = 0;
    if (!section_of(m, SHT_DYNSYM, &table)) return;
    const char *text = strings_of(m, &table, &bytes);
    const unsigned char *symbols = at(m, table.sh_offset, table.sh_size);
    if (text == NULL || symbols == NULL) return;
    for (uint64_t i = 1; i < table.sh_size / sizeof(Elf64_Sym); i++) {
        Elf64_Sym sym;
        memcpy(&sym, symbols + i * sizeof(sym), sizeof(sym));
        const uint32_t binding = ELF64_ST_BIND(sym.st_info);
        if (binding == STB_LOCAL || sym.st_name >= bytes || text[sym.st_name] == '\0') continue;
        if (ELF64_ST_VISIBILITY(sym.st_other) == STV_HIDDEN) continue;
        const elf_symbol_t symbol = {text + sym.st_name, sym.st_shndx != SHN_UNDEF,
                                     binding == STB_WEAK};
        each(context, &symbol);
    }
}

void elf_each_needed(peek_image_t m, void (*each)(void *context, const char *name), void *context)
{
    Elf64_Shdr table;
    uint64_t bytes = 0;
    if (!section_of(m, SHT_DYNAMIC, &table)) return;
    const char *text = strings_of(m, &table, &bytes);
    const unsigned char *rows = at(m, table.sh_offset, table.sh_size);
    if (text == NULL || rows == NULL) return;
    for (uint64_t i = 0; i < table.sh_size / sizeof(Elf64_Dyn); i++) {
        Elf64_Dyn row;
        memcpy(&row, rows + i * sizeof(row), sizeof(row));
        if (row.d_tag == DT_NULL) return;
        if (row.d_tag == DT_NEEDED && row.d_un.d_val < bytes) each(context, text + row.d_un.d_val);
    }
}

/* Whether the file's own symbols have one of that name; a stripped file has none. */
static bool has_local(peek_image_t m, const char *name)
{
    Elf64_Shdr table;
    uint64_t bytes = 0;
    if (!section_of(m, SHT_SYMTAB, &table)) return false;
    const char *text = strings_of(m, &table, &bytes);
    const unsigned char *symbols = at(m, table.sh_offset, table.sh_size);
    if (text == NULL || symbols == NULL) return false;
    for (uint64_t i = 1; i < table.sh_size / sizeof(Elf64_Sym); i++) {
        Elf64_Sym sym;
        memcpy(&sym, symbols + i * sizeof(sym), sizeof(sym));
        if (sym.st_name < bytes && strcmp(text + sym.st_name, name) == 0) return true;
    }
    return false;
}

/* Every object has crtbegin's frame_dummy; libgcc's __builtin_cpu_supports brings another. */
uint32_t elf_constructors(peek_image_t m)
{
    Elf64_Shdr table;
    if (!section_of(m, SHT_INIT_ARRAY, &table)) return 0;
    const uint64_t count = table.sh_size / sizeof(uint64_t);
    const uint64_t known = has_local(m, "__cpu_indicator_init") ? 2 : 1;
    return count > known ? (uint32_t)(count - known) : 0;
}
