// SPDX-License-Identifier: Apache-2.0
// Runs banyanctl against a cluster of the tests.
#ifndef TESTS_E2E_BANYANCTL_H
#define TESTS_E2E_BANYANCTL_H

#include "tests/harness/cluster.h"
#include "tests/harness/process.h"

// With the words of the line; %s stands for `word`. The output is the caller's to free.
struct harness_output banyanctl_run(const struct harness_cluster *cluster, const char *line,
                                    const char *word);
// It ends with this code, and says so on stdout or stderr; else the test fails.
void banyanctl_expect(const struct harness_cluster *cluster, int code, const char *says, const char *line,
                      const char *word);

#endif
