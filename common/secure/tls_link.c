// SPDX-License-Identifier: Apache-2.0
// OpenSSL reads and writes through a BIO of ours:
//
//   read    OpenSSL asks for a record's 5 bytes of header, and then for its body. Each time more is read beside it, into
//           `ahead`: a small record comes with one call, and a body brings the next header with it. Where much is wanted,
//           `ahead` is large: each call of the system opens TCP's window by what it took, and notifies the peer.
//   write   The BIO takes everything, so that a record is either not begun or taken whole, and a write never has to
//           be repeated. Records of one write are held until they are worth a call of the system (each wakes the peer:
//           a call a record costs as much as its encryption). What the socket does not take stays held, and nothing is
//           encrypted until it has gone.
#include "common/secure/tls_link.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/secure/tls_words.h"

enum {
    RECORD = SSL3_RT_MAX_PLAIN_LENGTH, // 16 KB
    AHEAD = 4096,                      // beside a header
    AHEAD_BODY = 512,                  // beside a body: the next header, and a small record with it
    AHEAD_LARGE = 256 << 10,           // where much is wanted
    MUCH = 128 << 10,
    LARGE = 2048,
    COLLECTED = 64 << 10, // sent at once
    // What is collected, what a peer's key updates are answered with, and all that a handshake says at once.
    HELD_MAX = 128 << 10,
    HELD_SMALL = 4096, // sizes of its memory
    HELD_MIDDLE = COLLECTED + RECORD + 1024,
    DRAIN_MAX = 256 << 10,
};

struct common_tls_link {
    SSL *ssl;
    int fd;
    bool accepts, shaken, over; // over: nothing may be asked of OpenSSL any more
    bool drained;               // the socket had no more when it was last read, in this call
    bool collects;              // what is written is held for a while
    bool eof;
    int error;                   // of the socket
    enum common_tls_state ended; // GOES_ON, or what the next read says
    char *server;
    X509 *refused; // a peer's certificate that is not trusted
    char why[COMMON_ERROR_BYTES];
    uint8_t first[4]; // bytes that the peer began with
    size_t n_first;
    uint8_t *ahead; // `few`, or memory of its own: AHEAD_LARGE
    size_t ahead_at, ahead_end;
    bool much; // is wanted in this call
    uint8_t *held;
    size_t held_at, held_end, held_cap;
    uint8_t few[AHEAD];
};

// ---- the BIO --------------------------------------------------------------------------------------------

static void note_first(struct common_tls_link *link, const uint8_t *bytes, size_t n)
{
    while (link->n_first < sizeof link->first && n > 0) {
        link->first[link->n_first++] = *bytes++;
        n--;
    }
}

static int bio_read(BIO *bio, char *to, int n)
{
    struct common_tls_link *link = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (n <= 0)
        return 0;
    size_t left = link->ahead_end - link->ahead_at, want = (size_t)n;
    if (left > 0) {
        size_t step = left < want ? left : want;
        memcpy(to, link->ahead + link->ahead_at, step);
        link->ahead_at += step;
        return (int)step;
    }
    if (link->drained) {
        BIO_set_retry_read(bio);
        return -1;
    }
    struct iovec iov[] = {{to, want}, {link->ahead, want < LARGE ? AHEAD : AHEAD_BODY}};
    if (link->much && link->ahead != link->few)
        iov[1].iov_len = AHEAD_LARGE;
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
    ssize_t got;
    do
        got = recvmsg(link->fd, &msg, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got == 0)
        link->eof = true;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        BIO_set_retry_read(bio);
    else if (got < 0)
        link->error = errno;
    if (got <= 0)
        return got == 0 ? 0 : -1;
    size_t have = (size_t)got;
    link->drained = have < want + iov[1].iov_len; // what comes now makes the socket readable
    link->ahead_at = 0;
    link->ahead_end = have > want ? have - want : 0;
    if (link->n_first < sizeof link->first)
        note_first(link, (const uint8_t *)to, have < want ? have : want);
    return (int)(have < want ? have : want);
}

