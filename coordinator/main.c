// SPDX-License-Identifier: Apache-2.0
// banyan-coordinator. Exit codes: 0 clean (also after SIGTERM or SIGINT), 2 usage, 3 cannot start.
#include <unistd.h>

#include "common/base/clock.h"
#include "common/cli/daemon.h"
#include "common/http/http.h"
#include "common/log/log.h"
#include "common/loop/notify.h"
#include "common/memory/memory.h"
#include "common/tracing/tracer.h"
#include "coordinator/admission.h"
#include "coordinator/coordinator.h"
#include "coordinator/daemon.h"
#include "coordinator/dashboard/dashboard.h"
#include "coordinator/health.h"
#include "coordinator/metrics.h"
#include "coordinator/store/restore.h"
#include "proto/rpc/metrics.h"
#include "proto/rpc/rpc.h"

#define TRACES_NS (2 * COMMON_NS_PER_S) // for so long it waits for the collector to take the last spans

struct daemon {
    struct common_loop *loop;
    struct coordinator *coordinator;
    struct common_http *http;
    struct coordinator_dashboard *dashboard;
    struct common_notify *notify;
    struct common_tracer *tracer;
    struct coordinator_daemon_options options;
    bool leaving;
};

static void remove_ready(void *arg)
{
    struct daemon *d = arg;
    if (d->options.daemon.ready_file)
        unlink(d->options.daemon.ready_file);
}

static void left(void *arg)
{
    common_loop_stop(arg);
}

static void leave(void *arg)
{
    struct daemon *d = arg;
    if (d->leaving) // its last spans are under way
        return;
    d->leaving = true;
    common_notify_leaving(d->notify, "leaving");
    remove_ready(d);           // now: once the store is given up, it may be the next one's
    common_http_free(d->http); // what it shows goes
    d->http = NULL;
    coordinator_stop(d->coordinator);
    common_tracer_finish(d->tracer, TRACES_NS, left, d->loop);
}

static void reload(void *arg)
{
    struct daemon *d = arg;
    common_notify_reloading(d->notify);
    coordinator_daemon_reload(&d->options, d->coordinator);
    common_notify_reloaded(d->notify);
}

static enum common_code write_ready(struct daemon *d, struct common_error *err)
{
    const char *path = d->options.daemon.ready_file;
    return path ? coordinator_daemon_write_ready(path, d->coordinator, common_http_address(d->http), err)
                : COMMON_OK;
}

static int put_metrics(void *arg, const struct common_http_request *request, struct common_metrics *table)
{
    struct proto_identity who;
    if (!coordinator_admit_http(arg, request, &who))
        return 401;
    return coordinator_metrics_put(arg, &who, table) ? 200 : 503;
}

static enum common_code start_serving(struct daemon *d, struct common_error *err)
{
    const struct coordinator_options *config = &d->options.config;
    // Over streams and over nng; of each worker its link, the one to it, and one more while it starts again.
    common_daemon_raise_files(2 * ((uint64_t)config->max_clients + PROTO_STRANGERS_MAX) +
                              3 * (uint64_t)config->max_workers + COMMON_HTTP_CONNECTIONS + 64);
    d->options.config.held = remove_ready; // an old one must not speak for this process
    d->options.config.arg = d;
    bool insecure = d->options.daemon.http_insecure || config->insecure;
    enum common_code code = proto_http_new(d->loop, &d->options.daemon, insecure, &d->http, err);
    if (code == COMMON_OK)
        code = common_daemon_trace(&d->options.daemon, d->loop, "banyan-coordinator", config->cluster,
                                   &d->tracer, err);
    d->options.config.tracer = d->tracer;
    if (code == COMMON_OK)
        code = coordinator_new(d->loop, &d->options.config, &d->coordinator, err);
    if (code != COMMON_OK)
        return code;
    d->dashboard = d->http ? coordinator_dashboard_new(d->coordinator, common_http_address(d->http)) : NULL;
    if (d->http && !d->dashboard)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for the dashboard");
    common_http_serve(d->http, &(struct common_http_pages){.live = coordinator_health_live,
                                                           .ready = coordinator_health_ready,
                                                           .metrics = put_metrics,
                                                           .answer = coordinator_dashboard_answer,
                                                           .daemon = d->coordinator,
                                                           .answerer = d->dashboard});
    code = common_daemon_harden(&d->options.daemon, "banyan-coordinator", COMMON_HARDEN_PLAIN, err);
    return code == COMMON_OK ? write_ready(d, err) : code;
}

static enum common_daemon_exit run_daemon(struct daemon *d)
{
    struct common_error err = {0};
    struct common_signals *signals = NULL;
    enum common_daemon_exit code = COMMON_DAEMON_START;
    if (common_loop_new(&d->loop) != COMMON_OK) {
        common_log_error("cannot start: the system has no memory or descriptors for an event loop");
        return code;
    }
    if (common_signals_new(d->loop, leave, reload, d, &signals) != COMMON_OK) {
        common_log_error("cannot start: no memory for signals");
    } else if ((d->options.daemon.stop_on_eof && common_signals_watch_input(signals, &err) != COMMON_OK) ||
               common_notify_new(d->loop, &d->notify, &err) != COMMON_OK ||
               start_serving(d, &err) != COMMON_OK) {
        common_log_error("cannot start: %s", err.message);
        if (d->coordinator)
            coordinator_stop(d->coordinator);
    } else {
        common_notify_ready(d->notify, "serving");
        common_loop_run(d->loop);
        code = COMMON_DAEMON_CLEAN;
    }
    common_http_free(d->http);
    coordinator_dashboard_free(d->dashboard);
    coordinator_free(d->coordinator);
    common_tracer_free(d->tracer);
    common_notify_free(d->notify);
    common_signals_free(signals);
    common_loop_free(d->loop);
    return code;
}

static enum common_daemon_exit restore(const struct coordinator_daemon_options *options)
{
    struct common_error err;
    if (coordinator_restore(options->restore, options->config.store_path, &err) != COMMON_OK) {
        common_log_error("%s", err.message);
        return COMMON_DAEMON_START;
    }
    common_log_info("restored: start the coordinator on this store, and run 'banyanctl accept' when all "
                    "workers are back backup=%s store=%s",
                    options->restore, options->config.store_path);
    return COMMON_DAEMON_CLEAN;
}

int main(int argc, char **argv)
{
    static struct daemon d;
    struct common_error err;
    common_memory_keep();
    common_memory_wipe();
    common_log_init("banyan-coordinator");
    enum common_code code = coordinator_daemon_options_parse(argc, argv, &d.options, &err);
    if (code != COMMON_OK) {
        coordinator_daemon_options_free(&d.options);
        return common_daemon_refuse("banyan-coordinator", code, &err);
    }
    if (d.options.restore) {
        enum common_daemon_exit restored = restore(&d.options);
        coordinator_daemon_options_free(&d.options);
        return restored;
    }
    enum common_daemon_exit exit_code = run_daemon(&d);
    coordinator_daemon_options_free(&d.options);
    return exit_code;
}
