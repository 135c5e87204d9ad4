// SPDX-License-Identifier: Apache-2.0
// Links, what travels on them, and the faults that tests order (sim_net.h).
#include "tests/sim/sim_net.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_link.h"

#define DELAY_NS (20 * COMMON_NS_PER_US)

enum { FAULTS_MAX = 256, FIRST_PORT = 20000 };

struct fault {
    struct sim_place from, to; // whom it concerns
    bool held, down, swallowed;
    bool old;       // of `from`
    uint32_t flips; // one in so many frames; 0: none
};

static struct {
    struct sim_link *links;
    struct sim_listener *listeners;
    struct fault faults[FAULTS_MAX];
    uint32_t n_faults, n_links;
    uint64_t least_ns, most_ns, frames, flipped;
    uint16_t port;
} net;

void sim_net_forget(void)
{
    net.links = NULL;
    net.listeners = NULL;
    net.n_links = net.n_faults = 0;
    net.frames = net.flipped = 0;
    net.port = FIRST_PORT;
    net.least_ns = net.most_ns = DELAY_NS;
}

void sim_net_delay(uint64_t least_ns, uint64_t most_ns)
{
    net.least_ns = least_ns;
    net.most_ns = most_ns;
}

uint32_t sim_net_links(void)
{
    return net.n_links;
}

uint64_t sim_net_frames(void)
{
    return net.frames;
}

uint64_t sim_net_flipped(void)
{
    return net.flipped;
}

static uint64_t delay(void)
{
    return net.least_ns + (net.most_ns > net.least_ns ? sim_random(net.most_ns - net.least_ns + 1) : 0);
}

// ---- faults ---------------------------------------------------------------------------------------------

static struct sim_place place_of(const struct common_loop *loop)
{
    struct sim_place place = {.loop = loop};
    if (loop && loop->name)
        snprintf(place.name, sizeof place.name, "%s", loop->name);
    return place;
}

static bool same_place(const struct sim_place *a, const struct sim_place *b)
{
    return a->name[0] || b->name[0] ? strcmp(a->name, b->name) == 0 : a->loop == b->loop;
}

static bool is_at(const struct sim_place *place, const struct sim_place *other) // none named: any
{
    return (!place->loop && !place->name[0]) || same_place(place, other);
}

static bool concerns(const struct fault *fault, const struct sim_place *from, const struct sim_place *to)
{
    return is_at(&fault->from, from) && is_at(&fault->to, to);
}

static bool is_held(const struct sim_place *from, const struct sim_place *to)
{
    for (uint32_t i = 0; i < net.n_faults; i++)
        if (net.faults[i].held && concerns(&net.faults[i], from, to))
            return true;
    return false;
}

// What `side` sends is acknowledged on its way, and thrown away.
static bool is_swallowed(const struct sim_link *link, enum sim_side side)
{
    const struct sim_place *from = &link->places[side], *to = &link->places[!side];
    for (uint32_t i = 0; i < net.n_faults; i++)
        if (net.faults[i].swallowed && concerns(&net.faults[i], from, to))
            return true;
    return link->swallows[side];
}

static bool is_down(const struct sim_place *from, const struct sim_place *to)
{
    for (uint32_t i = 0; i < net.n_faults; i++)
        if (net.faults[i].down && (concerns(&net.faults[i], from, to) || concerns(&net.faults[i], to, from)))
            return true;
    return false;
}

static bool is_old(const struct sim_place *place)
{
    for (uint32_t i = 0; i < net.n_faults; i++)
        if (net.faults[i].old && same_place(&net.faults[i].from, place))
            return true;
    return false;
}

bool sim_link_versions_differ(const struct sim_link *link)
{
    return is_old(&link->places[SIM_DIALLER]) != is_old(&link->places[SIM_ACCEPTOR]);
}

// Nothing is drawn where no such fault is in force: the worlds of other seeds stay what they were.
static void damage(struct sim_message *message, const struct sim_place *from, const struct sim_place *to)
{
    for (uint32_t i = 0; message->blob && i < net.n_faults; i++) {
        const struct fault *fault = &net.faults[i];
        if (!fault->flips || !concerns(fault, from, to) || sim_random(fault->flips))
            continue;
        uint64_t bit = sim_random(8 * message->blob->len);
        message->blob->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        net.flipped++;
    }
}

