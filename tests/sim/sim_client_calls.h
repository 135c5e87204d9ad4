// SPDX-License-Identifier: Apache-2.0
// The inside of sim_client.h, for the files that make its calls.
#ifndef SIM_CLIENT_CALLS_H
#define SIM_CLIENT_CALLS_H

#include "tests/sim/sim_client.h"

#define METHOD(name) BANYAN__PB__METHOD__METHOD_##name

enum { HOLDERS_MAX = 16, COPIES_MAX = 4, LAYERS_MAX = 4, COORDINATORS = 2 };

struct sim_opened {
    uint8_t ticket[512];
    size_t ticket_bytes;
    uint32_t n, (*holders)[COPIES_MAX], *n_holders; // [n] by chunk
    uint64_t *first, *chunk;                        // [n]
    uint64_t tokens;                                // a chunk
    uint64_t life_ns;
    struct proto_channel *channels[HOLDERS_MAX];
};

struct sim_client {
    struct common_loop *loop;
    char name[24];
    struct proto_channel *channel; // to the one that is called now
    struct {
        const char *endpoint;
        struct proto_channel *channel;
    } coordinators[COORDINATORS];
    struct sim_call *calls;
    uint64_t deadline_ns;
    uint32_t dim; // of K and V
    bool one_holder, partial;
    const char *token;
    struct sim_rows *rows;
};

struct sim_call *sim_call_new(struct sim_client *client, uint32_t method);
void sim_call_failed(struct sim_call *call, const Banyan__Pb__Status *status);

#endif
