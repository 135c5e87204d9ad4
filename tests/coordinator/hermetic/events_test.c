// SPDX-License-Identifier: Apache-2.0
// Events: what happens is reported, with its subjects and reasons; and calls that read events and wait for
// them.
#include "coordinator/events.h"
#include "coordinator/events_service.h"
#include "tests/coordinator/hermetic/hermetic.h"

#define SECOND COMMON_NS_PER_S
#define MS     COMMON_NS_PER_MS

// ---- what is reported -------------------------------------------------------------------------------------

// The last one of a kind that is kept; *n (may be NULL): how many, each with those that it stands for.
static const struct coordinator_event *last_of(struct sim_cluster *cluster, enum proto_event_kind kind,
                                               uint32_t *n)
{
    const struct coordinator_events *events = cluster->coordinator->core.events;
    const struct coordinator_event *found = NULL, *e;
    uint32_t count = 0;
    for (uint64_t at = 0; (e = coordinator_events_next(events, at)); at = e->seq)
        if (e->kind == kind) {
            found = e;
            count += e->count;
        }
    if (n)
        *n = count;
    return found;
}

static uint32_t count_of(struct sim_cluster *cluster, enum proto_event_kind kind)
{
    uint32_t n;
    last_of(cluster, kind, &n);
    return n;
}

static bool any_says(struct sim_cluster *cluster, enum proto_event_kind kind, const char *words)
{
    const struct coordinator_event *e;
    for (uint64_t at = 0; (e = coordinator_events_next(cluster->coordinator->core.events, at)); at = e->seq)
        if (e->kind == kind && strstr(e->text, words))
            return true;
    return false;
}

static const struct coordinator_event *wait_for(struct sim_cluster *cluster, enum proto_event_kind kind)
{
    const struct coordinator_event *e;
    for (int i = 0; !(e = last_of(cluster, kind, NULL)); i++) {
        if (i == 600)
            fail_msg("no event %s", proto_event_kind_name(kind));
        sim_advance(50 * MS);
    }
    return e;
}

#define SAYS(event, words)                                                                                   \
    do {                                                                                                     \
        if (!strstr((event)->text, words))                                                                   \
            fail_msg("%s: %s", words, (event)->text);                                                        \
    } while (0)

// A copy that fails and is made again was begun once, and ends once.
static void a_copy_that_is_tried_again_is_one(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = filled_of(cluster, 1, 48);
    struct sim_worker *holder = holder_of(cluster, session, 0);
    for (uint32_t w = 0; w < 2; w++)
        sim_serve_rule(cluster->workers[w]->loop, METHOD(CHUNK_PULL),
                       (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = COMMON_RESOURCE_EXHAUSTED});
    OK(sim_drain(cluster->client, holder->name, false));
    wait_for(cluster, PROTO_EVENT_COPY_BEGUN);
    sim_advance(100 * MS);
    assert_int_equal(count_of(cluster, PROTO_EVENT_COPY_ENDED), 0); // it has failed, and waits
    assert_int_equal(wait_for(cluster, PROTO_EVENT_COPY_ENDED)->session, session);
    sim_advance(2 * SECOND);
    assert_int_equal(count_of(cluster, PROTO_EVENT_COPY_BEGUN), 1);
    assert_int_equal(count_of(cluster, PROTO_EVENT_COPY_ENDED), 1);
    sim_cluster_free(cluster);
}

static void workers_come_and_go(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    struct sim_worker *w = cluster->workers[1];
    assert_int_equal(count_of(cluster, PROTO_EVENT_COORDINATOR_STARTED), 1);
    assert_int_equal(count_of(cluster, PROTO_EVENT_WORKER_JOINED), 2);
    assert_int_equal(count_of(cluster, PROTO_EVENT_WORKER_ACTIVE), 2);
    assert_int_equal(count_of(cluster, PROTO_EVENT_WORKER_LOST), 0);
    sim_worker_kill(w);
    const struct coordinator_event *e = wait_for(cluster, PROTO_EVENT_WORKER_LOST);
    assert_string_equal(e->worker, w->name);
    assert_int_equal(e->severity, PROTO_EVENT_WARN);
    SAYS(e, "edge connection lost");
    sim_worker_start(w);
    assert_true(sim_wait_active(cluster, 2));
    assert_string_equal(wait_for(cluster, PROTO_EVENT_WORKER_AGAIN)->worker, w->name);
    assert_int_equal(count_of(cluster, PROTO_EVENT_WORKER_ACTIVE), 3);
    assert_int_equal(count_of(cluster, PROTO_EVENT_WORKER_JOINED), 2);
    sim_net_part(NULL, w->loop); // silence is another reason
    while (count_of(cluster, PROTO_EVENT_WORKER_LOST) < 2)
        sim_advance(50 * MS);
    sim_net_mend(NULL, w->loop);
    sim_cluster_free(cluster);
}

