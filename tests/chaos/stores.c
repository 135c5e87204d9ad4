// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/stores.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "tests/harness/process.h"

enum { PATH_BYTES = 320 };

static uint64_t wanted, seen; // of files with bytes; nftw gives its function no argument
static char chosen[PATH_BYTES];

bool stores_supported(void)
{
    char program[4096];
    struct harness_output said;
    if (!harness_program_path("banyan-worker", program, sizeof(program)) ||
        !harness_run((char *[]){program, "--help", NULL}, NULL, 10 * COMMON_NS_PER_S, &said))
        return false;
    bool has = strstr(said.out, "--store=") != NULL;
    harness_output_free(&said);
    return has;
}

static int visit(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    // A worker does not start where its mark is damaged: nothing of it is lost, and an operator is to see to
    // it.
    bool mark = strcmp(path + ftw->base, "banyan-store") == 0;
    if (type != FTW_F || mark || st->st_size == 0 || strlen(path) >= PATH_BYTES)
        return 0;
    if (seen++ == wanted)
        snprintf(chosen, sizeof(chosen), "%s", path);
    return 0;
}

static void choose(const char *dir, uint64_t nth)
{
    wanted = nth;
    seen = 0;
    chosen[0] = '\0';
    nftw(dir, visit, 8, FTW_PHYS);
}

static bool flip(int fd, uint64_t bit)
{
    uint8_t byte;
    off_t at = (off_t)(bit / 8);
    if (pread(fd, &byte, 1, at) != 1)
        return false;
    byte ^= (uint8_t)(1u << bit % 8);
    return pwrite(fd, &byte, 1, at) == 1;
}

bool stores_damage(const char *dir, enum stores_damage how, uint64_t dice, char *path, unsigned path_len)
{
    struct stat st;
    choose(dir, UINT64_MAX);
    if (!seen)
        return false;
    choose(dir, common_mix64(dice) % seen);
    int fd = open(chosen, O_RDWR | O_CLOEXEC);
    bool done = fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0;
    uint64_t size = done ? (uint64_t)st.st_size : 1;
    if (done && how == STORES_FLIP)
        done = flip(fd, common_mix64(dice + 1) % (size * 8));
    else if (done)
        done = ftruncate(fd, (off_t)(common_mix64(dice + 1) % size)) == 0;
    if (fd >= 0)
        close(fd);
    snprintf(path, path_len, "%s", chosen);
    return done;
}
