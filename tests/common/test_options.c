// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/cli/options.h"

static struct {
    bool quiet, json;
    const char *endpoint, *form, *node;
    uint64_t workers, memory, timeout_ns;
    double scale;
} got;

static const struct common_option table[] = {
    {"endpoint", 'e', COMMON_OPTION_STRING, &got.endpoint, "URL", "Where the coordinator is.\nDefault: none.",
     0, 0},
    {"workers", 'n', COMMON_OPTION_U64, &got.workers, "N", "Workers (default 4).", 1, 64},
    {"memory", 0, COMMON_OPTION_SIZE, &got.memory, "BYTES", "Memory (default 1G).", 4096, 0},
    {"timeout", 't', COMMON_OPTION_DURATION, &got.timeout_ns, "TIME", "Timeout (default 5s).", 0, 0},
    {"scale", 0, COMMON_OPTION_DOUBLE, &got.scale, "X", "Scale.", 0, 0},
    {"quiet", 'q', COMMON_OPTION_FLAG, &got.quiet, NULL, "Say less.", 0, 0},
    {"form", 0, COMMON_OPTION_STRING, &got.form, "one|two", "Form.", 0, 0},
    {"numa", 0, COMMON_OPTION_STRING, &got.node, "any|N", "Node.", 0, 0},
    {"an-option-with-a-very-long-name", 'j', COMMON_OPTION_FLAG, &got.json, NULL, "One line each.", 0, 0},
    {0},
};

static const struct common_command command = {"banyan-test", "[options] FILE ...", "Tests options.", table};

static int rest;
static struct common_error err;

static enum common_code parse(int n, const char *const *args)
{
    const char *argv[16] = {"banyan-test"};
    memcpy(argv + 1, args, (size_t)n * sizeof *args);
    memset(&got, 0, sizeof got);
    memset(&err, 0, sizeof err);
    rest = -1;
    return common_options_parse(&command, n + 1, (char **)argv, &rest, &err);
}

#define PARSE(...)                                                                                           \
    parse((int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), (const char *[]){__VA_ARGS__})

static void test_every_type(void **state)
{
    (void)state;
    assert_int_equal(PARSE("--endpoint=tcp://[::1]:1=2", "--workers", "64", "--memory=64K", "--timeout",
                           "250us", "--scale=-1.5e3", "--quiet"),
                     COMMON_OK);
    assert_string_equal(got.endpoint, "tcp://[::1]:1=2");
    assert_int_equal(got.workers, 64);
    assert_int_equal(got.memory, 65536);
    assert_int_equal(got.timeout_ns, 250000);
    assert_true(got.scale == -1500);
    assert_true(got.quiet && !got.json);
    assert_int_equal(rest, 9);
}

static void test_letters(void **state)
{
    (void)state;
    assert_int_equal(PARSE("-qjn7", "-e", "x", "-t2m"), COMMON_OK);
    assert_true(got.quiet && got.json);
    assert_int_equal(got.workers, 7);
    assert_string_equal(got.endpoint, "x");
    assert_true(got.timeout_ns == UINT64_C(120000000000));
    assert_int_equal(PARSE("-e", "-q"), COMMON_OK); // a value is taken as it stands
    assert_string_equal(got.endpoint, "-q");
    assert_false(got.quiet);
    assert_int_equal(PARSE("-q", "-n=7"), COMMON_INVALID_ARGUMENT);
}

static void test_rest(void **state)
{
    (void)state;
    assert_int_equal(PARSE("-q", "status", "--workers=bad"), COMMON_OK); // the command reads its own
    assert_int_equal(rest, 2);
    assert_int_equal(PARSE("-q", "--", "--workers=bad"), COMMON_OK);
    assert_int_equal(rest, 3);
    assert_int_equal(PARSE("-q", "-", "x"), COMMON_OK); // standard input
    assert_int_equal(rest, 2);
    assert_int_equal(PARSE("--"), COMMON_OK);
    assert_int_equal(rest, 2);
    const char *argv[] = {"banyan-test", NULL};
    assert_int_equal(common_options_parse(&command, 1, (char **)argv, &rest, NULL), COMMON_OK);
    assert_int_equal(rest, 1);
}