static void a_worker_is_drained_and_used_again(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = filled_of(cluster, 1, 48);
    struct sim_worker *holder = holder_of(cluster, session, 0);
    OK(sim_drain(cluster->client, holder->name, false));
    const struct coordinator_event *e = wait_for(cluster, PROTO_EVENT_WORKER_DRAINING);
    assert_string_equal(e->worker, holder->name);
    e = wait_for(cluster, PROTO_EVENT_WORKER_DRAINED);
    assert_string_equal(e->worker, holder->name);
    e = wait_for(cluster, PROTO_EVENT_COPY_BEGUN);
    assert_int_equal(e->session, session);
    SAYS(e, "a worker is draining");
    e = wait_for(cluster, PROTO_EVENT_COPY_ENDED);
    assert_int_equal(e->session, session);
    SAYS(e, "chunks=");
    sim_advance(2 * SECOND);
    assert_int_equal(count_of(cluster, PROTO_EVENT_WORKER_DRAINED), 1); // once
    OK(sim_drain(cluster->client, holder->name, true));
    assert_string_equal(wait_for(cluster, PROTO_EVENT_WORKER_RESUMED)->worker, holder->name);
    sim_cluster_free(cluster);
}

static void sessions_are_made_and_altered(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    struct sim_call *made = sim_create(cluster->client, (struct sim_shape){0}, "a book");
    OK(made);
    const struct coordinator_event *e = wait_for(cluster, PROTO_EVENT_SESSION_CREATED);
    assert_int_equal(e->session, made->session);
    assert_string_equal(e->session_name, "a book");
    OK(sim_append(cluster->client, made->session, 0, 0, 16, 1));
    OK(sim_truncate(cluster->client, made->session, 8));
    e = wait_for(cluster, PROTO_EVENT_SESSION_TRUNCATED);
    assert_int_equal(e->session, made->session);
    SAYS(e, "length=8");
    e = wait_for(cluster, PROTO_EVENT_SESSION_EPOCH);
    assert_int_equal(e->epoch, kept_of(cluster, made->session)->layout.epoch);
    SAYS(e, "the session was truncated");
    struct sim_call *fork = sim_fork(cluster->client, made->session, 8, "its fork");
    OK(fork);
    e = wait_for(cluster, PROTO_EVENT_SESSION_FORKED);
    assert_int_equal(e->session, fork->session);
    assert_string_equal(e->session_name, "its fork");
    OK(sim_delete(cluster->client, made->session));
    e = wait_for(cluster, PROTO_EVENT_SESSION_DELETED);
    assert_int_equal(e->session, made->session);
    assert_string_equal(e->session_name, "a book");
    SAYS(e, "deleted by a client");
    sim_cluster_free(cluster);
}

static void idle_soon(struct coordinator_options *options)
{
    options->session_ttl_ns = SECOND;
}

static void an_idle_session_is_deleted(void **state)
{
    (void)state;
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 1, .tune = idle_soon});
    sim_cluster_start(cluster);
    OK(sim_create(cluster->client, (struct sim_shape){0}, "forgotten"));
    SAYS(wait_for(cluster, PROTO_EVENT_SESSION_DELETED), "time to live");
    sim_cluster_free(cluster);
}

static void copies_are_lost_and_made_again(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = filled_of(cluster, 2, 48);
    struct sim_worker *lost = copy_of(cluster, session, 0, 1);
    assert_int_equal(count_of(cluster, PROTO_EVENT_SESSION_DEGRADED), 0);
    sim_worker_kill(lost);
    const struct coordinator_event *e = wait_for(cluster, PROTO_EVENT_SESSION_DEGRADED);
    assert_int_equal(e->session, session);
    SAYS(e, "replicas=2");
    e = wait_for(cluster, PROTO_EVENT_COPY_STRUCK);
    assert_int_equal(e->session, session);
    assert_true(any_says(cluster, PROTO_EVENT_SESSION_EPOCH, "workers are lost"));
    assert_int_equal(count_of(cluster, PROTO_EVENT_SESSION_WHOLE), 0);
    sim_worker_start(lost);
    e = wait_for(cluster, PROTO_EVENT_SESSION_WHOLE);
    assert_int_equal(e->session, session);
    SAYS(wait_for(cluster, PROTO_EVENT_COPY_BEGUN), "too few copies");
    wait_for(cluster, PROTO_EVENT_COPY_ENDED);
    sim_advance(5 * SECOND);
    assert_int_equal(count_of(cluster, PROTO_EVENT_SESSION_DEGRADED), 1);
    assert_int_equal(count_of(cluster, PROTO_EVENT_SESSION_WHOLE), 1);
    assert_int_equal(count_of(cluster, PROTO_EVENT_SESSION_UNAVAILABLE), 0);
    sim_cluster_free(cluster);
}

