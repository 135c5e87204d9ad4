// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RECORD_BYTES 2048

static const char *const level_names[] = {"ERROR", "WARN", "INFO", "DEBUG"};
static const char *_Atomic program_name = "banyan";
static _Atomic int max_level = COMMON_LOG_INFO;

void common_log_init(const char *program)
{
    atomic_store(&program_name, program);
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const char *wanted = getenv("BANYAN_LOG");
    for (int i = 0; wanted && i < 4; i++)
        if (strcmp(wanted, names[i]) == 0)
            atomic_store(&max_level, i);
}

void common_log_set_level(enum common_log_level level)
{
    atomic_store(&max_level, (int)level);
}

void common_log(enum common_log_level level, const char *fmt, ...)
{
    if ((int)level > atomic_load_explicit(&max_level, memory_order_relaxed))
        return;
    char record[RECORD_BYTES];
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(record, sizeof record, "%Y-%m-%dT%H:%M:%S", &utc);
    n += (size_t)snprintf(record + n, sizeof record - n, ".%06ldZ %-5s %.64s: ", now.tv_nsec / 1000,
                          level_names[level], atomic_load(&program_name));
    size_t text = n;
    size_t room = sizeof record - n - 1; // the newline has its place
    va_list ap;
    va_start(ap, fmt);
    int wrote = vsnprintf(record + n, room, fmt, ap);
    va_end(ap);
    if (wrote > 0)
        n += (size_t)wrote < room ? (size_t)wrote : room - 1;
    if (wrote > 0 && (size_t)wrote >= room)
        memcpy(record + n - 3, "...", 3);
    for (size_t i = text; i < n; i++)
        if ((unsigned char)record[i] < 0x20 || record[i] == 0x7f)
            record[i] = ' '; // one record, one line: a name from a peer cannot forge another
    record[n++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, record, n); // nowhere to report a failure to
    (void)ignored;
}
