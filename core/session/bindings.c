/* bindings.c - binds schedules and hooks to the functions they name. */
#include <session/bindings.h>

#include <math.h>
#include <stdio.h>

#include <base/memory.h>
#include <base/text.h>
#include <plugin/host.h>
#include <plugin/registry.h>

enum { WHERE_BYTES = 512 };

struct bindings {
    uint64_t steps;
    call_scope_t rate_scope, step_scope, save_scope;
    call_t *rate, *after_step, *before_save;
    char where[3][WHERE_BYTES];
};

static const call_variable_t rate_variables[] = {{"step", CALL_U64}, {"steps", CALL_U64}};
static const call_variable_t step_variables[] = {{"step", CALL_U64},
                                                 {"loss", CALL_F64},
                                                 {"learning_rate", CALL_F64},
                                                 {"norm", CALL_F64},
                                                 {"tokens", CALL_U64}};
static const call_variable_t save_variables[] = {{"step", CALL_U64}, {"loss", CALL_F64}};

/* "train.ini:12: learning_rate", or the INI's name where the default stands. */
static const char *bindings_place(const job_t *job, const char *section, const char *key,
                                  char out[WHERE_BYTES])
{
    char where[WHERE_BYTES - 64];
    const document_entry_t *entry = section_find(document_find(job->document, section), key);
    if (entry == NULL)
        (void)snprintf(where, sizeof(where), "%.*s: [%s]", (int)sizeof(where) - 40, job->path,
                       section);
    else
        document_where(entry->file, entry->line, where, sizeof(where));
    (void)snprintf(out, WHERE_BYTES, "%s: %s", where, key);
    return out;
}

static call_scope_t scope_of(registry_t *registry, const lh_host_t *host,
                             const call_variable_t *variables, uint32_t count)
{
    return (call_scope_t){.functions = schedule_functions,
                          .function_count = schedule_function_count,
                          .variables = variables,
                          .variable_count = count,
                          .plugins = registry,
                          .host = host};
}

#define COUNT(t) (uint32_t)(sizeof(t) / sizeof((t)[0]))

lh_status_t bindings_new(const job_t *job, registry_t *registry, bindings_t **out)
{
    const lh_host_t *host;
    lh_status_t status = host_for(registry_host(registry), "longhaul", &host);
    if (status != LH_OK) return status;
    bindings_t *b = mem_new(sizeof(*b));
    if (b == NULL) return LH_NO_MEMORY;

    b->steps = job->train.steps;
    b->rate_scope = scope_of(registry, host, rate_variables, COUNT(rate_variables));
    b->step_scope = scope_of(registry, host, step_variables, COUNT(step_variables));
    b->save_scope = scope_of(registry, host, save_variables, COUNT(save_variables));
    status = call_bind(job->optimizer.learning_rate,
                       bindings_place(job, "optimizer", "learning_rate", b->where[0]),
                       &b->rate_scope, CALL_F64, &b->rate);
    if (status == LH_OK && job->after_step != NULL)
        status = call_bind(job->after_step,
                           bindings_place(job, "hook.after_step", "call", b->where[1]),
                           &b->step_scope, CALL_STATUS, &b->after_step);
    if (status == LH_OK && job->before_save != NULL)
        status = call_bind(job->before_save,
                           bindings_place(job, "hook.before_save", "call", b->where[2]),
                           &b->save_scope, CALL_STATUS, &b->before_save);
    if (status != LH_OK) {
        bindings_free(b);
        return status;
    }
    *out = b;
    return LH_OK;
}

void bindings_free(bindings_t *b)
{
    if (b == NULL) return;
    call_free(b->rate);
    call_free(b->after_step);
    call_free(b->before_save);
    mem_free(b);
}

lh_status_t bindings_learning_rate(bindings_t *b, uint64_t step, double *out)
{
    lh_assert(b->rate != NULL);
    const call_value_t values[] = {{.u64 = step}, {.u64 = b->steps}};
    call_value_t rate;
    const lh_status_t status = call_run(b->rate, values, &rate);
    if (status != LH_OK) return status;
    if (rate.f64 < 0)
        return fail(LH_INVALID, "%s is %g at step %llu; a rate is not negative", b->where[0],
                    rate.f64, (unsigned long long)step);
    if (!isfinite((float)rate.f64))
        return fail(LH_INVALID, "%s is %g at step %llu; a finite FP32 number is expected",
                    b->where[0], rate.f64, (unsigned long long)step);
    *out = rate.f64;
    return LH_OK;
}

lh_status_t bindings_after_step(bindings_t *b, const step_facts_t *f)
{
    if (b->after_step == NULL) return LH_OK;
    const call_value_t values[] = {{.u64 = f->step},
                                   {.f64 = f->loss},
                                   {.f64 = f->learning_rate},
                                   {.f64 = f->norm},
                                   {.u64 = f->tokens}};
    return call_run(b->after_step, values, NULL);
}

lh_status_t bindings_before_save(bindings_t *b, uint64_t step, double loss)
{
    if (b->before_save == NULL) return LH_OK;
    const call_value_t values[] = {{.u64 = step}, {.f64 = loss}};
    return call_run(b->before_save, values, NULL);
}

/* The core's learning-rate schedules. */
/* Rises by equal steps to the peak; the first step already has a rate above zero. */
static double schedules_warmed(uint64_t step, double peak, uint64_t warmup)
{
    return peak * (double)(step + 1) / (double)warmup;
}

/* 0 at the end of the warm-up, 1 at `total` and after it. */
static double schedules_progress(uint64_t step, uint64_t begin, uint64_t total)
{
    if (step >= total || total <= begin) return 1;
    return (double)(step - begin) / (double)(total - begin);
}

LH_FUNCTION(f64, constant, (f64, peak))
{
    return peak;
}

LH_FUNCTION(f64, warmup_cosine, (u64, step), (f64, peak), (u64, warmup), (u64, total))
{
    if (step < warmup) return schedules_warmed(step, peak, warmup);
    return peak * 0.5 * (1 + cos(3.14159265358979323846 * schedules_progress(step, warmup, total)));
}

LH_FUNCTION(f64, warmup_linear, (u64, step), (f64, peak), (u64, warmup), (u64, total))
{
    if (step < warmup) return schedules_warmed(step, peak, warmup);
    return peak * (1 - schedules_progress(step, warmup, total));
}

LH_FUNCTION(f64, warmup_stable_decay, (u64, step), (f64, peak), (u64, warmup), (u64, decay),
            (u64, total))
{
    if (step < warmup) return schedules_warmed(step, peak, warmup);
    const uint64_t begin = total > decay ? total - decay : 0;
    if (step < begin) return peak;
    return peak * (1 - schedules_progress(step, begin, total));
}

const lh_function_t schedule_functions[] = {
    LH_FUNCTION_ENTRY(constant, "the same rate at every step"),
    LH_FUNCTION_ENTRY(warmup_cosine, "rises for `warmup` steps, then falls along a cosine to 0"),
    LH_FUNCTION_ENTRY(warmup_linear, "rises for `warmup` steps, then falls on a line to 0"),
    LH_FUNCTION_ENTRY(warmup_stable_decay, "rises, stays at the peak, falls over the last `decay`"),
};
const uint32_t schedule_function_count = sizeof(schedule_functions) / sizeof(schedule_functions[0]);
