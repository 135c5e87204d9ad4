// SPDX-License-Identifier: Apache-2.0
// The serving end of nng's wire against peers that do not use nng: hostile, slow, half dead. Whatever one of
// them does, others are served, and nothing of it stays.
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
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
#include "proto/nng_door.h"
#include "proto/sp_reader.h"
#include "proto/wire/codec.h"
#include "proto/wire/frame.h"
#include "tests/proto/fixture.h"

enum { CROWD = 1100, IDS = 0x80000000 };

static const uint8_t req[] = {0, 'S', 'P', 0, 0, PROTO_SP_REQ, 0, 0};

static int setup(void **state)
{
    *state = fixture_new(TRANSPORT_NNG);
    return 0;
}

static int teardown(void **state)
{
    fixture_free(*state);
    return 0;
}

// ---- a peer by hand -------------------------------------------------------------------------------------

static int dial(const struct fixture *f)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)atoi(strrchr(f->endpoint, ':') + 1))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void put(int fd, const void *data, size_t len)
{
    assert_int_equal(send(fd, data, len, MSG_NOSIGNAL), len);
}

// A reset, as of a process that is killed with unread bytes.
static void reset(int fd)
{
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)), 0);
    close(fd);
}

// Turns the loop until `len` bytes have come. false: the connection has ended.
static bool get(struct fixture *f, int fd, void *to, size_t len)
{
    size_t have = 0;
    for (uint64_t since = common_clock_ns(); have < len && common_clock_ns() - since < SECONDS(60);) {
        ssize_t got = recv(fd, (uint8_t *)to + have, len - have, MSG_DONTWAIT);
        if (got > 0)
            have += (size_t)got;
        else if (got == 0 || errno != EAGAIN)
            return false;
        else
            fixture_turn_for(f, SECONDS(1) / 1000);
    }
    if (have < len)
        fail_msg("nothing has come for 60 s");
    return true;
}

static int dial_req(struct fixture *f)
{
    static const uint8_t rep[] = {0, 'S', 'P', 0, 0, PROTO_SP_REP, 0, 0};
    uint8_t theirs[8];
    int fd = dial(f);
    put(fd, req, sizeof req);
    assert_true(get(f, fd, theirs, sizeof theirs));
    assert_memory_equal(theirs, rep, sizeof rep);
    return fd;
}

static bool ended(struct fixture *f, int fd)
{
    uint8_t byte;
    return !get(f, fd, &byte, 1);
}

static void put_lead(int fd, uint64_t len, uint32_t id)
{
    uint8_t lead[12];
    for (unsigned i = 0; i < 8; i++)
        lead[i] = (uint8_t)(len >> 8 * (7 - i));
    for (unsigned i = 0; i < 4; i++)
        lead[8 + i] = (uint8_t)(id >> 8 * (3 - i));
    put(fd, lead, sizeof lead);
}

struct frame {
    size_t len;
    uint8_t at[256 << 10];
};

// HealthCheck of this service with `bytes` of payload.
static const struct frame *frame_of(const char *service, const char *token, size_t bytes)
{
    static struct frame frame;
    static uint8_t zeros[200 << 10];
    struct proto_scratch scratch = {0};
    struct proto_gather gather;
    Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    body.service = (char *)(uintptr_t)service;
    assert_true(bytes <= sizeof zeros);
    struct common_slice piece = {zeros, bytes};
    struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {bytes}, &piece, 1};
    assert_int_equal(proto_frame_encode(&scratch,
                                        &(struct proto_outgoing){.kind = PROTO_FRAME_REQUEST,
                                                                 .method =
                                                                     BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                                                 .request = 1,
                                                                 .remaining_ns = SECONDS(60),
                                                                 .credentials = token,
                                                                 .body = &body.base,
                                                                 .tensors = &tensor,
                                                                 .n_tensors = bytes > 0},
                                        sizeof zeros, &gather, NULL),
                     COMMON_OK);
    frame.len = 0;
    for (size_t i = 0; i < gather.n; i++) {
        memcpy(frame.at + frame.len, gather.iov[i].iov_base, gather.iov[i].iov_len);
        frame.len += gather.iov[i].iov_len;
    }
    proto_scratch_fini(&scratch);
    return &frame;
}

