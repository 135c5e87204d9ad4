// SPDX-License-Identifier: Apache-2.0
// Ends of steps that are not answers: cancelled, out of time, the plan gone, the worker leaving. A child that
// never answers keeps them in hand for as long as a test needs.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/worker/fixture.h"
#include "worker/processors/team.h"

static const struct chunk_place chunk = {100, 0};

struct stage {
    struct cluster c;
    struct proto_server *server; // the child's
    struct proto_request *held;  // its request
    bool holds, cancelled;
};

static void child_cancelled(void *arg)
{
    struct stage *s = arg;
    s->cancelled = true;
    struct proto_request *request = s->held;
    s->held = NULL;
    proto_request_fail(request, COMMON_CANCELLED, "cancelled", NULL, 0);
}

static void child_step(void *arg, struct proto_request *request)
{
    struct stage *s = arg;
    s->held = request;
    s->holds = true;
    proto_request_on_cancel(request, child_cancelled, s);
}

static void install(struct stage *s, uint64_t epoch)
{
    Banyan__Pb__PlanMember members[2], *list[2] = {&members[0], &members[1]};
    for (uint32_t i = 0; i < 2; i++) {
        banyan__pb__plan_member__init(&members[i]);
        members[i].rank = i;
        members[i].parent = (int32_t)i - 1;
        members[i].name = i == 0 ? "w0" : "child";
        members[i].host = "h";
        members[i].edge_endpoint = (char *)proto_server_endpoint(s->server, 0);
    }
    Banyan__Pb__PlanInstallRequest request = BANYAN__PB__PLAN_INSTALL_REQUEST__INIT;
    request.term = TERM;
    request.plan = PLAN;
    request.epoch = epoch;
    request.engine = "stream";
    request.n_members = 2;
    request.members = list;
    assert_int_equal(cluster_call(&s->c, s->c.edges[0], BANYAN__PB__METHOD__METHOD_PLAN_INSTALL,
                                  &request.base, NULL, 0, NULL),
                     0);
}

// One worker with a committed chunk, and its child that holds every step.
static void begin(struct stage *s)
{
    static const struct proto_method methods[] = {
        {BANYAN__PB__METHOD__METHOD_STEP, 1u << BANYAN__PB__ROLE__ROLE_WORKER, child_step}, {0, 0, NULL}};
    *s = (struct stage){0};
    cluster_start(&s->c, &(struct cluster_options){.threads = 2, .inline_madds = 1});
    cluster_layout_ok(&s->c, 0, SESSION, &chunk, 1);
    cluster_attach(&s->c, 0, SESSION, 0, 0, TOKENS);
    struct proto_server_options options = {.name = "child",
                                           .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                           .secret = &s->c.secret,
                                           .methods = methods,
                                           .arg = s};
    char endpoint[128];
    snprintf(endpoint, sizeof endpoint, "unix://%s/child", s->c.dir);
    assert_int_equal(proto_server_new(s->c.loop, &options, &s->server, NULL), COMMON_OK);
    assert_int_equal(proto_server_listen(s->server, endpoint, NULL), COMMON_OK);
    install(s, 1);
}

static struct proto_step *send_one(struct stage *s, struct outcome *out)
{
    struct proto_step *step = step_new(1);
    step_item(step, 0, SESSION, 0, TOKENS - 1, 1, &chunk, 1);
    cluster_step_begin(&s->c, 0, step, out);
    assert_true(cluster_wait(&s->c, &s->holds));
    return step;
}

static void end(struct stage *s)
{
    if (s->held)
        proto_request_fail(s->held, COMMON_CANCELLED, "", NULL, 0);
    proto_server_close(s->server);
    cluster_stop(&s->c);
}

