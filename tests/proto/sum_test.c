// SPDX-License-Identifier: Apache-2.0
// Frames that are damaged on their way: a relay stands between a channel and its server and flips one bit, of
// each byte in turn, in either direction. What comes of the call is an error or the right bytes.
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "proto/wire/codec.h"
#include "proto/wire/frame.h"
#include "tests/proto/fixture.h"

enum { TO_SERVER, TO_CLIENT, NNG_LEAD = 12 /* length and request id: nng's own, which nothing protects */ };

// ---- the relay ------------------------------------------------------------------------------------------

struct relay {
    int listen_fd;
    uint16_t port, server_port;
    pthread_t thread;
    atomic_bool stop;
    pthread_mutex_t lock;
    long left[2];    // bytes that pass before the one that is flipped; below 0: none is
    long passed[2];  // since it was armed
    uint8_t mask[2]; // what is flipped of it
};

static int connect_to(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

// Passes on what has come. False: the connection is over.
static bool pass(struct relay *relay, int from, int to, int way)
{
    uint8_t bytes[65536];
    ssize_t n = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n <= 0)
        return n < 0 && errno == EAGAIN;
    pthread_mutex_lock(&relay->lock);
    if (relay->left[way] >= 0 && relay->left[way] < n)
        bytes[relay->left[way]] ^= relay->mask[way];
    relay->left[way] = relay->left[way] < n ? -1 : relay->left[way] - n;
    relay->passed[way] += n;
    pthread_mutex_unlock(&relay->lock);
    for (ssize_t at = 0; at < n;) {
        ssize_t went = send(to, bytes + at, (size_t)(n - at), MSG_NOSIGNAL);
        if (went <= 0)
            return false;
        at += went;
    }
    return true;
}

static void *relay_run(void *arg)
{
    struct relay *relay = arg;
    while (!atomic_load(&relay->stop)) {
        struct pollfd door = {.fd = relay->listen_fd, .events = POLLIN};
        if (poll(&door, 1, 20) != 1)
            continue;
        int fds[2] = {accept(relay->listen_fd, NULL, NULL), connect_to(relay->server_port)};
        bool open = fds[0] >= 0;
        while (open && !atomic_load(&relay->stop)) {
            struct pollfd ends[2] = {{.fd = fds[0], .events = POLLIN}, {.fd = fds[1], .events = POLLIN}};
            if (poll(ends, 2, 20) > 0)
                open = pass(relay, fds[0], fds[1], TO_SERVER) && pass(relay, fds[1], fds[0], TO_CLIENT);
        }
        close(fds[0]);
        close(fds[1]);
    }
    return NULL;
}

static struct relay *relay_new(struct fixture *f)
{
    struct relay *relay = calloc(1, sizeof *relay);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    assert_non_null(relay);
    relay->left[0] = relay->left[1] = -1;
    relay->server_port = (uint16_t)atoi(strrchr(f->endpoint, ':') + 1);
    relay->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(relay->listen_fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(relay->listen_fd, 8), 0);
    assert_int_equal(getsockname(relay->listen_fd, (struct sockaddr *)&address, &len), 0);
    relay->port = ntohs(address.sin_port);
    pthread_mutex_init(&relay->lock, NULL);
    snprintf(f->endpoint, sizeof f->endpoint, "%s://127.0.0.1:%u",
             f->transport == TRANSPORT_NNG ? "nng+tcp" : "tcp", relay->port);
    assert_int_equal(pthread_create(&relay->thread, NULL, relay_run, relay), 0);
    return relay;
}

static void relay_free(struct relay *relay)
{
    atomic_store(&relay->stop, true);
    pthread_join(relay->thread, NULL);
    pthread_mutex_destroy(&relay->lock);
    close(relay->listen_fd);
    free(relay);
}

static void relay_arm(struct relay *relay, int way, long at)
{
    pthread_mutex_lock(&relay->lock);
    relay->passed[0] = relay->passed[1] = 0;
    relay->left[0] = relay->left[1] = -1;
    relay->left[way] = at;
    relay->mask[way] = (uint8_t)(1u << (unsigned long)at * 7 % 8);
    pthread_mutex_unlock(&relay->lock);
}

