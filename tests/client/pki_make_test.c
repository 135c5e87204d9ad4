// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/pki.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cmocka.h>

#include "tests/common/group.h"

#define DAY_S 86400

static char folder[] = "/tmp/banyan-pki-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static struct ctl_pki_wish wish_of(unsigned roles, const char *hosts, int64_t from_days, int64_t till_days)
{
    int64_t now_s = (int64_t)time(NULL);
    return (struct ctl_pki_wish){.name = "it",
                                 .roles = roles,
                                 .hosts = hosts,
                                 .from_s = now_s + from_days * DAY_S,
                                 .till_s = now_s + till_days * DAY_S};
}

static struct ctl_pki_pair make(const struct ctl_pki_wish *wish, const struct ctl_pki_pair *by)
{
    struct ctl_pki_pair pair = {0};
    struct common_error err = {0};
    if (ctl_pki_make(wish, by, &pair, &err) != COMMON_OK)
        fail_msg("%s", err.message);
    return pair;
}

static struct ctl_pki_pair make_authority(void)
{
    struct ctl_pki_wish wish = wish_of(0, NULL, -1, 1000);
    return make(&wish, NULL);
}

// What OpenSSL says of a chain: leaf, signed by the one in the middle (NULL: none), signed by the trusted
// one.
static int verify(X509 *leaf, X509 *middle, X509 *trusted, int purpose)
{
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *context = X509_STORE_CTX_new();
    STACK_OF(X509) *chain = sk_X509_new_null();
    if (middle)
        sk_X509_push(chain, middle);
    X509_STORE_add_cert(store, trusted);
    X509_STORE_CTX_init(context, store, leaf, chain);
    X509_STORE_CTX_set_flags(context, X509_V_FLAG_X509_STRICT);
    X509_STORE_CTX_set_purpose(context, purpose);
    int good = X509_verify_cert(context);
    int code = good == 1 ? X509_V_OK : X509_STORE_CTX_get_error(context);
    sk_X509_free(chain);
    X509_STORE_CTX_free(context);
    X509_STORE_free(store);
    return code;
}

static void a_chain_is_what_openssl_asks_for(void **state)
{
    (void)state;
    struct ctl_pki_pair authority = make_authority(), other = make_authority();
    struct ctl_pki_wish wish = wish_of(CTL_PKI_WORKER, "a.example,10.0.0.5,::1", -1, 10);
    struct ctl_pki_pair leaf = make(&wish, &authority);
    assert_int_equal(verify(leaf.cert, NULL, authority.cert, X509_PURPOSE_SSL_SERVER), X509_V_OK);
    assert_int_equal(verify(leaf.cert, NULL, authority.cert, X509_PURPOSE_SSL_CLIENT), X509_V_OK);
    assert_int_not_equal(verify(leaf.cert, NULL, other.cert, X509_PURPOSE_SSL_SERVER), X509_V_OK);
    assert_int_equal(X509_check_host(leaf.cert, "a.example", 0, 0, NULL), 1);
    assert_int_equal(X509_check_host(leaf.cert, "b.example", 0, 0, NULL), 0);
    assert_int_equal(X509_check_ip_asc(leaf.cert, "10.0.0.5", 0), 1);
    assert_int_equal(X509_check_ip_asc(leaf.cert, "::1", 0), 1);
    assert_int_equal(X509_check_ip_asc(leaf.cert, "10.0.0.6", 0), 0);
    assert_int_equal(X509_check_private_key(leaf.cert, leaf.key), 1);

    wish = wish_of(CTL_PKI_CLIENT, NULL, -1, 10); // a client's key cannot serve
    struct ctl_pki_pair client = make(&wish, &authority);
    assert_int_equal(verify(client.cert, NULL, authority.cert, X509_PURPOSE_SSL_CLIENT), X509_V_OK);
    assert_int_equal(verify(client.cert, NULL, authority.cert, X509_PURPOSE_SSL_SERVER),
                     X509_V_ERR_INVALID_PURPOSE);

    // What a leaf signs, and what an authority below the authority signs, is worth nothing.
    struct ctl_pki_pair forged = make(&wish, &leaf);
    assert_int_not_equal(verify(forged.cert, leaf.cert, authority.cert, X509_PURPOSE_SSL_CLIENT), X509_V_OK);
    wish = wish_of(0, NULL, -1, 10);
    wish.name = "below"; // one of the same name would count as the authority itself
    struct ctl_pki_pair below = make(&wish, &authority);
    wish = wish_of(CTL_PKI_CLIENT, NULL, -1, 5);
    struct ctl_pki_pair deep = make(&wish, &below);
    assert_int_equal(verify(deep.cert, below.cert, authority.cert, X509_PURPOSE_SSL_CLIENT),
                     X509_V_ERR_PATH_LENGTH_EXCEEDED);
    struct ctl_pki_pair *all[] = {&authority, &other, &leaf, &client, &forged, &below, &deep};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ctl_pki_free(all[i]);
}