static void a_dropped_plan_ends_its_steps(void **state)
{
    (void)state;
    for (int replace = 0; replace < 2; replace++) {
        struct stage s;
        struct outcome out;
        begin(&s);
        struct proto_step *step = send_one(&s, &out);
        if (replace) {
            install(&s, 2);
        } else {
            Banyan__Pb__PlanDropRequest drop = BANYAN__PB__PLAN_DROP_REQUEST__INIT;
            drop.term = TERM;
            drop.plan = PLAN;
            assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_PLAN_DROP,
                                          &drop.base, NULL, 0, NULL),
                             0);
        }
        assert_true(cluster_wait(&s.c, &out.done));
        assert_int_equal(out.code, COMMON_ABORTED);
        assert_true(cluster_wait(&s.c, &s.cancelled)); // the child is cancelled
        proto_step_free(step);
        end(&s);
    }
}

// The maker of an earlier term's plans drops none of them any more.
static void a_new_term_ends_plans(void **state)
{
    (void)state;
    struct stage s;
    struct outcome out;
    begin(&s);
    struct proto_step *step = send_one(&s, &out);
    Banyan__Pb__PlanDropRequest drop = BANYAN__PB__PLAN_DROP_REQUEST__INIT; // of none
    drop.plan = PLAN + 1;
    for (drop.term = TERM; drop.term <= TERM + 1; drop.term++) {
        assert_false(out.done); // the term that it was made in goes on
        assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_PLAN_DROP, &drop.base,
                                      NULL, 0, NULL),
                         COMMON_OK);
    }
    assert_true(cluster_wait(&s.c, &out.done));
    assert_int_equal(out.code, COMMON_ABORTED);
    assert_true(cluster_wait(&s.c, &s.cancelled));
    step->term = TERM + 1;
    assert_int_equal(cluster_step(&s.c, 0, step, &out), COMMON_ABORTED); // not installed
    outcome_free(&out);
    proto_step_free(step);
    end(&s);
}

// What an earlier history put and did not commit is not part of a later one.
static void a_new_incarnation_forgets_what_was_put(void **state)
{
    (void)state;
    struct stage s;
    begin(&s);
    assert_int_equal(cluster_put(&s.c, 0, SESSION, 1, 0, 12, 0), COMMON_OK);
    assert_int_equal(cluster_prepare(&s.c, 0, SESSION, 1, 0, 4, NULL), COMMON_OK);
    Banyan__Pb__LayoutSetRequest layout = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    layout.term = TERM;
    layout.session = SESSION;
    layout.incarnation = INCARNATION + 1;
    layout.epoch = EPOCH;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base,
                                  NULL, 0, NULL),
                     COMMON_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        struct answer answer;
        Banyan__Pb__RowsPrepareRequest prepare = BANYAN__PB__ROWS_PREPARE_REQUEST__INIT;
        prepare.term = TERM;
        prepare.session = SESSION;
        prepare.incarnation = INCARNATION + 1;
        prepare.layer = layer;
        prepare.count = 12;
        assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_ROWS_PREPARE,
                                      &prepare.base, NULL, 0, &answer),
                         COMMON_OK);
        const Banyan__Pb__RowsPrepareReply *reply = (const Banyan__Pb__RowsPrepareReply *)answer.body;
        assert_int_equal(reply->n_chunks, 1);
        assert_int_equal(reply->chunks[0]->n_present, layer == 0 ? 1 : 0); // what is committed stays
        answer_free(&answer);
    }
    end(&s);
}

static void a_cancelled_step_is_cancelled_below(void **state)
{
    (void)state;
    struct stage s;
    begin(&s);
    struct proto_channel *channel; // a caller that vanishes
    struct proto_channel_options options = {.name = "p",
                                            .role = BANYAN__PB__ROLE__ROLE_COORDINATOR,
                                            .secret = &s.c.secret};
    assert_int_equal(proto_channel_open(s.c.loop, worker_edge_endpoint(s.c.workers[0]), &options, &channel,
                                        NULL),
                     COMMON_OK);
    struct proto_channel *before = s.c.edges[0];
    struct outcome out;
    s.c.edges[0] = channel;
    struct proto_step *step = send_one(&s, &out);
    s.c.edges[0] = before;
    proto_channel_close(channel);
    assert_int_equal(out.code, COMMON_CANCELLED);
    assert_true(cluster_wait(&s.c, &s.cancelled));
    proto_step_free(step);
    end(&s);
}

