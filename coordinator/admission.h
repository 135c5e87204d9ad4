// SPDX-License-Identifier: Apache-2.0
// Which clients are admitted, as whom, and what they may see: the tokens of the room of tenants, the token
// file, and the open door of a coordinator that only this machine reaches and that has no token at all.
//
//   a token of the table ──────────────▶ what the table says
//   the token file's ──────────────────▶ admin of the default tenant
//   none, or any, where there is no token at all, and the door is open (below) ──▶ likewise
#ifndef COORDINATOR_ADMISSION_H
#define COORDINATOR_ADMISSION_H

#include "proto/rpc/rpc.h"

struct coordinator;

// proto_server_options.admit and .wording, with the coordinator.
bool coordinator_admit(void *arg, const void *credentials, size_t len, const char *peer,
                       struct proto_identity *out);
// proto_server_options.unadmitted: of a token that has expired.
const char *coordinator_unadmitted(void *arg, const void *credentials, size_t len);
void coordinator_wording(void *arg, const struct proto_request *request, char *text, size_t bytes,
                         Banyan__Pb__Status *status);

// Answers and counts what the table of accesses does not permit, and returns false.
bool coordinator_may(struct coordinator *c, struct proto_request *request);

bool coordinator_wants_token(const struct coordinator *c); // of clients

// Who asks over --http. False: a token is shown and is wrong, which is counted and reported like that of an
// RPC. Access NONE: no token is shown where one is wanted.
struct common_http_request;
bool coordinator_admit_http(struct coordinator *c, const struct common_http_request *request,
                            struct proto_identity *out);

// With each tick: tokens that have expired are valid no more, and when they were used is written from time to time.
void coordinator_admission_tick(struct coordinator *c, uint64_t now_ns);

// Handlers (proto_method.handle).
void coordinator_handle_token_create(struct coordinator *c, struct proto_request *request);
void coordinator_handle_token_list(struct coordinator *c, struct proto_request *request);
void coordinator_handle_token_revoke(struct coordinator *c, struct proto_request *request);

#endif
