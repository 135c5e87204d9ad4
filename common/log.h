// SPDX-License-Identifier: Apache-2.0
// One line a record on stderr: time, level, program, message with key=value pairs. Whoever decides that
// something is an error logs it, with peer, session and step; those who pass it on stay silent.
// Any thread; each record is one write(2).
#ifndef COMMON_LOG_H
#define COMMON_LOG_H

enum common_log_level { COMMON_LOG_ERROR, COMMON_LOG_WARN, COMMON_LOG_INFO, COMMON_LOG_DEBUG };

// `program` is kept (not copied). Default level: INFO, or what BANYAN_LOG says (error|warn|info|debug).
void common_log_init(const char *program);
void common_log_set_level(enum common_log_level level);
void common_log(enum common_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define common_log_error(...) common_log(COMMON_LOG_ERROR, __VA_ARGS__)
#define common_log_warn(...)  common_log(COMMON_LOG_WARN, __VA_ARGS__)
#define common_log_info(...)  common_log(COMMON_LOG_INFO, __VA_ARGS__)
#define common_log_debug(...) common_log(COMMON_LOG_DEBUG, __VA_ARGS__)

#endif
