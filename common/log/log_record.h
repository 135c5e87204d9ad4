// SPDX-License-Identifier: Apache-2.0
// A record of the log (log.h), from a format and its arguments to bytes. Pure: no state, no memory.
#ifndef COMMON_LOG_RECORD_H
#define COMMON_LOG_RECORD_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#include "common/log/log.h"

#define COMMON_LOG_TEXT_BYTES   1900 // of a message; what is longer is cut, and ends in "..."
#define COMMON_LOG_RECORD_BYTES 4096 // of what a form gives
#define COMMON_LOG_FIELDS_MAX   16

struct common_log_field {
    const char *key;           // in the format
    size_t key_len, from, len; // its value in the text
    bool number;               // as JSON writes one
};

struct common_log_record {
    enum common_log_level level;
    const char *program; // of which 64 bytes count
    struct timespec at;
    char text[COMMON_LOG_TEXT_BYTES]; // as it is: with control characters, and bytes that are no UTF-8
    size_t len;
    bool cut;
    struct common_log_field fields[COMMON_LOG_FIELDS_MAX];
    size_t n_fields;
};

// Fills text, len, cut and fields. A field is a word of the format itself, key=..., up to the next space:
// what an argument says cannot make one.
void common_log_record_fill(struct common_log_record *record, const char *fmt, va_list args);

// The forms. Each writes at most COMMON_LOG_RECORD_BYTES, and returns how many.
size_t common_log_record_text(const struct common_log_record *record, char *out);
size_t common_log_record_json(const struct common_log_record *record, char *out);
size_t common_log_record_prefix(const struct common_log_record *record, char *out); // "<6>message"
// As sd_journal_send(3) does: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/
size_t common_log_record_journal(const struct common_log_record *record, char *out);

// Gives a record to the journal; false: it does not take it now.
typedef bool (*common_log_tell_fn)(const char *bytes, size_t len);
// Whether stderr takes a line now, without a wait for who reads it.
typedef bool (*common_log_fits_fn)(void);
// What common_log_set_format does when it has the journal's socket (log_journal.c). Without it stderr is
// waited for.
void common_log_set_form(enum common_log_format format, common_log_tell_fn journal, common_log_fits_fn fits);

#endif
