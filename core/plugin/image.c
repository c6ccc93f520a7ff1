/* image.c - a plugin's file: who may have written it, its copy in a sealed memfd, its pinned
 * digest.
 *
 * A path can lead to another file a moment after it was checked. So the file is opened once, looked
 * at through that descriptor, and copied to memory that nobody can change any more: what is hashed,
 * peeked at, tried in a child and loaded is that copy. It costs the file's size in memory a
 * plugin. */
#include <plugin/image.h>

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <longhaul/plugin.h>

#if defined(__x86_64__)
#define IMAGE_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define IMAGE_MACHINE EM_AARCH64
#else
#error "name this processor's ELF machine"
#endif

/* For the sentence about a file of the wrong type. */
static const char *image_type_text(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG: return "a regular file";
    case S_IFDIR: return "a folder";
    case S_IFIFO: return "a FIFO";
    case S_IFLNK: return "a symbolic link";
    case S_IFSOCK: return "a socket";
    default: return "a device";
    }
}

/* Nobody but root and this user may own or write it: who can, can run code here. */
static lh_status_t image_check_stat(const char *path, const struct stat *st, mode_t type)
{
    const unsigned mode = st->st_mode & 07777;
    if ((st->st_mode & S_IFMT) != type)
        return fail(LH_INVALID, "%s: is %s, expected %s", path, image_type_text(st->st_mode),
                    image_type_text(type));
    if (st->st_uid != 0 && st->st_uid != geteuid())
        return fail(LH_INVALID, "%s: belongs to user %u, expected root or user %u", path,
                    (unsigned)st->st_uid, (unsigned)geteuid());
    if ((mode & (S_IWGRP | S_IWOTH)) != 0)
        return fail(LH_INVALID,
                    "%s: %s can write it (mode %04o), expected only its owner: chmod go-w", path,
                    (mode & S_IWOTH) != 0 ? "everybody" : "its group", mode);
    return LH_OK;
}

/* O_NOFOLLOW: what a link points to may be changed by who owns the folder that it points into.
 * O_NONBLOCK: a FIFO would be waited for. */
static lh_status_t image_open_checked(const char *path, mode_t type, int *fd, struct stat *st)
{
    const int folder = type == S_IFDIR ? O_DIRECTORY : 0;
    const int got = sys()->open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | folder, 0);
    if (got < 0) {
        const int error = errno;
        if (sys()->lstat(path, st) == 0 && (st->st_mode & S_IFMT) != type)
            return image_check_stat(path, st, type);
        errno = error;
        return fail_io(errno, "%s: cannot open", path);
    }
    lh_status_t status = sys()->fstat(got, st) != 0 ? fail_io(errno, "%s: cannot stat", path)
                                                    : image_check_stat(path, st, type);
    if (status == LH_OK)
        *fd = got;
    else
        (void)sys()->close(got);
    return status;
}

/* The folder first: who can write into it could put another file in the place of the one that is
 * looked at next. */
static lh_status_t image_open_file(const char *path, uint64_t limit, int *fd, uint64_t *size)
{
    struct stat st = {0};
    int folder_fd;
    char *folder = path_folder(path);
    if (folder == NULL) return LH_NO_MEMORY;
    lh_status_t status = image_open_checked(folder, S_IFDIR, &folder_fd, &st);
    mem_free(folder);
    if (status != LH_OK) return status;
    (void)sys()->close(folder_fd);

    int got;
    status = image_open_checked(path, S_IFREG, &got, &st);
    if (status != LH_OK) return status;
    /* Before any memory is asked for. */
    if (st.st_size <= 0 || (uint64_t)st.st_size > limit) {
        (void)sys()->close(got);
        return fail(LH_INVALID, "%s: has %lld bytes, expected 1 to %llu", path,
                    (long long)st.st_size, (unsigned long long)limit);
    }
    *fd = got;
    *size = (uint64_t)st.st_size;
    return LH_OK;
}

/* Copies by reads and writes of a mebibyte: the file may lie on a file system where mmap and
 * copy_file_range do not work, and a plugin is copied once. A file that shrinks meanwhile fails
 * file_pread. */
static lh_status_t image_copy_file(int from, const char *path, uint64_t size, int to)
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

/* Sealed before it is hashed: what the digest says stays true. The copy is mapped for good, as
 * tables are checked against it after loading, too. */
