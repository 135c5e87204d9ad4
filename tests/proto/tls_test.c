// SPDX-License-Identifier: Apache-2.0
// What TLS adds to both transports: who may link as what, plain against TLS, an attacker in the middle,
// strangers, certificates that change. That calls go over it as over others, conformance_tls_test.c and
// conformance_nng_tls_test.c say.
#include <arpa/inet.h>
#include <netinet/in.h>
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
#include "common/secure/tls_link.h"
#include "proto/stream/stream_link.h"
#include "proto/wire/codec.h"
#include "tests/common/named.h"
#include "tests/common/test_pki.h"
#include "tests/proto/fixture.h"

#define ROLE(name) BANYAN__PB__ROLE__ROLE_##name
#define HERE       "localhost,127.0.0.1"

static struct test_pki *pki; // of the fixture's folder
static char refusals[4096];  // what the server has said of whom it refused

static int setup(void **state)
{
    struct fixture *f = fixture_new(TRANSPORT_TLS);
    pki = test_pki_new(f->dir, "test");
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    test_pki_free(pki);
    fixture_free(*state);
    return 0;
}

static void on_refusing(void *arg, enum proto_refusal refusal, const char *peer, const char *why)
{
    (void)arg, (void)refusal, (void)peer;
    size_t have = strlen(refusals);
    snprintf(refusals + have, sizeof refusals - have, "%s\n", why);
}

static struct common_tls *issue(const char *name, const char *uris, const char *hosts)
{
    return test_pki_tls(pki, &(struct test_pki_ask){.name = name, .uris = uris, .hosts = hosts});
}

static struct common_tls *of_ca(void)
{
    struct test_pki_files files;
    struct common_tls *tls;
    test_pki_ca(pki, &files);
    assert_int_equal(common_tls_new(&files.files, &tls, NULL), COMMON_OK);
    return tls;
}

// Another server at a fresh port of this scheme.
static void serve(struct fixture *f, const char *scheme, uint32_t role, struct common_tls *tls,
                  bool client_cert)
{
    struct proto_server_options options = fixture_server_options(f);
    proto_server_close(f->server);
    snprintf(f->listen, sizeof f->listen, "%s://localhost:0", scheme);
    options.role = role;
    options.tls = tls;
    options.tls_client_cert = client_cert;
    options.refusing = on_refusing;
    refusals[0] = '\0';
    fixture_serve(f, &options);
}

// One call; what became of it. Where no link ever comes, it is its deadline that says why.
static struct outcome ask_as(struct fixture *f, const char *endpoint,
                             const struct proto_channel_options *options)
{
    char before[sizeof f->endpoint];
    struct outcome o;
    memcpy(before, f->endpoint, sizeof before);
    if (endpoint != f->endpoint)
        snprintf(f->endpoint, sizeof f->endpoint, "%s", endpoint);
    struct proto_channel *channel = fixture_connect_as(f, options);
    assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo", .deadline_ns = SECONDS(2)}, &o,
                                 NULL),
                     COMMON_OK);
    fixture_turn(f, &o.done, 1);
    outcome_fini(&o);
    proto_channel_close(channel);
    fixture_turn_for(f, 30000000); // what the server says of it
    memcpy(f->endpoint, before, sizeof before);
    return o;
}

static void says(const char *text, const char *words)
{
    if (words && !strstr(text, words))
        fail_msg("'%s' does not say '%s'", text, words);
}

// ---- who may link as what -------------------------------------------------------------------------------