static void put_request(int fd, uint32_t id, const struct frame *frame)
{
    put_lead(fd, frame->len + 4, IDS | id);
    put(fd, frame->at, frame->len);
}

// The next answer must be this id's. Its bytes; 0: an empty one.
static size_t get_answer(struct fixture *f, int fd, uint32_t id, uint8_t *out, size_t max)
{
    uint8_t lead[12];
    assert_true(get(f, fd, lead, sizeof lead));
    uint64_t len = 0;
    for (unsigned i = 0; i < 8; i++)
        len = len << 8 | lead[i];
    uint32_t theirs = (uint32_t)lead[8] << 24 | (uint32_t)lead[9] << 16 | (uint32_t)lead[10] << 8 | lead[11];
    assert_int_equal(theirs, IDS | id);
    assert_true(len >= 4 && len - 4 <= max);
    assert_true(get(f, fd, out, (size_t)len - 4));
    return (size_t)len - 4;
}

static void expect_code(struct fixture *f, int fd, uint32_t id, enum common_code want)
{
    struct common_blob *blob = common_blob_new(64 << 10);
    struct proto_pool pool = {0};
    struct proto_message *message;
    struct proto_prefix prefix;
    bool sums = false;
    assert_non_null(blob);
    assert_true(get_answer(f, fd, id, blob->data, blob->len) >= PROTO_PREFIX_BYTES);
    assert_int_equal(proto_prefix_decode(blob->data, &prefix, NULL), COMMON_OK);
    assert_int_equal(proto_message_open(&pool, &prefix, blob, 0, &sums, &message, NULL), COMMON_OK);
    assert_int_equal(message->header->status ? message->header->status->code : COMMON_OK, want);
    proto_message_release(&pool, message);
    proto_pool_fini(&pool);
    common_blob_unref(blob);
}

static void expect_still_serving(struct fixture *f)
{
    int fd = dial_req(f);
    put_request(fd, 7, frame_of("echo", TOKEN, 0));
    expect_code(f, fd, 7, COMMON_OK);
    close(fd);
    struct proto_channel *channel = fixture_connect(f);
    struct outcome o;
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_OK);
    outcome_fini(&o);
    proto_channel_close(channel);
}

static unsigned descriptors(void)
{
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void expect_descriptors(struct fixture *f, unsigned want)
{
    for (uint64_t since = common_clock_ns(); descriptors() > want && common_clock_ns() - since < SECONDS(20);)
        fixture_turn_for(f, SECONDS(1) / 100);
    assert_true(descriptors() <= want);
}

// ---- tests ----------------------------------------------------------------------------------------------

static void test_what_ends_a_connection(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *bytes;
        size_t len;
    } after[] =
        {
            // behind a right handshake: 2^63; beyond every limit; nothing; no room for an id; no id
            {"\x80\0\0\0\0\0\0\0", 8},
            {"\0\0\2\0\0\0\0\0", 8},
            {"\0\0\0\0\0\0\0\0", 8},
            {"\0\0\0\0\0\0\0\3abc", 11},
            {"\0\0\0\0\0\0\0\6\0\0\0\1ab", 14},
        },
      instead[] = {{"GET / HTTP/1.1\r\n\r\n", 18},
                   {"\0SP\0\0\x31\0\0", 8},  // REP
                   {"\0SP\0\x30\0\0\0", 8},  // the wrong way round
                   {"\0SP\0\0\x30\0\1", 8}}; // reserved
    unsigned before = descriptors();
    for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
        int fd = dial_req(f);
        put(fd, after[i].bytes, after[i].len);
        assert_true(ended(f, fd));
        close(fd);
    }
    for (size_t i = 0; i < sizeof instead / sizeof *instead; i++) {
        uint8_t theirs[8];
        int fd = dial(f);
        put(fd, instead[i].bytes, instead[i].len);
        if (get(f, fd, theirs, sizeof theirs)) // a reset takes it along
            assert_true(ended(f, fd));
        close(fd);
    }
    expect_descriptors(f, before);
    expect_still_serving(f);
    struct proto_server_stats stats;
    proto_server_stats(f->server, &stats);
    assert_int_equal(stats.refused, 9);
}

