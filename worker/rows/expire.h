// SPDX-License-Identifier: Apache-2.0
// Rows that were put and are not committed go after a time. Loop thread.
#ifndef WORKER_EXPIRE_H
#define WORKER_EXPIRE_H

#include <stdbool.h>
#include <stdint.h>

struct worker;
struct worker_session;

// A put has come, or a commit of a session whose rows may be waiting for it: they are not dropped for a while.
void worker_attach_touch(const struct worker *worker, struct worker_session *session, bool put);
void worker_attach_expire(struct worker *worker, uint64_t now_ns); // with each heartbeat

#endif
