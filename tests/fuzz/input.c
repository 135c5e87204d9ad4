// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <ftw.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log/log.h"
#include "tests/fuzz/fuzz.h"

static uint64_t number(struct fuzz_input *in, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes && in->left > 0; i++, in->left--)
        value |= (uint64_t)*in->at++ << (8 * i);
    return value;
}

uint8_t fuzz_u8(struct fuzz_input *in)
{
    return (uint8_t)number(in, 1);
}

uint16_t fuzz_u16(struct fuzz_input *in)
{
    return (uint16_t)number(in, 2);
}

uint32_t fuzz_u32(struct fuzz_input *in)
{
    return (uint32_t)number(in, 4);
}

uint64_t fuzz_u64(struct fuzz_input *in)
{
    return number(in, 8);
}

const uint8_t *fuzz_bytes(struct fuzz_input *in, size_t want, size_t *len)
{
    const uint8_t *at = in->at;
    *len = want < in->left ? want : in->left;
    in->at += *len;
    in->left -= *len;
    return at;
}

char *fuzz_text(struct fuzz_input *in, size_t most)
{
    size_t len = 0;
    while (len < in->left && len < most && in->at[len])
        len++;
    char *text = malloc(len + 1);
    if (!text)
        abort();
    if (len > 0)
        memcpy(text, in->at, len);
    text[len] = '\0';
    bool ended = len < in->left && !in->at[len];
    in->at += len + ended;
    in->left -= len + ended;
    return text;
}

// ---- files ----------------------------------------------------------------------------------------------

static char folder[64];
static pid_t folder_owner;

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st, (void)kind, (void)where;
    return remove(path);
}

static void remove_folder(void)
{
    if (getpid() == folder_owner)
        nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

void fuzz_enter_folder(void)
{
    // Memory where there is such a folder: a file of an input is not worth a disk.
    snprintf(folder, sizeof folder, "%s/banyan-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    FUZZ_CHECK(mkdtemp(folder) && chdir(folder) == 0);
    folder_owner = getpid();
    atexit(remove_folder);
}

void fuzz_write_file(const char *name, const void *data, size_t len)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0);
    FUZZ_CHECK(len == 0 || write(fd, data, len) == (ssize_t)len);
    close(fd);
}

void fuzz_quiet(void)
{
    common_log_set_level(COMMON_LOG_ERROR);
    FUZZ_CHECK(freopen("/dev/null", "w", stdout));
}
