// SPDX-License-Identifier: Apache-2.0
// banyanctl as a user meets it: what it prints, what it says when something is wrong, and its exit codes
// (docs/EXIT_CODES.md).
#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "client/safetensors_write.h"
#include "common/clock.h"
#include "tests/client/mirror.h"
#include "tests/harness/cluster.h"
#include "tests/harness/process.h"

#define ARGS_MAX 32

static struct harness_cluster *cluster;
static struct harness_output out;
static const banyan_spec spec = {
    .layers = 2, .q_heads = 4, .kv_heads = 2, .k_dim = 8, .v_dim = 12, .kv_type = BANYAN_F16};

static int clean_up(void **state)
{
    (void)state;
    harness_output_free(&out);
    return 0;
}

// Words are separated by blanks; %s in the line stands for `word`. Uses BANYAN_ENDPOINT and
// BANYAN_TOKEN_FILE.
static int ctl(const char *line, const char *word)
{
    char program[4096], copy[2048], endpoint[512], token[512];
    char *argv[ARGS_MAX] = {program};
    char *env[] = {endpoint, token, NULL};
    size_t n = 1;
    assert_true(harness_program_path("banyanctl", program, sizeof program));
    snprintf(copy, sizeof copy, "%s", line);
    snprintf(endpoint, sizeof endpoint, "BANYAN_ENDPOINT=%s", harness_cluster_endpoint(cluster, "unix"));
    snprintf(token, sizeof token, "BANYAN_TOKEN_FILE=%s", harness_cluster_token_file(cluster));
    for (char *save, *part = strtok_r(copy, " ", &save); part; part = strtok_r(NULL, " ", &save)) {
        assert_true(n < ARGS_MAX - 1);
        argv[n++] = strcmp(part, "%s") == 0 ? (char *)word : part;
    }
    harness_output_free(&out);
    assert_true(harness_run(argv, env, 120 * COMMON_NS_PER_S, &out));
    return out.exit_code;
}

static void expect(int code, const char *line, const char *word)
{
    if (ctl(line, word) != code)
        fail_msg("banyanctl %s: exit code %d, expected %d; it said: %s%s", line, out.exit_code, code, out.out,
                 out.err);
    if (code != 0)
        assert_true(strncmp(out.err, "banyanctl: ", 11) == 0);
    if (strstr(out.out, "\033[") || strstr(out.err, "\033["))
        fail_msg("banyanctl %s: colours without a terminal", line);
}

static void said(const char *text)
{
    if (!strstr(out.out, text))
        fail_msg("'%s' is not in the output:\n%s", text, out.out);
}

static void complained(const char *text)
{
    if (!strstr(out.err, text))
        fail_msg("'%s' is not in what was said on stderr:\n%s", text, out.err);
}

static json_t *parse(void)
{
    json_error_t error;
    json_t *json = json_loads(out.out, 0, &error);
    if (!json)
        fail_msg("not JSON: %s\n%s", error.text, out.out);
    return json;
}

static json_int_t number(const json_t *json, const char *key)
{
    assert_true(json_is_integer(json_object_get(json, key)));
    return json_integer_value(json_object_get(json, key));
}

static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", harness_cluster_dir(cluster), name);
    return path;
}

// ---- tests -----------------------------------------------------------------------------------------------

static void test_looking(void **state)
{
    (void)state;
    expect(0, "status", NULL);
    said("workers active");
    said("LIMIT");
    said("--max-client-bytes");
    expect(0, "-o json status", NULL);
    json_t *json = parse();
    assert_int_equal(number(json, "workers_active"), 2);
    assert_int_equal(number(json, "sessions"), 0);
    bool clients = false, memory = false;
    size_t i;
    json_t *limit;
    json_array_foreach(json_object_get(json, "limits"), i, limit)
    {
        assert_true(number(limit, "used") <= number(limit, "max"));
        const char *worker = json_string_value(json_object_get(limit, "worker"));
        if (strcmp(json_string_value(json_object_get(limit, "name")), "kv_bytes") == 0) {
            memory = true;
            assert_true(worker[0] == 'w' && number(limit, "max") > 0);
            assert_string_equal(json_string_value(json_object_get(limit, "flag")), "the worker's --memory");
        }
        if (worker[0] || strcmp(json_string_value(json_object_get(limit, "name")), "nng_clients") != 0)
            continue;
        clients = true;
        assert_int_equal(number(limit, "max"), 1024);
        assert_int_equal(number(limit, "refused"), 0);
        assert_string_equal(json_string_value(json_object_get(limit, "flag")), "--max-clients");
    }
    assert_true(clients && memory);
    json_decref(json);
    expect(0, "workers", NULL);
    said("w0");
    said("w1");
    said("active");
    expect(0, "workers --output=json", NULL);
    json = parse();
    assert_int_equal(json_array_size(json), 2);
    json_decref(json);
    expect(0, "ping -c 3", NULL);
    said("answer 3");
    expect(0, "ping --count 2 -o json", NULL);
    json = parse();
    assert_int_equal(number(json, "count"), 2);
    json_decref(json);
    expect(0, "sessions", NULL);
    expect(0, "sessions -o json", NULL);
    json = parse();
    assert_int_equal(json_array_size(json), 0);
    json_decref(json);
}

