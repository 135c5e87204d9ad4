// SPDX-License-Identifier: Apache-2.0
// Runs a target over inputs that are kept, where libFuzzer is not: fuzz_TARGET [FILE | FOLDER]...
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

extern __attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);

static size_t n_run;

static void replay_bytes(const uint8_t *bytes, size_t len)
{
    // Of its very size, so that the address sanitizer sees a byte read behind it.
    uint8_t *copy = malloc(len ? len : 1);
    FUZZ_CHECK(copy);
    if (len > 0)
        memcpy(copy, bytes, len);
    LLVMFuzzerTestOneInput(copy, len);
    free(copy);
    n_run++;
}

static void replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat st;
    if (!file || fstat(fileno(file), &st) != 0) {
        fprintf(stderr, "replay: cannot read %s\n", path);
        exit(2);
    }
    size_t len = (size_t)st.st_size;
    uint8_t *bytes = malloc(len + 1);
    FUZZ_CHECK(bytes && fread(bytes, 1, len, file) == len);
    fclose(file);
    fprintf(stderr, "%s\n", path); // the last line names what failed
    replay_bytes(bytes, len);
    for (size_t part = 1; part < 4; part++) // and what is cut short
        replay_bytes(bytes, len * part / 4);
    free(bytes);
}

static void replay(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir) {
        replay_file(path);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        char name[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        replay_file(name);
    }
    closedir(dir);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "Usage: %s FILE|FOLDER...\n", argv[0]);
        return 2;
    }
    for (int i = 1; i < argc; i++) { // a target may go to a folder of its own
        argv[i] = realpath(argv[i], NULL);
        if (!argv[i]) {
            fprintf(stderr, "replay: there is no such file or folder\n");
            return 2;
        }
    }
    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        replay(argv[i]);
        free(argv[i]);
    }
    fprintf(stderr, "%zu inputs\n", n_run);
    return n_run > 0 ? 0 : 1; // an empty corpus tests nothing
}
