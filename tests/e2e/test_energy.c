// SPDX-License-Identifier: Apache-2.0
// The theory, from outside (docs/concepts/energy.md): what the service answers over three workers is the
// gradient of F(zeta) = log sum_a exp(q.k_a + zeta.v_a), and what it calls the mass of a stretch is the
// gradient along that stretch's indicator. F is computed and differentiated here in float64; then the
// service's own lse is.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/reference.h"
#include "tests/e2e/support.h"
#include "tests/kernels/data.h"

#define WORKERS 3
#define TOKENS  200
#define CHUNK   16
#define HEADS   4 // query heads; two KV heads

static struct harness_cluster *cluster;
static banyan_client *client;

static const float sinks[HEADS] = {2, -1, 0.5f, 5};

struct energy { // of a query head over all tokens
    const struct context *c;
    const float *q;
    uint32_t head;
};

static const float *key_of(const struct energy *e, uint32_t token)
{
    const banyan_spec *s = &e->c->spec;
    uint32_t h = e->head / (s->q_heads / s->kv_heads);
    return (const float *)context_k(e->c, 0, token) + (size_t)h * s->k_dim;
}

static const float *value_of(const struct energy *e, uint32_t token)
{
    const banyan_spec *s = &e->c->spec;
    uint32_t h = e->head / (s->q_heads / s->kv_heads);
    return (const float *)context_v(e->c, 0, token) + (size_t)h * s->v_dim;
}

// F at t along column `column` of the values; with column = v_dim, along the indicator of tokens [from, to).
static double energy(const struct energy *e, uint32_t column, uint32_t from, uint32_t to, double t)
{
    const banyan_spec *s = &e->c->spec;
    double y[TOKENS], top = s->sinks ? (double)s->sinks[e->head] : -INFINITY, sum = 0;
    for (uint32_t a = 0; a < TOKENS; a++) {
        const float *k = key_of(e, a);
        y[a] = 0;
        for (uint32_t i = 0; i < s->k_dim; i++)
            y[a] += (double)e->q[e->head * s->k_dim + i] * k[i];
        y[a] = y[a] * (double)s->scale +
               t * (column < s->v_dim ? (double)value_of(e, a)[column] : a >= from && a < to);
        top = fmax(top, y[a]);
    }
    for (uint32_t a = 0; a < TOKENS; a++)
        sum += exp(y[a] - top);
    return top + log(sum + (s->sinks ? exp((double)s->sinks[e->head] - top) : 0));
}

static double slope(const struct energy *e, uint32_t column, uint32_t from, uint32_t to)
{
    const double h = 1e-3;
    return (8 * (energy(e, column, from, to, h) - energy(e, column, from, to, -h)) -
            (energy(e, column, from, to, 2 * h) - energy(e, column, from, to, -2 * h))) /
           (12 * h);
}

static banyan_session *session_of(const banyan_spec *spec, struct context *c)
{
    banyan_session *session;
    context_init(c, spec, TOKENS);
    context_random(c, 0, TOKENS, 3);
    OK(banyan_session_create(client, spec, NULL, &session, ERR));
    support_fill(session, c, 0, TOKENS);
    return session;
}

static void what_is_served_is_the_slope_of_the_energy(void **state)
{
    (void)state;
    for (int with_sinks = 0; with_sinks < 2; with_sinks++) {
        banyan_spec spec = {.layers = 1,
                            .q_heads = HEADS,
                            .kv_heads = 2,
                            .k_dim = 32,
                            .v_dim = 24,
                            .kv_type = BANYAN_F32,
                            .scale = 0.2f,
                            .sinks = with_sinks ? sinks : NULL,
                            .chunk_tokens = CHUNK,
                            .members = WORKERS};
        struct context c;
        banyan_session *session = session_of(&spec, &c);
        struct step step = {.session = session, .first = TOKENS - 1, .rows = 1, .seed = 9};
        banyan_mass mass = {.bins = 64, .per_head = true};
        banyan_item item = step_item(&step);
        item.mass = &mass;
        OK(banyan_attend(client, &item, 1, 0, NULL, ERR));
        assert_int_equal(item.code, BANYAN_OK);
        assert_int_equal(mass.n_workers, WORKERS);
        double worst_o = 0, worst_mass = 0;
        for (uint32_t h = 0; h < HEADS; h++) {
            struct energy e = {.c = &c, .q = step.made_q, .head = h};
            struct kernels_reference_row row = {.x_abs = 8};
            for (uint32_t i = 0; i < spec.v_dim; i++) {
                double off = fabs(step.o[h * spec.v_dim + i] - slope(&e, i, 0, 0)) / 5e-7;
                worst_o = fmax(worst_o, off);
            }
            for (uint32_t b = 0; b < mass.n_bins; b++) {
                uint32_t from = b * CHUNK, to = from + CHUNK < TOKENS ? from + CHUNK : TOKENS;
                double want = slope(&e, spec.v_dim, from, to);
                double off = fabs(mass.bin[h * mass.n_bins + b] - want) / (1e-6 + 1e-5 * want);
                worst_mass = fmax(worst_mass, off);
            }
            assert_true(fabs(step.lse[h] - energy(&e, 0, 0, 0, 0)) < kernels_reference_bound_lse(&row));
        }
        printf("%s: o off by %.3f, masses by %.3f of what is allowed\n", with_sinks ? "sinks" : "no sinks",
               worst_o, worst_mass);
        assert_true(worst_o < 1 && worst_mass < 1);
        banyan_mass_free(&mass);
        step_free(&step);
        support_drop(session, &c);
    }
}

