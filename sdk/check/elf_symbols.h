/* elf_symbols.h - what a shared object exports, imports and runs when it is loaded, read from the
 * file. */
#ifndef ELF_SYMBOLS_H
#define ELF_SYMBOLS_H

#include <plugin/peek.h>

typedef struct elf_symbol {
    const char *name;
    bool defined; /* else: wanted from elsewhere */
    bool weak;
} elf_symbol_t;

/* Calls each for every dynamic symbol that others see. The image has passed peek. */
void elf_each_symbol(peek_image_t image, void (*each)(void *context, const elf_symbol_t *symbol),
                     void *context);
/* Libraries that it names. */
void elf_each_needed(peek_image_t image, void (*each)(void *context, const char *name),
                     void *context);
/* Functions that loading runs, beside those of the compiler's start files. */
uint32_t elf_constructors(peek_image_t image);

#endif
