// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/pki.h"

#define AUTHORITY "ca"

static enum common_code cannot(const char *path, const char *what, struct common_error *err)
{
    return common_error_set(err, COMMON_UNAVAILABLE, "'%.200s' cannot be %s: %s", path, what,
                            strerror(errno));
}

static enum common_code name_path(const char *dir, const char *name, const char *ending, char out[PATH_MAX],
                                  struct common_error *err)
{
    if (snprintf(out, PATH_MAX, "%s/%s.%s", dir, name, ending) < PATH_MAX)
        return COMMON_OK;
    return common_error_set(err, COMMON_INVALID_ARGUMENT, "'%.100s': the path is too long", dir);
}

// ---- writing ----------------------------------------------------------------------------------------------

static bool write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno != EINTR)
            return false;
        data += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

static enum common_code exists(const char *path, struct common_error *err)
{
    return common_error_set(err, COMMON_ALREADY_EXISTS, "'%.200s' already exists", path);
}

// Written aside, and put into its place by link (which fails if the file exists) or rename (which replaces
// it).
static enum common_code put(const char *path, mode_t mode, BIO *text, bool replace, struct common_error *err)
{
    char temp[PATH_MAX];
    char *data;
    long len = BIO_get_mem_data(text, &data);
    if (snprintf(temp, sizeof temp, "%s.%ld.tmp", path, (long)getpid()) >= (int)sizeof temp)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "'%.100s': the path is too long", path);
    int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return cannot(temp, "made", err);
    enum common_code code = COMMON_OK;
    if (!write_all(fd, data, (size_t)len) || fchmod(fd, mode) != 0 || fsync(fd) != 0)
        code = cannot(temp, "written", err);
    close(fd);
    if (code == COMMON_OK && (replace ? rename(temp, path) : link(temp, path)) != 0)
        code = errno == EEXIST ? exists(path, err) : cannot(path, "made", err);
    if (code != COMMON_OK || !replace)
        unlink(temp);
    return code;
}

static enum common_code no_memory(struct common_error *err)
{
    ERR_clear_error();
    return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a certificate");
}

static enum common_code put_key(const char *path, EVP_PKEY *key, bool replace, struct common_error *err)
{
    BIO *text = BIO_new(BIO_s_secmem()); // is wiped when it is freed
    enum common_code code = text && PEM_write_bio_PrivateKey(text, key, NULL, NULL, 0, NULL, NULL) == 1
                                ? put(path, 0600, text, replace, err)
                                : no_memory(err);
    BIO_free(text);
    return code;
}

static enum common_code put_cert(const char *path, const X509 *cert, bool replace, struct common_error *err)
{
    BIO *text = BIO_new(BIO_s_mem());
    enum common_code code = text && PEM_write_bio_X509(text, (X509 *)cert) == 1
                                ? put(path, 0644, text, replace, err)
                                : no_memory(err);
    BIO_free(text);
    return code;
}

static enum common_code make_folder(const char *dir, struct common_error *err)
{
    struct stat st;
    if (mkdir(dir, 0700) == 0)
        return COMMON_OK;
    if (errno != EEXIST)
        return cannot(dir, "made", err);
    if (stat(dir, &st) == 0 && S_ISDIR(st.st_mode))
        return COMMON_OK;
    return common_error_set(err, COMMON_UNAVAILABLE, "'%.200s' is not a folder", dir);
}

enum common_code ctl_pki_write(const char *dir, const char *name, const struct ctl_pki_pair *pair,
                               bool replace, struct common_error *err)
{
    char key[PATH_MAX] = "", cert[PATH_MAX] = "";
    enum common_code code = name_path(dir, name, "key", key, err);
    if (code == COMMON_OK)
        code = name_path(dir, name, "pem", cert, err);
    if (code == COMMON_OK)
        code = make_folder(dir, err);
    if (code == COMMON_OK && !replace && access(cert, F_OK) == 0)
        code = exists(cert, err);
    if (code == COMMON_OK)
        code = put_key(key, pair->key, replace, err);
    if (code != COMMON_OK)
        return code;
    code = put_cert(cert, pair->cert, replace, err);
    if (code != COMMON_OK && !replace)
        unlink(key); // it is the one made above
    return code;
}

