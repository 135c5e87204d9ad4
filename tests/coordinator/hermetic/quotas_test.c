// SPDX-License-Identifier: Apache-2.0
// Quotas of a tenant: what would be more is refused, whole, with a reason and words; what ends is given back;
// they outlive the coordinator.
#include "coordinator/tenants/quota.h"
#include "tests/coordinator/hermetic/hermetic.h"
#include "tests/sim/sim_watch.h"

static struct coordinator_use *use_of(const struct sim_cluster *cluster)
{
    return coordinator_use_of(&cluster->coordinator->quotas, PROTO_TENANT_DEFAULT);
}

static uint64_t used(const struct sim_cluster *cluster, enum coordinator_quota_kind kind)
{
    return coordinator_quota_used(use_of(cluster), kind, sim_clock());
}

static void took(struct sim_call *call, const struct proto_message *message)
{
    const Banyan__Pb__QuotaSetReply *reply = (const void *)message->body;
    assert_int_equal(reply->now->n_quotas, COORDINATOR_QUOTAS);
    assert_string_equal(reply->now->tenant, "default");
    call->told = true;
}

static struct sim_call *quota_set(struct sim_client *client, const char *name, uint64_t max)
{
    Banyan__Pb__QuotaUse use = BANYAN__PB__QUOTA_USE__INIT, *list[] = {&use};
    Banyan__Pb__QuotaSetRequest m = BANYAN__PB__QUOTA_SET_REQUEST__INIT;
    use.name = (char *)name;
    use.max = max;
    m.tenant = (char *)"default";
    m.n_quotas = 1;
    m.quotas = list;
    return sim_call_start(client, METHOD(QUOTA_SET), &m.base, NULL, 0, took);
}

// Refused for this quota, in words that name the option which raises it.
#define REFUSED(quota, option, made)                                                                         \
    do {                                                                                                     \
        struct sim_call *refused = (made);                                                                   \
        ENDS(COMMON_RESOURCE_EXHAUSTED, refused);                                                            \
        assert_string_equal(refused->reason, "QUOTA");                                                       \
        if (!strstr(refused->text, "the quota " quota " of tenant default, ") ||                             \
            !strstr(refused->text, "(banyanctl quota set default --" option " N)"))                          \
            fail_msg("%s", refused->text);                                                                   \
    } while (0)

static void sessions_are_counted(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    OK(quota_set(cluster->client, "sessions", 2));
    uint64_t a = session_of(cluster, 20);
    struct sim_call *fork = sim_fork(cluster->client, a, 20, "f");
    OK(fork);
    REFUSED("sessions", "sessions", sim_create(cluster->client, (struct sim_shape){0}, "c"));
    REFUSED("sessions", "sessions", sim_fork(cluster->client, a, 10, "c"));
    assert_int_equal(cluster->coordinator->sessions.n, 2);
    READS(cluster, fork->session, 20, 20);
    OK(sim_delete(cluster->client, fork->session));
    OK(sim_create(cluster->client, (struct sim_shape){0}, "c")); // the name was not taken by what was refused
    OK(quota_set(cluster->client, "sessions", 1));               // what is there stays
    READS(cluster, a, 20, 20);
    REFUSED("sessions", "sessions", sim_create(cluster->client, (struct sim_shape){0}, "d"));
    OK(quota_set(cluster->client, "sessions", 0));
    OK(sim_create(cluster->client, (struct sim_shape){0}, "d"));
    assert_true(sim_quotas_counted(cluster));
    assert_int_equal(use_of(cluster)->refused[COORDINATOR_QUOTA_SESSIONS], 3);
    sim_cluster_free(cluster);
}

static void bytes_are_those_of_chunks_times_copies(void **state)
{
    (void)state;
    for (uint32_t replicas = 1; replicas <= 2; replicas++) {
        struct sim_cluster *cluster = cluster_of(2);
        struct sim_call *made =
            sim_create(cluster->client, (struct sim_shape){.members = 2, .replicas = replicas}, "");
        OK(made);
        OK(sim_append(cluster->client, made->session, 0, 0, 1, 1));
        uint64_t chunk = used(cluster, COORDINATOR_QUOTA_BYTES);
        assert_int_equal(chunk, coordinator_session_chunk_room(kept_of(cluster, made->session)) * replicas);
        OK(quota_set(cluster->client, "bytes", 2 * chunk));
        OK(sim_append(cluster->client, made->session, 0, 1, 15, 1));
        OK(sim_append(cluster->client, made->session, 0, 16, 16, 1));
        sim_run_until_idle();
        assert_int_equal(used(cluster, COORDINATOR_QUOTA_BYTES), 2 * chunk); // and none ahead
        assert_int_equal(use_of(cluster)->refused[COORDINATOR_QUOTA_BYTES], 0);
        REFUSED("bytes", "memory", sim_append(cluster->client, made->session, 0, 32, 1, 1));
        REFUSED("bytes", "memory", sim_open(cluster->client, made->session, 32, 16));
        REFUSED("bytes", "memory", sim_fork(cluster->client, made->session, 20, ""));
        assert_int_equal(length_of(cluster, made->session), 32);
        READS(cluster, made->session, 32, 32);
        assert_int_equal(used(cluster, COORDINATOR_QUOTA_BYTES), 2 * chunk);
        assert_int_equal(cluster->coordinator->sessions.n, 1);
        OK(sim_truncate(cluster->client, made->session, 16));
        assert_int_equal(used(cluster, COORDINATOR_QUOTA_BYTES), chunk);
        struct sim_call *fork = sim_fork(cluster->client, made->session, 16, "");
        OK(fork); // it counts what it shares: it keeps that when the other one goes
        assert_int_equal(used(cluster, COORDINATOR_QUOTA_BYTES), 2 * chunk);
        OK(sim_delete(cluster->client, made->session));
        OK(sim_append(cluster->client, fork->session, 0, 16, 1, 1));
        assert_int_equal(used(cluster, COORDINATOR_QUOTA_BYTES), 2 * chunk);
        OK(sim_delete(cluster->client, fork->session));
        assert_int_equal(used(cluster, COORDINATOR_QUOTA_BYTES), 0);
        sim_cluster_free(cluster);
    }
}