static void test_roles(void **state)
{
    struct fixture *f = *state;
    // What a channel of ours would not even try: its certificate is another's by the time that it dials.
    const struct {
        const char *name;
        uint32_t role, peer_role, server_role;
        const char *shows, *server_shows;
        enum common_code code;
        const char *words, *server_words;
    } cases[] = {
        {"a worker", ROLE(WORKER), ROLE(COORDINATOR), ROLE(COORDINATOR), "banyan:worker",
         "banyan:coordinator", COMMON_OK, NULL, NULL},
        {"a coordinator, of several roles", ROLE(COORDINATOR), ROLE(WORKER), ROLE(WORKER),
         "banyan:worker,banyan:coordinator", "x:y,banyan:worker", COMMON_OK, NULL, NULL},
        {"a worker that says coordinator", ROLE(COORDINATOR), ROLE(WORKER), ROLE(WORKER), "banyan:worker",
         "banyan:worker", COMMON_PERMISSION_DENIED, "does not contain banyan:coordinator",
         "does not contain banyan:coordinator"},
        {"a client that says worker", ROLE(WORKER), ROLE(COORDINATOR), ROLE(COORDINATOR), "banyan:client",
         "banyan:coordinator", COMMON_PERMISSION_DENIED, "does not contain banyan:worker",
         "does not contain banyan:worker"},
        {"no role", ROLE(WORKER), ROLE(COORDINATOR), ROLE(COORDINATOR), "x:y", "banyan:coordinator",
         COMMON_PERMISSION_DENIED, "does not contain banyan:worker", NULL},
        {"a worker in a coordinator's place", ROLE(WORKER), ROLE(COORDINATOR), ROLE(WORKER), "banyan:worker",
         "banyan:worker", COMMON_PERMISSION_DENIED, "does not contain banyan:coordinator", NULL},
        {"a worker that has both certificates", ROLE(WORKER), ROLE(COORDINATOR), ROLE(WORKER),
         "banyan:worker", "banyan:worker,banyan:coordinator", COMMON_PERMISSION_DENIED,
         "another role than the one dialled", NULL},
        {"a coordinator in a worker's place", ROLE(WORKER), ROLE(WORKER), ROLE(COORDINATOR), "banyan:worker",
         "banyan:coordinator", COMMON_PERMISSION_DENIED, "does not contain banyan:worker", NULL},
        {"a client", ROLE(CLIENT), 0, ROLE(WORKER), "banyan:client", "banyan:worker", COMMON_OK, NULL, NULL},
        {"a client at a client's", ROLE(CLIENT), 0, ROLE(CLIENT), "banyan:client", "banyan:client",
         COMMON_PERMISSION_DENIED, "names no daemon's role", NULL},
        {"a client at a worker's, for a coordinator", ROLE(CLIENT), ROLE(COORDINATOR), ROLE(WORKER),
         "banyan:client", "banyan:worker", COMMON_PERMISSION_DENIED, "does not contain banyan:coordinator",
         NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        named_case_begin(cases[i].name);
        struct common_tls *server = issue("server", cases[i].server_shows, HERE);
        struct common_tls *dials = issue("dials", "banyan:worker,banyan:coordinator,banyan:client",
                                         NULL); // no host: daemons need none
        serve(f, "tls", cases[i].server_role, server, false);
        struct proto_channel_options options = {
            .name = "dials", .role = cases[i].role, .peer_role = cases[i].peer_role, .tls = dials};
        if (cases[i].role == ROLE(CLIENT))
            options.token = TOKEN;
        else
            options.secret = &f->secret;
        struct test_pki_files files;
        struct outcome o;
        struct proto_channel *channel = fixture_connect_as(f, &options);
        test_pki_issue(pki, &(struct test_pki_ask){.name = "dials", .uris = cases[i].shows}, &files);
        assert_int_equal(common_tls_reload(dials, NULL), COMMON_OK);
        assert_int_equal(fixture_ask(channel, &(struct ask){.service = "echo"}, &o, NULL), COMMON_OK);
        fixture_turn(f, &o.done, 1);
        if (o.code != cases[i].code)
            fail_msg("%s: %s", common_code_name(o.code), o.text);
        says(o.text, cases[i].words);
        says(refusals, cases[i].server_words);
        outcome_fini(&o);
        proto_channel_close(channel);
        common_tls_unref(server);
        common_tls_unref(dials);
    }
    named_cases_end();
}

static void test_own_certificates(void **state)
{
    struct fixture *f = *state;
    struct common_tls *worker = issue("worker", "banyan:worker", HERE), *bare = of_ca();
    struct common_error err;
    struct proto_server_options server = fixture_server_options(f);
    const struct {
        struct common_tls *tls;
        enum common_code code;
        const char *words;
    } servers[] = {{NULL, COMMON_INVALID_ARGUMENT, "--tls-cert"},
                   {bare, COMMON_INVALID_ARGUMENT, "--tls-cert"},
                   {worker, COMMON_PERMISSION_DENIED, "does not contain banyan:coordinator"}},
      diallers[] = {{NULL, COMMON_INVALID_ARGUMENT, "--tls-ca"},
                    {bare, COMMON_PERMISSION_DENIED, "does not contain banyan:coordinator"},
                    {worker, COMMON_PERMISSION_DENIED, "does not contain banyan:coordinator"}};
    for (size_t i = 0; i < 3; i++) {
        struct proto_server *made;
        server.tls = servers[i].tls;
        assert_int_equal(proto_server_new(f->loop, &server, &made, &err), COMMON_OK);
        for (int nng = 0; nng < 2; nng++) {
            assert_int_equal(proto_server_listen(made, nng ? "nng+tls://127.0.0.1:0" : "tls://127.0.0.1:0",
                                                 &err),
                             servers[i].code);
            says(err.message, servers[i].words);
        }
        assert_int_equal(proto_server_listen(made, "tcp://127.0.0.1:0", &err), COMMON_OK); // plain as usual
        proto_server_close(made);
        struct proto_channel *channel;
        assert_int_equal(proto_channel_open(f->loop, f->endpoint,
                                            &(struct proto_channel_options){.name = "x",
                                                                            .role = ROLE(COORDINATOR),
                                                                            .secret = &f->secret,
                                                                            .tls = diallers[i].tls},
                                            &channel, &err),
                         diallers[i].code);
        says(err.message, diallers[i].words);
    }
    common_tls_unref(worker);
    common_tls_unref(bare);
}

static void test_clients(void **state)
{
    struct fixture *f = *state;
    struct test_pki *strange_pki = test_pki_new(f->dir, "strange");
    struct common_tls *server = issue("server", "banyan:coordinator", HERE),
                      *elsewhere = issue("elsewhere", "banyan:coordinator", "elsewhere.example"),
                      *bare = of_ca(), *client = issue("client", "banyan:client", NULL),
                      *no_role = issue("none", NULL, NULL),
                      *strange = test_pki_tls(strange_pki, &(struct test_pki_ask){.name = "strange",
                                                                                  .uris = "banyan:client"});
    const struct {
        const char *name;
        struct common_tls *server, *client;
        bool client_cert, nng;
        enum common_code code;
        const char *words, *server_words;
    } cases[] = {
        {"none", server, bare, false, false, COMMON_OK, NULL, NULL},
        {"none, nng", server, bare, false, true, COMMON_OK, NULL, NULL},
        {"its own", server, client, true, false, COMMON_OK, NULL, NULL},
        {"its own, nng", server, client, true, true, COMMON_OK, NULL, NULL},
        {"a daemon's", server, server, true, false, COMMON_OK, NULL, NULL},
        {"demanded", server, bare, true, false, COMMON_UNAUTHENTICATED, "requires a certificate",
         "shows no certificate"},
        {"demanded, nng", server, bare, true, true, COMMON_DEADLINE_EXCEEDED, NULL, "shows no certificate"},
        {"without a role", server, no_role, true, false, COMMON_PERMISSION_DENIED,
         "does not contain banyan:client", "does not contain banyan:client"},
        {"without a role, nng", server, no_role, true, true, COMMON_DEADLINE_EXCEEDED, NULL,
         "does not contain banyan:client"},
        {"another CA's", server, strange, false, false, COMMON_UNAUTHENTICATED,
         "not from an authority in our --tls-ca", "does not trust our certificate"},
        {"another CA's, nng", server, strange, false, true, COMMON_DEADLINE_EXCEEDED, NULL,
         "does not trust our certificate"},
        {"another host's", elsewhere, bare, false, false, COMMON_UNAUTHENTICATED,
         "is not for 'localhost' but for elsewhere.example", "refuses our certificate"},
        {"another host's, nng", elsewhere, bare, false, true, COMMON_DEADLINE_EXCEEDED, NULL, "certificate"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        named_case_begin(cases[i].name);
        serve(f, cases[i].nng ? "nng+tls" : "tls", ROLE(COORDINATOR), cases[i].server, cases[i].client_cert);
        struct outcome o =
            ask_as(f, f->endpoint,
                   &(struct proto_channel_options){
                       .name = "x", .role = ROLE(CLIENT), .token = TOKEN, .tls = cases[i].client});
        if (o.code != cases[i].code)
            fail_msg("%s: %s", common_code_name(o.code), o.text);
        says(o.text, cases[i].words);
        says(refusals, cases[i].server_words);
    }
    named_cases_end();
    struct proto_channel *channel;
    struct common_error err;
    assert_int_equal(proto_channel_open(f->loop,
                                        "nng+tls://127.0.0.1:9", // nng's TLS would not look at the address
                                        &(struct proto_channel_options){.tls = bare}, &channel, &err),
                     COMMON_INVALID_ARGUMENT);
    says(err.message, "dial tls://");
    struct common_tls *all[] = {server, elsewhere, bare, client, no_role, strange};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        common_tls_unref(all[i]);
    test_pki_free(strange_pki);
}

// A server whose certificate is on the list does not get the token, over either wire.
static void test_a_revoked_server(void **state)
{
    struct fixture *f = *state;
    struct test_pki_files files;
    struct common_tls *server, *before = of_ca();
    test_pki_issue(pki, &(struct test_pki_ask){.name = "server", .uris = "banyan:coordinator", .hosts = HERE},
                   &files);
    assert_int_equal(common_tls_new(&files.files, &server, NULL), COMMON_OK);
    test_pki_revoke(pki, files.cert);
    struct common_tls *after = of_ca();
    for (int nng = 0; nng < 2; nng++)
        for (int revoked = 0; revoked < 2; revoked++) {
            serve(f, nng ? "nng+tls" : "tls", ROLE(COORDINATOR), server, false);
            struct outcome o = ask_as(f, f->endpoint,
                                      &(struct proto_channel_options){.name = "x",
                                                                      .role = ROLE(CLIENT),
                                                                      .token = TOKEN,
                                                                      .tls = revoked ? after : before});
            enum common_code code = !revoked ? COMMON_OK
                                    : nng    ? COMMON_DEADLINE_EXCEEDED
                                             : COMMON_UNAUTHENTICATED;
            if (o.code != code)
                fail_msg("%s, %s: %s: %s", nng ? "nng" : "stream", revoked ? "revoked" : "good",
                         common_code_name(o.code), o.text);
        }
    common_tls_unref(server);
    common_tls_unref(before);
    common_tls_unref(after);
}

// ---- plain against TLS ----------------------------------------------------------------------------------

static void test_plain_against_tls(void **state)
{
    struct fixture *f = *state;
    const struct {
        const char *listens, *dials, *words, *server_words;
    } cases[] = {
        {"tls", "tcp", "the peer uses TLS, and this end does not: dial tls://",
         "the dialler does not use TLS"},
        {"tcp", "tls", "does it use TLS?", "the peer uses TLS, and this end does not"},
        {"nng+tcp", "tls", "the server does not use TLS: dial tcp://", NULL},
        {"tls", "nng+tcp", NULL, "the dialler does not use TLS"},
        {"nng+tls", "nng+tcp", NULL, "the dialler does not use TLS"},
        {"nng+tcp", "nng+tls", NULL, "not an nng handshake"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64], endpoint[400];
        snprintf(name, sizeof name, "%s at %s", cases[i].dials, cases[i].listens);
        named_case_begin(name);
        serve(f, cases[i].listens, ROLE(COORDINATOR), f->tls, false);
        snprintf(endpoint, sizeof endpoint, "%s%s", cases[i].dials, strstr(f->endpoint, "://"));
        struct outcome o =
            ask_as(f, endpoint,
                   &(struct proto_channel_options){.name = "x", .role = ROLE(CLIENT), .token = TOKEN});
        assert_int_equal(o.code, COMMON_DEADLINE_EXCEEDED); // the right one may come there yet
        says(o.text, cases[i].words);
        says(refusals, cases[i].server_words);
    }
    named_cases_end();
}

// ---- an attacker in the middle --------------------------------------------------------------------------

// Has stolen certificates of both roles, and not the cluster's secret: passes on what the two ends say.
struct middle {
    struct common_tls *as_server, *as_client;
    int listener, port;
    uint16_t to;
    pthread_t thread;
    atomic_bool stop;
    atomic_uint passed; // bytes
};

static bool pump(struct middle *m, struct common_tls_link *from, struct common_tls_link *to)
{
    uint8_t bytes[4096];
    enum common_tls_state state;
    size_t got = common_tls_link_read(from, bytes, sizeof bytes, &state);
    if (state != COMMON_TLS_GOES_ON)
        return false;
    struct iovec iov = {bytes, got};
    atomic_fetch_add(&m->passed, (unsigned)got);
    return got == 0 || common_tls_link_write(to, &iov, 1, &state) == got;
}

static bool meet(struct common_tls *tls, int fd, enum common_tls_end end, struct common_tls_link **out)
{
    bool done = false;
    if (common_tls_link_new(tls, fd, &(struct common_tls_link_options){.end = end}, out, NULL) != COMMON_OK)
        return false;
    for (int i = 0; i < 200 && !done; i++) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (common_tls_link_shake(*out, &done) != COMMON_TLS_GOES_ON)
            return false;
        if (!done)
            poll(&wait, 1, 50);
    }
    return done;
}

static void stand_between(struct middle *m, int near)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(m->to),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int far = socket(AF_INET, SOCK_STREAM, 0);
    struct common_tls_link *ends[2] = {NULL, NULL};
    if (connect(far, (struct sockaddr *)&address, sizeof address) == 0 &&
        meet(m->as_client, far, COMMON_TLS_DIAL, &ends[0]) &&
        meet(m->as_server, near, COMMON_TLS_ACCEPT, &ends[1]))
        while (!atomic_load(&m->stop) && pump(m, ends[0], ends[1]) && pump(m, ends[1], ends[0]))
            usleep(1000);
    common_tls_link_free(ends[0]);
    common_tls_link_free(ends[1]);
    close(far);
    close(near);
}

