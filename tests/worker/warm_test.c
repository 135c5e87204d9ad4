// SPDX-License-Identifier: Apache-2.0
// Requests that wait for rows or for memory (worker/core/warm.h) and whose callers give up meanwhile: what
// they asked for is not done. Their handler stands for all that wait there.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "proto/rpc/rpc.h"
#include "proto/rpc/transport.h"
#include "tests/worker/disk_fixture.h"
#include "worker/core/state.h"
#include "worker/core/warm.h"
#include "worker/disk/state.h"
#include "worker/store/chunk.h"
#include "worker/store/cold.h"

enum { FULL = CHUNKS * TOKENS };

static const struct common_secret secret = {{1, 2, 3}};

enum wait_for { ROWS, MEMORY };

struct setup {
    struct process p;
    struct sim_files directory;
    struct worker worker;
    struct proto_server *server;
    struct proto_channel *channel;
    char dir[64];
    enum wait_for what;
    bool gives_up; // the caller, while it waits
    uint32_t runs; // of the handler
    bool answered;
    enum common_code code;
};

static void handle(void *arg, struct proto_request *request);

static void handle_again(void *arg, struct proto_request *request)
{
    handle((char *)arg - offsetof(struct setup, worker), request);
}

// The first time it waits, as worker/rows/rows.c and worker/control/control.c do it; the second time it is
// done.
static void handle(void *arg, struct proto_request *request)
{
    struct setup *s = arg;
    if (s->runs++) {
        Banyan__Pb__HealthCheckReply reply = BANYAN__PB__HEALTH_CHECK_REPLY__INIT;
        proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
        return;
    }
    struct worker_wants wants = {0};
    worker_wants_add_chunk(&wants, worker_store_find(s->p.store, 100));
    if (s->what == ROWS) {
        assert_true(wants.cold);
        worker_warm_request(s->worker.warm, &wants, handle_again, request);
    } else {
        worker_wants_free(&wants);
        assert_true(worker_warm_request_room(s->worker.warm, handle_again, request));
    }
    assert_int_equal(s->worker.n_prepares > 0, true);
    if (s->gives_up)
        proto_request_cancel(request);
    if (s->what == MEMORY)
        worker_warm_sealed(s->worker.warm); // a chunk has left memory
}

static void on_answer(void *arg, const struct proto_reply *reply)
{
    struct setup *s = arg;
    s->answered = true;
    s->code = reply->code;
    common_loop_stop(s->p.loop);
}

static const struct proto_method methods[] = {{BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                               1u << BANYAN__PB__ROLE__ROLE_COORDINATOR, handle},
                                              {0, 0, NULL}};

