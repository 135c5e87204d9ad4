// SPDX-License-Identifier: Apache-2.0
// Frames are shared between tenants: one that floods a plan with steps delays another's step by one frame,
// and alters no bit of it. Frames are counted, not time.
#include "coordinator/steps/dispatch.h"
#include "coordinator/steps/frame.h"
#include "tests/coordinator/hermetic/hermetic.h"

#define FLOOD 3000 // steps: ten frames and more
#define ROWS  1024 // of 64 dimensions: three slabs

static struct sim_worker *root_of(const struct sim_cluster *cluster)
{
    struct coordinator_plan *plan = cluster->coordinator->cluster.plans;
    while (plan && plan->state == COORDINATOR_PLAN_RETIRED)
        plan = plan->next;
    assert_non_null(plan);
    return cluster->workers[plan->workers[0]->name[1] - '0'];
}

// The other tenant's client: what one client has under way may keep its own later calls from being read. Both
// wait long.
static struct sim_client *patient(struct sim_cluster *cluster)
{
    struct sim_client *another = sim_client_new(SIM_COORDINATOR, NULL);
    sim_client_deadline(cluster->client, 50 * COMMON_NS_PER_S);
    sim_client_deadline(another, 50 * COMMON_NS_PER_S);
    return another;
}

static void flood(struct sim_cluster *cluster, uint64_t session, uint32_t steps)
{
    for (uint32_t i = 0; i < steps; i++)
        sim_read(cluster->client, session, 0, 39, 1);
    sim_run_until_idle();
}

// How many frames have left until the call is answered and the plan's next frame is under way. Those that are
// under way are held, at one worker after the other.
static uint64_t frames_until(struct sim_cluster *cluster, const struct sim_call *call)
{
    const struct coordinator_steps *steps = &cluster->coordinator->steps;
    uint64_t before = steps->count_frames;
    sim_run_until_idle();
    for (int i = 0; !call->done; i++) {
        assert_true(i < 100);
        let_go_all(cluster);
        sim_run_until_idle();
    }
    return steps->count_frames - before;
}

