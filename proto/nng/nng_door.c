// SPDX-License-Identifier: Apache-2.0
#include "proto/nng/nng_door.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct proto_nng_item *take_all(struct proto_nng_door *door, bool close_it)
{
    pthread_mutex_lock(&door->lock);
    struct proto_nng_item *items = door->first;
    door->first = NULL;
    door->last = &door->first;
    door->closed = door->closed || close_it;
    pthread_mutex_unlock(&door->lock);
    return items;
}

static void run_all(struct proto_nng_item *item)
{
    while (item) {
        struct proto_nng_item *next = item->next;
        item->run(item); // the last one may take the door's memory with it
        item = next;
    }
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    uint64_t count;
    while (read(fd, &count, sizeof count) < 0 && errno == EINTR)
        continue;
    run_all(take_all(arg, false));
}

bool proto_nng_door_open(struct proto_nng_door *door, struct common_loop *loop)
{
    *door = (struct proto_nng_door){.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    if (door->fd < 0)
        return false;
    door->event = event_new(common_loop_base(loop), door->fd, EV_READ | EV_PERSIST, on_wake, door);
    if (!door->event || event_add(door->event, NULL) != 0) {
        if (door->event)
            event_free(door->event);
        close(door->fd);
        return false;
    }
    door->last = &door->first;
    pthread_mutex_init(&door->lock, NULL);
    return true;
}

bool proto_nng_door_push(struct proto_nng_door *door, struct proto_nng_item *item)
{
    item->next = NULL;
    pthread_mutex_lock(&door->lock);
    bool open = !door->closed, first = !door->first;
    if (open) {
        *door->last = item;
        door->last = &item->next;
    }
    if (open && first) { // under the lock: the descriptor goes when the door is closed
        uint64_t one = 1;
        while (write(door->fd, &one, sizeof one) < 0 && errno == EINTR)
            continue;
    }
    pthread_mutex_unlock(&door->lock);
    return open;
}

void proto_nng_door_close(struct proto_nng_door *door)
{
    struct proto_nng_item *left = take_all(door, true);
    event_free(door->event);
    close(door->fd);
    run_all(left);
}

void proto_nng_door_fini(struct proto_nng_door *door)
{
    pthread_mutex_destroy(&door->lock);
}

struct aside {
    void (*fn)(void *arg);
    void *arg;
};

static atomic_uint closing;

static void *run_aside(void *arg)
{
    struct aside aside = *(struct aside *)arg;
    free(arg);
    aside.fn(aside.arg);
    atomic_fetch_sub(&closing, 1);
    return NULL;
}

void proto_nng_aside(void (*fn)(void *), void *arg)
{
    struct aside *aside = malloc(sizeof *aside);
    pthread_t thread;
    int rv = ENOMEM;
    atomic_fetch_add(&closing, 1);
    if (aside) {
        *aside = (struct aside){fn, arg};
        sigset_t all, before;
        sigfillset(&all); // signals are for the program's own threads
        pthread_sigmask(SIG_SETMASK, &all, &before);
        rv = pthread_create(&thread, NULL, run_aside, aside);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (rv == 0) {
        pthread_detach(thread);
        return;
    }
    free(aside);
    fn(arg);
    atomic_fetch_sub(&closing, 1);
}

unsigned proto_nng_closing(void)
{
    return atomic_load(&closing);
}

#ifdef __SANITIZE_ADDRESS__
// nng leaks an endpoint when a handshake is cut short by the close; none of ours is allocated below its
// frames but what its callbacks hand over.
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libnng.so\n";
}
#endif
