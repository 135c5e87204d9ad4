// SPDX-License-Identifier: Apache-2.0
// The two asynchronous forms of attend: a callback on the I/O thread, and a queue with a descriptor to poll.
//
// Both count against calls_max from their start until the callback runs, or until the completion is fetched:
// so the queue is bounded too.
#include "client/lib/steps/queue.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "client/lib/steps/attend.h"

// The descriptor is readable while the queue holds anything: only the push into an empty queue writes it,
// only the fetch that empties reads it.
struct completion {
    struct completion *next;
    banyan_completion said;
};

struct client_queue {
    pthread_mutex_t mutex;
    struct completion *first, **last;
    int fd;
};

banyan_code client_queue_new(struct client_queue **out)
{
    struct client_queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        return BANYAN_RESOURCE_EXHAUSTED;
    queue->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (queue->fd < 0) {
        free(queue);
        return BANYAN_RESOURCE_EXHAUSTED;
    }
    pthread_mutex_init(&queue->mutex, NULL);
    queue->last = &queue->first;
    *out = queue;
    return BANYAN_OK;
}

void client_queue_free(struct client_queue *queue)
{
    if (!queue)
        return;
    while (queue->first) {
        struct completion *c = queue->first;
        queue->first = c->next;
        free(c);
    }
    pthread_mutex_destroy(&queue->mutex);
    close(queue->fd);
    free(queue);
}

static banyan_code call_reserve(struct banyan_client *client, banyan_error *error)
{
    if (atomic_fetch_add(&client->outstanding, 1) < client->calls_max)
        return BANYAN_OK;
    atomic_fetch_sub(&client->outstanding, 1);
    return client_error_set(
        error, BANYAN_RESOURCE_EXHAUSTED,
        "%u asynchronous calls are outstanding: wait for some, or connect with a larger calls_max",
        client->calls_max);
}

static void call_release(struct banyan_client *client)
{
    atomic_fetch_sub(&client->outstanding, 1);
}

static banyan_code refuse(banyan_item *items, size_t n_items, const banyan_error *why, banyan_error *error)
{
    for (size_t i = 0; items && i < n_items; i++) {
        items[i].code = why->code;
        if (items[i].error)
            *items[i].error = *why;
    }
    if (error)
        *error = *why;
    return why->code;
}

// ---- callbacks --------------------------------------------------------------------------------------------

struct callback {
    struct banyan_client *client;
    banyan_attend_fn fn;
    void *arg;
    struct client_attend *attend; // of one that is notified once more
    struct common_mail mail;
};

static void on_callback_done(struct client_attend *attend);

static void tell_again(void *arg)
{
    on_callback_done(((struct callback *)arg)->attend);
}

static void on_callback_done(struct client_attend *attend)
{
    struct callback *told = client_attend_arg(attend), callback = *told;
    // On a caller's thread: what that has locked, a callback may want.
    if (common_loop_give_back(callback.client->loop)) {
        told->attend = attend;
        common_loop_mail(callback.client->loop, &told->mail, tell_again, told);
        return;
    }
    size_t n_items;
    banyan_item *items = client_attend_items(attend, &n_items);
    banyan_code code = client_attend_code(attend);
    banyan_error error = *client_attend_error(attend);
    free(client_attend_arg(attend));
    client_attend_free(attend);
    call_release(callback.client); // before the callback: it may start the next call
    callback.fn(callback.arg, code, &error, items, n_items);
}

banyan_code banyan_attend_async(banyan_client *client, banyan_item *items, size_t n_items,
                                uint64_t timeout_ns, banyan_attend_fn done, void *arg, banyan_error *error)
{
    banyan_error why;
    if (!client || !done) {
        client_error_set(&why, BANYAN_INVALID_ARGUMENT, "client or done is NULL");
        return refuse(items, n_items, &why, error);
    }
    if (call_reserve(client, &why) != BANYAN_OK)
        return refuse(items, n_items, &why, error);
    struct callback *callback = malloc(sizeof *callback);
    banyan_code code;
    if (!callback) {
        client_error_set(&why, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
        code = refuse(items, n_items, &why, error);
    } else {
        *callback = (struct callback){.client = client, .fn = done, .arg = arg};
        code =
            client_attend_submit(client, items, n_items, timeout_ns, NULL, on_callback_done, callback, error);
    }
    if (code != BANYAN_OK) {
        free(callback);
        call_release(client);
    }
    return code;
}

// ---- queue ------------------------------------------------------------------------------------------------

struct queued {
    struct completion completion; // becomes the queue's
    struct client_queue *queue;
};

static void on_queued_done(struct client_attend *attend)
{
    struct completion *c = client_attend_arg(attend);
    struct client_queue *queue = ((struct queued *)c)->queue;
    c->next = NULL;
    c->said.code = client_attend_code(attend);
    c->said.error = *client_attend_error(attend);
    c->said.items = client_attend_items(attend, &c->said.n_items);
    client_attend_free(attend);
    pthread_mutex_lock(&queue->mutex);
    bool was_empty = !queue->first;
    *queue->last = c;
    queue->last = &c->next;
    if (was_empty) { // under the mutex: else a fetch between could leave the descriptor readable for nothing
        uint64_t one = 1;
        while (write(queue->fd, &one, sizeof one) < 0 && errno == EINTR)
            continue;
    }
    pthread_mutex_unlock(&queue->mutex);
}

banyan_code banyan_attend_queue(banyan_client *client, banyan_item *items, size_t n_items,
                                uint64_t timeout_ns, void *tag, banyan_error *error)
{
    banyan_error why;
    if (!client) {
        client_error_set(&why, BANYAN_INVALID_ARGUMENT, "client is NULL");
        return refuse(items, n_items, &why, error);
    }
    if (call_reserve(client, &why) != BANYAN_OK)
        return refuse(items, n_items, &why, error);
    struct queued *queued = calloc(1, sizeof *queued);
    banyan_code code;
    if (!queued) {
        client_error_set(&why, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
        code = refuse(items, n_items, &why, error);
    } else {
        queued->queue = client->queue;
        queued->completion.said.tag = tag;
        code = client_attend_submit(client, items, n_items, timeout_ns, NULL, on_queued_done, queued, error);
    }
    if (code != BANYAN_OK) {
        free(queued);
        call_release(client);
    }
    return code;
}

int banyan_poll_fd(banyan_client *client)
{
    return client->queue->fd;
}

size_t banyan_poll(banyan_client *client, banyan_completion *out, size_t max)
{
    struct client_queue *queue = client->queue;
    struct completion *taken = NULL, **last = &taken;
    size_t n = 0;
    pthread_mutex_lock(&queue->mutex);
    bool had_any = queue->first != NULL;
    while (n < max && queue->first) {
        struct completion *c = queue->first;
        queue->first = c->next;
        *last = c;
        last = &c->next;
        n++;
    }
    *last = NULL;
    if (!queue->first) {
        queue->last = &queue->first;
        uint64_t count;
        while (had_any && read(queue->fd, &count, sizeof count) < 0 && errno == EINTR)
            continue;
    }
    pthread_mutex_unlock(&queue->mutex);
    for (size_t i = 0; i < n; i++) {
        struct completion *c = taken;
        taken = c->next;
        out[i] = c->said;
        free(c);
        call_release(client);
    }
    return n;
}
