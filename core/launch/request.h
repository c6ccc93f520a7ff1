/* launch/request.h - what a person asks of a run from another shell or another machine: a file in
 * the pipeline's folder, which the process that holds the folder takes away as its answer.
 *
 * `.request-stop` asks for what SIGTERM asks for, `.request-save` for a checkpoint of the step at
 * hand. Only files that belong to the user of the run, to root or to whoever owns the folder are
 * taken. The first line of such a file is its word, the second says who asks. */
#ifndef LAUNCH_REQUEST_H
#define LAUNCH_REQUEST_H

#include <base/status.h>

enum { REQUEST_STOP = 1u << 0, REQUEST_SAVE = 1u << 1 };
/* Beside them: the process that takes requests starts ranks, and passes signals on to them. */
enum { REQUEST_PASSES = 1u << 2 };
/* The word of a stop that does not wait for a save: what a second SIGTERM does. */
#define REQUEST_NOW "now"

/* ---- in the run ---- */

/* A thread that looks into the folder some times a second, until request_end. */
typedef struct request_server request_server_t;

/* which: of the two. What an earlier run left of them is removed first. Of the first stop it sends this
 * process SIGTERM, unless that was asked to stop before: whoever starts ranks passes that on, as if it
 * had come from outside, but does not count it as a second. folder is copied. */
lh_status_t request_serve(const char *folder, uint32_t which, request_server_t **out) LH_MUST_CHECK;
/* [any thread] From now on a save is taken, or not any more; before, and after, it is left lying,
 * so that whoever asks hears that nobody trains. */
void request_accept_saves(request_server_t *s, bool accept);
/* [any thread] Whether a save was asked for since the last call. */
bool request_take_save(request_server_t *s);
void request_end(request_server_t *s); /* NULL does nothing */

/* ---- of whoever asks ---- */

/* Writes the file, or replaces what was asked there before. one of REQUEST_*; word: "save", "stop"
 * or REQUEST_NOW. */
lh_status_t request_put(const char *folder, uint32_t which, const char *word) LH_MUST_CHECK;
/* Whether it still lies there. */
bool request_pending(const char *folder, uint32_t which);
/* Takes it back. */
void request_withdraw(const char *folder, uint32_t which);

#endif
