// SPDX-License-Identifier: Apache-2.0
// The shipped model over a real cluster against the same model in one process with float64 attention: token
// for token. And the record, its check, and what the command line refuses.
#include "tests/e2e/support.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/harness/process.h"

#define PROMPT   "600"
#define GENERATE "40"
#define ARGS_MAX 40

static struct harness_cluster *cluster;
static char program[4096], model[4096], text[4096];

// generate --model … --threads 2 MORE…; the arguments end with NULL.
static struct harness_output generate(const char *const *more)
{
    const char *argv[ARGS_MAX] = {program, "--no-color", "--threads", "2"};
    size_t n = 4;
    struct harness_output out;
    for (; *more; more++) {
        assert_true(n < ARGS_MAX - 1);
        argv[n++] = *more;
    }
    assert_true(harness_run((char *const *)(uintptr_t)argv, NULL, 280 * COMMON_NS_PER_S, &out));
    return out;
}

#define RUN(...) generate((const char *const[]){"--model", model, __VA_ARGS__, NULL})

static void expect(struct harness_output *out, int code, const char *says)
{
    if (out->exit_code != code)
        fail_msg("exit code %d, should be %d:\n%s%s", out->exit_code, code, out->out, out->err);
    if (says && !strstr(out->err, says))
        fail_msg("should say '%s':\n%s", says, out->err);
    harness_output_free(out);
}

static char *in_dir(const char *name, char path[512])
{
    snprintf(path, 512, "%s/%s", harness_cluster_dir(cluster), name);
    return path;
}

struct tokens {
    uint64_t prompt, n;
    uint32_t *ids;
};

// The head of a record (examples/generate_check.c): magic, vocab, kv_type, prompt_tokens, n_tokens, n_rows,
// seed, temperature, top_p; then the tokens.
static struct tokens tokens_of(const char *path)
{
    struct {
        char magic[8];
        uint32_t vocab, kv_type;
        uint64_t prompt_tokens, n_tokens, n_rows, seed;
        double temperature, top_p;
    } head;
    struct tokens t;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(&head, sizeof(head), 1, file), 1);
    assert_memory_equal(head.magic, "BNYNREC1", 8);
    assert_true(head.n_tokens < 100000);
    t.prompt = head.prompt_tokens;
    t.n = head.n_tokens;
    t.ids = calloc(t.n, sizeof(*t.ids));
    assert_non_null(t.ids);
    assert_int_equal(fread(t.ids, sizeof(*t.ids), t.n, file), t.n);
    fclose(file);
    return t;
}

static void same_tokens(const char *a, const char *b)
{
    struct tokens x = tokens_of(a), y = tokens_of(b);
    assert_int_equal(x.prompt, atoi(PROMPT));
    assert_int_equal(x.n, atoi(PROMPT) + atoi(GENERATE));
    assert_int_equal(y.n, x.n);
    for (uint64_t i = 0; i < x.n; i++)
        if (x.ids[i] != y.ids[i])
            fail_msg("token %d: %u from the cluster, %u from the reference", (int)i, x.ids[i], y.ids[i]);
    free(x.ids);
    free(y.ids);
}

static json_t *numbers(const char *path)
{
    json_error_t error;
    json_t *object = json_load_file(path, 0, &error);
    if (!object)
        fail_msg("%s: %s", path, error.text);
    return object;
}

static void greedy_token_for_token(void **state)
{
    (void)state;
    char a[512], b[512], json[512];
    in_dir("greedy.cluster", a);
    in_dir("greedy.local", b);
    in_dir("greedy.json", json);
    struct harness_output out =
        RUN("--endpoint", harness_cluster_endpoint(cluster, "nng+tcp"), "--prompt-file", text, "--tokens",
            PROMPT, "--generate", GENERATE, "--record", a, "--json", json, "--block", "100");
    expect(&out, 0, NULL);
    out = RUN("--local", "--prompt-file", text, "--tokens", PROMPT, "--generate", GENERATE, "--record", b);
    expect(&out, 0, NULL);
    same_tokens(a, b);
    out = RUN("--check", a, "--json", json);
    expect(&out, 0, NULL);
    json_t *object = numbers(json);
    assert_int_equal(json_integer_value(json_object_get(object, "workers")), 3);
    assert_int_equal(json_integer_value(json_object_get(object, "prompt_tokens")), atoi(PROMPT));
    assert_int_equal(json_integer_value(json_object_get(object, "generated_tokens")), atoi(GENERATE));
    assert_true(json_is_true(json_object_get(object, "tokens_agree")));
    double diff = json_number_value(json_object_get(object, "max_abs_diff"));
    printf("largest difference of a logit: %.3g\n", diff);
    assert_true(json_is_number(json_object_get(object, "max_abs_diff")) && diff < 1e-3);
    static const char *const rates[] = {"tokens_per_s", "step_p50_us", "step_p99_us"};
    for (int i = 0; i < 3; i++)
        assert_true(json_number_value(json_object_get(object, rates[i])) > 0);
    json_decref(object);
}

