// SPDX-License-Identifier: Apache-2.0
// The lease on a store: who may act, at given times; then real processes: a holder that is stopped while it writes loses the
// store, and whatever it had acknowledged is there; a takeover that ends anywhere is done again.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/loop.h"
#include "coordinator/store/lease.h"
#include "coordinator/store/takeover.h"
#include "tests/coordinator/store_suite.h"

#define LAPSE_NS (COORDINATOR_LEASE_NS + COORDINATOR_LEASE_MARGIN_NS)

enum { HOLDER = 7, WATCHER = 8, OVER = 5 };

static uint64_t now;

// ---- the rules ------------------------------------------------------------------------------------------

// Runs when OWNER is about to be written: what another process does at this moment.
static void (*before_owner)(void);
bool __real_coordinator_lease_file_write(struct coordinator_lease_file *file,
                                         enum coordinator_lease_slot slot,
                                         const struct coordinator_lease_record *record, bool durable);
bool __wrap_coordinator_lease_file_write(struct coordinator_lease_file *file,
                                         enum coordinator_lease_slot slot,
                                         const struct coordinator_lease_record *record, bool durable);
bool __wrap_coordinator_lease_file_write(struct coordinator_lease_file *file,
                                         enum coordinator_lease_slot slot,
                                         const struct coordinator_lease_record *record, bool durable)
{
    void (*fn)(void) = before_owner;
    if (slot == COORDINATOR_LEASE_OWNER && fn) {
        before_owner = NULL;
        fn();
    }
    return __real_coordinator_lease_file_write(file, slot, record, durable);
}

static struct coordinator_lease holder;
static struct coordinator_lease_watch watcher;
static struct coordinator_lease_file *file;

static void begin(const char *name)
{
    snprintf(store_path, sizeof(store_path), "%s/%s.db", store_folder, name);
    assert_int_equal(coordinator_lease_file_open(store_path, true, &file, NULL), COMMON_OK);
    now = 1000 * COMMON_NS_PER_S;
    assert_true(coordinator_lease_hold(&holder, file, HOLDER));
    watcher = (struct coordinator_lease_watch){.self = WATCHER};
}

static void end(void)
{
    coordinator_lease_file_close(file);
}

static enum coordinator_lease_verdict look(void)
{
    return coordinator_lease_look(&watcher, file, now);
}

static void watch(void) // the holder sees that it is watched, and the watcher that it does
{
    assert_int_equal(look(), COORDINATOR_LEASE_WAIT);
    assert_true(coordinator_lease_renew(&holder, now));
    assert_true(holder.watched);
    assert_int_equal(look(), COORDINATOR_LEASE_WAIT);
}

static void nobody_takes_from_one_that_is_not_watched(void **state)
{
    (void)state;
    struct coordinator_lease_record beat;
    begin("unwatched");
    assert_true(coordinator_lease_renew(&holder, now));
    assert_false(coordinator_lease_file_read(file, COORDINATOR_LEASE_BEAT, &beat)); // it writes nothing
    now += 3600 * COMMON_NS_PER_S;
    assert_true(coordinator_lease_valid(&holder, now));
    assert_true(coordinator_lease_renew(&holder, now));
    for (int i = 0; i < 100; i++, now += COMMON_NS_PER_S) // it does not run, and has not said that it knows
        assert_int_equal(look(), COORDINATOR_LEASE_WAIT);
    assert_true(coordinator_lease_mine(&holder));
    end();
}

static void a_holder_that_beats_keeps_the_store(void **state)
{
    (void)state;
    begin("beats");
    watch();
    for (int i = 0; i < 100; i++) {
        now += COORDINATOR_LEASE_NS - 1;
        assert_true(coordinator_lease_valid(&holder, now));
        assert_true(coordinator_lease_renew(&holder, now));
        assert_int_equal(look(), COORDINATOR_LEASE_WAIT);
    }
    end();
}

