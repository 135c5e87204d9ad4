// SPDX-License-Identifier: Apache-2.0
// What tenants, tokens and quotas cost the coordinator a step, in one thread and without a wire: who shows a
// token over nng is looked up with each message, over a stream once; then the table of accesses is asked, and
// whether the session is theirs; the step counts in flight and against a rate, and takes its turn in a frame
// among a thousand that wait. Apart from that: finding a session by its id, where the table has a hint and
// where it goes through the permutation.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/main.h"
#include "bench/report.h"
#include "common/base/clock.h"
#include "coordinator/admission.h"
#include "coordinator/session/table.h"
#include "coordinator/state.h"
#include "coordinator/steps/fair.h"
#include "coordinator/tenants/access.h"
#include "coordinator/tenants/quota.h"
#include "proto/rpc/transport.h"

#define WAITING 1000 // steps that wait for a frame

static uint64_t tokens = 1000, rounds = 1000000;
static bool json;

struct subject {
    struct coordinator c;
    struct coordinator_session session;
    char (*shown)[COORDINATOR_TOKEN_CHARS + 1];
    struct proto_request request;
    struct proto_message message;
    struct proto_identity who;
    Banyan__Pb__Header header;
    Banyan__Pb__AttendRequest attend;
    Banyan__Pb__AttendItem item, *items[1];
    struct coordinator_fair fair;
    struct common_list waiting[WAITING]; // steps
};

static struct subject *prepare(void)
{
    struct subject *s = calloc(1, sizeof *s);
    s->shown = calloc(tokens, sizeof *s->shown);
    coordinator_tenants_init(&s->c.tenants, &s->c.core);
    coordinator_quotas_init(&s->c.quotas, &s->c.tenants);
    coordinator_fair_init(&s->fair);
    for (uint32_t i = 0; i < tokens; i++) {
        struct coordinator_use *use = coordinator_use_of(&s->c.quotas, i);
        coordinator_quota_set(use, COORDINATOR_QUOTA_STEPS_PER_S, COORDINATOR_RATE_MOST, 0);
        coordinator_quota_set(use, COORDINATOR_QUOTA_STEPS_IN_FLIGHT, WAITING, 0);
    }
    for (uint64_t i = 0; i < tokens; i++) {
        struct coordinator_token_row row = {.tenant = (uint32_t)i, .access = PROTO_ACCESS_USER};
        if (!coordinator_token_make(s->shown[i], &row) || !coordinator_tokens_add(&s->c.tenants.tokens, &row))
            exit(1);
    }
    s->header = (Banyan__Pb__Header)BANYAN__PB__HEADER__INIT;
    s->attend = (Banyan__Pb__AttendRequest)BANYAN__PB__ATTEND_REQUEST__INIT;
    s->item = (Banyan__Pb__AttendItem)BANYAN__PB__ATTEND_ITEM__INIT;
    s->items[0] = &s->item;
    s->attend.n_items = 1;
    s->attend.items = s->items;
    s->header.method = BANYAN__PB__METHOD__METHOD_ATTEND;
    s->message = (struct proto_message){.header = &s->header, .body = &s->attend.base};
    s->request = (struct proto_request){.message = &s->message,
                                        .identity = &s->who,
                                        .role = BANYAN__PB__ROLE__ROLE_CLIENT};
    return s;
}

// As a step over a stream: the table, a copy of who asks, whose the session is.
static bool permit(struct subject *s)
{
    struct common_error err;
    struct proto_identity who;
    if (coordinator_access_permits(&s->request, &err) != COMMON_OK)
        return false;
    who = *proto_request_identity(&s->request);
    __asm__ volatile("" : : "r"(&who) : "memory");
    return coordinator_session_is_for(&s->session, &who);
}

// Of this thread's processor time: others may be busy beside it.
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * COMMON_NS_PER_S + (uint64_t)t.tv_nsec;
}

