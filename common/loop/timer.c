// SPDX-License-Identifier: Apache-2.0
#include "common/loop/timer.h"

#include <assert.h>
#include <event2/event.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/base/clock.h"

#define NOT_ARMED UINT32_MAX
#define LATE_NS   (100 * COMMON_NS_PER_MS)                 // later than this: the loop did not run
#define DELAY_MAX (UINT64_C(1000000000) * COMMON_NS_PER_S) // about 31 years: no sum wraps

struct common_timer {
    struct common_loop *loop;
    common_loop_fn fn;
    void *arg;
    uint64_t due_ns, period_ns; // period 0: one-shot
    uint32_t at;                // place in the heap; NOT_ARMED
};

// ---- the heap -------------------------------------------------------------------------------------------

static void heap_put(struct common_timers *timers, uint32_t at, struct common_timer *timer)
{
    timers->heap[at] = timer;
    timer->at = at;
}

// Moves the timer at `at` to where its due time belongs.
static void heap_settle(struct common_timers *timers, uint32_t at)
{
    struct common_timer **heap = timers->heap, *timer = heap[at];
    for (uint32_t up; at > 0 && heap[up = (at - 1) / 2]->due_ns > timer->due_ns; at = up)
        heap_put(timers, at, heap[up]);
    for (uint32_t down; (down = 2 * at + 1) < timers->n_armed; at = down) {
        if (down + 1 < timers->n_armed && heap[down + 1]->due_ns < heap[down]->due_ns)
            down++;
        if (heap[down]->due_ns >= timer->due_ns)
            break;
        heap_put(timers, at, heap[down]);
    }
    heap_put(timers, at, timer);
}

static void heap_remove(struct common_timers *timers, struct common_timer *timer)
{
    uint32_t at = timer->at;
    if (at == NOT_ARMED)
        return;
    timer->at = NOT_ARMED;
    struct common_timer *last = timers->heap[--timers->n_armed];
    if (last == timer)
        return;
    heap_put(timers, at, last);
    heap_settle(timers, at);
}

// ---- the descriptor -------------------------------------------------------------------------------------

// It is not put back when the first timer is stopped: it fires, nothing is due, and it is set again. That
// costs less than a system call a change.
static void set_descriptor(struct common_timers *timers)
{
    if (timers->n_armed == 0 || timers->heap[0]->due_ns >= timers->set_ns)
        return;
    timers->set_ns = timers->heap[0]->due_ns;
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(timers->set_ns / COMMON_NS_PER_S),
                                           .tv_nsec = (long)(timers->set_ns % COMMON_NS_PER_S)}};
    int rv = timerfd_settime(timers->fd, TFD_TIMER_ABSTIME, &when, NULL);
    assert(rv == 0); // it fails for wrong arguments only
    (void)rv;
}

static void on_descriptor(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    struct common_timers *timers = arg;
    uint64_t count, now = common_clock_ns();
    ssize_t ignored = read(fd, &count, sizeof count); // EAGAIN: it was set again since
    (void)ignored;
    timers->set_ns = UINT64_MAX;
    // After a stop of the process everything is ready at once, and what came in meanwhile would count as not
    // come: an answer that lies in a socket, for a call whose time is over. The sockets go first.
    if (!timers->late && timers->n_armed > 0 && now > timers->heap[0]->due_ns &&
        now - timers->heap[0]->due_ns > LATE_NS) {
        timers->late = true;
        event_active(timers->event, EV_READ, 1); // behind all that are ready
        return;
    }
    timers->late = false;
    // What these functions start comes in a later turn, so that sockets have theirs.
    while (timers->n_armed > 0 && timers->heap[0]->due_ns <= now) {
        struct common_timer *timer = timers->heap[0];
        if (timer->period_ns > 0) {
            timer->due_ns += timer->period_ns;
            if (timer->due_ns <= now) // turns that were missed are not made up for
                timer->due_ns = now + timer->period_ns;
            heap_settle(timers, 0);
        } else {
            heap_remove(timers, timer);
        }
        timer->fn(timer->arg); // may free the timer
    }
    set_descriptor(timers);
}

enum common_code common_timers_init(struct common_timers *timers, struct event_base *base)
{
    *timers = (struct common_timers){.set_ns = UINT64_MAX};
    timers->fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (timers->fd < 0)
        return COMMON_RESOURCE_EXHAUSTED;
    timers->event = event_new(base, timers->fd, EV_READ | EV_PERSIST, on_descriptor, timers);
    if (timers->event && event_add(timers->event, NULL) == 0)
        return COMMON_OK;
    if (timers->event)
        event_free(timers->event);
    close(timers->fd);
    return COMMON_RESOURCE_EXHAUSTED;
}

void common_timers_fini(struct common_timers *timers)
{
    event_free(timers->event);
    close(timers->fd);
    free(timers->heap);
}

// ---- timers ---------------------------------------------------------------------------------------------

enum common_code common_timer_new(struct common_loop *loop, common_loop_fn fn, void *arg,
                                  struct common_timer **out)
{
    assert(common_loop_is_owner(loop));
    struct common_timers *timers = common_loop_timers(loop);
    if (timers->n_live == timers->cap) {
        uint32_t cap = timers->cap ? timers->cap * 2 : 16;
        struct common_timer **heap = cap ? reallocarray(timers->heap, cap, sizeof *heap) : NULL;
        if (!heap)
            return COMMON_RESOURCE_EXHAUSTED;
        timers->heap = heap;
        timers->cap = cap;
    }
    struct common_timer *timer = malloc(sizeof *timer);
    if (!timer)
        return COMMON_RESOURCE_EXHAUSTED;
    *timer = (struct common_timer){.loop = loop, .fn = fn, .arg = arg, .at = NOT_ARMED};
    timers->n_live++;
    *out = timer;
    return COMMON_OK;
}

void common_timer_start(struct common_timer *timer, unsigned long long delay_ns, bool repeat)
{
    assert(common_loop_is_owner(timer->loop));
    struct common_timers *timers = common_loop_timers(timer->loop);
    uint64_t delay = delay_ns < DELAY_MAX ? delay_ns : DELAY_MAX;
    timer->due_ns = common_clock_ns() + delay;
    timer->period_ns = !repeat ? 0 : delay > 0 ? delay : 1;
    if (timer->at == NOT_ARMED)
        heap_put(timers, timers->n_armed++, timer);
    heap_settle(timers, timer->at);
    set_descriptor(timers);
}

void common_timer_stop(struct common_timer *timer)
{
    assert(common_loop_is_owner(timer->loop));
    heap_remove(common_loop_timers(timer->loop), timer);
}

void common_timer_free(struct common_timer *timer)
{
    if (!timer)
        return;
    assert(common_loop_is_owner(timer->loop));
    struct common_timers *timers = common_loop_timers(timer->loop);
    heap_remove(timers, timer);
    timers->n_live--;
    free(timer);
}
