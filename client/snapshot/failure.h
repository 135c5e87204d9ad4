// SPDX-License-Identifier: Apache-2.0
// Failures of snapshots, as banyan.h has them.
#ifndef CLIENT_SNAPSHOT_FAILURE_H
#define CLIENT_SNAPSHOT_FAILURE_H

#include <stdint.h>

#include "client/banyan.h"
#include "common/base/status.h"

#define SNAPSHOT_THREADS 2 // unless the caller says

// What snapshot_dir.h and snapshot.h say of a file, with the reason FILE; out of memory has none.
banyan_code snapshot_file_failure(const struct common_error *err, banyan_error *error);
banyan_code snapshot_no_memory(banyan_error *error);

// INVALID_ARGUMENT where `threads` is none of 0 .. 16; *threads 0 becomes the default.
banyan_code snapshot_threads(uint32_t *threads, banyan_error *error);

#endif