static void fault_add(struct fault fault)
{
    assert(net.n_faults < FAULTS_MAX);
    net.faults[net.n_faults++] = fault;
}

static void fault_remove(struct fault fault)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < net.n_faults; i++) {
        const struct fault *f = &net.faults[i];
        if (!same_place(&f->from, &fault.from) || !same_place(&f->to, &fault.to) || f->held != fault.held ||
            f->down != fault.down || f->swallowed != fault.swallowed || f->old != fault.old ||
            f->flips != fault.flips)
            net.faults[kept++] = *f;
    }
    net.n_faults = kept;
}

// ---- what travels ---------------------------------------------------------------------------------------

struct sim_message *sim_message_new(enum sim_message_kind kind)
{
    struct sim_message *message = calloc(1, sizeof *message);
    if (!message)
        abort();
    message->kind = kind;
    return message;
}

void sim_message_free(struct sim_message *message)
{
    common_blob_unref(message->blob);
    free(message);
}

struct common_blob *sim_gather_blob(const struct proto_gather *gather)
{
    struct common_blob *blob = NULL;
    size_t at = 0;
    while (!blob) // it is not the simulator that memory is refused to (sim_memory.h)
        blob = common_blob_new(gather->bytes);
    for (size_t i = 0; i < gather->n; i++) {
        if (gather->iov[i].iov_len)
            memcpy(blob->data + at, gather->iov[i].iov_base, gather->iov[i].iov_len);
        at += gather->iov[i].iov_len;
    }
    assert(at == gather->bytes);
    return blob;
}

static struct sim_message *way_pop(struct sim_way *way)
{
    struct sim_message *message = way->head;
    way->head = message->next;
    if (!way->head)
        way->tail = &way->head;
    way->bytes -= message->blob ? message->blob->len : 0;
    return message;
}

static void way_put_back(struct sim_way *way, struct sim_message *message)
{
    message->next = way->head;
    way->head = message;
    if (!message->next)
        way->tail = &message->next;
    way->bytes += message->blob ? message->blob->len : 0;
}

static void way_empty(struct sim_way *way)
{
    sim_event_cancel(&way->event);
    while (way->head)
        sim_message_free(way_pop(way));
}

static void way_arm(struct sim_way *way)
{
    if (way->head && !sim_event_armed(&way->event))
        sim_event_arm(&way->event, way->head->due_ns);
}

static void link_unref(struct sim_link *link)
{
    if (--link->refs > 0)
        return;
    way_empty(&link->ways[0]);
    way_empty(&link->ways[1]);
    if (link->prev)
        link->prev->next = link->next;
    else
        net.links = link->next;
    if (link->next)
        link->next->prev = link->prev;
    net.n_links--;
    sim_alive--;
    free(link);
}

// Its first message does not arrive. Of a dial the listener sees nothing; of an end that has closed the other
// one gets no message.
static void swallow(struct sim_way *way)
{
    struct sim_link *link = way->link;
    struct sim_message *message = way_pop(way);
    enum sim_message_kind kind = message->kind;
    sim_message_free(message);
    way_arm(way);
    if (kind == SIM_CLOSED)
        link->gone[!way->to] = true;
    if (kind == SIM_DIAL) {
        link->owners[way->to] = NULL;
        link_unref(link);
    }
}

static void deliver(void *arg)
{
    struct sim_way *way = arg;
    struct sim_link *link = way->link;
    enum sim_side to = way->to;
    struct sim_message *message = way->head;
    if (message->kind != SIM_BROKEN && is_swallowed(link, (enum sim_side) !to)) {
        swallow(way);
        return;
    }
    if (message->kind != SIM_BROKEN && is_held(&link->places[!to], &link->places[to])) {
        way->stuck = true;
        return;
    }
    link->refs++;
    bool taken = true;
    way_pop(way); // who takes it may close this end, which empties the way
    net.frames += message->kind == SIM_FRAME;
    if (message->kind == SIM_DIAL) {
        struct sim_listener *listener = link->owners[to];
        link->owners[to] = NULL;
        listener->accept(listener, link);
    } else {
        taken = link->take[to](link->owners[to], message);
    }
    if (taken) {
        sim_message_free(message);
        way_arm(way);
        sim_link_resume(link, !to); // an end that did not read because its answers were not read
    } else {
        way_put_back(way, message);
        way->stuck = true;
    }
    link_unref(link);
}

