// SPDX-License-Identifier: Apache-2.0
// A link under TLS: common/secure/tls_link.c, proto/stream/link_io.c and stream_link.c, between its handshake
// and its frames. Input: u8 what, u8 how it is cut, then the bytes of a hostile peer to a link that accepts
// (what's bits 0-1: 0) or dials (1), as they are; or (2, 3) what an attacker in the middle of two links of
// ours does to their bytes: records | end u8 | at u16 | how u8 | value u8 |.
//
// OpenSSL's randomness is the target's own, so that the same input does the same. However a hostile peer's
// bytes are cut, the same comes of them. Whatever is done in the middle, an end takes only frames that the
// other one has sent, in their order.
#define OPENSSL_SUPPRESS_DEPRECATED // of how randomness is given
#include <errno.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/random.h"
#include "proto/stream/stream_link.h"
#include "tests/fuzz/certificates.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/world.h"

enum {
    DIALS = 1,
    MIDDLE = 2,
    DEMANDS = 4,
    OLD = 8,
    NAMES = 16,
    FRAMES = 3,
    ROUNDS = 64,
    CHANGES = 64,
    TEXT = 4096
};
enum { FLIP, DROP, DOUBLE, HANG_UP, HOWS };

struct end { // one of ours
    struct proto_link *link;
    bool secured, failed;
    enum common_code code;
    unsigned frames; // that came
};

struct outcome {
    bool secured, failed;
    enum common_code code;
    size_t answered;
    uint64_t hash;
};

static struct common_loop *loop;
static struct common_tls *tls;

// ---- OpenSSL's randomness -------------------------------------------------------------------------------

static int draw(unsigned char *out, int len)
{
    return common_random(out, (size_t)len);
}

static int seeded(void)
{
    return 1;
}