static bool hold(struct common_tls_link *link, const char *data, size_t n)
{
    if (n > HELD_MAX - link->held_end)
        return false;
    size_t need = link->held_end + n;
    if (need > link->held_cap) {
        size_t cap = need <= HELD_SMALL ? HELD_SMALL : need <= HELD_MIDDLE ? HELD_MIDDLE : HELD_MAX;
        uint8_t *grown = realloc(link->held, cap);
        if (!grown)
            return false;
        link->held = grown;
        link->held_cap = cap;
    }
    memcpy(link->held + link->held_end, data, n);
    link->held_end = need;
    return true;
}

// Bytes that went; 0: none now. < 0: the socket has failed.
static ssize_t send_some(struct common_tls_link *link, const void *data, size_t n)
{
    ssize_t went;
    do
        went = send(link->fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (went < 0 && errno == EINTR);
    if (went >= 0 || errno == EAGAIN || errno == EWOULDBLOCK)
        return went >= 0 ? went : 0;
    link->error = errno;
    return -1;
}

static int bio_write(BIO *bio, const char *data, int n)
{
    struct common_tls_link *link = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (n <= 0)
        return 0;
    ssize_t went = link->collects || link->held_end > 0 ? 0 : send_some(link, data, (size_t)n);
    if (went < 0 || (went < n && !hold(link, data + went, (size_t)(n - went))))
        return -1;
    return n;
}

static long bio_ctrl(BIO *bio, int what, long number, void *arg)
{
    (void)number, (void)arg;
    const struct common_tls_link *link = BIO_get_data(bio);
    if (what == BIO_CTRL_EOF)
        return link->eof;
    return what == BIO_CTRL_FLUSH;
}

static BIO_METHOD *method;
static pthread_once_t method_once = PTHREAD_ONCE_INIT;

static void make_method(void)
{
    int type = BIO_get_new_index();
    method = type < 0 ? NULL : BIO_meth_new(type | BIO_TYPE_SOURCE_SINK, "banyan socket");
    if (method && (!BIO_meth_set_read(method, bio_read) || !BIO_meth_set_write(method, bio_write) ||
                   !BIO_meth_set_ctrl(method, bio_ctrl))) {
        BIO_meth_free(method);
        method = NULL;
    }
}

// ---- life -----------------------------------------------------------------------------------------------

// OpenSSL keeps no certificate that it has refused.
static int on_verified(int ok, X509_STORE_CTX *store)
{
    const SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct common_tls_link *link = SSL_get_app_data(ssl);
    X509 *cert = X509_STORE_CTX_get_current_cert(store);
    if (!ok && !link->refused && X509_STORE_CTX_get_error_depth(store) == 0 && cert && X509_up_ref(cert))
        link->refused = cert;
    return ok;
}

// Whose certificate it must be.
static bool expect(SSL *ssl, const char *server)
{
    struct in6_addr any;
    bool numeric = inet_pton(AF_INET, server, &any) == 1 || inet_pton(AF_INET6, server, &any) == 1;
    if (numeric)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), server) == 1;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    return SSL_set1_host(ssl, server) == 1 && SSL_set_tlsext_host_name(ssl, server) == 1;
}