static long relay_passed(struct relay *relay, int way)
{
    pthread_mutex_lock(&relay->lock);
    long n = relay->passed[way];
    pthread_mutex_unlock(&relay->lock);
    return n;
}

// ---- tests ----------------------------------------------------------------------------------------------

static float numbers[50];

static enum common_code ask(struct fixture *f, struct proto_channel *channel, char text[256])
{
    struct common_slice slices[2] = {{numbers, 100}, {(const char *)numbers + 100, sizeof numbers - 100}};
    struct proto_tensor_out tensor = {.dtype = BANYAN__PB__DTYPE__DTYPE_F32,
                                      .n_dims = 1,
                                      .dims = {sizeof numbers / sizeof *numbers},
                                      .pieces = slices,
                                      .n_pieces = 2};
    struct outcome o;
    fixture_turn_while_connected(f, channel, false);
    assert_int_equal(
        fixture_ask(channel, &(struct ask){.service = "echo", .tensors = &tensor, .n_tensors = 1}, &o, NULL),
        COMMON_OK);
    fixture_turn(f, &o.done, 1);
    if (o.code == COMMON_OK) {
        assert_int_equal(o.n_tensors, 1);
        assert_int_equal(o.bytes[0], sizeof numbers);
        assert_memory_equal(o.data[0], numbers, sizeof numbers);
    }
    snprintf(text, 256, "%s", o.text);
    outcome_fini(&o);
    return o.code;
}

static void flip_each_byte(enum transport transport)
{
    struct fixture *f = fixture_new(transport);
    struct relay *relay = relay_new(f);
    struct proto_channel *channel = fixture_connect(f);
    char text[256];
    bool nng = transport == TRANSPORT_NNG;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        numbers[i] = (float)i / 7;
    assert_int_equal(ask(f, channel, text), COMMON_OK);
    for (int way = TO_SERVER; way <= TO_CLIENT; way++) {
        relay_arm(relay, way, -1);
        assert_int_equal(ask(f, channel, text), COMMON_OK);
        long bytes = relay_passed(relay, way), errors = 0;
        assert_true(bytes > (long)sizeof numbers + 100);
        for (long at = nng ? NNG_LEAD : 0; at < bytes; at++) {
            fixture_turn_while_connected(f, channel, false);
            uint64_t damaged = proto_frames_damaged();
            relay_arm(relay, way, at);
            enum common_code code = ask(f, channel, text);
            assert_true(relay_passed(relay, way) > at); // it has been flipped
            if (!nng && code != COMMON_UNAVAILABLE)
                fail_msg("byte %ld, way %d: code %d: %s", at, way, code, text);
            // Over nng a damaged request is asked again by REQ, over another connection.
            if (code == COMMON_UNAVAILABLE && strstr(text, "damaged in transit") == NULL &&
                way == TO_CLIENT && at >= (nng ? NNG_LEAD : 0) + PROTO_PREFIX_BYTES)
                fail_msg("byte %ld: the error does not say what happened: %s", at, text);
            if (at >= (nng ? NNG_LEAD : 0) + PROTO_PREFIX_BYTES + 9)
                assert_true(proto_frames_damaged() == damaged + 1);
            errors += code != COMMON_OK;
        }
        assert_true(way == TO_SERVER || errors > bytes / 2);
        relay_arm(relay, way, -1);
        assert_int_equal(ask(f, channel, text), COMMON_OK); // and then as usual
    }
    proto_channel_close(channel);
    fixture_turn_for(f, SECONDS(1) / 100);
    relay_free(relay);
    fixture_free(f);
}

static void test_tcp_flips(void **state)
{
    (void)state;
    flip_each_byte(TRANSPORT_TCP);
}

static void test_nng_flips(void **state)
{
    (void)state;
    flip_each_byte(TRANSPORT_NNG);
}

