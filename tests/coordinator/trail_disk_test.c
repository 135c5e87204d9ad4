// SPDX-License-Identifier: Apache-2.0
// A coordinator whose audit log is on a disk that hangs, on the test's own loop: the loop goes on, answers
// wait for their records as docs/operating/audit.md says, within their deadlines, and a stop ends.
#include <event2/event.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "coordinator/coordinator.h"
#include "coordinator/events.h"
#include "coordinator/state.h"
#include "coordinator/trail/trail.h"
#include "proto/rpc/rpc.h"
#include "proto/rpc/status.h"
#include "tests/common/hung_disk.h"

#define SECOND       COMMON_NS_PER_S
#define METHOD(name) BANYAN__PB__METHOD__METHOD_##name

struct play {
    struct common_loop *loop;
    struct common_secret secret;
    char dir[64], endpoint[128], log[128];
    struct coordinator *c;
    struct proto_channel *channel;
};

struct call {
    bool done;
    enum common_code code;
    char text[400], reason[32];
    uint64_t took_ns, began_ns;
};

static void turn(struct play *p)
{
    struct timeval tick = {0, 1000};
    event_base_loopexit(common_loop_base(p->loop), &tick);
    event_base_loop(common_loop_base(p->loop), EVLOOP_ONCE);
}

static void begin(struct play *p, bool required)
{
    *p = (struct play){.dir = "/tmp/banyan-trail-XXXXXX"};
    assert_non_null(mkdtemp(p->dir));
    snprintf(p->endpoint, sizeof p->endpoint, "unix://%s/c", p->dir);
    snprintf(p->log, sizeof p->log, "%s/audit.log", p->dir);
    memset(p->secret.bytes, 1, sizeof p->secret.bytes);
    assert_int_equal(common_loop_new(&p->loop), COMMON_OK);
    struct coordinator_options options;
    struct common_error err;
    coordinator_options_default(&options);
    options.endpoints = (const char *const[]){p->endpoint, NULL};
    options.secret = &p->secret;
    options.audit_log = p->log;
    options.audit_required = required;
    options.heartbeat_ns = 100 * COMMON_NS_PER_MS;
    if (coordinator_new(p->loop, &options, &p->c, &err) != COMMON_OK)
        fail_msg("%s", err.message);
    hung_disk_of(p->log);
    struct proto_channel_options channel = {.name = "client", .role = BANYAN__PB__ROLE__ROLE_CLIENT};
    assert_int_equal(proto_channel_open(p->loop, p->endpoint, &channel, &p->channel, NULL), COMMON_OK);
}

static void stop(struct play *p)
{
    coordinator_stop(p->c);
    for (int i = 0; i < 20; i++)
        turn(p);
    proto_channel_close(p->channel);
    coordinator_free(p->c);
    p->c = NULL;
}

static void finish(struct play *p)
{
    hung_disk_go();
    if (p->c)
        stop(p);
    common_loop_free(p->loop);
    unlink(p->log);
    rmdir(p->dir);
    common_log_set_level(COMMON_LOG_INFO);
}

static void answered(void *arg, const struct proto_reply *reply)
{
    struct call *call = arg;
    struct proto_status status = {0};
    call->done = true;
    call->code = reply->code;
    call->took_ns = common_clock_ns() - call->began_ns;
    snprintf(call->text, sizeof call->text, "%s", reply->text);
    if (reply->status)
        proto_status_from_pb(reply->status, &status);
    snprintf(call->reason, sizeof call->reason, "%s", status.reason);
}

static void start(struct play *p, struct call *call, uint32_t method, const ProtobufCMessage *body,
                  uint64_t time_ns)
{
    *call = (struct call){.began_ns = common_clock_ns()};
    struct proto_call made = {.method = method,
                              .body = body,
                              .deadline_ns = common_clock_after(time_ns),
                              .done = answered,
                              .arg = call};
    assert_int_equal(proto_channel_call(p->channel, &made, NULL, NULL), COMMON_OK);
}

static void start_change(struct play *p, struct call *call, uint64_t time_ns)
{
    Banyan__Pb__QuotaUse quota = BANYAN__PB__QUOTA_USE__INIT, *quotas[] = {&quota};
    Banyan__Pb__QuotaSetRequest m = BANYAN__PB__QUOTA_SET_REQUEST__INIT;
    quota.name = "sessions";
    quota.max = 1000;
    m.quotas = quotas;
    m.n_quotas = 1;
    start(p, call, METHOD(QUOTA_SET), &m.base, time_ns);
}

static void wait_for(struct play *p, struct call *call)
{
    while (!call->done)
        turn(p);
}

static void expect(struct play *p, struct call *call, enum common_code code, const char *reason)
{
    wait_for(p, call);
    if (call->code != code || strcmp(call->reason, reason) != 0)
        fail_msg("%s (%s): %s", common_code_name(call->code), call->reason, call->text);
}

// What changes nothing is answered: the loop runs.
static void loop_goes_on(struct play *p)
{
    struct call call;
    Banyan__Pb__SessionListRequest m = BANYAN__PB__SESSION_LIST_REQUEST__INIT;
    start(p, &call, METHOD(SESSION_LIST), &m.base, 60 * SECOND);
    expect(p, &call, COMMON_OK, "");
}

static struct coordinator_trail_counts counts(const struct play *p)
{
    struct coordinator_trail_counts out;
    assert_true(coordinator_trail_count(p->c->trail, &out));
    return out;
}