// nng's own REP drops them, too.
static void test_a_deep_trace_is_dropped(void **state)
{
    struct fixture *f = *state;
    const struct frame *frame = frame_of("echo", TOKEN, 0);
    int fd = dial_req(f);
    put_lead(fd, 4 * 9 + frame->len, 1);
    for (unsigned i = 0; i < 8; i++)
        put(fd, i < 7 ? "\0\0\0\2" : "\x80\0\0\3", 4);
    put(fd, frame->at, frame->len);
    // One hop fewer: answered along the way that it came.
    put_lead(fd, 4 * 8 + frame->len, 1);
    for (unsigned i = 0; i < 7; i++)
        put(fd, i < 6 ? "\0\0\0\2" : "\x80\0\0\3", 4);
    put(fd, frame->at, frame->len);
    uint8_t lead[40];
    assert_true(get(f, fd, lead, sizeof lead));
    assert_memory_equal(lead + 8, "\0\0\0\1\0\0\0\2\0\0\0\2\0\0\0\2\0\0\0\2\0\0\0\2\0\0\0\2\x80\0\0\3", 32);
    assert_int_equal(f->n_handled, 1);
    close(fd);
}

// 73 bytes each, then a reset: nng's own server end keeps a descriptor of each for good.
static void test_a_crowd_that_resets(void **state)
{
    struct fixture *f = *state;
    unsigned before = descriptors();
    for (int i = 0; i < CROWD; i++) {
        int fd = dial(f);
        put(fd, req, sizeof req);
        for (int k = 0; k < 5; k++) {
            put_lead(fd, 5, (uint32_t)(IDS | (i * 5 + k)));
            put(fd, "x", 1);
        }
        if (i % 3) // in the middle of it, or after it
            fixture_turn_for(f, 0);
        reset(fd);
    }
    expect_still_serving(f);
    expect_descriptors(f, before + 2); // our channel's socket lingers
}

// Connections that send nothing, or too little: the oldest go, one that comes with a token is served, and one
// that has shown a token before stays.
static void test_a_crowd_that_waits(void **state)
{
    struct fixture *f = *state;
    static int crowd[CROWD];
    int known = dial_req(f);
    put_request(known, 1, frame_of("echo", TOKEN, 0));
    expect_code(f, known, 1, COMMON_OK);
    unsigned before = descriptors();
    for (int i = 0; i < CROWD; i++) {
        crowd[i] = dial(f);
        if (i % 2)
            put(crowd[i], req, sizeof req);
        if (i % 4 == 3)
            put(crowd[i], "\0\0\0\0\0\1\0\0\x80\0\0\1half", 16);
        fixture_turn_for(f, 0);
    }
    fixture_turn_for(f, SECONDS(1) / 10);
    assert_true(descriptors() <= before + CROWD + 256);
    expect_still_serving(f);
    put_request(known, 2, frame_of("echo", TOKEN, 0));
    expect_code(f, known, 2, COMMON_OK);
    uint8_t theirs[8];
    assert_true(get(f, crowd[0], theirs, sizeof theirs));
    assert_true(ended(f, crowd[0]));
    // Those that are left have a few seconds.
    fixture_turn_for(f, SECONDS(12));
    assert_true(descriptors() <= before + CROWD + 2);
    put_request(known, 3, frame_of("echo", TOKEN, 0));
    expect_code(f, known, 3, COMMON_OK);
    for (int i = 0; i < CROWD; i++)
        close(crowd[i]);
    close(known);
    expect_still_serving(f);
}