enum common_code common_tls_link_new(const struct common_tls *tls, int fd,
                                     const struct common_tls_link_options *options,
                                     struct common_tls_link **out, struct common_error *err)
{
    pthread_once(&method_once, make_method);
    struct common_tls_link *link = calloc(1, sizeof *link);
    BIO *bio = method ? BIO_new(method) : NULL;
    SSL *ssl = SSL_new(common_tls_context(tls, options->end));
    if (!link || !bio || !ssl)
        goto fail;
    link->fd = fd;
    link->ahead = link->few;
    link->accepts = options->end != COMMON_TLS_DIAL;
    if (options->server && (!(link->server = strdup(options->server)) || !expect(ssl, options->server)))
        goto fail;
    BIO_set_data(bio, link);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    SSL_set_verify(ssl,
                   SSL_VERIFY_PEER |
                       (options->demands && link->accepts ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0),
                   on_verified);
    SSL_set_app_data(ssl, link);
    if (link->accepts)
        SSL_set_accept_state(ssl);
    else
        SSL_set_connect_state(ssl);
    link->ssl = ssl;
    *out = link;
    return COMMON_OK;

fail:
    SSL_free(ssl);
    BIO_free(bio);
    if (link)
        free(link->server);
    free(link);
    ERR_clear_error();
    return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for TLS");
}

// A socket that is closed with bytes unread takes back what was sent: a peer would not learn why.
static void drain(const struct common_tls_link *link)
{
    uint8_t nothing[4096];
    size_t total = 0;
    ssize_t got;
    shutdown(link->fd, SHUT_WR);
    while (total < DRAIN_MAX && (got = recv(link->fd, nothing, sizeof nothing, MSG_DONTWAIT)) > 0)
        total += (size_t)got;
}

void common_tls_link_free(struct common_tls_link *link)
{
    if (!link)
        return;
    if (link->shaken && !link->over && link->held_end == 0)
        SSL_shutdown(link->ssl);
    if (link->over && !link->eof && link->error == 0)
        drain(link);
    SSL_free(link->ssl);
    X509_free(link->refused);
    ERR_clear_error();
    free(link->server);
    free(link->held); // ciphertext
    if (link->ahead != link->few)
        free(link->ahead);
    free(link);
}

// ---- failures -------------------------------------------------------------------------------------------

static bool looks_like_tls(const struct common_tls_link *link)
{
    static const uint8_t start[] = {SSL3_RT_HANDSHAKE, SSL3_VERSION_MAJOR};
    bool alert = link->n_first > 0 && link->first[0] == SSL3_RT_ALERT;
    for (size_t i = 0; i < sizeof start && i < link->n_first; i++)
        if (link->first[i] != start[i] && !(i == 0 && alert))
            return false;
    return true;
}

// The alert that OpenSSL gives for a peer that began with something else than TLS is none that this peer
// could read; a peer of ours says what it means.
static void tell_plain(struct common_tls_link *link)
{
    static const uint8_t alert[] = {SSL3_RT_ALERT, 3, 3, 0, 2, SSL3_AL_FATAL, SSL_AD_PROTOCOL_VERSION};
    if (link->accepts && link->held_end == 0)
        send_some(link, alert, sizeof alert);
}

// A socket that takes nothing more may hold the peer's reason.
static bool last_words(struct common_tls_link *link)
{
    uint8_t nothing[4096];
    size_t got, total = 0;
    ERR_clear_error();
    link->drained = false;
    while (total < DRAIN_MAX && SSL_read_ex(link->ssl, nothing, sizeof nothing, &got))
        total += got;
    return ERR_GET_REASON(ERR_peek_error()) > SSL_AD_REASON_OFFSET;
}

