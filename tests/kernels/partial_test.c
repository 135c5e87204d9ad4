// SPDX-License-Identifier: Apache-2.0
// The algebra of partials. The known traps of merging partial softmax results, one row each, and where they
// are tested:
//
//   1  every part empty gives (-inf) - (-inf) = NaN       trap_every_part_empty
//   2  empty part with lse 0, or output never written     trap_empty_part_never_written
//   3  +inf for an empty part                             trap_plus_inf_for_an_empty_part
//   4  finite sentinel hides logits below it              trap_logits_below_any_sentinel
//   5  log base 2 against base e                          trap_natural_base
//   6  overflow in exp(lse) or log(1 + exp d)             trap_overflow
//   7  error grows with the number of parts               trap_many_parts
//   8  causal mask by local position                      trap_interleaved_chunks_mask_by_position
//                                                         (attention_test.c)
//   9  bits depend on size or order of arrival            trap_bits_of_a_split (split_test.c); arrival over a
//                                                         network is the reduction engines' to test
//  10  a guard that hides a genuine NaN                   trap_nan_is_not_hidden; in inputs: attention_test.c
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "kernels/partial.h"
#include "tests/kernels/data.h"

#define DV 3

struct one {
    float m, s, o[DV];
};

static struct kernels_partial view(struct one *x)
{
    return (struct kernels_partial){.rows = 1, .heads = 1, .dv = DV, .m = &x->m, .s = &x->s, .o = x->o};
}

static struct one identity(void)
{
    struct one x;
    struct kernels_partial p = view(&x);
    kernels_partial_reset(&p);
    return x;
}

static struct one merged(struct one a, struct one b)
{
    struct kernels_partial pa = view(&a), pb = view(&b);
    kernels_partial_merge(&pa, &pb);
    return a;
}

static void finish(struct one x, const float *sink, float o[DV], float *lse)
{
    struct kernels_partial p = view(&x);
    kernels_partial_finish(&p, sink, o, lse);
}

static void assert_near(double got, double want, double within)
{
    if (!(fabs(got - want) <= within))
        fail_msg("got %.9g, want %.9g within %.3g", got, want, within);
}

static void identity_is_neutral(void **state)
{
    (void)state;
    struct one x = {2.5f, 3.25f, {1, -2, 0.5f}}, id = identity();
    assert_true(id.m == -INFINITY && id.s == 0 && !signbit(id.s) && id.o[0] == 0);
    struct one left = merged(id, x), right = merged(x, id);
    assert_memory_equal(&left, &x, sizeof(x));
    assert_memory_equal(&right, &x, sizeof(x));
}

static void merge_follows_the_formula(void **state)
{
    (void)state;
    struct one a = {1, 2, {1, 2, 3}}, b = {3, 1.5f, {-1, 0, 4}}, c = merged(a, b), d = merged(b, a);
    double f = exp(-2);
    assert_true(c.m == 3 && d.m == 3);
    assert_near(c.s, 2 * f + 1.5, 2e-7);
    for (int i = 0; i < DV; i++) {
        assert_near(c.o[i], a.o[i] * f + b.o[i], 5e-7);
        assert_near(d.o[i], c.o[i], 5e-7);
    }
    float o[DV], lse;
    finish(c, NULL, o, &lse);
    assert_near(lse, 3 + log(2 * f + 1.5), 5e-7);
    assert_near(o[2], (3 * f + 4) / (2 * f + 1.5), 5e-7);
}

static void trap_every_part_empty(void **state)
{
    (void)state;
    struct one x = identity();
    for (int i = 0; i < 5; i++)
        x = merged(x, identity());
    float o[DV] = {7, 7, 7}, lse;
    finish(x, NULL, o, &lse);
    assert_true(lse == -INFINITY);
    for (int i = 0; i < DV; i++)
        assert_true(o[i] == 0);
}

static void trap_empty_part_never_written(void **state)
{
    (void)state;
    struct one full = {-40, 2, {1, 2, 3}};
    struct one zero_m = {0, 0, {0, 0, 0}};                           // lse starts at 0
    struct one garbage = {-INFINITY, 0, {NAN, INFINITY, -INFINITY}}; // o never written
    struct one empties[] = {zero_m, garbage};
    for (int i = 0; i < 2; i++) {
        struct one a = merged(full, empties[i]), b = merged(empties[i], full);
        assert_memory_equal(&a, &full, sizeof(full));
        assert_memory_equal(&b, &full, sizeof(full));
        float o[DV], lse;
        finish(empties[i], NULL, o, &lse);
        assert_true(lse == -INFINITY && o[0] == 0 && o[1] == 0 && o[2] == 0);
    }
}

