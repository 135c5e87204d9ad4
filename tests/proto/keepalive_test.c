// SPDX-License-Identifier: Apache-2.0
// The keep-alive over real TCP. A black hole is a socket whose filter drops every packet before TCP sees it:
// its host acknowledges nothing any more, and no end sees an error. A mute peer is a socket of the test's own
// that sends what a server sends until the link is ready, and then reads, so that its host acknowledges, and
// is silent.
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
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/proto/fixture.h"
#include "tests/proto/peer.h"

#define QUIET_NS (200 * COMMON_NS_PER_MS)
#define MUTE_NS  (2 * COMMON_NS_PER_S) // longer than a server's notes are apart

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
    struct proto_channel_options options = {
        .name = "test", .token = TOKEN, .quiet_ns = QUIET_NS, .mute_ns = MUTE_NS};
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
    fixture_turn_for(f, 2 * MUTE_NS);
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
        fixture_turn_for(f, 2 * MUTE_NS);
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

// ---- processes --------------------------------------------------------------------------------------------

struct mute {
    int listener, fd;
    char endpoint[64];
};

static void mute_listen(struct mute *m)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof in;
    m->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    assert_true(m->listener >= 0);
    assert_int_equal(bind(m->listener, (struct sockaddr *)&in, len), 0);
    assert_int_equal(listen(m->listener, 8), 0);
    assert_int_equal(getsockname(m->listener, (struct sockaddr *)&in, &len), 0);
    snprintf(m->endpoint, sizeof m->endpoint, "tcp://127.0.0.1:%u", ntohs(in.sin_port));
}

static struct proto_channel *dial(struct fixture *f, const char *endpoint, uint64_t mute_ns)
{
    struct proto_channel_options options = {
        .name = "test", .token = TOKEN, .quiet_ns = QUIET_NS, .mute_ns = mute_ns, .sums = PROTO_SUMS_NEVER};
    char own[sizeof f->endpoint];
    memcpy(own, f->endpoint, sizeof own);
    if (endpoint != f->endpoint)
        snprintf(f->endpoint, sizeof f->endpoint, "%s", endpoint);
    struct proto_channel *channel = fixture_connect_as(f, &options);
    memcpy(f->endpoint, own, sizeof own);
    return channel;
}

// Takes the link and says its half of the hello.
static struct proto_channel *link_to_mute(struct fixture *f, struct mute *m, bool notes)
{
    static const uint8_t nonce[32] = {7};
    struct proto_channel *channel = dial(f, m->endpoint, MUTE_NS);
    m->fd = -1;
    while (m->fd < 0) {
        fixture_turn_for(f, 0);
        m->fd = accept4(m->listener, NULL, NULL, SOCK_NONBLOCK);
    }
    Banyan__Pb__LinkHelloReply hello = BANYAN__PB__LINK_HELLO_REPLY__INIT;
    Banyan__Pb__LinkProofReply proof = BANYAN__PB__LINK_PROOF_REPLY__INIT;
    hello.version = PROTO_VERSION;
    hello.nonce = (ProtobufCBinaryData){sizeof nonce, (uint8_t *)nonce};
    hello.role = BANYAN__PB__ROLE__ROLE_COORDINATOR;
    hello.notes = notes;
    const ProtobufCMessage *const bodies[2] = {&hello.base, &proof.base};
    static const uint32_t methods[2] = {BANYAN__PB__METHOD__METHOD_LINK_HELLO,
                                        BANYAN__PB__METHOD__METHOD_LINK_PROOF};
    for (int i = 0; i < 2; i++) {
        uint8_t heard[4096];
        assert_true(peer_readable(f, m->fd)); // its numbers of these requests are 1 and 2
        assert_true(recv(m->fd, heard, sizeof heard, 0) > 0);
        peer_put_frame(m->fd, &(struct proto_outgoing){.kind = PROTO_FRAME_REPLY,
                                                       .method = methods[i],
                                                       .request = (uint64_t)i + 1,
                                                       .body = bodies[i]});
    }
    fixture_turn_while_connected(f, channel, false);
    return channel;
}

// Reads all that comes, for so long or until the call has ended. How often it was asked.
static unsigned read_on(struct fixture *f, const struct mute *m, const struct outcome *o, uint64_t ns)
{
    unsigned n = 0;
    for (uint64_t until = common_clock_ns() + ns; common_clock_ns() < until && !o->done;) {
        uint8_t heard[4096];
        fixture_turn_for(f, 5 * COMMON_NS_PER_MS);
        n += recv(m->fd, heard, sizeof heard, 0) > 0;
    }
    return n;
}

static void a_mute_process_ends_what_waits(void **state)
{
    struct fixture *f = *state;
    struct mute m;
    struct outcome o;
    mute_listen(&m);
    struct proto_channel *channel = link_to_mute(f, &m, true);
    uint64_t start = common_clock_ns();
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "later"}, &o, NULL), COMMON_OK);
    assert_true(read_on(f, &m, &o, SECONDS(20)) >= 2); // the call and the question
    assert_int_equal(o.done, 1);
    assert_int_equal(o.code, COMMON_UNAVAILABLE);
    assert_non_null(strstr(o.text, "has been silent"));
    assert_true(common_clock_ns() - start >= QUIET_NS + MUTE_NS);
    assert_int_equal(proto_channel_mutes(channel), 1);
    outcome_fini(&o);
    proto_channel_close(channel);
    close(m.fd);
    close(m.listener);
}

