// SPDX-License-Identifier: Apache-2.0
// How many records of one kind may be written in one second. A table of fixed size; its own lock, so any
// thread.
#ifndef COMMON_LOG_LIMIT_H
#define COMMON_LOG_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/log/log.h"

#define COMMON_LOG_LEFT_TEXT 160

struct common_log_left { // out
    enum common_log_level level;
    uint64_t n;
    char text[COMMON_LOG_LEFT_TEXT]; // of the first record of that second
};

// Whether this one is written: at most `rate` with one key in one second. Where there is no place for the
// key, it is.
bool common_log_limit_pass(uint64_t key, uint32_t rate, enum common_log_level level, const char *text,
                           uint64_t second);
// One kind of which records were left out in an earlier second, once. False: there is none.
bool common_log_limit_left(uint64_t second, struct common_log_left *out);

#endif
