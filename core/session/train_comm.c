/* train_comm.c - how the ranks of a run talk.
 *
 * The numbers of a step go by an all-gather over the links: the control plane gathers before step
 * 0 and between phases, through one process, and never in a step (control.h). Each rank has a fixed
 * room in the gathered memory, TRAIN_COMM_ROOM bytes for what is gathered, so one plan serves every
 * size up to it. Over several sites each tells there, too, how much it has sent to every site, and what
 * its links there are like now.
 *
 * Links between sites are measured beside all that a run does until it connects: the record is looked at
 * first, and what it lacks is begun then (comm_probe). */
#include <session/train_comm.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <base/memory.h>
#include <links/links_words.h>
#include <session/link_record.h>

/* These three are train_ranks_t's functions. They may be called from the control thread only: all
 * use the one plan and its memory. */
static lh_status_t ranks_gather_start(void *context, const void *mine, size_t bytes)
{
    train_comm_t *t = context;
    if (t->plan == NULL || bytes > TRAIN_COMM_ROOM)
        return fail(LH_INVALID, "%zu bytes of each rank can't be gathered beside other work",
                    bytes);
    char *room = t->memory + (size_t)t->ranks.rank * t->room_bytes;
    memcpy(room, mine, bytes);
    if (t->told != NULL) comm_tell(t->comm, (link_told_t *)(void *)(room + TRAIN_COMM_ROOM));
    return collective_start(t->plan);
}

static lh_status_t ranks_gather_finish(void *context, size_t bytes, void *all)
{
    train_comm_t *t = context;
    const lh_status_t status = collective_wait(t->plan);
    if (status != LH_OK) return status;
    for (uint32_t r = 0; r < t->ranks.size; r++)
        memcpy((char *)all + r * bytes, t->memory + (size_t)r * t->room_bytes, bytes);
    const size_t sites = comm_world(t->comm)->row.sites;
    for (uint32_t r = 0; t->told != NULL && r < t->ranks.size; r++)
        memcpy(t->told + r * sites, t->memory + (size_t)r * t->room_bytes + TRAIN_COMM_ROOM,
               sites * sizeof(*t->told));
    if (t->told != NULL) comm_told(t->comm, t->told);
    return LH_OK;
}

/* The same size on all ranks, so all take the same way. */
static lh_status_t ranks_gather(void *context, const void *mine, size_t bytes, void *all)
{
    train_comm_t *t = context;
    if (t->plan == NULL || bytes > TRAIN_COMM_ROOM)
        return control_gather(t->control, mine, bytes, all);
    const lh_status_t status = ranks_gather_start(t, mine, bytes);
    return status == LH_OK ? ranks_gather_finish(t, bytes, all) : status;
}

static bool has_site(const world_t *w, const char *name)
{
    for (uint32_t r = 0; r < w->row.size; r++)
        if (text_equal(w->ranks[r].site_name, name)) return true;
    return false;
}

/* Rows of other jobs' sites need not travel, but one where there are no others: whoever measures tells of
 * a foreign record by it (links_probe). How many are left, first in the list. */
static uint32_t rows_of_sites(const world_t *w, probe_pair_t *rows, uint32_t count)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++)
        if (has_site(w, rows[i].site[0]) && has_site(w, rows[i].site[1])) rows[kept++] = rows[i];
    return kept == 0 && count > 0 ? 1 : kept;
}

/* Rank 0 keeps the record of links and all others hear of it, so that all count the memory that `plan`
 * counts with it; after what is measured it may be other memory. The rows are of one layout on all
 * ranks, which run one build. */
static lh_status_t record_take(train_comm_t *t)
{
    train_agree_t agree;
    uint32_t count = 0;
    if (comm_world(t->comm)->row.sites < 2) return LH_OK;
    if (t->ranks.rank == 0) link_record_load(t->job, &t->known, &count);
    count = rows_of_sites(comm_world(t->comm), t->known, count);
    lh_status_t status = train_agree_new(&t->ranks, &agree);
    if (status == LH_OK) status = train_agree_first(&agree, &count, sizeof(count));
    if (status == LH_OK && count > 0) {
        if (t->known == NULL) t->known = mem_array(count, sizeof(*t->known));
        status = t->known == NULL ? LH_NO_MEMORY
                                  : train_agree_first(&agree, t->known, count * sizeof(*t->known));
    }
    train_agree_free(&agree);
    if (status == LH_OK) comm_known_links(t->comm, t->known, count);
    return status;
}

static void record_forget(train_comm_t *t)
{
    comm_known_links(t->comm, NULL, 0);
    mem_free(t->known);
    t->known = NULL;
}

