// SPDX-License-Identifier: Apache-2.0
// Runs banyanctl against a cluster of the tests.
#ifndef TESTS_E2E_BANYANCTL_H
#define TESTS_E2E_BANYANCTL_H

#include "client/banyan.h"
#include "tests/harness/cluster.h"
#include "tests/harness/process.h"

// With the words of the line; %s stands for `word`. The output is the caller's to free.
struct harness_output banyanctl_run(const struct harness_cluster *cluster, const char *line,
                                    const char *word);
// It ends with this code, and says so on stdout or stderr; else the test fails.
void banyanctl_expect(const struct harness_cluster *cluster, int code, const char *says, const char *line,
                      const char *word);

// 'session snapshot' of it into the folder `path`, with these options; it succeeds.
void banyanctl_snapshot(const struct harness_cluster *cluster, const banyan_session *session,
                        const char *options, const char *path);
// 'session restore' from it under `name`; it succeeds. The session is the caller's to close.
banyan_session *banyanctl_restore(const struct harness_cluster *cluster, banyan_client *client,
                                  const char *name, const char *options, const char *path);

#endif