// While chunks are being stored they count already: many sessions at once do not get more than one after the
// other.
static void bytes_that_are_being_placed_count(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    struct sim_call *appends[6];
    uint64_t sessions[6], refused = 0;
    for (int i = 0; i < 6; i++) {
        struct sim_call *made = sim_create(cluster->client, (struct sim_shape){0}, "");
        OK(made);
        sessions[i] = made->session;
    }
    OK(quota_set(cluster->client, "bytes",
                 3 * coordinator_session_chunk_room(kept_of(cluster, sessions[0]))));
    for (int i = 0; i < 6; i++)
        appends[i] = sim_append(cluster->client, sessions[i], 0, 0, 4, 1);
    for (int i = 0; i < 6; i++)
        refused += sim_wait(appends[i]) == COMMON_RESOURCE_EXHAUSTED;
    assert_int_equal(refused, 3);
    assert_true(sim_quotas_counted(cluster));
    sim_cluster_free(cluster);
}

static void steps_in_flight_are_counted(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = session_of(cluster, 20);
    struct sim_call *three[3];
    OK(quota_set(cluster->client, "steps_in_flight", 3));
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
    for (int i = 0; i < 3; i++)
        three[i] = sim_read(cluster->client, session, 0, 19, 1);
    sim_run_until_idle();
    assert_int_equal(used(cluster, COORDINATOR_QUOTA_STEPS_IN_FLIGHT), 3);
    REFUSED("steps_in_flight", "steps-in-flight", sim_read(cluster->client, session, 0, 19, 1));
    REFUSED("steps_in_flight", "steps-in-flight", sim_append(cluster->client, session, 0, 20, 1, 1));
    sim_cancel(three[0]);
    rule_all(cluster, METHOD(STEP), (struct sim_rule){.verdict = SIM_DO});
    let_go_all(cluster);
    OK(three[1]);
    OK(three[2]);
    sim_run_until_idle();
    assert_int_equal(used(cluster, COORDINATOR_QUOTA_STEPS_IN_FLIGHT), 0);
    assert_int_equal(length_of(cluster, session), 20);
    READS(cluster, session, 20, 20);
    sim_cluster_free(cluster);
}

static void steps_a_second_go_by_the_clock(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = session_of(cluster, 20);
    OK(quota_set(cluster->client, "steps_per_s", 10));
    uint64_t start = sim_clock();
    for (int i = 0; i < 10; i++)
        READS(cluster, session, 20, 20);
    assert_true(sim_clock() - start < 90 * COMMON_NS_PER_MS);
    struct sim_call *more = sim_read(cluster->client, session, 0, 19, 1);
    REFUSED("steps_per_s", "steps-per-second", more);
    assert_non_null(strstr(more->text, "try again in "));
    sim_advance(100 * COMMON_NS_PER_MS);
    READS(cluster, session, 20, 20);
    REFUSED("steps_per_s", "steps-per-second", sim_read(cluster->client, session, 0, 19, 1));
    assert_int_equal(used(cluster, COORDINATOR_QUOTA_STEPS_IN_FLIGHT), 0);
    sim_cluster_free(cluster);
}

static void watches_are_counted(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = session_of(cluster, 20);
    const struct sim_wish wish = {.steps = 1, .trace = true, .wait_ns = 5 * COMMON_NS_PER_S};
    OK(quota_set(cluster->client, "watches", 1));
    struct sim_call *watch = sim_watch(cluster->client, session, &wish);
    sim_run_until_idle();
    assert_int_equal(used(cluster, COORDINATOR_QUOTA_WATCHES), 1);
    REFUSED("watches", "watches", sim_watch(cluster->client, session, &wish));
    READS(cluster, session, 20, 20);
    OK(watch);
    assert_int_equal(used(cluster, COORDINATOR_QUOTA_WATCHES), 0);
    watch = sim_watch(cluster->client, session, &wish);
    OK(watch); // its time is over
    assert_int_equal(used(cluster, COORDINATOR_QUOTA_WATCHES), 0);
    sim_cluster_free(cluster);
}

