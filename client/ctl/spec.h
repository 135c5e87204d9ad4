// SPDX-License-Identifier: Apache-2.0
// A session's spec for people: client/snapshot/spec_json.h has it as JSON.
#ifndef CLIENT_CTL_SPEC_H
#define CLIENT_CTL_SPEC_H

#include "client/ctl/ctl.h"
#include "client/snapshot/spec_json.h"

// A list of lines, one a kind; where layers are alike, what has no field of its own.
json_t *ctl_spec_lines(const banyan_spec *spec);

// Reads a file; what the spec points to lives until the memory is freed. Reports a failure on stderr.
enum ctl_exit ctl_spec_read(const char *path, banyan_spec *spec, struct snapshot_spec_memory **out);

#endif
