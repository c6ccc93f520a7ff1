/* fact_main.c - a line for each fact. */
#include "fact_main.h"
#include "../torture.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LIMIT_S = 120, TORTURE_S = 3600 }; /* of a fact */
enum { DESCRIPTORS = 1024 };

FILE *fact_out;

int fact_main(const char *plugin, const fact_t *facts, uint32_t count, const char *only)
{
    subject_t s;
    uint32_t bad = 0, run = 0;
    const uint32_t limit = torture_wanted() ? TORTURE_S : LIMIT_S;
    const char *const folders[] = {LH_TEST_PLUGINS};
    char path[512];
    fact_out = fdopen(dup(STDOUT_FILENO), "w");
    if (fact_out == NULL) return 1;
    (void)snprintf(path, sizeof(path), "%s/transports/%s.so", LH_TEST_PLUGINS, plugin);
    if (subject_open(path, folders, 1, &s) != LH_OK || subject_load(&s) != LH_OK) {
        (void)fprintf(stderr, "%s\n", fail_reason());
        return 1;
    }
    for (uint32_t i = 0; i < count; i++) {
        outcome_t out;
        const check_t check = {.seconds = limit, .run = rig_run, .fact = &facts[i]};
        if (only != NULL && strcmp(only, facts[i].name) != 0) continue;
        check_run(&check, &s, false, &out);
        (void)fprintf(stderr, "%-7s %s: %s (%.0f ms)%s%s%s\n", result_text(out.result), plugin,
                      facts[i].name, out.seconds * 1e3, out.sentence[0] != '\0' ? "\n    " : "",
                      out.sentence, out.said);
        bad += out.result >= RESULT_FAIL;
        run++;
    }
    if (run == 0) (void)fprintf(stderr, "there is no fact '%s'\n", only != NULL ? only : "");
    subject_close(&s);
    return bad > 0 || run == 0 ? 1 : 0;
}

uint32_t fact_open_files(void)
{
    uint32_t count = 0;
    for (int fd = 0; fd < DESCRIPTORS; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}