static void tokens_are_away_and_then_lost(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = filled_of(cluster, 1, 48);
    sim_worker_kill(cluster->workers[0]);
    const struct coordinator_event *e = wait_for(cluster, PROTO_EVENT_SESSION_UNAVAILABLE);
    assert_int_equal(e->session, session);
    SAYS(e, "tokens [0, 48): try again when");
    assert_int_equal(count_of(cluster, PROTO_EVENT_SESSION_LOST), 0);
    sim_worker_start(cluster->workers[0]); // without a store: another process has nothing
    e = wait_for(cluster, PROTO_EVENT_SESSION_LOST);
    assert_int_equal(e->session, session);
    assert_int_equal(e->severity, PROTO_EVENT_ERROR);
    SAYS(e, "no worker holds tokens [0, 48)");
    assert_string_equal(wait_for(cluster, PROTO_EVENT_WORKER_LACKS)->worker, "w0");
    sim_cluster_free(cluster);
}

// The workers come back by themselves: their sessions are no news.
static void a_restart_of_the_coordinator_is_no_news_of_sessions(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    filled_of(cluster, 2, 48);
    uint64_t term = cluster->coordinator->core.term;
    sim_coordinator_kill(cluster);
    sim_net_part(NULL, cluster->workers[0]->loop);
    sim_net_part(NULL, cluster->workers[1]->loop);
    restart(cluster);
    sim_advance(2 * SECOND);
    sim_net_mend(NULL, cluster->workers[0]->loop);
    sim_net_mend(NULL, cluster->workers[1]->loop);
    assert_true(sim_wait_active(cluster, 2));
    sim_advance(10 * SECOND);
    const struct coordinator_event *e = wait_for(cluster, PROTO_EVENT_COORDINATOR_STARTED);
    assert_true(e->term > term);
    assert_int_equal(e->seq, 1);
    assert_int_equal(count_of(cluster, PROTO_EVENT_SESSION_UNAVAILABLE), 0);
    assert_int_equal(count_of(cluster, PROTO_EVENT_SESSION_DEGRADED), 0);
    assert_int_equal(count_of(cluster, PROTO_EVENT_SESSION_WHOLE), 0);
    sim_cluster_free(cluster);
}

static void a_balance_begins_and_ends(void **state)
{
    (void)state;
    struct sim_cluster *cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .later = 1});
    sim_cluster_start(cluster);
    OK(sim_rebalance(cluster->client, false));
    sim_advance(SECOND);
    assert_int_equal(count_of(cluster, PROTO_EVENT_REBALANCE_BEGUN), 0); // there was nothing to move
    filled_of(cluster, 1, 128);
    sim_worker_start(cluster->workers[1]);
    assert_true(sim_wait_active(cluster, 2));
    OK(sim_rebalance(cluster->client, false));
    SAYS(wait_for(cluster, PROTO_EVENT_REBALANCE_BEGUN), "to balance load (chunks=");
    wait_for(cluster, PROTO_EVENT_REBALANCE_ENDED);
    sim_advance(2 * SECOND);
    assert_int_equal(count_of(cluster, PROTO_EVENT_REBALANCE_ENDED), 1);
    sim_cluster_free(cluster);
}

static void one_session(struct coordinator_options *options)
{
    options->max_sessions = 1;
}

static void refusals_are_counted(void **state)
{
    (void)state;
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 1, .tune = one_session});
    sim_cluster_start(cluster);
    OK(sim_create(cluster->client, (struct sim_shape){0}, ""));
    for (int i = 0; i < 20; i++)
        ENDS(COMMON_RESOURCE_EXHAUSTED, sim_create(cluster->client, (struct sim_shape){0}, ""));
    sim_advance(3 * SECOND);
    uint32_t n;
    const struct coordinator_event *e = last_of(cluster, PROTO_EVENT_REFUSED_LIMIT, &n);
    assert_non_null(e);
    assert_int_equal(n, 20);
    SAYS(e, "1 sessions is reached: raise the coordinator's --max-sessions");
    sim_cluster_free(cluster);
}

