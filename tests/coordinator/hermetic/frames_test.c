// SPDX-License-Identifier: Apache-2.0
// Frames: what a plan has under way, and who waits behind it.
#include "coordinator/cluster/membership.h"
#include "coordinator/steps/frame.h"
#include "tests/coordinator/hermetic/hermetic.h"
#include "worker/core/state.h"

// The plan that all sessions of a test share, and its members as processes.
static struct coordinator_plan *plan_of(const struct sim_cluster *cluster)
{
    struct coordinator_plan *plan = cluster->coordinator->cluster.plans;
    while (plan && plan->state == COORDINATOR_PLAN_RETIRED)
        plan = plan->next;
    assert_non_null(plan);
    return plan;
}

static struct sim_worker *at_rank(const struct sim_cluster *cluster, uint32_t rank)
{
    return cluster->workers[plan_of(cluster)->workers[rank]->name[1] - '0'];
}

// What the client has given up is not computed any more, on no rank, and the plan's next frame goes.
static void a_frame_ends_with_its_last_call(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t a = session_of(cluster, 40), b = session_of(cluster, 40);
    struct sim_worker *root = at_rank(cluster, 0), *child = at_rank(cluster, 1);
    sim_client_deadline(cluster->client, 50 * COMMON_NS_PER_S);
    sim_serve_rule(child->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    struct sim_call *first = sim_read(cluster->client, a, 0, 39, 1);
    sim_run_until_idle();
    assert_int_equal(sim_serve_held(child->loop), 1);
    struct sim_call *second = sim_read(cluster->client, b, 0, 39, 1); // waits for the frame
    sim_advance(COMMON_NS_PER_S);
    assert_false(second->done);
    uint64_t given_up = sim_clock();
    sim_cancel(first);
    OK(second);
    assert_true(second->done_ns - given_up < 100 * COMMON_NS_PER_MS);
    assert_float_equal(second->o, 1, 1e-4f);
    assert_int_equal(root->worker->n_steps, 0);
    sim_serve_let_go(child->loop); // the child was cancelled, too: it computes nothing
    assert_int_equal(child->worker->n_steps, 0);
    sim_run_until_idle();
    assert_int_equal(cluster->coordinator->steps.items, 0);
    sim_cluster_free(cluster);
}

// So does what the client's end leaves behind.
static void a_frame_ends_with_its_client(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    struct sim_client *other = sim_client_new(SIM_COORDINATOR, NULL);
    sim_client_deadline(other, 50 * COMMON_NS_PER_S);
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    sim_read(other, session, 0, 39, 1);
    sim_run_until_idle();
    assert_int_equal(held_all(cluster), 1);
    sim_client_free(other);
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
    sim_client_deadline(cluster->client, COMMON_NS_PER_S);
    READS(cluster, session, 40, 40);
    let_go_all(cluster);
    sim_run_until_idle();
    assert_int_equal(cluster->coordinator->steps.items, 0);
    sim_cluster_free(cluster);
}

// While a plan has a frame under way, small steps gather: what is called between the two is one frame, and
// the root holds it.
static struct sim_call *gather_begin(struct sim_cluster *cluster, uint64_t session)
{
    sim_serve_rule(at_rank(cluster, 0)->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
    struct sim_call *ahead = sim_read(cluster->client, session, 0, 0, 1);
    sim_run_until_idle();
    assert_int_equal(held_all(cluster), 1);
    return ahead;
}

static void gather_end(struct sim_cluster *cluster, struct sim_call *ahead, uint32_t items)
{
    const struct coordinator_steps *steps = &cluster->coordinator->steps;
    sim_run_until_idle();
    let_go_all(cluster);
    OK(ahead);
    sim_run_until_idle();
    assert_int_equal(held_all(cluster), 1);
    const struct coordinator_frame *frame =
        common_list_entry(steps->flying.next, struct coordinator_frame, link);
    assert_int_equal(frame->step.n_items, items);
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
}

// A frame of several calls goes on for those that still wait.
static void a_frame_lives_as_long_as_one_of_its_calls(void **state)
{
    (void)state;
    for (int given_up = 0; given_up < 2; given_up++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t a = session_of(cluster, 40), b = session_of(cluster, 24);
        struct sim_call *calls[2], *ahead = gather_begin(cluster, a);
        calls[0] = sim_read(cluster->client, a, 0, 39, 1);
        calls[1] = sim_append(cluster->client, b, 0, 24, 1, 26);
        gather_end(cluster, ahead, 2);
        sim_cancel(calls[given_up]);
        sim_advance(COMMON_NS_PER_S);
        let_go_all(cluster);
        OK(calls[!given_up]);
        OK(sim_append(cluster->client, b, 0, 24, 1, 26)); // it is there, no matter who got the answer
        READS(cluster, b, 25, 24 + 26);
        sim_run_until_idle();
        assert_int_equal(cluster->coordinator->steps.items, 0);
        sim_cluster_free(cluster);
    }
}

// The shortest deadline of a frame's calls is not the frame's: what it ends is that call alone.
static void a_frame_has_the_time_of_its_most_patient_call(void **state)
{
    (void)state;
    for (int patient = 0; patient < 2; patient++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t sessions[] = {session_of(cluster, 40), session_of(cluster, 40)};
        struct sim_call *reads[2], *ahead = gather_begin(cluster, sessions[0]);
        for (int i = 0; i < 2; i++) {
            sim_client_deadline(cluster->client, (i == patient ? 10 : 1) * COMMON_NS_PER_S);
            reads[i] = sim_read(cluster->client, sessions[i], 0, 39, 1);
        }
        gather_end(cluster, ahead, 2);
        ENDS(COMMON_DEADLINE_EXCEEDED, reads[!patient]);
        sim_advance(COMMON_NS_PER_S);
        let_go_all(cluster);
        OK(reads[patient]);
        assert_float_equal(reads[patient]->o, 1, 1e-4f);
        sim_run_until_idle();
        assert_int_equal(cluster->coordinator->steps.items, 0);
        sim_cluster_free(cluster);
    }
}

// An append that was cancelled may or may not have been stored: other bytes may take its place.
static void an_append_that_was_given_up_may_be_replaced(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) { // whether it reaches the holder after all
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 20);
        struct sim_worker *holder = holder_of(cluster, session, 20);
        sim_serve_rule(holder->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
        struct sim_call *append = sim_append(cluster->client, session, 0, 20, 1, 2);
        sim_run_until_idle();
        assert_int_equal(sim_serve_held(holder->loop), 1);
        sim_cancel(append);
        sim_run_until_idle();
        if (late)
            sim_serve_let_go(holder->loop);
        OK(sim_append(cluster->client, session, 0, 20, 1, 3));
        sim_serve_let_go(holder->loop);
        sim_run_until_idle();
        assert_int_equal(length_of(cluster, session), 21);
        READS(cluster, session, 21, 20 + 3);
        sim_cluster_free(cluster);
    }
}

// Two workers that cannot reach each other, and both the coordinator: the frame fails in bounded time, and
// says where; a session that needs only one of them is not held up; when the network is back, all goes on.
static void a_black_hole_between_two_workers_ends_their_steps(void **state)
{
    (void)state;
    for (int ways = 1; ways <= 3; ways++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 40);
        struct sim_worker *root = at_rank(cluster, 0), *child = at_rank(cluster, 1);
        if (ways & 1)
            sim_net_hold(root->loop, child->loop);
        if (ways & 2)
            sim_net_hold(child->loop, root->loop);
        sim_client_deadline(cluster->client, 8 * COMMON_NS_PER_S);
        struct sim_call *read = sim_read(cluster->client, session, 0, 39, 1);
        sim_advance(4 * COMMON_NS_PER_S);
        assert_int_equal(root->worker->n_steps, 0); // nothing waits for the black hole any more
        enum common_code code = sim_wait(read);
        assert_true(code == COMMON_UNAVAILABLE || code == COMMON_DEADLINE_EXCEEDED);
        sim_advance(5 * COMMON_NS_PER_S);
        uint64_t start = sim_clock();
        read = sim_read(cluster->client, session, 0, 39, 1); // there is no other tree: it fails at once
        ENDS(COMMON_UNAVAILABLE, read);
        assert_non_null(strstr(read->text, "the edge to a worker is down"));
        assert_true(read->done_ns - start < COMMON_NS_PER_S);
        state_is(cluster, root, "active");
        state_is(cluster, child, "active");
        sim_net_heal();
        sim_advance(6 * COMMON_NS_PER_S); // a dial that is under way is given up after 5 s
        READS(cluster, session, 40, 40);
        sim_cluster_free(cluster);
    }
}