static void *run_middle(void *arg)
{
    struct middle *m = arg;
    while (!atomic_load(&m->stop)) {
        struct pollfd wait = {.fd = m->listener, .events = POLLIN};
        if (poll(&wait, 1, 20) == 1)
            stand_between(m, accept4(m->listener, NULL, NULL, SOCK_NONBLOCK));
    }
    return NULL;
}

static void start_middle(struct middle *m, const char *to)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    m->to = (uint16_t)atoi(strrchr(to, ':') + 1);
    m->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(m->listener, (struct sockaddr *)&address, len), 0);
    assert_int_equal(listen(m->listener, 8), 0);
    assert_int_equal(getsockname(m->listener, (struct sockaddr *)&address, &len), 0);
    m->port = ntohs(address.sin_port);
    assert_int_equal(pthread_create(&m->thread, NULL, run_middle, m), 0);
}

static void test_somebody_in_the_middle(void **state)
{
    struct fixture *f = *state;
    struct common_tls *server = issue("server", "banyan:coordinator", HERE),
                      *worker = issue("worker", "banyan:worker", NULL);
    struct middle m = {.as_server = issue("stolen", "banyan:coordinator", "elsewhere.example"),
                       .as_client = issue("stolen2", "banyan:worker", NULL)};
    char endpoint[64];
    serve(f, "tls", ROLE(COORDINATOR), server, false);
    start_middle(&m, f->endpoint);
    snprintf(endpoint, sizeof endpoint, "tls://127.0.0.1:%d", m.port);
    struct proto_channel_options options = {.name = "worker",
                                            .role = ROLE(WORKER),
                                            .peer_role = ROLE(COORDINATOR),
                                            .secret = &f->secret,
                                            .tls = worker};
    struct outcome o = ask_as(f, endpoint, &options);
    assert_int_equal(o.code, COMMON_UNAUTHENTICATED); // both proofs are right, and of other connections
    assert_true(atomic_load(&m.passed) > 100);        // it came as far as the server's hello
    assert_int_equal(f->n_handled, 0);
    o = ask_as(f, f->endpoint, &options);
    assert_int_equal(o.code, COMMON_OK); // without it
    // A client looks at the name: its token goes nowhere.
    unsigned passed = atomic_load(&m.passed);
    o = ask_as(
        f, endpoint,
        &(struct proto_channel_options){.name = "x", .role = ROLE(CLIENT), .token = TOKEN, .tls = worker});
    assert_int_equal(o.code, COMMON_UNAUTHENTICATED);
    says(o.text, "is not for '127.0.0.1'");
    assert_int_equal(atomic_load(&m.passed), passed);
    atomic_store(&m.stop, true);
    pthread_join(m.thread, NULL);
    close(m.listener);
    common_tls_unref(server);
    common_tls_unref(worker);
    common_tls_unref(m.as_server);
    common_tls_unref(m.as_client);
}