static void a_store_that_refuses_is_an_event(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    sim_disk_fail(SIM_DISK_PATH, 1, COMMON_RESOURCE_EXHAUSTED);
    ENDS(COMMON_RESOURCE_EXHAUSTED, sim_create(cluster->client, (struct sim_shape){0}, ""));
    const struct coordinator_event *e = wait_for(cluster, PROTO_EVENT_STORE_ERROR);
    assert_int_equal(e->severity, PROTO_EVENT_ERROR);
    SAYS(e, "the disk is full");
    assert_int_equal(count_of(cluster, PROTO_EVENT_SESSION_CREATED), 0);
    sim_cluster_free(cluster);
}

// ---- who reads them ---------------------------------------------------------------------------------------

static struct { // what the last answer said
    uint64_t term, seq, lost, first, last;
    uint32_t n;
    bool more, anew;
    char kinds[PROTO_EVENTS_MAX][PROTO_EVENT_KIND];
} heard;

static void hear(struct sim_call *call, const struct proto_message *message)
{
    (void)call;
    const Banyan__Pb__EventsReply *m = (const void *)message->body;
    memset(&heard, 0, sizeof heard);
    heard.term = m->term;
    heard.seq = m->seq;
    heard.lost = m->lost;
    heard.more = m->more;
    heard.anew = m->anew;
    heard.n = (uint32_t)m->n_events;
    for (size_t i = 0; i < m->n_events; i++) {
        snprintf(heard.kinds[i], sizeof heard.kinds[i], "%s", m->events[i]->kind);
        assert_true(i == 0 || m->events[i]->seq > heard.last);
        heard.first = i ? heard.first : m->events[i]->seq;
        heard.last = m->events[i]->seq;
    }
}

static Banyan__Pb__EventsRequest asking(void)
{
    Banyan__Pb__EventsRequest m = BANYAN__PB__EVENTS_REQUEST__INIT;
    m.max = PROTO_EVENTS_MAX;
    return m;
}

static struct sim_call *ask(struct sim_client *client, const Banyan__Pb__EventsRequest *m)
{
    return sim_call_start(client, METHOD(EVENTS), &m->base, NULL, 0, hear);
}

// Behind all that there are now.
static Banyan__Pb__EventsRequest waiting(struct sim_cluster *cluster, uint64_t wait_ns)
{
    Banyan__Pb__EventsRequest m = asking();
    OK(ask(cluster->client, &m));
    m.term = heard.term;
    m.seq = heard.seq;
    m.wait_ns = wait_ns;
    return m;
}

static uint32_t readers(struct sim_cluster *cluster)
{
    return coordinator_event_readers_waiting(cluster->coordinator);
}

static void pages_follow_each_other(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2); // started, 2 joined, 2 active
    Banyan__Pb__EventsRequest m = asking();
    OK(ask(cluster->client, &m));
    assert_int_equal(heard.n, 5);
    assert_string_equal(heard.kinds[0], "coordinator-started");
    assert_int_equal(heard.seq, 5);
    assert_int_equal(heard.term, cluster->coordinator->core.term);
    assert_false(heard.more || heard.anew || heard.lost);
    m.max = 2;
    for (uint32_t page = 0; page < 3; page++) {
        OK(ask(cluster->client, &m));
        assert_int_equal(heard.n, page < 2 ? 2 : 1);
        assert_int_equal(heard.first, 2 * page + 1);
        assert_int_equal(heard.more, page < 2);
        m.term = heard.term;
        m.seq = heard.seq;
    }
    OK(ask(cluster->client, &m)); // nothing is there, and no call waits
    assert_int_equal(heard.n, 0);
    assert_int_equal(heard.seq, 5);
    sim_cluster_free(cluster);
}