// RELAYED: what is between the two acknowledges in the other's place.
enum edge_fault {
    SWALLOWED,
    SWALLOWED_DOWN,
    SWALLOWED_UP,
    REFUSED,
    RELAYED,
    RELAYED_DOWN,
    RELAYED_UP,
    EDGE_FAULTS
};

static void break_edge(enum edge_fault fault, const struct sim_worker *parent, const struct sim_worker *child)
{
    if (fault == SWALLOWED || fault == SWALLOWED_DOWN)
        sim_net_hold(parent->loop, child->loop);
    if (fault == SWALLOWED || fault == SWALLOWED_UP)
        sim_net_hold(child->loop, parent->loop);
    if (fault == REFUSED)
        sim_net_part(parent->loop, child->loop);
    if (fault == RELAYED || fault == RELAYED_DOWN)
        sim_net_swallow(parent->loop, child->loop);
    if (fault == RELAYED || fault == RELAYED_UP)
        sim_net_swallow(child->loop, parent->loop);
}

static bool is_edge(const struct coordinator_plan *plan, const struct sim_worker *a,
                    const struct sim_worker *b)
{
    for (uint32_t r = 1; r < plan->n; r++) {
        const char *child = plan->workers[r]->name,
                   *parent = plan->workers[plan->tree->nodes[r].parent]->name;
        if ((!strcmp(child, a->name) && !strcmp(parent, b->name)) ||
            (!strcmp(child, b->name) && !strcmp(parent, a->name)))
            return true;
    }
    return false;
}

