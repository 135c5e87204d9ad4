// SPDX-License-Identifier: Apache-2.0
// The store on a disk that dies at any moment, loses and tears what was not synced, and whose syncs fail:
// what was acknowledged is there, what was refused is not and never comes back, each batch is there as a
// whole or not at all, and the file passes SQLite's integrity check.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "coordinator/store/store.h"
#include "tests/common/sanitized.h"
#include "tests/coordinator/torn_disk.h"

enum { SUBJECTS = 400, LIVES = 5, CHUNKS = 3, SPEC_MOST = 60000, SEEDS = SANITIZED(150, 30, 8) };

enum told { NOT_ASKED, UNTOLD, DONE, REFUSED };

struct subject { // a session that one batch makes, and another drops
    enum told made, dropped;
    uint32_t sessions, members, chunks, ranges, keys, cuts, floors, seals; // that were read
};

static char folder[64], path[128];
static struct common_loop *loop;
static struct coordinator_store *store;
static struct subject subjects[SUBJECTS];
static uint32_t n_subjects, pending;
static uint64_t seed;
static bool closing; // what it says from now on is no verdict

// ---- what was read --------------------------------------------------------------------------------------

static struct subject *subject_of(uint64_t session)
{
    assert_true(session > 0 && session <= n_subjects);
    return &subjects[session - 1];
}

static bool on_worker(void *arg, const char *name, uint64_t instance)
{
    (void)arg, (void)name, (void)instance;
    return true;
}

static bool on_session(void *arg, uint64_t id, const char *name, const void *spec, size_t spec_bytes,
                       uint64_t incarnation, uint64_t epoch, uint32_t tenant)
{
    char wanted[32];
    (void)arg, (void)tenant;
    snprintf(wanted, sizeof wanted, "session %" PRIu64, id);
    assert_string_equal(name, wanted);
    assert_true(incarnation == id && epoch == id + 1);
    for (size_t i = 0; i < spec_bytes; i++)
        assert_int_equal(((const uint8_t *)spec)[i], (uint8_t)(id + i));
    subject_of(id)->sessions++;
    return true;
}

static bool on_member(void *arg, uint64_t session, const char *worker)
{
    (void)arg, (void)worker;
    subject_of(session)->members++;
    return true;
}

static bool on_chunk(void *arg, uint64_t session, uint32_t index, uint64_t id, bool lost, const char *holder)
{
    (void)arg, (void)lost, (void)holder;
    assert_int_equal(id, session * CHUNKS + index);
    subject_of(session)->chunks++;
    return true;
}

static bool on_follower(void *arg, uint64_t session, uint32_t index, const char *holder)
{
    (void)arg, (void)session, (void)index, (void)holder;
    return true;
}

static bool on_seal(void *arg, uint64_t session, uint32_t index, uint64_t seal)
{
    (void)arg;
    assert_int_equal(seal, session + index + 17);
    subject_of(session)->seals++;
    return true;
}

static bool on_range(void *arg, uint64_t session, uint32_t layer, uint64_t first, uint64_t count)
{
    (void)arg, (void)layer, (void)first;
    assert_int_equal(count, session);
    subject_of(session)->ranges++;
    return true;
}

static bool on_key(void *arg, uint64_t session, uint64_t key)
{
    (void)arg;
    assert_int_equal(key, session + 7);
    subject_of(session)->keys++;
    return true;
}

static bool on_cut(void *arg, uint64_t session, uint64_t cut)
{
    (void)arg;
    assert_int_equal(cut, session + 11);
    subject_of(session)->cuts++;
    return true;
}

static bool on_floor(void *arg, uint64_t session, uint64_t floor)
{
    (void)arg;
    assert_int_equal(floor, session + 13);
    subject_of(session)->floors++;
    return true;
}

static bool on_draining(void *arg, const char *worker, const void *reason, size_t reason_bytes)
{
    (void)arg, (void)worker, (void)reason, (void)reason_bytes;
    return false; // none is
}

static bool open_store(void)
{
    struct coordinator_store_reader reader = {NULL,        on_worker, on_session,  on_member, on_chunk,
                                              on_follower, on_seal,   on_range,    on_key,    on_cut,
                                              on_floor,    NULL,      on_draining, NULL,      NULL,
                                              NULL,        NULL,      NULL,        NULL};
    struct common_error err;
    for (uint32_t i = 0; i < n_subjects; i++)
        subjects[i] = (struct subject){.made = subjects[i].made, .dropped = subjects[i].dropped};
    closing = false;
    if (coordinator_store_open(path, true, loop, &reader, &store, &err) == COMMON_OK)
        return true;
    if (!torn_disk_dead())
        fail_msg("seed %" PRIu64 ": the store does not open: %s", seed, err.message);
    return false;
}

// ---- what is asked of it --------------------------------------------------------------------------------

static void told(void *arg, enum common_code code, const char *text)
{
    enum told *to = arg;
    (void)text;
    if (code == COMMON_OK)
        *to = DONE;
    else if (!closing && !torn_disk_dead())
        *to = REFUSED;
    if (--pending == 0)
        common_loop_stop(loop);
}

static void submit(struct coordinator_batch *batch, enum told *to)
{
    *to = UNTOLD;
    pending++;
    coordinator_store_submit(store, batch, told, to);
}