// One of a build that gives no notes may be reading what was sent before the question.
static void an_older_peer_is_not_judged(void **state)
{
    struct fixture *f = *state;
    struct mute m;
    struct outcome o;
    mute_listen(&m);
    struct proto_channel *channel = link_to_mute(f, &m, false);
    assert_int_equal(fixture_ask(channel,
                                 &(struct ask){.service = "later", .deadline_ns = QUIET_NS + 3 * MUTE_NS}, &o,
                                 NULL),
                     COMMON_OK);
    (void)read_on(f, &m, &o, SECONDS(20));
    assert_int_equal(o.code, COMMON_DEADLINE_EXCEEDED);
    assert_true(proto_channel_connected(channel));
    assert_int_equal(proto_channel_mutes(channel), 0);
    outcome_fini(&o);
    proto_channel_close(channel);
    close(m.fd);
    close(m.listener);
}

// A process that was away for long has received nothing, and that is no evidence against the others: here the
// server was away, too.
static void ones_own_absence_proves_nothing(void **state)
{
    struct fixture *f = *state;
    struct outcome o;
    struct proto_channel *channel = dial(f, f->endpoint, MUTE_NS);
    fixture_turn_while_connected(f, channel, false);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "later"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &f->n_held, 1);
    for (int i = 0; i < 4; i++) {
        fixture_turn_for(f, 2 * QUIET_NS); // it asks
        usleep((MUTE_NS + QUIET_NS) / 1000);
    }
    fixture_turn_for(f, QUIET_NS);
    assert_int_equal(o.done, 0);
    assert_int_equal(proto_channel_mutes(channel), 0);
    fixture_answer_held(f);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_OK);
    outcome_fini(&o);
    proto_channel_close(channel);
}

// Something on the way takes all at once and passes it on slowly: the question comes behind all that. Nothing
// is said by the server but its notes.
static void a_peer_that_gets_a_large_frame_slowly_is_waited_for(void **state)
{
    enum { BYTES = 1 << 20, PIECE = BYTES / 64 };
    struct fixture *f = *state;
    struct mute m;
    struct outcome o;
    static uint8_t bytes[BYTES], way[2 * BYTES];
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    mute_listen(&m);
    struct proto_channel *channel = dial(f, m.endpoint, MUTE_NS);
    m.fd = -1;
    while (m.fd < 0) {
        fixture_turn_for(f, 0);
        m.fd = accept4(m.listener, NULL, NULL, SOCK_NONBLOCK);
    }
    int far = socket(AF_INET, SOCK_STREAM, 0);
    in.sin_port = htons((uint16_t)atoi(strrchr(f->endpoint, ':') + 1));
    assert_int_equal(connect(far, (struct sockaddr *)&in, sizeof in), 0);
    struct common_slice piece = {bytes, BYTES};
    struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {BYTES}, &piece, 1};
    size_t have = 0, gone = 0;
    uint64_t start = common_clock_ns();
    bool asked = false;
    o.done = 0;
    while (!asked || (!o.done && common_clock_ns() - start < SECONDS(25))) {
        uint8_t back[4096];
        ssize_t n;
        fixture_turn_for(f, 5 * COMMON_NS_PER_MS);
        while (have < sizeof way && (n = recv(m.fd, way + have, sizeof way - have, MSG_DONTWAIT)) > 0)
            have += (size_t)n;
        while ((n = recv(far, back, sizeof back, MSG_DONTWAIT)) > 0)
            assert_int_equal(send(m.fd, back, (size_t)n, MSG_NOSIGNAL), n);
        // The hello at once; of the large frame a piece every so often: longer than two silences for all of
        // it.
        size_t due =
            asked ? (size_t)((common_clock_ns() - start) / (2 * MUTE_NS / 64)) * PIECE + PIECE : have;
        if (gone < have && gone < due) {
            n = send(far, way + gone, (due < have ? due : have) - gone, MSG_DONTWAIT | MSG_NOSIGNAL);
            gone += n > 0 ? (size_t)n : 0;
        }
        if (!asked && proto_channel_connected(channel)) {
            asked = true;
            start = common_clock_ns();
            have = gone = 0;
            assert_int_equal(fixture_ask(channel,
                                         &(struct ask){.service = "echo", .tensors = &tensor, .n_tensors = 1},
                                         &o, NULL),
                             COMMON_OK);
        }
    }
    assert_int_equal(o.code, COMMON_OK);
    assert_int_equal(proto_channel_mutes(channel), 0);
    outcome_fini(&o);
    proto_channel_close(channel);
    close(m.fd);
    close(far);
    close(m.listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_black_hole_ends_what_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(a_slow_peer_is_waited_for, setup, teardown),
        cmocka_unit_test_setup_teardown(a_peer_that_does_not_read_is_waited_for, setup, teardown),
        cmocka_unit_test_setup_teardown(a_mute_process_ends_what_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(an_older_peer_is_not_judged, setup, teardown),
        cmocka_unit_test_setup_teardown(ones_own_absence_proves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_peer_that_gets_a_large_frame_slowly_is_waited_for, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
