// SPDX-License-Identifier: Apache-2.0
// Connections of TLS over a pair of sockets: which end trusts which and with which words, bytes in any
// pieces, ends.
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <openssl/ssl.h>

#include "common/hash/hash.h"
#include "common/secure/tls_link.h"
#include "tests/common/named.h"
#include "tests/common/scratch.h"
#include "tests/common/test_pki.h"

static struct scratch scratch;
static struct test_pki *ours, *other;
static struct common_tls *server, *client; // both of `ours`

static int setup(void **state)
{
    (void)state;
    if (scratch_init(&scratch) != 0)
        return -1;
    ours = test_pki_new(scratch.dir, "ours");
    other = test_pki_new(scratch.dir, "other");
    server = test_pki_tls(ours, &(struct test_pki_ask){.name = "server",
                                                       .uris = "banyan:worker",
                                                       .hosts = "here.example,10.1.2.3,::1"});
    client = test_pki_tls(ours, &(struct test_pki_ask){.name = "client", .uris = "banyan:client"});
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    common_tls_unref(server);
    common_tls_unref(client);
    test_pki_free(ours);
    test_pki_free(other);
    scratch_remove(&scratch);
    return 0;
}

// ---- a pair ---------------------------------------------------------------------------------------------

struct end {
    int fd;
    struct common_tls_link *link;
    enum common_tls_state state;
    bool done;
};

struct pair {
    struct end dials, accepts;
};

static void open_end(struct end *end, int fd, const struct common_tls *tls,
                     const struct common_tls_link_options *options)
{
    *end = (struct end){.fd = fd};
    assert_int_equal(common_tls_link_new(tls, fd, options, &end->link, NULL), COMMON_OK);
}

static void close_end(struct end *end)
{
    common_tls_link_free(end->link);
    if (end->fd >= 0)
        close(end->fd);
    *end = (struct end){.fd = -1};
}

static void step(struct end *end)
{
    if (!end->link || end->done || end->state != COMMON_TLS_GOES_ON)
        return;
    end->state = common_tls_link_shake(end->link, &end->done);
    if (end->state == COMMON_TLS_GOES_ON)
        end->state = common_tls_link_flush(end->link);
}

static void shake(struct pair *pair)
{
    for (int i = 0; i < 10; i++) {
        step(&pair->dials);
        step(&pair->accepts);
    }
}

static void open_pair(struct pair *pair, const struct common_tls *dials, const struct common_tls *accepts,
                      const char *name, bool demands, bool old)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    open_end(&pair->dials, fds[0], dials,
             &(struct common_tls_link_options){.end = COMMON_TLS_DIAL, .server = name});
    open_end(&pair->accepts, fds[1], accepts,
             &(struct common_tls_link_options){.end = old ? COMMON_TLS_ACCEPT_OLD : COMMON_TLS_ACCEPT,
                                               .demands = demands});
    shake(pair);
}

static void close_pair(struct pair *pair)
{
    close_end(&pair->dials);
    close_end(&pair->accepts);
}

static void expect(const struct end *end, enum common_tls_state state, const char *words)
{
    const char *why = common_tls_link_why(end->link);
    if (end->state != state || (words && !strstr(why, words)))
        fail_msg("state %d, not %d: '%s' does not say '%s'", end->state, state, why, words ? words : "");
}

// What a read says, where a handshake ended before the other end had judged.
static void read_on(struct end *end)
{
    uint8_t byte;
    if (end->done && end->state == COMMON_TLS_GOES_ON)
        assert_int_equal(common_tls_link_read(end->link, &byte, 1, &end->state), 0);
}

// ---- which end trusts which -------------------------------------------------------------------------------

