// SPDX-License-Identifier: Apache-2.0
// common/loop.h and common/clock.h over simulated time, and the queue of events (sim.h, sim_event.h).
#include "common/loop.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_event.h"

#define START_NS   (1000 * COMMON_NS_PER_S)
#define WALL_NS    (UINT64_C(1700000000) * COMMON_NS_PER_S)
#define EVENTS_MAX (UINT64_C(50) * 1000 * 1000) // of one call: above it nothing will come to an end

struct common_loop {
    const char *name;
    bool frozen, muted;
    struct sim_event *held; // of a frozen loop, in order of time
    struct sim_mail *mail;  // posted and not run, in no order
    int64_t skew_ns;
    uint32_t number;
};

struct sim_mail { // a post
    struct sim_event event;
    struct sim_mail *next, *prev;
    common_loop_fn fn;
    void *arg;
    struct common_loop *loop;
};

static struct {
    bool begun, shuffle;
    uint64_t now_ns, seq, seed, n_events, trace;
    struct sim_event **heap; // by at_ns, then seq
    uint32_t n_heap, cap_heap;
    uint64_t busy; // armed events that are no timers
    uint32_t n_loops, loops_made;
    struct common_loop *running; // whose event runs now
} world;

uint64_t sim_alive;

// ---- the world ------------------------------------------------------------------------------------------

void sim_begin(uint64_t seed)
{
    if (world.begun) { // a test that failed left it: its memory is leaked
        fprintf(stderr, "sim: the world before was not ended\n");
        free(world.heap);
    }
    sim_net_forget();
    sim_disks_forget();
    memset(&world, 0, sizeof world);
    world.begun = true;
    world.now_ns = START_NS;
    world.seed = seed;
    sim_alive = 0;
}

void sim_end(void)
{
    assert(world.begun);
    assert(world.n_loops == 0);
    assert(sim_alive == 0);
    assert(world.n_heap == 0);
    free(world.heap);
    memset(&world, 0, sizeof world);
}

uint64_t sim_random(uint64_t n)
{
    assert(n > 0);
    world.seed += UINT64_C(0x9e3779b97f4a7c15); // splitmix64
    return common_mix64(world.seed) % n;
}

void sim_shuffle(bool on)
{
    world.shuffle = on;
}

uint64_t sim_clock(void)
{
    return world.now_ns;
}

uint64_t sim_events(void)
{
    return world.n_events;
}

uint64_t sim_trace(void)
{
    return world.trace;
}

// ---- the queue: a binary heap ---------------------------------------------------------------------------

static bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->seq < b->seq;
}

static void heap_put(uint32_t at, struct sim_event *event)
{
    world.heap[at] = event;
    event->place = at + 1;
}

