// SPDX-License-Identifier: Apache-2.0
#include "tests/client/ctl_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"

#define ARGS_MAX 32

struct harness_cluster *ctl_cluster;
struct harness_output ctl_out;
const banyan_spec ctl_spec = {
    .layers = 2, .q_heads = 4, .kv_heads = 2, .k_dim = 8, .v_dim = 12, .kv_type = BANYAN_F16};

int ctl_clean_up(void **state)
{
    (void)state;
    harness_output_free(&ctl_out);
    return 0;
}

// Uses BANYAN_ENDPOINT and BANYAN_TOKEN_FILE.
static int ctl_run(const char *line, const char *word)
{
    char program[4096], copy[2048], endpoint[512], token[512];
    char *argv[ARGS_MAX] = {program};
    char *env[] = {endpoint, token, NULL};
    size_t n = 1;
    assert_true(harness_program_path("banyanctl", program, sizeof program));
    snprintf(copy, sizeof copy, "%s", line);
    snprintf(endpoint, sizeof endpoint, "BANYAN_ENDPOINT=%s", harness_cluster_endpoint(ctl_cluster, "unix"));
    snprintf(token, sizeof token, "BANYAN_TOKEN_FILE=%s", harness_cluster_token_file(ctl_cluster));
    for (char *save, *part = strtok_r(copy, " ", &save); part; part = strtok_r(NULL, " ", &save)) {
        assert_true(n < ARGS_MAX - 1);
        argv[n++] = strcmp(part, "%s") == 0 ? (char *)word : part;
    }
    harness_output_free(&ctl_out);
    assert_true(harness_run(argv, env, 120 * COMMON_NS_PER_S, &ctl_out));
    return ctl_out.exit_code;
}

void ctl_expect(int code, const char *line, const char *word)
{
    if (ctl_run(line, word) != code)
        fail_msg("banyanctl %s: exit code %d, expected %d; it said: %s%s", line, ctl_out.exit_code, code,
                 ctl_out.out, ctl_out.err);
    if (code != 0)
        assert_true(strncmp(ctl_out.err, "banyanctl: ", 11) == 0);
    if (strstr(ctl_out.out, "\033[") || strstr(ctl_out.err, "\033["))
        fail_msg("banyanctl %s: colours without a terminal", line);
}

void ctl_said(const char *text)
{
    if (!strstr(ctl_out.out, text))
        fail_msg("'%s' is not in the output:\n%s", text, ctl_out.out);
}

void ctl_complained(const char *text)
{
    if (!strstr(ctl_out.err, text))
        fail_msg("'%s' is not in what was said on stderr:\n%s", text, ctl_out.err);
}

json_t *ctl_parse(void)
{
    json_error_t error;
    json_t *json = json_loads(ctl_out.out, 0, &error);
    if (!json)
        fail_msg("not JSON: %s\n%s", error.text, ctl_out.out);
    return json;
}

json_int_t ctl_number(const json_t *json, const char *key)
{
    assert_true(json_is_integer(json_object_get(json, key)));
    return json_integer_value(json_object_get(json, key));
}

const char *ctl_path(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", harness_cluster_dir(ctl_cluster), name);
    return path;
}

void ctl_write(const char *name, const char *text)
{
    FILE *file = fopen(ctl_path(name), "we");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

int ctl_start(void **state)
{
    (void)state;
    ctl_cluster =
        harness_cluster_start(&(struct harness_options){.workers = 2, .token = "a-token-for-tests"});
    return ctl_cluster ? 0 : -1;
}

int ctl_stop(void **state)
{
    (void)state;
    int problems = harness_cluster_stop(ctl_cluster);
    ctl_cluster = NULL;
    return problems;
}
