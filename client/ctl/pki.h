// SPDX-License-Identifier: Apache-2.0
// A small certificate authority in a folder, for those who have none: ca.pem and ca.key there, EC P-256,
// SHA-256. What it signs says the owner's role in a URI of its subjectAltName, which daemons ask of each
// other (docs/reference/wire.md): so a worker cannot pass for a coordinator. Blocks on files and on nothing
// else; any thread.
#ifndef CLIENT_CTL_PKI_H
#define CLIENT_CTL_PKI_H

#include <openssl/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define CTL_PKI_NAME  64   // bytes of a name: of a common name in X.509
#define CTL_PKI_HOSTS 64   // names and addresses of one certificate
#define CTL_PKI_CERTS 64   // certificates that 'pki show' reads of one file
#define CTL_PKI_TEXT  1024 // bytes of a list, in what is shown

enum { // roles, of which a certificate may say several
    CTL_PKI_COORDINATOR = 1,
    CTL_PKI_WORKER = 2,
    CTL_PKI_CLIENT = 4,
};

#define CTL_PKI_WORKER_URI "banyan:worker:" // and a worker's name

struct ctl_pki_wish {
    const char *name;       // the subject's common name, 1..64 printable bytes
    unsigned roles;         // 0: an authority, which signs others and no authorities below it
    const char *hosts;      // "a,10.0.0.5,::1"; NULL: none
    const char *workers;    // names that its owner may have as a worker, "w0,w1"; NULL: any
    int64_t from_s, till_s; // seconds of the wall clock between which it is valid
    EVP_PKEY *key;          // that it is for, of which the pair gets a reference; NULL: a new one is made
};

struct ctl_pki_pair {
    X509 *cert;
    EVP_PKEY *key;
};
void ctl_pki_free(struct ctl_pki_pair *pair); // all zero is fine

// Words, separated by commas: "coordinator,worker". INVALID_ARGUMENT: one that is none, named.
enum common_code ctl_pki_roles_parse(const char *text, unsigned *out, struct common_error *err);

// Makes a key and its certificate, signed by `by`; NULL: by itself, an authority. *out is the caller's to
// free. INVALID_ARGUMENT: a name, or a host, that cannot stand in a certificate. FAILED_PRECONDITION: it
// would outlive `by`. INTERNAL: OpenSSL fails.
enum common_code ctl_pki_make(const struct ctl_pki_wish *wish, const struct ctl_pki_pair *by,
                              struct ctl_pki_pair *out, struct common_error *err);

// ---- ctl_pki_file.c ---------------------------------------------------------------------------------------

// Writes DIR/NAME.key, mode 0600, and DIR/NAME.pem, mode 0644: each appears whole or not at all. The folder
// is made where it is absent, with mode 0700 (not those above it). ALREADY_EXISTS: one of the two files is
// there, and `replace` is false; nothing is written then. UNAVAILABLE: they cannot be written.
enum common_code ctl_pki_write(const char *dir, const char *name, const struct ctl_pki_pair *pair,
                               bool replace, struct common_error *err);
// Puts the authority's certificate at DIR/ca.pem, where there is none. Same errors.
enum common_code ctl_pki_write_authority(const char *dir, const X509 *cert, struct common_error *err);

// The key of DIR/NAME.key, the caller's to free. NOT_FOUND, PERMISSION_DENIED: others can read it.
// INVALID_ARGUMENT: it is none.
enum common_code ctl_pki_load_key(const char *dir, const char *name, EVP_PKEY **out,
                                  struct common_error *err);
// The authority of a folder. NOT_FOUND: it has none. PERMISSION_DENIED: others can read its key.
// INVALID_ARGUMENT: the files are no authority's, or do not belong together.
enum common_code ctl_pki_load_authority(const char *dir, struct ctl_pki_pair *out, struct common_error *err);

// ---- ctl_pki_show.c ---------------------------------------------------------------------------------------

struct ctl_pki_facts { // of a certificate
    char subject[256], issuer[256];
    unsigned roles;
    char hosts[CTL_PKI_TEXT];   // separated by commas; those that have no room are counted at its end
    char workers[CTL_PKI_TEXT]; // likewise; "": any
    bool authority;
    int64_t from_s, till_s;
    char serial[64];      // hex digits
    char fingerprint[96]; // SHA-256, "AB:CD:…"
    char key[32];         // "EC P-256"
};
// INVALID_ARGUMENT: its times, its names or its public key cannot be read.
enum common_code ctl_pki_read_facts(const X509 *cert, struct ctl_pki_facts *out, struct common_error *err);

// All certificates of a PEM file, in its order; the caller frees each. NOT_FOUND: no such file.
// INVALID_ARGUMENT: it has none, one that is broken, or too many of them.
enum common_code ctl_pki_read_file(const char *path, X509 *out[CTL_PKI_CERTS], size_t *n,
                                   struct common_error *err);

#endif