static void what_is_shown_is_what_was_wished(void **state)
{
    (void)state;
    struct ctl_pki_pair authority = make_authority();
    struct ctl_pki_wish wish =
        wish_of(CTL_PKI_COORDINATOR | CTL_PKI_WORKER, "a,*.b.example,10.0.0.5", -2, 10);
    wish.workers = "w0,rack-1/w1";
    struct ctl_pki_pair one = make(&wish, &authority), two = make(&wish, &authority);
    struct ctl_pki_facts facts, second;
    assert_int_equal(ctl_pki_read_facts(one.cert, &facts, NULL), COMMON_OK);
    assert_int_equal(ctl_pki_read_facts(two.cert, &second, NULL), COMMON_OK);
    assert_string_equal(facts.subject, "CN=it,O=Banyan");
    assert_int_equal(facts.roles, CTL_PKI_COORDINATOR | CTL_PKI_WORKER);
    assert_string_equal(facts.hosts, "a,*.b.example,10.0.0.5");
    assert_string_equal(facts.workers, "w0,rack-1/w1");
    assert_string_equal(facts.key, "EC P-256");
    assert_false(facts.authority);
    assert_int_equal(facts.from_s, wish.from_s);
    assert_int_equal(facts.till_s, wish.till_s);
    assert_int_equal(strlen(facts.serial), 32);
    assert_string_not_equal(facts.serial, second.serial);
    assert_string_not_equal(facts.fingerprint, second.fingerprint);
    assert_int_equal(ctl_pki_read_facts(authority.cert, &facts, NULL), COMMON_OK);
    assert_true(facts.authority);
    assert_int_equal(facts.roles, 0);
    ctl_pki_free(&authority);
    ctl_pki_free(&one);
    ctl_pki_free(&two);
}