static void trap_plus_inf_for_an_empty_part(void **state)
{
    (void)state;
    struct one full = {4, 2, {1, 2, 3}}, marked = {INFINITY, 0, {0, 0, 0}};
    struct one a = merged(full, marked), b = merged(marked, full);
    assert_memory_equal(&a, &full, sizeof(full));
    assert_memory_equal(&b, &full, sizeof(full));
}

static void trap_logits_below_any_sentinel(void **state)
{
    (void)state;
    const float logits[] = {-6e4f, -1e6f, -3e38f};
    for (int i = 0; i < 3; i++) {
        struct one x = {logits[i], 1, {1, 2, 3}}, y = merged(merged(identity(), x), identity());
        float o[DV], lse;
        finish(y, NULL, o, &lse);
        assert_true(lse == logits[i] && o[0] == 1 && o[1] == 2 && o[2] == 3);
        y = merged(x, x);
        assert_true(y.s == 2 && y.o[1] == 4);
    }
}

static void trap_natural_base(void **state)
{
    (void)state;
    struct one x = {0, 1, {1, 0, 0}}, y = {-1, 1, {0, 1, 0}}; // logits 0 and -1
    float o[DV], lse;
    finish(merged(x, y), NULL, o, &lse);
    assert_near(lse, log(1 + exp(-1)), 1e-7);
    assert_near(o[1], 1 / (1 + exp(1)), 1e-7);
}

static void trap_overflow(void **state)
{
    (void)state;
    struct one high = {1e4f, 3, {3, 6, 9}}, low = {-1e4f, 5, {5, 5, 5}};
    float o[DV], lse;
    finish(merged(low, high), NULL, o, &lse);
    assert_near(lse, 1e4 + log(3), 1e-3);
    assert_true(o[0] == 1 && o[1] == 2 && o[2] == 3);
    struct one top = {3e38f, 1, {1, 1, 1}}, bottom = {-3e38f, 1, {2, 2, 2}};
    finish(merged(top, bottom), NULL, o, &lse);
    assert_true(lse == 3e38f && o[0] == 1);
}

// One key a part: the error must not grow as it does when partials are kept in 16 bits, or sums in a worse
// order.
static void trap_many_parts(void **state)
{
    (void)state;
    for (uint32_t parts = 16; parts <= 4096; parts *= 16) {
        struct data_random r = {parts};
        struct one sum = identity();
        double m = -INFINITY, s = 0, o[DV] = {0};
        static double xs[4096], vs[4096][DV];
        for (uint32_t j = 0; j < parts; j++) {
            struct one x = {2 * data_random_normal(&r), 1, {0, 0, 0}};
            for (int i = 0; i < DV; i++)
                vs[j][i] = x.o[i] = data_random_normal(&r);
            xs[j] = x.m;
            m = fmax(m, x.m);
            sum = merged(sum, x);
        }
        for (uint32_t j = 0; j < parts; j++) {
            s += exp(xs[j] - m);
            for (int i = 0; i < DV; i++)
                o[i] += exp(xs[j] - m) * vs[j][i];
        }
        float got[DV], lse;
        finish(sum, NULL, got, &lse);
        assert_near(lse, m + log(s), 2e-6 * fmax(1, fabs(m)));
        for (int i = 0; i < DV; i++)
            assert_near(got[i], o[i] / s, 2e-6 * fmax(fabs(o[i] / s), 3 / sqrt(parts)));
    }
}

static void trap_nan_is_not_hidden(void **state)
{
    (void)state;
    struct one good = {1, 1, {1, 1, 1}}, huge = {500, 1, {1, 1, 1}};
    struct one bad[] = {{NAN, 1, {1, 1, 1}},
                        {NAN, 0, {0, 0, 0}},
                        {1, NAN, {1, 1, 1}},
                        {1, 1, {NAN, NAN, NAN}},
                        {-INFINITY, NAN, {NAN, NAN, NAN}}};
    struct one others[] = {good, huge, identity()};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        for (size_t j = 0; j < 3; j++) {
            for (int side = 0; side < 2; side++) {
                float o[DV], lse;
                finish(side ? merged(bad[i], others[j]) : merged(others[j], bad[i]), NULL, o, &lse);
                for (int c = 0; c < DV; c++)
                    assert_true(isnan(o[c]));
                assert_true(isnan(lse) || i == 3); // a NaN in o alone leaves lse whole
            }
        }
    }
    // only the column that had it
    struct one column = {1, 1, {1, NAN, 1}};
    float o[DV], lse;
    finish(merged(good, column), NULL, o, &lse);
    assert_true(o[0] == 1 && isnan(o[1]) && o[2] == 1);
}