static void make(bool large)
{
    uint64_t id = ++n_subjects;
    size_t n = 1 + torn_disk_random(large ? SPEC_MOST : 500);
    char name[32];
    uint8_t *spec = malloc(n);
    assert_non_null(spec);
    for (size_t i = 0; i < n; i++)
        spec[i] = (uint8_t)(id + i);
    snprintf(name, sizeof name, "session %" PRIu64, id);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session(batch, id, name, spec, n, id, id + 1, 0);
    coordinator_batch_member(batch, id, "w");
    for (uint32_t i = 0; i < CHUNKS; i++)
        coordinator_batch_chunk(batch, id, i, id * CHUNKS + i, false, "w");
    for (uint32_t i = 0; i < CHUNKS; i++)
        coordinator_batch_seal(batch, id, i, id * CHUNKS + i, id + i + 17);
    coordinator_batch_range(batch, id, 0, 0, id);
    coordinator_batch_key(batch, id, id + 7);
    coordinator_batch_cut(batch, id, id + 11);
    coordinator_batch_floor(batch, id, id + 13);
    submit(batch, &subjects[id - 1].made);
    free(spec);
}

static void drop(uint64_t id)
{
    struct subject *s = subject_of(id);
    if (s->made != DONE || s->dropped != NOT_ASKED)
        return;
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session_drop(batch, id);
    submit(batch, &s->dropped);
}

static void look_whether_dead(void *arg)
{
    (void)arg;
    if (torn_disk_dead())
        common_loop_stop(loop);
}

static void close_store(void)
{
    closing = true;
    coordinator_store_stop(store);
    common_loop_stop(loop);
    common_loop_run(loop);
    coordinator_store_free(store);
    pending = 0;
}

// One process, from its start to its end.
static void live(bool large)
{
    struct common_timer *timer;
    torn_disk_die_at(torn_disk_random(4) ? torn_disk_random(large ? 3000 : 300) : UINT64_MAX);
    if (!open_store())
        return;
    assert_int_equal(common_timer_new(loop, look_whether_dead, NULL, &timer), COMMON_OK);
    common_timer_start(timer, COMMON_NS_PER_MS, true);
    uint32_t most = n_subjects + SUBJECTS / LIVES - 8;
    uint64_t rounds = 1 + torn_disk_random(30);
    for (uint64_t i = 0; i < rounds && n_subjects < most && !torn_disk_dead(); i++) {
        if (!torn_disk_random(6))
            torn_disk_fail_syncs((uint32_t)torn_disk_random(3), 1);
        for (uint64_t n = 1 + torn_disk_random(4); n > 0; n--) {
            if (!n_subjects || torn_disk_random(3))
                make(large);
            else
                drop(1 + torn_disk_random(n_subjects));
        }
        if (pending)
            common_loop_run(loop);
    }
    common_timer_free(timer);
    if (torn_disk_random(4)) // else it ends in good order, if it still can
        torn_disk_die_at(0);
    close_store();
}

// ---- what must hold -------------------------------------------------------------------------------------

static void passes_integrity_check(void)
{
    sqlite3 *db;
    sqlite3_stmt *check;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA locking_mode=EXCLUSIVE", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &check, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(check), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(check, 0), "ok");
    sqlite3_finalize(check);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void holds(uint64_t id)
{
    struct subject *s = subject_of(id);
    bool there = s->sessions == 1;
    bool whole =
        there ? s->members == 1 && s->chunks == CHUNKS && s->ranges == 1 && s->keys == 1 && s->cuts == 1 &&
                    s->floors == 1 && s->seals == CHUNKS
              : s->sessions + s->members + s->chunks + s->ranges + s->keys + s->cuts + s->floors + s->seals ==
                    0;
    if (!whole)
        fail_msg("seed %" PRIu64 ": a part of batch %" PRIu64 " is there", seed, id);
    if (there && s->made == REFUSED)
        fail_msg("seed %" PRIu64 ": session %" PRIu64 " was refused and is there", seed, id);
    if (there && s->dropped == DONE)
        fail_msg("seed %" PRIu64 ": session %" PRIu64 " was dropped and is there", seed, id);
    if (!there && s->made == DONE && (s->dropped == NOT_ASKED || s->dropped == REFUSED))
        fail_msg("seed %" PRIu64 ": session %" PRIu64 " was acknowledged and is not there", seed, id);
    // What was not answered is as it is, from now on.
    if (s->made == UNTOLD)
        s->made = there ? DONE : REFUSED;
    if (s->dropped == UNTOLD || s->dropped == REFUSED)
        s->dropped = there ? NOT_ASKED : DONE;
}

static void what_is_acknowledged_survives(void **state)
{
    (void)state;
    for (seed = 1; seed <= SEEDS; seed++) {
        memset(subjects, 0, sizeof subjects);
        n_subjects = pending = 0;
        torn_disk_begin(seed);
        for (int i = 0; i < LIVES; i++) {
            live(seed % 4 == 0);
            torn_disk_restart(torn_disk_random(2));
            if (torn_disk_random(2))
                passes_integrity_check();
            assert_true(open_store());
            for (uint64_t id = 1; id <= n_subjects; id++)
                holds(id);
            close_store();
            passes_integrity_check();
        }
        torn_disk_end();
    }
}

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/banyan-torn-XXXXXX"); // of SQLite's files none is there
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/store.db", folder);
    common_log_set_level(COMMON_LOG_ERROR);
    return common_loop_new(&loop) == COMMON_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    common_loop_free(loop);
    static const char *const suffixes[] = {"-lock", "-spare"};
    for (int i = 0; i < 2; i++) {
        char name[160];
        snprintf(name, sizeof name, "%s%s", path, suffixes[i]);
        unlink(name);
    }
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_acknowledged_survives, setup, teardown),
    };
    return cmocka_run_group_tests_name("store_torn", tests, NULL, NULL);
}
