// SPDX-License-Identifier: Apache-2.0
// One record on stderr: time, level, program, message with key=value pairs. Whoever decides that something is
// an error logs it, with peer, session and step; those who pass it on stay silent. Any thread; each record is
// one write(2) of at most 4096 bytes, which a pipe takes whole. Where stderr is a pipe or a socket, no call
// behind common_log_set_format waits for its reader: lines that do not fit are lost and counted, and the next
// line that fits stands behind one that says how many (lost=N). Another process that writes to the same pipe
// may take the room in between. A file or a terminal is waited for.
#ifndef COMMON_LOG_H
#define COMMON_LOG_H

#include <stdarg.h>
#include <stdint.h>

enum common_log_level { COMMON_LOG_ERROR, COMMON_LOG_WARN, COMMON_LOG_INFO, COMMON_LOG_DEBUG };

enum common_log_format {
    COMMON_LOG_TEXT, // a line for people
    COMMON_LOG_JSON, // an object (RFC 8259) a line: ts, level, program, message, and a member for each key=value of the
    // format: what a decimal conversion wrote is a number, the rest are strings. "cut": true: there
    // was no room for all
    // To systemd's journal, with a field BANYAN_KEY for each key=value, where stderr is a stream of the
    // journal (JOURNAL_STREAM); else, and where the journal does not take it, a line "<priority>message" on
    // stderr, as sd-daemon(3) has it.
    COMMON_LOG_JOURNALD,
};

// `program` is kept (not copied). Default level: INFO, or what BANYAN_LOG says (error|warn|info|debug). Text,
// no limit.
void common_log_init(const char *program);
void common_log_set_level(enum common_log_level level);
enum common_log_level common_log_default_level(void);
// Of daemons: from here on stderr is not waited for.
void common_log_set_format(enum common_log_format format);
#define COMMON_LOG_JOURNAL "/run/systemd/journal/socket"
void common_log_set_journal(const char *path); // another one than that, for tests; kept (not copied)
// In one second at most so many records of one kind are written; 0: all. What was left out is counted, and
// said in a record behind it. A kind is one format; of errors, and of formats that begin with "%", one text:
// what is said once is never left out. DEBUG has no limit.
void common_log_set_rate(uint32_t records_per_s);
// Says what was left out before this second, and what a reader that was too slow has missed. Each record does
// so, too: to be called now and then for the last ones.
void common_log_sweep(void);

void common_log(enum common_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void common_log_of(enum common_log_level level, const char *fmt, va_list args)
    __attribute__((format(printf, 2, 0)));

#define common_log_error(...) common_log(COMMON_LOG_ERROR, __VA_ARGS__)
#define common_log_warn(...)  common_log(COMMON_LOG_WARN, __VA_ARGS__)
#define common_log_info(...)  common_log(COMMON_LOG_INFO, __VA_ARGS__)
#define common_log_debug(...) common_log(COMMON_LOG_DEBUG, __VA_ARGS__)

#endif
