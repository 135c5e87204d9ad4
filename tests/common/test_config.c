// SPDX-License-Identifier: Apache-2.0
// The file of --config: its form, what wins, its mistakes, and that what is printed can be read again.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "common/cli/config.h"
#include "tests/common/scratch.h"

static struct {
    bool quiet, all;
    const char *endpoint, *form;
    uint64_t workers, memory, timeout_ns, computed;
    double scale;
} got;
static struct common_config_file file;

static const struct common_option table[] = {
    {"endpoint", 'e', COMMON_OPTION_STRING, &got.endpoint, "URL", "Where.\nDefault: the\nfirst one.", 0, 0},
    {"workers", 'n', COMMON_OPTION_U64, &got.workers, "N", "Workers. Default: 4.", 1, 64},
    {"memory", 0, COMMON_OPTION_SIZE, &got.memory, "SIZE", "Memory. Default: 1G.", 4096, 0},
    {"timeout", 't', COMMON_OPTION_DURATION, &got.timeout_ns, "TIME", "Timeout. Default: 90s.", 1000, 0},
    {"scale", 0, COMMON_OPTION_DOUBLE, &got.scale, "X", "Scale. Default: 0.", 0, 0},
    {"quiet", 'q', COMMON_OPTION_FLAG, &got.quiet, NULL, "Say less.", 0, 0},
    {"all", 'a', COMMON_OPTION_FLAG, &got.all, NULL, "All.", 0, 0},
    {"form", 0, COMMON_OPTION_STRING, &got.form, "one|two", "Form. Default: one.", 0, 0},
    {"computed", 0, COMMON_OPTION_U64, &got.computed, "N", "Computed. Default: half.", 1, 8},
    {"config", 0, COMMON_OPTION_STRING, &file.path, "FILE", "File. Default: none.", 0, 0},
    {"print-config", 0, COMMON_OPTION_FLAG, &file.print, NULL, "Print.", 0, 0},
    {0},
};
static const struct common_command command = {"banyan-test", "[options]", "Tests.", table};

static struct scratch scratch;
static struct common_error err;
static struct common_config *config;
static char path[2100];

static int setup(void **state)
{
    (void)state;
    assert_int_equal(scratch_init(&scratch), 0);
    snprintf(path, sizeof path, "%s/test.conf", scratch.dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    common_config_free(config);
    config = NULL;
    scratch_remove(&scratch);
    return 0;
}

static void write_bytes(const char *text, size_t len)
{
    FILE *to = fopen(path, "w");
    assert_non_null(to);
    assert_int_equal(fwrite(text, 1, len, to), len);
    assert_int_equal(fclose(to), 0);
}

static enum common_code parse(int n, const char *const *args)
{
    int rest;
    const char *argv[16] = {"banyan-test"};
    memcpy(argv + 1, args, (size_t)n * sizeof *args);
    memset(&got, 0, sizeof got);
    memset(&file, 0, sizeof file);
    memset(&err, 0, sizeof err);
    got.workers = 4;
    got.memory = UINT64_C(1) << 30;
    got.timeout_ns = UINT64_C(90000000000);
    got.form = "one";
    common_config_free(config);
    return common_config_read(&command, n + 1, (char **)argv, &file, &config, &rest, &err);
}
#define PARSE(...)                                                                                           \
    parse((int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), (const char *[]){__VA_ARGS__})

static enum common_code read_text(const char *text)
{
    write_bytes(text, strlen(text));
    return PARSE("--config", path);
}

static void test_every_kind(void **state)
{
    (void)state;
    assert_int_equal(read_text("# a comment\n\n  endpoint = tcp://[::1]:1=2\r\nworkers=64\n\tmemory =\t64K \n"
                               "timeout = 250us\nscale = -1.5e3\nquiet = true\nall = false\n#all = true\n"
                               "form = two"),
                     COMMON_OK);
    assert_string_equal(got.endpoint, "tcp://[::1]:1=2");
    assert_int_equal(got.workers, 64);
    assert_int_equal(got.memory, 65536);
    assert_int_equal(got.timeout_ns, 250000);
    assert_true(got.scale == -1500);
    assert_true(got.quiet && !got.all);
    assert_string_equal(got.form, "two");
    assert_string_equal(common_config_path(config), path);
}

static void test_quotes(void **state)
{
    (void)state;
    static const struct {
        const char *line, *value;
    } cases[] = {{"endpoint = \"\"", ""},           {"endpoint = \" a \"", " a "},
                 {"endpoint = \"a # b\"", "a # b"}, {"endpoint = \"\\\"\\\\\\n\"", "\"\\\\n"},
                 {"endpoint = a\"b\"", "a\"b\""},   {"endpoint = a\\b#c", "a\\b#c"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_text(cases[i].line), COMMON_OK);
        assert_string_equal(got.endpoint, cases[i].value);
    }
}

static void test_the_command_line_wins(void **state)
{
    (void)state;
    write_bytes("workers = 7\nmemory = 8K\nall = true\n", 35);
    assert_int_equal(PARSE("--workers", "9", "--config", path, "-t", "5s"), COMMON_OK);
    assert_int_equal(got.workers, 9);
    assert_int_equal(got.memory, 8192);
    assert_true(got.all);
    write_bytes("workers = 65\n", 13); // it is wrong all the same
    assert_int_equal(PARSE("--workers", "9", "--config", path), COMMON_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "test.conf:1: workers: '65' must be between 1 and 64"));
    assert_null(config);
}