// As many connections with a token as there may be: one on which nothing is under way makes room.
static void test_all_places_are_taken(void **state)
{
    struct fixture *f = *state;
    proto_server_close(f->server);
    struct proto_server_options options = fixture_server_options(f);
    options.links_max = 3;
    fixture_serve(f, &options);
    int fd[3];
    for (int i = 0; i < 3; i++) {
        fd[i] = dial_req(f);
        put_request(fd[i], 1, frame_of(i == 0 ? "never" : "echo", TOKEN, 0));
        if (i > 0)
            expect_code(f, fd[i], 1, COMMON_OK);
    }
    assert_int_equal(f->n_held, 1);
    int fresh = dial_req(f);
    put_request(fresh, 1, frame_of("never", TOKEN, 0));
    assert_true(ended(f, fd[1])); // silent for longer than the other
    fixture_turn(f, &f->n_held, 2);
    put_request(fd[2], 2, frame_of("never", TOKEN, 0));
    fixture_turn(f, &f->n_held, 3);
    int none = dial_req(f); // all are busy: this one must wait for its turn
    put_request(none, 1, frame_of("echo", TOKEN, 0));
    expect_code(f, none, 1, COMMON_RESOURCE_EXHAUSTED);
    close(none);
    fixture_answer_held(f);
    expect_code(f, fd[0], 1, COMMON_OK);
    // Half a message that does not go on is not being busy.
    put_lead(fd[0], 1000, IDS | 2);
    put(fd[0], frame_of("echo", TOKEN, 800)->at, 500);
    put_request(fd[2], 3, frame_of("never", TOKEN, 0));
    put_request(fresh, 2, frame_of("never", TOKEN, 0));
    fixture_turn(f, &f->n_held, 2);
    fixture_turn_for(f, SECONDS(1) + SECONDS(1) / 10);
    int third = dial_req(f);
    put_request(third, 1, frame_of("echo", TOKEN, 0));
    expect_code(f, third, 1, COMMON_OK);
    assert_true(ended(f, fd[0]));
    close(third);
    fixture_answer_held(f);
    expect_code(f, fresh, 1, COMMON_OK);
    expect_code(f, fresh, 2, COMMON_OK);
    expect_code(f, fd[2], 2, COMMON_OK);
    expect_code(f, fd[2], 3, COMMON_OK);
    close(fd[0]);
    close(fd[1]);
    close(fd[2]);
    close(fresh);
    expect_still_serving(f);
}

// An unanswered call holds up its own connection only.
static void test_requests_that_are_held(void **state)
{
    struct fixture *f = *state;
    enum { CLIENTS = 10, EACH = 300 };
    int fd[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        fd[i] = dial_req(f);
        for (uint32_t k = 0; k < EACH; k++)
            put_request(fd[i], k, frame_of("never", TOKEN, 0));
    }
    fixture_turn(f, &f->n_held, CLIENTS * 256);
    fixture_turn_for(f, SECONDS(1) / 10);
    assert_int_equal(f->n_held, CLIENTS * 256); // the others have not been read
    uint64_t since = common_clock_ns();
    expect_still_serving(f);
    assert_true(common_clock_ns() - since < SECONDS(2));
    // A connection that is not read is seen to end all the same.
    reset(fd[0]);
    for (uint64_t from = common_clock_ns(); common_clock_ns() - from < SECONDS(5);) {
        unsigned cancelled = 0;
        for (struct held *held = f->held; held; held = held->next)
            cancelled += held->cancelled;
        if (cancelled == 256)
            break;
        fixture_turn_for(f, SECONDS(1) / 100);
    }
    fixture_answer_held(f);
    assert_int_equal(f->n_cancelled, 256);
    fixture_turn(f, &f->n_held, (CLIENTS - 1) * (EACH - 256)); // now they are read
    fixture_answer_held(f);
    uint8_t bytes[1024];
    for (int i = 1; i < CLIENTS; i++) {
        uint8_t lead[12];
        for (uint32_t k = 0; k < EACH; k++) {
            assert_true(get(f, fd[i], lead, sizeof lead));
            assert_true(get(f, fd[i], bytes, (size_t)(lead[6] << 8 | lead[7]) - 4));
        }
        close(fd[i]);
    }
    struct proto_server_stats stats;
    proto_server_stats(f->server, &stats);
    assert_int_equal(stats.requests, 0);
    assert_int_equal(stats.bytes, 0);
}