// A worker with three full chunks: sealed, and their rows on the disk alone; or not sealed yet, so that
// waiting for memory is worth while.
static void begin_waits(struct setup *s, enum wait_for what, bool gives_up)
{
    char endpoint[96];
    *s = (struct setup){.what = what, .gives_up = gives_up};
    sim_files_init(&s->directory);
    start(&s->p, &s->directory);
    (void)fill(&s->p, FULL);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        worker_appended_confirm(session_of(&s->p), layer, FULL);
    worker_disk_touch(s->p.disk, session_of(&s->p));
    if (what == ROWS) {
        finish(&s->p);
        for (uint32_t i = 0; i < CHUNKS; i++)
            seal(&s->directory, 100 + i);
        start(&s->p, &s->directory);
        while (worker_store_evict(s->p.store, NULL)) {
        }
    }
    s->worker = (struct worker){.loop = s->p.loop, .store = s->p.store, .disk = s->p.disk};
    s->worker.warm = worker_warm_new(&s->worker, 0);
    assert_non_null(s->worker.warm);
    snprintf(s->dir, sizeof s->dir, "/tmp/banyan-warm-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    snprintf(endpoint, sizeof endpoint, "unix://%s/socket", s->dir);
    const struct proto_server_options options = {.name = "worker",
                                                 .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                                 .secret = &secret,
                                                 .methods = methods,
                                                 .arg = s};
    if (proto_server_new(s->p.loop, &options, &s->server, &s->p.err) != COMMON_OK ||
        proto_server_listen(s->server, endpoint, &s->p.err) != COMMON_OK)
        fail_msg("%s", s->p.err.message);
    const struct proto_channel_options as = {.name = "coordinator",
                                             .role = BANYAN__PB__ROLE__ROLE_COORDINATOR,
                                             .secret = &secret};
    if (proto_channel_open(s->p.loop, endpoint, &as, &s->channel, &s->p.err) != COMMON_OK)
        fail_msg("%s", s->p.err.message);
}

static void end_waits(struct setup *s)
{
    proto_channel_close(s->channel);
    proto_server_close(s->server);
    worker_warm_free(s->worker.warm);
    finish(&s->p);
    sim_files_end(&s->directory);
    rmdir(s->dir);
}

static void ask(struct setup *s)
{
    Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    if (proto_channel_call(s->channel,
                           &(struct proto_call){.method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                                .body = &body.base,
                                                .deadline_ns = common_clock_after(30 * COMMON_NS_PER_S),
                                                .done = on_answer,
                                                .arg = s},
                           NULL, &s->p.err) != COMMON_OK)
        fail_msg("%s", s->p.err.message);
    common_loop_run(s->p.loop);
    assert_true(s->answered);
    assert_int_equal(s->worker.n_prepares, 0);
}

static void whoever_waits_is_gone_on_with(void **state)
{
    (void)state;
    for (int what = ROWS; what <= MEMORY; what++) {
        struct setup s;
        begin_waits(&s, (enum wait_for)what, false);
        ask(&s);
        assert_int_equal(s.code, COMMON_OK);
        assert_int_equal(s.runs, 2);
        end_waits(&s);
    }
}

static void whoever_has_given_up_is_not(void **state)
{
    (void)state;
    for (int what = ROWS; what <= MEMORY; what++) {
        struct setup s;
        begin_waits(&s, (enum wait_for)what, true);
        ask(&s);
        assert_int_equal(s.runs, 1);
        assert_int_equal(s.code, COMMON_CANCELLED);
        end_waits(&s);
    }
}

// ---- a file that is rewritten ---------------------------------------------------------------------

static pthread_t loop_thread;
static atomic_uint calls_of_the_loop; // of the file system
static uint32_t wants_of_the_disk;

static void note_call(void)
{
    atomic_fetch_add(&calls_of_the_loop, pthread_equal(pthread_self(), loop_thread) != 0);
}

static void bring_in(void *arg, struct worker_chunk *chunk) // as worker/daemon/worker.c
{
    struct setup *s = (struct setup *)((char *)arg - offsetof(struct setup, p));
    struct worker_wants wants = {0};
    wants_of_the_disk++;
    worker_wants_add_chunk(&wants, chunk);
    worker_warm_begin(s->worker.warm, &wants);
}

static void stop_when_warm(void *arg)
{
    struct setup *s = arg;
    if (!worker_chunk_any_cold(worker_store_find(s->p.store, 102)))
        common_loop_stop(s->p.loop);
}

// Rows go of a chunk of which all are on the disk alone: those that stay come into memory, and its log is
// written, both beside the loop.
static void rows_of_a_cold_chunk_go(void **state)
{
    static struct setup s;
    struct common_timer *timer;
    (void)state;
    disk_wanted = bring_in;
    begin_waits(&s, ROWS, false);
    disk_wanted = NULL;
    loop_thread = pthread_self();
    s.directory.beside = note_call;
    struct worker_chunk *chunk = worker_store_find(s.p.store, 102);
    assert_true(worker_chunk_cold(chunk, 0) && worker_chunk_cold(chunk, 1));
    session_of(&s.p)->appended[0].length = FULL - 1;
    worker_disk_touch(s.p.disk, session_of(&s.p)); // its log says so after the chunk's
    worker_chunk_withdraw(chunk, 0, TOKENS - 1, 1, WORKER_ROW_ABSENT);
    assert_true(worker_disk_catch_up(s.p.disk)); // nothing is refused: it waits
    assert_int_equal(wants_of_the_disk, 1);
    assert_int_equal(common_timer_new(s.p.loop, stop_when_warm, &s, &timer), COMMON_OK);
    common_timer_start(timer, COMMON_NS_PER_MS, true);
    common_loop_run(s.p.loop);
    common_timer_free(timer);
    assert_false(worker_store_evict(s.p.store, NULL) && worker_chunk_any_cold(chunk)); // it stays
    assert_true(worker_disk_catch_up(s.p.disk));
    finish_changes(&s.p);
    assert_int_equal(sim_files_count(&s.directory, "0000000000000066.log"), 1);
    assert_int_equal(sim_files_count(&s.directory, "0000000000000066.sealed"), 0);
    assert_int_equal(atomic_load(&calls_of_the_loop), 0);
    s.directory.beside = NULL;
    proto_channel_close(s.channel);
    proto_server_close(s.server);
    worker_warm_free(s.worker.warm);
    kill_it(&s.p, &s.directory);
    start(&s.p, &s.directory);
    assert_int_equal(check_layer(&s.p, 0, WORKER_ROW_APPENDED), FULL - 1);
    assert_int_equal(check_layer(&s.p, 1, WORKER_ROW_APPENDED), FULL);
    finish(&s.p);
    sim_files_end(&s.directory);
    rmdir(s.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_a_cold_chunk_go),
        cmocka_unit_test(whoever_waits_is_gone_on_with),
        cmocka_unit_test(whoever_has_given_up_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