static void test_usage(void **state)
{
    (void)state;
    expect(0, "help", NULL);
    said("session create");
    expect(0, "--help", NULL);
    said("Commands:");
    expect(0, "help attach", NULL);
    said("layers.N.k");
    said("--commit");
    expect(0, "session show --help", NULL);
    said("SESSION");
    expect(0, "--version", NULL);
    said("0.1.0");
    expect(2, "", NULL);
    complained("status");
    expect(2, "statsu", NULL);
    complained("did you mean 'status'");
    expect(2, "session shwo x", NULL);
    complained("did you mean 'session show'");
    expect(2, "zzzzzzzzzz", NULL);
    complained("'banyanctl help'");
    expect(2, "session", NULL);
    complained("session create");
    expect(2, "plan", NULL);
    complained("SESSION");
    expect(2, "plan a b", NULL);
    complained("usage:");
    expect(2, "plan a b c d e f g h", NULL); // as many as it keeps; from the ninth on it does not look
    complained("usage:");
    expect(2, "plan a b c d e f g h i", NULL);
    complained("--help");
    expect(2, "status --bogus", NULL);
    complained("--bogus");
    expect(2, "status -o yaml", NULL);
    complained("table nor json");
    expect(2, "ping -c 0", NULL);
    expect(2, "session create", NULL);
    complained("--q-heads");
    expect(2, "session create --q-heads 4 --dim 8 --kv-type f8", NULL);
    complained("f8");
    expect(2, "session truncate x many", NULL);
    expect(2, "quarantine", NULL);
    expect(2, "quarantine drop w0", NULL);
    expect(2, "quarantine drop w0 many --yes", NULL);
}

static void test_connection(void **state)
{
    (void)state;
    expect(5, "--endpoint unix:///nonexistent/banyan --timeout 100ms status", NULL);
    complained("unix:///nonexistent/banyan");
    complained("is banyan-coordinator running");
    complained("BANYAN_ENDPOINT");
    expect(2, "--endpoint what status", NULL);
    complained("nng+tcp://");
    // local mistakes are found although nobody is there
    expect(2, "--endpoint unix:///nonexistent/banyan session truncate x many", NULL);
    expect(2, "--endpoint unix:///nonexistent/banyan session create --q-heads 4", NULL);
    expect(11, "--endpoint unix:///nonexistent/banyan attach x /nonexistent/file", NULL);
    expect(0, "--endpoint %s status", harness_cluster_endpoint(cluster, "nng+tcp"));
    expect(0, "--endpoint %s status", harness_cluster_endpoint(cluster, "tcp"));
    // A wrong token.
    const char *path = path_of("other-token");
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs("another-token\n", file);
    fclose(file);
    assert_int_equal(chmod(path, 0600), 0);
    expect(7, "--token-file %s sessions", path);
    complained("--token-file");
    expect(11, "--token-file /nonexistent/token sessions", NULL);
    complained("/nonexistent/token");
}

static void test_sessions(void **state)
{
    (void)state;
    expect(0, "session create --layers 2 --q-heads 4 --kv-heads 2 --dim 8 --v-dim 12 --kv-type f16 first",
           NULL);
    said("first");
    said("f16");
    expect(9, "session create --q-heads 4 --dim 8 first", NULL);
    complained("first");
    expect(4, "session create --q-heads 4 --kv-heads 3 --dim 8", NULL);
    expect(0, "session show first -o json", NULL);
    json_t *json = parse();
    assert_int_equal(number(json, "v_dim"), 12);
    assert_string_equal(json_string_value(json_object_get(json, "state")), "active");
    char id[32];
    snprintf(id, sizeof id, "%s", json_string_value(json_object_get(json, "id")));
    json_decref(json);
    expect(0, "session show %s", id); // by id
    said("first");
    expect(0, "sessions", NULL);
    said(id);
    expect(3, "session show nobody", NULL);
    complained("banyanctl sessions");
    expect(3, "session show 0xdeadbeef00000001", NULL);
    expect(4, "session show 0", NULL);
    expect(3, "session delete nobody", NULL);
    expect(0, "session delete %s -o json", id);
    json = parse();
    assert_string_equal(json_string_value(json_object_get(json, "deleted")), id);
    json_decref(json);
    expect(3, "session show %s", id);
}

