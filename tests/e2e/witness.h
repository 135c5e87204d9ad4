// SPDX-License-Identifier: Apache-2.0
// A cluster with a session that must not notice what others do wrong. Tests of bad input send theirs, judge
// the refusal and let the witness look whether anything has changed: its own lengths, epoch and bits, the
// cluster's sessions, chunks and workers.
#ifndef TESTS_E2E_WITNESS_H
#define TESTS_E2E_WITNESS_H

#include "tests/e2e/support.h"

#define WITNESS_TOKENS 100
#define WITNESS_LAYERS 2
#define WITNESS_ROOM   2600 // rows of its context

extern const banyan_spec witness_spec;
extern struct harness_cluster *witness_cluster; // of three workers
extern banyan_client *witness_client;
extern banyan_session *witness_session; // named "witness", over two workers
extern struct context witness_context;

// Group set-up and tear-down for cmocka.
int witness_start(void **state);
int witness_stop(void **state);

// What is now is right: for a test that has made a session of its own.
void witness_remember(void);
void witness_nothing_changed(const char *after);

// A line of the table.
void witness_row(const char *input, const char *code, const char *message);

// What is in ERR: the input was refused with this code and reason, and with a sentence that no other kind of
// input got; nothing changed.
void witness_refused(const char *input, banyan_code got, banyan_code want, const char *reason);
// The same for another case of the rule that refused an input before: the same sentence will do.
void witness_refused_too(const char *input, banyan_code got, banyan_code want, const char *reason);

#endif