// A change whose record hangs, with the thread in the write.
static void hang_with(struct play *p, struct call *call, uint64_t time_ns)
{
    hung_disk_hang();
    start_change(p, call, time_ns);
    while (!hung_disk_waits())
        turn(p);
    assert_false(call->done);
}

static size_t occurs(const struct play *p, const char *what)
{
    size_t n = 0, room = 0;
    char *line = NULL;
    FILE *file = fopen(p->log, "re");
    assert_non_null(file);
    while (getline(&line, &room, file) > 0)
        n += strstr(line, what) != NULL;
    free(line);
    fclose(file);
    return n;
}

static void a_record_is_there_before_its_answer(void **state)
{
    (void)state;
    for (int required = 0; required < 2; required++) {
        struct play p;
        struct call call;
        begin(&p, required);
        for (size_t i = 1; i <= 20; i++) {
            start_change(&p, &call, 60 * SECOND);
            expect(&p, &call, COMMON_OK, "");
            assert_int_equal(occurs(&p, "\"what\":\"quota.set\""), i);
        }
        finish(&p);
    }
}

static void required_answers_wait_for_their_records(void **state)
{
    (void)state;
    struct play p;
    struct call first, second;
    common_log_set_level(-1); // errors are logged
    begin(&p, true);
    hang_with(&p, &first, 600 * SECOND);
    start_change(&p, &second, 600 * SECOND);
    for (int i = 0; i < 5; i++)
        loop_goes_on(&p);
    while (counts(&p).works) // a second
        turn(&p);
    assert_false(first.done || second.done);
    struct call third; // nothing is changed from now on
    start_change(&p, &third, 600 * SECOND);
    expect(&p, &third, COMMON_FAILED_PRECONDITION, "AUDIT_LOG");
    loop_goes_on(&p);
    hung_disk_go();
    expect(&p, &first, COMMON_OK, "");
    expect(&p, &second, COMMON_OK, "");
    while (!counts(&p).works)
        turn(&p);
    start_change(&p, &third, 600 * SECOND);
    expect(&p, &third, COMMON_OK, "");
    assert_int_equal(counts(&p).lost, 0);
    assert_int_equal(occurs(&p, "\"what\":\"quota.set\",\"args\":{\"sessions\":1000},\"result\":\"OK\""), 3);
    finish(&p);
}

static void required_answers_keep_their_deadlines(void **state)
{
    (void)state;
    struct play p;
    struct call call;
    common_log_set_level(-1);
    begin(&p, true);
    hang_with(&p, &call, 3 * SECOND);
    expect(&p, &call, COMMON_DEADLINE_EXCEEDED, "AUDIT_LOG"); // the coordinator's own words
    assert_non_null(strstr(call.text, "was done"));
    loop_goes_on(&p);
    hung_disk_go();
    while (counts(&p).waiting)
        turn(&p);
    assert_int_equal(occurs(&p, "\"what\":\"quota.set\""), 1); // it comes late
    finish(&p);
}

static void without_required_answers_wait_a_second(void **state)
{
    (void)state;
    struct play p;
    struct call call, next;
    common_log_set_level(-1);
    begin(&p, false);
    hang_with(&p, &call, 600 * SECOND);
    expect(&p, &call, COMMON_OK, "");
    assert_true(call.took_ns > SECOND / 2);
    while (counts(&p).works)
        turn(&p);
    for (int i = 0; i < 20; i++) { // nothing waits any more
        start_change(&p, &next, 600 * SECOND);
        expect(&p, &next, COMMON_OK, "");
    }
    assert_true(hung_disk_waits());
    assert_true(counts(&p).waiting >= 21);
    hung_disk_go();
    while (counts(&p).waiting)
        turn(&p);
    assert_int_equal(occurs(&p, "\"what\":\"quota.set\""), 21);
    assert_int_equal(counts(&p).lost, 0);
    finish(&p);
}

static void a_stop_does_not_wait_for_a_disk_that_hangs(void **state)
{
    (void)state;
    struct play p;
    struct call call;
    common_log_set_level(-1);
    begin(&p, true);
    hang_with(&p, &call, 600 * SECOND);
    stop(&p);
    assert_true(call.done);
    assert_int_not_equal(call.code, COMMON_OK);
    assert_true(hung_disk_waits());
    finish(&p);
}

// The caller leaves while its answer waits.
static void a_caller_that_leaves_is_forgotten(void **state)
{
    (void)state;
    struct play p;
    struct call call;
    common_log_set_level(-1);
    begin(&p, true);
    hang_with(&p, &call, 600 * SECOND);
    proto_channel_close(p.channel);
    assert_int_equal(call.code, COMMON_CANCELLED);
    struct proto_channel_options channel = {.name = "client", .role = BANYAN__PB__ROLE__ROLE_CLIENT};
    assert_int_equal(proto_channel_open(p.loop, p.endpoint, &channel, &p.channel, NULL), COMMON_OK);
    loop_goes_on(&p);
    hung_disk_go();
    while (counts(&p).waiting)
        turn(&p);
    loop_goes_on(&p);
    finish(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_is_there_before_its_answer),
        cmocka_unit_test(required_answers_wait_for_their_records),
        cmocka_unit_test(required_answers_keep_their_deadlines),
        cmocka_unit_test(without_required_answers_wait_a_second),
        cmocka_unit_test(a_stop_does_not_wait_for_a_disk_that_hangs),
        cmocka_unit_test(a_caller_that_leaves_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