static void wishes_that_cannot_be(void **state)
{
    (void)state;
    struct ctl_pki_pair authority = make_authority(), none = {0};
    static const char *const hosts[] = {"",   "a,",   ",a",   "a b", "a/b",
                                        "-a", "a..b", ".a",   "a:1", "banyan:coordinator",
                                        "*",  "*a",   "a,b\n"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        struct ctl_pki_wish wish = wish_of(CTL_PKI_WORKER, hosts[i], -1, 1);
        assert_int_equal(ctl_pki_make(&wish, &authority, &none, NULL), COMMON_INVALID_ARGUMENT);
    }
    static const char *const workers[] = {
        "", "w0,", ",w0", "a b", "a\n", "0123456789012345678901234567890123456789012345678901234567890123x"};
    for (size_t i = 0; i < sizeof workers / sizeof *workers; i++) {
        struct ctl_pki_wish wish = wish_of(CTL_PKI_WORKER, "a", -1, 1);
        wish.workers = workers[i];
        assert_int_equal(ctl_pki_make(&wish, &authority, &none, NULL), COMMON_INVALID_ARGUMENT);
    }
    char many[2 * (CTL_PKI_HOSTS + 1)];
    for (size_t i = 0; i <= CTL_PKI_HOSTS; i++)
        memcpy(many + 2 * i, i < CTL_PKI_HOSTS ? "a," : "a", 2);
    struct ctl_pki_wish wish = wish_of(CTL_PKI_WORKER, many, -1, 1);
    assert_int_equal(ctl_pki_make(&wish, &authority, &none, NULL), COMMON_INVALID_ARGUMENT);
    wish = wish_of(CTL_PKI_WORKER, "a", -1, 1001);
    assert_int_equal(ctl_pki_make(&wish, &authority, &none, NULL), COMMON_FAILED_PRECONDITION);
    wish = wish_of(CTL_PKI_WORKER, "a", 1, 1);
    assert_int_equal(ctl_pki_make(&wish, &authority, &none, NULL), COMMON_INVALID_ARGUMENT);
    static const char *const names[] = {"", "a\nb",
                                        "0123456789012345678901234567890123456789012345678901234567890123x"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        wish = wish_of(CTL_PKI_WORKER, "a", -1, 1);
        wish.name = names[i];
        assert_int_equal(ctl_pki_make(&wish, &authority, &none, NULL), COMMON_INVALID_ARGUMENT);
    }
    assert_null(none.cert);
    assert_null(none.key);
    unsigned roles = 0;
    assert_int_equal(ctl_pki_roles_parse("client,worker", &roles, NULL), COMMON_OK);
    assert_int_equal(roles, CTL_PKI_CLIENT | CTL_PKI_WORKER);
    static const char *const words[] = {"", ",", "worker,", "workers", "work", "worker coordinator"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        assert_int_equal(ctl_pki_roles_parse(words[i], &roles, NULL), COMMON_INVALID_ARGUMENT);
    ctl_pki_free(&authority);
}

static mode_t mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    return st.st_mode & 07777;
}

static void join(char *out, size_t size, const char *dir, const char *name)
{
    snprintf(out, size, "%s/%s", dir, name);
}

static void files_are_ones_own_and_stay(void **state)
{
    (void)state;
    char dir[64], key[80], cert[80];
    struct ctl_pki_pair authority = make_authority(), other = make_authority(), read = {0};
    join(dir, sizeof dir, folder, "ca");
    join(key, sizeof key, dir, "ca.key");
    join(cert, sizeof cert, dir, "ca.pem");
    assert_int_equal(ctl_pki_load_authority(dir, &read, NULL), COMMON_NOT_FOUND);
    assert_int_equal(ctl_pki_write(dir, "ca", &authority, false, NULL), COMMON_OK);
    assert_int_equal(mode_of(dir), 0700);
    assert_int_equal(mode_of(key), 0600);
    assert_int_equal(mode_of(cert), 0644);
    assert_int_equal(ctl_pki_write(dir, "ca", &other, false, NULL), COMMON_ALREADY_EXISTS);
    assert_int_equal(ctl_pki_load_authority(dir, &read, NULL), COMMON_OK);
    assert_int_equal(X509_cmp(read.cert, authority.cert), 0);
    ctl_pki_free(&read);

    // One of the two alone is not written over either, and leaves no half of the other.
    assert_int_equal(unlink(cert), 0);
    assert_int_equal(ctl_pki_write(dir, "ca", &other, false, NULL), COMMON_ALREADY_EXISTS);
    assert_int_not_equal(access(cert, F_OK), 0);
    assert_int_equal(ctl_pki_write_authority(dir, other.cert, NULL), COMMON_OK);
    assert_int_equal(ctl_pki_load_authority(dir, &read, NULL), COMMON_INVALID_ARGUMENT); // another's key
    assert_int_equal(unlink(key), 0);
    assert_int_equal(ctl_pki_write(dir, "ca", &other, false, NULL), COMMON_ALREADY_EXISTS);
    assert_int_not_equal(access(key, F_OK), 0);
    assert_int_equal(ctl_pki_write(dir, "ca", &authority, true, NULL), COMMON_OK);
    assert_int_equal(ctl_pki_load_authority(dir, &read, NULL), COMMON_OK);
    ctl_pki_free(&read);

    assert_int_equal(chmod(key, 0640), 0);
    assert_int_equal(ctl_pki_load_authority(dir, &read, NULL), COMMON_PERMISSION_DENIED);
    struct ctl_pki_wish wish = wish_of(CTL_PKI_WORKER, "a", -1, 1);
    struct ctl_pki_pair leaf = make(&wish, &authority);
    assert_int_equal(ctl_pki_write(dir, "ca", &leaf, true, NULL), COMMON_OK);
    assert_int_equal(ctl_pki_load_authority(dir, &read, NULL), COMMON_INVALID_ARGUMENT); // no authority's
    ctl_pki_free(&leaf);
    ctl_pki_free(&authority);
    ctl_pki_free(&other);
}

