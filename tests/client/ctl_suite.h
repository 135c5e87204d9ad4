// SPDX-License-Identifier: Apache-2.0
// What the files of banyanctl's tests share: a cluster of two workers, and what the last run of banyanctl
// said.
#ifndef TESTS_CLIENT_CTL_SUITE_H
#define TESTS_CLIENT_CTL_SUITE_H

#include <jansson.h>

#include "tests/client/mirror.h"
#include "tests/harness/cluster.h"
#include "tests/harness/process.h"

extern struct harness_cluster *ctl_cluster;
extern struct harness_output ctl_out; // of the last run
extern const banyan_spec ctl_spec;

// Runs banyanctl and expects this exit code. Words of the line are separated by blanks; %s stands for `word`.
void ctl_expect(int code, const char *line, const char *word);
void ctl_said(const char *text);       // on stdout
void ctl_complained(const char *text); // on stderr
json_t *ctl_parse(void);               // stdout
json_int_t ctl_number(const json_t *json, const char *key);

const char *ctl_path(const char *name); // in the cluster's folder; until the next call
void ctl_write(const char *name, const char *text);

int ctl_start(void **state);
int ctl_stop(void **state);
int ctl_clean_up(void **state);

// Tests: ctl_tensors.c
void ctl_tensors(void **state);
void ctl_quantised_tensors(void **state);
void ctl_kinds(void **state);
void ctl_wrong_tensors(void **state);

#endif
