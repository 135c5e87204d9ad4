// SPDX-License-Identifier: Apache-2.0
// 'banyanctl session verify' on real processes: sessions that are right are called right, while they are stepped too; a
// bit that flips in the memory of one of two holders is found.
#include "tests/e2e/banyanctl.h"
#include "tests/e2e/support.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct harness_cluster *cluster;
static banyan_client *client;

static void verify(const banyan_session *session, int code, const char *says, const char *options)
{
    char line[128];
    snprintf(line, sizeof line, "session verify 0x%016" PRIx64 " %s", banyan_session_id(session), options);
    banyanctl_expect(cluster, code, says, line, NULL);
}

static void every_type_and_bend(void **state)
{
    (void)state;
    enum { LENGTH = 333 };
    static const float sinks[4] = {0.5f, -1.0f, 0, 2.0f}, alibi[4] = {0.01f, 0.02f, 0.04f, 0.08f};
    for (int i = 0; i < 10; i++) {
        banyan_spec spec = {.layers = 2,
                            .q_heads = 4,
                            .kv_heads = 2,
                            .k_dim = 40,
                            .v_dim = 24,
                            .kv_type = (banyan_kv_type)(1 + i % 5),
                            .chunk_tokens = 32,
                            .members = 3,
                            .replicas = 1 + (uint32_t)i % 3};
        spec.v_in_k = i == 5 || i == 8;
        spec.window = i == 2 || i == 6 ? 50 : 0;
        spec.forget = i == 6 ? 10 : 0;
        spec.mask_chunk = i == 3 ? 64 : 0;
        spec.not_causal = i == 4;
        spec.soft_cap = i == 7 ? 10 : 0;
        spec.sinks = i == 1 || i == 7 ? sinks : NULL;
        spec.alibi = i == 1 || i == 9 ? alibi : NULL;
        struct context c;
        banyan_session *session;
        context_init(&c, &spec, LENGTH);
        context_random(&c, 0, LENGTH, (uint64_t)i + 1);
        OK(banyan_session_create(client, &spec, NULL, &session, ERR));
        verify(session, 9, "nothing to verify", "");
        for (uint64_t at = 0; at < LENGTH; at += 111)
            support_fill(session, &c, at, 111);
        verify(session, 0, "all 2 layers are right", i % 2 ? "--rows 5" : "--rows 1 --threads 1");
        support_drop(session, &c);
    }
}

static void layers_that_differ(void **state)
{
    (void)state;
    enum { LENGTH = 100 };
    const banyan_kind kinds[] = {
        {.q_heads = 4, .kv_heads = 2, .k_dim = 32, .v_dim = 16, .window = 50},
        {.q_heads = 4, .kv_heads = 1, .k_dim = 32, .v_dim = 24, .v_in_k = true},
    };
    const uint32_t layer_kind[] = {0, BANYAN_LAYER_LOCAL, 0, 1};
    const uint32_t shares[] = {BANYAN_SHARES_NONE, BANYAN_SHARES_NONE, 0, BANYAN_SHARES_NONE};
    const banyan_spec spec = {.layers = 4,
                              .kv_type = BANYAN_F32,
                              .n_kinds = 2,
                              .kinds = kinds,
                              .layer_kind = layer_kind,
                              .shares = shares};
    static float rows[LENGTH * 64];
    banyan_session *session;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        rows[i] = (float)((i * 7919) % 1000) / 500.0f - 1.0f;
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    for (uint32_t l = 0; l < 4; l += 3) {
        OK(banyan_attach(session, l, 0, LENGTH, rows, l ? NULL : rows + 64, ERR));
        OK(banyan_commit(session, l, 0, LENGTH, ERR));
    }
    verify(session, 0, "all 3 layers are right", "");
    verify(session, 0, "all 1 layers are right", "--layer 2 --seed 7");
    verify(session, 4, "layer 1 holds nothing", "--layer 1");
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
}

// ---- while it is stepped ----------------------------------------------------------------------------------

enum { ATTACHED = 300, ROOM = 3000 };
static const banyan_spec doubled = {.layers = 2,
                                    .q_heads = 4,
                                    .kv_heads = 2,
                                    .k_dim = 32,
                                    .v_dim = 32,
                                    .kv_type = BANYAN_F32,
                                    .chunk_tokens = 32,
                                    .members = 3,
                                    .replicas = 2};

struct stepper {
    banyan_session *session;
    struct context context;
    atomic_bool stop;
    uint64_t length;
};

