/* engine/engine_profile.h - what an engine's time goes into. */
#ifndef ENGINE_ENGINE_PROFILE_H
#define ENGINE_ENGINE_PROFILE_H

#include <engine/engine.h>

const char *memory_kind_text(uint32_t kind); /* "parameters" */
/* After engine_plan. */
void engine_memory(const engine_t *e, memory_report_t *out);
/* After engine_build, what of it is there: the pages that the kernel says are in memory where the
 * host reaches them, elsewhere what the device gave. 0 of LIBRARY, which lies in the heap of
 * others. */
void engine_memory_measured(const engine_t *e, memory_report_t *out);
/* False: the device doesn't tell. */
bool engine_device_memory(const engine_t *e, lh_device_memory_t *out);
/* The i-th call of the first micro-batch, or of a later one. False: there are fewer. After
 * engine_plan. */
bool program_call(const program_t *p, bool later, uint32_t i, program_call_t *out);
/* The recording of the model's first block. */
const recording_t *program_block(const program_t *p);
lh_status_t engine_profile(engine_t *e, bool on) LH_MUST_CHECK;
/* Whether it can be switched on: a device that queues work must tell when events were passed. */
bool engine_can_profile(const engine_t *e);
/* Rows in descending order of time; the caller frees with mem_free. */
lh_status_t engine_profile_rows(engine_t *e, profile_row_t **rows, uint32_t *count) LH_MUST_CHECK;
/* The share that a row reaches of what bounds it: the device's matrix rate or its memory bandwidth,
 * whichever takes longer. Over 1: out of a cache. 0 where a rate is not known (0). */
double profile_row_of_limit(const profile_row_t *r, double peak_flops, double bytes_per_second);
/* In the order in which they first ran; the caller frees with mem_free. */
lh_status_t engine_profile_frames(engine_t *e, profile_frame_t **frames,
                                  uint32_t *count) LH_MUST_CHECK;

#endif