static void test_belief(void **state)
{
    (void)state;
    struct test_pki_files bare_files, moment_files, gone_files;
    struct common_tls *bare, *moment, *gone, *knows_gone;
    test_pki_ca(ours, &bare_files);
    assert_int_equal(common_tls_new(&bare_files.files, &bare, NULL), COMMON_OK);
    test_pki_issue(
        ours, &(struct test_pki_ask){.name = "moment", .from_s = -60, .to_s = 2, .hosts = "here.example"},
        &moment_files);
    assert_int_equal(common_tls_new(&moment_files.files, &moment, NULL), COMMON_OK);
    struct common_tls *stranger =
        test_pki_tls(other, &(struct test_pki_ask){.name = "stranger", .hosts = "here.example"});
    struct common_tls *only_client = test_pki_tls(
        ours, &(struct test_pki_ask){.name = "only", .hosts = "here.example", .for_clients_only = true});
    test_pki_issue(ours, &(struct test_pki_ask){.name = "gone", .hosts = "here.example"}, &gone_files);
    assert_int_equal(common_tls_new(&gone_files.files, &gone, NULL), COMMON_OK);
    test_pki_revoke(ours, gone_files.cert);
    assert_int_equal(common_tls_new(&bare_files.files, &knows_gone, NULL), COMMON_OK);
    sleep(3); // `moment` is over

    const struct {
        const char *name;
        const struct common_tls *dials, *accepts;
        const char *host;
        bool demands;
        enum common_tls_state at_dialler, at_acceptor;
        const char *dialler_says, *acceptor_says;
    } cases[] = {
        {"both show", client, server, "here.example", true, COMMON_TLS_GOES_ON, COMMON_TLS_GOES_ON, NULL,
         NULL},
        {"one shows", bare, server, "here.example", false, COMMON_TLS_GOES_ON, COMMON_TLS_GOES_ON, NULL,
         NULL},
        {"an address", bare, server, "10.1.2.3", false, COMMON_TLS_GOES_ON, COMMON_TLS_GOES_ON, NULL, NULL},
        {"one of IPv6", bare, server, "0:0::1", false, COMMON_TLS_GOES_ON, COMMON_TLS_GOES_ON, NULL, NULL},
        {"anybody", client, server, NULL, true, COMMON_TLS_GOES_ON, COMMON_TLS_GOES_ON, NULL, NULL},
        {"demanded", bare, server, "here.example", true, COMMON_TLS_REFUSED, COMMON_TLS_REFUSED,
         "requires a certificate: give --tls-cert", "shows no certificate"},
        {"other name", bare, server, "there.example", false, COMMON_TLS_REFUSED, COMMON_TLS_REFUSED,
         "is not for 'there.example' but for here.example, 10.1.2.3, 0:0:0:0:0:0:0:1",
         "refuses our certificate"},
        {"other address", bare, server, "10.1.2.4", false, COMMON_TLS_REFUSED, COMMON_TLS_REFUSED,
         "is not for '10.1.2.4'", "refuses our certificate"},
        {"server of another CA", client, stranger, "here.example", false, COMMON_TLS_REFUSED,
         COMMON_TLS_REFUSED, "not from an authority in our --tls-ca", "does not trust our certificate"},
        {"client of another CA", stranger, server, NULL, false, COMMON_TLS_REFUSED, COMMON_TLS_GOES_ON,
         "not from an authority in our --tls-ca", NULL},
        {"expired", bare, moment, "here.example", false, COMMON_TLS_REFUSED, COMMON_TLS_REFUSED, "expired on",
         "says that our certificate has expired"},
        {"expired client", moment, server, "here.example", true, COMMON_TLS_REFUSED, COMMON_TLS_REFUSED,
         "says that our certificate has expired", "expired on"},
        {"of a client", bare, only_client, "here.example", false, COMMON_TLS_REFUSED, COMMON_TLS_REFUSED,
         "extended key usage", "refuses our certificate"},
        {"revoked", knows_gone, gone, "here.example", false, COMMON_TLS_REFUSED, COMMON_TLS_REFUSED,
         "has been revoked", "has been revoked"},
        {"not revoked", knows_gone, server, "here.example", false, COMMON_TLS_GOES_ON, COMMON_TLS_GOES_ON,
         NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pair pair;
        named_case_begin(cases[i].name);
        open_pair(&pair, cases[i].dials, cases[i].accepts, cases[i].host, cases[i].demands, false);
        read_on(&pair.dials);
        read_on(&pair.accepts);
        expect(&pair.dials, cases[i].at_dialler, cases[i].dialler_says);
        if (cases[i].acceptor_says || cases[i].at_acceptor != COMMON_TLS_GOES_ON)
            expect(&pair.accepts, cases[i].at_acceptor, cases[i].acceptor_says);
        close_pair(&pair);
    }
    named_cases_end();
    common_tls_unref(bare);
    common_tls_unref(moment);
    common_tls_unref(stranger);
    common_tls_unref(only_client);
    common_tls_unref(gone);
    common_tls_unref(knows_gone);
}

static void test_what_a_peer_shows(void **state)
{
    (void)state;
    struct pair pair;
    uint8_t one[COMMON_TLS_BINDING_BYTES], two[COMMON_TLS_BINDING_BYTES], three[COMMON_TLS_BINDING_BYTES];
    open_pair(&pair, client, server, "here.example", true, false);
    assert_true(common_tls_link_shows(pair.dials.link) && common_tls_link_shows(pair.accepts.link));
    assert_true(common_tls_link_says(pair.dials.link, "banyan:worker"));
    assert_false(common_tls_link_says(pair.dials.link, "banyan:coordinator"));
    assert_true(common_tls_link_says(pair.accepts.link, "banyan:client"));
    assert_false(common_tls_link_says(pair.accepts.link, "banyan:worker"));
    assert_true(common_tls_link_binding(pair.dials.link, "EXPORTER-x", one));
    assert_true(common_tls_link_binding(pair.accepts.link, "EXPORTER-x", two));
    assert_memory_equal(one, two, sizeof one);
    close_pair(&pair);
    open_pair(&pair, client, server, "here.example", true, false); // another connection, another binding
    assert_true(common_tls_link_binding(pair.dials.link, "EXPORTER-x", three));
    assert_memory_not_equal(one, three, sizeof one);
    close_pair(&pair);
}

// A peer of OpenSSL's own, of 1.2 at most.
static void shake_12(bool old, enum common_tls_state want, const char *words)
{
    int fds[2];
    struct end end;
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    assert_true(SSL_CTX_set_max_proto_version(ctx, TLS1_2_VERSION));
    SSL *ssl = SSL_new(ctx);
    SSL_set_fd(ssl, fds[0]);
    open_end(&end, fds[1], server,
             &(struct common_tls_link_options){.end = old ? COMMON_TLS_ACCEPT_OLD : COMMON_TLS_ACCEPT});
    for (int i = 0; i < 10; i++) {
        SSL_connect(ssl);
        step(&end);
    }
    expect(&end, want, words);
    assert_int_equal(end.done, want == COMMON_TLS_GOES_ON);
    if (end.done) { // an end that would start again is left out
        assert_int_equal(SSL_version(ssl), TLS1_2_VERSION);
        assert_int_equal(SSL_renegotiate(ssl), 1);
        SSL_do_handshake(ssl);
        uint8_t byte;
        assert_int_equal(common_tls_link_read(end.link, &byte, 1, &end.state), 0);
        SSL_do_handshake(ssl);
        assert_false(SSL_write(ssl, "x", 1) == 1 &&
                     common_tls_link_read(end.link, &byte, 1, &end.state) == 1);
    }
    close_end(&end);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fds[0]);
}