static void *step_on(void *arg)
{
    struct stepper *s = arg;
    for (s->length = ATTACHED; !atomic_load(&s->stop) && s->length < ROOM; s->length++)
        for (uint32_t l = 0; l < 2; l++) {
            struct step step = {
                .session = s->session, .layer = l, .first = s->length, .rows = 1, .seed = s->length};
            step_append(&step, &s->context);
            OK(step_run(client, &step));
            context_check(&s->context, l, s->length, 1, 0, step.made_q, step.o, step.lse, NULL, "step");
            step_free(&step);
        }
    return NULL;
}

static void while_it_is_stepped(void **state)
{
    (void)state;
    struct stepper s = {.length = 0};
    pthread_t thread;
    context_init(&s.context, &doubled, ROOM);
    context_random(&s.context, 0, ROOM, 5);
    OK(banyan_session_create(client, &doubled, NULL, &s.session, ERR));
    support_fill(s.session, &s.context, 0, ATTACHED);
    assert_int_equal(pthread_create(&thread, NULL, step_on, &s), 0);
    for (int i = 0; i < 3; i++)
        verify(s.session, 0, "all 2 layers are right", "--rows 3");
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    assert_true(s.length > ATTACHED);
    support_drop(s.session, &s.context);
}

// ---- a bit flips ------------------------------------------------------------------------------------------

// Flips a bit of the bytes where they lie in a process's memory, everywhere. Returns how often; −1: the system does not
// let a test do that.
static int flip_in_memory(int pid, const void *bytes, size_t len)
{
    enum { PIECE = 1 << 20 };
    const unsigned long most = 1ul << 32; // a mapping that is larger is a sanitizer's
    char path[64], line[512];
    int flipped = 0;
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int memory = open(path, O_RDWR | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "re");
    uint8_t *piece = malloc(PIECE);
    while (memory >= 0 && maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char mode[8];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, mode) != 3 || strncmp(mode, "rw", 2) != 0 ||
            to - from > most)
            continue;
        for (unsigned long at = from; at < to; at += PIECE - len) {
            ssize_t n = pread(memory, piece, to - at < PIECE ? to - at : PIECE, (off_t)at);
            uint8_t *hit = n > 0 ? memmem(piece, (size_t)n, bytes, len) : NULL;
            if (!hit)
                continue;
            uint8_t other = *hit ^ 0x20;
            if (pwrite(memory, &other, 1, (off_t)(at + (unsigned long)(hit - piece))) == 1)
                flipped++;
        }
    }
    free(piece);
    if (maps)
        fclose(maps);
    if (memory >= 0)
        close(memory);
    return memory < 0 || !maps ? -1 : flipped;
}

static void a_flipped_bit_is_found(void **state)
{
    (void)state;
    enum { LENGTH = 200, AT = 77 };
    struct context c;
    banyan_session *session;
    context_init(&c, &doubled, LENGTH);
    context_random(&c, 0, LENGTH, 6);
    OK(banyan_session_create(client, &doubled, NULL, &session, ERR));
    support_fill(session, &c, 0, LENGTH);
    verify(session, 0, "all 2 layers are right", "");
    int flipped = 0; // in the memory of one holder
    for (uint32_t w = 0; w < 3 && flipped == 0; w++)
        flipped = flip_in_memory(harness_cluster_pid(cluster, w), context_v(&c, 1, AT), 32 * sizeof(float));
    if (flipped < 0) {
        support_drop(session, &c);
        skip();
    }
    assert_true(flipped > 0);
    char says[64];
    snprintf(says, sizeof says, "layer 1: the holders of token %d have different bytes", AT);
    verify(session, 10, says, "");
    verify(session, 10, "1 of 2 layers are wrong", "");
    verify(session, 0, "all 1 layers are right", "--layer 0");
    char line[128];
    snprintf(line, sizeof line, "session verify 0x%016" PRIx64 " -o json", banyan_session_id(session));
    struct harness_output out = banyanctl_run(cluster, line, NULL);
    json_t *json = json_loads(out.out, 0, NULL);
    assert_int_equal(out.exit_code, 10);
    assert_int_equal(json_integer_value(json_object_get(json, "wrong")), 1);
    json_t *layer = json_array_get(json_object_get(json, "layers"), 1);
    assert_true(json_is_true(json_object_get(layer, "copies_differ")));
    assert_int_equal(json_integer_value(json_object_get(layer, "copies")), 2);
    json_decref(json);
    harness_output_free(&out);
    support_drop(session, &c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_bend),
        cmocka_unit_test(layers_that_differ),
        cmocka_unit_test(while_it_is_stepped),
        cmocka_unit_test(a_flipped_bit_is_found),
    };
    cluster = support_start(&(struct harness_options){.workers = 3, .memory = "64M"});
    client = support_connect(cluster, "tcp");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    banyan_disconnect(client);
    support_stop(cluster);
    return failed;
}
