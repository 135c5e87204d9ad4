// SPDX-License-Identifier: Apache-2.0
// The queue of completions that wait to be fetched. Any thread.
#ifndef CLIENT_LIB_QUEUE_H
#define CLIENT_LIB_QUEUE_H

#include "client/banyan.h"

struct client_queue;

banyan_code client_queue_new(struct client_queue **out);
// Completions that were not fetched are dropped; NULL is allowed.
void client_queue_free(struct client_queue *queue);

#endif
