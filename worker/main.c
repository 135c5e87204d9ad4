// SPDX-License-Identifier: Apache-2.0
// banyan-worker. Exit codes: 0 clean (also after SIGTERM or SIGINT), 2 usage, 3 cannot start, 4 the device is
// lost: to be started again.
#include <errno.h>
#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/memory.h"
#include "worker/daemon.h"
#include "worker/worker.h"

#define GRACE_NS (5 * COMMON_NS_PER_S)

#define LOST_GRACE_NS (1 * COMMON_NS_PER_S) // a device that hangs may never give its steps back

enum { EXIT_CLEAN = 0, EXIT_USAGE = 2, EXIT_START = 3, EXIT_DEVICE = 4 };

struct daemon {
    struct common_loop *loop;
    struct worker *worker;
    struct worker_daemon_options options;
    struct common_timer *patience;
    bool leaving, ready;
    int exit_code;
};

static void left(void *arg)
{
    struct daemon *d = arg;
    common_loop_stop(d->loop);
}

static void on_signal(evutil_socket_t fd, short what, void *arg)
{
    struct daemon *d = arg;
    (void)what;
    if (d->leaving)
        return;
    d->leaving = true;
    common_log_info("leaving signal=%s", (int)fd == SIGTERM ? "TERM" : "INT");
    if (worker_drain(d->worker, GRACE_NS, left, d) != COMMON_OK)
        _exit(EXIT_CLEAN); // no memory to leave in order
}

static void lost_patience(void *arg)
{
    (void)arg;
    common_log_error("the device holds on to its steps: leaving without them");
    _exit(EXIT_DEVICE);
}

// The device is lost: the steps in hand fail, the link to the coordinator closes, a supervisor starts us
// again.
static void failed(void *arg, const struct common_error *err)
{
    struct daemon *d = arg;
    (void)err; // was logged
    d->exit_code = EXIT_DEVICE;
    if (common_timer_new(d->loop, lost_patience, d, &d->patience) != COMMON_OK)
        _exit(EXIT_DEVICE);
    common_timer_start(d->patience, 2 * LOST_GRACE_NS, false);
    if (d->leaving)
        return;
    d->leaving = true;
    if (worker_drain(d->worker, LOST_GRACE_NS, left, d) != COMMON_OK)
        _exit(EXIT_DEVICE);
}

static void registered(void *arg)
{
    struct daemon *d = arg;
    struct common_error err;
    if (d->ready || !d->options.ready_file)
        return;
    d->ready = true;
    if (worker_daemon_write_ready(d->options.ready_file, &d->options.config, worker_endpoint(d->worker),
                                  worker_edge_endpoint(d->worker), &err) != COMMON_OK)
        common_log_error("%s", err.message);
}

static int run(struct daemon *d)
{
    struct common_error err;
    int code = EXIT_START;
    struct event *term = NULL, *interrupt = NULL;
    signal(SIGPIPE, SIG_IGN);
    if (common_loop_new(&d->loop) != COMMON_OK) {
        common_log_error("cannot start: the system has no memory or descriptors for an event loop");
        return EXIT_START;
    }
    term = evsignal_new(common_loop_base(d->loop), SIGTERM, on_signal, d);
    interrupt = evsignal_new(common_loop_base(d->loop), SIGINT, on_signal, d);
    d->options.config.registered = registered;
    d->options.config.registered_arg = d;
    d->options.config.failed = failed;
    d->options.config.failed_arg = d;
    if (!term || !interrupt || event_add(term, NULL) != 0 || event_add(interrupt, NULL) != 0) {
        common_log_error("cannot start: no memory for signals");
    } else if (worker_new(d->loop, &d->options.config, &d->worker, &err) != COMMON_OK) {
        common_log_error("cannot start: %s", err.message);
    } else {
        common_loop_run(d->loop);
        code = d->exit_code;
    }
    common_timer_free(d->patience);
    worker_free(d->worker);
    if (term)
        event_free(term);
    if (interrupt)
        event_free(interrupt);
    common_loop_free(d->loop);
    return code;
}

int main(int argc, char **argv)
{
    static struct daemon d;
    struct common_error err;
    common_memory_keep();
    common_log_init("banyan-worker");
    enum common_code code = worker_daemon_options_parse(argc, argv, &d.options, &err);
    if (code == COMMON_CANCELLED)
        return EXIT_CLEAN; // --help, --version
    if (code != COMMON_OK) {
        worker_device_close(d.options.device);
        worker_place_free(d.options.place);
        fprintf(stderr, "banyan-worker: %s\n", err.message);
        return code == COMMON_INVALID_ARGUMENT ? EXIT_USAGE : EXIT_START; // an engine that failed is closed
    }
    if (d.options.ready_file)
        unlink(d.options.ready_file);         // an old one must not speak for this process
    worker_place_bind_other(d.options.place); // before there are threads that inherit it
    int exit_code = run(&d);
    worker_place_free(d.options.place);
    // The engine first: it may have operations on the device, and may end the process
    worker_engine_close(d.options.engine, exit_code);
    worker_device_close(d.options.device); // its memory has been given back
    return exit_code;
}
