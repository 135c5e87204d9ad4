// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/world.h"

#include <event2/event.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/loop/timer.h"
#include "proto/stream/acceptor.h"
#include "tests/fuzz/fuzz.h"

#define NOW_NS  (1000 * COMMON_NS_PER_S) // the clock stands still
#define WALL_NS (UINT64_C(1700000000) * COMMON_NS_PER_S)

enum { TURNS = 2 }; // what is ready in one makes others ready

static uint8_t drawn;

void fuzz_world_begin(void)
{
    drawn = 0;
}

// ---- common/loop/timer.h: those come that are due now ----

struct common_timer {
    struct common_timer *next;
    common_loop_fn fn;
    void *arg;
    bool due;
};

static struct common_timer *timers;

static void run_timers(void)
{
    for (;;) {
        struct common_timer *timer = timers;
        while (timer && !timer->due)
            timer = timer->next;
        if (!timer)
            return;
        timer->due = false;
        timer->fn(timer->arg); // may free it, and others
    }
}

enum common_code common_timers_init(struct common_timers *unused, struct event_base *base)
{
    (void)unused, (void)base;
    return COMMON_OK;
}

void common_timers_fini(struct common_timers *unused)
{
    (void)unused;
}

enum common_code common_timer_new(struct common_loop *loop, common_loop_fn fn, void *arg,
                                  struct common_timer **out)
{
    (void)loop;
    *out = malloc(sizeof **out);
    FUZZ_CHECK(*out);
    **out = (struct common_timer){.next = timers, .fn = fn, .arg = arg};
    timers = *out;
    return COMMON_OK;
}

void common_timer_start(struct common_timer *timer, unsigned long long delay_ns, bool repeat)
{
    (void)repeat;
    timer->due = delay_ns == 0;
}

void common_timer_stop(struct common_timer *timer)
{
    timer->due = false;
}

void common_timer_free(struct common_timer *timer)
{
    struct common_timer **at = &timers;
    if (!timer)
        return;
    while (*at != timer)
        at = &(*at)->next;
    *at = timer->next;
    free(timer);
}

void fuzz_turn(struct common_loop *loop)
{
    for (int i = 0; i < TURNS; i++) {
        event_base_loop(common_loop_base(loop), EVLOOP_NONBLOCK);
        run_timers();
    }
    event_base_loop(common_loop_base(loop), EVLOOP_NONBLOCK);
}

// ---- common/base/clock.h, common/base/random.h ----

uint64_t common_clock_ns(void)
{
    return NOW_NS;
}

uint64_t common_clock_wall_ns(void)
{
    return WALL_NS;
}

uint64_t common_clock_after(uint64_t delta_ns)
{
    uint64_t at;
    return __builtin_add_overflow(NOW_NS, delta_ns, &at) ? COMMON_NO_DEADLINE : at;
}

uint64_t common_clock_left(uint64_t deadline_ns)
{
    if (deadline_ns == COMMON_NO_DEADLINE)
        return COMMON_NO_DEADLINE;
    return deadline_ns > NOW_NS ? deadline_ns - NOW_NS : 0;
}

bool common_random(void *out, size_t len)
{
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)out)[i] = drawn++;
    return true;
}

// ---- proto/stream/acceptor.h
// -----------------------------------------------------------------------------------

struct proto_acceptor {
    const struct proto_acceptor_ops *ops;
    void *owner;
};

static struct proto_acceptor *last;

enum common_code proto_acceptor_open(struct common_loop *loop, const char *name,
                                     struct proto_endpoint *endpoint, const struct proto_acceptor_ops *ops,
                                     void *owner, struct proto_acceptor **out, struct common_error *err)
{
    (void)loop, (void)name, (void)endpoint, (void)err;
    last = malloc(sizeof *last);
    FUZZ_CHECK(last);
    *last = (struct proto_acceptor){ops, owner};
    *out = last;
    return COMMON_OK;
}

void proto_acceptor_close(struct proto_acceptor *acceptor)
{
    if (acceptor == last)
        last = NULL;
    free(acceptor);
}

int fuzz_connect(void)
{
    int fds[2];
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons(4711),
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (!last || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0)
        return -1;
    last->ops->accepted(last->owner, fds[0], (const struct sockaddr *)(const void *)&address);
    return fds[1];
}