static void test_words(void **state)
{
    (void)state;
    assert_int_equal(PARSE("--form", "two", "--numa=any"), COMMON_OK);
    assert_string_equal(got.form, "two");
    assert_int_equal(PARSE("--form=one", "--numa=17"),
                     COMMON_OK); // what is in capitals stands for anything
    assert_string_equal(got.node, "17");
    static const char *const wrong[] = {"three", "on", "ones", "", "one|two", "ONE"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(PARSE("--form", wrong[i]), COMMON_INVALID_ARGUMENT);
        assert_null(got.form);
        assert_non_null(strstr(err.message, "is not one of one, two; try 'banyan-test --help'"));
    }
}

static void test_the_last_one_wins(void **state)
{
    (void)state;
    assert_int_equal(PARSE("--workers=1", "-n2", "--workers", "3"), COMMON_OK);
    assert_int_equal(got.workers, 3);
}

static void test_mistakes(void **state)
{
    (void)state;
    static const struct {
        const char *arg, *names, *says;
    } cases[] = {
        {"--nope", "--nope", "unknown"},
        {"--nope=1", "--nope", "unknown"},
        {"--worker=1", "--worker", "unknown"}, // no guessing
        {"--workersx=1", "--workersx", "unknown"},
        {"--=1", "--", "unknown"},
        {"--help=1", "--help", "unknown"},
        {"-x", "-x", "unknown"},
        {"-qx", "-x", "unknown"},
        {"--workers", "--workers", "needs a value"},
        {"-n", "-n", "needs a value"},
        {"--quiet=yes", "--quiet", "takes no value"},
        {"--workers=", "--workers", "whole number"},
        {"--workers=0", "--workers", "between 1 and 64"},
        {"--workers=65", "--workers", "between 1 and 64"},
        {"--workers=-1", "--workers", "whole number"},
        {"--workers=+1", "--workers", "whole number"},
        {"--workers= 1", "--workers", "whole number"},
        {"--workers=1 ", "--workers", "whole number"},
        {"--workers=0x10", "--workers", "whole number"},
        {"--workers=1.5", "--workers", "whole number"},
        {"--workers=18446744073709551617", "--workers", "whole number"},
        {"-n65", "-n", "between 1 and 64"},
        {"--memory=4095", "--memory", "below 4K"},
        {"--memory=1X", "--memory", "size"},
        {"--memory=1KB", "--memory", "size"},
        {"--memory=K", "--memory", "size"},
        {"--memory=16777216T", "--memory", "size"}, // 2^64
        {"--timeout=5 s", "--timeout", "time"},
        {"--timeout=5w", "--timeout", "time"},
        {"--timeout=-5s", "--timeout", "time"},
        {"--timeout=5124096h", "--timeout", "time"}, // wraps
        {"--scale=nan", "--scale", "finite"},
        {"--scale=inf", "--scale", "finite"},
        {"--scale=1e999", "--scale", "finite"},
        {"--scale=", "--scale", "finite"},
        {"--scale=1,5", "--scale", "finite"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(PARSE(cases[i].arg), COMMON_INVALID_ARGUMENT);
        assert_int_equal(err.code, COMMON_INVALID_ARGUMENT);
        char start[64];
        snprintf(start, sizeof start, "%s: ", cases[i].names);
        if (strncmp(err.message, start, strlen(start)) != 0 || !strstr(err.message, cases[i].says))
            fail_msg("'%s' gave '%s'", cases[i].arg, err.message);
        static const char end[] = "try 'banyan-test --help'";
        assert_string_equal(err.message + strlen(err.message) - strlen(end), end);
        assert_int_equal(rest, -1);
    }
    char longest[3000] = "--workers=";
    memset(longest + 10, '9', sizeof longest - 11);
    assert_int_equal(PARSE(longest), COMMON_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "try 'banyan-test --help'"));
    memset(longest + 2, 'w', sizeof longest - 3);
    assert_int_equal(PARSE(longest), COMMON_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "try 'banyan-test --help'"));
}

// What PARSE prints on stdout.
static const char *printed(const char *arg, enum common_code expected)
{
    static char text[4096];
    FILE *file = tmpfile();
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    enum common_code code = PARSE(arg);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    assert_int_equal(code, expected);
    return text;
}

