/* processor.c - asks the machine for its processor's name, instruction sets and memory. What /proc
 * does not say, on a machine that hides it, counts as unknown: nothing here fails. */
#include "processor.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Those that this process may use: a launcher gives each rank its own, and a container bounds how many are
 * busy at once, which only the host knows. */
uint32_t processor_count(const lh_host_t *host)
{
    if (LH_HAS(host, processors) && host->processors != NULL) return host->processors(host);
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return (uint32_t)CPU_COUNT(&set);
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

/* All flags that the compiler is given for a set have to be there: see CMakeLists.txt. */
static uint32_t processor_best(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi2"))
        return CPU_BASELINE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl"))
        return CPU_AVX2;
    return __builtin_cpu_supports("avx512bf16") ? CPU_AVX512_BF16 : CPU_AVX512;
#else
    return CPU_BASELINE;
#endif
}

uint32_t processor_isa(void)
{
    const uint32_t best = processor_best();
    return best < CPU_SETS ? best : CPU_SETS - 1;
}

const char *processor_isa_name(uint32_t isa)
{
    static const char *const names[CPU_ISAS] = {"baseline", "avx2", "avx512", "avx512_bf16"};
    return isa < CPU_ISAS ? names[isa] : "?";
}

/* The value of the first line "key : value" of a /proc file. */
static bool proc_line(const char *path, const char *key, char *out, size_t bytes)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;

    char line[256];
    bool found = false;
    while (!found && fgets(line, sizeof(line), file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || colon == NULL) continue;
        colon++;
        colon += strspn(colon, " \t");
        snprintf(out, bytes, "%.*s", (int)strcspn(colon, "\n"), colon);
        found = true;
    }
    fclose(file);
    return found;
}

/* x86 calls it "model name", Arm gives a part's number. */
void processor_model(char *out, size_t bytes)
{
    if (!proc_line("/proc/cpuinfo", "model name", out, bytes) &&
        !proc_line("/proc/cpuinfo", "CPU part", out, bytes))
        snprintf(out, bytes, "unknown processor");
}

/* Lines such as "MemTotal: 16318480 kB". */
static uint64_t proc_kibibytes(const char *path, const char *key)
{
    char text[64];
    return proc_line(path, key, text, sizeof(text)) ? strtoull(text, NULL, 10) * 1024 : 0;
}

/* Available is what can be had without swapping, by the kernel's own estimate. */
void processor_memory(uint64_t *total_bytes, uint64_t *available_bytes)
{
    *total_bytes = proc_kibibytes("/proc/meminfo", "MemTotal");
    *available_bytes = proc_kibibytes("/proc/meminfo", "MemAvailable");
}

uint64_t processor_process_bytes(void)
{
    return proc_kibibytes("/proc/self/status", "VmRSS");
}
