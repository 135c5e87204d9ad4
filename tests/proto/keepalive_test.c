// SPDX-License-Identifier: Apache-2.0
// The keep-alive over real TCP. A black hole is a socket whose filter drops every packet before TCP sees it: its
// host acknowledges nothing any more, and no end is told.
#include <arpa/inet.h>
#include <dirent.h>
#include <linux/filter.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "common/clock.h"
#include "tests/proto/fixture.h"

#define QUIET_NS (200 * COMMON_NS_PER_MS)

enum { DIALLER = 1, ACCEPTOR = 2 };

static int setup(void **state)
{
    *state = fixture_new(TRANSPORT_TCP);
    return 0;
}

static int teardown(void **state)
{
    fixture_free(*state);
    return 0;
}

static struct proto_channel *connect_quiet(struct fixture *f)
{
    struct proto_channel_options options = {.name = "test", .token = TOKEN, .quiet_ns = QUIET_NS};
    struct proto_channel *channel = fixture_connect_as(f, &options);
    fixture_turn_while_connected(f, channel, false);
    return channel;
}

// Which end of the fixture's link a descriptor is; 0: none.
static int end_of(const struct fixture *f, int fd)
{
    struct sockaddr_in self, peer;
    socklen_t self_len = sizeof self, peer_len = sizeof peer;
    uint16_t port = (uint16_t)atoi(strrchr(f->endpoint, ':') + 1);
    if (getsockname(fd, (struct sockaddr *)&self, &self_len) != 0 ||
        getpeername(fd, (struct sockaddr *)&peer, &peer_len) != 0 || self.sin_family != AF_INET)
        return 0;
    return ntohs(peer.sin_port) == port ? DIALLER : ntohs(self.sin_port) == port ? ACCEPTOR : 0;
}

static void swallow(const struct fixture *f, int ends)
{
    struct sock_filter nothing = {.code = BPF_RET | BPF_K, .k = 0};
    struct sock_fprog program = {1, &nothing};
    DIR *dir = opendir("/proc/self/fd");
    int done = 0;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        int fd = atoi(entry->d_name), end = end_of(f, fd);
        if (end & ends) {
            assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
            done |= end;
        }
    }
    closedir(dir);
    assert_int_equal(done, ends);
}

// Whichever way is swallowed: the calls end in bounded time, and say why.
static void a_black_hole_ends_what_waits(void **state)
{
    struct fixture *f = *state;
    for (int ends = DIALLER; ends <= (DIALLER | ACCEPTOR); ends++) {
        struct proto_channel *channel = connect_quiet(f);
        struct outcome o;
        unsigned held = f->n_held;
        assert_int_equal(fixture_ask(channel, &(struct ask){.service = "later"}, &o, NULL), COMMON_OK);
        fixture_turn(f, &f->n_held, held + 1);
        swallow(f, ends);
        uint64_t start = common_clock_ns();
        fixture_turn(f, &o.done, 1);
        assert_int_equal(o.code, COMMON_UNAVAILABLE);
        assert_non_null(strstr(o.text, "not acknowledged"));
        assert_true(common_clock_ns() - start >= 2 * QUIET_NS);
        outcome_fini(&o);
        proto_channel_close(channel);
    }
    fixture_answer_held(f);
}

// A process that answers late is there all the same.
static void a_slow_peer_is_waited_for(void **state)
{
    struct fixture *f = *state;
    struct proto_channel *channel = connect_quiet(f);
    struct outcome o;
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "later"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &f->n_held, 1);
    fixture_turn_for(f, 8 * QUIET_NS);
    assert_int_equal(o.done, 0);
    fixture_answer_held(f);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_OK);
    outcome_fini(&o);
    proto_channel_close(channel);
}

// So is one that does not read: also where its window is closed, and the question cannot go out.
static void a_peer_that_does_not_read_is_waited_for(void **state)
{
    struct fixture *f = *state;
    static const unsigned many[] = {4, 400}; // of 100 kB: in the sockets' buffers; far more than they take
    uint8_t *bytes = calloc(1, 100000);
    assert_non_null(bytes);
    proto_server_close(f->server);
    struct proto_server_options options = fixture_server_options(f);
    options.bytes_max = 150000;
    fixture_serve(f, &options);
    for (int n = 0; n < 2; n++) {
        struct proto_channel *channel = connect_quiet(f);
        struct common_slice piece = {bytes, 100000};
        struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {100000}, &piece, 1};
        struct outcome *o = calloc(many[n], sizeof *o);
        assert_non_null(o);
        for (unsigned i = 0; i < many[n]; i++)
            assert_int_equal(
                fixture_ask(channel, &(struct ask){.service = "later", .tensors = &tensor, .n_tensors = 1},
                            &o[i], NULL),
                COMMON_OK);
        fixture_turn_for(f, 8 * QUIET_NS);
        for (unsigned i = 0; i < many[n]; i++)
            while (!o[i].done) {
                fixture_answer_held(f);
                fixture_turn_for(f, 0);
            }
        for (unsigned i = 0; i < many[n]; i++) {
            assert_int_equal(o[i].code, COMMON_OK);
            outcome_fini(&o[i]);
        }
        free(o);
        proto_channel_close(channel);
    }
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_black_hole_ends_what_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(a_slow_peer_is_waited_for, setup, teardown),
        cmocka_unit_test_setup_teardown(a_peer_that_does_not_read_is_waited_for, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