static void write_pem(const char *name, const char *label, const uint8_t *bytes, size_t len)
{
    char text[TEXT];
    BIO *bio = BIO_new(BIO_s_mem());
    FUZZ_CHECK(bio && PEM_write_bio(bio, label, "", bytes, (long)len) > 0);
    int n = BIO_read(bio, text, sizeof text);
    FUZZ_CHECK(n > 0 && n < TEXT);
    fuzz_write_file(name, text, (size_t)n);
    BIO_free(bio);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const RAND_METHOD method = {.bytes = draw, .pseudorand = draw, .status = seeded};
    const struct common_tls_files files = {"cert", "key", "ca"};
    struct common_error err;
    (void)argc, (void)argv;
    fuzz_enter_folder();
    fuzz_quiet();
    FUZZ_CHECK(RAND_set_rand_method(&method) == 1);
    write_pem("cert", "CERTIFICATE", fuzz_cert, sizeof fuzz_cert);
    write_pem("key", "PRIVATE KEY", fuzz_key, sizeof fuzz_key);
    write_pem("ca", "CERTIFICATE", fuzz_ca, sizeof fuzz_ca);
    FUZZ_CHECK(common_loop_new(&loop) == COMMON_OK);
    if (common_tls_new(&files, &tls, &err) != COMMON_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    return 0;
}

// ---- an end of ours -------------------------------------------------------------------------------------

static void on_secured(void *owner)
{
    struct end *end = owner;
    FUZZ_CHECK(!end->secured && !end->failed);
    end->secured = true;
    common_tls_link_shows(end->link->io.tls);
    common_tls_link_says(end->link->io.tls, "banyan:worker");
}

// Frames are distinguished by their payload's length: 64, 128, and so on.
static bool on_frame(void *owner, const struct proto_prefix *prefix, struct common_blob *blob, size_t offset,
                     struct common_error *err)
{
    struct end *end = owner;
    (void)err;
    FUZZ_CHECK(end->secured && prefix->payload_len == 64 * ++end->frames);
    FUZZ_CHECK(blob->data[offset + proto_frame_payload_at(prefix->header_len)] == end->frames);
    return true;
}

static void on_failed(void *owner, enum common_code code, const char *text)
{
    struct end *end = owner;
    FUZZ_CHECK(!end->failed && code != COMMON_OK && text[0]);
    end->failed = true;
    end->code = code;
    proto_link_close(end->link);
    end->link = NULL;
}

static void begin(struct end *end, int fd, uint8_t what, bool dials)
{
    static const struct proto_link_ops ops = {.frame = on_frame, .secured = on_secured, .failed = on_failed};
    const struct common_tls_link_options options = {.end = dials        ? COMMON_TLS_DIAL
                                                           : what & OLD ? COMMON_TLS_ACCEPT_OLD
                                                                        : COMMON_TLS_ACCEPT,
                                                    .demands = what & DEMANDS,
                                                    .server = !dials         ? NULL
                                                              : what & NAMES ? "host.example"
                                                                             : "127.0.0.1"};
    struct common_error err;
    *end = (struct end){.link = proto_link_new(loop, fd, &ops, end)};
    FUZZ_CHECK(end->link && proto_link_secure(end->link, tls, &options, &err) == COMMON_OK);
    end->link->payload_max = PROTO_LINK_HELLO_BUFFER;
}

static void send_frame(struct end *end, unsigned nth)
{
    uint8_t bytes[PROTO_LINK_HELLO_BUFFER] = {0};
    const struct proto_prefix prefix = {.version = PROTO_VERSION, .kind = 1, .payload_len = 64 * nth};
    size_t at = proto_frame_payload_at(0);
    struct iovec iov = {bytes, at + 64 * nth};
    struct proto_gather gather = {.iov = &iov, .n = 1, .bytes = iov.iov_len};
    proto_prefix_encode(&prefix, bytes);
    memset(bytes + at, (int)nth, 64 * nth);
    if (end->link)
        FUZZ_CHECK(proto_link_send(end->link, &gather, NULL, NULL, NULL));
}

static void finish(struct end *end)
{
    if (end->link)
        proto_link_close(end->link);
    fuzz_turn(loop);
}

static void pair(int fds[2])
{
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
}

// ---- a hostile peer -------------------------------------------------------------------------------------

static void listen_to(int fd, struct outcome *out)
{
    uint8_t bytes[4096];
    for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
        for (ssize_t i = 0; i < n; i++, out->answered++)
            out->hash = (out->hash ^ bytes[i]) * UINT64_C(0x100000001b3);
}

static struct outcome be_hostile(uint8_t what, const uint8_t *at, size_t left, uint8_t cut)
{
    struct outcome out = {0};
    struct end end;
    int fds[2];
    uint32_t drawn = cut;
    fuzz_world_begin();
    pair(fds);
    begin(&end, fds[0], what, what & DIALS);
    fuzz_turn(loop);
    listen_to(fds[1], &out);
    while (left > 0) {
        drawn = drawn * 1664525u + 1013904223u;
        size_t piece = cut == 0 ? left : 1 + (drawn >> 16) % (1 + 16 * (size_t)cut);
        ssize_t sent = send(fds[1], at, piece < left ? piece : left, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0)
            break; // it was closed
        at += sent;
        left -= (size_t)sent;
        fuzz_turn(loop);
        listen_to(fds[1], &out);
    }
    FUZZ_CHECK(end.frames == 0);
    out.secured = end.secured;
    out.failed = end.failed;
    out.code = end.code;
    close(fds[1]);
    finish(&end);
    return out;
}

// ---- an attacker in the middle ----------------------------------------------------------------------------

struct change {
    uint8_t end, how, value;
    uint16_t at;
};

// Hands on what has come from one direction. false: nothing more goes that way.
static bool hand_on(int from, int to, uint8_t end, size_t *at, const struct change *changes, unsigned n)
{
    uint8_t in[2048], out[2 * sizeof in];
    for (ssize_t got; (got = recv(from, in, sizeof in, MSG_DONTWAIT)) > 0;) {
        size_t len = 0;
        bool on = true;
        for (ssize_t k = 0; k < got && on; k++, ++*at) {
            size_t times = 1;
            for (unsigned i = 0; i < n; i++) {
                if ((changes[i].end & 1) != end || changes[i].at != *at)
                    continue;
                if (changes[i].how % HOWS == FLIP)
                    in[k] ^= changes[i].value;
                else if (changes[i].how % HOWS == DROP)
                    times = 0;
                else if (changes[i].how % HOWS == DOUBLE)
                    times = 2;
                else
                    on = false;
            }
            while (on && times-- > 0)
                out[len++] = in[k];
        }
        if (!on || (len > 0 && send(to, out, len, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)len))
            return false;
    }
    return true;
}

static void be_between(uint8_t what, struct fuzz_input *in)
{
    struct end ends[2];
    struct change changes[CHANGES];
    unsigned n = 0;
    int fds[2][2];
    size_t at[2] = {0};
    bool sent = false, altered = false;
    while (in->left > 0 && n < CHANGES) {
        struct change *change = &changes[n++];
        change->end = fuzz_u8(in);
        change->at = fuzz_u16(in);
        change->how = fuzz_u8(in);
        change->value = fuzz_u8(in);
        altered |= change->how % HOWS != FLIP || change->value != 0;
    }
    fuzz_world_begin();
    for (int i = 0; i < 2; i++) {
        pair(fds[i]);
        begin(&ends[i], fds[i][0], what, i == 1);
    }
    for (int round = 0, on = true; round < ROUNDS && on; round++) {
        fuzz_turn(loop);
        on = hand_on(fds[0][1], fds[1][1], 0, &at[0], changes, n);
        on = hand_on(fds[1][1], fds[0][1], 1, &at[1], changes, n) && on;
        if (!sent && (ends[0].secured || ends[1].secured || round == ROUNDS / 2)) {
            sent = true;
            for (unsigned i = 1; i <= FRAMES; i++)
                for (int k = 0; k < 2; k++)
                    send_frame(&ends[k], i);
        }
    }
    if (!altered)
        for (int i = 0; i < 2; i++)
            FUZZ_CHECK(ends[i].secured && !ends[i].failed && ends[i].frames == FRAMES);
    for (int i = 0; i < 2; i++)
        close(fds[i][1]);
    fuzz_turn(loop);
    for (int i = 0; i < 2; i++)
        finish(&ends[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    uint8_t what = fuzz_u8(&in), cut = fuzz_u8(&in);
    if (what & MIDDLE) {
        be_between(what, &in);
        return 0;
    }
    struct outcome whole = be_hostile(what, in.at, in.left, 0);
    if (cut > 0) {
        struct outcome cuts = be_hostile(what, in.at, in.left, cut);
        FUZZ_CHECK(whole.secured == cuts.secured && whole.failed == cuts.failed && whole.code == cuts.code);
        FUZZ_CHECK(whole.answered == cuts.answered && whole.hash == cuts.hash);
    }
    return 0;
}