static struct common_safetensor tensor(const char *name, enum common_dtype dtype, uint64_t rows,
                                       uint64_t heads, uint64_t dim, const void *data)
{
    size_t element = dtype == COMMON_DTYPE_F32                                 ? 4
                     : dtype == COMMON_DTYPE_F16 || dtype == COMMON_DTYPE_BF16 ? 2
                                                                               : 1;
    return (struct common_safetensor){.name = name,
                                      .dtype = dtype,
                                      .n_dims = 3,
                                      .dims = {rows, heads, dim},
                                      .data = data,
                                      .bytes = rows * heads * dim * element};
}

static void write_file(const char *name, const struct common_safetensor *tensors, size_t n)
{
    struct common_error err;
    if (client_safetensors_write(path_of(name), tensors, n, &err) != COMMON_OK)
        fail_msg("%s", err.message);
}

static struct common_safetensor scales(const char *name, uint64_t rows, uint64_t heads, const float *data)
{
    struct common_safetensor t = tensor(name, COMMON_DTYPE_F32, rows, heads, 1, data);
    t.n_dims = 2;
    return t;
}

// What attend wrote against the reference.
static void check_out(const struct mirror *m, uint32_t layer, uint64_t first, uint32_t rows)
{
    struct common_safetensors *file;
    struct common_error error;
    if (common_safetensors_open(path_of("out"), &file, &error) != COMMON_OK)
        fail_msg("%s", error.message);
    const struct common_safetensor *o = common_safetensors_find(file, "o"),
                                   *lse = common_safetensors_find(file, "lse");
    float *copy_o = malloc(o->bytes), *copy_lse = malloc(lse->bytes);
    memcpy(copy_o, o->data, o->bytes);
    memcpy(copy_lse, lse->data, lse->bytes);
    mirror_check(m, layer, first, rows, 0, copy_o, copy_lse);
    free(copy_o);
    free(copy_lse);
    common_safetensors_close(file);
}

static void test_tensors(void **state)
{
    (void)state;
    enum { TOKENS = 300, ROWS = 3 };
    struct mirror *m = mirror_new(&spec, TOKENS + ROWS, 1);
    const struct common_safetensor layers[] = {
        tensor("layers.0.k", COMMON_DTYPE_F16, TOKENS, 2, 8, mirror_k(m, 0, 0)),
        tensor("layers.0.v", COMMON_DTYPE_F16, TOKENS, 2, 12, mirror_v(m, 0, 0)),
        tensor("layers.1.k", COMMON_DTYPE_F16, TOKENS, 2, 8, mirror_k(m, 1, 0)),
        tensor("layers.1.v", COMMON_DTYPE_F16, TOKENS, 2, 12, mirror_v(m, 1, 0)),
    };
    const struct common_safetensor question[] = {
        tensor("q", COMMON_DTYPE_F32, ROWS, 4, 8, mirror_q(m, TOKENS)),
        tensor("k", COMMON_DTYPE_F16, ROWS, 2, 8, mirror_k(m, 1, TOKENS)),
        tensor("v", COMMON_DTYPE_F16, ROWS, 2, 12, mirror_v(m, 1, TOKENS)),
    };
    write_file("kv", layers, 4);
    write_file("q", question, 3);
    expect(
        0,
        "session create --layers 2 --q-heads 4 --kv-heads 2 --dim 8 --v-dim 12 --kv-type f16 --members 2 t",
        NULL);
    expect(0, "attach t %s", path_of("kv"));
    said("not visible");
    expect(4, "attend t %s --layer 1 --first 299", path_of("q")); // nothing is committed
    expect(0, "attach t %s --commit -o json", path_of("kv"));
    json_t *json = parse();
    assert_int_equal(number(json, "tokens"), TOKENS);
    assert_int_equal(number(json, "layers"), 2);
    json_decref(json);
    // Appends at the end, and writes what the reference says.
    char line[600];
    snprintf(line, sizeof line, "attend t %s --layer 1 --out %%s --trace", path_of("q"));
    expect(0, line, path_of("out"));
    said("303");
    said("w0");
    check_out(m, 1, TOKENS, ROWS);
    expect(0, "session show t -o json", NULL);
    json = parse();
    assert_int_equal(number(json, "length"), TOKENS); // of the shortest layer
    json_decref(json);
    expect(0, "plan t", NULL);
    said("WORKER");
    said("engine stream");
    expect(0, "plan t -o json", NULL);
    json = parse();
    assert_int_equal(json_array_size(json_object_get(json, "nodes")), 2);
    json_decref(json);
    expect(0, "session fork t 100 u", NULL);
    said("100");
    expect(4, "session fork t 100000", NULL);
    expect(0, "session truncate t 50 -o json", NULL);
    json = parse();
    assert_int_equal(number(json, "length"), 50);
    json_decref(json);
    expect(0, "session delete t", NULL);
    expect(0, "session delete u", NULL);
    mirror_free(m);
}

