/* device_memory.h - checks of a device's memory that others reach, and of others' memory that it reaches. */
#ifndef CHECK_DEVICE_MEMORY_H
#define CHECK_DEVICE_MEMORY_H

#include "check.h"

void shared_memory_is_the_memory(subject_t *s);
void memory_of_a_peer_is_reached(subject_t *s);
void host_memory_is_an_input(subject_t *s);

#endif