static void slow_beats(struct coordinator_options *options)
{
    options->heartbeat_ns = 4 * COMMON_NS_PER_S;
}

// Two of three workers do not reach each other: the tree becomes another, with another digest, and the
// session goes on, also with appends, and no worker is lost.
static void a_tree_avoids_an_edge_that_is_down(void **state)
{
    (void)state;
    for (enum edge_fault fault = 0; fault < EDGE_FAULTS; fault++) {
        struct sim_cluster *cluster = cluster_of(3);
        uint64_t session = session_of(cluster, 48), start = sim_clock();
        sim_advance(3 * COMMON_NS_PER_S); // a worker that is new is not judged by others
        uint64_t digest = plan_of(cluster)->digest, epoch = plan_of(cluster)->epoch;
        struct sim_worker *root = at_rank(cluster, 0), *child = at_rank(cluster, 2);
        assert_true(is_edge(plan_of(cluster), root, child));
        sim_client_deadline(cluster->client, 50 * COMMON_NS_PER_S);
        break_edge(fault, root, child);
        start = sim_clock();
        struct sim_call *append = sim_append(cluster->client, session, 0, 48, 16, 2);
        OK(append);
        assert_true(append->done_ns - start < 6 * COMMON_NS_PER_S);
        assert_false(is_edge(plan_of(cluster), root, child));
        assert_true(plan_of(cluster)->digest != digest);
        assert_true(plan_of(cluster)->epoch > epoch);
        epoch = plan_of(cluster)->epoch;
        for (int i = 0; i < 20; i++) { // and it stays so
            start = sim_clock();
            READS(cluster, session, 64, 48 + 16 * 2);
            assert_true(sim_clock() - start < 10 * COMMON_NS_PER_MS);
            sim_advance(COMMON_NS_PER_S);
        }
        assert_int_equal(plan_of(cluster)->epoch, epoch);
        for (int w = 0; w < 3; w++)
            state_is(cluster, cluster->workers[w], "active");
        sim_net_heal();
        sim_advance(100 * COMMON_NS_PER_S); // forgotten
        READS(cluster, session, 64, 48 + 16 * 2);
        sim_cluster_free(cluster);
    }
}