static lh_status_t image_seal_and_map(image_t *image, const char *path, uint64_t size)
{
    char what[512];
    (void)snprintf(what, sizeof(what), "the copy of %s", path);
    const lh_status_t status = file_seal(image->fd, what);
    if (status != LH_OK) return status;
    void *map = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, image->fd, 0);
    if (map == MAP_FAILED) return fail_io(errno, "%s: cannot map its copy", path);
    image->map = (image_bytes_t){map, (size_t)size};
    return digest_of(map, (size_t)size, image->sha256);
}

/* The file is closed again at the end: from here on only the copy counts. */
lh_status_t image_open(const char *path, const char *name, uint64_t limit, image_t *out)
{
    char label[48];
    image_t image = {.fd = -1};
    int from = -1;
    uint64_t size = 0;

    lh_status_t status = image_open_file(path, limit, &from, &size);
    if (status != LH_OK) return status;
    (void)snprintf(label, sizeof(label), "longhaul.%.31s", name);
    image.fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (image.fd < 0) {
        status = fail_io(errno, "%s: no memory file for its copy", path);
        goto close_file;
    }
    status = image_copy_file(from, path, size, image.fd);
    if (status == LH_OK) status = image_seal_and_map(&image, path, size);
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

/* Both digests and the line of the INI: the user decides which of the two is meant. */
static lh_status_t image_refuse_digest(const job_t *job, const char *path, const char *sha256,
                                       const job_pin_t *pin)
{
    char section[64], where[600]; /* a plugin's name has at most 31 bytes */
    (void)snprintf(section, sizeof(section), "plugin.%s", pin->name);
    const document_entry_t *e = document_entry(document_find(job->document, section), "sha256");
    document_where(e->file, e->line, where, sizeof(where));
    return fail(LH_INVALID, "%s: its SHA-256 is %s, but %s pins %s", path, sha256, where,
                pin->sha256);
}

/* job->pins has a row for every section [plugin.NAME]; one without a digest pins nothing. */
lh_status_t image_check_pin(const job_t *job, const char *path, const char *name,
                            const char *sha256)
{
    for (uint32_t i = 0; job != NULL && i < job->pin_count; i++) {
        const job_pin_t *pin = &job->pins[i];
        if (pin->sha256 == NULL || strcmp(pin->name, name) != 0) continue;
        if (strcmp(pin->sha256, sha256) != 0) return image_refuse_digest(job, path, sha256, pin);
    }
    return LH_OK;
}

/* What the ELF tables say. Nothing in the file is trusted: each offset and length is checked
 * against the image's size before it is followed, and structs are copied out, as the file may place
 * them where no pointer to them may point. The section headers are read and not the dynamic
 * segment, although the loader needs the latter alone: they give a symbol table's length, which the
 * other only lets one guess. A file whose two views differ fails after loading, where the symbol
 * that was found is compared with the head that was read here. */

/* `bytes` bytes at an offset of the file; NULL where they do not lie in it. */
static const void *image_at(image_bytes_t m, uint64_t offset, uint64_t bytes)
{
    return offset <= m.size && bytes <= m.size - offset ? m.bytes + offset : NULL;
}

/* The index is below e_phnum, and check_headers has passed: all headers lie in the file. */
static Elf64_Phdr program_header(image_bytes_t m, const Elf64_Ehdr *e, uint32_t index)
{
    lh_assert(index < e->e_phnum);
    Elf64_Phdr header; /* copied: the file may place it anywhere */
    memcpy(&header, m.bytes + e->e_phoff + (uint64_t)index * sizeof(header), sizeof(header));
    return header;
}

/* As program_header. */
static Elf64_Shdr section_header(image_bytes_t m, const Elf64_Ehdr *e, uint32_t index)
{
    lh_assert(index < e->e_shnum);
    Elf64_Shdr header;
    memcpy(&header, m.bytes + e->e_shoff + (uint64_t)index * sizeof(header), sizeof(header));
    return header;
}

/* Copies the file's header and says what is wrong with it or its tables; NULL: nothing. All
 * functions below go through here first. */
static const char *check_headers(image_bytes_t m, Elf64_Ehdr *e)
{
    if (image_at(m, 0, sizeof(*e)) == NULL || memcmp(m.bytes, ELFMAG, SELFMAG) != 0)
        return "not an ELF file";
    memcpy(e, m.bytes, sizeof(*e));
    if (e->e_ident[EI_CLASS] != ELFCLASS64 || e->e_ident[EI_DATA] != ELFDATA2LSB ||
        e->e_type != ET_DYN)
        return "not a 64-bit shared object";
    if (e->e_machine != IMAGE_MACHINE) return "for another processor";
    if (e->e_phentsize != sizeof(Elf64_Phdr) || e->e_shentsize != sizeof(Elf64_Shdr))
        return "an ELF file with odd headers";
    if (image_at(m, e->e_phoff, (uint64_t)e->e_phnum * sizeof(Elf64_Phdr)) == NULL ||
        image_at(m, e->e_shoff, (uint64_t)e->e_shnum * sizeof(Elf64_Shdr)) == NULL)
        return "truncated";
    for (uint32_t i = 0; i < e->e_phnum; i++) {
        const Elf64_Phdr p = program_header(m, e, i);
        /* A page behind the end would be SIGBUS, not an error, when the loader touches it. */
        if (p.p_type == PT_LOAD && image_at(m, p.p_offset, p.p_filesz) == NULL) return "truncated";
    }
    return NULL;
}

/* The first bytes of the symbol's data, at the place in the file that the loader will map there. */
static const char *read_head(image_bytes_t m, const Elf64_Ehdr *e, const Elf64_Sym *sym,
                             image_head_t *out)
{
    if (ELF64_ST_TYPE(sym->st_info) != STT_OBJECT || sym->st_shndx == SHN_UNDEF)
        return "without data named " LH_PLUGIN_SYMBOL;
    /* The segment whose part of the file holds the symbol's address. */
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

/* Rows of a section with the strings that they name. Rows are copied out by index, as the file may
 * place them at addresses where a struct may not lie. */
typedef struct table {
    const unsigned char *rows;
    const char *text;     /* ends with a NUL */
    uint64_t bytes, size; /* of the rows, of the text */
} table_t;

/* A section of rows and the section of strings that it links to. */
static const char *read_table(image_bytes_t m, const Elf64_Ehdr *e, const Elf64_Shdr *s,
                              table_t *out)
{
    if (s->sh_link >= e->e_shnum) return "an ELF file with odd headers";
    const Elf64_Shdr strings = section_header(m, e, s->sh_link);
    *out = (table_t){.rows = image_at(m, s->sh_offset, s->sh_size),
                     .text = image_at(m, strings.sh_offset, strings.sh_size),
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

/* Whole rows; what is left of a section of an odd length is none. */
static uint64_t symbol_count(const table_t *t)
{
    return t->bytes / sizeof(Elf64_Sym);
}

/* By going through all: plugins export a handful of symbols. */
static bool find_symbol(const table_t *t, const char *name, Elf64_Sym *out)
{
    for (uint64_t i = 0; i < symbol_count(t); i++) {
        const char *is = symbol_at(t, i, out);
        if (is != NULL && strcmp(is, name) == 0) return true;
    }
    return false;
}

/* A file may have several symbol tables: the first one that knows the name counts. */
const char *image_peek(image_bytes_t image, image_head_t *out)
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

/* p_memsz and not p_filesz: zeroed data behind the file's part is the plugin's own as well. */
uint64_t image_room(image_bytes_t image, uint64_t into)
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
static bool section_of(image_bytes_t m, uint32_t type, Elf64_Ehdr *e, Elf64_Shdr *out)
{
    if (check_headers(m, e) != NULL) return false;
    for (uint32_t i = 0; i < e->e_shnum; i++) {
        *out = section_header(m, e, i);
        if (out->sh_type == type) return out->sh_size <= m.size;
    }
    return false;
}

/* The first table of a type; false where there is none or it is damaged. */
static bool table_of(image_bytes_t m, uint32_t type, table_t *out)
{
    Elf64_Ehdr e;
    Elf64_Shdr s;
    return section_of(m, type, &e, &s) && read_table(m, &e, &s, out) == NULL;
}

/* Row 0 of a symbol table is empty by the format. A name outside of the strings is passed over. */
void image_each_symbol(image_bytes_t image,
                       void (*each)(void *context, const image_symbol_t *symbol), void *context)
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
        each(context, &(image_symbol_t){.name = name,
                                        .defined = sym.st_shndx != SHN_UNDEF,
                                        .weak = binding == STB_WEAK});
    }
}

/* A row of DT_NULL ends the dynamic section, whatever lies behind it. */
void image_each_needed(image_bytes_t image, void (*each)(void *context, const char *name),
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

/* Functions of .init_array beyond the compiler's own: longhaul-check warns of them, as code that
 * runs at load time runs before anything of the plugin was checked by the host. Every object has
 * crtbegin's frame_dummy; libgcc's __builtin_cpu_supports brings another, which only the file's own
 * symbols tell of: a stripped file has none. */
uint32_t image_constructors(image_bytes_t image)
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
