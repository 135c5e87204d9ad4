// SPDX-License-Identifier: Apache-2.0
// What a service manager hears: ready, the state in words, that the loop runs, that it ends.
#include "common/loop/notify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/common/scratch.h"

static struct scratch scratch;

struct manager {
    int fd;
    struct common_loop *loop;
    struct common_notify *notify;
    char heard[512];
};

static struct manager manager;

static const char *hear(void) // waits
{
    ssize_t n = recv(manager.fd, manager.heard, sizeof manager.heard - 1, 0);
    assert_true(n > 0);
    manager.heard[n] = '\0';
    return manager.heard;
}

static int listen_at(void **state)
{
    (void)state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (scratch_init(&scratch) != 0)
        return -1;
    snprintf(address.sun_path, sizeof address.sun_path, "%.90s/notify", scratch.dir);
    manager.fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (bind(manager.fd, (struct sockaddr *)&address, sizeof address) != 0)
        return -1;
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    return common_loop_new(&manager.loop) == COMMON_OK ? 0 : -1;
}

static int hang_up(void **state)
{
    (void)state;
    common_notify_free(manager.notify);
    manager.notify = NULL;
    common_loop_free(manager.loop);
    close(manager.fd);
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    unlink(scratch_path(&scratch, "notify"));
    return rmdir(scratch.dir);
}

static void what_it_does_is_told(void **state)
{
    (void)state;
    struct common_error err;
    assert_int_equal(common_notify_new(manager.loop, &manager.notify, &err), COMMON_OK);
    assert_null(getenv("NOTIFY_SOCKET")); // what is started from here does not speak for us
    common_notify_ready(manager.notify, "serving");
    assert_string_equal(hear(), "READY=1\nSTATUS=serving");
    common_notify_ready(manager.notify, "loaded");
    assert_string_equal(hear(), "STATUS=loaded"); // ready once
    common_notify_leaving(manager.notify, "draining");
    assert_string_equal(hear(), "STOPPING=1\nSTATUS=draining");
}

static void run_loop(const char *pid)
{
    struct common_error err;
    setenv("WATCHDOG_USEC", "40000", 1);
    if (pid)
        setenv("WATCHDOG_PID", pid, 1);
    assert_int_equal(common_notify_new(manager.loop, &manager.notify, &err), COMMON_OK);
    assert_null(getenv("WATCHDOG_USEC"));
    common_notify_ready(manager.notify, "serving");
    assert_string_equal(hear(), "READY=1\nSTATUS=serving");
    assert_int_equal(common_loop_start_thread(manager.loop, "watched"), COMMON_OK);
}

static void end_loop(void)
{
    common_loop_stop(manager.loop);
    common_loop_join(manager.loop);
}

static void a_loop_that_runs_says_so(void **state)
{
    (void)state;
    char pid[32];
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    run_loop(pid);
    for (int i = 0; i < 3; i++)
        assert_string_equal(hear(), "WATCHDOG=1");
    end_loop();
}

static void another_process_is_watched(void **state)
{
    (void)state;
    struct timeval wait = {.tv_usec = 200000};
    assert_int_equal(setsockopt(manager.fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait), 0);
    run_loop("1");
    assert_true(recv(manager.fd, manager.heard, sizeof manager.heard, 0) < 0);
    end_loop();
}

static void nobody_listens(void **state)
{
    (void)state;
    struct common_error err;
    unsetenv("NOTIFY_SOCKET");
    assert_int_equal(common_notify_new(manager.loop, &manager.notify, &err), COMMON_OK);
    common_notify_ready(manager.notify, "serving");
    common_notify_leaving(manager.notify, "leaving");
    common_notify_ready(NULL, "serving");
}

static void a_socket_that_is_gone_stops_nothing(void **state)
{
    (void)state;
    struct common_error err;
    setenv("NOTIFY_SOCKET", "@banyan-nobody-is-there", 1);
    assert_int_equal(common_notify_new(manager.loop, &manager.notify, &err), COMMON_OK);
    common_notify_ready(manager.notify, "serving");
}

static void no_path_of_a_socket(void **state)
{
    (void)state;
    static const char *const bad[] = {"relative", "@", "/", "vsock:2:1"};
    char path[200];
    struct common_error err;
    memset(path, 'x', sizeof path);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    for (size_t i = 0; i <= sizeof bad / sizeof *bad; i++) {
        setenv("NOTIFY_SOCKET", i < sizeof bad / sizeof *bad ? bad[i] : path, 1);
        assert_int_equal(common_notify_new(manager.loop, &manager.notify, &err), COMMON_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "NOTIFY_SOCKET"));
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, listen_at, hang_up)
    const struct CMUnitTest tests[] = {
        TEST(what_it_does_is_told),
        TEST(a_loop_that_runs_says_so),
        TEST(another_process_is_watched),
        TEST(nobody_listens),
        TEST(a_socket_that_is_gone_stops_nothing),
        TEST(no_path_of_a_socket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