static void one_that_does_not_loses_it(void **state)
{
    (void)state;
    begin("lapses");
    watch();
    now += COORDINATOR_LEASE_NS - 1;
    assert_true(coordinator_lease_valid(&holder, now));
    now += 1;
    assert_false(coordinator_lease_valid(&holder, now)); // before anybody may take it
    now += COORDINATOR_LEASE_MARGIN_NS - 1;
    assert_int_equal(look(), COORDINATOR_LEASE_WAIT);
    assert_true(coordinator_lease_mine(&holder));
    now += 1;
    assert_int_equal(look(), COORDINATOR_LEASE_TAKE);
    assert_true(coordinator_lease_unfinished(file));
    assert_false(coordinator_lease_mine(&holder));
    assert_false(coordinator_lease_renew(&holder, now));
    assert_false(coordinator_lease_valid(&holder, now));
    end();
}

// It was away, and nobody has taken the store: it goes on, and the watcher waits anew.
static void one_that_comes_back_in_time_keeps_it(void **state)
{
    (void)state;
    begin("back");
    watch();
    now += LAPSE_NS - 1;
    assert_false(coordinator_lease_valid(&holder, now));
    assert_true(coordinator_lease_renew(&holder, now));
    assert_true(coordinator_lease_valid(&holder, now));
    now += 1;
    assert_int_equal(look(), COORDINATOR_LEASE_WAIT);
    now += LAPSE_NS - 1;
    assert_int_equal(look(), COORDINATOR_LEASE_WAIT);
    end();
}

static void holder_renews(void)
{
    assert_true(coordinator_lease_renew(&holder, now));
}

// It comes back between the watcher's look and its OWNER: it believes that the lease is good, so the watcher waits.
static void one_that_comes_back_at_the_last_moment_is_waited_for(void **state)
{
    (void)state;
    begin("moment");
    watch();
    now += LAPSE_NS;
    before_owner = holder_renews;
    assert_int_equal(look(), COORDINATOR_LEASE_WAIT);
    assert_null(before_owner);
    assert_true(coordinator_lease_valid(&holder, now + COORDINATOR_LEASE_NS - 1));
    assert_false(coordinator_lease_renew(&holder, now + 1));
    now += LAPSE_NS - 1;
    assert_int_equal(look(), COORDINATOR_LEASE_WAIT);
    now += 1;
    assert_false(coordinator_lease_valid(&holder, now));
    assert_int_equal(look(), COORDINATOR_LEASE_TAKE);
    end();
}

// Whoever finds that another has begun does not know how long the holder is still valid.
static void a_takeover_that_did_not_end_is_ended_by_another(void **state)
{
    (void)state;
    begin("unfinished");
    watch();
    now += LAPSE_NS;
    assert_int_equal(look(), COORDINATOR_LEASE_TAKE);
    watcher = (struct coordinator_lease_watch){.self = WATCHER + 1};
    assert_int_equal(look(), COORDINATOR_LEASE_WAIT);
    now += LAPSE_NS - 1;
    assert_int_equal(look(), COORDINATOR_LEASE_WAIT);
    now += 1;
    assert_int_equal(look(), COORDINATOR_LEASE_TAKE);
    end();
}

static void records_that_are_torn_are_absent(void **state)
{
    (void)state;
    struct coordinator_lease_record owner;
    struct coordinator_lease_file *other;
    char path[160];
    begin("torn");
    assert_true(coordinator_lease_file_read(file, COORDINATOR_LEASE_OWNER, &owner));
    assert_true(owner.owner == HOLDER && owner.number == COORDINATOR_LEASE_HELD &&
                owner.pid == (uint64_t)getpid());
    snprintf(path, sizeof(path), "%s-lease", store_path);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "x", 1, 20), 1); // in OWNER's numbers
    close(fd);
    assert_false(coordinator_lease_file_read(file, COORDINATOR_LEASE_OWNER, &owner));
    assert_false(coordinator_lease_mine(&holder)); // nobody knows
    assert_int_equal(look(), COORDINATOR_LEASE_WAIT);
    assert_true(coordinator_lease_file_lock(file)); // one starts at a time
    assert_int_equal(coordinator_lease_file_open(store_path, true, &other, NULL), COMMON_OK);
    assert_false(coordinator_lease_file_lock(other));
    coordinator_lease_file_unlock(file);
    assert_true(coordinator_lease_file_lock(other));
    coordinator_lease_file_close(other);
    end();
}

