// SPDX-License-Identifier: Apache-2.0
// banyan-coordinator. Exit codes: 0 clean (also after SIGTERM or SIGINT), 2 usage, 3 cannot start.
#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "common/memory.h"
#include "coordinator/coordinator.h"
#include "coordinator/daemon.h"
#include "coordinator/http.h"

enum { EXIT_CLEAN = 0, EXIT_USAGE = 2, EXIT_START = 3 };

struct daemon {
    struct common_loop *loop;
    struct coordinator *coordinator;
    struct coordinator_http *http;
    struct coordinator_daemon_options options;
};

static void on_signal(evutil_socket_t fd, short what, void *arg)
{
    struct daemon *d = arg;
    (void)what;
    common_log_info("leaving signal=%s", (int)fd == SIGTERM ? "TERM" : "INT");
    coordinator_stop(d->coordinator);
    common_loop_stop(d->loop);
}

static enum common_code start(struct daemon *d, struct common_error *err)
{
    enum common_code code = coordinator_new(d->loop, &d->options.config, &d->coordinator, err);
    if (code == COMMON_OK && d->options.http)
        code =
            coordinator_http_new(d->coordinator, d->options.http, d->options.config.insecure, &d->http, err);
    if (code == COMMON_OK && d->options.ready_file)
        code = coordinator_daemon_write_ready(d->options.ready_file, d->coordinator, err);
    return code;
}

static int run(struct daemon *d)
{
    struct common_error err = {0};
    int code = EXIT_START;
    signal(SIGPIPE, SIG_IGN);
    if (common_loop_new(&d->loop) != COMMON_OK) {
        common_log_error("cannot start: the system has no memory or descriptors for an event loop");
        return EXIT_START;
    }
    struct event *term = evsignal_new(common_loop_base(d->loop), SIGTERM, on_signal, d);
    struct event *interrupt = evsignal_new(common_loop_base(d->loop), SIGINT, on_signal, d);
    if (!term || !interrupt || event_add(term, NULL) || event_add(interrupt, NULL)) {
        common_log_error("cannot start: no memory for signals");
    } else if (start(d, &err) != COMMON_OK) {
        common_log_error("cannot start: %s", err.message);
        if (d->coordinator)
            coordinator_stop(d->coordinator);
    } else {
        common_loop_run(d->loop);
        code = EXIT_CLEAN;
    }
    coordinator_http_free(d->http);
    coordinator_free(d->coordinator);
    if (term)
        event_free(term);
    if (interrupt)
        event_free(interrupt);
    common_loop_free(d->loop);
    if (d->options.ready_file && code == EXIT_CLEAN)
        unlink(d->options.ready_file);
    return code;
}

int main(int argc, char **argv)
{
    static struct daemon d;
    struct common_error err;
    common_memory_keep();
    common_log_init("banyan-coordinator");
    enum common_code code = coordinator_daemon_options_parse(argc, argv, &d.options, &err);
    if (code == COMMON_CANCELLED)
        return EXIT_CLEAN; // --help, --version
    if (code != COMMON_OK) {
        fprintf(stderr, "banyan-coordinator: %s\n", err.message);
        return code == COMMON_INVALID_ARGUMENT ? EXIT_USAGE : EXIT_START;
    }
    if (d.options.ready_file)
        unlink(d.options.ready_file); // an old one must not speak for this process
    int exit_code = run(&d);
    coordinator_daemon_options_free(&d.options);
    return exit_code;
}