// Nothing more comes of this connection: says why.
static enum common_tls_state fail(struct common_tls_link *link, int ssl_error)
{
    size_t size = sizeof link->why;
    bool strange = !link->shaken && !looks_like_tls(link);
    link->over = true;
    if (strange) {
        snprintf(link->why, size,
                 link->accepts
                     ? "the dialler does not use TLS, but this endpoint does: dial tls:// (nng+tls://)"
                     : "the server does not use TLS: dial tcp:// (nng+tcp://), or give the server "
                       "--tls-cert and a tls:// endpoint");
        tell_plain(link);
        ERR_clear_error();
        return COMMON_TLS_BROKEN;
    }
    int error = link->error;
    if ((ssl_error == SSL_ERROR_SYSCALL || error) && !(link->shaken && error && last_words(link))) {
        snprintf(link->why, size, "the link was lost%s: %s", link->shaken ? "" : " during the TLS handshake",
                 error ? strerrordesc_np(error) : "out of memory");
        ERR_clear_error();
        return COMMON_TLS_LOST;
    }
    if (link->eof && !link->shaken) {
        snprintf(link->why, size,
                 "the peer hung up during the TLS handshake: does it use TLS? Its log says why");
        ERR_clear_error();
        return COMMON_TLS_LOST;
    }
    bool alerted = ERR_GET_REASON(ERR_peek_error()) > SSL_AD_REASON_OFFSET, cut = link->eof;
    common_tls_explain(link->ssl, link->refused, link->server, link->why, size);
    if (cut)
        return COMMON_TLS_LOST;
    return !link->shaken || alerted ? COMMON_TLS_REFUSED : COMMON_TLS_BROKEN;
}

const char *common_tls_link_why(const struct common_tls_link *link)
{
    return link->why;
}

// ---- handshake ------------------------------------------------------------------------------------------

enum common_tls_state common_tls_link_shake(struct common_tls_link *link, bool *done)
{
    assert(!link->shaken && !link->over);
    ERR_clear_error();
    link->drained = false;
    int rv = SSL_do_handshake(link->ssl);
    int error = rv == 1 ? SSL_ERROR_NONE : SSL_get_error(link->ssl, rv);
    *done = link->shaken = rv == 1;
    if (rv == 1 || error == SSL_ERROR_WANT_READ)
        return COMMON_TLS_GOES_ON;
    return fail(link, error);
}

// ---- reading --------------------------------------------------------------------------------------------

// Where much is to be read, with a few calls of the system. Without memory for it, with more of them.
static void want_much(struct common_tls_link *link, bool much)
{
    link->much = much;
    if (!much || link->ahead != link->few || link->ahead_at < link->ahead_end)
        return;
    uint8_t *large = malloc(AHEAD_LARGE);
    if (large)
        link->ahead = large;
}

size_t common_tls_link_read(struct common_tls_link *link, void *to, size_t len, enum common_tls_state *state)
{
    size_t total = 0, got;
    *state = link->ended;
    if (link->ended != COMMON_TLS_GOES_ON || link->over)
        return 0;
    ERR_clear_error();
    link->drained = false;
    want_much(link, len >= MUCH);
    while (total < len && link->ended == COMMON_TLS_GOES_ON) {
        if (SSL_read_ex(link->ssl, (uint8_t *)to + total, len - total, &got)) {
            total += got;
            if (link->drained && !common_tls_link_pending(link))
                return total;
            continue;
        }
        int error = SSL_get_error(link->ssl, 0);
        if (error == SSL_ERROR_WANT_READ)
            return total;
        link->ended = error == SSL_ERROR_ZERO_RETURN ? COMMON_TLS_ENDED : fail(link, error);
    }
    if (total == 0) // else its end is reported next time
        *state = link->ended;
    return total;
}

bool common_tls_link_pending(const struct common_tls_link *link)
{
    return link->ended != COMMON_TLS_GOES_ON || link->ahead_at < link->ahead_end ||
           SSL_pending(link->ssl) > 0;
}

// ---- writing --------------------------------------------------------------------------------------------

enum common_tls_state common_tls_link_flush(struct common_tls_link *link)
{
    while (link->held_at < link->held_end) {
        ssize_t went = send_some(link, link->held + link->held_at, link->held_end - link->held_at);
        if (went < 0)
            return fail(link, SSL_ERROR_SYSCALL);
        if (went == 0)
            return COMMON_TLS_GOES_ON;
        link->held_at += (size_t)went;
    }
    link->held_at = link->held_end = 0;
    return COMMON_TLS_GOES_ON;
}

bool common_tls_link_unsent(const struct common_tls_link *link)
{
    return link->held_end > 0;
}