static void test_mistakes(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"\n\nworker = 1\n", ":3: worker: unknown option: did you mean 'workers'?"},
        {"--memory = 4K\n", ":1: --memory: unknown option: did you mean 'memory'?"},
        {"something-else = 1\n", ":1: something-else: unknown option; try 'banyan-test --help'"},
        {"workers = 1\nquiet = true\nworkers = 1\n", ":3: workers: is already set in line 1"},
        {"workers = 65\n", ":1: workers: '65' must be between 1 and 64"},
        {"memory = 1KB\n", ":1: memory: '1KB' is not a size"},
        {"memory = 1K\n", ":1: memory: '1K' is below 4K"},
        {"timeout = 5w\n", ":1: timeout: '5w' is not a time"},
        {"timeout = 5ns\n", ":1: timeout: '5ns' is below 1us"},
        {"scale = nan\n", ":1: scale: 'nan' is not a finite number"},
        {"form = three\n", ":1: form: 'three' is not one of one, two"},
        {"quiet = yes\n", ":1: quiet: 'yes' is not true or false"},
        {"quiet\n", ":1: this line is neither"},
        {"quiet =\n", ":1: quiet: has no value"},
        {"= 1\n", ":1: : unknown option"},
        {"config = x\n", ":1: config: belongs on the command line"},
        {"print-config = true\n", ":1: print-config: belongs on the command line"},
        {"help = true\n", ":1: help: belongs on the command line"},
        {"endpoint = \"a\n", ":1: endpoint: its value begins with a quote"},
        {"endpoint = \"a\" b\n", ":1: endpoint: its value begins with a quote"},
        {"endpoint = a # b\n", ":1: endpoint: put a comment on a line of its own"},
        {"endpoint = a\033[2J\n", ":1: there is a control character"},
        {"endpoint = a\rb\n", ":1: there is a control character"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_text(cases[i].text), COMMON_INVALID_ARGUMENT);
        if (strncmp(err.message, path, strlen(path)) != 0 || !strstr(err.message, cases[i].says))
            fail_msg("'%s' gave '%s'", cases[i].text, err.message);
        assert_null(config);
    }
}

static void test_files_that_are_none(void **state)
{
    (void)state;
    char optional[3000];
    snprintf(optional, sizeof optional, "-%s", path);
    assert_int_equal(PARSE("--config", path), COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "No such file"));
    assert_int_equal(PARSE("--config", optional), COMMON_OK);
    assert_null(common_config_path(config));
    write_bytes("workers = 5\n", 12);
    assert_int_equal(PARSE("--config", optional), COMMON_OK);
    assert_int_equal(got.workers, 5);
    assert_int_equal(PARSE("--config", scratch.dir), COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "it is a folder"));
    assert_int_equal(PARSE("--config", "/dev/null"), COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "not a regular file"));
    assert_int_equal(PARSE("--config", ""), COMMON_FAILED_PRECONDITION);
    write_bytes("workers = 5\0\n", 13);
    assert_int_equal(PARSE("--config", path), COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "zero byte"));
    remove(path);
    assert_int_equal(mkfifo(path, 0600), 0); // no process writes to it: it must not be waited for
    assert_int_equal(PARSE("--config", path), COMMON_FAILED_PRECONDITION);
}

static void test_its_size_is_bounded(void **state)
{
    (void)state;
    char *text = malloc(COMMON_CONFIG_BYTES + 1);
    memset(text, '#', COMMON_CONFIG_BYTES + 1);
    memcpy(text, "workers = 5\n", 12);
    write_bytes(text, COMMON_CONFIG_BYTES);
    assert_int_equal(PARSE("--config", path), COMMON_OK);
    assert_int_equal(got.workers, 5);
    write_bytes(text, COMMON_CONFIG_BYTES + 1);
    assert_int_equal(PARSE("--config", path), COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "64 KiB"));
    free(text);
}