static void kernel_files_are_no_place_for_a_standby(void **state)
{
    (void)state;
    struct coordinator_lease_file *none = NULL;
    struct common_error err = {0};
    symlink("/proc/self/mem", strcat(strcpy(store_path, store_folder), "/proc.db-lease"));
    store_path[strlen(store_path) - strlen("-lease")] = 0;
    assert_int_equal(coordinator_lease_file_open(store_path, true, &none, &err), COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "--standby"));
    assert_null(none);
}

// ---- processes ------------------------------------------------------------------------------------------

struct child { // writes one session after another, and tells which are acknowledged
    struct common_loop *loop;
    struct coordinator_store *store;
    struct common_timer *timer;
    int out;
    uint64_t next;
};

static void child_write(struct child *c);

static void child_told(void *arg, enum common_code code, const char *text)
{
    struct child *c = arg;
    (void)text;
    if (code != COMMON_OK || write(c->out, &c->next, sizeof(c->next)) != sizeof(c->next))
        _exit(1);
    c->next++;
    child_write(c);
}

static void child_write(struct child *c)
{
    static char spec[3000]; // the log is put into the file often
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session(batch, c->next, "", spec, sizeof(spec), 1, 1, 0);
    coordinator_store_submit(c->store, batch, child_told, c);
}

static void child_renew(void *arg)
{
    struct child *c = arg;
    if (!coordinator_store_renew(c->store, common_clock_ns()))
        _exit(OVER);
}

static void child_run(int out)
{
    struct store_seen seen;
    struct coordinator_store_reader reader = store_reader(&seen);
    struct child c = {.out = out, .next = 1};
    memset(&seen, 0, sizeof(seen));
    if (common_loop_new(&c.loop) != COMMON_OK ||
        coordinator_store_open(store_path, false, c.loop, &reader, NULL, &c.store, NULL) != COMMON_OK ||
        common_timer_new(c.loop, child_renew, &c, &c.timer) != COMMON_OK)
        _exit(1);
    c.next = seen.session + 1;
    common_timer_start(c.timer, COORDINATOR_LEASE_RENEW_NS, true);
    child_write(&c);
    common_loop_run(c.loop);
    _exit(1);
}

static uint64_t read_acknowledged(int in, uint64_t last)
{
    uint64_t id;
    while (read(in, &id, sizeof(id)) == sizeof(id)) {
        assert_true(id > last);
        last = id;
    }
    return last;
}

static enum common_code take(struct store_seen *seen, struct coordinator_lease_watch *watch,
                             struct coordinator_store **out, struct common_error *err)
{
    struct coordinator_store_reader reader = store_reader(seen);
    memset(seen, 0, sizeof(*seen));
    return coordinator_store_open(store_path, false, store_loop, &reader, watch, out, err);
}