// ---- strangers ------------------------------------------------------------------------------------------

static int dial_raw(const struct fixture *f, const void *bytes, size_t len)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)atoi(strrchr(f->endpoint, ':') + 1)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(send(fd, bytes, len, MSG_NOSIGNAL), len);
    return fd;
}

static void half_hellos(struct fixture *f)
{
    static const uint8_t half[60] = {22, 3, 1, 1, 0, 1, 0, 0, 252, 3, 3};
    int fds[PROTO_STRANGERS_MAX + 20];
    const size_t n = sizeof fds / sizeof *fds;
    for (size_t i = 0; i < n; i++) {
        fds[i] = dial_raw(f, half, sizeof half);
        if (i % 16 == 0)
            fixture_turn_for(f, 0);
    }
    struct outcome o =
        ask_as(f, f->endpoint,
               &(struct proto_channel_options){.name = "x", .role = ROLE(CLIENT), .token = TOKEN});
    assert_int_equal(o.code, COMMON_OK); // they have places of their own
    uint8_t byte;
    size_t gone = 0;
    for (size_t i = 0; i < n; i++)
        gone += recv(fds[i], &byte, 1, MSG_DONTWAIT) == 0;
    assert_in_range(gone, 1, 60);       // the oldest
    uint64_t since = common_clock_ns(); // and the others when their time is up
    while (gone < n && common_clock_ns() - since < SECONDS(20)) {
        fixture_turn_for(f, 100000000);
        gone = 0;
        for (size_t i = 0; i < n; i++)
            gone += recv(fds[i], &byte, 1, MSG_DONTWAIT) == 0;
    }
    assert_int_equal(gone, n);
    for (size_t i = 0; i < n; i++)
        close(fds[i]);
}

