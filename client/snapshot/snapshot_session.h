// SPDX-License-Identifier: Apache-2.0
// A snapshot's side towards the cluster: the session that holds its rows still, reading them, and putting
// them into a new session. 'session snapshot' and 'session restore' do it with files, the simulator without
// (tests/sim/chaos_snapshot.c).
//
//   snapshot_pin ──▶ snapshot_plan ──▶ client_seals_begin ──▶ snapshot_read_rows, of each file ──▶ client_seals_check
//   banyan_session_create_at ──▶ snapshot_put_rows, in the order of snapshot_nth ──▶ banyan_session_get_info
//
// All block, on a caller's thread. Errors are those of the calls of banyan.h that they make.
#ifndef CLIENT_SNAPSHOT_SESSION_H
#define CLIENT_SNAPSHOT_SESSION_H

#include "client/banyan.h"
#include "client/snapshot/snapshot.h"
#include "client/snapshot/snapshot_dir.h"

struct snapshot_form {
    struct snapshot_shape shape;
    struct snapshot_layer layers[1024];
};

// Of a session with this floor. INVALID_ARGUMENT: the rule that the spec breaks. Free *out.
enum common_code snapshot_form_of(const banyan_spec *spec, uint64_t floor, struct snapshot_form **out,
                                  struct common_error *err);

// A fork of the session at its length, for reading: it goes by itself when unused for ttl_ns. *info: what the
// session was then, with the fork's floor; to be freed. A session that goes on meanwhile is asked again, a
// few times. `number` makes the fork's name another than other programs'.
banyan_code snapshot_pin(banyan_session *session, uint64_t ttl_ns, uint64_t number, banyan_session **out,
                         banyan_session_info *info, banyan_error *error);

// The rows of a file, into data: its tensors one behind the other (snapshot_tensors).
banyan_code snapshot_read_rows(banyan_session *pinned, const struct snapshot_file *file,
                               const struct common_safetensor *tensors, size_t n, uint8_t *data,
                               banyan_error *error);

// Attaches a file's rows, and commits them: the first ones last.
banyan_code snapshot_put_rows(banyan_session *session, const struct snapshot_file *file,
                              const struct snapshot_rows *rows, banyan_error *error);

#endif