// As a step that is queued, sent and answered: nth of so many.
static void share(struct subject *s, uint64_t nth, uint64_t now_ns)
{
    struct proto_status status;
    struct coordinator_use *use = coordinator_use_of(&s->c.quotas, s->who.tenant);
    if (coordinator_quota_take_steps(use, 1, now_ns, &status) != COMMON_OK)
        exit(1);
    coordinator_fair_push(&s->fair, s->who.tenant, 1, &s->waiting[nth % WAITING]);
    for (struct common_list *link; nth % WAITING == WAITING - 1 && (link = coordinator_fair_next(&s->fair));)
        coordinator_fair_take(&s->fair, link, coordinator_fair_cost(1, 256, 4096));
    coordinator_quota_give(use, COORDINATOR_QUOTA_STEPS_IN_FLIGHT, 1);
}

static double measure(struct subject *s, bool look_up, bool quotas)
{
    uint64_t good = 0, began = cpu_ns();
    for (uint64_t i = 0; i < rounds; i++) {
        uint64_t nth = i * 7919 % tokens;
        if (look_up && !coordinator_admit(&s->c, s->shown[nth], COORDINATOR_TOKEN_CHARS, "bench", &s->who))
            exit(1);
        s->session.tenant = s->who.tenant;
        good += permit(s);
        if (quotas)
            share(s, i, i * 100);
    }
    uint64_t took = cpu_ns() - began;
    if (good != rounds)
        exit(1);
    return (double)took / (double)rounds;
}

// As many sessions as tokens, with ids that a key has made.
static void make_sessions(struct coordinator_sessions *sessions)
{
    sessions->ids = (struct coordinator_ids){.keyed = true, .key = {1, 2}};
    sessions->slots = calloc(tokens, sizeof(struct coordinator_session *));
    struct coordinator_session *all = calloc(tokens, sizeof *all);
    if (!sessions->slots || !all)
        exit(1);
    for (uint32_t i = 0; i < tokens; i++) {
        all[i].id = coordinator_ids_of(&sessions->ids, (struct coordinator_place){i + 7, i + 1});
        all[i].state = COORDINATOR_SESSION_ACTIVE;
        sessions->slots[sessions->n_slots++] = &all[i];
    }
}

// From an id to its session, which a step does twice.
static double find(struct coordinator_sessions *sessions, bool hints)
{
    for (uint32_t i = 0; i < COORDINATOR_HINTS; i++)
        sessions->hints[i] = UINT32_MAX;
    for (uint32_t i = 0; i < sessions->n_slots && hints; i++)
        sessions->hints[sessions->slots[i]->id % COORDINATOR_HINTS] = i;
    uint64_t good = 0, began = cpu_ns();
    for (uint64_t i = 0; i < rounds; i++) {
        const struct coordinator_session *want = sessions->slots[i * 7919 % tokens];
        good += coordinator_session_find(sessions, want->id) == want;
    }
    uint64_t took = cpu_ns() - began;
    if (good != rounds)
        exit(1);
    return (double)took / (double)rounds;
}

static bool run(void)
{
    struct subject *s = prepare();
    rounds = (rounds + WAITING - 1) / WAITING * WAITING;
    measure(s, true, true); // warm
    make_sessions(&s->c.sessions);
    const struct report_field fields[] = {
        {"tokens", NULL, (double)tokens},
        {"stream_ns", NULL, measure(s, false, false)},
        {"nng_ns", NULL, measure(s, true, false)},
        {"stream_with_quotas_ns", NULL, measure(s, false, true)},
        {"nng_with_quotas_ns", NULL, measure(s, true, true)},
        {"find_ns", NULL, find(&s->c.sessions, true)},
        {"find_by_permutation_ns", NULL, find(&s->c.sessions, false)},
        {NULL, NULL, 0},
    };
    report_line(json, fields);
    return true;
}

int main(int argc, char **argv)
{
    const struct common_option options[] = {
        {"tokens", 't', COMMON_OPTION_U64, &tokens, "N", "in the table (default 1000)", 1,
         COORDINATOR_TOKENS_MAX},
        {"rounds", 'n', COMMON_OPTION_U64, &rounds, "N", "steps (default 1000000)", 1, UINT64_C(1) << 40},
        {0},
    };
    const struct bench_program program = {
        .name = "tenant_cost",
        .about = "Measures what tenants, tokens and quotas cost the coordinator per step, in one thread, "
                 "without a network.",
        .options = options,
        .json = &json,
        .measure = run,
    };
    return bench_main(&program, argc, argv);
}