static void test_versions(void **state)
{
    (void)state;
    struct pair pair;
    shake_12(false, COMMON_TLS_REFUSED, "does not support TLS 1.3");
    shake_12(true, COMMON_TLS_GOES_ON, NULL);
    open_pair(&pair, client, server, "here.example", true, true); // who can speaks 1.3 there, too
    assert_true(pair.dials.done && pair.accepts.done);
    close_pair(&pair);
}

static void test_plain_peers(void **state)
{
    (void)state;
    static const char *const plain[] = {"BNYN and what a frame has behind it", "GET / HTTP/1.1\r\n\r\n",
                                        "0SP0000000000000000000000"};
    struct end end;
    int fds[2];
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        for (int accepts = 0; accepts < 2; accepts++) {
            uint8_t alert[7];
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
            open_end(&end, fds[1], server,
                     &(struct common_tls_link_options){.end = accepts ? COMMON_TLS_ACCEPT : COMMON_TLS_DIAL});
            assert_true(write(fds[0], plain[i], strlen(plain[i])) > 0);
            step(&end);
            expect(&end, COMMON_TLS_BROKEN,
                   accepts ? "the dialler does not use TLS" : "the server does not use TLS");
            if (accepts) { // it is reported in a way that it can distinguish from a frame
                assert_int_equal(read(fds[0], alert, sizeof alert), sizeof alert);
                assert_int_equal(alert[0], 21);
            }
            close_end(&end);
            close(fds[0]);
        }
    for (size_t n = 0; n < 40; n += 13) { // half a beginning, and gone
        static const uint8_t beginning[40] = {22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3};
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
        open_end(&end, fds[1], server, &(struct common_tls_link_options){.end = COMMON_TLS_ACCEPT});
        assert_int_equal(write(fds[0], beginning, n), n);
        step(&end);
        expect(&end, COMMON_TLS_GOES_ON, NULL);
        close(fds[0]);
        step(&end);
        expect(&end, COMMON_TLS_LOST, "during the TLS handshake");
        close_end(&end);
    }
}

