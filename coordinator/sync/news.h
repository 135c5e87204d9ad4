// SPDX-License-Identifier: Apache-2.0
// What a visit finds out about a worker (reconcile.h), in the store: which copies it has lost, and which
// process of its name it is. What the store refuses is written again every 2 s.
#ifndef COORDINATOR_NEWS_H
#define COORDINATOR_NEWS_H

#include "coordinator/session/sessions.h"
#include "coordinator/store/store.h"

struct coordinator_worker;

// Writes all that the worker has lost, and that `instance` is its process. Then call
// coordinator_news_answered.
void coordinator_news_store(struct coordinator_sessions *sessions, const struct coordinator_worker *w,
                            uint64_t instance, coordinator_store_fn done, void *arg);
// The store has answered: where it has refused, the news are written again later.
void coordinator_news_answered(struct coordinator_worker *w, enum common_code code);

// Of a worker that has been told all, and is ACTIVE: writes which process it is, with all that it has lost, where the store
// has another one. What it is given from now on comes after that.
void coordinator_news_store_process(struct coordinator_sessions *sessions, struct coordinator_worker *w);

void coordinator_news_tick(struct coordinator_sessions *sessions, uint64_t now_ns);

#endif