static void only_what_was_asked_for_comes(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    struct sim_call *a = sim_create(cluster->client, (struct sim_shape){0}, "a");
    OK(a);
    OK(sim_create(cluster->client, (struct sim_shape){0}, "b"));
    Banyan__Pb__EventsRequest m = asking();
    char joined[] = "worker-joined", sessions[] = "session";
    char *kinds[] = {joined, sessions};
    m.kinds = kinds;
    m.n_kinds = 1;
    OK(ask(cluster->client, &m));
    assert_int_equal(heard.n, 2);
    m.n_kinds = 2; // a kind, and a group
    OK(ask(cluster->client, &m));
    assert_int_equal(heard.n, 4);
    m = asking();
    m.worker = (char *)"w1";
    OK(ask(cluster->client, &m));
    assert_int_equal(heard.n, 2);
    m = asking();
    m.session = a->session;
    OK(ask(cluster->client, &m));
    assert_int_equal(heard.n, 1);
    m.session_name = (char *)"b"; // either
    OK(ask(cluster->client, &m));
    assert_int_equal(heard.n, 2);
    m = asking();
    m.severity = (char *)"warn";
    OK(ask(cluster->client, &m));
    assert_int_equal(heard.n, 0);
    assert_int_equal(heard.seq,
                     coordinator_events_last(cluster->coordinator->core.events)); // it has looked at all
    m = asking();
    m.since_ns = common_clock_wall_ns() + SECOND;
    OK(ask(cluster->client, &m));
    assert_int_equal(heard.n, 0);
    sim_cluster_free(cluster);
}

static void wrong_questions_are_refused(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    char unknown[] = "worker-lostt";
    char *kinds[] = {unknown};
    Banyan__Pb__EventsRequest wrong[5];
    for (size_t i = 0; i < 5; i++)
        wrong[i] = asking();
    wrong[0].max = 0;
    wrong[1].max = PROTO_EVENTS_MAX + 1;
    wrong[2].severity = (char *)"debug";
    wrong[3].wait_ns = 50 * SECOND + 1;
    wrong[4].kinds = kinds;
    wrong[4].n_kinds = 1;
    for (size_t i = 0; i < 5; i++)
        ENDS(COMMON_INVALID_ARGUMENT, ask(cluster->client, &wrong[i]));
    assert_int_equal(readers(cluster), 0);
    sim_cluster_free(cluster);
}

static void a_waiting_reader_is_answered_once(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    Banyan__Pb__EventsRequest m = waiting(cluster, 9 * SECOND);
    char kind[] = "session-created";
    char *kinds[] = {kind};
    m.kinds = kinds;
    m.n_kinds = 1;
    struct sim_call *call = ask(cluster->client, &m);
    sim_run_until_idle();
    assert_int_equal(readers(cluster), 1);
    sim_worker_kill(cluster->workers[1]);
    wait_for(cluster, PROTO_EVENT_WORKER_LOST); // not what it asks for
    sim_run_until_idle();
    assert_false(call->done);
    OK(sim_create(cluster->client, (struct sim_shape){0}, "a"));
    OK(sim_create(cluster->client, (struct sim_shape){0}, "b"));
    OK(call);
    assert_int_equal(call->times, 1);
    assert_int_equal(heard.n, 1);
    assert_string_equal(heard.kinds[0], kind);
    assert_int_equal(readers(cluster), 0);
    m.term = heard.term;
    m.seq = heard.seq;
    OK(ask(cluster->client, &m)); // the second one was there: at once
    assert_int_equal(heard.n, 1);
    sim_cluster_free(cluster);
}

static void no_reader_waits_longer_than_asked(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    Banyan__Pb__EventsRequest m = waiting(cluster, SECOND);
    uint64_t from = sim_clock();
    struct sim_call *call = ask(cluster->client, &m);
    OK(call);
    assert_int_equal(heard.n, 0);
    assert_int_equal(heard.seq, m.seq);
    assert_true(sim_clock() - from >= SECOND);
    assert_int_equal(readers(cluster), 0);
    sim_client_deadline(cluster->client,
                        SECOND); // the call's own time ends first, and it is answered before that
    m.wait_ns = 20 * SECOND;
    OK(ask(cluster->client, &m));
    assert_int_equal(heard.n, 0);
    sim_cluster_free(cluster);
}

