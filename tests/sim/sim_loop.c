// SPDX-License-Identifier: Apache-2.0
// common/loop/loop.h and common/base/clock.h over the events of a simulated world.
#include "common/loop/loop.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_event.h"

#define WALL_NS (UINT64_C(1700000000) * COMMON_NS_PER_S)

struct sim_mail { // a mail's place in the queue; what it runs lies in the mail itself, as with the real loop
    struct sim_event event;
    struct sim_mail *next, *prev;
    struct common_mail *mail;
    struct common_loop *loop;
};

bool sim_is_caller;

// ---- loops ----------------------------------------------------------------------------------------------

enum common_code common_loop_new(struct common_loop **out)
{
    struct common_loop *loop = calloc(1, sizeof *loop);
    if (!loop)
        return COMMON_RESOURCE_EXHAUSTED;
    loop->name = "loop";
    sim_process_begin(loop);
    *out = loop;
    return COMMON_OK;
}

struct event_base *common_loop_base(struct common_loop *loop)
{
    fprintf(stderr, "sim: '%s' wants sockets: it belongs behind a seam\n", loop->name);
    abort();
}

// There is one thread, and the test's own function has it.
void common_loop_run(struct common_loop *loop)
{
    fprintf(stderr, "sim: '%s' cannot run by itself\n", loop->name);
    abort();
}

enum common_code common_loop_start_thread(struct common_loop *loop, const char *thread_name)
{
    (void)thread_name;
    loop->name = "I/O thread"; // whose events run in the world as all others
    return COMMON_OK;
}

void common_loop_join(struct common_loop *loop)
{
    (void)loop;
}

void common_loop_stop(struct common_loop *loop)
{
    (void)loop;
}

static void run_mail(void *arg)
{
    struct sim_mail *own = arg;
    struct common_mail mail = *own->mail;
    *(own->prev ? &own->prev->next : &own->loop->mail) = own->next;
    if (own->next)
        own->next->prev = own->prev;
    free(own);
    mail.fn(mail.arg);
}

// Callers have no threads of their own: theirs are the simulator's.
void common_loop_lend(struct common_loop *loop, bool (*may)(void *arg), void *arg)
{
    (void)loop, (void)may, (void)arg;
}

bool common_loop_borrow(struct common_loop *loop, common_loop_fn fn, void *arg, const _Atomic uint32_t *done)
{
    (void)loop, (void)fn, (void)arg, (void)done;
    return false;
}

bool common_loop_give_back(struct common_loop *loop)
{
    (void)loop;
    return false;
}

void common_loop_answered(struct common_loop *loop)
{
    (void)loop;
}

void common_loop_call_own(struct common_loop *loop, common_loop_fn fn, void *arg)
{
    common_loop_call(loop, fn, arg);
}

bool common_loop_leave_behind(struct common_loop *loop, void (*release)(void *thing), void *thing)
{
    (void)loop, (void)release, (void)thing;
    return false; // there is no libevent
}

void common_loop_mail(struct common_loop *loop, struct common_mail *mail, common_loop_fn fn, void *arg)
{
    for (const struct sim_mail *other = loop->mail; other; other = other->next)
        assert(other->mail != mail); // it is in use
    struct sim_mail *own = malloc(sizeof *own);
    if (!own)
        abort();
    *mail = (struct common_mail){.fn = fn, .arg = arg};
    *own = (struct sim_mail){.next = loop->mail, .mail = mail, .loop = loop};
    if (own->next)
        own->next->prev = own;
    loop->mail = own;
    sim_event_init(&own->event, SIM_POST, loop, loop, run_mail, own);
    sim_event_arm(&own->event, sim_clock());
}

void common_loop_call(struct common_loop *loop, common_loop_fn fn, void *arg)
{
    bool caller = sim_is_caller; // who waits for it
    (void)loop;
    sim_is_caller = false;
    fn(arg);
    sim_is_caller = caller;
}

bool common_loop_is_owner(const struct common_loop *loop)
{
    (void)loop;
    return !sim_is_caller;
}

