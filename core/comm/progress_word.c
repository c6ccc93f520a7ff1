/* progress_word.c - a word that is read whole or again. */
#include <comm/progress_word.h>

#include <stdio.h>
#include <string.h>

void progress_write(progress_word_t *w, uint64_t step, const char *text)
{
    uint64_t words[PROGRESS_WORDS] = {0};
    const size_t length = text == NULL ? 0 : strnlen(text, PROGRESS_TEXT - 1);
    if (length > 0) memcpy(words, text, length);

    uint64_t serial = atomic_load_explicit(&w->serial, memory_order_relaxed);
    if (serial % 2 != 0 || !atomic_compare_exchange_strong(&w->serial, &serial, serial + 1)) return;
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&w->step, step, memory_order_relaxed);
    for (uint32_t i = 0; i < PROGRESS_WORDS; i++)
        atomic_store_explicit(&w->text[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&w->serial, serial + 2, memory_order_release);
}

/* A writer that died in between leaves an odd number for ever: what is there is then taken. */
void progress_read(const progress_word_t *w, progress_t *out)
{
    enum { TRIES = 100 };
    uint64_t words[PROGRESS_WORDS];
    for (uint32_t try = 0; try < TRIES; try++) {
        const uint64_t before = atomic_load_explicit(&w->serial, memory_order_acquire);
        out->step = atomic_load_explicit(&w->step, memory_order_relaxed);
        for (uint32_t i = 0; i < PROGRESS_WORDS; i++)
            words[i] = atomic_load_explicit(&w->text[i], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        const uint64_t after = atomic_load_explicit(&w->serial, memory_order_relaxed);
        if (before == after && before % 2 == 0) break;
    }
    memcpy(out->text, words, sizeof(words));
    out->text[PROGRESS_TEXT - 1] = '\0';
}

void progress_phrase(const progress_t *p, char out[PROGRESS_PHRASE])
{
    const bool text = p->text[0] != '\0';
    out[0] = '\0';
    if (p->step > 0)
        (void)snprintf(out, PROGRESS_PHRASE, " in step %llu%s%s", (unsigned long long)p->step,
                       text ? ", " : "", p->text);
    else if (text)
        (void)snprintf(out, PROGRESS_PHRASE, " in %s", p->text);
}
