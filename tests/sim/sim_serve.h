// SPDX-License-Identifier: Apache-2.0
// Rules for what a process is asked: its server's requests are counted, held, or refused before its own code
// sees them. A rule belongs to a loop and ends with it.
#ifndef TESTS_SIM_SIM_SERVE_H
#define TESTS_SIM_SIM_SERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/loop/loop.h"

struct proto_request;

enum sim_verdict {
    SIM_DO,   // its handler gets it
    SIM_FAIL, // it is answered with code and reason; its handler never sees it
    SIM_HOLD, // it waits until sim_serve_let_go: a process that is slow with this one
    SIM_TELL, // the test answers it in the handler's place
};

struct sim_rule {
    enum sim_verdict verdict;
    uint32_t times; // of the next requests; 0: of all
    enum common_code code;
    const char *reason; // NULL: none
    void (*tell)(void *arg,
                 struct proto_request *request); // of SIM_TELL; as a handler it replies or fails, once
    void *arg;
};

void sim_serve_rule(const struct common_loop *server, uint32_t method, struct sim_rule rule);

// Hands on what is held, oldest first, also of callers that have gone meanwhile: the handler learns it from
// proto_request_on_cancel. Returns how many there were.
uint32_t sim_serve_let_go(const struct common_loop *server);

// Answers what is held without its handler.
void sim_serve_fail_held(const struct common_loop *server, enum common_code code, const char *text);

uint32_t sim_serve_held(const struct common_loop *server);
uint64_t sim_serve_seen(const struct common_loop *server, uint32_t method); // requests so far

#endif
