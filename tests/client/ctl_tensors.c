// SPDX-License-Identifier: Apache-2.0
// banyanctl attach and attend: tensors in files, right and wrong ones, of sessions whose layers differ too.
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/snapshot/safetensors_write.h"
#include "tests/client/ctl_suite.h"

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
    if (client_safetensors_write(ctl_path(name), tensors, n, &err) != COMMON_OK)
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
    if (common_safetensors_open(ctl_path("out"), &file, &error) != COMMON_OK)
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

// Of the file, and with what it has: the same answers as those of `t`, which got it step by step.
static void create_from(const struct common_safetensor *q)
{
    write_file("look", q, 1);
    ctl_expect(0, "attend t %s --layer 1 -o json", ctl_path("look"));
    json_t *want = ctl_parse();
    ctl_expect(0, "session create made --q-heads 4 --from %s -o json", ctl_path("kv"));
    json_t *json = ctl_parse();
    assert_int_equal(ctl_number(json, "layers"), 2);
    assert_int_equal(ctl_number(json, "q_heads"), 4);
    assert_int_equal(ctl_number(json, "kv_heads"), 2);
    assert_int_equal(ctl_number(json, "k_dim"), 8);
    assert_int_equal(ctl_number(json, "v_dim"), 12);
    assert_int_equal(ctl_number(json, "length"), 300);
    assert_string_equal(json_string_value(json_object_get(json, "kv_type")), "f16");
    json_decref(json);
    ctl_expect(0, "attend made %s --layer 1 -o json", ctl_path("look"));
    json = ctl_parse();
    static const char *const numbers[] = {"lse_mean", "o_largest"};
    for (size_t i = 0; i < 2; i++)
        assert_float_equal(json_real_value(json_object_get(json, numbers[i])),
                           json_real_value(json_object_get(want, numbers[i])), 1e-5);
    assert_true(json_real_value(json_object_get(json, "o_largest")) > 0);
    json_decref(json);
    json_decref(want);
    ctl_expect(0, "session delete made", NULL);
    ctl_expect(0, "session create made --from %s -o json", ctl_path("kv")); // as many query heads as KV heads
    json = ctl_parse();
    assert_int_equal(ctl_number(json, "q_heads"), 2);
    json_decref(json);
    ctl_expect(0, "session delete made", NULL);
    // What is wrong with the file, or does not go with the options, is found before there is a session.
    ctl_expect(4, "session create made --kv-type f32 --from %s", ctl_path("kv"));
    ctl_complained("the session needs F32 [tokens][2][8]");
    ctl_expect(4, "session create made --layers 1 --from %s", ctl_path("kv"));
    ctl_complained("the session has layers 0 to 0");
    ctl_expect(4, "session create made --from %s", ctl_path("look"));
    ctl_complained("no tensors named layers.N.k");
    ctl_expect(11, "session create made --from /nonexistent/file", NULL);
    ctl_expect(3, "session show made", NULL);
}

