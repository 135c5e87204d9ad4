// SPDX-License-Identifier: Apache-2.0
// Who has a store's files, and that no other process opens, writes or removes one: real files and processes.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/log/log.h"
#include "common/loop/loop.h"
#include "coordinator/store/backup.h"
#include "coordinator/store/hold.h"
#include "coordinator/store/restore.h"
#include "tests/coordinator/store_suite.h"

extern char **environ;

static const char *beside(const char *suffix)
{
    static char names[4][256];
    static unsigned n;
    char *name = names[n++ % 4];
    snprintf(name, sizeof names[0], "%s%s", store_path, suffix);
    return name;
}

static void shell(const char *command)
{
    char line[1024];
    snprintf(line, sizeof line, "cd %s/deep/er && %s", store_folder, command);
    assert_int_equal(system(line), 0);
}

static ino_t inode(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_ino;
}

static void stored(void *arg, enum common_code code, const char *text)
{
    (void)arg, (void)text;
    assert_int_equal(code, COMMON_OK);
    common_loop_stop(store_loop);
}

static void put(struct coordinator_store *store, const char *worker, uint64_t instance)
{
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_worker(batch, worker, instance);
    coordinator_store_submit(store, batch, stored, NULL);
    common_loop_run(store_loop);
}

static void nothing(void *arg)
{
    (void)arg;
}

static void expect_refused(const char *words)
{
    struct coordinator_store *second = NULL;
    struct store_seen seen;
    struct common_error err = {0};
    assert_int_equal(store_open(&seen, &second, &err), COMMON_FAILED_PRECONDITION);
    if (!strstr(err.message, words))
        fail_msg("'%s' does not say '%s'", err.message, words);
}

static struct coordinator_store *open_it(struct store_seen *seen)
{
    struct coordinator_store *store = NULL;
    struct common_error err = {0};
    if (store_open(seen, &store, &err) != COMMON_OK)
        fail_msg("%s", err.message);
    return store;
}

// ---- the hold ---------------------------------------------------------------------------------------------

static void who_has_it_is_named(void **state)
{
    (void)state;
    struct store_seen seen;
    char words[64], host[65] = "";
    struct coordinator_store *store = open_it(&seen);
    snprintf(words, sizeof words, "(process %d on host ", (int)getpid());
    expect_refused(words);
    gethostname(host, sizeof host - 1);
    expect_refused(host);
    store_close(store);
    store_close(open_it(&seen));
}

// At the very moment at which SQLite closes, and after it, the store is still this process's.
static bool looking;
static unsigned looked, free_too_soon;

static void look(void)
{
    struct coordinator_hold *hold = NULL;
    looked++;
    free_too_soon += coordinator_hold_take(store_path, &hold, NULL) == COMMON_OK;
    coordinator_hold_end(hold, nothing, NULL);
}

int __real_sqlite3_close(sqlite3 *db);
int __wrap_sqlite3_close(sqlite3 *db);
int __wrap_sqlite3_close(sqlite3 *db)
{
    bool its_own = looking && db;
    if (its_own)
        look();
    int rc = __real_sqlite3_close(db);
    if (its_own)
        look();
    return rc;
}

static void it_is_given_back_last(void **state)
{
    (void)state;
    struct store_seen seen;
    struct coordinator_store *store = open_it(&seen);
    put(store, "w0", 7);
    looked = free_too_soon = 0;
    looking = true;
    store_close(store);
    looking = false;
    assert_int_equal(looked, 2);
    assert_int_equal(free_too_soon, 0);
    struct coordinator_hold *hold = NULL;
    assert_int_equal(coordinator_hold_take(store_path, &hold, NULL), COMMON_OK);
    coordinator_hold_end(hold, nothing, NULL);
}

static void a_killed_process_gives_it_back(void **state)
{
    (void)state;
    struct store_seen seen;
    store_close(open_it(&seen)); // makes the folder
    for (int i = 0; i < 3; i++) {
        int ready[2];
        char one = 0;
        assert_int_equal(pipe(ready), 0);
        pid_t pid = fork();
        if (pid == 0) {
            struct coordinator_hold *hold = NULL;
            bool ok =
                coordinator_hold_take(store_path, &hold, NULL) == COMMON_OK && write(ready[1], "x", 1) == 1;
            for (; ok;)
                pause();
            _exit(1);
        }
        assert_int_equal(read(ready[0], &one, 1), 1);
        expect_refused("is in use by a coordinator (process ");
        kill(pid, i == 1 ? SIGSTOP : SIGKILL);
        if (i == 1) { // stopped it has it
            expect_refused("is in use by a coordinator (process ");
            kill(pid, SIGKILL);
        }
        store_child_status(pid);
        close(ready[0]);
        close(ready[1]);
        store_close(open_it(&seen));
    }
}

