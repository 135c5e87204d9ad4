// SPDX-License-Identifier: Apache-2.0
// banyan-worker. Exit codes: 0 clean (also after SIGTERM or SIGINT), 2 usage, 3 cannot start, 4 the device is
// lost: to be started again, 5 with --drain: it ended while it still had chunks.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/cli/daemon.h"
#include "common/cli/options.h"
#include "common/http/http.h"
#include "common/log/log.h"
#include "common/loop/machine.h"
#include "common/loop/notify.h"
#include "common/memory/memory.h"
#include "common/tracing/tracer.h"
#include "proto/rpc/metrics.h"
#include "proto/rpc/rpc.h"
#include "worker/daemon/daemon.h"
#include "worker/daemon/health.h"
#include "worker/daemon/metrics.h"
#include "worker/daemon/worker.h"

#define TRACES_NS (2 * COMMON_NS_PER_S) // for so long it waits for the collector to take the last spans
#define GRACE_NS  (5 * COMMON_NS_PER_S)

#define LOST_GRACE_NS (1 * COMMON_NS_PER_S) // a device that hangs may never give its steps back

enum { EXIT_DEVICE = 4, EXIT_CHUNKS = 5 }; // beside those of common/cli/daemon.h

//     STARTING ──registered──▶ SERVING ──a signal, or the device is lost──────────────────▶ LEAVING
//         │                      └──a signal, --drain──▶ EMPTYING ──empty, time over, a signal,──▲▲
//         │                                                         the device is lost           │
//         └────────a signal, or the device is lost───────────────────────────────────────────────┘
enum daemon_state { DAEMON_STARTING, DAEMON_SERVING, DAEMON_EMPTYING, DAEMON_LEAVING, DAEMON_STATES };

#define TO(state) (1u << DAEMON_##state)
static const struct common_machine daemon_machine = {
    .name = "daemon",
    .n = DAEMON_STATES,
    .states = {"starting", "serving", "emptying", "leaving"},
    .next = {[DAEMON_STARTING] = TO(SERVING) | TO(LEAVING),
             [DAEMON_SERVING] = TO(EMPTYING) | TO(LEAVING),
             [DAEMON_EMPTYING] = TO(LEAVING),
             [DAEMON_LEAVING] = 0},
};
#undef TO

struct daemon {
    struct common_loop *loop;
    struct worker *worker;
    struct worker_daemon_options options;
    struct common_timer *patience;
    struct common_notify *notify;
    struct common_http *http;
    enum daemon_state state;
    int exit_code;
};

static void daemon_set_state(struct daemon *d, enum daemon_state state)
{
    common_machine_move(&daemon_machine, d->state, state);
    d->state = state;
}

static void traces_left(void *arg)
{
    common_loop_stop(arg);
}

static void daemon_parted(void *arg)
{
    struct daemon *d = arg;
    common_tracer_finish(d->options.config.tracer, TRACES_NS, traces_left, d->loop);
}

static void daemon_left(void *arg)
{
    struct daemon *d = arg;
    if (d->patience) // no step is in hand: what is left to wait for has limits of its own
        common_timer_stop(d->patience);
    if (d->exit_code != 0 || worker_say_farewell(d->worker, daemon_parted, d) != COMMON_OK)
        daemon_parted(d);
}

static void daemon_leave(struct daemon *d)
{
    if (d->state == DAEMON_LEAVING)
        return;
    daemon_set_state(d, DAEMON_LEAVING);
    common_notify_leaving(d->notify, "leaving");
    if (worker_drain(d->worker, GRACE_NS, daemon_left, d) != COMMON_OK)
        _exit(d->exit_code); // no memory to leave in order
}

static void daemon_emptied(void *arg, bool empty)
{
    struct daemon *d = arg;
    if (d->state != DAEMON_EMPTYING)
        return;
    if (empty)
        common_log_info("this worker is drained: stopping");
    else
        d->exit_code = EXIT_CHUNKS;
    daemon_leave(d);
}

static void warn_of_what_goes(const struct daemon *d)
{
    char bytes[32];
    if (worker_unsaved_bytes(d->worker))
        common_log_warn("%s of keys and values end with this process, and sessions lose what no other worker "
                        "holds: --drain moves them to others first, --store DIR keeps them",
                        common_format_bytes(worker_unsaved_bytes(d->worker), bytes, sizeof bytes));
}

static void daemon_signalled(void *arg)
{
    struct daemon *d = arg;
    if (d->state == DAEMON_SERVING && d->options.drain) {
        daemon_set_state(d, DAEMON_EMPTYING);
        common_notify_leaving(d->notify, "stopping once its chunks have moved to other workers");
        if (worker_empty(d->worker, d->options.drain_ns, daemon_emptied, d) == COMMON_OK)
            return;
    }
    if (d->state == DAEMON_EMPTYING) {
        common_log_warn("this worker stops before it is drained");
        d->exit_code = EXIT_CHUNKS;
    }
    warn_of_what_goes(d);
    daemon_leave(d);
}

static void daemon_reload(void *arg)
{
    struct daemon *d = arg;
    common_notify_reloading(d->notify);
    worker_daemon_reload(&d->options, d->worker);
    common_notify_reloaded(d->notify);
}

static void lost_patience(void *arg)
{
    (void)arg;
    common_log_error("the device does not finish its steps: exiting without them");
    _exit(EXIT_DEVICE);
}