/* The figures that are measured are needed by train_comm_connect and not before. */
lh_status_t train_comm_open(train_comm_t *t, const train_comm_how_t *how)
{
    const comm_how_t comm = {.job = how->job,
                             .registry = how->registry,
                             .world = how->world,
                             .control = how->control,
                             .thread = true,
                             .planned = how->control == NULL};
    *t = (train_comm_t){.ranks = {.rank = how->world->row.rank,
                                  .size = how->world->row.size,
                                  .most = control_gather_most(how->world->row.size),
                                  .context = t,
                                  .gather = ranks_gather,
                                  .start = ranks_gather_start,
                                  .finish = ranks_gather_finish},
                        .job = how->job,
                        .control = how->control};
    lh_status_t status = comm_open(&comm, &t->comm);
    if (status != LH_OK || comm.planned) return status;
    status = record_take(t);
    return status == LH_OK ? comm_probe(t->comm) : status;
}

lh_status_t train_comm_quiet(train_comm_t *t)
{
    return comm_probe_wait(t->comm);
}

/* F32 elements are only a unit to count bytes by: an all-gather copies and does not add. */
static lh_status_t plan_numbers(train_comm_t *t, collective_t **out)
{
    const size_t sites = comm_world(t->comm)->row.sites;
    const size_t told = sites > 1 ? sites * sizeof(*t->told) : 0;
    t->room_bytes = TRAIN_COMM_ROOM + told;
    const size_t bytes = (size_t)t->ranks.size * t->room_bytes;
    coll_how_t how = {.name = "numbers of the step",
                      .op = COLL_ALL_GATHER,
                      .group = comm_group(t->comm, LH_GROUP_DATA),
                      .dtype = LH_DTYPE_F32,
                      .elements = bytes / sizeof(float),
                      .service = LH_SERVICE_GRADIENT};
    if (how.group == NULL) return LH_INVALID;
    t->memory = mem_new(bytes);
    if (told > 0) t->told = mem_array(t->ranks.size, told);
    if (t->memory == NULL || (told > 0 && t->told == NULL)) return LH_NO_MEMORY;
    how.whole.address = t->memory;
    const lh_status_t status = comm_arena(t->comm, t->memory, bytes, -1, 0, &how.whole.arena);
    return status == LH_OK ? collective_new(t->comm, &how, out) : status;
}

/* The numbers' plan first, so that what comm plans for all counts its staging, too. */
static lh_status_t train_comm_plan_all(train_comm_t *t, collective_t **numbers)
{
    const lh_status_t status = plan_numbers(t, numbers);
    return status == LH_OK ? comm_plan(t->comm, &t->planned_bytes) : status;
}

lh_status_t train_comm_plan(train_comm_t *t)
{
    collective_t *numbers;
    return train_comm_plan_all(t, &numbers);
}

static void record_keep(const train_comm_t *t)
{
    uint32_t count, word_count;
    if (t->ranks.rank != 0) return;
    const probe_pair_t *pairs = links_pairs(comm_links(t->comm), &count);
    const probe_words_t *words = links_words(comm_links(t->comm), &word_count);
    if (count > 0) link_record_keep(t->job, pairs, count, words, word_count);
}

/* The memory that is counted is what the record says, also where links have been measured meanwhile. */
lh_status_t train_comm_connect(train_comm_t *t)
{
    collective_t *numbers;
    lh_status_t status = train_comm_plan_all(t, &numbers);
    if (status == LH_OK) status = comm_connect(t->comm);
    record_forget(t);
    if (status != LH_OK) return status;
    record_keep(t);
    t->plan = numbers; /* until then gathers take the slow way */
    return LH_OK;
}

/* The barrier keeps a rank that is done from closing links through which another still reads. */
void train_comm_close(train_comm_t *t, bool together)
{
    if (t->comm == NULL) return;
    comm_stop(t->comm);
    /* Where the barrier fails somebody failed after all; the control plane tells who. */
    if (!together || control_barrier(t->control, "the end of training") != LH_OK)
        comm_cancel(t->comm);
    comm_close(t->comm);
    mem_free(t->known);
    mem_free(t->memory);
    mem_free(t->told);
    *t = (train_comm_t){0};
}

/* ---- agreements: each by one gather ---- */

lh_status_t train_agree_new(const train_ranks_t *ranks, train_agree_t *out)
{
    *out = (train_agree_t){0};
    if (ranks == NULL || ranks->size <= 1) return LH_OK;
    out->all = mem_array(ranks->size, AGREE_MOST * sizeof(*out->all));
    if (out->all == NULL) return LH_NO_MEMORY;
    out->ranks = ranks;
    return LH_OK;
}

void train_agree_free(train_agree_t *a)
{
    mem_free(a->all);
    *a = (train_agree_t){0};
}

/* By rank and from zero, in double: addition is not associative, and this order is the same
 * everywhere. */
static void ranks_sum(const train_agree_t *a, double *values, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++) {
        values[k] = 0;
        for (uint32_t r = 0; r < a->ranks->size; r++)
            values[k] += a->all[r * count + k];
    }
}

