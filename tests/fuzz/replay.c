/*
 * Plain driver of a fuzz target: runs it once over every file of the corpus directory given, so
 * that what a fuzzer once found stays a test for ever. An empty or missing corpus is a failure, not
 * a pass.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) return -1;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    /*
     * Exactly as many bytes as the file has, so that a sanitizer sees the first byte read past
     * them.
     */
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    size_t n = data && size > 0 ? fread(data, 1, (size_t)size, file) : 0;
    fclose(file);
    LLVMFuzzerTestOneInput(data, n);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    int n_files = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (!dir) {
            fprintf(stderr, "no corpus at %s\n", argv[i]);
            return 1;
        }
        for (struct dirent *entry; (entry = readdir(dir));) {
            char path[4096];
            if (entry->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            if (replay_file(path) == 0) n_files++;
        }
        closedir(dir);
    }
    printf("[  PASSED  ] %d corpus file(s).\n", n_files);
    return n_files > 0 ? 0 : 1;
}