enum common_code ctl_pki_write_authority(const char *dir, const X509 *cert, struct common_error *err)
{
    char path[PATH_MAX];
    enum common_code code = name_path(dir, AUTHORITY, "pem", path, err);
    if (code == COMMON_OK && access(path, F_OK) != 0)
        code = put_cert(path, cert, false, err);
    return code == COMMON_ALREADY_EXISTS ? COMMON_OK : code; // there is one since
}

// ---- the authority ----------------------------------------------------------------------------------------

static int no_password(char *buf, int size, int writing, void *arg)
{
    (void)buf, (void)size, (void)writing, (void)arg;
    return -1; // a key is never asked for on a terminal
}

static enum common_code open_key(const char *path, const char *hint, FILE **out, struct common_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOENT)
        return common_error_set(err, COMMON_NOT_FOUND, "'%.200s' does not exist%s", path, hint);
    if (fd < 0)
        return cannot(path, "opened", err);
    enum common_code code = COMMON_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        code = common_error_set(err, COMMON_INVALID_ARGUMENT, "'%.200s' is not a regular file", path);
    else if (st.st_mode & 077)
        code = common_error_set(err, COMMON_PERMISSION_DENIED,
                                "'%.200s' has mode %04o, so others can access this key: use chmod 600, and "
                                "create another if they may have read it",
                                path, (unsigned)st.st_mode & 07777);
    if (code == COMMON_OK && !(*out = fdopen(fd, "r")))
        code = cannot(path, "opened", err);
    if (code != COMMON_OK)
        close(fd);
    return code;
}

static enum common_code load_key(const char *path, const char *hint, EVP_PKEY **out, struct common_error *err)
{
    FILE *file = NULL;
    enum common_code code = open_key(path, hint, &file, err);
    if (code != COMMON_OK)
        return code;
    setvbuf(file, NULL, _IONBF, 0); // no copy of the key stays in a buffer
    *out = PEM_read_PrivateKey(file, NULL, no_password, NULL);
    fclose(file);
    ERR_clear_error();
    if (*out)
        return COMMON_OK;
    return common_error_set(err, COMMON_INVALID_ARGUMENT,
                            "'%.200s' has no private key in PEM without a password", path);
}

enum common_code ctl_pki_load_key(const char *dir, const char *name, EVP_PKEY **out, struct common_error *err)
{
    char path[PATH_MAX];
    enum common_code code = name_path(dir, name, "key", path, err);
    return code == COMMON_OK ? load_key(path, ": without --keep-key one is created", out, err) : code;
}

static enum common_code check_authority(const char *path, const struct ctl_pki_pair *pair,
                                        struct common_error *err)
{
    bool belongs = X509_check_private_key(pair->cert, pair->key) == 1;
    ERR_clear_error();
    if (!belongs)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "'%.200s' does not match the key beside it",
                                path);
    if (X509_check_ca(pair->cert) != 1 || !(X509_get_key_usage(pair->cert) & KU_KEY_CERT_SIGN))
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "'%.200s' is not a CA certificate", path);
    return COMMON_OK;
}

enum common_code ctl_pki_load_authority(const char *dir, struct ctl_pki_pair *out, struct common_error *err)
{
    char path[PATH_MAX];
    X509 *certs[CTL_PKI_CERTS];
    size_t n = 0;
    struct ctl_pki_pair pair = {0};
    enum common_code code = name_path(dir, AUTHORITY, "key", path, err);
    if (code == COMMON_OK)
        code = load_key(path, ": 'banyanctl pki init' creates a CA", &pair.key, err);
    if (code == COMMON_OK)
        code = name_path(dir, AUTHORITY, "pem", path, err);
    if (code == COMMON_OK)
        code = ctl_pki_read_file(path, certs, &n, err);
    for (size_t i = 1; i < n; i++) // older ones, kept for those that they have signed
        X509_free(certs[i]);
    pair.cert = n ? certs[0] : NULL;
    if (code == COMMON_OK)
        code = check_authority(path, &pair, err);
    if (code == COMMON_OK)
        *out = pair;
    else
        ctl_pki_free(&pair);
    return code;
}