struct again {
    struct proto_channel *channel;
    enum common_code first;
    struct outcome second;
};

static void ask_again(void *arg, const struct proto_reply *reply)
{
    struct again *again = arg;
    again->first = reply->code;
    assert_int_equal(fixture_ask(again->channel, &(struct ask){.service = ""}, &again->second, NULL),
                     COMMON_OK);
}

// A caller that asks again at once waits for the next connection: the server does not refuse a peer for a
// damaged prefix once it has answered it.
static void test_asked_again_at_once(void **state)
{
    (void)state;
    struct fixture *f = fixture_new(TRANSPORT_TCP);
    struct relay *relay = relay_new(f);
    struct again again = {.channel = fixture_connect(f)};
    Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    struct common_error err;
    for (int byte = 0; byte < PROTO_PREFIX_BYTES; byte++) { // magic, version, lengths, checksum
        fixture_turn_while_connected(f, again.channel, false);
        relay_arm(relay, TO_CLIENT, byte);
        assert_int_equal(
            proto_channel_call(again.channel,
                               &(struct proto_call){.method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                                    .body = &body.base,
                                                    .deadline_ns = common_clock_after(SECONDS(20)),
                                                    .done = ask_again,
                                                    .arg = &again},
                               NULL, &err),
            COMMON_OK);
        fixture_turn(f, &again.second.done, 1);
        assert_int_equal(again.first, COMMON_UNAVAILABLE);
        if (again.second.code != COMMON_OK)
            fail_msg("byte %d: code %d: %s", byte, again.second.code, again.second.text);
        outcome_fini(&again.second);
        again.second = (struct outcome){0};
    }
    proto_channel_close(again.channel);
    fixture_turn_for(f, SECONDS(1) / 100);
    relay_free(relay);
    fixture_free(f);
}