static void test_help(void **state)
{
    (void)state;
    static const char expected[] = "Usage: banyan-test [options] FILE ...\n"
                                   "\n"
                                   "Tests options.\n"
                                   "\n"
                                   "Options:\n"
                                   "  -e, --endpoint=URL  Where the coordinator is.\n"
                                   "                      Default: none.\n"
                                   "  -n, --workers=N     Workers (default 4).\n"
                                   "      --memory=BYTES  Memory (default 1G).\n"
                                   "  -t, --timeout=TIME  Timeout (default 5s).\n"
                                   "      --scale=X       Scale.\n"
                                   "  -q, --quiet         Say less.\n"
                                   "      --form=one|two  Form.\n"
                                   "      --numa=any|N    Node.\n"
                                   "  -j, --an-option-with-a-very-long-name\n"
                                   "                      One line each.\n"
                                   "  -h, --help          Print this help and exit.\n"
                                   "      --version       Print the version and exit.\n";
    assert_string_equal(printed("--help", COMMON_CANCELLED), expected);
    assert_string_equal(printed("-h", COMMON_CANCELLED), expected);
    assert_string_equal(printed("-qh", COMMON_CANCELLED), expected);
}

static void test_version(void **state)
{
    (void)state;
    assert_string_equal(printed("--version", COMMON_CANCELLED), "banyan-test " BANYAN_VERSION "\n");
}

static void test_parse_functions(void **state)
{
    (void)state;
    uint64_t v = 0;
    assert_int_equal(common_parse_u64("18446744073709551615", &v), COMMON_OK);
    assert_true(v == UINT64_MAX);
    assert_int_equal(common_parse_u64("18446744073709551616", &v), COMMON_INVALID_ARGUMENT);
    assert_true(v == UINT64_MAX); // untouched
    assert_int_equal(common_parse_u64("007", &v), COMMON_OK);
    assert_int_equal(v, 7);
    assert_int_equal(common_parse_u64("1K", &v), COMMON_INVALID_ARGUMENT);
    static const struct {
        const char *text;
        uint64_t value;
    } sizes[] = {{"0", 0},
                 {"4096", 4096},
                 {"16M", UINT64_C(16) << 20},
                 {"2G", UINT64_C(2) << 30},
                 {"1T", UINT64_C(1) << 40},
                 {"16777215T", UINT64_C(16777215) << 40}},
      times[] = {{"0", 0},
                 {"7ns", 7},
                 {"250us", 250000},
                 {"10ms", 10000000},
                 {"5s", UINT64_C(5000000000)},
                 {"5", UINT64_C(5000000000)},
                 {"2m", UINT64_C(120000000000)},
                 {"1h", UINT64_C(3600000000000)}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(common_parse_size(sizes[i].text, &v), COMMON_OK);
        assert_true(v == sizes[i].value);
    }
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        assert_int_equal(common_parse_duration(times[i].text, &v), COMMON_OK);
        assert_true(v == times[i].value);
    }
}

static void test_format_functions(void **state)
{
    (void)state;
    char buf[32];
    static const struct {
        uint64_t value;
        const char *bytes, *ns;
    } cases[] = {
        {0, "0 B", "0 ns"},
        {999, "999 B", "999 ns"},
        {1023, "1023 B", "1.0 us"},
        {1024, "1.0 KiB", "1.0 us"},
        {12345678, "11.8 MiB", "12.3 ms"},
        {UINT64_C(1610612736), "1.5 GiB", "1.6 s"},
        {1048575, "1.0 MiB", "1.0 ms"}, // 1024.0 KiB is no answer
        {999999, "976.6 KiB", "1.0 ms"},
        {UINT64_C(90) * 1000000000, "83.8 GiB", "90.0 s"},
        {UINT64_C(600) * 1000000000, "558.8 GiB", "10.0 min"},
        {UINT64_C(7200) * 1000000000, "6.5 TiB", "2.0 h"},
        {UINT64_MAX, "16.0 EiB", "5124095.6 h"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_string_equal(common_format_bytes(cases[i].value, buf, sizeof buf), cases[i].bytes);
        assert_string_equal(common_format_ns(cases[i].value, buf, sizeof buf), cases[i].ns);
    }
    assert_string_equal(common_format_bytes(1048576, buf, 4), "1.0"); // cut, never overrun
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type),
        cmocka_unit_test(test_letters),
        cmocka_unit_test(test_rest),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_the_last_one_wins),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_parse_functions),
        cmocka_unit_test(test_format_functions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
