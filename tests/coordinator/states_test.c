// SPDX-License-Identifier: Apache-2.0
// The state machines refuse what their diagrams lack: a wrong transition is a bug and ends the process.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/room.h"
#include "coordinator/session/session.h"
#include "coordinator/steps/item.h"

static void move_session(int from, int to)
{
    struct coordinator_session s = {.state = (enum coordinator_session_state)from};
    coordinator_session_set_state(&s, (enum coordinator_session_state)to);
    assert_int_equal(s.state, to);
}

static void move_item(int from, int to)
{
    struct coordinator_item item = {.state = (enum coordinator_item_state)from};
    coordinator_item_set_state(&item, (enum coordinator_item_state)to);
    assert_int_equal(item.state, to);
}

static void move_worker(int from, int to)
{
    struct coordinator_core core = {0};
    struct coordinator_cluster *cluster = coordinator_alloc(sizeof(*cluster));
    coordinator_cluster_init(cluster, &core);
    struct coordinator_worker w = {.cluster = cluster, .state = (enum coordinator_worker_state)from};
    common_list_init(&w.changed);
    coordinator_worker_set_state(&w, (enum coordinator_worker_state)to);
    assert_int_equal(w.state, to);
    free(cluster);
}

// Whether the move ends in abort(). In a child: the parent lives on.
static bool aborts(void (*move)(int, int), int from, int to)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr)) // the assertion's own words
            _exit(1);
        move(from, to);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGABRT : WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

static void move_plan(int from, int to)
{
    struct coordinator_plan plan = {.state = (enum coordinator_plan_state)from};
    coordinator_plan_set_state(&plan, (enum coordinator_plan_state)to);
    assert_int_equal(plan.state, to);
}

struct machine {
    void (*move)(int, int);
    int states;
    const char *const *allowed; // by state: the digits of the states that may follow
};

static void check(const struct machine *m)
{
    for (int from = 0; from < m->states; from++)
        for (int to = 0; to < m->states; to++) {
            bool may = false;
            for (const char *p = m->allowed[from]; *p; p++)
                may = may || *p - '0' == to;
            if (aborts(m->move, from, to) == may)
                fail_msg("%d to %d", from, to);
        }
}

static void workers(void **state)
{
    (void)state;
    // absent joining active suspect lost
    static const char *const allowed[] = {"1", "24", "34", "14", "1"};
    check(&(struct machine){move_worker, COORDINATOR_WORKER_STATES, allowed});
}

static void sessions(void **state)
{
    (void)state;
    // creating active relayout truncating forking deleting gone
    static const char *const allowed[] = {"16", "23456", "1", "1", "1", "16", ""};
    check(&(struct machine){move_session, COORDINATOR_SESSION_STATES, allowed});
}

static void items(void **state)
{
    (void)state;
    // new waiting placing queued flying retrying undoing done
    static const char *const allowed[] = {"123567", "067", "067", "4567", "567", "067", "57", ""};
    check(&(struct machine){move_item, COORDINATOR_ITEM_STATES, allowed});
}

static void plans(void **state)
{
    (void)state;
    // installing ready retired
    static const char *const allowed[] = {"12", "2", ""};
    check(&(struct machine){move_plan, COORDINATOR_PLAN_STATES, allowed});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(workers), cmocka_unit_test(sessions),
                                       cmocka_unit_test(items), cmocka_unit_test(plans)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
