// SPDX-License-Identifier: Apache-2.0
// What a run must have shown when nothing was wrong in it (tests/chaos/README.md, "What must hold").
#ifndef TESTS_CHAOS_VERDICT_H
#define TESTS_CHAOS_VERDICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { VERDICT_LONG_MINUTES = 10, VERDICT_EACH_CLASS = 5 };
#define VERDICT_RATE_RATIO 0.25

struct verdict_class {
    const char *name;
    uint64_t made;
    bool chosen; // it was to be there: this machine can make it, and no other one alone was asked for
};

struct verdict_run {
    double minutes;
    uint64_t failed_steps;
    double rate_ratio; // with faults to without
    bool all_classes;  // no class alone
    const struct verdict_class *classes;
    size_t n_classes;
};

// No step of a session that had all its copies may fail. A run of 10 minutes or more also has each class at
// least 5 times, and with all classes a quarter of the rate without faults; a shorter one says too little of
// that. False: `why` has a sentence.
bool verdict_holds(const struct verdict_run *run, char *why, size_t why_len);

#endif
