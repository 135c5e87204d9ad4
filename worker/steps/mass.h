// SPDX-License-Identifier: Apache-2.0
// Attention masses, outside the steps.
#ifndef WORKER_MASS_H
#define WORKER_MASS_H

struct proto_request;

void worker_handle_mass(void *arg, struct proto_request *request); // arg: the worker

#endif
