// SPDX-License-Identifier: Apache-2.0
// How nng's threads reach the loop, and how nng's sockets are closed. For the calling end: the serving end
// speaks nng's wire by itself (sp_server.c) and has none of these threads.
//
// The door is a mailbox that can be closed: nng may call back long after a channel is gone, and
// perhaps after its loop is. Items are intrusive (no allocation a message); what one burst pushes costs one
// wake-up.
//
// Closing: nng 1.5.2 can lose an operation when a pipe is closed between two parts of one message
// (tcptran_pipe_recv_cb and _send_cb start the next part on an aio that nni_aio_close has stopped, and
// nni_aio_begin then drops it without a callback). nng_close then never returns, and nng's one reaper thread,
// which waits for the same operation, destroys no pipe of the process any more. So sockets are closed by a
// thread of their own, which first lets what is in flight come to rest, without anyone waiting.
//
// The other end can close it, too: a coordinator that dies while a client's message is being written. nng
// does not connect again in that process, and does not report it. Of 419 connections cut off within a message
// of 8 MB, 4 left the client so (2026-11-22, a virtual machine with 2 cores under load). nng_channel.c looks
// for that.
#ifndef PROTO_NNG_DOOR_H
#define PROTO_NNG_DOOR_H

#include <event2/event.h>
#include <pthread.h>
#include <stdbool.h>

#include "common/loop/loop.h"

struct proto_nng_item {
    struct proto_nng_item *next;
    // On the loop; inside proto_nng_door_close for those that are left.
    void (*run)(struct proto_nng_item *item);
};

struct proto_nng_door {
    pthread_mutex_t lock; // around the list and `closed`; nothing is called under it
    bool closed;
    struct proto_nng_item *first, **last;
    int fd;
    struct event *event;
};

bool proto_nng_door_open(struct proto_nng_door *door,
                         struct common_loop *loop); // false: no memory or descriptor
bool proto_nng_door_push(
    struct proto_nng_door *door,
    struct proto_nng_item *item); // any thread; false: closed, the item stays the caller's

// Loop. Nothing comes through afterwards. The door's memory must last until the last push has returned.
void proto_nng_door_close(struct proto_nng_door *door);
void proto_nng_door_fini(struct proto_nng_door *door);

// Runs fn(arg) on a detached thread, or here when there is none to be had.
void proto_nng_aside(void (*fn)(void *), void *arg);

// How many of them have not returned. Any thread.
unsigned proto_nng_closing(void);

#endif