static void sampled_token_for_token(void **state)
{
    (void)state;
    char a[512], b[512], other[512];
    in_dir("top-p.cluster", a);
    in_dir("top-p.local", b);
    in_dir("top-p.other", other);
#define SAMPLE                                                                                               \
    "--temperature", "0.9", "--top-p", "0.85", "--prompt-file", text, "--tokens", PROMPT, "--generate",      \
        GENERATE
    struct harness_output out = RUN("--endpoint", harness_cluster_endpoint(cluster, "unix"), SAMPLE, "--seed",
                                    "7", "--record", a, "--members", "2");
    expect(&out, 0, NULL);
    out = RUN("--local", SAMPLE, "--seed", "7", "--record", b);
    expect(&out, 0, NULL);
    same_tokens(a, b);
    out = RUN("--check", a);
    expect(&out, 0, NULL);
    out = RUN("--local", SAMPLE, "--seed", "8", "--record", other); // the seed decides
    expect(&out, 0, NULL);
    struct tokens x = tokens_of(b), y = tokens_of(other);
    assert_true(x.n == y.n && memcmp(x.ids, y.ids, x.n * sizeof(*x.ids)) != 0);
    free(x.ids);
    free(y.ids);
}

// The check reads the same rounded or quantised KV, so it judges these runs too; near ties may fall
// otherwise, logits may not.
static void rounded_kv(void **state)
{
    (void)state;
    static const char *const types[] = {"bf16", "f16", "int8", "fp8"};
    for (size_t t = 0; t < sizeof(types) / sizeof(*types); t++) {
        char a[512], json[512];
        in_dir(types[t], a);
        in_dir("rounded.json", json);
        struct harness_output out =
            RUN("--endpoint", harness_cluster_endpoint(cluster, "tcp"), "--prompt-file", text, "--tokens",
                "300", "--generate", "10", "--kv", types[t], "--record", a, "--json", json);
        expect(&out, 0, NULL);
        out = RUN("--check", a, "--json", json);
        assert_true(out.exit_code == 0 || out.exit_code == 1);
        harness_output_free(&out);
        json_t *object = numbers(json);
        double diff = json_number_value(json_object_get(object, "max_abs_diff"));
        printf("%s: largest difference of a logit: %.3g\n", types[t], diff);
        assert_true(json_is_number(json_object_get(object, "max_abs_diff")) && diff < 0.25);
        json_decref(object);
    }
}

static void full_check_and_kept_session(void **state)
{
    (void)state;
    char a[512], json[512];
    in_dir("full", a);
    in_dir("full.json", json);
    struct harness_output out =
        RUN("--endpoint", harness_cluster_endpoint(cluster, "nng+tcp"), "--prompt-file", text, "--tokens",
            "200", "--generate", "5", "--full-check", "--ask", "John 3:16 ", "--record", a, "--json", json,
            "--keep-session", "--session", "kept");
    expect(&out, 0, NULL);
    out = RUN("--check", a, "--json", json);
    expect(&out, 0, NULL);
    json_t *object = numbers(json);
    assert_int_equal(json_integer_value(json_object_get(object, "prompt_tokens")), 200);
    assert_int_equal(json_integer_value(json_object_get(object, "rows_compared")), 205);
    json_decref(object);
    banyan_client *client = support_connect(cluster, "nng+tcp");
    banyan_session *session;
    banyan_session_info info;
    banyan_session_list list;
    OK(banyan_session_open(client, 0, "kept", &session, ERR));
    OK(banyan_session_get_info(session, &info, ERR));
    assert_int_equal(info.length, 205);
    banyan_session_info_free(&info);
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    OK(banyan_session_get_list(client, &list, ERR)); // the other runs have left nothing
    assert_int_equal(list.n, 0);
    banyan_session_list_free(&list);
    banyan_disconnect(client);
}

