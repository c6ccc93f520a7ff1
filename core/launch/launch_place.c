/* launch_place.c - reads variables as numbers, strictly: a table of starters, tried in order.
 *
 * A starter is known by the variables that it sets, as its users set no others by hand. A variable
 * that is set and can't be read is refused, never taken for missing: a rank that believed itself
 * alone would train by itself, in the same folder as the others. */
#include <launch/launch_place.h>

#include <stdio.h>
#include <stdlib.h>

#include <config/quantity.h>

typedef struct starter {
    const char *name;
    const char *rank, *size, *here; /* variables; size and here may be missing */
    const char *job;                /* names the job; NULL                      */
    const char *step;               /* of that job; NULL                        */
} starter_t;

/* The innermost first: torchrun may run under Slurm, mpirun too. srun of Slurm sets the variables
 * of a step; a batch script, which is no rank, has none of them. */
static const starter_t starters[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", NULL, NULL},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "PMIX_NAMESPACE", NULL},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL, "SLURM_JOB_ID", "SLURM_STEP_ID"},
    {"PMIx", "PMIX_RANK", NULL, NULL, "PMIX_NAMESPACE", NULL},
};

static lh_status_t read_number(const char *variable, uint64_t most, uint32_t *out)
{
    uint64_t number;
    const char *text = getenv(variable);
    if (text == NULL || !quantity_u64(text, &number) || number > most)
        return fail(LH_INVALID, "the variable %s is '%s', expected a whole number up to %llu",
                    variable, text == NULL ? "" : text, (unsigned long long)most);
    *out = (uint32_t)number;
    return LH_OK;
}

static bool is_set(const char *variable)
{
    return variable != NULL && getenv(variable) != NULL;
}

/* torchrun's own store may listen on MASTER_PORT already; then the next one is ours. */
static lh_status_t read_master(launch_place_t *p)
{
    uint32_t port;
    const char *address = getenv("MASTER_ADDR"), *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (address == NULL || !is_set("MASTER_PORT"))
        return fail(LH_INVALID,
                    "RANK is set as torchrun does, but MASTER_ADDR and MASTER_PORT are not: where "
                    "is rank 0?");
    if ((size_t)snprintf(p->address, sizeof(p->address), "%s", address) >= sizeof(p->address))
        return fail(LH_INVALID, "MASTER_ADDR is longer than %zu bytes", sizeof(p->address) - 1);
    const lh_status_t status = read_number("MASTER_PORT", 65534, &port);
    if (status != LH_OK) return status;
    if (store != NULL && strcmp(store, "True") == 0) port++;
    p->port = (uint16_t)port;
    return LH_OK;
}

/* Only letters and digits, as it becomes part of a file's name. */
static void append_name(const char *text, char out[PLACE_MEETING])
{
    size_t length = strlen(out);
    for (; text != NULL && *text != '\0' && length + 1 < PLACE_MEETING; text++)
        out[length++] = strchr("/\\ .", *text) == NULL ? *text : '-';
    out[length] = '\0';
}

/* Rank and size from the starter's variables; where the ranks meet from its own, or from the name of
 * the job, by which rank 0 leaves its address in a file. */
static lh_status_t read_starter(const job_t *job, const starter_t *s, launch_place_t *p)
{
    p->by = s->name;
    lh_status_t status = read_number(s->rank, JOB_RANKS, &p->rank);
    if (status == LH_OK && is_set(s->size)) {
        status = read_number(s->size, JOB_RANKS, &p->size);
    } else if (status == LH_OK) {
        p->size = job_ranks(job);
        if (s->size != NULL)
            status = fail(LH_INVALID,
                          "%s is set as %s does, but %s is not: how many ranks are there?", s->rank,
                          s->name, s->size);
    }
    if (status == LH_OK && is_set(s->here)) status = read_number(s->here, JOB_RANKS, &p->here);
    if (status != LH_OK) return status;
    if (p->rank >= p->size)
        return fail(LH_INVALID, "%s says that this is rank %u of %u: ranks count from 0", s->name,
                    p->rank, p->size);
    if (s->job == NULL) return read_master(p);
    append_name(getenv(s->job), p->meeting);
    if (s->step != NULL) {
        append_name("-", p->meeting);
        append_name(getenv(s->step), p->meeting);
    }
    if (p->meeting[0] == '\0')
        return fail(LH_INVALID, "%s is set as %s does, but %s is not", s->rank, s->name, s->job);
    return LH_OK;
}

/* What the starter does and what the INI says must be the same number of ranks. */
static lh_status_t check_job(const job_t *job, const launch_place_t *p)
{
    const document_entry_t *e = document_entry(document_find(job->document, "launch"),
                                               "ranks_per_node");
    if (job->site_count > 0 && job->site_ranks != p->size)
        return fail(LH_INVALID, "%s starts %u ranks, [site.*] hosts name %u", p->by, p->size,
                    job->site_ranks);
    if (e != NULL && p->here != 0 && job->site_count == 0 && job->launch.ranks_per_node != p->here)
        return fail(LH_INVALID,
                    "%s starts %u ranks on this machine, [launch] ranks_per_node says %llu", p->by,
                    p->here, (unsigned long long)job->launch.ranks_per_node);
    return LH_OK;
}

/* The one variable that a launcher of ours sets: all in one, as it is to be unset at once. */
static lh_status_t read_ours(const char *text, launch_place_t *p)
{
    unsigned rank, size, port, row, skip;
    int end = 0;
    char address[PLACE_ADDRESS];
    if (sscanf(text,
               "rank=%u size=%u port=%u row=%u skip=%u board=%d secret=%d listener=%d "
               "address=%255s%n",
               &rank, &size, &port, &row, &skip, &p->board, &p->secret, &p->listener, address,
               &end) != 9 ||
        text[end] != '\0' || rank >= size || size > JOB_RANKS || port > UINT16_MAX)
        return fail(LH_INVALID, "the variable " PLACE_OURS
                                " is for ranks that longhaul starts itself: unset it");
    p->by = "longhaul";
    p->ours = true;
    p->rank = rank;
    p->size = size;
    p->port = (uint16_t)port;
    p->row = row;
    p->skip = skip != 0;
    (void)snprintf(p->address, sizeof(p->address), "%s", address);
    return LH_OK;
}

void place_write(const launch_place_t *p, text_t *out)
{
    text_printf(out,
                PLACE_OURS "=rank=%u size=%u port=%u row=%u skip=%u board=%d secret=%d listener=%d "
                           "address=%s",
                p->rank, p->size, p->port, p->row, p->skip ? 1u : 0u, p->board, p->secret,
                p->listener, p->address);
}

lh_status_t place_find(const job_t *job, launch_place_t *out)
{
    launch_place_t p = {.size = 1, .listener = -1, .board = -1, .secret = -1};
    const char *ours = getenv(PLACE_OURS);
    lh_status_t status = LH_OK;
    if (ours != NULL) {
        status = read_ours(ours, &p);
        (void)unsetenv(PLACE_OURS); /* what a rank starts is no rank */
        if (status == LH_OK) *out = p;
        return status;
    }
    for (size_t i = 0; status == LH_OK && i < sizeof(starters) / sizeof(starters[0]); i++) {
        const starter_t *s = &starters[i];
        const bool step = s->step == NULL || (is_set(s->size) && is_set(s->step));
        if (!is_set(s->rank) || !step) continue;
        status = read_starter(job, s, &p);
        if (status == LH_OK && p.size > 1) status = check_job(job, &p);
        break;
    }
    if (status == LH_OK) *out = p;
    return status;
}
