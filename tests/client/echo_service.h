// SPDX-License-Identifier: Apache-2.0
// The other side of service_test.c: a coordinator on a loop of its own, in this process, that sends q back as
// o, or does as the test says; and calls to it.
#ifndef TESTS_CLIENT_ECHO_SERVICE_H
#define TESTS_CLIENT_ECHO_SERVICE_H

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdatomic.h>

#include "client/banyan.h"
#include "common/loop/loop.h"
#include "proto/rpc/rpc.h"

enum {
    HEADS = 2,
    DIM = 4,
    BAD_LAYER = 3, // items of this layer fail
};

enum mode { ECHO, HOLD, SILENT, WRONG_SHAPE, UNAVAILABLE_STATUS };

extern struct service {
    struct common_loop *loop;
    struct proto_server *server;
    char endpoint[256];
    _Atomic int mode;
    atomic_uint calls, hold_until; // HOLD: answer all when so many are there
    struct held *held;             // loop thread
    unsigned n_held;
} service;

bool service_begin(void); // before the first one; false: there is no folder for its socket
void service_end(void);
extern char service_dir[];            // of its socket, where that is a file
extern const char *service_transport; // of those that are started from now on: unix, tcp, nng+tcp

int start_service(void **state); // as cmocka sets up and tears down
int stop_service(void **state);
// On its loop.
void open_server(void *endpoint);
void close_server(void *arg);
void release_held(void *arg); // answers what is held

extern const banyan_spec spec;
banyan_client *connect_client(const banyan_options *options);
banyan_session *create_session(banyan_client *client);

struct work { // an item with its buffers
    banyan_item item;
    banyan_error error;
    float *q, *o, *lse;
};

void make_work(struct work *w, banyan_session *session, uint32_t rows, float start);
void check_work(const struct work *w); // it was answered
void free_work(struct work *w);

#endif
