// SPDX-License-Identifier: Apache-2.0
// Ours and not libsystemd's: the protocol is one datagram, is promised to stay, and the library would bring four others
// into every process.
#include "common/loop/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/log/log.h"

struct common_notify {
    struct common_timer *watchdog;
    unsigned long long interval_ns; // 0: no watchdog
    int fd;                         // -1: no listener
    socklen_t len;
    struct sockaddr_un address;
    bool ready, leaving;
};

static void say(const struct common_notify *notify, const char *text)
{
    if (notify->fd >= 0 && sendto(notify->fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL,
                                  (const struct sockaddr *)&notify->address, notify->len) < 0)
        common_log_debug("cannot notify the service manager: %s", strerror(errno));
}

static void say_status(const struct common_notify *notify, const char *first, const char *status)
{
    char text[256];
    snprintf(text, sizeof text, "%sSTATUS=%.200s", first, status);
    say(notify, text);
}

static void on_watchdog(void *arg)
{
    say(arg, "WATCHDOG=1");
}

// Half of what it waits for, as sd_watchdog_enabled(3) advises.
static unsigned long long watchdog_interval(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    bool ours = !pid || strtol(pid, NULL, 10) == (long)getpid();
    unsigned long long wait = usec && ours ? strtoull(usec, NULL, 10) : 0;
    return wait < 1000000000000ULL ? wait * 1000 / 2 : 0;
}

static enum common_code set_address(struct common_notify *notify, const char *path, struct common_error *err)
{
    size_t len = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || len < 2 || len >= sizeof notify->address.sun_path)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "NOTIFY_SOCKET is neither an absolute path nor @name: '%.100s'", path);
    notify->address.sun_family = AF_UNIX;
    memcpy(notify->address.sun_path, path, len);
    if (path[0] == '@')
        notify->address.sun_path[0] = '\0';
    notify->len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    return COMMON_OK;
}

enum common_code common_notify_new(struct common_loop *loop, struct common_notify **out,
                                   struct common_error *err)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct common_notify *notify = calloc(1, sizeof *notify);
    enum common_code code = COMMON_OK;
    if (!notify)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a notification");
    notify->fd = -1;
    notify->interval_ns = path ? watchdog_interval() : 0;
    if (path && path[0])
        code = set_address(notify, path, err);
    if (code == COMMON_OK && notify->len) {
        notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (notify->fd < 0 || common_timer_new(loop, on_watchdog, notify, &notify->watchdog) != COMMON_OK)
            code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                    "no descriptor or memory to notify the service manager");
    }
    if (code != COMMON_OK) {
        common_notify_free(notify);
        return code;
    }
    unsetenv("NOTIFY_SOCKET"); // what this process starts does not speak for it
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    *out = notify;
    return COMMON_OK;
}

void common_notify_ready(struct common_notify *notify, const char *status)
{
    if (!notify)
        return;
    say_status(notify, notify->ready ? "" : "READY=1\n", status);
    if (!notify->ready && notify->fd >= 0 && notify->interval_ns)
        common_timer_start(notify->watchdog, notify->interval_ns, true);
    notify->ready = true;
}

void common_notify_leaving(struct common_notify *notify, const char *status)
{
    if (!notify)
        return;
    notify->leaving = true;
    say_status(notify, "STOPPING=1\n", status);
}

// Its time, so that the manager can match READY=1 to it (Type=notify-reload, systemd 253).
void common_notify_reloading(struct common_notify *notify)
{
    char text[64];
    if (!notify || !notify->ready || notify->leaving)
        return;
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%llu",
             (unsigned long long)(common_clock_ns() / COMMON_NS_PER_US));
    say(notify, text);
}

void common_notify_reloaded(struct common_notify *notify)
{
    if (notify && notify->ready && !notify->leaving)
        say(notify, "READY=1");
}

void common_notify_free(struct common_notify *notify)
{
    if (!notify)
        return;
    common_timer_free(notify->watchdog);
    if (notify->fd >= 0)
        close(notify->fd);
    free(notify);
}