static void test_half_hellos(void **state)
{
    struct fixture *f = *state;
    half_hellos(f);
    serve(f, "nng+tls", ROLE(COORDINATOR), f->tls, false);
    half_hellos(f);
}

// ---- bytes ----------------------------------------------------------------------------------------------

static void test_a_reader_that_pauses(void **state)
{
    struct fixture *f = *state;
    enum { N = 240, BYTES = 3000 };
    struct proto_server_options options = fixture_server_options(f);
    options.caller_requests_max = 3;
    proto_server_close(f->server);
    fixture_serve(f, &options);
    struct proto_channel *channel = fixture_connect(f);
    static struct outcome outcomes[N];
    static uint8_t data[BYTES];
    struct common_slice piece = {data, sizeof data};
    const struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {sizeof data}, &piece, 1};
    for (int i = 0; i < N; i++)
        assert_int_equal(fixture_ask(channel,
                                     &(struct ask){.service = "later", .tensors = &tensor, .n_tensors = 1},
                                     &outcomes[i], NULL),
                         COMMON_OK);
    // Each time that some are answered the link reads on, by and by with nothing left in the socket.
    while (f->n_handled < N) {
        unsigned before = f->n_handled;
        fixture_turn(f, &f->n_handled, before + 1);
        assert_true(f->n_held <= 3);
        fixture_answer_held(f);
    }
    for (int i = 0; i < N; i++) {
        fixture_answer_held(f);
        fixture_turn(f, &outcomes[i].done, 1);
        assert_int_equal(outcomes[i].code, COMMON_OK);
        outcome_fini(&outcomes[i]);
    }
    proto_channel_close(channel);
}

