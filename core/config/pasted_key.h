/* config/pasted_key.h - whether a text that should name a key's file is a key itself. */
#ifndef CONFIG_PASTED_KEY_H
#define CONFIG_PASTED_KEY_H

#include <base/status.h>

/* Bytes of a key as people write them: hexadecimal, alone or with colons, behind 0x or ./, in
 * quotes, as the last name of a path; base64 of 32 bytes or more. folder: against which a path is
 * taken. A name with a dot in it ("job.key") is none, nor is one of a file that is there, unless it
 * is hexadecimal: a key that was pasted once has made such a file. */
bool pasted_key(const char *text, const char *folder);

#endif