// What a frame's checksum is, from the words of wire.md alone; and that pieces and waiting change nothing.
static void test_formula(void **state)
{
    (void)state;
    struct proto_scratch scratch = {0};
    struct proto_gather gather;
    struct common_slice slices[3] = {{numbers, 12}, {(const char *)numbers + 12, 88}, {numbers, 4}};
    struct proto_tensor_out tensor = {
        .dtype = BANYAN__PB__DTYPE__DTYPE_F32, .n_dims = 1, .dims = {26}, .pieces = slices, .n_pieces = 3};
    struct proto_outgoing outgoing = {.kind = PROTO_FRAME_REQUEST,
                                      .method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                      .request = 77,
                                      .remaining_ns = 1000,
                                      .tensors = &tensor,
                                      .n_tensors = 1,
                                      .summed = true};
    for (int round = 0; round < 3; round++) {
        outgoing.n_tensors = round > 0;
        assert_int_equal(proto_frame_encode(&scratch, &outgoing, PROTO_PAYLOAD_MAX, &gather, NULL),
                         COMMON_OK);
        struct proto_gather *kept = proto_gather_keep(&gather);
        assert_non_null(kept);
        if (round == 2)
            proto_gather_set_remaining(kept, 999);
        uint8_t *frame = malloc(kept->bytes), *at = frame;
        assert_non_null(frame);
        for (size_t i = 0; i < kept->n; i++)
            at = (uint8_t *)memcpy(at, kept->iov[i].iov_base, kept->iov[i].iov_len) + kept->iov[i].iov_len;
        struct proto_prefix prefix;
        uint64_t sum;
        assert_int_equal(proto_prefix_decode(frame, &prefix, NULL), COMMON_OK);
        memcpy(&sum, frame + 33, 8);
        assert_int_equal(frame[32], 0x41);
        assert_true(le64toh(sum) == common_xxh3(frame + 41, kept->bytes - 41, 0));
        assert_int_equal(proto_frame_sum(&prefix, frame), PROTO_SUM_RIGHT);
        for (size_t bit = 8 * 33; bit < 8 * kept->bytes; bit++) {
            frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_int_equal(proto_frame_sum(&prefix, frame), PROTO_SUM_WRONG);
            frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        free(frame);
        proto_gather_free(kept);
    }
    proto_scratch_fini(&scratch);
}

// Frames of a channel carry them where it is asked to, and answers where the calls did.
static void test_who_carries(void **state)
{
    (void)state;
    static const struct {
        enum transport transport;
        enum proto_sums sums;
        const char *said;
        bool carried;
    } cases[] = {
        {TRANSPORT_TCP, PROTO_SUMS_AUTO, NULL, true},      {TRANSPORT_UNIX, PROTO_SUMS_AUTO, NULL, false},
        {TRANSPORT_UNIX, PROTO_SUMS_ALWAYS, NULL, true},   {TRANSPORT_TCP, PROTO_SUMS_NEVER, NULL, false},
        {TRANSPORT_UNIX, PROTO_SUMS_AUTO, "always", true}, {TRANSPORT_TCP, PROTO_SUMS_AUTO, "never", false},
        {TRANSPORT_TCP, PROTO_SUMS_ALWAYS, "never", true}, {TRANSPORT_TCP, PROTO_SUMS_AUTO, "auto", true},
        {TRANSPORT_NNG, PROTO_SUMS_AUTO, NULL, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture *f = fixture_new(cases[i].transport);
        if (cases[i].said)
            setenv("BANYAN_CHECKSUMS", cases[i].said, 1);
        else
            unsetenv("BANYAN_CHECKSUMS");
        struct proto_channel *channel = fixture_connect_as(
            f, &(struct proto_channel_options){.name = "t", .token = TOKEN, .sums = cases[i].sums});
        struct outcome o;
        assert_int_equal(fixture_ask(channel, &(struct ask){.service = "later"}, &o, NULL), COMMON_OK);
        fixture_turn(f, &f->n_held, 1);
        assert_int_equal(proto_request_message(f->held->request)->summed, cases[i].carried);
        fixture_answer_held(f);
        fixture_turn(f, &o.done, 1);
        assert_int_equal(o.code, COMMON_OK);
        if (cases[i].transport == TRANSPORT_NNG) // the blob is this frame alone
            assert_int_equal(o.blob->data[PROTO_PREFIX_BYTES], 0x41);
        outcome_fini(&o);
        proto_channel_close(channel);
        fixture_free(f);
    }
    unsetenv("BANYAN_CHECKSUMS");
}

// A peer that has sent checksums goes on doing so: a frame without one is damaged.
static void test_lost_sum(void **state)
{
    (void)state;
    struct proto_pool pool = {0};
    struct proto_scratch scratch = {0};
    bool sums = false;
    for (int round = 0; round < 3; round++) { // without, with, without
        struct proto_gather gather;
        struct proto_outgoing outgoing = {.kind = PROTO_FRAME_REPLY, .method = 16, .summed = round == 1};
        assert_int_equal(proto_frame_encode(&scratch, &outgoing, 0, &gather, NULL), COMMON_OK);
        struct common_blob *blob = common_blob_new(gather.bytes);
        assert_non_null(blob);
        memcpy(blob->data, gather.iov[0].iov_base, gather.bytes);
        struct proto_prefix prefix;
        struct proto_message *message = NULL;
        assert_int_equal(proto_prefix_decode(blob->data, &prefix, NULL), COMMON_OK);
        assert_int_equal(proto_message_open(&pool, &prefix, blob, 0, &sums, &message, NULL),
                         round < 2 ? COMMON_OK : COMMON_DATA_LOSS);
        assert_int_equal(sums, round > 0);
        proto_message_release(&pool, message);
        common_blob_unref(blob);
    }
    proto_scratch_fini(&scratch);
    proto_pool_fini(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula),     cmocka_unit_test(test_lost_sum),
        cmocka_unit_test(test_who_carries), cmocka_unit_test(test_tcp_flips),
        cmocka_unit_test(test_nng_flips),   cmocka_unit_test(test_asked_again_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
