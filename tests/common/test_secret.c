// SPDX-License-Identifier: Apache-2.0
#include <grp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/random.h"
#include "common/memory/blob.h"
#include "common/secure/secret.h"
#include "tests/common/scratch.h"

static struct scratch scratch;

#define HEX "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1F"

static int setup(void **state)
{
    (void)state;
    return scratch_init(&scratch);
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(&scratch);
    return 0;
}

static enum common_code load_text(const char *text, size_t len, mode_t mode)
{
    const char *path = scratch_write(&scratch, "secret", text, len, mode);
    assert_non_null(path);
    struct common_secret out;
    memset(&out, 0x77, sizeof out);
    struct common_secret before = out;
    struct common_error err = {0};
    enum common_code code = common_secret_load(path, &out, &err);
    if (code != COMMON_OK) {
        assert_memory_equal(&out, &before, sizeof out); // written on success alone
        assert_int_equal(err.code, code);
        assert_non_null(strstr(err.message, path));
    }
    return code;
}

static void test_load(void **state)
{
    (void)state;
    struct common_secret secret;
    const char *path = scratch_write(&scratch, "secret", HEX "\n", 65, 0600);
    assert_int_equal(common_secret_load(path, &secret, NULL), COMMON_OK);
    for (size_t i = 0; i < COMMON_SECRET_BYTES; i++)
        assert_int_equal(secret.bytes[i], i);
    assert_int_equal(load_text(HEX "\n", 65, 0400), COMMON_OK);
}

static void test_wrong_contents(void **state)
{
    (void)state;
    assert_int_equal(load_text("", 0, 0600), COMMON_INVALID_ARGUMENT);
    assert_int_equal(load_text(HEX, 64, 0600), COMMON_INVALID_ARGUMENT);
    assert_int_equal(load_text(HEX "\n\n", 66, 0600), COMMON_INVALID_ARGUMENT);
    assert_int_equal(load_text(HEX "0\n", 66, 0600), COMMON_INVALID_ARGUMENT);
    assert_int_equal(load_text(HEX " ", 65, 0600), COMMON_INVALID_ARGUMENT);
    assert_int_equal(load_text(HEX "\r\n", 66, 0600), COMMON_INVALID_ARGUMENT);
    static const char bad[] = {'g', 'G', '/', ':', '@', '`', ' ', '\0', '\xff'};
    for (size_t i = 0; i < sizeof bad; i++) {
        char text[] = HEX "\n";
        text[40] = bad[i];
        assert_int_equal(load_text(text, 65, 0600), COMMON_INVALID_ARGUMENT);
    }
}

static void test_files_that_others_can_reach(void **state)
{
    (void)state;
    static const mode_t modes[] = {0640, 0604, 0620, 0602, 0610, 0601, 0644, 0666, 0777};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        assert_int_equal(load_text(HEX "\n", 65, modes[i]), COMMON_PERMISSION_DENIED);
}

