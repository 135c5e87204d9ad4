// SPDX-License-Identifier: Apache-2.0
// Takes secrets out of logs and configuration.
#ifndef CLIENT_CTL_REDACT_H
#define CLIENT_CTL_REDACT_H

#include <stddef.h>

// In place: private keys in PEM, runs of 64 hexadecimal digits and more (tokens, the cluster's secret), and
// what follows "Bearer " become "x". Returns len: nothing moves.
size_t ctl_redact(char *text, size_t len);

#endif
