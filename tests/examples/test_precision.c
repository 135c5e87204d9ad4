// SPDX-License-Identifier: Apache-2.0
// precision: its tables hold for the shipped model what the types promise, and it refuses what it cannot do.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/harness/process.h"

#define LAYERS 5 // of the shipped model

static struct harness_output precision(const char *tokens, const char *skip, const char *text)
{
    static char program[4096], model[4096], path[4096];
    struct harness_output out;
    assert_true(harness_program_path("precision", program, sizeof(program)));
    snprintf(model, sizeof(model), "%s/examples/model", getenv("BANYAN_SOURCE_DIR"));
    snprintf(path, sizeof(path), "%s/%s", getenv("BANYAN_SOURCE_DIR"), text);
    char *const argv[] = {program,        "--model", model,        "--text",    path, "--tokens",
                          (char *)tokens, "--skip",  (char *)skip, "--threads", "2",  NULL};
    assert_true(harness_run(argv, NULL, 100 * COMMON_NS_PER_S, &out));
    return out;
}

static const char *line_of(const struct harness_output *out, const char *begin)
{
    const char *line = strstr(out->out, begin);
    if (!line)
        fail_msg("no line '%s' in:\n%s%s", begin, out->out, out->err);
    return line + strlen(begin);
}

static void tables(void **state)
{
    (void)state;
    // Unit roundoff of f16 and bf16; half a step of int8 and fp8 against the largest of a row
    static const double most[4] = {0x1p-11, 0x1p-8, 0.05, 0x1p-4};
    struct harness_output out = precision("300", "4272279", "examples/text/kjv.txt");
    assert_int_equal(out.exit_code, 0);
    for (int part = 0; part < 3; part++)
        for (int l = 0; l < LAYERS; l++) {
            char begin[32];
            double e[4], worst[4];
            snprintf(begin, sizeof(begin), "| %c | %d |", "KVo"[part], l);
            assert_int_equal(sscanf(line_of(&out, begin), " %lf (%lf) | %lf (%lf) | %lf (%lf) | %lf (%lf) |",
                                    &e[0], &worst[0], &e[1], &worst[1], &e[2], &worst[2], &e[3], &worst[3]),
                             8);
            for (int t = 0; t < 4; t++) {
                assert_true(e[t] > 0 && e[t] <= worst[t]);
                assert_true(part == 2 || e[t] <= most[t]);
                assert_true(t == 0 || e[t] > e[t - 1]); // each of them keeps fewer digits than the one before
            }
        }
    static const char *const names[] = {"f32", "f16", "bf16", "int8", "fp8"};
    static const int bytes[] = {1024, 512, 512, 272, 272};
    double exact_bits = 0;
    for (int t = 0; t < 5; t++) {
        char begin[16];
        int size;
        double rms, largest, agree, right, bits;
        snprintf(begin, sizeof(begin), "\n| %s |", names[t]);
        assert_int_equal(sscanf(line_of(&out, begin), " %d | %lf | %lf | %lf %% | %lf %% | %lf |", &size,
                                &rms, &largest, &agree, &right, &bits),
                         6);
        assert_int_equal(size, bytes[t]);
        if (t == 0) {
            assert_true(rms == 0 && largest == 0 && agree == 100);
            assert_true(bits > 1 && bits < 2.5); // it was trained for this text's kind
            exact_bits = bits;
        } else {
            assert_true(rms > 0 && rms <= largest && agree > 90);
            assert_true(bits > exact_bits - 0.05 && bits < exact_bits + 0.05);
        }
    }
    harness_output_free(&out);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *tokens, *skip, *text, *says;
        int code;
    } cases[] = {{"300", "0", "nowhere", "cannot read", 1},
                 {"300", "99999999", "examples/text/kjv.txt", "ends before", 1},
                 {"70000", "0", "examples/text/kjv.txt", "positions", 1},
                 {"1", "0", "examples/text/kjv.txt", "--tokens", 2}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct harness_output out = precision(cases[i].tokens, cases[i].skip, cases[i].text);
        assert_int_equal(out.exit_code, cases[i].code);
        if (!strstr(out.err, cases[i].says))
            fail_msg("'%s' does not say '%s'", out.err, cases[i].says);
        assert_int_equal(out.out_len, 0);
        harness_output_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tables), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