// Of three workers each is the root of a star in turn, and each time an edge of it goes down, or is
// remembered: a chain does without all three.
static void a_chain_goes_on_where_no_star_does(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = session_of(cluster, 48);
    sim_advance(3 * COMMON_NS_PER_S); // a worker that is new is not judged by others
    sim_client_deadline(cluster->client, 50 * COMMON_NS_PER_S);
    struct sim_worker *root = at_rank(cluster, 0), *child = at_rank(cluster, 2), *other = at_rank(cluster, 1);
    assert_int_equal(plan_of(cluster)->tree->nodes[0].n_children, 2);
    sim_net_part(root->loop, child->loop);
    READS(cluster, session, 48, 48);
    assert_ptr_equal(at_rank(cluster, 0), other);
    sim_net_swallow_links(other->loop, child->loop);
    READS(cluster, session, 48, 48); // over the next link, and this one is reported
    sim_advance(COMMON_NS_PER_S);
    uint64_t start = sim_clock();
    READS(cluster, session, 48, 48);
    assert_true(sim_clock() - start < 2 * COMMON_NS_PER_S);
    assert_ptr_equal(at_rank(cluster, 0), child);
    assert_ptr_equal(at_rank(cluster, 1), other);
    assert_int_equal(plan_of(cluster)->tree->nodes[2].parent, 1);
    sim_cluster_free(cluster);
}

// One worker is cut off from both others, so that no tree avoids all edges: then one of the others reaches it
// again.
static void one_edge_after_another_is_tried_where_no_tree_avoids_them(void **state)
{
    (void)state;
    for (int nth = 0; nth < 2; nth++) {
        struct sim_cluster *cluster = cluster_of(3);
        uint64_t session = session_of(cluster, 48);
        sim_advance(3 * COMMON_NS_PER_S); // a worker that is new is not judged by others
        struct sim_worker *alone = at_rank(cluster, 2),
                          *others[] = {at_rank(cluster, 0), at_rank(cluster, 1)};
        for (int i = 0; i < 2; i++)
            sim_net_part(others[i]->loop, alone->loop);
        sim_client_deadline(cluster->client, COMMON_NS_PER_S);
        for (int i = 0; i < 300; i++) {
            enum common_code code = sim_wait(sim_read(cluster->client, session, 0, 47, 1));
            assert_true(code == COMMON_UNAVAILABLE || (code == COMMON_DEADLINE_EXCEEDED && i < 10));
            sim_advance(100 * COMMON_NS_PER_MS);
        }
        assert_int_equal(cluster->coordinator->cluster.n_edges, 4);
        assert_true(cluster->coordinator->cluster.plans_made < 30);
        sim_net_mend(others[nth]->loop, alone->loop);
        uint64_t until = sim_clock() + 20 * COMMON_NS_PER_S;
        while (sim_wait(sim_read(cluster->client, session, 0, 47, 1)) != COMMON_OK && sim_clock() < until)
            sim_advance(100 * COMMON_NS_PER_MS);
        READS(cluster, session, 48, 48);
        uint64_t epoch = plan_of(cluster)->epoch;
        sim_advance(20 * COMMON_NS_PER_S);
        READS(cluster, session, 48, 48);
        assert_int_equal(plan_of(cluster)->epoch, epoch); // and it stays so
        sim_cluster_free(cluster);
    }
}

