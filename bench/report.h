// SPDX-License-Identifier: Apache-2.0
// One result a line: as JSON with --json, else aligned for people.
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <stdbool.h>

struct report_field { // ends with key NULL
    const char *key;
    const char *text; // used when not NULL
    double number;
};

void report_line(bool json, const struct report_field *fields);

#endif
