// SPDX-License-Identifier: Apache-2.0
#include "common/log/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/log/log_limit.h"
#include "common/log/log_record.h"

static const char *_Atomic program_name = "banyan";
static _Atomic int max_level = COMMON_LOG_INFO;
static _Atomic int format = COMMON_LOG_TEXT;
static _Atomic uint32_t rate;
static _Atomic common_log_tell_fn tell_journal;
static _Atomic common_log_fits_fn stderr_fits;

// What BANYAN_LOG says, or `otherwise`.
static enum common_log_level from_environment(enum common_log_level otherwise)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const char *wanted = getenv("BANYAN_LOG");
    for (int i = 0; wanted && i < 4; i++)
        if (strcmp(wanted, names[i]) == 0)
            return (enum common_log_level)i;
    return otherwise;
}

enum common_log_level common_log_default_level(void)
{
    return from_environment(COMMON_LOG_INFO);
}

void common_log_init(const char *program)
{
    atomic_store(&program_name, program);
    atomic_store(&max_level, (int)from_environment((enum common_log_level)atomic_load(&max_level)));
}

void common_log_set_level(enum common_log_level level)
{
    atomic_store(&max_level, (int)level);
}

void common_log_set_rate(uint32_t records_per_s)
{
    atomic_store(&rate, records_per_s);
}

void common_log_set_form(enum common_log_format wanted, common_log_tell_fn journal, common_log_fits_fn fits)
{
    atomic_store(&tell_journal, journal);
    atomic_store(&stderr_fits, fits);
    atomic_store(&format, (int)wanted);
}

// ---- records ------------------------------------------------------------------------------------------------

static void __attribute__((format(printf, 3, 4)))
fill(struct common_log_record *record, enum common_log_level level, const char *fmt, ...)
{
    va_list args;
    record->level = level;
    va_start(args, fmt);
    common_log_record_fill(record, fmt, args);
    va_end(args);
}

static void stamp(struct common_log_record *record)
{
    record->program = atomic_load(&program_name);
    clock_gettime(CLOCK_REALTIME, &record->at);
}

// As a line of stderr. Returns its bytes.
static size_t line_of(const struct common_log_record *record, char bytes[COMMON_LOG_RECORD_BYTES])
{
    switch (atomic_load_explicit(&format, memory_order_relaxed)) {
    case COMMON_LOG_JSON:
        return common_log_record_json(record, bytes);
    case COMMON_LOG_JOURNALD:
        return common_log_record_prefix(record, bytes);
    default:
        return common_log_record_text(record, bytes);
    }
}

static void write_line(const char *bytes, size_t n)
{
    ssize_t ignored = write(STDERR_FILENO, bytes, n); // nowhere to report a failure to
    (void)ignored;
}

// ---- a reader that hangs ------------------------------------------------------------------------------------

// Between a look whether a line fits and its write no other thread takes the room.
static pthread_mutex_t stderr_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t lost; // lines since the last one that was written; changed under the lock

static bool fits(void)
{
    common_log_fits_fn ask = atomic_load_explicit(&stderr_fits, memory_order_relaxed);
    return !ask || ask();
}

static void say_lost_locked(void)
{
    char bytes[COMMON_LOG_RECORD_BYTES];
    struct common_log_record record;
    if (!lost || !fits())
        return;
    fill(&record, COMMON_LOG_WARN, "the reader of stderr was too slow: lines were lost lost=%llu",
         (unsigned long long)lost);
    stamp(&record);
    write_line(bytes, line_of(&record, bytes));
    lost = 0;
}

static void say_lost(void)
{
    if (!atomic_load_explicit(&lost, memory_order_relaxed))
        return;
    pthread_mutex_lock(&stderr_lock);
    say_lost_locked();
    pthread_mutex_unlock(&stderr_lock);
}

static void write_or_lose(const char *bytes, size_t n)
{
    pthread_mutex_lock(&stderr_lock);
    say_lost_locked();
    if (!lost && fits())
        write_line(bytes, n);
    else
        lost++;
    pthread_mutex_unlock(&stderr_lock);
}

// ---- what is written ----------------------------------------------------------------------------------------

static void write_record(struct common_log_record *record)
{
    char bytes[COMMON_LOG_RECORD_BYTES];
    common_log_tell_fn tell = atomic_load_explicit(&tell_journal, memory_order_relaxed);
    stamp(record);
    if (atomic_load_explicit(&format, memory_order_relaxed) == COMMON_LOG_JOURNALD && tell &&
        tell(bytes, common_log_record_journal(record, bytes)))
        return;
    write_or_lose(bytes, line_of(record, bytes));
}

void common_log_sweep(void)
{
    struct common_log_left left;
    say_lost();
    while (common_log_limit_left(common_clock_ns() / COMMON_NS_PER_S, &left)) {
        struct common_log_record record;
        fill(&record, left.level, "more records like this one were left out left_out=%llu: %s",
             (unsigned long long)left.n, left.text);
        write_record(&record);
    }
}

static uint64_t mix(uint64_t hash, const void *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) // FNV-1a
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static bool passes(const struct common_log_record *record, const char *fmt, uint32_t most)
{
    char text[COMMON_LOG_LEFT_TEXT];
    if (!most || record->level == COMMON_LOG_DEBUG)
        return true;
    common_log_sweep();
    uint64_t key = mix(UINT64_C(0xcbf29ce484222325), fmt, strlen(fmt));
    if (record->level == COMMON_LOG_ERROR || fmt[0] == '%')
        key = mix(key, record->text, record->len);
    snprintf(text, sizeof text, "%.*s", (int)record->len, record->text);
    return common_log_limit_pass(key ^ key >> 32, most, record->level, text,
                                 common_clock_ns() / COMMON_NS_PER_S);
}

void common_log_of(enum common_log_level level, const char *fmt, va_list args)
{
    if ((int)level > atomic_load_explicit(&max_level, memory_order_relaxed))
        return;
    int saved = errno;
    struct common_log_record record;
    record.level = level;
    common_log_record_fill(&record, fmt, args);
    if (passes(&record, fmt, atomic_load_explicit(&rate, memory_order_relaxed)))
        write_record(&record);
    errno = saved;
}

void common_log(enum common_log_level level, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    common_log_of(level, fmt, args);
    va_end(args);
}