static void infinite_logits_are_ieee(void **state)
{
    (void)state;
    struct one inf = {INFINITY, 1, {1, 1, 1}}, good = {1, 1, {1, 1, 1}};
    float o[DV], lse;
    finish(merged(inf, inf), NULL, o, &lse); // inf - inf
    assert_true(isnan(o[0]) && isnan(lse));
    finish(merged(good, inf), NULL, o, &lse);
    assert_true(isnan(o[0]) && isnan(lse));
    // keys seen, all of them at -inf: 0/0 alone, nothing beside any mass
    struct one none = {-INFINITY, -0.0f, {0, 0, 0}};
    finish(merged(identity(), none), NULL, o, &lse);
    assert_true(isnan(o[0]) && lse == -INFINITY);
    finish(merged(none, identity()), NULL, o, &lse);
    assert_true(isnan(o[0]) && lse == -INFINITY);
    struct one a = merged(none, good), b = merged(good, none);
    assert_memory_equal(&a, &good, sizeof(good));
    assert_memory_equal(&b, &good, sizeof(good));
}

static void sinks_enter_at_the_finish(void **state)
{
    (void)state;
    struct one x = {2, 3, {3, 6, -3}};
    float o[DV], lse;
    const float sinks[] = {-1, 2, 9, 100, -INFINITY, 1002, -1000}; // far above every logit, far below
    for (size_t i = 0; i < sizeof(sinks) / sizeof(sinks[0]); i++) {
        finish(x, &sinks[i], o, &lse);
        double mass = 3 * exp(2) + exp((double)sinks[i]);
        if (sinks[i] < 50) {
            assert_near(lse, log(mass), 1e-6);
            assert_near(o[1], 6 * exp(2) / mass, 1e-6);
        } else {
            assert_true(lse == sinks[i] && o[1] < 1e-40);
        }
    }
    float sink = -3;
    finish(identity(), &sink, o, &lse);
    assert_true(lse == -3 && o[0] == 0);
    sink = NAN;
    finish(x, &sink, o, &lse);
    assert_true(isnan(o[0]) && isnan(lse));
    finish(identity(), &sink, o, &lse);
    assert_true(isnan(o[0]) && isnan(lse));
    // one per head, the same for every row
    float m[4] = {0, 0, 0, 0}, s[4] = {1, 1, 1, 1}, v[4] = {1, 1, 1, 1}, out[4], lses[4],
          per_head[2] = {0, -INFINITY};
    struct kernels_partial p = {.rows = 2, .heads = 2, .dv = 1, .m = m, .s = s, .o = v};
    kernels_partial_finish(&p, per_head, out, lses);
    assert_true(out[0] == 0.5f && out[1] == 1 && out[2] == 0.5f && out[3] == 1);
}

static void packed_layout(void **state)
{
    (void)state;
    assert_int_equal(kernels_partial_bytes(1, 1, 1), 3 * 64);
    assert_int_equal(kernels_partial_bytes(1, 32, 128), 128 + 128 + 32 * 128 * 4);
    assert_int_equal(kernels_partial_bytes(3, 7, 5), 128 + 128 + 448);
    assert_int_equal(kernels_partial_bytes(0, 1, 1), 0);
    assert_int_equal(kernels_partial_bytes(1, 0, 1), 0);
    assert_int_equal(kernels_partial_bytes(1, 1, 0), 0);
    assert_int_equal(kernels_partial_bytes(UINT32_MAX, UINT32_MAX, UINT32_MAX), 0);
    assert_int_equal(kernels_partial_bytes(UINT32_MAX, UINT32_MAX, 1), 0);
    assert_int_equal(kernels_partial_bytes(1u << 31, (1u << 30) + 1, 2), 0); // 2^64 bytes and some
    assert_true(kernels_partial_bytes(UINT32_MAX, 1, 1) >= 3 * 4 * (uint64_t)UINT32_MAX);
    struct kernels_partial p = data_partial(3, 7, 5);
    assert_ptr_equal(p.s, (char *)p.m + 128);
    assert_ptr_equal(p.o, (char *)p.s + 128);
    kernels_partial_reset(&p);
    kernels_partial_pad(p.m, 3, 7, 5);
    const unsigned char *bytes = (const unsigned char *)p.m;
    for (size_t i = 21 * 4; i < 128; i++)
        assert_true(bytes[i] == 0 && bytes[128 + i] == 0);
    for (size_t i = 105 * 4; i < 448; i++)
        assert_int_equal(bytes[256 + i], 0);
    assert_true(p.m[20] == -INFINITY && p.s[20] == 0 && p.o[104] == 0);
    data_partial_free(&p);
}