static void connections_are_counted(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = session_of(cluster, 20);
    OK(quota_set(cluster->client, "connections", 2));
    struct sim_client *second = sim_client_new(SIM_COORDINATOR, NULL);
    OK(sim_info(second, session));
    assert_int_equal(used(cluster, COORDINATOR_QUOTA_CONNECTIONS), 2);
    struct sim_client *third = sim_client_new(SIM_COORDINATOR, NULL);
    sim_client_deadline(third, COMMON_NS_PER_S);
    assert_int_not_equal(sim_wait(sim_info(third, session)), COMMON_OK);
    assert_true(use_of(cluster)->refused[COORDINATOR_QUOTA_CONNECTIONS] > 0);
    assert_int_equal(used(cluster, COORDINATOR_QUOTA_CONNECTIONS), 2);
    sim_client_free(second);
    sim_advance(2 * COMMON_NS_PER_S); // it dials again
    OK(sim_info(third, session));
    assert_true(sim_quotas_counted(cluster));
    sim_client_free(third);
    sim_run_until_idle();
    assert_int_equal(used(cluster, COORDINATOR_QUOTA_CONNECTIONS), 1);
    sim_cluster_free(cluster);
}

static void what_is_no_quota_is_refused(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    ENDS(COMMON_INVALID_ARGUMENT, quota_set(cluster->client, "patience", 2));
    ENDS(COMMON_INVALID_ARGUMENT, quota_set(cluster->client, "steps_per_s", COORDINATOR_RATE_MOST + 1));
    ENDS(COMMON_INVALID_ARGUMENT, quota_set(cluster->client, "bytes", UINT64_MAX));
    sim_cluster_free(cluster);
}

static void they_outlive_the_coordinator(void **state)
{
    (void)state;
    for (int stopped = 0; stopped < 2; stopped++) { // or killed
        struct sim_cluster *cluster =
            sim_cluster_new(&(struct sim_cluster_options){.workers = 1, .second = true});
        struct common_error err;
        sim_cluster_start(cluster);
        uint64_t session = session_of(cluster, 20), bytes = used(cluster, COORDINATOR_QUOTA_BYTES);
        OK(quota_set(cluster->client, "sessions", 7));
        OK(quota_set(cluster->client, "sessions", 2));
        OK(quota_set(cluster->client, "steps_per_s", 500));
        OK(quota_set(cluster->client, "watches", 5));
        OK(quota_set(cluster->client, "watches", 0));
        if (stopped) {
            sim_coordinator_stop_slowly(cluster, COMMON_NS_PER_S);
            while (sim_next_start(cluster, &err) != COMMON_OK)
                sim_advance(100 * COMMON_NS_PER_MS);
            sim_client_direct(cluster->client, cluster->coordinators[cluster->active].endpoint);
        } else {
            sim_coordinator_kill(cluster);
            restart(cluster);
        }
        assert_true(sim_wait_active(cluster, 1));
        const struct coordinator_use *use = use_of(cluster);
        assert_int_equal(use->quota.max[COORDINATOR_QUOTA_SESSIONS], 2);
        assert_int_equal(use->quota.max[COORDINATOR_QUOTA_STEPS_PER_S], 500);
        assert_int_equal(use->quota.max[COORDINATOR_QUOTA_WATCHES], 0);
        assert_int_equal(used(cluster, COORDINATOR_QUOTA_SESSIONS), 1); // what is there counts again
        assert_int_equal(used(cluster, COORDINATOR_QUOTA_BYTES), bytes);
        READS(cluster, session, 20, 20);
        OK(sim_create(cluster->client, (struct sim_shape){0}, ""));
        REFUSED("sessions", "sessions", sim_create(cluster->client, (struct sim_shape){0}, ""));
        assert_true(sim_quotas_counted(cluster));
        sim_cluster_free(cluster);
    }
}

// What the store does not take does not hold.
static void a_quota_that_is_not_stored_does_not_hold(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    sim_disk_fail(SIM_DISK_PATH, 1, COMMON_RESOURCE_EXHAUSTED);
    assert_int_not_equal(sim_wait(quota_set(cluster->client, "sessions", 1)), COMMON_OK);
    assert_int_equal(use_of(cluster)->quota.max[COORDINATOR_QUOTA_SESSIONS], 0);
    sim_cluster_free(cluster);
}

int hermetic_quotas(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_are_counted),
        cmocka_unit_test(bytes_are_those_of_chunks_times_copies),
        cmocka_unit_test(bytes_that_are_being_placed_count),
        cmocka_unit_test(steps_in_flight_are_counted),
        cmocka_unit_test(steps_a_second_go_by_the_clock),
        cmocka_unit_test(watches_are_counted),
        cmocka_unit_test(connections_are_counted),
        cmocka_unit_test(what_is_no_quota_is_refused),
        cmocka_unit_test(they_outlive_the_coordinator),
        cmocka_unit_test(a_quota_that_is_not_stored_does_not_hold),
    };
    return cmocka_run_group_tests_name("quotas", tests, NULL, NULL);
}
