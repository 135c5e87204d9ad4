// SPDX-License-Identifier: Apache-2.0
// Inputs to begin with of what reads certificates, TLS, passes and the audit log.
#include <openssl/ssl.h>
#include <string.h>

#include "tests/fuzz/certificates.h"
#include "tests/fuzz/seeds.h"

enum { MIDDLE = 2, FLIGHT_MAX = 16384 };

static void record(struct seed *seed, uint8_t kind, const uint8_t *bytes, size_t len)
{
    seed_u8(seed, kind);
    seed_u16(seed, len);
    seed_put(seed, bytes, len);
}

static void seed_certificates(void)
{
    struct seed seed = {0};
    seed_u8(&seed, 2);
    seed_write(&seed, "certificate", "right");
    seed_u8(&seed, 1);
    seed_write(&seed, "certificate", "ca");
    seed_u8(&seed, 2);
    record(&seed, 0, fuzz_cert, sizeof fuzz_cert);
    record(&seed, 0, fuzz_ca, sizeof fuzz_ca);
    record(&seed, 1 | 1 << 2, fuzz_key, sizeof fuzz_key);
    record(&seed, 2, fuzz_ca, sizeof fuzz_ca);
    record(&seed, 2 | 2 << 2, fuzz_crl, sizeof fuzz_crl);
    seed_write(&seed, "certificate", "all");
    seed_u8(&seed, 0);
    record(&seed, 3, fuzz_cert, sizeof fuzz_cert);
    record(&seed, 3, fuzz_ca, sizeof fuzz_ca);
    seed_write(&seed, "certificate", "looks");
}

static size_t flight(SSL *ssl, uint8_t *out)
{
    SSL_do_handshake(ssl);
    int n = BIO_read(SSL_get_wbio(ssl), out, FLIGHT_MAX);
    return n > 0 ? (size_t)n : 0;
}

static SSL *end_new(SSL_CTX *ctx)
{
    SSL *ssl = SSL_new(ctx);
    FUZZ_CHECK(ssl);
    SSL_set_bio(ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    return ssl;
}

// What both ends say of a handshake that goes well.
static void seed_flights(void)
{
    static uint8_t bytes[FLIGHT_MAX];
    const unsigned char *at = fuzz_key;
    SSL_CTX *client = SSL_CTX_new(TLS_client_method()), *server = SSL_CTX_new(TLS_server_method());
    EVP_PKEY *key = d2i_AutoPrivateKey(NULL, &at, sizeof fuzz_key);
    FUZZ_CHECK(client && server && key);
    FUZZ_CHECK(SSL_CTX_use_certificate_ASN1(server, sizeof fuzz_cert, fuzz_cert) == 1 &&
               SSL_CTX_use_PrivateKey(server, key) == 1);
    SSL *dials = end_new(client), *accepts = end_new(server);
    SSL_set_connect_state(dials);
    SSL_set_accept_state(accepts);
    struct seed to_server = {0}, to_client = {0};
    seed_u16(&to_server, 0x300);
    seed_u16(&to_client, 0x301);
    for (int i = 0; i < 3; i++) {
        size_t len = flight(dials, bytes);
        seed_put(&to_server, bytes, len);
        BIO_write(SSL_get_rbio(accepts), bytes, (int)len);
        len = flight(accepts, bytes);
        seed_put(&to_client, bytes, len);
        BIO_write(SSL_get_rbio(dials), bytes, (int)len);
    }
    seed_write(&to_server, "tls", "client");
    seed_write(&to_client, "tls", "server");
    SSL_free(dials);
    SSL_free(accepts);
    EVP_PKEY_free(key);
    SSL_CTX_free(client);
    SSL_CTX_free(server);
}

// An attacker in the middle, who does nothing, or one thing.
static void seed_middle(void)
{
    struct seed seed = {0};
    static const uint16_t places[] = {0, 1, 3, 9, 40, 90, 130, 200, 300, 700, 1000, 1300, 1400};
    for (uint8_t kind = 0; kind < 8; kind++) { // DEMANDS, OLD, NAMES
        char name[16];
        seed_u8(&seed, (uint8_t)(MIDDLE | kind << 2));
        seed_u8(&seed, 0);
        snprintf(name, sizeof name, "pair%u", kind);
        seed_write(&seed, "tls", name);
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        for (uint8_t how = 0; how < 4; how++) {
            char name[16];
            seed_u8(&seed, MIDDLE | 4);
            seed_u8(&seed, 0);
            seed_u8(&seed, (uint8_t)(i + how) & 1);
            seed_u16(&seed, places[i]);
            seed_u8(&seed, how);
            seed_u8(&seed, 0x11);
            snprintf(name, sizeof name, "at%u-%u", places[i], how);
            seed_write(&seed, "tls", name);
        }
}

static void seed_passes(void)
{
    static const uint8_t made[] = {0, 3, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 0, 0, 20, 1};
    static const char presented[] = "bp_0000000300000000000000070200000000000100000000";
    struct seed seed = {0};
    seed_put(&seed, made, sizeof made);
    seed_write(&seed, "pass", "made");
    seed_u8(&seed, 1);
    seed_put(&seed, presented, sizeof presented - 1);
    for (size_t i = sizeof presented - 1; i < 3 + 2 * (21 + 32); i++)
        seed_u8(&seed, 'a');
    seed_write(&seed, "pass", "presented");
}

static void trail_record(struct seed *seed, uint8_t what)
{
    seed_u8(seed, what);
    seed_u8(seed, 3);
    seed_put(seed, "abc", 3);
}

static void seed_trail(void)
{
    struct seed seed = {0};
    for (uint8_t what = 0; what < 7; what++) { // `RECORD, RAW, TORN, TELLS, LOST, ALTERED, CUT`
        char name[16];
        seed_u8(&seed, 1);
        trail_record(&seed, 0);
        trail_record(&seed, 0);
        if (what == 1) {
            seed_u8(&seed, 1);
            seed_u16(&seed, 9);
            seed_put(&seed, "{\"seq\":1\n", 9);
        } else if (what == 3) { // reported, behind a part
            trail_record(&seed, 2);
            seed_u16(&seed, 20);
            seed_u8(&seed, 3);
        } else {
            trail_record(&seed, what);
            if (what == 2 || what >= 5)
                seed_u16(&seed, 30);
            if (what == 5)
                seed_u8(&seed, 4);
        }
        trail_record(&seed, 0);
        snprintf(name, sizeof name, "%u", what);
        seed_write(&seed, "trail", name);
    }
}

void seed_tls(void)
{
    seed_certificates();
    seed_flights();
    seed_middle();
    seed_passes();
    seed_trail();
}