// The relay passes again: the edge links, is named no more, and trees have it again.
static void an_edge_that_swallowed_is_used_again(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    char *down[1];
    uint64_t session = session_of(cluster, 48);
    sim_advance(3 * COMMON_NS_PER_S);
    uint64_t digest = plan_of(cluster)->digest;
    struct sim_worker *root = at_rank(cluster, 0), *child = at_rank(cluster, 2);
    sim_client_deadline(cluster->client, 50 * COMMON_NS_PER_S);
    break_edge(RELAYED, root, child);
    READS(cluster, session, 48, 48);
    assert_false(is_edge(plan_of(cluster), root, child));
    sim_net_heal();
    sim_advance(80 * COMMON_NS_PER_S); // forgotten
    assert_int_equal(reduce_edges_down(root->worker->env.edges, down, 1), 0);
    OK(sim_delete(cluster->client, session));
    sim_advance(20 * COMMON_NS_PER_S); // and the plan that went round it
    session = session_of(cluster, 48);
    assert_int_equal(plan_of(cluster)->digest, digest);
    assert_true(is_edge(plan_of(cluster), root, child));
    sim_cluster_free(cluster);
}

// A child that is stopped: its edge is silent as well, and its heartbeats must show that.
static void an_edge_to_a_worker_that_is_stopped_is_not_blamed(void **state)
{
    (void)state;
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 3, .tune = slow_beats});
    sim_cluster_start(cluster);
    uint64_t session = session_of(cluster, 48);
    sim_advance(3 * COMMON_NS_PER_S);
    uint64_t epoch = plan_of(cluster)->epoch;
    struct sim_worker *child = at_rank(cluster, 2);
    sim_client_deadline(cluster->client, 50 * COMMON_NS_PER_S);
    sim_loop_freeze(child->loop);
    struct sim_call *read = sim_read(cluster->client, session, 0, 47, 1);
    sim_advance(10 * COMMON_NS_PER_S); // two beats are missed, and a third is not late
    assert_int_equal(cluster->coordinator->cluster.n_edges, 0);
    sim_loop_thaw(child->loop);
    OK(read);
    assert_int_equal(plan_of(cluster)->epoch, epoch);
    for (int w = 0; w < 3; w++)
        state_is(cluster, cluster->workers[w], "active");
    sim_cluster_free(cluster);
}

static bool is_member(struct sim_cluster *cluster, uint64_t session, const struct sim_worker *w)
{
    const struct coordinator_session *s = kept_of(cluster, session);
    for (uint32_t i = 0; i < s->n_members; i++)
        if (!strcmp(s->members[i]->name, w->name))
            return true;
    return false;
}

// Sessions that come later have not both of two workers that do not reach each other, though each of them has
// room.
static void workers_that_do_not_reach_each_other_share_no_new_session(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t session = session_of(cluster, 48);
    sim_advance(3 * COMMON_NS_PER_S); // a worker that is new is not judged by others
    struct sim_worker *root = at_rank(cluster, 0), *child = at_rank(cluster, 2);
    sim_client_deadline(cluster->client, 50 * COMMON_NS_PER_S);
    sim_net_part(root->loop, child->loop);
    OK(sim_append(cluster->client, session, 0, 48, 16, 2));
    uint32_t with_root = 0, with_child = 0;
    for (uint32_t i = 0; i < 12; i++) {
        struct sim_call *call =
            sim_create(cluster->client, (struct sim_shape){.members = 2, .replicas = i % 2 ? 2 : 1}, "");
        OK(call);
        OK(sim_append(cluster->client, call->session, 0, 0, 48, 1));
        READS(cluster, call->session, 48, 48);
        bool of_root = is_member(cluster, call->session, root),
             of_child = is_member(cluster, call->session, child);
        assert_false(of_root && of_child);
        with_root += of_root;
        with_child += of_child;
    }
    assert_true(with_root && with_child);
    sim_cluster_free(cluster);
}

