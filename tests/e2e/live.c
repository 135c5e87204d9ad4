// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/live.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"

#define LONG_NS (UINT64_C(300) * COMMON_NS_PER_S) // no test is to fail for want of speed

bool live_step(struct live *l, bool append)
{
    char why[400];
    uint64_t first = append ? l->length : l->length * 2 / 3;
    struct step step = {
        .session = l->session, .first = first, .rows = 1, .seed = first, .timeout_ns = LONG_NS};
    if (append)
        step_append(&step, &l->context);
    uint64_t before = support_now_ns();
    banyan_code code = step_run(l->client, &step);
    uint64_t took = support_now_ns() - before;
    if (took > atomic_load(&l->longest_ns))
        atomic_store(&l->longest_ns, took);
    if (code != BANYAN_OK)
        snprintf(l->wrong, sizeof l->wrong, "a step failed: %s: %.400s", banyan_code_name(code),
                 ERR->message);
    else if (!context_agrees(&l->context, 0, first, 1, 0, step.made_q, step.o, step.lse, why, sizeof why))
        snprintf(l->wrong, sizeof l->wrong, "a wrong answer: %s", why);
    else if (append && step.length != ++l->length)
        snprintf(l->wrong, sizeof l->wrong, "the length is %" PRIu64 " instead of %" PRIu64, step.length,
                 l->length);
    step_free(&step);
    return !l->wrong[0];
}

static void *stepping(void *arg)
{
    struct live *l = arg;
    while (!atomic_load(&l->over)) {
        uint64_t n = atomic_fetch_add(&l->steps, 1);
        if (!live_step(l, n % 3 != 2 && l->length < l->room))
            break;
        support_sleep_ms(1);
    }
    return NULL;
}

void live_start(struct live *l, const struct harness_cluster *cluster, const banyan_spec *spec,
                uint64_t attached, uint64_t room)
{
    *l = (struct live){.client = support_connect(cluster, "nng+tcp"), .length = attached, .room = room};
    context_init(&l->context, spec, room + 1);
    context_random(&l->context, 0, room + 1, spec->replicas);
    OK(banyan_session_create(l->client, spec, NULL, &l->session, ERR));
    support_fill(l->session, &l->context, 0, attached);
    if (pthread_create(&l->thread, NULL, stepping, l) != 0)
        fail_msg("no thread");
}

// Some steps from now on. Nothing was wrong.
void live_goes_on(struct live *l)
{
    uint64_t from = atomic_load(&l->steps);
    EVENTUALLY(60, l->wrong[0] || atomic_load(&l->steps) >= from + 30);
    if (l->wrong[0])
        fail_msg("%s", l->wrong);
}

void live_pause(struct live *l, const char *what)
{
    printf("longest step %s: %.1f ms\n", what, (double)atomic_exchange(&l->longest_ns, 0) / 1e6);
    fflush(stdout);
}

void live_stop(struct live *l)
{
    banyan_session_info info;
    live_goes_on(l);
    atomic_store(&l->over, true);
    pthread_join(l->thread, NULL);
    if (l->wrong[0])
        fail_msg("%s", l->wrong);
    OK(banyan_session_get_info(l->session, &info, ERR));
    assert_int_equal(info.length, l->length);
    banyan_session_info_free(&info);
    support_check_step(l->client, l->session, &l->context, 0, l->length - 1, 1, 0, NULL, "the last row");
    support_drop(l->session, &l->context);
    banyan_disconnect(l->client);
}

banyan_worker_info live_worker_info(banyan_client *client, const char *name)
{
    banyan_cluster_info info;
    banyan_worker_info found = {0};
    OK(banyan_cluster_get_info(client, &info, ERR));
    for (uint32_t i = 0; i < info.n_workers; i++)
        if (strcmp(info.workers[i].name, name) == 0)
            found = info.workers[i];
    banyan_cluster_info_free(&info);
    assert_string_equal(found.name, name);
    return found;
}
