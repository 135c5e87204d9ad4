// SPDX-License-Identifier: Apache-2.0
// Every daemon in turn is killed, or stopped and continued, while clients append, attach, read and truncate:
//   e2e_chaos [--seconds N]      10 by default; the long test runs 600
// Each client has sessions of its own and knows what was acknowledged to it. What must hold:
//   - an answer is the reference's over exactly those rows;
//   - what was acknowledged is there, unless a worker that held some of the session was killed: then it is all there,
//     or DATA_LOSS, and after a truncate to 0 the session goes on;
//   - errors are of the codes that pass, and DATA_LOSS;
//   - when all daemons are left alone, every session answers within a minute.
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"

enum { WORKERS = 3, CLIENTS = 3, SESSIONS = 2, ROOM = 400, BLOCK = 40, AGAIN = 20 };

static const banyan_spec spec = {.layers = 1,
                                 .q_heads = 4,
                                 .kv_heads = 2,
                                 .k_dim = 32,
                                 .v_dim = 32,
                                 .kv_type = BANYAN_F32,
                                 .chunk_tokens = 32,
                                 .members = 2};

static struct harness_cluster *cluster;
static uint64_t seconds = 10;
static atomic_bool over;
static atomic_uint kills; // of workers, twice: before and after. What they held is gone

struct held {
    banyan_session *session;
    struct context context;
    uint64_t length;  // acknowledged
    uint64_t written; // and what may be there beyond that
    unsigned kills;   // when it was empty
    bool must_empty;  // a truncate to 0 has had no verdict, or data is lost
};

struct worker_of_load {
    pthread_t thread;
    banyan_client *client;
    struct held held[SESSIONS];
    uint64_t seed, steps, appends, attaches, truncates, refused, losses;
    char wrong[600]; // the first thing that must not be
};

static uint64_t draw(struct worker_of_load *w, uint64_t n)
{
    w->seed += UINT64_C(0x9e3779b97f4a7c15);
    return common_mix64(w->seed) % n;
}

static void is_wrong(struct worker_of_load *w, const char *what, banyan_code code)
{
    if (!w->wrong[0])
        snprintf(w->wrong, sizeof(w->wrong), "%s: %s: %s", what, banyan_code_name(code), ERR->message);
}

static bool passes(banyan_code code)
{
    return code == BANYAN_UNAVAILABLE || code == BANYAN_DEADLINE_EXCEEDED || code == BANYAN_ABORTED ||
           code == BANYAN_RESOURCE_EXHAUSTED || code == BANYAN_CANCELLED;
}

// False: not OK, and why that may be is noted.
static bool took(struct worker_of_load *w, struct held *h, const char *what, banyan_code code)
{
    if (code == BANYAN_OK)
        return true;
    w->refused++;
    if (code == BANYAN_DATA_LOSS && atomic_load(&kills) != h->kills) {
        w->losses += h->length;
        h->must_empty = true;
    } else if (!passes(code) && !(code == BANYAN_OUT_OF_RANGE && atomic_load(&kills) != h->kills)) {
        is_wrong(w, what, code);
    } else if (code == BANYAN_OUT_OF_RANGE) {
        h->must_empty = true;
    }
    return false;
}

static banyan_code step_at(struct worker_of_load *w, struct held *h, uint64_t first, bool append)
{
    struct step step = {.session = h->session,
                        .first = first,
                        .rows = 1,
                        .seed = first,
                        .timeout_ns = (1 + draw(w, 10)) * COMMON_NS_PER_S};
    if (append) {
        step.k = context_k(&h->context, 0, first);
        step.v = context_v(&h->context, 0, first);
    }
    banyan_code code = step_run(w->client, &step);
    if (code == BANYAN_OK && !context_agrees(&h->context, 0, first, 1, 0, step.made_q, step.o, step.lse,
                                             ERR->message, sizeof(ERR->message)))
        is_wrong(w, "a wrong answer", code);
    step_free(&step);
    return code;
}

static void act_append(struct worker_of_load *w, struct held *h)
{
    h->written = h->written > h->length + 1 ? h->written : h->length + 1;
    if (took(w, h, "append", step_at(w, h, h->length, true))) {
        h->length++;
        w->appends++;
    }
}

// Rows that were put and not committed go with their holder, also when that was only taken for lost. The service says which
// (nothing else may be missing), and putting them again is the remedy.
static bool went_with_their_holder(banyan_code code, uint64_t first, uint64_t count)
{
    if (code != BANYAN_FAILED_PRECONDITION || strcmp(ERR->reason, "HOLE") != 0 || ERR->n_ranges == 0)
        return false;
    for (uint32_t i = 0; i < ERR->n_ranges; i++)
        if (ERR->ranges[i].first < first || ERR->ranges[i].count > first + count - ERR->ranges[i].first)
            return false;
    return true;
}

static void act_attach(struct worker_of_load *w, struct held *h)
{
    uint64_t count = 1 + draw(w, BLOCK), first = h->length;
    if (first + count > ROOM)
        return;
    h->written = h->written > first + count ? h->written : first + count;
    for (int i = 0;; i++) {
        if (!took(w, h, "attach",
                  banyan_attach(h->session, 0, first, count, context_k(&h->context, 0, first),
                                context_v(&h->context, 0, first), ERR)))
            return;
        banyan_code code = banyan_commit(h->session, 0, first, count, ERR);
        if (i < AGAIN && went_with_their_holder(code, first, count)) {
            w->refused++;
        } else {
            if (took(w, h, "commit", code)) {
                h->length += count;
                w->attaches++;
            }
            return;
        }
    }
}