// Random lines are refused or taken, and break nothing (sanitizers look on).
static void test_noise(void **state)
{
    (void)state;
    static const char *const parts[] = {"workers", "=", "\"", "\\",   "#",    "\n",   " ",     "endpoint",
                                        "form",    "1", "\r", "\x01", "\xff", "true", "config"};
    uint32_t seed = 12345;
    for (int round = 0; round < 500; round++) {
        char text[400] = "";
        for (int i = 0; i < 30; i++) {
            seed = seed * 1664525u + 1013904223u;
            strcat(text, parts[(seed >> 16) % (sizeof parts / sizeof *parts)]);
        }
        enum common_code code = read_text(text);
        assert_true(code == COMMON_OK || code == COMMON_INVALID_ARGUMENT);
        assert_true((code == COMMON_OK) == (config != NULL));
    }
}

// What is printed, without its comments unless `all`.
static char *printed(bool all)
{
    char *text = NULL, *kept = calloc(1, 65536);
    size_t len;
    FILE *to = open_memstream(&text, &len);
    assert_int_equal(common_config_print(&command, &file, config, to, &err), COMMON_OK);
    fclose(to);
    for (char *line = text, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        if (all || (*line != '#' && *line != '\n'))
            strncat(kept, line, (size_t)(end - line + 1));
    }
    free(text);
    return kept;
}

static void test_printing(void **state)
{
    (void)state;
    char expected[6000];
    assert_int_equal(read_text("\nendpoint = \" x\"\nmemory = 2048M\n"), COMMON_OK);
    assert_int_equal(PARSE("--config", path, "-n5", "-q"), COMMON_OK);
    snprintf(expected, sizeof expected,
             "# %s:2\nendpoint = \" x\"\n\n# command line\nworkers = 5\n\n# %s:3\nmemory = 2G\n\n"
             "# default\n#timeout = 90s\n\n# default\n#scale = 0\n\n# command line\nquiet = true\n\n"
             "# default\n#all = false\n\n# default\n#form = one\n\n# default: half\n#computed =\n",
             path, path);
    char *text = printed(true);
    assert_non_null(strstr(text, expected));
    free(text);
    assert_int_equal(PARSE("--endpoint=a\nworkers = 9"), COMMON_OK); // cannot make a line of its own
    FILE *nowhere = fopen("/dev/null", "w");
    assert_int_equal(common_config_print(&command, &file, config, nowhere, &err), COMMON_INVALID_ARGUMENT);
    fclose(nowhere);
}

static void test_round_trip(void **state)
{
    (void)state;
    static const char *const endpoints[] = {"",   " ",       "#",       "a #b", "\"",
                                            "\\", "a\\\"b ", "tcp://x", "\t=",  "\"a\""};
    for (size_t i = 0; i < sizeof endpoints / sizeof *endpoints; i++) {
        assert_int_equal(PARSE("-e", endpoints[i], "-n5", "--memory=5000", "-t90000001ns", "--scale=0.1",
                               "-q", "--form=two"),
                         COMMON_OK);
        char *text = printed(false);
        struct common_config *before = config;
        char names[100];
        const char *const none[] = {NULL}, *const but[] = {"config", NULL};
        config = NULL;
        assert_int_equal(read_text(text), COMMON_OK);
        assert_string_equal(got.endpoint, endpoints[i]);
        assert_true(got.scale == 0.1 && got.timeout_ns == 90000001 && got.memory == 5000);
        assert_int_equal(common_config_differences(before, config, but, names, sizeof names), 0);
        assert_int_equal(common_config_differences(before, config, none, names, sizeof names), 1);
        assert_string_equal(names, "config");
        char *again = printed(false);
        assert_string_equal(text, again);
        common_config_free(before);
        free(text);
        free(again);
    }
}

static void test_differences(void **state)
{
    (void)state;
    const char *const but[] = {"workers", "config", NULL};
    char names[64], few[8];
    assert_int_equal(PARSE("-n5", "--memory=1M"), COMMON_OK);
    struct common_config *before = config;
    config = NULL;
    assert_int_equal(read_text("workers = 6\nmemory = 1024K\ncomputed = 2\nquiet = true\n"), COMMON_OK);
    assert_true(common_config_differs(before, config, "workers"));
    assert_false(common_config_differs(before, config, "memory")); // the same, in other words
    assert_int_equal(common_config_differences(before, config, but, names, sizeof names), 2);
    assert_string_equal(names, "quiet, computed");
    assert_int_equal(common_config_differences(before, config, but, few, sizeof few), 2);
    assert_string_equal(few, "quiet, ");
    common_config_free(before);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_every_kind),
        TEST(test_quotes),
        TEST(test_the_command_line_wins),
        TEST(test_mistakes),
        TEST(test_noise),
        TEST(test_files_that_are_none),
        TEST(test_its_size_is_bounded),
        TEST(test_printing),
        TEST(test_round_trip),
        TEST(test_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
