// SPDX-License-Identifier: Apache-2.0
#include "tests/common/hung_disk.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static bool hangs;
static unsigned waiting;
static struct stat meant;

ssize_t __real_write(int fd, const void *data, size_t len);
ssize_t __wrap_write(int fd, const void *data, size_t len);

ssize_t __wrap_write(int fd, const void *data, size_t len)
{
    struct stat st;
    pthread_mutex_lock(&mutex);
    if (hangs && fstat(fd, &st) == 0 && st.st_dev == meant.st_dev && st.st_ino == meant.st_ino) {
        waiting++;
        while (hangs)
            pthread_cond_wait(&change, &mutex);
        waiting--;
    }
    pthread_mutex_unlock(&mutex);
    return __real_write(fd, data, len);
}

void hung_disk_of(const char *path)
{
    if (stat(path, &meant) != 0)
        abort();
}

static void set(bool to)
{
    pthread_mutex_lock(&mutex);
    hangs = to;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&mutex);
}

void hung_disk_hang(void)
{
    set(true);
}

void hung_disk_go(void)
{
    set(false);
}

bool hung_disk_waits(void)
{
    pthread_mutex_lock(&mutex);
    bool waits = waiting > 0;
    pthread_mutex_unlock(&mutex);
    return waits;
}