// As nng's REQ does when an answer is long in coming.
static void test_a_request_that_is_sent_again(void **state)
{
    struct fixture *f = *state;
    int fd = dial_req(f);
    put_request(fd, 5, frame_of("later", TOKEN, 0));
    put_request(fd, 5, frame_of("later", TOKEN, 0));
    put_request(fd, 6, frame_of("later", TOKEN, 0));
    fixture_turn(f, &f->n_held, 2);
    put_request(fd, 5, frame_of("later", TOKEN, 0));
    fixture_turn_for(f, SECONDS(1) / 10);
    assert_int_equal(f->n_handled, 2);
    fixture_answer_held(f);
    expect_code(f, fd, 6, COMMON_OK); // last come, first answered
    expect_code(f, fd, 5, COMMON_OK);
    put_request(fd, 5, frame_of("echo", TOKEN, 0)); // an id is free again after its answer
    expect_code(f, fd, 5, COMMON_OK);
    close(fd);
}

// Small messages cost the most for their bytes, so they are counted.
static void test_a_stranger_with_many_messages(void **state)
{
    struct fixture *f = *state;
    int fd = dial_req(f);
    for (uint32_t i = 0; i < 64; i++)
        put_lead(fd, 4, IDS | i);
    for (uint32_t i = 0; i < 64; i++) {
        uint8_t none[1];
        assert_int_equal(get_answer(f, fd, i, none, 0), 0);
    }
    assert_true(ended(f, fd));
    close(fd);
    fd = dial_req(f);
    put_request(fd, 100, frame_of("echo", TOKEN, 0));
    expect_code(f, fd, 100, COMMON_OK);
    for (uint32_t i = 0; i < 200; i++)
        put_lead(fd, 4, IDS | i);
    for (uint32_t i = 0; i < 200; i++) {
        uint8_t none[1];
        assert_int_equal(get_answer(f, fd, i, none, 0), 0);
    }
    put_request(fd, 100, frame_of("echo", TOKEN, 0));
    expect_code(f, fd, 100, COMMON_OK);
    close(fd);
}

// A token is looked for before a large message is kept; what is refused is still read to its end.
static void test_strangers_with_large_messages(void **state)
{
    struct fixture *f = *state;
    struct proto_server_stats stats;
    int fd = dial_req(f);
    put_request(fd, 1, frame_of("echo", "wrong", 150 << 10));
    fixture_turn_for(f, SECONDS(1) / 10);
    expect_code(f, fd, 1, COMMON_UNAUTHENTICATED);
    put_request(fd, 2, frame_of("echo", NULL, 1000));
    expect_code(f, fd, 2, COMMON_UNAUTHENTICATED);
    assert_int_equal(f->n_handled, 0);
    put_request(fd, 3, frame_of("never", TOKEN, 150 << 10));
    fixture_turn(f, &f->n_held, 1);
    proto_server_stats(f->server, &stats);
    assert_true(stats.bytes > 150 << 10);
    put_request(fd, 4, frame_of("echo", "wrong", 1000)); // each request has to show it
    expect_code(f, fd, 4, COMMON_UNAUTHENTICATED);
    close(fd);
    // A header of nearly 1 MiB, of which the beginning shows no token.
    uint8_t prefix[PROTO_PREFIX_BYTES], answer[8], *big = calloc(1, 1 << 20);
    assert_non_null(big);
    fd = dial_req(f);
    proto_prefix_encode(&(struct proto_prefix){.version = PROTO_VERSION,
                                               .kind = PROTO_FRAME_REQUEST,
                                               .header_len = (1 << 20) - PROTO_PREFIX_BYTES,
                                               .payload_len = 0},
                        prefix);
    put_lead(fd, 4 + (1 << 20), IDS | 1);
    put(fd, prefix, sizeof prefix);
    for (size_t sent = sizeof prefix; sent < 1 << 20; sent += 1 << 15, fixture_turn_for(f, 0))
        put(fd, big, (1 << 20) - sent < 1 << 15 ? (1 << 20) - sent : 1 << 15);
    assert_int_equal(get_answer(f, fd, 1, answer, sizeof answer), 0);
    close(fd);
    free(big);
    expect_still_serving(f);
}