static void test_a_frame_of_60_mib(void **state)
{
    struct fixture *f = *state;
    const size_t len = 60 << 20;
    uint64_t *data = malloc(len);
    assert_non_null(data);
    for (size_t i = 0; i < len / 8; i++)
        data[i] = common_mix64(i);
    struct common_slice pieces[] = {{data, 100},
                                    {(uint8_t *)data + 100, 5 << 20},
                                    {(uint8_t *)data + 100 + (5 << 20), len - 100 - (5 << 20)}};
    const struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {len}, pieces, 3};
    struct proto_channel *channel = fixture_connect(f);
    struct outcome o;
    assert_int_equal(
        fixture_ask(channel, &(struct ask){.service = "echo", .tensors = &tensor, .n_tensors = 1}, &o, NULL),
        COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_OK);
    assert_int_equal(o.bytes[0], len);
    assert_memory_equal(o.data[0], data, len);
    outcome_fini(&o);
    proto_channel_close(channel);
    free(data);
}

// Two links of ours over a socket that holds little: the last bytes of a frame wait for it after the frame is
// done with, and what is decrypted already is read although nothing more comes.
struct small {
    struct proto_link *links[2];
    unsigned got, asked;
    bool failed;
};

static bool on_small_frame(void *owner, const struct proto_prefix *prefix, struct common_blob *blob,
                           size_t offset, struct common_error *err)
{
    struct small *small = owner;
    const uint8_t *payload = blob->data + offset + proto_frame_payload_at(prefix->header_len);
    (void)err;
    for (uint64_t i = 0; i < prefix->payload_len; i += 997)
        assert_int_equal(payload[i], (uint8_t)(i % 251));
    small->got++;
    return true;
}

