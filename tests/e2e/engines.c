// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/engines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/harness/process.h"

#define LONG_NS (UINT64_C(100) * COMMON_NS_PER_S) // who fails at once fails before

static const banyan_spec spread = {.layers = 2,
                                   .q_heads = 8,
                                   .kv_heads = 2,
                                   .k_dim = 64,
                                   .v_dim = 64,
                                   .kv_type = BANYAN_BF16,
                                   .chunk_tokens = 32};

void held_make(banyan_client *client, struct held *h, uint32_t members, uint64_t tokens)
{
    banyan_spec spec = spread;
    spec.members = members;
    context_init(&h->context, &spec, tokens + 64);
    context_random(&h->context, 0, tokens + 64, tokens + members);
    OK(banyan_session_create(client, &spec, NULL, &h->session, ERR));
    support_fill(h->session, &h->context, 0, tokens);
}

banyan_code held_step(banyan_client *client, const struct held *h, uint64_t first, uint32_t rows,
                      uint64_t timeout_ns)
{
    struct step step = {
        .session = h->session, .first = first, .rows = rows, .seed = first, .timeout_ns = timeout_ns};
    banyan_code code = step_run(client, &step);
    if (code == BANYAN_OK)
        context_check(&h->context, 0, first, rows, 0, step.made_q, step.o, step.lse, NULL, "step");
    step_free(&step);
    return code;
}

void held_exercise(banyan_client *client, struct held *h, uint64_t tokens)
{
    struct worst worst = {0};
    support_check_step(client, h->session, &h->context, 0, tokens - 1, 1, 0, &worst, "the last row");
    support_check_step(client, h->session, &h->context, 1, 0, (uint32_t)tokens, 0, &worst, "all rows");
    for (uint64_t at = tokens; at < tokens + 8; at++)
        for (uint32_t layer = 0; layer < spread.layers; layer++) {
            struct step step = {.session = h->session, .layer = layer, .first = at, .rows = 1, .seed = at};
            step_append(&step, &h->context);
            OK(step_run(client, &step));
            context_check(&h->context, layer, at, 1, 0, step.made_q, step.o, step.lse, &worst, "appended");
            step_free(&step);
        }
    printf("largest error %.3f of the bound (o), %.3f (lse)\n", worst.o, worst.lse);
}

void held_same_bits(banyan_client *client, const struct held *h, const struct step *kept, int times)
{
    for (int i = 0; i < times; i++) {
        struct step again = {
            .session = h->session, .first = kept->first, .rows = kept->rows, .seed = kept->seed};
        OK(step_run(client, &again));
        assert_true(step_same_bits(kept, &again));
        assert_int_equal(kept->digest, again.digest);
        step_free(&again);
    }
}

bool engine_is(banyan_session *session, const char *engine)
{
    banyan_plan_info plan;
    OK(banyan_session_get_plan(session, &plan, ERR));
    bool is = strcmp(plan.engine, engine) == 0;
    banyan_plan_info_free(&plan);
    return is;
}

bool has_member(banyan_session *session, const char *name)
{
    banyan_session_info info;
    bool has = false;
    OK(banyan_session_get_info(session, &info, ERR));
    for (uint32_t i = 0; i < info.n_members; i++)
        has |= strcmp(info.members[i], name) == 0;
    banyan_session_info_free(&info);
    return has;
}

uint32_t no_member(struct harness_cluster *cluster, banyan_session *session)
{
    uint32_t worker = 0;
    while (has_member(session, harness_cluster_worker_name(cluster, worker)))
        worker++;
    return worker;
}

// ---- steps without a pause ----------------------------------------------------------------------

void *stepper_run(void *stepper)
{
    struct stepper *s = stepper;
    while (!s->stop && s->failed == BANYAN_OK) {
        banyan_code code = held_step(s->client, s->held, 199, 1, LONG_NS);
        if (code != BANYAN_OK)
            snprintf(s->text, sizeof s->text, "%s", support_error.message);
        s->failed = code;
        s->done++;
    }
    return NULL;
}

void stepper_await(struct stepper *s, unsigned more)
{
    unsigned target = s->done + more;
    EVENTUALLY(60, s->done >= target || s->failed != BANYAN_OK);
    if (s->failed != BANYAN_OK)
        fail_msg("a step failed: %s", s->text);
}

// ---- processes ----------------------------------------------------------------------------------

// User and system time of a process, in ticks.
static unsigned long long ticks_of(int pid)
{
    char path[64], text[1024] = "";
    unsigned long long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    const char *after = strrchr(text, ')');
    assert_non_null(after);
    assert_int_equal(
        sscanf(after + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system), 2);
    return user + system;
}

void workers_are_idle(const struct harness_cluster *cluster, uint32_t workers)
{
    unsigned long long before[HARNESS_WORKERS_MAX];
    support_sleep_ms(100);
    for (uint32_t i = 0; i < workers; i++)
        before[i] = ticks_of(harness_cluster_pid(cluster, i));
    uint64_t started = support_now_ns();
    support_sleep_ms(1000);
    unsigned long long ticks =
        (unsigned long long)sysconf(_SC_CLK_TCK) * (support_now_ns() - started) / COMMON_NS_PER_S;
    for (uint32_t i = 0; i < workers; i++) {
        unsigned long long used = ticks_of(harness_cluster_pid(cluster, i)) - before[i];
        if (used > ticks / 10)
            fail_msg("worker %u used %llu ticks of %llu", i, used, ticks);
    }
}

void worker_refuses(const char *const *arguments, int code, const char *says)
{
    char program[4096];
    char *argv[24] = {program, (char *)"--coordinator", (char *)"tcp://127.0.0.1:1"};
    size_t n = 3;
    struct harness_output output;
    assert_true(harness_program_path("banyan-worker", program, sizeof program));
    for (; *arguments; arguments++)
        argv[n++] = (char *)*arguments;
    assert_true(harness_run(argv, NULL, LONG_NS, &output));
    if (output.exit_code != code || !strstr(output.err, says))
        fail_msg("code %d, and not '%s': %s", output.exit_code, says, output.err);
    harness_output_free(&output);
}