// A check that cannot fail would be worth nothing.
static void the_check_finds_a_wrong_token(void **state)
{
    (void)state;
    char a[512], bad[512];
    in_dir("greedy.cluster", a);
    in_dir("bad", bad);
    FILE *in = fopen(a, "rb");
    assert_non_null(in);
    static uint8_t bytes[4 << 20];
    size_t n = fread(bytes, 1, sizeof(bytes), in);
    fclose(in);
    assert_true(n > 64 + 640 * 4 && n < sizeof(bytes));
    for (int way = 0; way < 4; way++) {
        size_t len = way == 1 ? n - 100 : n;
        uint8_t *at = bytes + (way == 0   ? 64 + 620 * 4
                               : way == 2 ? 3
                                          : 24),
                kept[8]; // a token, the magic, n_tokens
        memcpy(kept, at, 8);
        if (way == 0)
            at[0] ^= 1;
        else if (way > 1)
            memset(at, 0xff, 8);
        FILE *out = fopen(bad, "wb");
        assert_non_null(out);
        assert_int_equal(fwrite(bytes, 1, len, out), len);
        fclose(out);
        memcpy(at, kept, 8);
        struct harness_output run = RUN("--check", bad);
        expect(&run, 1, way == 0 ? "differ from the reference" : "not a complete record");
    }
    struct harness_output run = RUN("--check", "/nonexistent/record");
    expect(&run, 1, "cannot read");
}

static void wrong_command_lines(void **state)
{
    (void)state;
    struct harness_output out = generate((const char *const[]){"--prompt-file", text, NULL});
    expect(&out, 2, "--model");
    out = RUN("--tokens", "5");
    expect(&out, 2, "--prompt-file");
    out = RUN("--prompt-file", text, "--tokens", "0");
    expect(&out, 2, "tokens");
    out = RUN("--prompt-file", text, "--tokens", "many");
    expect(&out, 2, "tokens");
    out = RUN("--prompt-file", text, "--top-p", "0");
    expect(&out, 2, "--top-p");
    out = RUN("--prompt-file", text, "--temperature", "nan");
    expect(&out, 2, "temperature");
    out = RUN("--prompt-file", text, "--kv", "int3");
    expect(&out, 2, "--kv");
    out = RUN("--prompt-file", text, "--nonsense");
    expect(&out, 2, "nonsense");
    out = RUN("--prompt-file", text, "surplus");
    expect(&out, 2, "options only");
    out = RUN("--help");
    assert_non_null(strstr(out.out, "--prompt-file"));
    expect(&out, 0, NULL);
    out = RUN("--prompt-file", "/nonexistent/prompt");
    expect(&out, 1, "/nonexistent/prompt");
    out = RUN("--prompt-file", text, "--local", "--tokens", "65536", "--generate", "1");
    expect(&out, 1, "positions");
    out = RUN("--prompt-file", text, "--tokens", "20", "--endpoint", "gopher://127.0.0.1:1");
    expect(&out, 1, "gopher");
    out = generate((const char *const[]){"--model", "/nonexistent", "--prompt-file", text, NULL});
    expect(&out, 1, "config.json");
}

static int start(void **state)
{
    (void)state;
    const char *source = getenv("BANYAN_SOURCE_DIR");
    if (!source)
        source = ".";
    snprintf(model, sizeof(model), "%s/examples/model", source);
    snprintf(text, sizeof(text), "%s/examples/text/kjv.txt", source);
    assert_true(harness_program_path("generate", program, sizeof(program)));
    cluster = support_start(&(struct harness_options){.workers = 3});
    return 0;
}

static int stop(void **state)
{
    (void)state;
    support_stop(cluster);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_token_for_token),
        cmocka_unit_test(sampled_token_for_token),
        cmocka_unit_test(rounded_kv),
        cmocka_unit_test(full_check_and_kept_session),
        cmocka_unit_test(the_check_finds_a_wrong_token),
        cmocka_unit_test(wrong_command_lines),
    };
    return cmocka_run_group_tests_name("generate", tests, start, stop);
}