void ctl_tensors(void **state)
{
    (void)state;
    enum { TOKENS = 300, ROWS = 3 };
    struct mirror *m = mirror_new(&ctl_spec, TOKENS + ROWS, 1);
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
    ctl_expect(
        0,
        "session create --layers 2 --q-heads 4 --kv-heads 2 --dim 8 --v-dim 12 --kv-type f16 --members 2 t",
        NULL);
    ctl_expect(0, "attach t %s", ctl_path("kv"));
    ctl_said("not visible");
    ctl_expect(4, "attend t %s --layer 1 --first 299", ctl_path("q")); // nothing is committed
    ctl_expect(9, "session commit t 0 301", NULL);                     // a token too many
    ctl_complained("HOLE");
    ctl_complained("attach them, then commit again");
    ctl_complained("'banyanctl session commit SESSION FIRST COUNT'");
    ctl_expect(9, "session commit t 4096 10", NULL);
    ctl_complained("of layer 0 were never attached");
    ctl_expect(4, "session commit t 0 300 --layer 7", NULL);
    ctl_expect(2, "session commit t x 300", NULL);
    ctl_expect(2, "session commit t 0 0", NULL);
    // Later tokens first: what is below them is a hole.
    ctl_expect(0, "session commit t 200 100 --layer 1", NULL);
    ctl_said("tokens 0 to 199 of layer 1 are not committed");
    ctl_expect(0, "session show t -o json", NULL);
    json_t *shown = ctl_parse(), *holes = json_object_get(shown, "holes");
    assert_int_equal(json_array_size(holes), 1);
    assert_int_equal(ctl_number(json_array_get(holes, 0), "layer"), 1);
    assert_int_equal(ctl_number(json_array_get(holes, 0), "first"), 0);
    assert_int_equal(ctl_number(json_array_get(holes, 0), "count"), 200);
    json_decref(shown);
    ctl_expect(0, "session commit t 0 300 --layer 1 -o json", NULL);
    json_t *committed = ctl_parse();
    assert_int_equal(json_integer_value(json_array_get(json_object_get(committed, "layer_lengths"), 0)), 0);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(committed, "layer_lengths"), 1)),
                     TOKENS);
    json_decref(committed);
    ctl_expect(0, "session commit t 0 300 -o json", NULL);
    committed = ctl_parse();
    assert_int_equal(ctl_number(committed, "length"), TOKENS);
    json_decref(committed);
    ctl_expect(0, "attach t %s --commit -o json", ctl_path("kv"));
    json_t *json = ctl_parse();
    assert_int_equal(ctl_number(json, "tokens"), TOKENS);
    assert_int_equal(ctl_number(json, "layers"), 2);
    json_decref(json);
    // Appends at the end, and writes what the reference says.
    create_from(question);
    char line[600];
    snprintf(line, sizeof line, "attend t %s --layer 1 --out %%s --trace", ctl_path("q"));
    ctl_expect(0, line, ctl_path("out"));
    ctl_said("303");
    ctl_said("w0");
    check_out(m, 1, TOKENS, ROWS);
    ctl_expect(0, "session show t -o json", NULL);
    json = ctl_parse();
    assert_int_equal(ctl_number(json, "length"), TOKENS); // of the shortest layer
    json_decref(json);
    ctl_expect(0, "plan t", NULL);
    ctl_said("WORKER");
    ctl_said("engine stream");
    ctl_expect(0, "plan t -o json", NULL);
    json = ctl_parse();
    assert_int_equal(json_array_size(json_object_get(json, "nodes")), 2);
    json_decref(json);
    ctl_expect(0, "session fork t 100 u", NULL);
    ctl_said("100");
    ctl_expect(4, "session fork t 100000", NULL);
    ctl_expect(0, "session truncate t 50 -o json", NULL);
    json = ctl_parse();
    assert_int_equal(ctl_number(json, "length"), 50);
    json_decref(json);
    ctl_expect(0, "session delete t", NULL);
    ctl_expect(0, "session delete u", NULL);
    mirror_free(m);
}

// Quantised K and V, with their scales or from F32.
void ctl_quantised_tensors(void **state)
{
    (void)state;
    enum { TOKENS = 90, ROWS = 2 };
    banyan_spec quantised = ctl_spec;
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
        ctl_expect(0, line, NULL);
        ctl_said(name);
        write_file("kv", layers, 3);
        ctl_expect(4, "attach z %s --commit", ctl_path("kv"));
        ctl_complained("layers.0.v_scale");
        struct common_safetensor bad[4];
        memcpy(bad, layers, sizeof bad);
        bad[3] = scales("layers.0.v_scale", TOKENS - 1, 2, mirror_v_scale(m, 0, 0));
        write_file("kv", bad, 4);
        ctl_expect(4, "attach z %s --commit", ctl_path("kv"));
        ctl_complained("layers.0.v_scale");
        write_file("kv", layers, 4);
        ctl_expect(0, "attach z %s --commit", ctl_path("kv"));
        write_file("q", question, 3);
        ctl_expect(4, "attend z %s", ctl_path("q"));
        ctl_complained("k_scale");
        write_file("q", question, 5);
        snprintf(line, sizeof line, "attend z %s --out %%s", ctl_path("q"));
        ctl_expect(0, line, ctl_path("out"));
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
        ctl_expect(0, "session truncate z 0", NULL);
        write_file("kv", floats, 4);
        ctl_expect(4, "attach z %s --commit", ctl_path("kv")); // F32 has no scales
        write_file("kv", floats, 2);
        ctl_expect(0, "attach z %s --commit", ctl_path("kv"));
        const struct common_safetensor float_question[] = {
            question[0],
            tensor("k", COMMON_DTYPE_F32, ROWS, 2, 8, mirror_k(f, 0, TOKENS)),
            tensor("v", COMMON_DTYPE_F32, ROWS, 2, 12, mirror_v(f, 0, TOKENS)),
        };
        write_file("q", float_question, 3);
        ctl_expect(0, line, ctl_path("out"));
        check_out(m, 0, TOKENS, ROWS);
        ctl_expect(0, "session delete z", NULL);
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
    ctl_expect(0, "session create --q-heads 4 --kv-heads 2 --dim 8 --v-dim 12 --kv-type f16 y", NULL);
    write_file("kv", layers, 3);
    ctl_expect(4, "attach y %s", ctl_path("kv"));
    ctl_complained("no scales");
    ctl_expect(0, "session delete y", NULL);
}