static void so_many_wait_and_no_more(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    Banyan__Pb__EventsRequest m = waiting(cluster, 9 * SECOND);
    struct sim_call *calls[COORDINATOR_EVENT_READERS_MAX];
    for (uint32_t i = 0; i < COORDINATOR_EVENT_READERS_MAX; i++)
        calls[i] = ask(cluster->client, &m);
    sim_run_until_idle();
    assert_int_equal(readers(cluster), COORDINATOR_EVENT_READERS_MAX);
    struct sim_call *more = ask(cluster->client, &m);
    ENDS(COMMON_RESOURCE_EXHAUSTED, more);
    assert_string_equal(more->reason, "LIMIT");
    m.wait_ns = 0;
    OK(ask(cluster->client, &m)); // who does not wait is answered
    OK(sim_create(cluster->client, (struct sim_shape){0}, ""));
    for (uint32_t i = 0; i < COORDINATOR_EVENT_READERS_MAX; i++) {
        OK(calls[i]);
        assert_int_equal(calls[i]->times, 1);
    }
    assert_int_equal(readers(cluster), 0);
    sim_cluster_free(cluster);
}

static void one_who_has_gone_waits_no_more(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    Banyan__Pb__EventsRequest m = waiting(cluster, 9 * SECOND);
    struct sim_client *other = sim_client_new(SIM_COORDINATOR, NULL);
    ask(other, &m);
    sim_advance(SECOND);
    assert_int_equal(readers(cluster), 1);
    sim_client_free(other);
    sim_advance(SECOND);
    assert_int_equal(readers(cluster), 0);
    sim_cluster_free(cluster);
}

static void a_coordinator_that_stops_answers_waiting_readers(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    Banyan__Pb__EventsRequest m = waiting(cluster, 9 * SECOND);
    struct sim_call *call = ask(cluster->client, &m);
    sim_run_until_idle();
    assert_int_equal(readers(cluster), 1);
    sim_coordinator_stop(cluster);
    ENDS(COMMON_UNAVAILABLE, call);
    assert_int_equal(call->times, 1);
    sim_cluster_free(cluster);
}

static void another_life_says_that_it_is_one(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    Banyan__Pb__EventsRequest m = waiting(cluster, 9 * SECOND);
    uint64_t term = m.term;
    sim_coordinator_kill(cluster);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 1));
    OK(ask(cluster->client, &m)); // at once
    assert_true(heard.anew);
    assert_true(heard.term > term);
    assert_int_equal(heard.first, 1);
    assert_int_equal(heard.lost, 0); // that cannot be said
    m.term = heard.term;
    m.seq = heard.seq;
    m.wait_ns = 0;
    OK(ask(cluster->client, &m));
    assert_false(heard.anew);
    assert_int_equal(heard.n, 0);
    sim_cluster_free(cluster);
}

static void few_events(struct coordinator_options *options)
{
    options->events = 4;
}

static void what_is_kept_no_more_is_counted(void **state)
{
    (void)state;
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 1, .tune = few_events});
    sim_cluster_start(cluster);
    Banyan__Pb__EventsRequest m = waiting(cluster, 9 * SECOND);
    for (int i = 0; i < 10; i++)
        OK(sim_create(cluster->client, (struct sim_shape){0}, ""));
    OK(ask(cluster->client, &m));
    assert_int_equal(heard.n, 4);
    assert_int_equal(heard.lost, 6);
    assert_int_equal(heard.first, m.seq + 7);
    assert_false(heard.anew);
    sim_cluster_free(cluster);
}

int hermetic_events(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_come_and_go),
        cmocka_unit_test(a_copy_that_is_tried_again_is_one),
        cmocka_unit_test(a_worker_is_drained_and_used_again),
        cmocka_unit_test(sessions_are_made_and_altered),
        cmocka_unit_test(an_idle_session_is_deleted),
        cmocka_unit_test(copies_are_lost_and_made_again),
        cmocka_unit_test(tokens_are_away_and_then_lost),
        cmocka_unit_test(a_restart_of_the_coordinator_is_no_news_of_sessions),
        cmocka_unit_test(a_balance_begins_and_ends),
        cmocka_unit_test(refusals_are_counted),
        cmocka_unit_test(a_store_that_refuses_is_an_event),
        cmocka_unit_test(pages_follow_each_other),
        cmocka_unit_test(only_what_was_asked_for_comes),
        cmocka_unit_test(wrong_questions_are_refused),
        cmocka_unit_test(a_waiting_reader_is_answered_once),
        cmocka_unit_test(no_reader_waits_longer_than_asked),
        cmocka_unit_test(so_many_wait_and_no_more),
        cmocka_unit_test(one_who_has_gone_waits_no_more),
        cmocka_unit_test(a_coordinator_that_stops_answers_waiting_readers),
        cmocka_unit_test(another_life_says_that_it_is_one),
        cmocka_unit_test(what_is_kept_no_more_is_counted),
    };
    return cmocka_run_group_tests_name("events", tests, NULL, NULL);
}
