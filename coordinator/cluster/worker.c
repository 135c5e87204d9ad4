// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/worker.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "coordinator/cluster/gather.h"
#include "reduce/plan.h"

// ---- states -------------------------------------------------------------------------------------

#define TO(state) (1u << COORDINATOR_WORKER_##state)
const struct common_machine coordinator_worker_machine = {
    .name = "worker",
    .n = COORDINATOR_WORKER_STATES,
    .states = {"absent", "joining", "active", "suspect", "lost"},
    .next =
        {
            [COORDINATOR_WORKER_ABSENT] = TO(JOINING),
            [COORDINATOR_WORKER_JOINING] = TO(ACTIVE) | TO(LOST),
            [COORDINATOR_WORKER_ACTIVE] = TO(SUSPECT) | TO(LOST),
            [COORDINATOR_WORKER_SUSPECT] = TO(JOINING) | TO(LOST),
            [COORDINATOR_WORKER_LOST] = TO(JOINING),
        },
};

const char *coordinator_worker_state_name(enum coordinator_worker_state state)
{
    return coordinator_worker_machine.states[state];
}

void coordinator_worker_set_state(struct coordinator_worker *w, enum coordinator_worker_state state)
{
    struct coordinator_cluster *cluster = w->cluster;
    common_machine_move(&coordinator_worker_machine, w->state, state);
    bool was = coordinator_worker_active(w);
    w->state = state;
    if (state == COORDINATOR_WORKER_LOST) { // who waited for it waits no more
        cluster->changes++;
        coordinator_turn_mark(&cluster->core->turn, COORDINATOR_PHASE_SESSIONS);
    }
    if (was == coordinator_worker_active(w))
        return;
    if (!was)
        w->active_ns = common_clock_ns();
    cluster->changes++; // what could be computed a moment ago cannot now, or the other way round
    if (common_list_empty(&w->changed))
        common_list_push(&cluster->changed, &w->changed);
    coordinator_turn_mark(&cluster->core->turn, COORDINATOR_PHASE_WORKERS);
    coordinator_turn_mark(&cluster->core->turn, COORDINATOR_PHASE_SESSIONS);
}

bool coordinator_worker_listed(const struct coordinator_worker *w, uint64_t session)
{
    return w->listed >= session && !coordinator_quarantine_has(&w->arriving, session) &&
           !coordinator_quarantine_has(&w->quarantine, session);
}

void coordinator_worker_dirty(struct coordinator_worker *w)
{
    if (w->state == COORDINATOR_WORKER_JOINING)
        w->dirty = true;
}

// ---- the table ----------------------------------------------------------------------------------

void coordinator_worker_forget(struct coordinator_worker *w)
{
    w->cluster->workers[w->slot] = NULL;
    coordinator_quarantine_fini(&w->quarantine);
    coordinator_quarantine_fini(&w->arriving);
    common_list_remove(&w->changed);
    common_list_remove(&w->joining);
    common_timer_free(w->grace);
    free(w->limits);
    free(w);
}

bool coordinator_worker_gone(const struct coordinator_worker *w)
{
    return w->state == COORDINATOR_WORKER_LOST || w->state == COORDINATOR_WORKER_ABSENT;
}

uint64_t coordinator_worker_said(const struct coordinator_worker *w, uint64_t bytes)
{
    return coordinator_worker_gone(w) ? 0 : bytes;
}

// One whose change is still to be drained has plans that name it.
bool coordinator_worker_idle(const struct coordinator_worker *w)
{
    return coordinator_worker_gone(w) && !w->chunks && !w->members && !w->visitors && !w->quarantine.n &&
           common_list_empty(&w->changed);
}

void coordinator_worker_strike(struct coordinator_worker *w)
{
    assert(coordinator_worker_idle(w));
    coordinator_worker_forget(w);
}

