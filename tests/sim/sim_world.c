// SPDX-License-Identifier: Apache-2.0
// The world: its clock, its queue of events, and processes that freeze (sim.h, sim_event.h).
#include "tests/sim/sim.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/hash/hash.h"
#include "tests/sim/sim_event.h"

#define START_NS   (1000 * COMMON_NS_PER_S)
#define LATE_NS    (100 * COMMON_NS_PER_MS)     // as common/loop/loop.c
#define EVENTS_MAX (UINT64_C(50) * 1000 * 1000) // of one call: above it nothing will come to an end

static struct {
    bool begun, shuffle;
    uint64_t now_ns, seq, seed, n_events, trace;
    struct sim_event **heap; // by at_ns, then seq
    uint32_t n_heap, cap_heap;
    uint64_t until_ns; // events run up to there
    uint64_t busy;     // armed events that are no timers
    uint32_t n_loops, loops_made;
    struct common_loop *running; // whose event runs now
    void (*after_each)(void);
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

// What a process takes for random is the seed's, too.
bool common_random(void *out, size_t len)
{
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)out)[i] = (uint8_t)sim_random(256);
    return true;
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

// Whether another order may put `event` first: nothing of its lane is before it, and a deferred function
// comes after what its loop had when it was marked.
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

static bool step(void)
{
    if (!world.n_heap)
        return false;
    run_event(choose());
    if (world.after_each)
        world.after_each();
    return true;
}

bool sim_step(void)
{
    world.until_ns = 0; // this one alone
    return step();
}

bool sim_step_within(void)
{
    return world.n_heap && world.heap[0]->at_ns <= world.until_ns && step();
}

void sim_after_each(void (*fn)(void))
{
    world.after_each = fn;
}

void sim_run_until_idle(void)
{
    for (uint64_t n = 0; world.busy; n++) {
        assert(n < EVENTS_MAX);
        world.until_ns = world.heap[0]->at_ns;
        step();
    }
}

void sim_advance(uint64_t delta_ns)
{
    uint64_t until = world.now_ns + delta_ns;
    for (uint64_t n = 0; world.n_heap && world.heap[0]->at_ns <= until; n++) {
        assert(n < EVENTS_MAX);
        world.until_ns = until;
        step();
    }
    world.now_ns = until;
}

bool sim_run_while_not(bool (*holds)(void *arg), void *arg, uint64_t limit_ns)
{
    uint64_t until = world.now_ns + limit_ns;
    bool held;
    while (!(held = holds(arg)) && world.n_heap && world.heap[0]->at_ns <= until) {
        world.until_ns = until;
        step();
    }
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

// ---- processes ------------------------------------------------------------------------------------------

void sim_process_begin(struct common_loop *loop)
{
    assert(world.begun);
    loop->number = ++world.loops_made;
    world.n_loops++;
}

void sim_process_end(struct common_loop *loop)
{
    for (uint32_t i = 0; i < world.n_heap; i++)
        assert(world.heap[i]->loop != loop); // a timer or a link that outlives its process
    sim_serve_forget(loop);
    world.n_loops--;
}

const struct common_loop *sim_process_running(void)
{
    return world.running;
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

// What came in goes first: so do loops with timers that are late (common/loop/loop.h).
void sim_loop_thaw(struct common_loop *loop)
{
    loop->frozen = false;
    for (int late = 0; late < 2; late++) {
        for (struct sim_event *event = loop->held, *next; event; event = next) {
            next = event->held_next;
            if (!late && event->kind == SIM_TIMER && event->at_ns + LATE_NS < world.now_ns)
                continue;
            unhold(event);
            event->at_ns = event->at_ns > world.now_ns ? event->at_ns : world.now_ns;
            event->seq = world.seq++;
            heap_add(event);
        }
    }
}

// What is due and not from a link: of posts alone, or of all kinds; those that were armed before this one, or
// any. False: there is nothing.
static bool run_first(const struct common_loop *loop, bool posts_alone, uint64_t armed_before)
{
    struct sim_event *first = NULL;
    for (uint32_t i = 0; i < world.n_heap; i++) {
        struct sim_event *event = world.heap[i];
        bool meant = posts_alone ? event->kind == SIM_POST : event->kind != SIM_WIRE;
        if (event->loop == loop && meant && event->at_ns <= world.now_ns && event->seq < armed_before &&
            (!first || before(event, first)))
            first = event;
    }
    if (first)
        run_event(first);
    return first != NULL;
}

void sim_loop_drain(struct common_loop *loop)
{
    assert(!loop->frozen);
    for (uint64_t n = 0; run_first(loop, false, UINT64_MAX); n++)
        assert(n < EVENTS_MAX);
}

static bool has_post(const struct common_loop *loop)
{
    for (uint32_t i = 0; i < world.n_heap; i++)
        if (world.heap[i]->loop == loop && world.heap[i]->kind == SIM_POST)
            return true;
    return false;
}

void sim_loop_end(struct common_loop *loop)
{
    assert(!loop->frozen);
    for (uint64_t n = 0; n < EVENTS_MAX; n++) {
        uint64_t by = world.seq;
        while (run_first(loop, true, by))
            continue;
        if (!has_post(loop))
            return;
        by = world.seq;
        while (run_first(loop, false, by)) // a turn
            continue;
    }
    abort();
}
