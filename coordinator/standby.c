// SPDX-License-Identifier: Apache-2.0
#include "coordinator/standby.h"

#include <inttypes.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/random.h"
#include "coordinator/admission.h"
#include "coordinator/sessions/load.h"
#include "coordinator/sessions/restored.h"
#include "coordinator/sessions/table.h"
#include "coordinator/state.h"
#include "coordinator/store/lease.h"
#include "coordinator/store/store.h"
#include "proto/status.h"

struct coordinator_standby {
    struct coordinator *c;
    struct coordinator_lease_watch watch;
    struct common_timer *timer; // standing by: the next look; active: the lease is renewed
    bool over, watched;
};

static void end(struct coordinator_standby *s, enum common_code code, const char *why)
{
    if (s->over)
        return;
    s->over = true;
    common_timer_stop(s->timer);
    if (s->c->core.options.over)
        s->c->core.options.over(s->c->core.options.arg, code, why);
}

bool coordinator_serves(void *arg)
{
    struct coordinator *c = arg;
    struct coordinator_standby *s = c->standby;
    if (!s || !c->store) // it stands by, and refuses
        return true;
    uint64_t now = common_clock_ns();
    if (s->over || coordinator_store_valid(c->store, now))
        return !s->over;
    if (coordinator_store_renew(c->store, now)) // this process, or its disk, was away
        return true;
    end(s, COMMON_FAILED_PRECONDITION, "another coordinator has taken the store over, or may have");
    return false;
}

static void renew(void *arg)
{
    struct coordinator_standby *s = arg;
    if (!coordinator_store_renew(s->c->store, common_clock_ns()))
        end(s, COMMON_FAILED_PRECONDITION, "another coordinator has taken the store over, or may have");
    else if (!s->watched && coordinator_store_watched(s->c->store)) {
        s->watched = true;
        coordinator_tell(&s->c->core, COORDINATOR_STANDBY, INFO, "another coordinator stands by");
    }
}

static enum common_code open_store(struct coordinator_standby *s, struct common_error *err)
{
    struct coordinator *c = s->c;
    struct coordinator_core *core = &c->core;
    struct coordinator_loader loader = {.sessions = &c->sessions, .err = err};
    struct coordinator_store_reader reader;
    coordinator_sessions_reader(&loader, &reader);
    coordinator_tenants_reader(&c->tenants, &reader);
    coordinator_quotas_reader(&c->quotas, &reader);
    enum common_code code =
        coordinator_store_open(core->options.store_path, core->options.store_sync_full, core->loop, &reader,
                               core->options.standby ? &s->watch : NULL, &c->store, err);
    if (code != COMMON_OK)
        return code;
    c->cluster.store = c->sessions.store = c->tenants.store = c->store;
    core->term = coordinator_store_term(c->store);
    coordinator_events_set_term(core->events, core->term);
    c->cluster.lives = (uint32_t)core->term << 16;
    coordinator_sessions_restored(&c->sessions);
    coordinator_restored_withhold(&c->sessions);
    return COMMON_OK;
}

static enum common_code set_timer(struct coordinator_standby *s, common_loop_fn fn, uint64_t every_ns,
                                  struct common_error *err)
{
    struct common_timer *timer;
    if (common_timer_new(s->c->core.loop, fn, s, &timer) != COMMON_OK)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    common_timer_free(s->timer);
    s->timer = timer;
    common_timer_start(timer, every_ns, true);
    return COMMON_OK;
}

static void look(void *arg)
{
    struct coordinator_standby *s = arg;
    struct coordinator_core *core = &s->c->core;
    struct common_error err = {0};
    uint64_t from = common_clock_ns();
    enum common_code code = open_store(s, &err);
    if (code == COMMON_IN_PROGRESS)
        return;
    if (code == COMMON_OK)
        code = set_timer(s, renew, COORDINATOR_LEASE_RENEW_NS, &err);
    if (code != COMMON_OK) {
        end(s, code == COMMON_FAILED_PRECONDITION ? COMMON_UNAVAILABLE : code, err.message);
        return;
    }
    core->standing_by = false;
    coordinator_admission_active(s->c);
    core->started_ns = common_clock_ns(); // workers have their time to come from now on
    coordinator_presence_init(&core->presence, core->presence.interval_ns, core->started_ns);
    coordinator_tell(core, COORDINATOR_TOOK_OVER, WARN,
                     "took the store over: active term=%" PRIu64 " sessions=%u loaded_ms=%" PRIu64,
                     core->term, s->c->sessions.n, (core->started_ns - from) / COMMON_NS_PER_MS);
    if (core->options.active)
        core->options.active(core->options.arg);
}

enum common_code coordinator_standby_new(struct coordinator *c, struct common_error *err)
{
    struct coordinator_standby *s = coordinator_alloc(sizeof(*s));
    s->c = c;
    c->standby = s;
    while (!s->watch.self)
        if (!common_random(&s->watch.self, sizeof(s->watch.self)))
            return common_error_set(err, COMMON_UNAVAILABLE, "the system gives no random bytes");
    enum common_code code = open_store(s, err);
    if (code == COMMON_IN_PROGRESS) {
        c->core.standing_by = true;
        return set_timer(s, look, COORDINATOR_LEASE_WATCH_NS, err);
    }
    return code == COMMON_OK ? set_timer(s, renew, COORDINATOR_LEASE_RENEW_NS, err) : code;
}

void coordinator_standby_stop(struct coordinator_standby *s)
{
    if (s && s->timer)
        common_timer_stop(s->timer);
}

void coordinator_standby_free(struct coordinator_standby *s)
{
    if (!s)
        return;
    common_timer_free(s->timer);
    free(s);
}

void coordinator_standby_refuse(struct proto_request *request)
{
    struct proto_status status;
    proto_status_set(&status, COMMON_UNAVAILABLE, "STANDBY",
                     "this coordinator stands by: another one is active; name both endpoints");
    proto_request_fail_status(request, &status);
}