static void a_flood_delays_another_tenant_by_one_frame(void **state)
{
    (void)state;
    for (int other = 0; other < 2; other++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t a = session_of(cluster, 40), b = session_of(cluster, 40);
        struct sim_client *another = patient(cluster);
        struct sim_call *alone = sim_read(another, b, 0, 39, 1);
        OK(alone);
        kept_of(cluster, b)->tenant = other ? 1 : 0;
        sim_serve_rule(root_of(cluster)->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
        flood(cluster, a, FLOOD);
        for (int i = 0; i < (other ? 4 : 1); i++) {
            uint64_t left = cluster->coordinator->steps.items;
            struct sim_call *quiet = sim_read(another, b, 0, 39, 1);
            uint64_t frames = frames_until(cluster, quiet);
            assert_int_equal(quiet->code, COMMON_OK);
            if (other) // one was under way when it came; it goes with the next, and behind that goes one
                assert_int_equal(frames, 2);
            else // within one tenant those wait that came later: so the flood was one
                assert_true(frames > 8);
            assert_true(left >= 2000); // there was a flood
            assert_memory_equal(&quiet->o, &alone->o, sizeof(alone->o));
            assert_memory_equal(&quiet->lse, &alone->lse, sizeof(alone->lse));
            assert_int_equal(quiet->digest, alone->digest);
            flood(cluster, a, 600); // what has been answered is asked again
        }
        rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
        let_go_all(cluster);
        sim_run_until_idle();
        assert_int_equal(cluster->coordinator->steps.items, 0);
        sim_client_free(another);
        sim_cluster_free(cluster);
    }
}

// Several quiet tenants at once: all of them go with the next frame.
static void a_flood_delays_all_others_alike(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t a = session_of(cluster, 40), quiet[20];
    struct sim_call *calls[20];
    for (uint32_t i = 0; i < 20; i++) {
        quiet[i] = session_of(cluster, 40);
        kept_of(cluster, quiet[i])->tenant = 1 + i;
    }
    struct sim_client *another = patient(cluster);
    sim_serve_rule(root_of(cluster)->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
    flood(cluster, a, FLOOD);
    for (uint32_t i = 0; i < 20; i++)
        calls[i] = sim_read(another, quiet[i], 0, 39, 1);
    assert_int_equal(frames_until(cluster, calls[19]), 2);
    for (uint32_t i = 0; i < 20; i++)
        assert_true(calls[i]->done && calls[i]->code == COMMON_OK);
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
    let_go_all(cluster);
    sim_run_until_idle();
    sim_client_free(another);
    sim_cluster_free(cluster);
}

static uint32_t frames_with(const struct sim_cluster *cluster, uint64_t session)
{
    const struct coordinator_steps *steps = &cluster->coordinator->steps;
    uint32_t n = 0;
    for (const struct common_list *at = steps->flying.next; at != &steps->flying; at = at->next)
        n += common_list_entry(at, struct coordinator_frame, link)->step.items[0].session == session;
    return n;
}

// Items that were cut go slab by slab, four at a time: another tenant's first slab is among the next ones.
static void giants_of_a_tenant_let_others_giants_in(void **state)
{
    (void)state;
    for (int other = 0; other < 2; other++) {
        struct sim_cluster *cluster = cluster_of(1);
        sim_client_dim(cluster->client, 64);
        uint64_t sessions[2];
        for (int i = 0; i < 2; i++) {
            struct sim_call *made = sim_create(cluster->client, (struct sim_shape){.chunk_tokens = 256}, "");
            OK(made);
            sessions[i] = made->session;
            OK(sim_append(cluster->client, sessions[i], 0, 0, ROWS, 1));
        }
        kept_of(cluster, sessions[1])->tenant = other ? 1 : 0;
        struct sim_client *another = patient(cluster);
        sim_client_dim(another, 64);
        rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
        struct sim_call *giants[12];
        for (int i = 0; i < 12; i++)
            giants[i] = sim_read(cluster->client, sessions[0], 0, 0, ROWS);
        sim_run_until_idle();
        struct sim_call *quiet = sim_read(another, sessions[1], 0, 0, ROWS);
        sim_run_until_idle();
        assert_int_equal(frames_with(cluster, sessions[0]), COORDINATOR_BIG_FRAMES);
        let_go_all(cluster);
        sim_run_until_idle();
        assert_int_equal(frames_with(cluster, sessions[1]) > 0, other);
        rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
        let_go_all(cluster);
        OK(quiet);
        for (int i = 0; i < 12; i++)
            OK(giants[i]);
        sim_client_free(another);
        sim_cluster_free(cluster);
    }
}

// 40 tokens over three workers, two copies of each chunk.
static uint64_t copied_of(struct sim_cluster *cluster)
{
    struct sim_call *made = sim_create(cluster->client, (struct sim_shape){.members = 3, .replicas = 2}, "");
    OK(made);
    for (uint32_t at = 0; at < 40; at += 8)
        OK(sim_append(cluster->client, made->session, 0, at, 8, 1));
    return made->session;
}

// Steps that were held while a holder was lost go through the same queue: the quiet tenant's is in the first
// or the second frame of the new plan, though the flood was there before.
static void a_flood_that_was_held_delays_nobody_more(void **state)
{
    (void)state;
    for (int other = 0; other < 2; other++) {
        struct sim_cluster *cluster = cluster_of(3);
        uint64_t a = copied_of(cluster), b = copied_of(cluster);
        kept_of(cluster, b)->tenant = other ? 1 : 0;
        struct sim_client *another = patient(cluster);
        rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
        flood(cluster, a, FLOOD);
        struct sim_call *quiet = sim_read(another, b, 0, 39, 1);
        sim_run_until_idle();
        struct sim_worker *root = root_of(cluster);
        sim_worker_kill(root);
        for (int i = 0; i < 2000 && !held_all(cluster); i++)
            sim_advance(10 * COMMON_NS_PER_MS);
        uint64_t frames = frames_until(cluster, quiet);
        assert_int_equal(quiet->code, COMMON_OK);
        assert_float_equal(quiet->o, 1, 1e-4f);
        if (other)
            assert_true(frames <= 2);
        else
            assert_true(frames > 8);
        for (int i = 0; i < 3; i++)
            if (cluster->workers[i] != root)
                sim_serve_rule(cluster->workers[i]->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
        let_go_all(cluster);
        sim_run_until_idle();
        assert_int_equal(cluster->coordinator->steps.items, 0);
        sim_client_free(another);
        sim_cluster_free(cluster);
    }
}

int hermetic_fairness(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flood_delays_another_tenant_by_one_frame),
        cmocka_unit_test(a_flood_delays_all_others_alike),
        cmocka_unit_test(giants_of_a_tenant_let_others_giants_in),
        cmocka_unit_test(a_flood_that_was_held_delays_nobody_more),
    };
    return cmocka_run_group_tests_name("fairness", tests, NULL, NULL);
}