// Half a message and then nothing, before and after the token; and a reader that does not read.
static void test_silence_and_slow_readers(void **state)
{
    struct fixture *f = *state;
    proto_server_close(f->server);
    struct proto_server_options options = fixture_server_options(f);
    options.bytes_max = 64 << 20; // half of it may wait for a reader
    fixture_serve(f, &options);
    const struct frame *frame = frame_of("echo", TOKEN, 0);
    int stranger = dial_req(f), mute = dial(f), half = dial_req(f), slow = dial_req(f), greedy = dial_req(f);
    put(stranger, "\0\0\0\0\0\1\0\0\x80\0\0\1BNYN", 16);
    put_request(half, 1, frame);
    expect_code(f, half, 1, COMMON_OK);
    put_lead(half, frame->len + 4, IDS | 2);
    put(half, frame->at, frame->len / 2);
    put_request(slow, 1, frame_of("big:20000000", TOKEN, 0));
    for (uint32_t i = 0; i < 8; i++) // 160 MB: closed before it is all there
        put_request(greedy, i, frame_of("later", TOKEN, 0));
    fixture_turn(f, &f->n_held, 8);
    for (uint32_t i = 8; i < 16; i++)
        put_request(greedy, i, frame_of("big:20000000", TOKEN, 0));
    uint64_t since = common_clock_ns();
    fixture_turn_for(f, SECONDS(1));
    expect_still_serving(f);
    fixture_answer_held(f);
    uint8_t theirs[8];
    assert_true(get(f, mute, theirs, sizeof theirs));
    assert_true(ended(f, mute));
    assert_true(common_clock_ns() - since < SECONDS(9));
    assert_true(ended(f, stranger));
    assert_true(common_clock_ns() - since < SECONDS(16));
    expect_still_serving(f);
    assert_true(ended(f, half));
    assert_true(common_clock_ns() - since >= SECONDS(29));
    unsigned sent = f->n_sent;
    fixture_turn_for(f, SECONDS(4)); // the answers' bytes are free
    assert_true(f->n_sent >= sent);
    close(stranger);
    close(mute);
    close(half);
    close(slow);
    close(greedy);
    struct proto_server_stats stats;
    proto_server_stats(f->server, &stats);
    assert_int_equal(stats.requests, 0);
    expect_still_serving(f);
}

// Any byte, behind a right handshake, on many connections at once.
static void test_random_bytes(void **state)
{
    struct fixture *f = *state;
    unsigned before = descriptors();
    srand(7);
    for (int i = 0; i < 600; i++) {
        struct frame frame = *frame_of("echo", i % 2 ? TOKEN : "wrong", (size_t)(rand() % 2000));
        int fd = dial_req(f);
        for (int k = rand() % 4; k > 0; k--)
            frame.at[(size_t)rand() % (i % 3 ? frame.len : 40)] = (uint8_t)rand();
        put_lead(fd, frame.len + 4 - (size_t)(rand() % 3 ? 0 : rand() % 8), IDS | (uint32_t)i);
        size_t cut = (size_t)rand() % frame.len;
        put(fd, frame.at, cut);
        fixture_turn_for(f, 0);
        put(fd, frame.at + cut, frame.len - cut);
        fixture_turn_for(f, 0);
        if (i % 2)
            close(fd);
        else
            reset(fd);
    }
    expect_still_serving(f);
    expect_descriptors(f, before + 2);
    struct proto_server_stats stats;
    proto_server_stats(f->server, &stats);
    assert_int_equal(stats.requests, 0);
    assert_int_equal(stats.bytes, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_what_ends_a_connection),
        TEST(test_a_deep_trace_is_dropped),
        TEST(test_a_crowd_that_resets),
        TEST(test_a_crowd_that_waits),
        TEST(test_all_places_are_taken),
        TEST(test_requests_that_are_held),
        TEST(test_a_request_that_is_sent_again),
        TEST(test_a_stranger_with_many_messages),
        TEST(test_strangers_with_large_messages),
        TEST(test_silence_and_slow_readers),
        TEST(test_random_bytes),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < 1000 && proto_nng_closing() > 0; i++)
        usleep(10000);
    return failed;
}