static void merge_at_touches_its_heads_alone(void **state)
{
    (void)state;
    struct kernels_partial into = data_partial(3, 4, 2), from = data_partial(2, 2, 2);
    kernels_partial_reset(&into);
    for (int i = 0; i < 4; i++) {
        from.m[i] = (float)i;
        from.s[i] = 1;
        from.o[2 * i] = (float)i;
        from.o[2 * i + 1] = (float)-i;
    }
    kernels_partial_merge_at(&into, 1, 2, &from);
    for (uint32_t r = 0; r < 3; r++) {
        for (uint32_t h = 0; h < 4; h++) {
            uint32_t i = r * 4 + h, j = (r - 1) * 2 + h - 2;
            if (r < 1 || h < 2)
                assert_true(into.m[i] == -INFINITY && into.s[i] == 0 && into.o[2 * i] == 0);
            else
                assert_true(into.m[i] == from.m[j] && into.s[i] == 1 &&
                            into.o[2 * i + 1] == from.o[2 * j + 1]);
        }
    }
    data_partial_free(&into);
    data_partial_free(&from);
}

static void coverage_distinguishes_chunks(void **state)
{
    (void)state;
    struct kernels_coverage want = {0}, got = {0}, part = {0};
    for (uint64_t id = 1; id <= 100; id++)
        kernels_coverage_count(&want, id, 256, 7);
    for (uint64_t id = 100; id > 50; id--)
        kernels_coverage_count(&got, id, 256, 7);
    for (uint64_t id = 1; id <= 50; id++)
        kernels_coverage_count(&part, id, 256, 7);
    assert_false(kernels_coverage_equal(&want, &got));
    kernels_coverage_add(&got, &part);
    assert_true(kernels_coverage_equal(&want, &got));
    assert_int_equal(got.tokens, 25600);
    // one chunk: twice in place of another, stale, cut short with the rows made up elsewhere
    struct kernels_coverage twice = {0}, stale = {0}, cut = {0};
    for (uint64_t id = 1; id <= 100; id++) {
        kernels_coverage_count(&twice, id == 9 ? 10 : id, 256, 7);
        kernels_coverage_count(&stale, id, 256, id == 9 ? 6 : 7);
        kernels_coverage_count(&cut, id, id == 9 ? 255 : id == 10 ? 257 : 256, 7);
    }
    assert_true(twice.tokens == want.tokens && !kernels_coverage_equal(&want, &twice));
    assert_true(stale.tokens == want.tokens && !kernels_coverage_equal(&want, &stale));
    assert_true(cut.tokens == want.tokens && !kernels_coverage_equal(&want, &cut));
    struct kernels_coverage before = want;
    kernels_coverage_count(&want, 77, 0, 7);
    assert_true(kernels_coverage_equal(&want, &before));
    assert_true(kernels_coverage_mix(1, 2, 3) != kernels_coverage_mix(3, 2, 1));
    assert_true(kernels_coverage_mix(0, 0, 0) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identity_is_neutral),
        cmocka_unit_test(merge_follows_the_formula),
        cmocka_unit_test(trap_every_part_empty),
        cmocka_unit_test(trap_empty_part_never_written),
        cmocka_unit_test(trap_plus_inf_for_an_empty_part),
        cmocka_unit_test(trap_logits_below_any_sentinel),
        cmocka_unit_test(trap_natural_base),
        cmocka_unit_test(trap_overflow),
        cmocka_unit_test(trap_many_parts),
        cmocka_unit_test(trap_nan_is_not_hidden),
        cmocka_unit_test(infinite_logits_are_ieee),
        cmocka_unit_test(sinks_enter_at_the_finish),
        cmocka_unit_test(packed_layout),
        cmocka_unit_test(merge_at_touches_its_heads_alone),
        cmocka_unit_test(coverage_distinguishes_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