// A worker that computes for long is not silent: its host acknowledges.
static void an_edge_to_a_busy_worker_stays(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    struct sim_worker *child = at_rank(cluster, 1);
    sim_client_deadline(cluster->client, 50 * COMMON_NS_PER_S);
    sim_serve_rule(child->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    struct sim_call *read = sim_read(cluster->client, session, 0, 39, 1);
    sim_advance(20 * COMMON_NS_PER_S);
    assert_false(read->done);
    assert_int_equal(sim_serve_held(child->loop), 1);
    sim_serve_let_go(child->loop);
    OK(read);
    assert_int_equal(sim_serve_seen(child->loop, METHOD(STEP)), 1 + 40 / 16 + 1);
    sim_cluster_free(cluster);
}

// What the coordinator says to a worker is swallowed, and its heartbeats come: it is lost all the same.
static void a_worker_that_cannot_be_called_is_lost(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    struct sim_worker *root = at_rank(cluster, 0);
    sim_net_hold(cluster->loop, root->loop);
    sim_client_deadline(cluster->client, 50 * COMMON_NS_PER_S);
    struct sim_call *read = sim_read(cluster->client, session, 0, 39, 1);
    ENDS(COMMON_UNAVAILABLE, read);
    assert_string_equal(read->reason, "MISSING_RANGE");
    sim_advance(COMMON_NS_PER_S); // its grace
    state_is(cluster, root, "lost");
    sim_net_heal();
    assert_true(sim_wait_active(cluster, 2));
    READS(cluster, session, 40, 40);
    sim_cluster_free(cluster);
}

// Links between the coordinator and a worker, its heartbeats', too, pass nothing on: others are made, and it
// is used again.
static void a_worker_whose_links_swallow_comes_back(void **state)
{
    (void)state;
    for (int ways = 1; ways <= 3; ways++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 40);
        struct sim_worker *root = at_rank(cluster, 0);
        if (ways & 1)
            sim_net_swallow_links(cluster->loop, root->loop);
        if (ways & 2)
            sim_net_swallow_links(root->loop, cluster->loop);
        sim_client_deadline(cluster->client, 50 * COMMON_NS_PER_S);
        enum common_code code = sim_wait(sim_read(cluster->client, session, 0, 39, 1));
        assert_true(code == COMMON_OK || code == COMMON_UNAVAILABLE); // while it is lost
        sim_advance(5 * COMMON_NS_PER_S);
        assert_true(sim_wait_active(cluster, 2));
        READS(cluster, session, 40, 40);
        sim_cluster_free(cluster);
    }
}

// A worker's link to the coordinator passes nothing on, in one direction or the other, for as long as it is
// there. Links that are made later do.
static void a_worker_leaves_a_link_that_swallows(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        struct sim_cluster *cluster = cluster_of(1);
        const struct common_loop *sides[2] = {cluster->workers[0]->loop, cluster->loop};
        uint64_t session = session_of(cluster, 16);
        sim_net_swallow_links(sides[way], sides[1 - way]);
        sim_advance(5 * COMMON_NS_PER_S);
        assert_true(sim_wait_active(cluster, 1));
        sim_advance(5 * COMMON_NS_PER_S);
        state_is(cluster, cluster->workers[0], "active");
        READS(cluster, session, 16, 16);
        sim_cluster_free(cluster);
    }
}

