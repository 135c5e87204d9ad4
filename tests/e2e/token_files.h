// SPDX-License-Identifier: Apache-2.0
// Tokens of a cluster of the tests, each in a file of its name beside the cluster's own. Of one cluster at a
// time.
#ifndef TESTS_E2E_TOKEN_FILES_H
#define TESTS_E2E_TOKEN_FILES_H

#include "client/banyan.h"
#include "tests/harness/cluster.h"

void token_files_of(struct harness_cluster *cluster);
const char *token_file(const char *name); // its path; good for the next seven calls, too
void token_keep(const char *name, const char *token);
// Makes one and keeps it. tenant: NULL: the default one.
void token_make(banyan_client *admin, const char *name, const char *access, const char *tenant);

// Connects with it; name: NULL: with none. token_client: it succeeds.
banyan_code token_connect(const char *name, const char *transport, banyan_client **out);
banyan_client *token_client(const char *name, const char *transport);

#endif