static bool may_read_small(void *owner)
{
    struct small *small = owner;
    return ++small->asked % 3 != 0;
}

static void on_small_failed(void *owner, enum common_code code, const char *text)
{
    struct small *small = owner;
    (void)code;
    print_error("%s\n", text);
    small->failed = true;
}

static void test_a_small_socket(void **state)
{
    static const struct proto_link_ops ops = {.frame = on_small_frame,
                                              .failed = on_small_failed,
                                              .may_read = may_read_small};
    static const size_t lens[] = {1, 100, 4000, 16000, 16384, 40000, 66000, 150000, 1 << 20};
    static uint8_t data[1 << 20];
    struct fixture *f = *state;
    struct small small = {0};
    struct proto_scratch scratch = {0};
    int fds[2], room = 4608;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i % 251);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    for (int i = 0; i < 2; i++) {
        const struct common_tls_link_options options = {.end = i ? COMMON_TLS_ACCEPT : COMMON_TLS_DIAL};
        setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
        small.links[i] = proto_link_new(f->loop, fds[i], &ops, &small);
        assert_non_null(small.links[i]);
        assert_int_equal(proto_link_secure(small.links[i], f->tls, &options, NULL), COMMON_OK);
        assert_true(proto_link_set_limits(small.links[i], PROTO_HEADER_MAX, sizeof data));
    }
    for (unsigned n = 0; n < 90; n++) {
        struct common_slice piece = {data, lens[n % 9]};
        const struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {piece.len}, &piece, 1};
        const struct proto_outgoing outgoing = {.kind = PROTO_FRAME_REQUEST,
                                                .method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                                .request = n + 1,
                                                .remaining_ns = SECONDS(9),
                                                .tensors = &tensor,
                                                .n_tensors = 1};
        struct proto_gather gather;
        assert_int_equal(proto_frame_encode(&scratch, &outgoing, UINT64_MAX / 4, &gather, NULL), COMMON_OK);
        assert_true(proto_link_send(small.links[n / 9 % 2], &gather, NULL, NULL, NULL));
        uint64_t since = common_clock_ns();
        bool alone = n % 2; // or with the next one behind it
        while (alone && small.got < n + 1 && !small.failed && common_clock_ns() - since < SECONDS(30)) {
            fixture_turn_for(f, 0);
            proto_link_resume(small.links[0]);
            proto_link_resume(small.links[1]);
        }
        assert_int_equal(alone ? small.got : n + 1, n + 1);
    }
    assert_false(small.failed);
    for (int i = 0; i < 2; i++) {
        assert_false(
            proto_link_stalls(small.links[i], common_clock_ns() + SECONDS(1))); // nothing is left anywhere
        proto_link_close(small.links[i]);
    }
    proto_scratch_fini(&scratch);
}

