// SPDX-License-Identifier: Apache-2.0
// What a worker holds, page by page.
#ifndef WORKER_INVENTORY_H
#define WORKER_INVENTORY_H

struct proto_request;
struct worker_listing;

void worker_handle_inventory(void *arg, struct proto_request *request); // arg: the worker
void worker_listing_free(struct worker_listing *listing);

#endif