static void what_a_stopped_holder_had_acknowledged_is_there(void **state)
{
    (void)state;
    uint64_t terms = 0, total = 0;
    snprintf(store_path, sizeof(store_path), "%s/stopped.db", store_folder);
    for (int round = 0; round < 4; round++) {
        struct coordinator_lease_watch watch = {.self = 100 + (uint64_t)round};
        struct coordinator_store *store = NULL;
        struct store_seen seen;
        struct common_error err = {0};
        int ends[2], status;
        enum common_code code;
        assert_int_equal(pipe(ends), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            child_run(ends[1]);
        close(ends[1]);
        uint64_t id = 0;
        assert_int_equal(read(ends[0], &id, sizeof(id)), sizeof(id)); // it has the store
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        for (int i = 0; i < 20; i++) { // it learns that it is watched, and is left alone
            assert_int_equal(take(&seen, &watch, &store, &err), COMMON_IN_PROGRESS);
            id = read_acknowledged(ends[0], id); // or the pipe is full, and it waits for us
            usleep(50000 + (unsigned)(round * 1717));
        }
        kill(pid, SIGSTOP);
        while ((code = take(&seen, &watch, &store, &err)) == COMMON_IN_PROGRESS)
            usleep(50000);
        if (code != COMMON_OK)
            fail_msg("round %d: %s", round, err.message);
        id = read_acknowledged(ends[0], id);
        kill(pid, SIGCONT);
        status = store_child_status(pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), OVER);
        uint64_t last = read_acknowledged(ends[0], id);
        close(ends[0]);
        if (seen.sessions < last)
            fail_msg("round %d: %" PRIu64 " sessions were acknowledged, and %u are there", round, last,
                     seen.sessions);
        assert_true(last > total);
        assert_true(coordinator_store_term(store) > terms);
        terms = coordinator_store_term(store);
        total = seen.session + 1;
        struct coordinator_batch *batch = coordinator_batch_new();
        coordinator_batch_session(batch, total, "", "mine", 4, 1, 1, 0);
        store_submit(store, batch);
        store_close(store);
        assert_int_equal(store_failed, 0);
        assert_int_equal(store_open(&seen, &store, &err), COMMON_OK); // and what came after it is there, too
        assert_int_equal(seen.session, total);
        store_close(store);
    }
}

// ---- a takeover that ends anywhere ----------------------------------------------------------------------

static int die_at = -1; // before the nth of these calls

static void may_die(void)
{
    if (die_at >= 0 && die_at-- == 0)
        _exit(9);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    may_die();
    return __real_rename(from, to);
}

int __real_unlink(const char *path);
int __wrap_unlink(const char *path);
int __wrap_unlink(const char *path)
{
    may_die();
    return __real_unlink(path);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    may_die();
    return __real_fsync(fd);
}

static void a_takeover_ends_anywhere(void **state)
{
    (void)state;
    int at = 0, died = 0;
    do {
        struct coordinator_store *store;
        struct store_seen seen;
        struct common_error err = {0};
        int ends[2], status;
        uint64_t id = 0;
        snprintf(store_path, sizeof(store_path), "%s/ends%d.db", store_folder, at);
        assert_int_equal(pipe(ends), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            child_run(ends[1]);
        close(ends[1]);
        while (id < 700) // more than SQLite leaves in its log: the file has a part of it
            assert_int_equal(read(ends[0], &id, sizeof(id)), sizeof(id));
        kill(pid, SIGKILL);
        store_child_status(pid);
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        id = read_acknowledged(ends[0], id);
        close(ends[0]);
        for (int twice = 0; twice < 2; twice++) { // it ends, is done again, and ends there again
            pid = fork();
            assert_true(pid >= 0);
            if (pid == 0) {
                die_at = at;
                _exit(coordinator_takeover(store_path, NULL) == COMMON_OK ? 0 : 1);
            }
            status = store_child_status(pid);
            assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 9 || WEXITSTATUS(status) == 0));
        }
        died = WEXITSTATUS(status) == 9;
        assert_int_equal(coordinator_takeover(store_path, &err), COMMON_OK);
        assert_int_equal(store_open(&seen, &store, &err), COMMON_OK);
        assert_true(seen.sessions >= id);
        assert_int_equal(seen.sessions, seen.session);
        store_close(store);
        at++;
    } while (died);
    assert_true(at > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nobody_takes_from_one_that_is_not_watched, store_setup,
                                        store_teardown),
        cmocka_unit_test_setup_teardown(a_holder_that_beats_keeps_the_store, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(one_that_does_not_loses_it, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(one_that_comes_back_in_time_keeps_it, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(one_that_comes_back_at_the_last_moment_is_waited_for, store_setup,
                                        store_teardown),
        cmocka_unit_test_setup_teardown(a_takeover_that_did_not_end_is_ended_by_another, store_setup,
                                        store_teardown),
        cmocka_unit_test_setup_teardown(records_that_are_torn_are_absent, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(kernel_files_are_no_place_for_a_standby, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(what_a_stopped_holder_had_acknowledged_is_there, store_setup,
                                        store_teardown),
        cmocka_unit_test_setup_teardown(a_takeover_ends_anywhere, store_setup, store_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