// ---- bytes ----------------------------------------------------------------------------------------------

static uint64_t seed;

static uint64_t any(uint64_t below)
{
    return common_mix64(seed++) % below;
}

// A gather list over all of data, in pieces of any size: none, small ones, larger than a record.
static size_t cut(uint8_t *data, size_t len, struct iovec *iov, size_t max)
{
    size_t n = 0, at = 0;
    while (at < len && n + 1 < max) {
        static const uint64_t sizes[] = {1, 7, 100, 2000, 16383, 16384, 16385, 50000, 300000};
        size_t piece = (size_t)any(sizes[any(9)] + 1);
        if (piece > len - at)
            piece = len - at;
        iov[n++] = (struct iovec){data + at, piece};
        at += piece;
    }
    iov[n++] = (struct iovec){data + at, len - at};
    return n;
}

// All of `data` from one end to the other, in turns of any size: what comes is what went, and what is not
// pending here and not in the socket is not here.
static void pass(struct end *from, struct end *to, uint8_t *data, size_t len)
{
    struct iovec iov[300], *at = iov;
    size_t n = cut(data, len, iov, 300), sent = 0, have = 0, idle = 0;
    uint8_t *got = malloc(len + 1);
    assert_non_null(got);
    while (have < len) {
        size_t before = have + sent;
        if (any(3) > 0) {
            size_t took = common_tls_link_write(from->link, at, n, &from->state);
            expect(from, COMMON_TLS_GOES_ON, NULL);
            sent += took;
            while (n > 0 && took >= at->iov_len) {
                took -= at->iov_len;
                at++;
                n--;
            }
            if (n > 0) {
                at->iov_base = (uint8_t *)at->iov_base + took;
                at->iov_len -= took;
            } else if (!common_tls_link_unsent(from->link)) {
                assert_int_equal(sent, len);
            }
        } else {
            assert_int_equal(common_tls_link_flush(from->link), COMMON_TLS_GOES_ON);
        }
        for (int reads = (int)any(4); reads > 0; reads--) {
            static const uint64_t sizes[] = {1, 100, 16384, 65536, 200000, 1 << 20};
            size_t want = (size_t)any(sizes[any(6)]) + 1, room = len - have + 1;
            size_t came = common_tls_link_read(to->link, got + have, want < room ? want : room, &to->state);
            assert_int_equal(to->state, COMMON_TLS_GOES_ON);
            have += came;
            assert_true(have <= sent);
            if (came < want && came < room) {
                assert_false(common_tls_link_pending(to->link));
                if (n == 0 && !common_tls_link_unsent(from->link))
                    assert_int_equal(have, len); // everything had gone: all of it is here
            }
        }
        idle = have + sent == before ? idle + 1 : 0;
        assert_true(idle < 10000);
    }
    assert_memory_equal(got, data, len);
    free(got);
}