// Layers that differ: made from a file, shown, filled; and made again from what was shown.
void ctl_kinds(void **state)
{
    (void)state;
    static const float zeros[4096];
    ctl_write("spec",
              "{\"layers\": 4, \"kv_type\": \"f16\", \"chunk_tokens\": 32, \"forget\": 7,"
              " \"kinds\": [{\"q_heads\": 4, \"kv_heads\": 2, \"k_dim\": 8, \"v_dim\": 12, \"window\": 64},"
              "  {\"q_heads\": 2, \"kv_heads\": 1, \"k_dim\": 10, \"v_dim\": 8, \"v_in_k\": true,"
              "   \"mask_chunk\": 48, \"alibi\": [0.5, 0.25]}],"
              " \"layer_kind\": [0, 1, null, 0], \"shares\": [null, null, null, 0],"
              " \"layer_sinks\": [null, [1, null], null, [0, 1, 2, 3]]}");
    ctl_expect(0, "session create --spec %s mixed", ctl_path("spec"));
    ctl_said("4 heads over 2, keys of 8, values of 12, window 64: layers 0 3");
    ctl_said("2 heads over 1, keys of 10, values of 8 in them, mask chunks of 48, ALiBi: layers 1");
    ctl_said("nothing is held: layers 2");
    ctl_said("forget margin");
    ctl_said("forgotten by layer");
    ctl_expect(0, "-o json session show mixed", NULL);
    json_t *json = ctl_parse();
    assert_int_equal(json_array_size(json_object_get(json, "kinds")), 2);
    assert_int_equal(ctl_number(json, "forget"), 7);
    assert_int_equal(ctl_number(json, "forgotten"), 0);
    assert_int_equal(json_array_size(json_object_get(json, "layer_forgotten")), 4);
    assert_int_equal(ctl_number(json_array_get(json_object_get(json, "kinds"), 1), "mask_chunk"), 48);
    assert_true(json_is_null(json_array_get(json_object_get(json, "layer_kind"), 2)));
    assert_int_equal(json_integer_value(json_array_get(json_object_get(json, "shares"), 3)), 0);
    assert_true(json_is_null(json_array_get(json_array_get(json_object_get(json, "layer_sinks"), 1), 1)));
    json_dump_file(json, ctl_path("shown"), 0);
    ctl_expect(0, "session create --spec %s again", ctl_path("shown"));
    ctl_expect(0, "-o json session show again", NULL);
    json_t *again = ctl_parse();
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
    ctl_expect(0, "attach mixed %s --commit", ctl_path("kv"));
    struct common_safetensor one[] = {tensor("layers.3.k", COMMON_DTYPE_F16, 4, 2, 8, zeros),
                                      tensor("layers.3.v", COMMON_DTYPE_F16, 4, 2, 12, zeros)};
    write_file("bad", one, 2);
    ctl_expect(4, "attach mixed %s", ctl_path("bad"));
    ctl_complained("no K and V of its own");
    one[0].name = "layers.1.k";
    one[0].dims[1] = 1;
    one[0].dims[2] = 10;
    one[0].bytes = 80;
    one[1].name = "layers.1.v";
    write_file("bad", one, 2);
    ctl_expect(4, "attach mixed %s", ctl_path("bad"));
    ctl_complained("values are part of the keys");
    const struct common_safetensor q = tensor("q", COMMON_DTYPE_F32, 1, 2, 10, zeros);
    write_file("q", &q, 1);
    ctl_expect(0, "attend mixed %s --layer 1", ctl_path("q"));
    ctl_expect(4, "attend mixed %s --layer 0", ctl_path("q"));
    ctl_complained("[4][8]");
    ctl_expect(4, "attend mixed %s --layer 2", ctl_path("q"));
    ctl_complained("holds nothing");
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
        ctl_write("bad", wrong[i][0]);
        ctl_expect(4, "session create --spec %s no", ctl_path("bad"));
        ctl_complained(wrong[i][1]);
    }
    ctl_write("bad", "{");
    ctl_expect(11, "session create --spec %s no", ctl_path("bad"));
    ctl_expect(0, "session create --q-heads 4 --dim 8 --not-causal --v-in-k alike", NULL);
    ctl_expect(0, "-o json session show alike", NULL);
    ctl_said("\"not_causal\": true");
    ctl_said("\"v_in_k\": true");
    ctl_expect(0, "session delete mixed", NULL);
    ctl_expect(0, "session delete again", NULL);
    ctl_expect(0, "session delete alike", NULL);
}