static void a_step_ends_with_its_time(void **state)
{
    (void)state;
    struct stage s;
    begin(&s);
    struct proto_step *step = step_new(1);
    struct outcome out;
    step_item(step, 0, SESSION, 0, TOKENS - 1, 1, &chunk, 1);
    step->deadline_ns = common_clock_after(100 * COMMON_NS_PER_MS);
    enum common_code code =
        cluster_step(&s.c, 0, step,
                     &out); // the worker's answer or the caller's own clock: whichever is first
    if (code == COMMON_OK)
        code = out.result->items[0].code;
    assert_int_equal(code, COMMON_DEADLINE_EXCEEDED);
    assert_true(cluster_wait(&s.c, &s.cancelled));
    outcome_free(&out);
    proto_step_free(step);
    end(&s);
}

static void set_flag(void *arg)
{
    *(bool *)arg = true;
}

static void leaving_waits_for_steps_but_not_for_ever(void **state)
{
    (void)state;
    struct stage s;
    struct outcome out;
    bool drained = false;
    begin(&s);
    struct proto_step *step = send_one(&s, &out);
    assert_int_equal(worker_drain(s.c.workers[0], 200 * COMMON_NS_PER_MS, set_flag, &drained), COMMON_OK);
    struct proto_step *late = step_new(1);
    struct outcome refused;
    step_item(late, 0, SESSION, 0, TOKENS - 1, 1, &chunk, 1);
    assert_int_equal(cluster_step(&s.c, 0, late, &refused), COMMON_UNAVAILABLE);
    assert_true(cluster_wait(&s.c, &drained));
    assert_true(cluster_wait(&s.c, &out.done));
    assert_int_equal(out.code, COMMON_ABORTED);
    proto_channel_close(s.c.edges[0]);
    proto_channel_close(s.c.clients[0]);
    worker_free(s.c.workers[0]);
    s.c.workers[0] = NULL;
    proto_step_free(step);
    proto_step_free(late);
    end(&s);
}

// ---- the team -----------------------------------------------------------------------------------

struct tally {
    _Atomic unsigned ran[1000];
    bool done, complete;
};

static void count_task(void *arg, uint32_t task, void *scratch)
{
    struct tally *t = arg;
    memset(scratch, (int)task, 64);
    t->ran[task]++;
}

static void tally_done(void *arg, bool complete)
{
    struct tally *t = arg;
    t->done = true;
    t->complete = complete;
}

static void each_task_runs_once_or_never(void **state)
{
    (void)state;
    struct cluster c;
    struct worker_team *team;
    static struct tally tallies[8];
    struct worker_job jobs[8];
    memset(tallies, 0, sizeof tallies);
    cluster_start(&c, &(struct cluster_options){0});
    assert_int_equal(worker_team_new(c.loop, 3, NULL, &team, NULL), COMMON_OK);
    for (int i = 0; i < 8; i++) {
        jobs[i] = (struct worker_job){
            .tasks = 1000, .scratch_bytes = 64, .run = count_task, .done = tally_done, .arg = &tallies[i]};
        worker_team_submit(team, &jobs[i]);
    }
    worker_team_cancel(team, &jobs[7]);
    for (int i = 0; i < 8; i++) {
        assert_true(cluster_wait(&c, &tallies[i].done));
        if (i < 7)
            assert_true(tallies[i].complete);
        for (uint32_t task = 0; task < 1000; task++)
            assert_true(tallies[i].complete ? tallies[i].ran[task] == 1 : tallies[i].ran[task] <= 1);
    }
    worker_team_free(team);
    cluster_stop(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dropped_plan_ends_its_steps),
        cmocka_unit_test(a_new_term_ends_plans),
        cmocka_unit_test(a_new_incarnation_forgets_what_was_put),
        cmocka_unit_test(a_cancelled_step_is_cancelled_below),
        cmocka_unit_test(a_step_ends_with_its_time),
        cmocka_unit_test(leaving_waits_for_steps_but_not_for_ever),
        cmocka_unit_test(each_task_runs_once_or_never),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