void common_loop_free(struct common_loop *loop)
{
    if (!loop)
        return;
    sim_loop_thaw(loop);
    while (loop->mail) {
        struct sim_mail *mail = loop->mail;
        loop->mail = mail->next;
        sim_event_cancel(&mail->event);
        free(mail);
    }
    sim_process_end(loop);
    free(loop);
}

void sim_loop_name(struct common_loop *loop, const char *name)
{
    loop->name = name;
}

void sim_loop_mute(struct common_loop *loop)
{
    loop->muted = true;
}

bool sim_loop_muted(const struct common_loop *loop)
{
    return loop->muted;
}

void sim_loop_skew(struct common_loop *loop, int64_t ns)
{
    loop->skew_ns = ns;
}

// ---- timers ---------------------------------------------------------------------------------------------

struct common_timer {
    struct sim_event event;
    uint64_t period_ns; // 0: one shot
    common_loop_fn fn;
    void *arg;
};

static uint64_t saturated(uint64_t delta_ns)
{
    uint64_t at;
    return __builtin_add_overflow(sim_clock(), delta_ns, &at) ? COMMON_NO_DEADLINE : at;
}

static void on_timer(void *arg)
{
    struct common_timer *timer = arg;
    if (timer->period_ns)
        sim_event_arm(&timer->event, saturated(timer->period_ns));
    timer->fn(timer->arg); // may free it
}

enum common_code common_timer_new(struct common_loop *loop, common_loop_fn fn, void *arg,
                                  struct common_timer **out)
{
    struct common_timer *timer = calloc(1, sizeof *timer);
    if (!timer)
        return COMMON_RESOURCE_EXHAUSTED;
    timer->fn = fn;
    timer->arg = arg;
    sim_event_init(&timer->event, SIM_TIMER, loop, NULL, on_timer, timer);
    sim_alive++;
    *out = timer;
    return COMMON_OK;
}

void common_timer_start(struct common_timer *timer, unsigned long long delay_ns, bool repeat)
{
    assert(!repeat || delay_ns > 0);
    timer->period_ns = repeat ? delay_ns : 0;
    sim_event_arm(&timer->event, saturated(delay_ns));
}

void common_timer_stop(struct common_timer *timer)
{
    sim_event_cancel(&timer->event);
}

void common_timer_free(struct common_timer *timer)
{
    if (!timer)
        return;
    sim_event_cancel(&timer->event);
    sim_alive--;
    free(timer);
}

// ---- deferred work --------------------------------------------------------------------------------------

struct common_deferred {
    struct sim_event event;
};

enum common_code common_deferred_new(struct common_loop *loop, common_loop_fn fn, void *arg,
                                     struct common_deferred **out)
{
    struct common_deferred *deferred = calloc(1, sizeof *deferred);
    if (!deferred)
        return COMMON_RESOURCE_EXHAUSTED;
    sim_event_init(&deferred->event, SIM_DEFERRED, loop, NULL, fn, arg);
    sim_alive++;
    *out = deferred;
    return COMMON_OK;
}

// It takes its place behind what is ready now: that is the rest of the turn.
void common_deferred_mark(struct common_deferred *deferred)
{
    if (!sim_event_armed(&deferred->event))
        sim_event_arm(&deferred->event, sim_clock());
}

void common_deferred_free(struct common_deferred *deferred)
{
    if (!deferred)
        return;
    sim_event_cancel(&deferred->event);
    sim_alive--;
    free(deferred);
}

// ---- the clock ------------------------------------------------------------------------------------------

uint64_t common_clock_ns(void)
{
    return sim_clock();
}

uint64_t common_clock_wall_ns(void)
{
    const struct common_loop *running = sim_process_running();
    return WALL_NS + sim_clock() + (running ? (uint64_t)running->skew_ns : 0);
}

uint64_t common_clock_after(uint64_t delta_ns)
{
    return saturated(delta_ns);
}

uint64_t common_clock_left(uint64_t deadline_ns)
{
    if (deadline_ns == COMMON_NO_DEADLINE)
        return COMMON_NO_DEADLINE;
    return deadline_ns > sim_clock() ? deadline_ns - sim_clock() : 0;
}