static void test_bytes_in_any_pieces(void **state)
{
    (void)state;
    static const size_t lens[] = {1, 5, 100, 16383, 16384, 16385, 16640, 100000, 4 << 20, 64 << 20};
    uint8_t *data = malloc(64 << 20);
    assert_non_null(data);
    for (size_t i = 0; i < (64 << 20) / 8; i++)
        ((uint64_t *)(void *)data)[i] = common_mix64(i);
    for (unsigned round = 0; round < 60; round++) {
        struct pair pair;
        int room = round % 3 ? 4096 << any(8) : 0;
        seed = round * 1000003;
        open_pair(&pair, client, server, "here.example", true, round % 4 == 3);
        for (int i = 0; room && i < 2; i++) {
            setsockopt(i ? pair.dials.fd : pair.accepts.fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
            setsockopt(i ? pair.dials.fd : pair.accepts.fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
        }
        for (int turns = 0; turns < 6; turns++) { // both ways
            bool back = any(2);
            size_t len = lens[round == 0 && turns == 0 ? 9 : any(round < 12 ? 9 : 8)];
            pass(back ? &pair.accepts : &pair.dials, back ? &pair.dials : &pair.accepts, data, len);
        }
        close_pair(&pair);
    }
    free(data);
}

static void put(struct end *end, const void *data, size_t len)
{
    struct iovec iov = {(void *)(uintptr_t)data, len};
    assert_int_equal(common_tls_link_write(end->link, &iov, 1, &end->state), len);
}

static void test_ends(void **state)
{
    (void)state;
    struct pair pair;
    uint8_t got[64];
    open_pair(&pair, client, server, "here.example", true, false); // with a word
    put(&pair.dials, "the last", 8);
    close_end(&pair.dials);
    assert_int_equal(common_tls_link_read(pair.accepts.link, got, 3, &pair.accepts.state), 3);
    assert_true(common_tls_link_pending(pair.accepts.link)); // the socket has nothing more
    assert_int_equal(common_tls_link_read(pair.accepts.link, got, sizeof got, &pair.accepts.state), 5);
    assert_int_equal(pair.accepts.state, COMMON_TLS_GOES_ON);
    assert_int_equal(common_tls_link_read(pair.accepts.link, got, sizeof got, &pair.accepts.state), 0);
    expect(&pair.accepts, COMMON_TLS_ENDED, NULL);
    close_pair(&pair);

    open_pair(&pair, client, server, "here.example", true, false); // without
    put(&pair.dials, "the last", 8);
    assert_int_equal(shutdown(pair.dials.fd, SHUT_WR), 0);
    assert_int_equal(common_tls_link_read(pair.accepts.link, got, 8, &pair.accepts.state), 8);
    assert_int_equal(common_tls_link_read(pair.accepts.link, got, 8, &pair.accepts.state), 0);
    expect(&pair.accepts, COMMON_TLS_LOST, "cut off");
    assert_int_equal(common_tls_link_read(pair.accepts.link, got, 8, &pair.accepts.state), 0); // and stays so
    assert_int_equal(pair.accepts.state, COMMON_TLS_LOST);
    close_pair(&pair);
}

// Each byte of a record altered on its way, one at a time.
static void test_altered_bytes(void **state)
{
    (void)state;
    for (size_t at = 0; at < 30; at++) {
        struct pair pair;
        uint8_t record[64], got[64];
        open_pair(&pair, client, server, "here.example", true, false);
        put(&pair.dials, "12345678", 8);
        ssize_t n = recv(pair.accepts.fd, record, sizeof record, 0);
        assert_int_equal(n, 5 + 8 + 1 + 16);
        record[at] ^= 0x41;
        assert_int_equal(send(pair.dials.fd, record, (size_t)n, 0), n); // TLS's own descriptor, past TLS
        assert_int_equal(common_tls_link_read(pair.accepts.link, got, sizeof got, &pair.accepts.state), 0);
        if (pair.accepts.state == COMMON_TLS_GOES_ON) { // it waits for the rest of a longer one
            assert_in_range(at, 3, 4);
            shutdown(pair.dials.fd, SHUT_WR);
            assert_int_equal(common_tls_link_read(pair.accepts.link, got, sizeof got, &pair.accepts.state),
                             0);
        }
        assert_int_not_equal(pair.accepts.state, COMMON_TLS_GOES_ON);
        close_pair(&pair);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        named_cases_test(test_belief),
        cmocka_unit_test(test_what_a_peer_shows),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_plain_peers),
        cmocka_unit_test(test_bytes_in_any_pieces),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_altered_bytes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