// Quantised K and V, with their scales or from F32.
static void test_quantised_tensors(void **state)
{
    (void)state;
    enum { TOKENS = 90, ROWS = 2 };
    banyan_spec quantised = spec;
    quantised.layers = 1;
    for (banyan_kv_type type = BANYAN_INT8; type <= BANYAN_FP8; type++) {
        const char *name = type == BANYAN_INT8 ? "int8" : "fp8";
        enum common_dtype dtype = type == BANYAN_INT8 ? COMMON_DTYPE_I8 : COMMON_DTYPE_F8_E4M3;
        quantised.kv_type = type;
        struct mirror *m = mirror_new(&quantised, TOKENS + ROWS, 7);
        const struct common_safetensor layers[] = {
            tensor("layers.0.k", dtype, TOKENS, 2, 8, mirror_k(m, 0, 0)),
            tensor("layers.0.v", dtype, TOKENS, 2, 12, mirror_v(m, 0, 0)),
            scales("layers.0.k_scale", TOKENS, 2, mirror_k_scale(m, 0, 0)),
            scales("layers.0.v_scale", TOKENS, 2, mirror_v_scale(m, 0, 0)),
        };
        const struct common_safetensor question[] = {
            tensor("q", COMMON_DTYPE_F32, ROWS, 4, 8, mirror_q(m, TOKENS)),
            tensor("k", dtype, ROWS, 2, 8, mirror_k(m, 0, TOKENS)),
            tensor("v", dtype, ROWS, 2, 12, mirror_v(m, 0, TOKENS)),
            scales("k_scale", ROWS, 2, mirror_k_scale(m, 0, TOKENS)),
            scales("v_scale", ROWS, 2, mirror_v_scale(m, 0, TOKENS)),
        };
        char line[600];
        snprintf(line, sizeof line,
                 "session create --q-heads 4 --kv-heads 2 --dim 8 --v-dim 12 --kv-type %s z", name);
        expect(0, line, NULL);
        said(name);
        write_file("kv", layers, 3);
        expect(4, "attach z %s --commit", path_of("kv"));
        complained("layers.0.v_scale");
        struct common_safetensor bad[4];
        memcpy(bad, layers, sizeof bad);
        bad[3] = scales("layers.0.v_scale", TOKENS - 1, 2, mirror_v_scale(m, 0, 0));
        write_file("kv", bad, 4);
        expect(4, "attach z %s --commit", path_of("kv"));
        complained("layers.0.v_scale");
        write_file("kv", layers, 4);
        expect(0, "attach z %s --commit", path_of("kv"));
        write_file("q", question, 3);
        expect(4, "attend z %s", path_of("q"));
        complained("k_scale");
        write_file("q", question, 5);
        snprintf(line, sizeof line, "attend z %s --out %%s", path_of("q"));
        expect(0, line, path_of("out"));
        check_out(m, 0, TOKENS, ROWS);
        // F32 is quantised on the way, to the very codes that the mirror holds.
        banyan_spec plain = quantised;
        plain.kv_type = BANYAN_F32;
        struct mirror *f = mirror_new(&plain, TOKENS + ROWS, 7);
        const struct common_safetensor floats[] = {
            tensor("layers.0.k", COMMON_DTYPE_F32, TOKENS, 2, 8, mirror_k(f, 0, 0)),
            tensor("layers.0.v", COMMON_DTYPE_F32, TOKENS, 2, 12, mirror_v(f, 0, 0)),
            layers[2],
            layers[3],
        };
        expect(0, "session truncate z 0", NULL);
        write_file("kv", floats, 4);
        expect(4, "attach z %s --commit", path_of("kv")); // F32 has no scales
        write_file("kv", floats, 2);
        expect(0, "attach z %s --commit", path_of("kv"));
        const struct common_safetensor float_question[] = {
            question[0],
            tensor("k", COMMON_DTYPE_F32, ROWS, 2, 8, mirror_k(f, 0, TOKENS)),
            tensor("v", COMMON_DTYPE_F32, ROWS, 2, 12, mirror_v(f, 0, TOKENS)),
        };
        write_file("q", float_question, 3);
        expect(0, line, path_of("out"));
        check_out(m, 0, TOKENS, ROWS);
        expect(0, "session delete z", NULL);
        mirror_free(m);
        mirror_free(f);
    }
    // A type without scales takes none
    const uint16_t zeros[4 * 2 * 12] = {0};
    const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const struct common_safetensor layers[] = {
        tensor("layers.0.k", COMMON_DTYPE_F16, 4, 2, 8, zeros),
        tensor("layers.0.v", COMMON_DTYPE_F16, 4, 2, 12, zeros),
        scales("layers.0.k_scale", 4, 2, ones),
    };
    expect(0, "session create --q-heads 4 --kv-heads 2 --dim 8 --v-dim 12 --kv-type f16 y", NULL);
    write_file("kv", layers, 3);
    expect(4, "attach y %s", path_of("kv"));
    complained("no scales");
    expect(0, "session delete y", NULL);
}

