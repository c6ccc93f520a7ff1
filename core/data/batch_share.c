/* batch_share.c - cuts a global batch over ranks and passes. */
#include <data/batch_share.h>

batch_share_t batch_share(uint64_t batch, uint64_t micro_batch, uint32_t rank, uint32_t ranks)
{
    const uint64_t largest = (batch + ranks - 1) / ranks;
    batch_share_t s = {.first = batch * rank / ranks};
    s.count = batch * (rank + 1) / ranks - s.first;
    s.passes = (largest + micro_batch - 1) / micro_batch;
    s.rows = (largest + s.passes - 1) / s.passes;
    return s;
}

uint64_t batch_share_rows(const batch_share_t *s, uint64_t pass)
{
    const uint64_t before = pass * s->rows;
    if (before >= s->count) return 0;
    return s->count - before < s->rows ? s->count - before : s->rows;
}
