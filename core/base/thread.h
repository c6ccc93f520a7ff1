/* base/thread.h - how each thread of the program begins: with all signals blocked, with a name, and with the C
 * locale's numbers.
 *
 * SIGTERM and its like are the main thread's to answer, and SIGPIPE of a lost peer is nobody's. A thread inherits
 * the mask of the one that starts it, which is why the mask is set around the start: set in the thread, a signal
 * could come first.
 *
 * A start waits until the thread has begun. Until then an allocator may hold a lock for it, as AddressSanitizer's does,
 * and a process that is forked in that moment has that lock taken for ever. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>

/* Starts a thread that runs run(argument), and waits until it has begun; joined by the caller. name: what ps and
 * debuggers show; of more than 15 bytes the first 15. 0, or an error of pthread_create, which is no failure yet; *out
 * is set only with 0. */
int thread_start(pthread_t *out, const char *name, void *(*run)(void *), void *argument);

#endif