static void heap_up(uint32_t at)
{
    struct sim_event *event = world.heap[at];
    for (; at > 0 && before(event, world.heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap_put(at, world.heap[(at - 1) / 2]);
    heap_put(at, event);
}

static void heap_down(uint32_t at)
{
    struct sim_event *event = world.heap[at];
    for (uint32_t child; (child = 2 * at + 1) < world.n_heap; at = child) {
        if (child + 1 < world.n_heap && before(world.heap[child + 1], world.heap[child]))
            child++;
        if (!before(world.heap[child], event))
            break;
        heap_put(at, world.heap[child]);
    }
    heap_put(at, event);
}

static void heap_add(struct sim_event *event)
{
    if (world.n_heap == world.cap_heap) {
        world.cap_heap = world.cap_heap ? world.cap_heap * 2 : 256;
        world.heap = realloc(world.heap, world.cap_heap * sizeof(*world.heap));
        if (!world.heap)
            abort();
    }
    world.heap[world.n_heap] = event;
    heap_up(world.n_heap++);
    world.busy += event->kind != SIM_TIMER;
}

static void heap_remove(struct sim_event *event)
{
    uint32_t at = event->place - 1;
    assert(at < world.n_heap && world.heap[at] == event);
    struct sim_event *last = world.heap[--world.n_heap];
    event->place = 0;
    world.busy -= event->kind != SIM_TIMER;
    if (last == event)
        return;
    heap_put(at, last);
    heap_up(at);
    heap_down(last->place - 1);
}

// In order of time: so they run when the loop is thawed.
static void hold(struct sim_event *event)
{
    struct sim_event *last = NULL;
    for (struct sim_event *e = event->loop->held; e && before(e, event); e = e->held_next)
        last = e;
    event->place = SIM_EVENT_HELD;
    event->held_prev = last;
    event->held_next = last ? last->held_next : event->loop->held;
    if (event->held_next)
        event->held_next->held_prev = event;
    *(last ? &last->held_next : &event->loop->held) = event;
}

static void unhold(struct sim_event *event)
{
    *(event->held_prev ? &event->held_prev->held_next : &event->loop->held) = event->held_next;
    if (event->held_next)
        event->held_next->held_prev = event->held_prev;
    event->place = 0;
}

void sim_event_init(struct sim_event *event, enum sim_kind kind, struct common_loop *loop, const void *lane,
                    common_loop_fn fn, void *arg)
{
    *event =
        (struct sim_event){.kind = kind, .loop = loop, .lane = lane ? lane : event, .fn = fn, .arg = arg};
}

void sim_event_arm(struct sim_event *event, uint64_t at_ns)
{
    sim_event_cancel(event);
    event->at_ns = at_ns > world.now_ns ? at_ns : world.now_ns;
    event->seq = world.seq++;
    if (event->loop && event->loop->frozen)
        hold(event);
    else
        heap_add(event);
}

void sim_event_cancel(struct sim_event *event)
{
    if (event->place == SIM_EVENT_HELD)
        unhold(event);
    else if (event->place)
        heap_remove(event);
}

// ---- running --------------------------------------------------------------------------------------------

// Whether another order may put `event` first: nothing of its lane is before it, and a deferred function comes
// after what its loop had when it was marked.
static bool may_be_first(const struct sim_event *event)
{
    for (uint32_t i = 0; i < world.n_heap; i++) {
        const struct sim_event *other = world.heap[i];
        if (other == event || !before(other, event))
            continue;
        if (other->lane == event->lane || (event->kind == SIM_DEFERRED && other->loop == event->loop))
            return false;
    }
    return true;
}

static struct sim_event *choose(void)
{
    struct sim_event *first = world.heap[0];
    if (!world.shuffle)
        return first;
    struct sim_event *chosen = first;
    uint64_t n = 0;
    // The heap's own order depends on the history of the queue alone, so the draw is the seed's.
    for (uint32_t i = 0; i < world.n_heap; i++) {
        struct sim_event *event = world.heap[i];
        if (event->at_ns == first->at_ns && may_be_first(event) && sim_random(++n) == 0)
            chosen = event;
    }
    return chosen;
}

static void run_event(struct sim_event *event)
{
    struct common_loop *loop = event->loop, *outer = world.running;
    heap_remove(event);
    assert(event->at_ns >= world.now_ns);
    world.now_ns = event->at_ns;
    world.n_events++;
    world.trace = common_mix64(world.trace ^ world.now_ns) + (loop ? loop->number : 0) * 8 + event->kind;
    world.running = loop;
    event->fn(event->arg); // the event may be gone
    world.running = outer;
}

bool sim_step(void)
{
    if (!world.n_heap)
        return false;
    run_event(choose());
    return true;
}

void sim_run_until_idle(void)
{
    for (uint64_t n = 0; world.busy; n++) {
        assert(n < EVENTS_MAX);
        sim_step();
    }
}

void sim_advance(uint64_t delta_ns)
{
    uint64_t until = world.now_ns + delta_ns;
    for (uint64_t n = 0; world.n_heap && world.heap[0]->at_ns <= until; n++) {
        assert(n < EVENTS_MAX);
        sim_step();
    }
    world.now_ns = until;
}

bool sim_run_while_not(bool (*holds)(void *arg), void *arg, uint64_t limit_ns)
{
    uint64_t until = world.now_ns + limit_ns;
    bool held;
    while (!(held = holds(arg)) && world.n_heap && world.heap[0]->at_ns <= until)
        sim_step();
    if (!held)
        world.now_ns = until;
    return held;
}

static bool is_set(void *arg)
{
    return *(const bool *)arg;
}

bool sim_run_until(const bool *done, uint64_t limit_ns)
{
    return sim_run_while_not(is_set, (void *)done, limit_ns);
}

// ---- loops ----------------------------------------------------------------------------------------------

enum common_code common_loop_new(struct common_loop **out)
{
    assert(world.begun);
    struct common_loop *loop = calloc(1, sizeof *loop);
    if (!loop)
        return COMMON_RESOURCE_EXHAUSTED;
    loop->name = "loop";
    loop->number = ++world.loops_made;
    world.n_loops++;
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
    (void)loop, (void)thread_name;
    return COMMON_UNIMPLEMENTED;
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
    struct sim_mail mail = *(struct sim_mail *)arg, *own = arg;
    *(own->prev ? &own->prev->next : &own->loop->mail) = own->next;
    if (own->next)
        own->next->prev = own->prev;
    free(own);
    mail.fn(mail.arg);
}

void common_loop_post(struct common_loop *loop, common_loop_fn fn, void *arg)
{
    struct sim_mail *mail = malloc(sizeof *mail);
    if (!mail)
        abort();
    *mail = (struct sim_mail){.next = loop->mail, .fn = fn, .arg = arg, .loop = loop};
    if (mail->next)
        mail->next->prev = mail;
    loop->mail = mail;
    sim_event_init(&mail->event, SIM_POST, loop, loop, run_mail, mail);
    sim_event_arm(&mail->event, world.now_ns);
}

void common_loop_call(struct common_loop *loop, common_loop_fn fn, void *arg)
{
    (void)loop;
    fn(arg);
}

bool common_loop_is_owner(const struct common_loop *loop)
{
    (void)loop;
    return true;
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
    for (uint32_t i = 0; i < world.n_heap; i++)
        assert(world.heap[i]->loop != loop); // a timer or a link that outlives its process
    world.n_loops--;
    free(loop);
}

void sim_loop_name(struct common_loop *loop, const char *name)
{
    loop->name = name;
}

void sim_loop_freeze(struct common_loop *loop)
{
    if (loop->frozen)
        return;
    loop->frozen = true;
    for (uint32_t i = 0; i < world.n_heap;) {
        struct sim_event *event = world.heap[i];
        if (event->loop == loop) {
            heap_remove(event); // moves others about: from the beginning
            hold(event);
            i = 0;
        } else {
            i++;
        }
    }
}

void sim_loop_thaw(struct common_loop *loop)
{
    loop->frozen = false;
    while (loop->held) {
        struct sim_event *event = loop->held;
        unhold(event);
        event->at_ns = event->at_ns > world.now_ns ? event->at_ns : world.now_ns;
        event->seq = world.seq++;
        heap_add(event);
    }
}

void sim_loop_mute(struct common_loop *loop)
{
    loop->muted = true;
}

bool sim_loop_muted(const struct common_loop *loop)
{
    return loop->muted;
}

void sim_loop_drain(struct common_loop *loop)
{
    assert(!loop->frozen);
    for (uint64_t n = 0;; n++) {
        assert(n < EVENTS_MAX);
        struct sim_event *first = NULL;
        for (uint32_t i = 0; i < world.n_heap; i++) {
            struct sim_event *event = world.heap[i];
            bool ours = event->loop == loop && (event->kind == SIM_POST || event->kind == SIM_DEFERRED);
            if (ours && (!first || before(event, first)))
                first = event;
        }
        if (!first)
            return;
        run_event(first);
    }
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
    return __builtin_add_overflow(world.now_ns, delta_ns, &at) ? COMMON_NO_DEADLINE : at;
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
        sim_event_arm(&deferred->event, world.now_ns);
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
    return world.now_ns;
}

uint64_t common_clock_wall_ns(void)
{
    return WALL_NS + world.now_ns + (world.running ? (uint64_t)world.running->skew_ns : 0);
}

uint64_t common_clock_after(uint64_t delta_ns)
{
    return saturated(delta_ns);
}

uint64_t common_clock_left(uint64_t deadline_ns)
{
    if (deadline_ns == COMMON_NO_DEADLINE)
        return COMMON_NO_DEADLINE;
    return deadline_ns > world.now_ns ? deadline_ns - world.now_ns : 0;
}
