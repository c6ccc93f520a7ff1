/* replay.c - PROGRAM FILE_OR_FOLDER...: feeds a fuzz target every file named or found, so that what
 * fuzzing once found stays mended in builds without a fuzzer. */
#include <fuzz/fuzz.h>

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

static size_t fed;

static int feed(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) return 1;
    struct stat st;
    uint8_t *bytes = NULL;
    int result = 1;
    if (fstat(fileno(f), &st) != 0) goto close_file;
    const size_t size = (size_t)st.st_size;
    bytes = malloc(size == 0 ? 1 : size); /* its exact size: a step over the end is seen */
    if (bytes == NULL || fread(bytes, 1, size, f) != size) goto close_file;
    (void)LLVMFuzzerTestOneInput(bytes, size);
    fed++;
    result = 0;

close_file:
    free(bytes);
    (void)fclose(f);
    if (result != 0) (void)fprintf(stderr, "%s: cannot be read\n", path);
    return result;
}

static int feed_folder(const char *folder)
{
    DIR *d = opendir(folder);
    int result = 0;
    if (d == NULL) return 1;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        char path[1024];
        if (e->d_name[0] == '.') continue;
        (void)snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        result |= feed(path);
    }
    (void)closedir(d);
    return result;
}

int main(int argc, char **argv)
{
    int result = 0;
    for (int i = 1; i < argc; i++) {
        struct stat st;
        const int is_folder = stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode);
        result |= is_folder ? feed_folder(argv[i]) : feed(argv[i]);
    }
    (void)printf("%zu inputs\n", fed);
    return result != 0 || fed == 0;
}
