// SPDX-License-Identifier: Apache-2.0
// The other side of the tests of what the library asks again: a coordinator and two workers, one server on a
// loop of its own, that lose links, refuse tickets and lie. What a test sets is looked at when a request
// comes.
#ifndef TESTS_CLIENT_AGAIN_SERVICE_H
#define TESTS_CLIENT_AGAIN_SERVICE_H

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdatomic.h>

#include "common/loop/loop.h"
#include "proto/rpc/rpc.h"
#include "proto/wire/codec.h"

enum {
    HEADS = 2,
    DIM = 4,
    TOKENS = 16,       // of a chunk
    HELD_MAX = 128,    // requests that the service keeps
    OPENS_MAX = 16,    // tickets that it gives; then it has had enough
    AHEAD_CHUNKS = 4,  // what it has room for where a ticket asks for more
    PUTS_A_WORKER = 6, // that may be under way to one worker (client/lib/rows/peer.c)
};

// The coordinator takes the one and gives the other beside each ticket.
#define SERVICE_TOKEN "the-token-of-a-file"
#define SERVICE_PASS  "bp_0123"

extern struct service {
    struct common_loop *loop;
    struct proto_server *server;
    char endpoints[2][128]; // both are the coordinator and a worker
    atomic_uint calls[PROTO_METHOD_LIMIT];
    struct common_mail mail;
    struct proto_request *held[HELD_MAX];
    atomic_uint n_held;
    // What it does:
    atomic_bool lose;                  // the next call is lost, and the link with it
    atomic_bool hold;                  // attends and puts are kept
    atomic_bool fails, short_answer;   // of attends: every item fails; an answer without items
    atomic_bool crowded;               // room for AHEAD_CHUNKS chunks at a time
    atomic_uint puts_refused;          // as many puts, by their tickets
    atomic_uint puts_moved;            // as many puts: the rows' holder is another one by now
    atomic_bool behind;                // its clock is, and it is of an older build: tickets say no life
    atomic_uint_least64_t incarnation; // of the session
    atomic_uint_least64_t ticket;      // the incarnation that tickets are of
    atomic_uint quarantined;           // sessions, until they are dropped
    atomic_uint_least64_t cut;         // of the session; 0: this coordinator has none
    atomic_uint truncates_refused;     // as many
    atomic_bool truncates_anyway;      // those that are refused are done, other than settling
    // What it has seen:
    atomic_uint_least64_t attend_incarnation;
    atomic_uint_least64_t keys[3]; // of the last creates, forks or truncates, the newest last
    atomic_uint_least64_t after;   // of the last truncate
    atomic_uint settles;
    atomic_uint shown_tokens, shown_passes; // links that began with them
} service;

// Of the service's loop: call them there.
void service_open(void *arg);
void service_close(void *arg);
void service_release(void *arg); // answers what is kept; from now on nothing is

#endif