// A program that the coordinator starts does not inherit it.
static void a_child_does_not_keep_it(void **state)
{
    (void)state;
    struct store_seen seen;
    struct coordinator_store *store = open_it(&seen);
    char *argv[] = {"sleep", "60", NULL};
    pid_t pid;
    assert_int_equal(posix_spawnp(&pid, "sleep", NULL, NULL, argv, environ), 0);
    store_close(store);
    struct coordinator_hold *hold = NULL;
    enum common_code code = coordinator_hold_take(store_path, &hold, NULL);
    coordinator_hold_end(hold, nothing, NULL);
    kill(pid, SIGKILL);
    store_child_status(pid);
    assert_int_equal(code, COMMON_OK);
}

static void a_link_leads_to_the_same_store(void **state)
{
    (void)state;
    struct store_seen seen;
    char real[sizeof store_path];
    struct coordinator_store *store = open_it(&seen);
    snprintf(real, sizeof real, "%s", store_path);
    shell("ln -s store.db link.db && ln -s . folder && ln -s nowhere dangling.db");
    static const char *const names[] = {"link.db", "folder/store.db", "folder/../er/link.db"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(store_path, sizeof store_path, "%s/deep/er/%s", store_folder, names[i]);
        expect_refused("is in use by a coordinator (process ");
    }
    struct coordinator_store *none = NULL;
    struct common_error err = {0};
    snprintf(store_path, sizeof store_path, "%s/deep/er/dangling.db", store_folder);
    assert_int_equal(store_open(&seen, &none, &err), COMMON_UNAVAILABLE);
    assert_non_null(strstr(err.message, "a link to a missing file"));
    snprintf(store_path, sizeof store_path, "%s", real);
    store_close(store);
}

static void a_folder_that_takes_no_files_is_said(void **state)
{
    (void)state;
    struct store_seen seen;
    struct coordinator_store *none = NULL;
    struct common_error err = {0};
    snprintf(store_path, sizeof store_path, "/sys/kernel/store.db"); // root may not either
    assert_int_equal(store_open(&seen, &none, &err), COMMON_UNAVAILABLE);
    assert_non_null(strstr(err.message, "/sys/kernel/store.db"));
}

// ---- files that were moved --------------------------------------------------------------------------------

// The whole store is moved away under a running coordinator, and another one starts: each has files of its
// own. What the first one still does, also as it ends, touches nothing of the second one's.
//
// SQLite itself looks whether its file has been moved before it closes, and only then takes a second for the
// disk; so it is not asked to remove anything at all (a_log_stays_empty_after_a_stop).
static void one_that_was_moved_away_touches_nothing(void **state)
{
    (void)state;
    struct store_seen seen;
    struct coordinator_store *old = open_it(&seen);
    put(old, "w0", 1);
    shell("mkdir moved && mv store.db* moved/");
    struct coordinator_store *next = open_it(&seen);
    assert_int_equal(seen.workers, 0);
    put(next, "w0", 2);
    ino_t wal = inode(beside("-wal")), lock = inode(beside("-lock"));
    put(old, "w0", 3);

    store_close(old);
    assert_int_equal(inode(beside("-wal")), wal);
    assert_int_equal(inode(beside("-lock")), lock);
    shell(
        "cp store.db copy.db && cp store.db-wal copy.db-wal"); // as after a kill: what was acknowledged is in these two
    store_close(next);
    char real[sizeof store_path];
    snprintf(real, sizeof real, "%s", store_path);
    static const struct {
        const char *name;
        uint64_t instance;
    } stores[] = {{"copy.db", 2}, {"moved/store.db", 3}, {"store.db", 2}};
    for (size_t i = 0; i < sizeof stores / sizeof *stores; i++) {
        snprintf(store_path, sizeof store_path, "%s/deep/er/%s", store_folder, stores[i].name);
        struct coordinator_store *store = open_it(&seen);
        assert_int_equal(seen.workers, 1);
        assert_int_equal(seen.instance, stores[i].instance);
        store_close(store);
    }
    snprintf(store_path, sizeof store_path, "%s", real);
}

static enum common_code backup_code;
static unsigned backup_ended;

static void on_backup(void *arg, enum common_code code, const char *text)
{
    (void)arg, (void)text;
    backup_code = code;
    backup_ended++;
    common_loop_stop(store_loop);
}

// Without its lock's name the store is still SQLite's, but what stands beside it may be another's.
static void a_lock_that_was_removed_is_missed(void **state)
{
    (void)state;
    struct store_seen seen;
    struct common_error err = {0};
    struct coordinator_store *store = open_it(&seen);
    struct coordinator_backup *backup = NULL;
    shell("rm store.db-lock && echo other > store.db-backup");
    expect_refused("is in use by a process without its lock file");
    backup_ended = 0;
    assert_int_equal(coordinator_backup_new(store, on_backup, NULL, &backup, &err), COMMON_OK);
    common_loop_run(store_loop);
    assert_int_equal(backup_ended, 1);
    assert_int_equal(backup_code, COMMON_FAILED_PRECONDITION);
    coordinator_backup_free(backup);
    assert_int_equal(access(beside("-backup"), F_OK), 0);
    store_close(store);
}