static void test_not_a_plain_file(void **state)
{
    (void)state;
    struct common_secret secret;
    struct common_error err;
    char target[PATH_MAX];
    snprintf(target, sizeof target, "%s", scratch_write(&scratch, "secret", HEX "\n", 65, 0600));
    const char *link_path = scratch_path(&scratch, "link");
    assert_int_equal(symlink(target, link_path), 0);
    assert_int_equal(common_secret_load(link_path, &secret, &err), COMMON_PERMISSION_DENIED);
    assert_non_null(strstr(err.message, "symbolic link"));
    // A dangling link must not lead to a file made somewhere else.
    unlink(target);
    assert_int_equal(common_secret_load_or_create(link_path, &secret, &err), COMMON_PERMISSION_DENIED);
    assert_int_equal(access(target, F_OK), -1);
    const char *fifo = scratch_path(&scratch, "fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(common_secret_load(fifo, &secret, &err), COMMON_INVALID_ARGUMENT); // and does not wait
    assert_int_equal(common_secret_load(scratch.dir, &secret, &err), COMMON_INVALID_ARGUMENT);
}

// systemd hands credentials over as files of root's, and gives their group's bits to an ACL.
static void test_credentials(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip(); // they are root's
    struct common_secret secret;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", scratch_write(&scratch, "secret", HEX "\n", 65, 0440));
    assert_int_equal(common_secret_load(path, &secret, NULL), COMMON_PERMISSION_DENIED);
    assert_int_equal(setenv("CREDENTIALS_DIRECTORY", scratch.dir, 1), 0);
    assert_int_equal(common_secret_load(path, &secret, NULL), COMMON_OK);
    static const mode_t modes[] = {0444, 0460, 0441};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        assert_int_equal(load_text(HEX "\n", 65, modes[i]), COMMON_PERMISSION_DENIED);
    assert_int_equal(load_text(HEX "\n", 65, 0440), COMMON_OK);
    assert_int_equal(setenv("CREDENTIALS_DIRECTORY", "/", 1), 0); // not of this folder
    assert_int_equal(common_secret_load(path, &secret, NULL), COMMON_PERMISSION_DENIED);
    unsetenv("CREDENTIALS_DIRECTORY");
}

static void test_another_owner(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip(); // only root can give a file away
    struct common_secret secret;
    struct common_error err;
    const char *path = scratch_write(&scratch, "secret", HEX "\n", 65, 0600);
    assert_int_equal(chown(path, 12345, (gid_t)-1), 0);
    assert_int_equal(common_secret_load(path, &secret, &err), COMMON_PERMISSION_DENIED);
    assert_non_null(strstr(err.message, "12345"));
}

// In a process of that user and group; 0: it is taken.
static int load_as(const char *path, uid_t uid, gid_t gid)
{
    struct common_secret secret;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (setgroups(1, &gid) != 0 || setgid(12000) != 0 || setuid(uid) != 0)
            _exit(99);
        _exit((int)common_secret_load(path, &secret, NULL));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

// Root's file that a group may read, as Kubernetes and Docker mount it for a process that is not root.
static void test_granted_by_root(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip(); // only root can be another user
    const char *path = scratch_write(&scratch, "secret", HEX "\n", 65, 0600);
    assert_int_equal(chmod(scratch.dir, 0755), 0);
    assert_int_equal(chown(path, 0, 12345), 0);
    static const mode_t good[] = {0440, 0640, 0040}, bad[] = {0444, 0644, 0660, 0460, 0450, 0442, 0441};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(chmod(path, good[i]), 0);
        assert_int_equal(load_as(path, 12346, 12345), COMMON_OK);
        assert_int_equal(load_as(path, 12346, 12347), COMMON_PERMISSION_DENIED); // a group of others
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(chmod(path, bad[i]), 0);
        assert_int_equal(load_as(path, 12346, 12345), COMMON_PERMISSION_DENIED);
    }
    assert_int_equal(chmod(path, 0440), 0);
    assert_int_equal(chown(path, 12349, 12345), 0); // another user's, whatever the group
    assert_int_equal(load_as(path, 12346, 12345), COMMON_PERMISSION_DENIED);
}

static void test_create(void **state)
{
    (void)state;
    struct common_secret made, again, another;
    const char *path = scratch_path(&scratch, "new");
    assert_int_equal(common_secret_load(path, &made, NULL), COMMON_NOT_FOUND);
    mode_t old = umask(0777); // the mode must not depend on it
    assert_int_equal(common_secret_load_or_create(path, &made, NULL), COMMON_OK);
    umask(old);
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_size, 65);
    assert_int_equal(st.st_nlink, 1);
    assert_int_equal(common_secret_load_or_create(path, &again, NULL), COMMON_OK);
    assert_memory_equal(&made, &again, sizeof made);
    assert_int_equal(scratch_count(&scratch), 1); // nothing is left beside it
    assert_int_equal(common_secret_load_or_create(scratch_path(&scratch, "other"), &another, NULL),
                     COMMON_OK);
    assert_memory_not_equal(&made, &another, sizeof made);
    assert_int_equal(common_secret_load_or_create(scratch_path(&scratch, "no/dir"), &made, NULL),
                     COMMON_UNAVAILABLE);
}

// Several processes start at the same time: all must end with one secret.
static void test_create_together(void **state)
{
    (void)state;
    enum { N = 8 };
    const char *path = scratch_path(&scratch, "new");
    int pipes[N][2];
    pid_t pids[N];
    for (int i = 0; i < N; i++) {
        assert_int_equal(pipe(pipes[i]), 0);
        pids[i] = fork();
        if (pids[i] == 0) {
            struct common_secret secret;
            bool good = common_secret_load_or_create(path, &secret, NULL) == COMMON_OK &&
                        write(pipes[i][1], &secret, sizeof secret) == sizeof secret;
            _exit(good ? 0 : 1);
        }
        close(pipes[i][1]);
    }
    struct common_secret first, secret;
    for (int i = 0; i < N; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
        assert_int_equal(read(pipes[i][0], i ? &secret : &first, sizeof secret), sizeof secret);
        close(pipes[i][0]);
        if (i)
            assert_memory_equal(&first, &secret, sizeof first);
    }
    assert_int_equal(scratch_count(&scratch), 1);
}

static enum common_code load_token(const char *text, mode_t mode, char *out)
{
    return common_token_load(scratch_write(&scratch, "token", text, strlen(text), mode), out, NULL);
}