// Where the values are the stretches' indicators, the output is their masses: one gradient, two names.
static void masses_are_the_output_for_indicators(void **state)
{
    (void)state;
    enum { BINS = (TOKENS + CHUNK - 1) / CHUNK };
    banyan_spec spec = {.layers = 1,
                        .q_heads = HEADS,
                        .kv_heads = 2,
                        .k_dim = 16,
                        .v_dim = BINS,
                        .kv_type = BANYAN_F32,
                        .chunk_tokens = CHUNK,
                        .members = WORKERS};
    struct context c;
    banyan_session *session;
    context_init(&c, &spec, TOKENS);
    context_random(&c, 0, TOKENS, 4);
    for (uint32_t a = 0; a < TOKENS; a++)
        for (uint32_t h = 0; h < 2; h++) {
            float v[BINS] = {0}, k[16];
            memcpy(k, (const float *)context_k(&c, 0, a) + (size_t)h * 16, sizeof k);
            v[a / CHUNK] = 1;
            context_set(&c, 0, a, h, k, v);
        }
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    support_fill(session, &c, 0, TOKENS);
    struct step step = {.session = session, .first = TOKENS - 1, .rows = 1, .seed = 2};
    banyan_mass mass = {.bins = BINS, .per_head = true};
    banyan_item item = step_item(&step);
    item.mass = &mass;
    OK(banyan_attend(client, &item, 1, 0, NULL, ERR));
    assert_int_equal(item.code, BANYAN_OK);
    for (uint32_t i = 0; i < HEADS * BINS; i++)
        assert_true(fabs(mass.bin[i] - step.o[i]) < 2e-5);
    banyan_mass_free(&mass);
    step_free(&step);
    support_drop(session, &c);
}

// F from the service itself: with keys [k, v] and a query [q, zeta] its lse is F(zeta). float32 allows coarse
// steps only, so this is the same truth at three digits.
static void the_services_own_lse_has_that_slope(void **state)
{
    (void)state;
    enum { K = 16, V = 4 };
    banyan_spec plain = {.layers = 1,
                         .q_heads = 1,
                         .kv_heads = 1,
                         .k_dim = K,
                         .v_dim = V,
                         .kv_type = BANYAN_F32,
                         .scale = 0.25f,
                         .chunk_tokens = CHUNK,
                         .members = WORKERS},
                wide = plain;
    struct context c, both;
    banyan_session *session = session_of(&plain, &c), *augmented;
    wide.k_dim = K + V;
    context_init(&both, &wide, TOKENS);
    for (uint32_t a = 0; a < TOKENS; a++) {
        float k[K + V];
        memcpy(k, context_k(&c, 0, a), K * sizeof(float));
        memcpy(k + K, context_v(&c, 0, a), V * sizeof(float));
        context_set(&both, 0, a, 0, k, context_v(&c, 0, a));
    }
    OK(banyan_session_create(client, &wide, NULL, &augmented, ERR));
    support_fill(augmented, &both, 0, TOKENS);
    struct step step = {.session = session, .first = TOKENS - 1, .rows = 1, .seed = 5};
    OK(step_run(client, &step));
    const float h = 0.125f;
    const float at[4] = {h, -h, 2 * h, -2 * h};
    for (uint32_t i = 0; i < V; i++) {
        float lse[4];
        for (int p = 0; p < 4; p++) {
            float q[K + V] = {0};
            memcpy(q, step.made_q, K * sizeof(float));
            q[K + i] = at[p] / plain.scale; // the service scales all of q·k
            struct step moved = {.session = augmented, .first = TOKENS - 1, .rows = 1, .q = q};
            OK(step_run(client, &moved));
            lse[p] = moved.lse[0];
            step_free(&moved);
        }
        double got = (8 * ((double)lse[0] - lse[1]) - ((double)lse[2] - lse[3])) / (12 * (double)h);
        if (!(fabs(got - step.o[i]) < 2e-3))
            fail_msg("o[%u] = %.6g, the slope of lse is %.6g", i, (double)step.o[i], got);
    }
    step_free(&step);
    support_drop(augmented, &both);
    support_drop(session, &c);
}

static int start(void **state)
{
    (void)state;
    cluster = support_start(&(struct harness_options){.workers = WORKERS});
    client = support_connect(cluster, "unix");
    return 0;
}

static int stop(void **state)
{
    (void)state;
    banyan_disconnect(client);
    support_stop(cluster);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_served_is_the_slope_of_the_energy),
        cmocka_unit_test(masses_are_the_output_for_indicators),
        cmocka_unit_test(the_services_own_lse_has_that_slope),
    };
    return cmocka_run_group_tests_name("energy of the service", tests, start, stop);
}
