// SPDX-License-Identifier: Apache-2.0
// Parts of a row's keys, each computed by the reference alone, are put together to what the reference says of
// all of them, in any cut and order; and an answer that is off by more than is promised is called wrong.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash/hash.h"
#include "coordinator/steps/audit_sum.h"
#include "kernels/reference.h"
#include "proto/model/limits.h"

enum { KEYS = 60, DIM = 16, V_DIM = 5, PART = PROTO_AUDIT_HEAD + V_DIM };

static float k[KEYS * DIM], v[KEYS * V_DIM], q[DIM];
static const struct kernels_spec plain = {
    .kv_type = KERNELS_KV_F32, .k_dim = DIM, .v_dim = V_DIM, .q_heads = 1, .kv_heads = 1, .scale = 1};

static float number(uint64_t i)
{
    return (float)(int32_t)(common_mix64(i) >> 40) / (float)(1 << 23) - 1.0f;
}

static void fill(float size)
{
    for (uint64_t i = 0; i < KEYS * DIM; i++)
        k[i] = size * number(i);
    for (uint64_t i = 0; i < KEYS * V_DIM; i++)
        v[i] = number(i + 10000);
    for (uint64_t i = 0; i < DIM; i++)
        q[i] = number(i + 20000);
}

static void compute(const struct kernels_spec *spec, uint64_t from, uint64_t to, const float *sink, double *o,
                    struct kernels_reference_row *row)
{
    const struct kernels_run run = {
        .k = k + from * DIM, .v = v + from * V_DIM, .first = from, .rows = (uint32_t)(to - from)};
    const struct kernels_job job = {.spec = spec,
                                    .rows = 1,
                                    .q_first = KEYS - 1,
                                    .visible = KEYS,
                                    .q = q,
                                    .q_row_stride = DIM,
                                    .q_head_stride = DIM,
                                    .runs = &run,
                                    .run_count = to > from};
    kernels_reference(&job, sink, o, row);
}

static void part(const struct kernels_spec *spec, uint64_t from, uint64_t to, double *out)
{
    struct kernels_reference_row row;
    compute(spec, from, to, NULL, out + PROTO_AUDIT_HEAD, &row);
    out[0] = row.lse;
    out[1] = row.x_abs;
    out[2] = row.v_abs;
    out[3] = (double)row.keys;
}

// The error of the whole's own answer (as float32) when it is put together from `n` parts, beginning with
// number `at`.
static struct coordinator_audit_verdict judge(const struct kernels_spec *spec, uint32_t n, uint32_t at,
                                              const float *sink, float off, int32_t dim)
{
    double parts[PART], sum_o[V_DIM], whole[V_DIM];
    struct kernels_reference_row row;
    struct coordinator_audit_sum sum;
    float o[V_DIM];
    coordinator_audit_sum_init(&sum, sum_o, V_DIM);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t nth = (i + at) % n;
        part(spec, (uint64_t)KEYS * nth / n, (uint64_t)KEYS * (nth + 1) / n, parts);
        coordinator_audit_sum_add(&sum, parts, V_DIM);
    }
    compute(spec, 0, KEYS, sink, whole, &row);
    for (int d = 0; d < V_DIM; d++)
        o[d] = (float)whole[d] + (d == dim ? off : 0);
    return coordinator_audit_sum_judge(&sum, sink ? (double)*sink : -INFINITY, o,
                                       (float)row.lse + (dim < 0 ? off : 0), V_DIM);
}

static void parts_make_the_whole(void **state)
{
    (void)state;
    static const float sinks[] = {-INFINITY, -3, 0, 200};
    struct kernels_spec spec = plain;
    for (int i = 0; i < 4; i++) {
        fill(i < 2 ? 1 : 30);        // logits of some hundred: parts that weigh next to nothing
        spec.window = i % 2 ? 7 : 0; // parts that are not seen
        for (uint32_t n = 1; n <= 12; n++)
            for (uint32_t at = 0; at < n; at += 3)
                for (size_t s = 0; s < sizeof sinks / sizeof *sinks; s++) {
                    struct coordinator_audit_verdict verdict = judge(&spec, n, at, &sinks[s], 0, -1);
                    assert_true(verdict.error <= 0.2); // float32's own
                }
    }
}

static void what_is_off_is_wrong(void **state)
{
    (void)state;
    fill(1);
    for (int32_t dim = -1; dim < V_DIM; dim++) {
        assert_true(judge(&plain, 4, 0, NULL, 1e-7f, dim).error <= 1);
        struct coordinator_audit_verdict verdict = judge(&plain, 4, 0, NULL, 1e-4f, dim);
        assert_true(verdict.error > 1);
        assert_int_equal(verdict.dim, dim);
        assert_true(fabs(verdict.got - verdict.want) > 0.9e-4 && verdict.allowed < 0.5e-4);
        assert_true(judge(&plain, 4, 0, NULL, NAN, dim).error > 1);
        assert_true(judge(&plain, 4, 0, NULL, INFINITY, dim).error > 1);
    }
}

// A NaN in a key is one in the answer; keys that weigh nothing, and none at all, are as the kernels have
// them.
static void what_is_no_number(void **state)
{
    (void)state;
    double sum_o[V_DIM], numbers[PART];
    float o[V_DIM] = {0};
    struct coordinator_audit_sum sum;
    fill(1);
    k[17 * DIM] = NAN;
    assert_true(judge(&plain, 3, 1, NULL, 0, 0).error == 0);
    coordinator_audit_sum_init(&sum, sum_o, V_DIM); // nothing is seen
    part(&plain, 0, 0, numbers);
    coordinator_audit_sum_add(&sum, numbers, V_DIM);
    assert_true(coordinator_audit_sum_judge(&sum, -INFINITY, o, -INFINITY, V_DIM).error == 0);
    coordinator_audit_sum_init(&sum, sum_o, V_DIM);
    assert_true(coordinator_audit_sum_judge(&sum, 2.5, o, 2.5f, V_DIM).error == 0); // but a sink
    for (size_t i = 0; i < KEYS * DIM; i++)
        k[i] = i % DIM ? 0 : -INFINITY; // every weight is zero
    q[0] = 1;
    assert_true(judge(&plain, 3, 0, NULL, 0, 0).error == 0);
    const float sink = 1;
    assert_true(judge(&plain, 3, 0, &sink, 0, 0).error == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_make_the_whole),
        cmocka_unit_test(what_is_off_is_wrong),
        cmocka_unit_test(what_is_no_number),
    };
    return cmocka_run_group_tests_name("sums of audits", tests, NULL, NULL);
}