static void a_restore_does_not_wait(void **state)
{
    (void)state;
    struct store_seen seen;
    struct common_error err = {0};
    struct coordinator_store *store = open_it(&seen);
    shell("echo x > backup && mv store.db elsewhere.db && echo mine > store.db-restoring");
    assert_int_equal(coordinator_restore(beside(""), store_path, &err), COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "is in use by a coordinator (process "));
    assert_int_equal(access(beside("-restoring"), F_OK), 0);
    store_close(store);
}

static void a_log_stays_empty_after_a_stop(void **state)
{
    (void)state;
    struct store_seen seen;
    struct stat st;
    struct coordinator_store *store = open_it(&seen);
    put(store, "w0", 7);
    store_close(store);
    assert_int_equal(stat(beside("-wal"), &st), 0);
    assert_int_equal(st.st_size, 0);
    shell("rm store.db-wal store.db-lock"); // the store alone is the store
    store = open_it(&seen);
    assert_int_equal(seen.instance, 7);
    store_close(store);
}

// ---- what earlier versions have left ----------------------------------------------------------------------

// PATH and PATH-wal as a killed coordinator leaves them, with one worker in the log alone.
static void make_killed(void)
{
    struct store_seen seen;
    struct coordinator_store *store = open_it(&seen);
    put(store, "w0", 7);
    shell("cp store.db k.db && cp store.db-wal k.db-wal");
    store_close(store);
    shell("rm store.db store.db-wal && mv k.db store.db && mv k.db-wal store.db-wal");
}

static void expect_it(void)
{
    struct store_seen seen;
    struct coordinator_store *store = open_it(&seen);
    assert_int_equal(seen.workers, 1);
    assert_int_equal(seen.instance, 7);
    store_close(store);
}

// A reboot in the middle of a takeover, at each place; the lease says that a process takes the store, on
// another boot.
static void a_takeover_that_was_cut_off_is_opened(void **state)
{
    (void)state;
    static const char *const left[] = {
        ": > store.db-taking",
        "head -c 5000 store.db > store.db-taking",
        "cp store.db store.db-taking && head -c 900 store.db-wal > store.db-taking-wal",
        "cp store.db store.db-taking && cp store.db-wal store.db-taking-wal",
    };
    for (size_t i = 0; i <= sizeof left / sizeof *left; i++) {
        make_killed();
        shell("head -c 1536 /dev/urandom > store.db-lease");
        if (i < sizeof left / sizeof *left) {
            shell(left[i]);
        } else { // renamed, and the old log not removed yet
            sqlite3 *db = NULL;
            shell("cp store.db t.db && cp store.db-wal t.db-wal");
            char merged[256];
            snprintf(merged, sizeof merged, "%s/deep/er/t.db", store_folder);
            assert_int_equal(sqlite3_open(merged, &db), SQLITE_OK);
            assert_int_equal(sqlite3_exec(db, "SELECT count(*) FROM sqlite_schema", NULL, NULL, NULL),
                             SQLITE_OK);
            assert_int_equal(sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL),
                             SQLITE_OK);
            assert_int_equal(__real_sqlite3_close(db), SQLITE_OK);
            shell("mv t.db store.db");
        }
        expect_it();
        struct stat st;
        assert_int_equal(stat(beside("-lease"), &st), 0);
        assert_int_equal(st.st_size, 0); // that version does not accept it any more either
        if (i < sizeof left / sizeof *left)
            assert_int_equal(access(beside("-taking"), F_OK), 0); // named in the log; an operator removes it
        expect_it();
        shell("rm -f store.db*");
    }
}

// As long as such a process lives it could write to the log, or remove it.
static void one_of_an_earlier_version_that_lives_is_in_the_way(void **state)
{
    (void)state;
    make_killed();
    shell("head -c 1536 /dev/urandom > store.db-lease");
    int fd = open(beside("-lease"), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    expect_refused("a coordinator of an earlier version");
    close(fd);
    expect_it();
}

int main(void)
{
    common_log_set_level(COMMON_LOG_ERROR);
#define TEST(name) cmocka_unit_test_setup_teardown(name, store_setup, store_teardown)
    const struct CMUnitTest tests[] = {
        TEST(who_has_it_is_named),
        TEST(it_is_given_back_last),
        TEST(a_killed_process_gives_it_back),
        TEST(a_child_does_not_keep_it),
        TEST(a_link_leads_to_the_same_store),
        TEST(a_folder_that_takes_no_files_is_said),
        TEST(one_that_was_moved_away_touches_nothing),
        TEST(a_lock_that_was_removed_is_missed),
        TEST(a_restore_does_not_wait),
        TEST(a_log_stays_empty_after_a_stop),
        TEST(a_takeover_that_was_cut_off_is_opened),
        TEST(one_of_an_earlier_version_that_lives_is_in_the_way),
    };
    return cmocka_run_group_tests_name("store_hold", tests, NULL, NULL);
}