void ctl_wrong_tensors(void **state)
{
    (void)state;
    static const float zeros[4096];
    const struct common_safetensor k = tensor("layers.0.k", COMMON_DTYPE_F16, 4, 2, 8, zeros),
                                   v = tensor("layers.0.v", COMMON_DTYPE_F16, 4, 2, 12, zeros);
    ctl_expect(0, "session create --layers 2 --q-heads 4 --kv-heads 2 --dim 8 --v-dim 12 --kv-type f16 x",
               NULL);
    struct common_safetensor bad[2] = {k, v};
    bad[1] = tensor("layers.0.v", COMMON_DTYPE_F16, 4, 2, 8, zeros); // dim
    write_file("bad", bad, 2);
    ctl_expect(4, "attach x %s", ctl_path("bad"));
    ctl_complained("layers.0.v");
    ctl_complained("[2][12]");
    bad[1] = tensor("layers.0.v", COMMON_DTYPE_BF16, 4, 2, 12, zeros); // type
    write_file("bad", bad, 2);
    ctl_expect(4, "attach x %s", ctl_path("bad"));
    ctl_complained("BF16");
    bad[1] = tensor("layers.0.v", COMMON_DTYPE_F16, 5, 2, 12, zeros); // tokens
    write_file("bad", bad, 2);
    ctl_expect(4, "attach x %s", ctl_path("bad"));
    ctl_complained("5");
    write_file("bad", &k, 1); // v is missing
    ctl_expect(4, "attach x %s", ctl_path("bad"));
    ctl_complained("layers.0.v is missing");
    bad[1] = tensor("layers.7.v", COMMON_DTYPE_F16, 4, 2, 12, zeros); // layer
    write_file("bad", bad, 2);
    ctl_expect(4, "attach x %s", ctl_path("bad"));
    ctl_complained("layers 0 to 1");
    bad[0] = tensor("something", COMMON_DTYPE_F16, 4, 2, 8, zeros); // names
    write_file("bad", bad, 1);
    ctl_expect(4, "attach x %s", ctl_path("bad"));
    ctl_complained("layers.N.k");
    write_file("bad", &k, 1); // no q
    ctl_expect(4, "attend x %s", ctl_path("bad"));
    ctl_complained("'q'");
    bad[0] = tensor("q", COMMON_DTYPE_F16, 4, 4, 8, zeros);
    write_file("bad", bad, 1);
    ctl_expect(4, "attend x %s", ctl_path("bad"));
    ctl_complained("F32");
    FILE *file = fopen(ctl_path("bad"), "we");
    assert_non_null(file);
    fputs("this is no safetensors file", file);
    fclose(file);
    ctl_expect(4, "attach x %s", ctl_path("bad"));
    ctl_expect(11, "attach x /nonexistent/file", NULL);
    ctl_complained("/nonexistent/file");
    // Nothing of all that was sent.
    ctl_expect(0, "session show x -o json", NULL);
    json_t *json = ctl_parse();
    assert_int_equal(ctl_number(json, "bytes"), 0);
    json_decref(json);
    // A hole is a matter of state.
    write_file("good", (struct common_safetensor[]){k, v}, 2);
    ctl_expect(0, "attach x %s --first 100 --commit", ctl_path("good"));
    bad[0] = tensor("q", COMMON_DTYPE_F32, 1, 4, 8, zeros);
    write_file("q1", bad, 1);
    ctl_expect(9, "attend x %s --first 101", ctl_path("q1"));
    ctl_complained("HOLE");
    ctl_complained("tokens 0 to 99");
    ctl_expect(0, "session delete x", NULL);
}