lh_status_t train_agree_sum(train_agree_t *a, double *values, uint32_t count)
{
    lh_assert(count > 0 && count <= AGREE_MOST);
    if (a->ranks == NULL) return LH_OK;
    const train_ranks_t *r = a->ranks;
    const lh_status_t status = r->gather(r->context, values, count * sizeof(*values), a->all);
    if (status == LH_OK) ranks_sum(a, values, count);
    return status;
}

lh_status_t train_agree_start(train_agree_t *a, const double *values, uint32_t count)
{
    lh_assert(count > 0 && count <= AGREE_MOST);
    if (a->ranks == NULL || a->ranks->start == NULL) return LH_OK;
    return a->ranks->start(a->ranks->context, values, count * sizeof(*values));
}

lh_status_t train_agree_finish(train_agree_t *a, double *values, uint32_t count)
{
    lh_assert(count > 0 && count <= AGREE_MOST);
    if (a->ranks == NULL) return LH_OK;
    const train_ranks_t *r = a->ranks;
    if (r->start == NULL) return train_agree_sum(a, values, count);
    const lh_status_t status = r->finish(r->context, count * sizeof(*values), a->all);
    if (status == LH_OK) ranks_sum(a, values, count);
    return status;
}

double train_agree_least(const train_agree_t *a, uint32_t count, uint32_t k)
{
    lh_assert(a->ranks != NULL && k < count && count <= AGREE_MOST);
    double least = a->all[k];
    for (uint32_t r = 1; r < a->ranks->size; r++)
        least = fmin(least, a->all[r * count + k]);
    return least;
}

lh_status_t train_agree_first(train_agree_t *a, void *value, size_t bytes)
{
    lh_assert(bytes > 0);
    if (a->ranks == NULL) return LH_OK;
    const size_t room = control_gather_most(a->ranks->size), most = bytes < room ? bytes : room;
    char *all = mem_array(a->ranks->size, most), *at = value;
    if (all == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    for (size_t left = bytes; left > 0 && status == LH_OK;) {
        const size_t piece = left < most ? left : most;
        status = a->ranks->gather(a->ranks->context, at, piece, all);
        if (status == LH_OK) memcpy(at, all, piece);
        at += piece;
        left -= piece;
    }
    mem_free(all);
    return status;
}

/* All ranks must call it, also those that have not failed. */
lh_status_t train_agree_failure(train_agree_t *a, lh_status_t *status, char *sentence, size_t bytes)
{
    typedef struct failure {
        lh_status_t status;
        char sentence[AGREE_SENTENCE];
    } failure_t;
    if (a->ranks == NULL) return LH_OK;
    failure_t mine = {.status = *status};
    (void)snprintf(mine.sentence, sizeof(mine.sentence), "%s", *status == LH_OK ? "" : sentence);
    failure_t *all = mem_array(a->ranks->size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    const lh_status_t gathered = a->ranks->gather(a->ranks->context, &mine, sizeof(mine), all);
    uint32_t r = 0;
    while (gathered == LH_OK && r + 1 < a->ranks->size && all[r].status == LH_OK)
        r++;
    if (gathered == LH_OK) {
        all[r].sentence[AGREE_SENTENCE - 1] = '\0';
        *status = all[r].status;
        if (r == a->ranks->rank)
            (void)snprintf(sentence, bytes, "%s", all[r].sentence);
        else
            (void)snprintf(sentence, bytes, "rank %u: %s", r, all[r].sentence);
    }
    mem_free(all);
    return gathered;
}

/* Neighbouring ranks that say the same are told together; of 64 alike one text is left. */
static void join_texts(const char (*all)[AGREE_TEXT], uint32_t size, text_t *out)
{
    for (uint32_t r = 0, end; r < size; r = end) {
        for (end = r + 1; end < size && strcmp(all[r], all[end]) == 0; end++) {
        }
        if (r == 0 && end == size)
            text_append(out, all[0]);
        else if (end == r + 1)
            text_printf(out, "%srank %u: %s", r == 0 ? "" : "; ", r, all[r]);
        else
            text_printf(out, "%sranks %u to %u: %s", r == 0 ? "" : "; ", r, end - 1, all[r]);
    }
}

/* Texts from others may lack a NUL in their last byte; it is set here. */
lh_status_t train_agree_text(train_agree_t *a, const char *mine, text_t *out)
{
    char own[AGREE_TEXT] = {0};
    (void)snprintf(own, sizeof(own), "%s", mine);
    const uint32_t size = train_agree_size(a);
    char(*all)[AGREE_TEXT] = mem_array(size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    if (a->ranks != NULL)
        status = a->ranks->gather(a->ranks->context, own, sizeof(own), all);
    else
        memcpy(all[0], own, sizeof(own));
    if (status == LH_OK) {
        for (uint32_t r = 0; r < size; r++)
            all[r][AGREE_TEXT - 1] = '\0';
        join_texts((const char(*)[AGREE_TEXT])all, size, out);
        status = text_status(out);
    }
    mem_free(all);
    return status;
}