static void act_truncate(struct worker_of_load *w, struct held *h, uint64_t length)
{
    unsigned before = atomic_load(&kills);
    banyan_code code = banyan_session_truncate(h->session, length, ERR);
    if (took(w, h, "truncate", code)) {
        h->length = h->written = length;
        if (!length) {
            h->kills = before;
            h->must_empty = false;
        }
        w->truncates++;
    } else {
        h->must_empty = true; // it has happened, or not
    }
}

static void act(struct worker_of_load *w, struct held *h)
{
    if (h->must_empty || h->length + BLOCK >= ROOM)
        act_truncate(w, h, 0);
    else if (draw(w, 40) == 0)
        act_truncate(w, h, draw(w, h->length + 1));
    else if (draw(w, 8) == 0)
        act_attach(w, h);
    else if (draw(w, 2) == 0 || !h->length)
        act_append(w, h);
    else if (took(w, h, "read", step_at(w, h, draw(w, h->length), false)))
        w->steps++;
}

static void *load_main(void *arg)
{
    struct worker_of_load *w = arg;
    while (!atomic_load(&over) && !w->wrong[0])
        act(w, &w->held[draw(w, SESSIONS)]);
    return NULL;
}

// ---- the faults ------------------------------------------------------------------------------------------

static void disturb(uint64_t *seed, uint32_t turn)
{
    uint32_t who = turn % (WORKERS + 1) == WORKERS ? HARNESS_COORDINATOR : turn % (WORKERS + 1);
    *seed += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t dice = common_mix64(*seed);
    bool coordinator = who == HARNESS_COORDINATOR;
    if (coordinator ? dice % 2 == 0 : dice % 4 == 0) {
        if (!coordinator)
            atomic_fetch_add(&kills, 1);
        harness_cluster_signal(cluster, who, SIGKILL);
        if (!coordinator) // whoever looked between the count and the kill sees a difference, too
            atomic_fetch_add(&kills, 1);
        support_sleep_ms((unsigned)(dice >> 8 & 255));
        assert_true(harness_cluster_restart(cluster, who));
    } else {
        harness_cluster_signal(cluster, who, SIGSTOP);
        support_sleep_ms((unsigned)(dice >> 8 & 2047));
        harness_cluster_signal(cluster, who, SIGCONT);
    }
    support_sleep_ms(100 + (unsigned)(dice >> 24 & 1023));
}

// ---- the end ---------------------------------------------------------------------------------------------

static void settle(struct worker_of_load *w, struct held *h)
{
    if (h->must_empty || h->kills != atomic_load(&kills)) {
        if (!h->must_empty && h->length) { // all of it, or DATA_LOSS
            banyan_code code = BANYAN_UNAVAILABLE;
            EVENTUALLY(60, passes(code = step_at(w, h, h->length - 1, false)) == false);
            if (code != BANYAN_OK && code != BANYAN_DATA_LOSS && code != BANYAN_OUT_OF_RANGE)
                is_wrong(w, "at the end", code);
        }
        EVENTUALLY(60, banyan_session_truncate(h->session, 0, ERR) == BANYAN_OK);
        h->length = 0;
    }
    if (h->length)
        EVENTUALLY(60, step_at(w, h, h->length - 1, false) == BANYAN_OK);
    EVENTUALLY(60, step_at(w, h, h->length, true) == BANYAN_OK);
}

static void daemons_come_and_go(void **state)
{
    (void)state;
    static const char *const beats[] = {"--heartbeat", "500ms", NULL};
    static struct worker_of_load load[CLIENTS];
    uint64_t seed = common_clock_wall_ns();
    print_message("seed %" PRIu64 ", %" PRIu64 " s\n", seed, seconds);
    cluster = support_start(&(struct harness_options){.workers = WORKERS, .coordinator_args = beats});
    harness_cluster_allow_error(cluster, ""); // what daemons say of each other's deaths
    for (uint64_t i = 0; i < CLIENTS; i++) {
        load[i].seed = seed + i * 1000003;
        load[i].client = support_connect(cluster, i ? "tcp" : "unix");
        for (int k = 0; k < SESSIONS; k++) {
            struct held *h = &load[i].held[k];
            context_init(&h->context, &spec, ROOM);
            context_random(&h->context, 0, ROOM, i * SESSIONS + (uint64_t)k);
            OK(banyan_session_create(load[i].client, &spec, NULL, &h->session, ERR));
        }
        assert_int_equal(pthread_create(&load[i].thread, NULL, load_main, &load[i]), 0);
    }
    uint64_t until = common_clock_ns() + seconds * COMMON_NS_PER_S;
    for (uint32_t turn = 0; common_clock_ns() < until; turn++)
        disturb(&seed, turn);
    atomic_store(&over, true);
    for (int i = 0; i < CLIENTS; i++) {
        struct worker_of_load *w = &load[i];
        pthread_join(w->thread, NULL);
        for (int k = 0; k < SESSIONS && !w->wrong[0]; k++)
            settle(w, &w->held[k]);
        print_message("client %d: %" PRIu64 " reads, %" PRIu64 " appends, %" PRIu64 " attaches, %" PRIu64
                      " truncates; %" PRIu64 " refused, %" PRIu64 " tokens lost with %u killed workers\n",
                      i, w->steps, w->appends, w->attaches, w->truncates, w->refused, w->losses,
                      atomic_load(&kills) / 2);
        if (w->wrong[0])
            fail_msg("client %d: %s", i, w->wrong);
        for (int k = 0; k < SESSIONS; k++)
            support_drop(w->held[k].session, &w->held[k].context);
        banyan_disconnect(w->client);
    }
    support_stop(cluster);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--seconds"))
        seconds = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(daemons_come_and_go)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
