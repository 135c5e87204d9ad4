// SPDX-License-Identifier: Apache-2.0
// The coordinator as an object on one loop: main.c makes one from the command line, tests make them from
// options. Everything is called on the loop thread, or while no thread runs the loop.
#ifndef COORDINATOR_COORDINATOR_H
#define COORDINATOR_COORDINATOR_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/loop/loop.h"
#include "coordinator/options.h"

struct coordinator;

// Opens the store, loads the sessions and listens. Strings are copied. Codes of the store and of
// proto_server_listen.
enum common_code coordinator_new(struct common_loop *loop, const struct coordinator_options *options,
                                 struct coordinator **out, struct common_error *err);

// Takes those of these options that may change while it runs: audit, grace_ns, move_bytes_per_s, replicas (of
// sessions that are created from now on), scrub_ns (all sealed chunks are spread over it again),
// session_ttl_ns (likewise of new ones), slow_after_ns.
void coordinator_set_options(struct coordinator *c, const struct coordinator_options *options);

// The configuration was read again, for people to know; trouble: it could not be, and nothing has changed; NULL: it was.
void coordinator_tell_reloaded(struct coordinator *c, const char *trouble);

// SIGHUP: where the audit log was moved away, a new one is begun at its path. With lines in the log.
void coordinator_reopen_audit_log(struct coordinator *c);

const char *coordinator_endpoint(const struct coordinator *c,
                                 uint32_t nth); // listened on, with real ports; NULL past the end

// Closes all links, so that calls under way are lost as with a process that is killed, ends everything, and writes what was
// submitted to the store. Blocks for as long as the disk does. Does not stop the loop.
void coordinator_stop(struct coordinator *c);

// After stop, once the loop has ended (or was never run). NULL is allowed.
void coordinator_free(struct coordinator *c);

#endif