// ---- certificates that change ---------------------------------------------------------------------------

static void test_reload(void **state)
{
    struct fixture *f = *state;
    struct common_tls *server = issue("server", "banyan:coordinator", HERE), *bare = of_ca();
    const struct proto_channel_options options = {
        .name = "x", .role = ROLE(CLIENT), .token = TOKEN, .tls = bare};
    struct test_pki_files files;
    struct outcome o;
    serve(f, "tls", ROLE(COORDINATOR), server, false);
    struct proto_channel *old = fixture_connect_as(f, &options);
    assert_int_equal(fixture_ask(old, &(struct ask){.service = "echo"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_OK);
    outcome_fini(&o);
    test_pki_issue(
        pki, &(struct test_pki_ask){.name = "server", .uris = "banyan:coordinator", .hosts = "new.example"},
        &files);
    o = ask_as(f, f->endpoint, &options);
    assert_int_equal(o.code, COMMON_OK); // it has not been read yet
    assert_int_equal(common_tls_reload(server, NULL), COMMON_OK);
    o = ask_as(f, f->endpoint, &options);
    assert_int_equal(o.code, COMMON_UNAUTHENTICATED);
    says(o.text, "but for new.example");
    assert_true(proto_channel_connected(old)); // who is in stays in
    assert_int_equal(fixture_ask(old, &(struct ask){.service = "echo"}, &o, NULL), COMMON_OK);
    fixture_turn(f, &o.done, 1);
    assert_int_equal(o.code, COMMON_OK);
    outcome_fini(&o);
    proto_channel_close(old);
    common_tls_unref(server);
    common_tls_unref(bare);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_roles),
        TEST(test_own_certificates),
        TEST(test_clients),
        TEST(test_a_revoked_server),
        TEST(test_plain_against_tls),
        TEST(test_somebody_in_the_middle),
        TEST(test_half_hellos),
        TEST(test_a_reader_that_pauses),
        TEST(test_a_frame_of_60_mib),
        TEST(test_a_small_socket),
        TEST(test_reload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