static void push(struct sim_way *way, struct sim_message *message)
{
    struct sim_link *link = way->link;
    if (!link->owners[way->to]) { // the side is gone
        sim_message_free(message);
        return;
    }
    uint64_t due = sim_clock() + delay();
    way->last_ns = message->due_ns = due > way->last_ns ? due : way->last_ns;
    *way->tail = message;
    way->tail = &message->next;
    way->bytes += message->blob ? message->blob->len : 0;
    if (!way->stuck)
        way_arm(way);
}

// The host of an end that is gone says so to the other.
static void reset(struct sim_link *link, enum sim_side to)
{
    if (link->reset)
        return;
    link->reset = true;
    push(&link->ways[to], sim_message_new(SIM_BROKEN));
}

void sim_link_send(struct sim_link *link, enum sim_side from, struct sim_message *message)
{
    if (sim_loop_muted(link->loops[from])) {
        sim_message_free(message);
        return;
    }
    if (link->gone[!from]) {
        sim_message_free(message);
        if (!is_swallowed(link, (enum sim_side) !from))
            reset(link, from);
        return;
    }
    damage(message, &link->places[from], &link->places[!from]);
    push(&link->ways[!from], message);
}

void sim_link_close(struct sim_link *link, enum sim_side side)
{
    assert(link->owners[side]);
    link->owners[side] = NULL;
    // A delivery to this end may be under way: deliver() sees the way empty.
    way_empty(&link->ways[side]);
    if (!link->gone[side])
        push(&link->ways[!side], sim_message_new(SIM_CLOSED));
    link_unref(link);
}

bool sim_link_carries(const struct sim_link *link)
{
    return !is_held(&link->places[0], &link->places[1]) && !is_held(&link->places[1], &link->places[0]);
}

void sim_link_resume(struct sim_link *link, enum sim_side side)
{
    struct sim_way *way = &link->ways[side];
    if (!way->stuck)
        return;
    way->stuck = false;
    way_arm(way);
}

// ---- links ----------------------------------------------------------------------------------------------

static struct sim_listener *listener_at(const char *endpoint)
{
    for (struct sim_listener *l = net.listeners; l; l = l->next)
        if (!strcmp(l->endpoint, endpoint))
            return l;
    return NULL;
}

bool sim_net_listens(const char *endpoint)
{
    return listener_at(endpoint) != NULL;
}

struct sim_link *sim_link_dial(struct common_loop *loop, const char *endpoint, sim_take_fn take, void *owner)
{
    struct sim_listener *listener = listener_at(endpoint);
    if (!listener || sim_loop_muted(loop))
        return NULL;
    struct sim_place from = place_of(loop), to = place_of(listener->loop);
    if (is_down(&from, &to))
        return NULL;
    struct sim_link *link = calloc(1, sizeof *link);
    if (!link)
        abort();
    link->loops[SIM_DIALLER] = loop;
    link->loops[SIM_ACCEPTOR] = listener->loop;
    link->places[SIM_DIALLER] = from;
    link->places[SIM_ACCEPTOR] = to;
    link->owners[SIM_DIALLER] = owner;
    link->owners[SIM_ACCEPTOR] = listener; // until it has accepted
    link->take[SIM_DIALLER] = take;
    link->refs = 2;
    for (int side = 0; side < 2; side++) {
        struct sim_way *way = &link->ways[side];
        way->link = link;
        way->to = (enum sim_side)side;
        way->tail = &way->head;
        sim_event_init(&way->event, SIM_WIRE, link->loops[side], way, deliver, way);
    }
    link->next = net.links;
    if (link->next)
        link->next->prev = link;
    net.links = link;
    net.n_links++;
    sim_alive++;
    push(&link->ways[SIM_ACCEPTOR], sim_message_new(SIM_DIAL));
    return link;
}

static void way_break(struct sim_way *way)
{
    if (!way->link->owners[way->to])
        return;
    bool dialling = way->head && way->head->kind == SIM_DIAL;
    if (dialling) { // the listener has not seen it, and will not
        way->link->owners[way->to] = NULL;
        way_empty(way);
        link_unref(way->link);
        return;
    }
    way_empty(way);
    way->stuck = false;
    push(way, sim_message_new(SIM_BROKEN));
}