static void write_text(const char *name, const char *text)
{
    FILE *file = fopen(path_of(name), "we");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

// Layers that differ: made from a file, shown, filled; and made again from what was shown.
static void test_kinds(void **state)
{
    (void)state;
    static const float zeros[4096];
    write_text("spec",
               "{\"layers\": 4, \"kv_type\": \"f16\", \"chunk_tokens\": 32, \"forget\": 7,"
               " \"kinds\": [{\"q_heads\": 4, \"kv_heads\": 2, \"k_dim\": 8, \"v_dim\": 12, \"window\": 64},"
               "  {\"q_heads\": 2, \"kv_heads\": 1, \"k_dim\": 10, \"v_dim\": 8, \"v_in_k\": true,"
               "   \"mask_chunk\": 48, \"alibi\": [0.5, 0.25]}],"
               " \"layer_kind\": [0, 1, null, 0], \"shares\": [null, null, null, 0],"
               " \"layer_sinks\": [null, [1, null], null, [0, 1, 2, 3]]}");
    expect(0, "session create --spec %s mixed", path_of("spec"));
    said("4 heads over 2, keys of 8, values of 12, window 64: layers 0 3");
    said("2 heads over 1, keys of 10, values of 8 in them, mask chunks of 48, ALiBi: layers 1");
    said("nothing is held: layers 2");
    said("forget margin");
    said("forgotten by layer");
    expect(0, "-o json session show mixed", NULL);
    json_t *json = parse();
    assert_int_equal(json_array_size(json_object_get(json, "kinds")), 2);
    assert_int_equal(number(json, "forget"), 7);
    assert_int_equal(number(json, "forgotten"), 0);
    assert_int_equal(json_array_size(json_object_get(json, "layer_forgotten")), 4);
    assert_int_equal(number(json_array_get(json_object_get(json, "kinds"), 1), "mask_chunk"), 48);
    assert_true(json_is_null(json_array_get(json_object_get(json, "layer_kind"), 2)));
    assert_int_equal(json_integer_value(json_array_get(json_object_get(json, "shares"), 3)), 0);
    assert_true(json_is_null(json_array_get(json_array_get(json_object_get(json, "layer_sinks"), 1), 1)));
    json_dump_file(json, path_of("shown"), 0);
    expect(0, "session create --spec %s again", path_of("shown"));
    expect(0, "-o json session show again", NULL);
    json_t *again = parse();
    static const char *const same[] = {"layers",     "kv_type", "chunk_tokens", "kinds",
                                       "layer_kind", "shares",  "layer_sinks",  "forget"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        assert_true(json_equal(json_object_get(json, same[i]), json_object_get(again, same[i])));
    json_decref(json);
    json_decref(again);
    const struct common_safetensor layers[] = {tensor("layers.0.k", COMMON_DTYPE_F16, 4, 2, 8, zeros),
                                               tensor("layers.0.v", COMMON_DTYPE_F16, 4, 2, 12, zeros),
                                               tensor("layers.1.k", COMMON_DTYPE_F16, 4, 1, 10, zeros)};
    write_file("kv", layers, 3);
    expect(0, "attach mixed %s --commit", path_of("kv"));
    struct common_safetensor one[] = {tensor("layers.3.k", COMMON_DTYPE_F16, 4, 2, 8, zeros),
                                      tensor("layers.3.v", COMMON_DTYPE_F16, 4, 2, 12, zeros)};
    write_file("bad", one, 2);
    expect(4, "attach mixed %s", path_of("bad"));
    complained("no K and V of its own");
    one[0].name = "layers.1.k";
    one[0].dims[1] = 1;
    one[0].dims[2] = 10;
    one[0].bytes = 80;
    one[1].name = "layers.1.v";
    write_file("bad", one, 2);
    expect(4, "attach mixed %s", path_of("bad"));
    complained("V lies in K");
    const struct common_safetensor q = tensor("q", COMMON_DTYPE_F32, 1, 2, 10, zeros);
    write_file("q", &q, 1);
    expect(0, "attend mixed %s --layer 1", path_of("q"));
    expect(4, "attend mixed %s --layer 0", path_of("q"));
    complained("[4][8]");
    expect(4, "attend mixed %s --layer 2", path_of("q"));
    complained("holds nothing");
    static const char *const wrong[][2] = {
        {"{\"layers\": 0}", "layers"},
        {"[1]", "the whole"},
        {"{\"kv_type\": \"f8\"}", "kv_type"},
        {"{\"kinds\": []}", "kinds"},
        {"{\"q_heads\": -1}", "q_heads"},
        {"{\"layers\": 2, \"kinds\": [{\"q_heads\": 1}], \"layer_kind\": [0]}", "layer_kind"},
        {"{\"layers\": 1, \"kinds\": [{\"q_heads\": 1}], \"layer_kind\": [0], \"shares\": [-1]}", "shares"},
        {"{\"layers\": 1, \"kinds\": [{\"q_heads\": 2}], \"layer_kind\": [0], \"layer_sinks\": [[1]]}",
         "layer_sinks"},
        {"{\"q_heads\": 2, \"alibi\": [1, \"x\"]}", "alibi"},
        {"{\"layers\": 1, \"kinds\": [{\"q_heads\": 1, \"kv_heads\": 1, \"k_dim\": 8, \"v_dim\": 8}], "
         "\"layer_kind\": [3]}",
         "is of kind 3"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_text("bad", wrong[i][0]);
        expect(4, "session create --spec %s no", path_of("bad"));
        complained(wrong[i][1]);
    }
    write_text("bad", "{");
    expect(11, "session create --spec %s no", path_of("bad"));
    expect(0, "session create --q-heads 4 --dim 8 --not-causal --v-in-k alike", NULL);
    expect(0, "-o json session show alike", NULL);
    said("\"not_causal\": true");
    said("\"v_in_k\": true");
    expect(0, "session delete mixed", NULL);
    expect(0, "session delete again", NULL);
    expect(0, "session delete alike", NULL);
}

static void test_wrong_tensors(void **state)
{
    (void)state;
    static const float zeros[4096];
    const struct common_safetensor k = tensor("layers.0.k", COMMON_DTYPE_F16, 4, 2, 8, zeros),
                                   v = tensor("layers.0.v", COMMON_DTYPE_F16, 4, 2, 12, zeros);
    expect(0, "session create --layers 2 --q-heads 4 --kv-heads 2 --dim 8 --v-dim 12 --kv-type f16 x", NULL);
    struct common_safetensor bad[2] = {k, v};
    bad[1] = tensor("layers.0.v", COMMON_DTYPE_F16, 4, 2, 8, zeros); // dim
    write_file("bad", bad, 2);
    expect(4, "attach x %s", path_of("bad"));
    complained("layers.0.v");
    complained("[2][12]");
    bad[1] = tensor("layers.0.v", COMMON_DTYPE_BF16, 4, 2, 12, zeros); // type
    write_file("bad", bad, 2);
    expect(4, "attach x %s", path_of("bad"));
    complained("BF16");
    bad[1] = tensor("layers.0.v", COMMON_DTYPE_F16, 5, 2, 12, zeros); // tokens
    write_file("bad", bad, 2);
    expect(4, "attach x %s", path_of("bad"));
    complained("5");
    write_file("bad", &k, 1); // v is missing
    expect(4, "attach x %s", path_of("bad"));
    complained("layers.0.v is missing");
    bad[1] = tensor("layers.7.v", COMMON_DTYPE_F16, 4, 2, 12, zeros); // layer
    write_file("bad", bad, 2);
    expect(4, "attach x %s", path_of("bad"));
    complained("layers 0 to 1");
    bad[0] = tensor("something", COMMON_DTYPE_F16, 4, 2, 8, zeros); // names
    write_file("bad", bad, 1);
    expect(4, "attach x %s", path_of("bad"));
    complained("layers.N.k");
    write_file("bad", &k, 1); // no q
    expect(4, "attend x %s", path_of("bad"));
    complained("'q'");
    bad[0] = tensor("q", COMMON_DTYPE_F16, 4, 4, 8, zeros);
    write_file("bad", bad, 1);
    expect(4, "attend x %s", path_of("bad"));
    complained("F32");
    FILE *file = fopen(path_of("bad"), "we");
    assert_non_null(file);
    fputs("this is no safetensors file", file);
    fclose(file);
    expect(4, "attach x %s", path_of("bad"));
    expect(11, "attach x /nonexistent/file", NULL);
    complained("/nonexistent/file");
    // Nothing of all that was sent.
    expect(0, "session show x -o json", NULL);
    json_t *json = parse();
    assert_int_equal(number(json, "bytes"), 0);
    json_decref(json);
    // A hole is a matter of state.
    write_file("good", (struct common_safetensor[]){k, v}, 2);
    expect(0, "attach x %s --first 100 --commit", path_of("good"));
    bad[0] = tensor("q", COMMON_DTYPE_F32, 1, 4, 8, zeros);
    write_file("q1", bad, 1);
    expect(9, "attend x %s --first 101", path_of("q1"));
    complained("HOLE");
    complained("tokens 0 to 99");
    expect(0, "session delete x", NULL);
}

// The program in client/README.md, linked with the shared library.
static void test_hello(void **state)
{
    (void)state;
    char program[4096], endpoint[512], token[512];
    char *argv[] = {program, token, NULL};
    char *env[] = {endpoint, NULL};
    assert_true(harness_program_path("client_hello", program, sizeof program));
    snprintf(endpoint, sizeof endpoint, "BANYAN_ENDPOINT=%s", harness_cluster_endpoint(cluster, "nng+tcp"));
    snprintf(token, sizeof token, "%s", harness_cluster_token_file(cluster));
    assert_true(harness_run(argv, env, 120 * COMMON_NS_PER_S, &out));
    if (out.exit_code != 0)
        fail_msg("exit code %d: %s", out.exit_code, out.err);
    said("1025 tokens");
}

// ---- session mass, session trace ----------------------------------------------------------------

enum { WATCHED = 300 };

struct decoder { // a client that knows of no watch: attends again and again
    banyan_client *client;
    banyan_session *session;
    const struct mirror *mirror;
    banyan_mass *mass;   // NULL: it asks for nothing
    banyan_trace *trace; // likewise
    atomic_bool stop;
};

static void attend_once(struct decoder *d, uint32_t layer)
{
    float o[4 * 12];
    banyan_error error;
    banyan_item item = {.session = d->session,
                        .layer = layer,
                        .first = WATCHED - 1,
                        .rows = 1,
                        .q = mirror_q(d->mirror, WATCHED - 1),
                        .o = o,
                        .mass = d->mass};
    if (banyan_attend(d->client, &item, 1, 0, d->trace, &error) != BANYAN_OK || item.code != BANYAN_OK)
        fail_msg("attend: %s", error.message);
    banyan_mass_free(d->mass);
    banyan_trace_free(d->trace);
}

static void *decode(void *arg)
{
    struct decoder *d = arg;
    for (uint32_t i = 0; !atomic_load(&d->stop); i++)
        attend_once(d, i % 2);
    return NULL;
}

// Its bins, its workers and its sink add up, and there is one of each layer.
static void check_masses(const json_t *json, size_t heads)
{
    const json_t *steps = json_object_get(json, "steps"), *step, *value, *head;
    size_t i, k, h, layers[2] = {0};
    json_array_foreach(steps, i, step)
    {
        layers[number(step, "layer") & 1]++;
        assert_int_equal(number(step, "visible"), WATCHED);
        assert_int_equal(json_array_size(json_object_get(step, "heads")), heads);
        json_array_foreach(json_object_get(step, "heads"), h, head)
        {
            double bins = json_real_value(json_object_get(head, "sink")), workers = bins;
            json_array_foreach(json_object_get(head, "bins"), k, value) bins += json_real_value(value);
            json_array_foreach(json_object_get(head, "workers"), k, value) workers += json_real_value(value);
            assert_true(bins > 1 - 1e-5 && bins < 1 + 1e-5);
            assert_true(workers > 1 - 1e-5 && workers < 1 + 1e-5);
        }
    }
    if (heads == 1)
        assert_true(layers[0] > 0 && layers[1] > 0);
}

static void test_watching(void **state)
{
    (void)state;
    banyan_error error;
    banyan_options options = {.token_file = harness_cluster_token_file(cluster)};
    struct decoder d = {0};
    banyan_spec wide = spec;
    pthread_t thread;
    wide.members = 2;
    wide.chunk_tokens = 16;
    struct mirror *mirror = mirror_new(&wide, WATCHED, 5);
    d.mirror = mirror;
    assert_int_equal(banyan_connect(harness_cluster_endpoint(cluster, "unix"), &options, &d.client, &error),
                     BANYAN_OK);
    assert_int_equal(banyan_session_create(d.client, &wide, "watched", &d.session, &error), BANYAN_OK);
    for (uint32_t l = 0; l < 2; l++) {
        assert_int_equal(banyan_attach(d.session, l, 0, WATCHED, mirror_k(mirror, l, 0),
                                       mirror_v(mirror, l, 0), &error),
                         BANYAN_OK);
        assert_int_equal(banyan_commit(d.session, l, 0, WATCHED, &error), BANYAN_OK);
    }
    attend_once(&d, 0); // asked for nothing: nothing is kept
    expect(6, "session mass watched --wait 0s", NULL);
    complained("only while watched");
    expect(6, "session trace watched --wait 10ms --json", NULL);
    // What its client asks for is.
    banyan_mass mass = {.bins = 8};
    banyan_trace trace;
    d.mass = &mass;
    d.trace = &trace;
    attend_once(&d, 1);
    d.mass = NULL;
    d.trace = NULL;
    expect(0, "session mass watched --wait 0s", NULL);
    said("layer 1");
    said("OF MASS");
    said("w0");
    said("w1");
    expect(0, "session trace watched --wait 0s --each", NULL);
    said("masses");
    said("COMPUTE");
    expect(6, "session mass watched --wait 0s --heads", NULL); // only their mean
    // A running session.
    assert_int_equal(pthread_create(&thread, NULL, decode, &d), 0);
    expect(0, "session mass watched --wait 30s --bins 10 --steps 16 --json", NULL);
    json_t *json = parse();
    assert_int_equal(json_array_size(json_object_get(json, "steps")), 16);
    check_masses(json, 1);
    json_decref(json);
    expect(0, "session mass watched --wait 30s --heads --layer 1 -o json", NULL);
    json = parse();
    assert_int_equal(json_array_size(json_object_get(json, "steps")), 1);
    check_masses(json, 4);
    json_decref(json);
    expect(0, "session trace watched --wait 30s --steps 8 --json", NULL);
    json = parse();
    json_t *step = json_array_get(json_object_get(json, "steps"), 7);
    assert_int_equal(json_array_size(json_object_get(step, "workers")), 2);
    assert_int_equal(number(json_array_get(json_object_get(step, "workers"), 1), "parent"), 0);
    assert_true(number(step, "total_ns") >= number(step, "tree_ns") && number(step, "tree_ns") > 0);
    json_decref(json);
    expect(0, "session trace watched", NULL);
    said("mean of 2 steps");
    atomic_store(&d.stop, true);
    pthread_join(thread, NULL);
    // What is wrong is said.
    expect(3, "session mass nobody", NULL);
    expect(2, "session mass watched --steps 65", NULL);
    expect(2, "session mass watched --bins 0", NULL);
    expect(2, "session trace watched --wait 51s", NULL);
    expect(4, "session trace watched --layer 2", NULL);
    complained("layers 0 to 1");
    banyan_session_delete(d.session, NULL);
    banyan_session_close(d.session);
    banyan_disconnect(d.client);
    mirror_free(mirror);
}

static int start_cluster(void **state)
{
    (void)state;
    cluster = harness_cluster_start(&(struct harness_options){.workers = 2, .token = "a-token-for-tests"});
    return cluster ? 0 : -1;
}

static int stop_cluster(void **state)
{
    (void)state;
    int problems = harness_cluster_stop(cluster);
    cluster = NULL;
    return problems;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_looking, clean_up),
        cmocka_unit_test_teardown(test_usage, clean_up),
        cmocka_unit_test_teardown(test_connection, clean_up),
        cmocka_unit_test_teardown(test_sessions, clean_up),
        cmocka_unit_test_teardown(test_tensors, clean_up),
        cmocka_unit_test_teardown(test_quantised_tensors, clean_up),
        cmocka_unit_test_teardown(test_kinds, clean_up),
        cmocka_unit_test_teardown(test_wrong_tensors, clean_up),
        cmocka_unit_test_teardown(test_hello, clean_up),
        cmocka_unit_test_teardown(test_watching, clean_up),
    };
    return cmocka_run_group_tests(tests, start_cluster, stop_cluster);
}