// The same where the link passes nothing on before its first call, the Register, is answered: the next one is
// the last that it is given. Where the worker is not heard, the coordinator says after 4 s that it could not
// reach it, before that.
static void a_worker_that_registers_leaves_a_link_that_swallows(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        struct sim_cluster *cluster =
            sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .later = 1});
        sim_cluster_start(cluster);
        struct sim_worker *late = cluster->workers[1];
        const struct coordinator_worker *w;
        sim_worker_start(late);
        do {
            sim_advance(10 * COMMON_NS_PER_US);
            w = coordinator_worker_find(&cluster->coordinator->cluster, late->name);
        } while (!w || !w->registering);
        const struct common_loop *sides[2] = {late->loop, cluster->loop};
        sim_net_swallow_links(sides[way], sides[1 - way]);
        sim_advance((way ? 11 : 15) * COMMON_NS_PER_S); // two Registers, of 5 s each
        state_is(cluster, late, "active");
        sim_advance(5 * COMMON_NS_PER_S);
        state_is(cluster, late, "active");
        sim_cluster_free(cluster);
    }
}

// A coordinator that is stopped answers on no link: the first one is kept, and no worker registers again.
static void a_worker_keeps_its_link_to_a_coordinator_that_is_stopped(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40);
    uint32_t lives = cluster->coordinator->cluster.lives;
    for (uint64_t ms = 500; ms < 20000; ms *= 2) {
        sim_loop_freeze(cluster->loop);
        sim_advance(ms * COMMON_NS_PER_MS);
        sim_loop_thaw(cluster->loop);
        sim_advance(2 * COMMON_NS_PER_S);
    }
    assert_int_equal(cluster->coordinator->cluster.lives, lives);
    READS(cluster, session, 40, 40);
    sim_cluster_free(cluster);
}

// A client's connection passes nothing on: one call ends at its deadline, and the next is answered over
// another connection.
static void a_client_leaves_a_link_that_swallows(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        struct sim_cluster *cluster = cluster_of(1);
        uint64_t session = session_of(cluster, 16);
        const struct common_loop *sides[2] = {sim_client_loop(cluster->client), cluster->loop};
        sim_client_deadline(cluster->client, 2 * COMMON_NS_PER_S);
        sim_net_swallow_links(sides[way], sides[1 - way]);
        ENDS(COMMON_DEADLINE_EXCEEDED, sim_read(cluster->client, session, 0, 15, 1));
        sim_advance(12 * COMMON_NS_PER_S);
        READS(cluster, session, 16, 16);
        sim_cluster_free(cluster);
    }
}

int hermetic_frames(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_ends_with_its_last_call),
        cmocka_unit_test(a_frame_ends_with_its_client),
        cmocka_unit_test(a_frame_lives_as_long_as_one_of_its_calls),
        cmocka_unit_test(a_frame_has_the_time_of_its_most_patient_call),
        cmocka_unit_test(an_append_that_was_given_up_may_be_replaced),
        cmocka_unit_test(a_black_hole_between_two_workers_ends_their_steps),
        cmocka_unit_test(a_tree_avoids_an_edge_that_is_down),
        cmocka_unit_test(a_chain_goes_on_where_no_star_does),
        cmocka_unit_test(one_edge_after_another_is_tried_where_no_tree_avoids_them),
        cmocka_unit_test(an_edge_that_swallowed_is_used_again),
        cmocka_unit_test(an_edge_to_a_worker_that_is_stopped_is_not_blamed),
        cmocka_unit_test(workers_that_do_not_reach_each_other_share_no_new_session),
        cmocka_unit_test(an_edge_to_a_busy_worker_stays),
        cmocka_unit_test(a_worker_that_cannot_be_called_is_lost),
        cmocka_unit_test(a_worker_whose_links_swallow_comes_back),
        cmocka_unit_test(a_worker_leaves_a_link_that_swallows),
        cmocka_unit_test(a_worker_that_registers_leaves_a_link_that_swallows),
        cmocka_unit_test(a_worker_keeps_its_link_to_a_coordinator_that_is_stopped),
        cmocka_unit_test(a_client_leaves_a_link_that_swallows),
    };
    return cmocka_run_group_tests_name("frames", tests, NULL, NULL);
}