void sim_net_cut(const struct common_loop *a, const struct common_loop *b)
{
    for (struct sim_link *link = net.links, *next; link; link = next) {
        next = link->next;
        struct fault between = {.from = place_of(a), .to = place_of(b)};
        if (!concerns(&between, &link->places[0], &link->places[1]) &&
            !concerns(&between, &link->places[1], &link->places[0]))
            continue;
        link->refs++;
        way_break(&link->ways[SIM_DIALLER]);
        way_break(&link->ways[SIM_ACCEPTOR]);
        link_unref(link);
    }
}

void sim_net_half_open(const struct common_loop *told, const struct common_loop *other)
{
    struct sim_place at = place_of(told), far = place_of(other);
    for (struct sim_link *link = net.links, *next; link; link = next) {
        next = link->next;
        enum sim_side side = same_place(&link->places[SIM_DIALLER], &at) ? SIM_DIALLER : SIM_ACCEPTOR;
        if (link->gone[0] || link->gone[1] || !same_place(&link->places[side], &at) ||
            !same_place(&link->places[!side], &far))
            continue;
        link->gone[side] = true;
        link->refs++;
        way_break(&link->ways[side]);
        link_unref(link);
    }
}

void sim_net_old(const struct common_loop *loop, bool old)
{
    struct fault fault = {.from = place_of(loop), .old = true};
    fault_remove(fault);
    if (old)
        fault_add(fault);
}

void sim_net_part(const struct common_loop *a, const struct common_loop *b)
{
    fault_add((struct fault){.from = place_of(a), .to = place_of(b), .down = true});
    sim_net_cut(a, b);
}

void sim_net_mend(const struct common_loop *a, const struct common_loop *b)
{
    fault_remove((struct fault){.from = place_of(a), .to = place_of(b), .down = true});
}

static void resume_all(void) // what is held still gets stuck again
{
    for (struct sim_link *link = net.links; link; link = link->next) {
        sim_link_resume(link, SIM_DIALLER);
        sim_link_resume(link, SIM_ACCEPTOR);
    }
}

void sim_net_hold(const struct common_loop *from, const struct common_loop *to)
{
    fault_add((struct fault){.from = place_of(from), .to = place_of(to), .held = true});
}

void sim_net_release(const struct common_loop *from, const struct common_loop *to)
{
    fault_remove((struct fault){.from = place_of(from), .to = place_of(to), .held = true});
    resume_all();
}

void sim_net_swallow(const struct common_loop *from, const struct common_loop *to)
{
    fault_add((struct fault){.from = place_of(from), .to = place_of(to), .swallowed = true});
}

void sim_net_pass(const struct common_loop *from, const struct common_loop *to)
{
    fault_remove((struct fault){.from = place_of(from), .to = place_of(to), .swallowed = true});
}

void sim_net_swallow_links(const struct common_loop *from, const struct common_loop *to)
{
    struct fault between = {.from = place_of(from), .to = place_of(to)};
    for (struct sim_link *link = net.links; link; link = link->next)
        for (int side = 0; side < 2; side++)
            link->swallows[side] =
                link->swallows[side] || concerns(&between, &link->places[side], &link->places[!side]);
}

void sim_net_flip(const struct common_loop *from, const struct common_loop *to, uint32_t one_in)
{
    if (net.n_faults < FAULTS_MAX)
        fault_add((struct fault){.from = place_of(from), .to = place_of(to), .flips = one_in});
}

void sim_net_heal(void)
{
    net.n_faults = 0;
    for (struct sim_link *link = net.links; link; link = link->next)
        for (int side = 0; side < 2; side++)
            if (link->gone[side])
                reset(link, (enum sim_side) !side);
    resume_all();
}

// ---- listeners ------------------------------------------------------------------------------------------

bool sim_listener_add(struct sim_listener *listener)
{
    if (listener_at(listener->endpoint))
        return false;
    listener->next = net.listeners;
    net.listeners = listener;
    sim_alive++;
    return true;
}

void sim_listener_remove(struct sim_listener *listener)
{
    struct sim_listener **at = &net.listeners;
    while (*at != listener)
        at = &(*at)->next;
    *at = listener->next;
    sim_alive--;
    for (struct sim_link *link = net.links, *next; link; link = next) { // dials on their way to it
        next = link->next;
        if (link->owners[SIM_ACCEPTOR] == listener)
            sim_link_close(link, SIM_ACCEPTOR);
    }
}

uint16_t sim_port(void)
{
    return ++net.port;
}