// Where a gather list is being read.
struct place {
    const struct iovec *iov;
    size_t n, at, done; // done: bytes of iov[at]
};

static size_t left_here(const struct place *place)
{
    return place->iov[place->at].iov_len - place->done;
}

static void advance(struct place *place, size_t bytes)
{
    while (place->at < place->n && bytes >= left_here(place)) {
        bytes -= left_here(place);
        place->at++;
        place->done = 0;
    }
    if (place->at < place->n)
        place->done += bytes;
}

// The next record's bytes: where they lie, when a piece fills it or stands before one that does; else copied
// together.
static const uint8_t *next_record(const struct place *from, uint8_t *stage, size_t *len)
{
    struct place place = *from;
    const uint8_t *here = (const uint8_t *)place.iov[place.at].iov_base + place.done;
    size_t first = left_here(&place), have = 0;
    bool last = place.at + 1 == place.n;
    if (first >= RECORD || last || (first > 0 && place.iov[place.at + 1].iov_len >= RECORD)) {
        *len = first < RECORD ? first : RECORD;
        return here;
    }
    while (place.at < place.n && have < RECORD && left_here(&place) < RECORD) {
        size_t step = left_here(&place) < RECORD - have ? left_here(&place) : RECORD - have;
        if (step > 0)
            memcpy(stage + have, (const uint8_t *)place.iov[place.at].iov_base + place.done, step);
        have += step;
        place.done += step;
        if (place.done == place.iov[place.at].iov_len) {
            place.at++;
            place.done = 0;
        }
    }
    *len = have;
    return stage;
}

size_t common_tls_link_write(struct common_tls_link *link, const struct iovec *iov, size_t n,
                             enum common_tls_state *state)
{
    uint8_t stage[RECORD];
    struct place place = {.iov = iov, .n = n};
    size_t total = 0, left = 0;
    for (size_t i = 0; i < n; i++)
        left += iov[i].iov_len;
    *state = link->over ? COMMON_TLS_LOST : common_tls_link_flush(link);
    if (*state != COMMON_TLS_GOES_ON || link->held_end > 0)
        return 0;
    ERR_clear_error();
    advance(&place, 0); // past empty pieces
    while (left > 0 && *state == COMMON_TLS_GOES_ON) {
        size_t len, wrote;
        const uint8_t *data = next_record(&place, stage, &len);
        link->collects = link->held_end > 0 || len < left;
        bool ok = SSL_write_ex(link->ssl, data, len, &wrote) == 1;
        link->collects = false;
        if (!ok) {
            *state = fail(link, SSL_get_error(link->ssl, 0));
            break;
        }
        advance(&place, wrote);
        total += wrote;
        left -= wrote;
        if (left > 0 && link->held_end < COLLECTED)
            continue;
        *state = common_tls_link_flush(link);
        if (link->held_end > 0) // the socket is full
            break;
    }
    return total;
}

// ---- the peer -------------------------------------------------------------------------------------------

bool common_tls_link_shows(const struct common_tls_link *link)
{
    return SSL_get0_peer_certificate(link->ssl) != NULL && SSL_get_verify_result(link->ssl) == X509_V_OK;
}

bool common_tls_link_says(const struct common_tls_link *link, const char *uri)
{
    return common_tls_link_shows(link) && common_tls_cert_says(SSL_get0_peer_certificate(link->ssl), uri);
}

bool common_tls_link_says_some(const struct common_tls_link *link, const char *prefix)
{
    return common_tls_link_shows(link) &&
           common_tls_cert_says_some(SSL_get0_peer_certificate(link->ssl), prefix);
}

bool common_tls_link_binding(const struct common_tls_link *link, const char *label,
                             uint8_t out[COMMON_TLS_BINDING_BYTES])
{
    bool ok = SSL_export_keying_material(link->ssl, out, COMMON_TLS_BINDING_BYTES, label, strlen(label), NULL,
                                         0, 0) == 1;
    ERR_clear_error();
    return ok;
}
