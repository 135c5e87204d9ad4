// SPDX-License-Identifier: Apache-2.0
#include "common/secure/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/random.h"
#include "common/memory/blob.h"

#define HEX_CHARS (2 * COMMON_SECRET_BYTES)

// Whether this file of root's is a credential: systemd alone can write there, and lets this process read it
// by an ACL (systemd 254 and later), whose mask the group's bits of the mode are then.
static bool is_credential(const char *path, const struct stat *st)
{
    const char *folder = getenv("CREDENTIALS_DIRECTORY");
    size_t len = folder ? strlen(folder) : 0;
    return len > 0 && folder[0] == '/' && strncmp(path, folder, len) == 0 && path[len] == '/' &&
           !strchr(path + len + 1, '/') && st->st_uid == 0 && (st->st_mode & 027) == 0;
}

// A file that only root can write and that one of our groups may read: so Kubernetes and Docker mount
// secrets for a process that is not root.
static bool is_granted(const struct stat *st)
{
    return st->st_uid == 0 && (st->st_mode & 037) == 0 &&
           (st->st_gid == getegid() || group_member(st->st_gid));
}

enum common_code common_private_read(const char *path, const char *what, char *buf, size_t cap, size_t *len,
                                     struct common_error *err)
{
    // O_NONBLOCK: a pipe put in its place must not stop the daemon.
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        if (errno == ENOENT)
            return common_error_set(err, COMMON_NOT_FOUND, "%s file '%s' does not exist", what, path);
        if (errno == ELOOP)
            return common_error_set(err, COMMON_PERMISSION_DENIED,
                                    "%s file '%s' is a symbolic link: name the file itself", what, path);
        return common_error_set(err, COMMON_PERMISSION_DENIED, "%s file '%s' cannot be opened: %s", what,
                                path, strerror(errno));
    }
    enum common_code code = COMMON_OK;
    struct stat st;
    bool there = fstat(fd, &st) == 0;
    if (there && is_credential(path, &st)) { // as good as a file of our own
        st.st_uid = geteuid();
        st.st_mode &= ~(mode_t)070;
    }
    if (!there)
        code =
            common_error_set(err, COMMON_PERMISSION_DENIED, "%s file '%s': %s", what, path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        code =
            common_error_set(err, COMMON_INVALID_ARGUMENT, "%s file '%s' is not a regular file", what, path);
    else if (st.st_uid != geteuid() && !is_granted(&st))
        code = common_error_set(err, COMMON_PERMISSION_DENIED,
                                "%s file '%s' belongs to user %u, not to user %u, who is reading it", what,
                                path, (unsigned)st.st_uid, (unsigned)geteuid());
    else if (st.st_uid == geteuid() && (st.st_mode & 077))
        code = common_error_set(err, COMMON_PERMISSION_DENIED,
                                "%s file '%s' has mode %04o, so others can access it: use chmod 600", what,
                                path, (unsigned)st.st_mode & 07777);
    size_t n = 0;
    char extra;
    while (code == COMMON_OK) {
        ssize_t got = n < cap ? read(fd, buf + n, cap - n) : read(fd, &extra, 1);
        if (got == 0)
            break;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            code = common_error_set(err, COMMON_UNAVAILABLE, "%s file '%s': %s", what, path, strerror(errno));
        else if (n == cap)
            code = common_error_set(err, COMMON_INVALID_ARGUMENT, "%s file '%s' is too long", what, path);
        else
            n += (size_t)got;
    }
    close(fd);
    if (code == COMMON_OK)
        *len = n;
    return code;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static bool parse_hex(const char text[HEX_CHARS], uint8_t out[COMMON_SECRET_BYTES])
{
    for (size_t i = 0; i < COMMON_SECRET_BYTES; i++) {
        int hi = hex_value(text[2 * i]), lo = hex_value(text[2 * i + 1]);
        if (hi < 0 || lo < 0)
            return false;
        out[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}

enum common_code common_secret_load(const char *path, struct common_secret *out, struct common_error *err)
{
    char text[HEX_CHARS + 1];
    size_t len;
    struct common_secret secret = {0};
    enum common_code code = common_private_read(path, "secret", text, sizeof text, &len, err);
    if (code == COMMON_OK &&
        (len != sizeof text || text[HEX_CHARS] != '\n' || !parse_hex(text, secret.bytes)))
        code =
            common_error_set(err, COMMON_INVALID_ARGUMENT,
                             "secret file '%s' does not hold %d hex digits and a newline", path, HEX_CHARS);
    if (code == COMMON_OK)
        *out = secret;
    OPENSSL_cleanse(text, sizeof text);
    OPENSSL_cleanse(&secret, sizeof secret);
    return code;
}

static int write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

static void sync_directory_of(const char *path)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (!slash)
        snprintf(dir, sizeof dir, ".");
    else if (slash == path)
        snprintf(dir, sizeof dir, "/");
    else
        snprintf(dir, sizeof dir, "%.*s", (int)(slash - path), path);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    fsync(fd);
    close(fd);
}

// Written aside and linked into place: the name appears with the whole contents, and only if no one was
// first.
static enum common_code create_secret(const char *path, struct common_error *err)
{
    struct common_secret secret;
    char text[HEX_CHARS + 2];
    char temp[PATH_MAX];
    uint64_t unique;
    if (!common_random(&unique, sizeof unique) || !common_random(secret.bytes, sizeof secret.bytes))
        return common_error_set(err, COMMON_UNAVAILABLE, "cannot get random bytes for a secret");
    int n = snprintf(temp, sizeof temp, "%s.%016llx.tmp", path, (unsigned long long)unique);
    if (n < 0 || (size_t)n >= sizeof temp)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "secret file name is too long");
    int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return common_error_set(err, COMMON_UNAVAILABLE, "secret file '%s' cannot be created: %s", path,
                                strerror(errno));
    for (size_t i = 0; i < COMMON_SECRET_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", secret.bytes[i]);
    text[HEX_CHARS] = '\n';
    enum common_code code = COMMON_OK;
    if (fchmod(fd, 0600) != 0 || write_all(fd, text, HEX_CHARS + 1) != 0 || fsync(fd) != 0)
        code = common_error_set(err, COMMON_UNAVAILABLE, "secret file '%s' cannot be written: %s", path,
                                strerror(errno));
    close(fd);
    if (code == COMMON_OK && link(temp, path) != 0)
        code = errno == EEXIST
                   ? COMMON_ALREADY_EXISTS
                   : common_error_set(err, COMMON_UNAVAILABLE, "secret file '%s' cannot be created: %s", path,
                                      strerror(errno));
    unlink(temp);
    if (code == COMMON_OK)
        sync_directory_of(path);
    OPENSSL_cleanse(text, sizeof text);
    OPENSSL_cleanse(&secret, sizeof secret);
    return code;
}

enum common_code common_secret_load_or_create(const char *path, struct common_secret *out,
                                              struct common_error *err)
{
    enum common_code code = common_secret_load(path, out, err);
    if (code != COMMON_NOT_FOUND)
        return code;
    code = create_secret(path, err);
    if (code != COMMON_OK && code != COMMON_ALREADY_EXISTS) // another process made it meanwhile: use that one
        return code;
    return common_secret_load(path, out, err);
}

enum common_code common_token_load(const char *path, char out[COMMON_TOKEN_MAX + 1], struct common_error *err)
{
    char text[COMMON_TOKEN_MAX + 1];
    size_t len;
    enum common_code code = common_private_read(path, "token", text, sizeof text, &len, err);
    if (code == COMMON_NOT_FOUND)
        return common_error_set(
            err, code,
            "token file '%s' does not exist: create it with one line of 8 to %d characters, mode 600 (umask "
            "077; openssl rand -hex 32 > FILE), the same for coordinator and clients",
            path, COMMON_TOKEN_MAX);
    if (code != COMMON_OK)
        goto wipe;
    if (len > 0 && text[len - 1] == '\n')
        len--;
    bool good = len >= 8 && len <= COMMON_TOKEN_MAX;
    for (size_t i = 0; good && i < len; i++)
        good = text[i] >= 0x20 && text[i] <= 0x7e;
    if (!good) {
        code =
            common_error_set(err, COMMON_INVALID_ARGUMENT,
                             "token file '%s' does not hold one line of 8 to %d printable ASCII characters",
                             path, COMMON_TOKEN_MAX);
        goto wipe;
    }
    memcpy(out, text, len);
    out[len] = '\0';
wipe:
    OPENSSL_cleanse(text, sizeof text);
    return code;
}

static EVP_MAC *hmac;
static pthread_once_t hmac_once = PTHREAD_ONCE_INIT;

static void fetch_hmac(void)
{
    hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
}

bool common_mac(const struct common_secret *secret, const struct common_slice *parts, size_t n_parts,
                uint8_t out[COMMON_MAC_BYTES])
{
    pthread_once(&hmac_once, fetch_hmac);
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string("digest", digest, 0), OSSL_PARAM_construct_end()};
    EVP_MAC_CTX *ctx = hmac ? EVP_MAC_CTX_new(hmac) : NULL;
    bool good = ctx && EVP_MAC_init(ctx, secret->bytes, sizeof secret->bytes, params);
    for (size_t i = 0; good && i < n_parts; i++) {
        uint8_t prefix[8];
        for (int b = 0; b < 8; b++)
            prefix[b] = (uint8_t)((uint64_t)parts[i].len >> (8 * b));
        good = EVP_MAC_update(ctx, prefix, sizeof prefix);
        if (good && parts[i].len > 0)
            good = EVP_MAC_update(ctx, parts[i].data, parts[i].len);
    }
    size_t len = 0;
    good = good && EVP_MAC_final(ctx, out, &len, COMMON_MAC_BYTES) && len == COMMON_MAC_BYTES;
    EVP_MAC_CTX_free(ctx);
    return good;
}

static EVP_MD *sha256; // fetched once: looking for it takes longer than hashing a token
static pthread_once_t sha256_once = PTHREAD_ONCE_INIT;

static void fetch_sha256(void)
{
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
}

bool common_sha256(const void *data, size_t len, uint8_t out[COMMON_SHA256_BYTES])
{
    unsigned n = 0;
    pthread_once(&sha256_once, fetch_sha256);
    return sha256 && EVP_Digest(data, len, out, &n, sha256, NULL) == 1 && n == COMMON_SHA256_BYTES;
}

bool common_bytes_equal(const void *a, const void *b, size_t len)
{
    return len == 0 || CRYPTO_memcmp(a, b, len) == 0;
}
