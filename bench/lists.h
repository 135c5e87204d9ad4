// SPDX-License-Identifier: Apache-2.0
// The lists that bench/attention and bench/device take as options: values separated by commas, each a size
// (4096, 128K) or a KV type. Names, --help, limits and defaults are the same in both.
#ifndef BENCH_LISTS_H
#define BENCH_LISTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/cli/options.h"
#include "kernels/attention.h"

enum { LISTS_MOST = 16 };

enum lists_kind { LISTS_CONTEXT, LISTS_KV, LISTS_GROUP, LISTS_ROWS, LISTS_BATCH };

struct lists_values {
    uint64_t at[LISTS_MOST]; // LISTS_KV: enum kernels_kv_type
    uint32_t n;
};

struct lists_program {
    const char *name;                                              // starts what is said on stderr
    enum kernels_kv_type (*kv_find)(const char *text, size_t len); // 0: no such type
    size_t shown;                                                  // most characters of a wrong value
};

// Reports a mistake in an option on stderr. Returns false.
bool lists_wrong(const struct lists_program *program, const char *option, const char *why);

// A line of the program's table; its text goes to *text.
struct common_option lists_option(enum lists_kind kind, const char **text);

// What --help calls the default.
struct lists_values lists_default(enum lists_kind kind);

// NULL leaves the list as it is. False: the mistake has been reported, and the list is as it was.
bool lists_parse(const struct lists_program *program, enum lists_kind kind, const char *text,
                 struct lists_values *out);

#endif