static void write_text(const char *path, const char *text, size_t len)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, len, file), len);
    fclose(file);
}

static void files_of_certificates(void **state)
{
    (void)state;
    char path[64];
    X509 *certs[CTL_PKI_CERTS];
    size_t n;
    join(path, sizeof path, folder, "bundle.pem");
    assert_int_equal(ctl_pki_read_file(path, certs, &n, NULL), COMMON_NOT_FOUND);
    struct ctl_pki_pair a = make_authority(), b = make_authority();
    BIO *text = BIO_new(BIO_s_mem());
    char *data;
    assert_int_equal(PEM_write_bio_X509(text, a.cert), 1);
    assert_int_equal(PEM_write_bio_X509(text, b.cert), 1);
    size_t len = (size_t)BIO_get_mem_data(text, &data);
    write_text(path, data, len);
    assert_int_equal(ctl_pki_read_file(path, certs, &n, NULL), COMMON_OK);
    assert_int_equal(n, 2);
    assert_int_equal(X509_cmp(certs[0], a.cert) || X509_cmp(certs[1], b.cert), 0);
    X509_free(certs[0]);
    X509_free(certs[1]);
    data[len - 100] = '!'; // in the second one
    write_text(path, data, len);
    assert_int_equal(ctl_pki_read_file(path, certs, &n, NULL), COMMON_INVALID_ARGUMENT);
    assert_int_equal(n, 0);
    write_text(path, "", 0);
    assert_int_equal(ctl_pki_read_file(path, certs, &n, NULL), COMMON_INVALID_ARGUMENT);
    char *large = calloc(1, 300 * 1024);
    assert_non_null(large);
    write_text(path, large, 300 * 1024);
    assert_int_equal(ctl_pki_read_file(path, certs, &n, NULL), COMMON_INVALID_ARGUMENT);
    free(large);
    for (int i = 0; i < CTL_PKI_CERTS; i++)
        assert_int_equal(PEM_write_bio_X509(text, a.cert), 1);
    len = (size_t)BIO_get_mem_data(text, &data);
    write_text(path, data, len);
    assert_int_equal(ctl_pki_read_file(path, certs, &n, NULL), COMMON_INVALID_ARGUMENT);
    assert_int_equal(n, 0);
    BIO_free(text);
    ctl_pki_free(&a);
    ctl_pki_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chain_is_what_openssl_asks_for),
        cmocka_unit_test(what_is_shown_is_what_was_wished),
        cmocka_unit_test(wishes_that_cannot_be),
        cmocka_unit_test(files_are_ones_own_and_stay),
        cmocka_unit_test(files_of_certificates),
    };
    return group_run(tests, make_folder, remove_folder);
}