static void test_token(void **state)
{
    (void)state;
    char out[COMMON_TOKEN_MAX + 1];
    assert_int_equal(load_token("12345678\n", 0600, out), COMMON_OK);
    assert_string_equal(out, "12345678");
    assert_int_equal(load_token("no newline ~!", 0600, out), COMMON_OK);
    assert_string_equal(out, "no newline ~!");
    assert_int_equal(load_token("1234567\n", 0600, out), COMMON_INVALID_ARGUMENT);
    assert_int_equal(load_token("", 0600, out), COMMON_INVALID_ARGUMENT);
    assert_int_equal(load_token("12345678\n9\n", 0600, out), COMMON_INVALID_ARGUMENT);
    assert_int_equal(load_token("1234\t5678", 0600, out), COMMON_INVALID_ARGUMENT);
    assert_int_equal(load_token("12345678\r\n", 0600, out), COMMON_INVALID_ARGUMENT);
    assert_int_equal(load_token("passw\xc3\xb6rter\n", 0600, out), COMMON_INVALID_ARGUMENT);
    assert_int_equal(load_token("12345678\n", 0640, out), COMMON_PERMISSION_DENIED);
    assert_int_equal(common_token_load(scratch_path(&scratch, "none"), out, NULL), COMMON_NOT_FOUND);

    char text[COMMON_TOKEN_MAX + 3];
    memset(text, 't', sizeof text);
    text[COMMON_TOKEN_MAX] = '\n';
    text[COMMON_TOKEN_MAX + 1] = '\0';
    assert_int_equal(load_token(text, 0600, out), COMMON_OK);
    assert_int_equal(strlen(out), COMMON_TOKEN_MAX);
    text[COMMON_TOKEN_MAX] = 't';
    assert_int_equal(load_token(text, 0600, out), COMMON_INVALID_ARGUMENT);
}

static void assert_mac(const struct common_slice *parts, size_t n, const char *hex)
{
    struct common_secret secret;
    for (size_t i = 0; i < COMMON_SECRET_BYTES; i++)
        secret.bytes[i] = (uint8_t)i;
    uint8_t mac[COMMON_MAC_BYTES];
    char text[2 * COMMON_MAC_BYTES + 1];
    assert_true(common_mac(&secret, parts, n, mac));
    for (size_t i = 0; i < COMMON_MAC_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", mac[i]);
    assert_string_equal(text, hex);
}

// Expected values come from Python's hmac over the parts with their lengths in front.
static void test_mac(void **state)
{
    (void)state;
    const struct common_slice split[] = {{"ab", 2}, {"c", 1}};
    assert_mac(split, 2, "b0c00b9c008947559cd4524980c14546efc123c1f72f20f7333f624bee6bc469");
    assert_mac(NULL, 0, "d38b42096d80f45f826b44a9d5607de72496a415d3f4a1a8c88e3bb9da8dc1cb");
    const struct common_slice empty[] = {{NULL, 0}};
    assert_mac(empty, 1, "9f0cd9b94097fe4929918d2b8942b34439574261a35dc50163f06c67d4e48899");
}

static void test_macs_differ(void **state)
{
    (void)state;
    struct common_secret secret = {{1}}, other = {{2}};
    uint8_t a[COMMON_MAC_BYTES], b[COMMON_MAC_BYTES];
    assert_true(common_mac(&secret, (struct common_slice[]){{"ab", 2}, {"c", 1}}, 2, a));
    assert_true(common_mac(&secret, (struct common_slice[]){{"a", 1}, {"bc", 2}}, 2, b));
    assert_false(common_bytes_equal(a, b, sizeof a));
    assert_true(common_mac(&secret, (struct common_slice[]){{"abc", 3}}, 1, b));
    assert_false(common_bytes_equal(a, b, sizeof a));
    assert_true(common_mac(&other, (struct common_slice[]){{"ab", 2}, {"c", 1}}, 2, b));
    assert_false(common_bytes_equal(a, b, sizeof a));
    assert_true(common_mac(&secret, (struct common_slice[]){{"ab", 2}, {"c", 1}}, 2, b));
    assert_true(common_bytes_equal(a, b, sizeof a));
}

static void test_equal_and_random(void **state)
{
    (void)state;
    uint8_t a[33] = {0}, b[33] = {0};
    assert_true(common_bytes_equal(a, b, 33));
    b[32] = 1;
    assert_false(common_bytes_equal(a, b, 33));
    assert_true(common_bytes_equal(a, b, 32));
    assert_true(common_bytes_equal(NULL, NULL, 0));
    assert_true(common_random(a, 32));
    assert_true(common_random(b, 32));
    assert_memory_not_equal(a, b, 32); // 2^-256
    assert_int_equal(a[32], 0);
    assert_true(common_random(NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_load, setup, teardown),
        cmocka_unit_test_setup_teardown(test_wrong_contents, setup, teardown),
        cmocka_unit_test_setup_teardown(test_files_that_others_can_reach, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_a_plain_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_credentials, setup, teardown),
        cmocka_unit_test_setup_teardown(test_another_owner, setup, teardown),
        cmocka_unit_test_setup_teardown(test_granted_by_root, setup, teardown),
        cmocka_unit_test_setup_teardown(test_create, setup, teardown),
        cmocka_unit_test_setup_teardown(test_create_together, setup, teardown),
        cmocka_unit_test_setup_teardown(test_token, setup, teardown),
        cmocka_unit_test(test_mac),
        cmocka_unit_test(test_macs_differ),
        cmocka_unit_test(test_equal_and_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