// A slot for a new name: a free one, else that of a worker that is gone and that no session needs.
static uint32_t free_slot(struct coordinator_cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->n_workers; i++)
        if (!cluster->workers[i])
            return i;
    if (cluster->n_workers < cluster->core->options.max_workers)
        return cluster->n_workers++;
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        if (coordinator_worker_idle(cluster->workers[i])) {
            coordinator_worker_forget(cluster->workers[i]);
            return i;
        }
    }
    return UINT32_MAX;
}

struct coordinator_worker *coordinator_worker_find(const struct coordinator_cluster *cluster,
                                                   const char *name)
{
    for (uint32_t i = 0; i < cluster->n_workers; i++)
        if (cluster->workers[i] && !strcmp(cluster->workers[i]->name, name))
            return cluster->workers[i];
    return NULL;
}

struct coordinator_worker *coordinator_worker_named(struct coordinator_cluster *cluster, const char *name)
{
    struct coordinator_worker *known = coordinator_worker_find(cluster, name);
    if (known)
        return known;
    uint32_t slot = free_slot(cluster);
    if (slot == UINT32_MAX)
        return NULL;
    struct coordinator_worker *w = coordinator_alloc(sizeof(*w));
    w->cluster = cluster;
    w->slot = slot;
    common_list_init(&w->changed);
    common_list_init(&w->joining);
    common_list_init(&w->repairs);
    for (uint32_t i = 0; i < WORKER_WAITING; i++)
        common_list_init(&w->waiting[i]);
    snprintf(w->name, sizeof(w->name), "%s", name);
    cluster->workers[slot] = w;
    return w;
}

void coordinator_worker_member(const struct coordinator_worker *w, struct reduce_member *out)
{
    memset(out, 0, sizeof(*out));
    memcpy(out->name, w->name, sizeof(out->name));
    memcpy(out->host, w->host, sizeof(out->host));
    memcpy(out->kernel, w->kernel, sizeof(out->kernel));
    out->bandwidth = coordinator_worker_speed(w);
    out->cores = w->cores;
}

// ---- calls --------------------------------------------------------------------------------------

struct unmade_call { // that could not be made: it comes back at the end of the turn
    struct coordinator_completion completion;
    proto_reply_fn done;
    void *arg;
    enum common_code code;
    char text[COMMON_ERROR_BYTES];
};

static void call_unmade(void *arg)
{
    struct unmade_call *call = arg;
    struct proto_reply reply = {.code = call->code, .text = call->text};
    call->done(call->arg, &reply);
    free(call);
}

void coordinator_worker_call(struct coordinator_worker *w, uint32_t method, const ProtobufCMessage *body,
                             proto_reply_fn done, void *arg)
{
    struct coordinator_core *core = w->cluster->core;
    struct proto_call call = {.method = method,
                              .body = body,
                              .deadline_ns = common_clock_after(COORDINATOR_CONTROL_NS),
                              .done = done,
                              .arg = arg};
    struct common_error err = {.message = "no connection to the worker"};
    enum common_code code = w->channel && !core->stopping ? proto_channel_call(w->channel, &call, NULL, &err)
                                                          : COMMON_UNAVAILABLE;
    if (code == COMMON_OK)
        return;
    struct unmade_call *unmade = coordinator_alloc(sizeof(*unmade));
    *unmade = (struct unmade_call){
        .completion = {.fn = call_unmade, .arg = unmade}, .done = done, .arg = arg, .code = code};
    snprintf(unmade->text, sizeof(unmade->text), "%s", err.message);
    coordinator_turn_complete(&core->turn, &unmade->completion);
}

static void gathered(void *arg, const struct proto_reply *reply)
{
    coordinator_gather_finish(arg, reply->code, reply->text);
}

void coordinator_worker_call_gather(struct coordinator_worker *w, uint32_t method,
                                    const ProtobufCMessage *body, struct coordinator_gather *gather)
{
    coordinator_gather_add(gather);
    coordinator_worker_call(w, method, body, gathered, gather);
}
