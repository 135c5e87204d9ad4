// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/witness.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct harness_cluster *witness_cluster;
banyan_client *witness_client;
banyan_session *witness_session;
struct context witness_context;

const banyan_spec witness_spec = {.layers = WITNESS_LAYERS,
                                  .q_heads = 4,
                                  .kv_heads = 2,
                                  .k_dim = 32,
                                  .v_dim = 32,
                                  .kv_type = BANYAN_F32,
                                  .chunk_tokens = 32,
                                  .members = 2};

struct snapshot {
    uint64_t incarnation, epoch, chunks, bytes, lengths[WITNESS_LAYERS], sessions, cluster_chunks, workers;
    char members[2][72];
    struct step step;
};

static struct snapshot before;

static struct snapshot take(void)
{
    struct snapshot s;
    memset(&s, 0, sizeof(s));
    s.step = (struct step){.session = witness_session, .first = WITNESS_TOKENS - 1, .rows = 1, .seed = 5};
    banyan_session_info info;
    banyan_cluster_info all;
    OK(banyan_session_get_info(witness_session, &info, ERR));
    s.incarnation = info.incarnation;
    s.epoch = info.epoch;
    s.chunks = info.chunks;
    s.bytes = info.bytes;
    memcpy(s.lengths, info.layer_lengths, sizeof(s.lengths));
    assert_int_equal(info.n_members, 2);
    for (int i = 0; i < 2; i++)
        snprintf(s.members[i], sizeof(s.members[i]), "%s", info.members[i]);
    banyan_session_info_free(&info);
    OK(banyan_cluster_get_info(witness_client, &all, ERR));
    s.sessions = all.sessions;
    s.cluster_chunks = all.chunks;
    for (uint32_t i = 0; i < all.n_workers; i++)
        s.workers += strcmp(all.workers[i].state, "active") == 0;
    banyan_cluster_info_free(&all);
    OK(step_run(witness_client, &s.step));
    return s;
}

void witness_remember(void)
{
    step_free(&before.step);
    before = take();
}

void witness_nothing_changed(const char *after)
{
    struct snapshot now = take();
    if (!step_same_bits(&now.step, &before.step) || now.step.digest != before.step.digest)
        fail_msg("%s: the witness answers otherwise than before", after);
    step_free(&now.step);
    size_t fields = offsetof(struct snapshot, step);
    if (memcmp(&now, &before, fields) != 0)
        fail_msg("%s: something changed: epoch %" PRIu64 "/%" PRIu64 ", chunks %" PRIu64 "/%" PRIu64
                 ", sessions %" PRIu64 "/%" PRIu64 ", active workers %" PRIu64 "/%" PRIu64,
                 after, before.epoch, now.epoch, before.cluster_chunks, now.cluster_chunks, before.sessions,
                 now.sessions, before.workers, now.workers);
    assert_true(support_alive(witness_cluster));
}

static char said[128][512];
static unsigned n_said;

void witness_row(const char *input, const char *code, const char *message)
{
    printf("  %-46s %-20s %.100s\n", input, code, message);
}

static void judged(const char *input, banyan_code got, banyan_code want, const char *reason)
{
    witness_row(input, banyan_code_name(got), ERR->message);
    if (got != want)
        fail_msg("%s: %s, should be %s: %s", input, banyan_code_name(got), banyan_code_name(want),
                 got ? ERR->message : "");
    assert_int_equal(ERR->code, want);
    if (!ERR->message[0] || strpbrk(ERR->message, "\n\r"))
        fail_msg("%s: no one-line message", input);
    if (strcmp(banyan_reason_name(ERR->reason), reason ? reason : "") != 0)
        fail_msg("%s: reason '%s', should be '%s'", input, banyan_reason_name(ERR->reason),
                 reason ? reason : "");
    witness_nothing_changed(input);
}

void witness_refused(const char *input, banyan_code got, banyan_code want, const char *reason)
{
    judged(input, got, want, reason);
    for (unsigned i = 0; i < n_said; i++)
        if (strcmp(said[i], ERR->message) == 0)
            fail_msg("%s: the sentence was used for another input before: %s", input, ERR->message);
    assert_true(n_said < 128);
    snprintf(said[n_said++], sizeof(said[0]), "%s", ERR->message);
    *ERR = (banyan_error){0};
}

void witness_refused_too(const char *input, banyan_code got, banyan_code want, const char *reason)
{
    judged(input, got, want, reason);
    *ERR = (banyan_error){0};
}

int witness_start(void **state)
{
    (void)state;
    witness_cluster = support_start(&(struct harness_options){.workers = 3});
    witness_client = support_connect(witness_cluster, "nng+tcp");
    context_init(&witness_context, &witness_spec, WITNESS_ROOM);
    context_random(&witness_context, 0, WITNESS_ROOM, 1);
    OK(banyan_session_create(witness_client, &witness_spec, "witness", &witness_session, ERR));
    support_fill(witness_session, &witness_context, 0, WITNESS_TOKENS);
    before = take();
    context_check(&witness_context, 0, WITNESS_TOKENS - 1, 1, 0, before.step.made_q, before.step.o,
                  before.step.lse, NULL, "witness");
    return 0;
}

int witness_stop(void **state)
{
    (void)state;
    step_free(&before.step);
    banyan_session_close(witness_session);
    banyan_disconnect(witness_client);
    context_free(&witness_context);
    support_stop(witness_cluster);
    return 0;
}