// The device is lost: the steps in hand fail, the link to the coordinator closes, a supervisor starts us
// again.
static void daemon_failed(void *arg, const struct common_error *err)
{
    struct daemon *d = arg;
    (void)err; // was logged
    d->exit_code = EXIT_DEVICE;
    if (common_timer_new(d->loop, lost_patience, d, &d->patience) != COMMON_OK)
        _exit(EXIT_DEVICE);
    common_timer_start(d->patience, 2 * LOST_GRACE_NS, false);
    if (d->state == DAEMON_LEAVING)
        return;
    daemon_set_state(d, DAEMON_LEAVING);
    if (worker_drain(d->worker, LOST_GRACE_NS, daemon_left, d) != COMMON_OK)
        _exit(EXIT_DEVICE);
}

static void daemon_registered(void *arg)
{
    struct daemon *d = arg;
    struct common_error err;
    if (d->state != DAEMON_STARTING) // registered again, or leaving
        return;
    daemon_set_state(d, DAEMON_SERVING);
    common_notify_ready(d->notify, "serving: the coordinator has accepted this worker");
    if (!d->options.daemon.ready_file)
        return;
    if (worker_daemon_write_ready(d->options.daemon.ready_file, &d->options.config,
                                  worker_endpoint(d->worker), worker_edge_endpoint(d->worker),
                                  common_http_address(d->http), &err) != COMMON_OK)
        common_log_error("%s", err.message);
}

static int put_metrics(void *arg, const struct common_http_request *request, struct common_metrics *table)
{
    (void)request;
    return worker_metrics_put(arg, table) ? 200 : 503;
}

static int run_daemon(struct daemon *d)
{
    struct common_error err;
    struct common_signals *signals = NULL;
    bool insecure = d->options.daemon.http_insecure || d->options.config.insecure;
    int code = COMMON_DAEMON_START;
    if (common_loop_new(&d->loop) != COMMON_OK) {
        common_log_error("cannot start: the system has no memory or descriptors for an event loop");
        return code;
    }
    // Clients and strangers at both endpoints; parents and children, and files.
    common_daemon_raise_files(d->options.config.max_clients + 2 * PROTO_STRANGERS_MAX + 1024);
    d->options.config.registered = daemon_registered;
    d->options.config.registered_arg = d;
    d->options.config.failed = daemon_failed;
    d->options.config.failed_arg = d;
    if (common_signals_new(d->loop, daemon_signalled, daemon_reload, d, &signals) != COMMON_OK) {
        common_log_error("cannot start: no memory for signals");
    } else if ((d->options.daemon.stop_on_eof && common_signals_watch_input(signals, &err) != COMMON_OK) ||
               common_notify_new(d->loop, &d->notify, &err) != COMMON_OK ||
               proto_http_new(d->loop, &d->options.daemon, insecure, &d->http, &err) != COMMON_OK ||
               common_daemon_trace(&d->options.daemon, d->loop, "banyan-worker", d->options.config.name,
                                   &d->options.config.tracer, &err) != COMMON_OK ||
               worker_new(d->loop, &d->options.config, &d->worker, &err) != COMMON_OK ||
               common_daemon_harden(&d->options.daemon, "banyan-worker",
                                    d->options.device || d->options.engine ? COMMON_HARDEN_MODULES
                                                                           : COMMON_HARDEN_PLACED,
                                    &err) != COMMON_OK) {
        common_log_error("cannot start: %s", err.message);
    } else {
        common_http_serve(d->http, &(struct common_http_pages){.live = worker_health_live,
                                                               .ready = worker_health_ready,
                                                               .metrics = put_metrics,
                                                               .daemon = d->worker});
        // Not only when it is accepted: it may wait for its coordinator for as long as that is away.
        common_notify_ready(d->notify, "waiting for the coordinator");
        common_loop_run(d->loop);
        code = d->exit_code;
    }
    common_timer_free(d->patience);
    common_http_free(d->http);
    worker_free(d->worker);
    common_tracer_free(d->options.config.tracer);
    common_notify_free(d->notify);
    common_signals_free(signals);
    common_loop_free(d->loop);
    return code;
}

int main(int argc, char **argv)
{
    static struct daemon d;
    struct common_error err;
    common_memory_keep();
    common_memory_wipe();
    common_log_init("banyan-worker");
    enum common_code code = worker_daemon_options_parse(argc, argv, &d.options, &err);
    if (code != COMMON_OK) {
        worker_device_close(d.options.device);
        worker_place_free(d.options.place);
        common_daemon_fini(&d.options.daemon);
        return common_daemon_refuse("banyan-worker", code, &err); // an engine that failed is closed
    }
    if (d.options.daemon.ready_file)
        unlink(d.options.daemon.ready_file);  // an old one must not speak for this process
    worker_place_bind_other(d.options.place); // before there are threads that inherit it
    int exit_code = run_daemon(&d);
    worker_place_free(d.options.place);
    // The engine first: it may have operations on the device, and may end the process
    worker_engine_close(d.options.engine, exit_code);
    worker_device_close(d.options.device); // its memory has been given back
    explicit_bzero(&d.options.config.secret, sizeof d.options.config.secret);
    common_daemon_fini(&d.options.daemon); // its strings are no longer owned
    return exit_code;
}
