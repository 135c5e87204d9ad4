// SPDX-License-Identifier: Apache-2.0
// The example's reader of models: what it takes (F32, F16, BF16, tied or not) and what it refuses, by running
// `generate` on small models made here. A refusal is exit code 1 and one line that names what is wrong.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/tensor/float16.h"
#include "tests/harness/process.h"

static char dir[256], prompt[300];

static const char good_config[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 16, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,\n"
    " \"num_key_value_heads\": 1, \"intermediate_size\": 24, \"vocab_size\": 256, \"rms_norm_eps\": 1e-5,\n"
    " \"rope_theta\": 10000.0, \"max_position_embeddings\": 128, \"hidden_act\": \"silu\", "
    "\"tie_word_embeddings\": "
    "true}";

struct model {
    char *header; // JSON
    uint8_t *data;
    size_t data_len, cut; // cut: bytes that the file lacks at its end
    uint64_t header_len;  // as the file says; 0: as it is
};

static size_t element(const char *dtype)
{
    return strcmp(dtype, "F32") == 0 ? 4 : 2;
}

static void add_tensor(struct model *m, const char *name, const char *dtype, unsigned d0, unsigned d1)
{
    size_t n = (size_t)d0 * (d1 ? d1 : 1), at = m->data_len, bytes = n * element(dtype);
    char entry[300], shape[40];
    m->data = realloc(m->data, at + bytes);
    assert_non_null(m->data);
    for (size_t i = 0; i < n; i++) {
        // Small numbers that no two weights share; norms of one
        uint64_t x = (at + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        float w = d1 ? ((float)(x >> 40) / (float)(1 << 24) - 0.5f) : 1.0f;
        uint16_t half = strcmp(dtype, "F16") == 0 ? common_f16_from_float(w) : common_bf16_from_float(w);
        memcpy(m->data + at + i * element(dtype), element(dtype) == 4 ? (void *)&w : (void *)&half,
               element(dtype));
    }
    m->data_len += bytes;
    if (d1)
        snprintf(shape, sizeof(shape), "[%u,%u]", d0, d1);
    else
        snprintf(shape, sizeof(shape), "[%u]", d0);
    snprintf(entry, sizeof(entry), "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
             m->header[1] ? "," : "", name, dtype, shape, at, at + bytes);
    m->header = realloc(m->header, strlen(m->header) + strlen(entry) + 2);
    assert_non_null(m->header);
    strcat(m->header, entry);
}

static struct model make(const char *dtype, bool tied)
{
    struct model m = {.header = strdup("{")};
    char name[100];
    static const struct {
        const char *name;
        unsigned d0, d1;
    } layer[] = {{"self_attn.q_proj", 16, 16},       {"self_attn.k_proj", 8, 16},
                 {"self_attn.v_proj", 8, 16},        {"self_attn.o_proj", 16, 16},
                 {"mlp.gate_proj", 24, 16},          {"mlp.up_proj", 24, 16},
                 {"mlp.down_proj", 16, 24},          {"input_layernorm", 16, 0},
                 {"post_attention_layernorm", 16, 0}};
    add_tensor(&m, "model.embed_tokens.weight", dtype, 256, 16);
    add_tensor(&m, "model.norm.weight", dtype, 16, 0);
    if (!tied)
        add_tensor(&m, "lm_head.weight", dtype, 256, 16);
    for (unsigned l = 0; l < 2; l++)
        for (size_t i = 0; i < sizeof(layer) / sizeof(*layer); i++) {
            snprintf(name, sizeof(name), "model.layers.%u.%s.weight", l, layer[i].name);
            add_tensor(&m, name, dtype, layer[i].d0, layer[i].d1);
        }
    strcat(m.header, "}"); // there is room: see above
    return m;
}

static void spill(const char *name, const void *bytes, size_t len, const char *how)
{
    char path[400];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *file = fopen(path, how);
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, len, file), len);
    assert_int_equal(fclose(file), 0);
}

static void write_model(const struct model *m)
{
    uint64_t len = m->header_len ? m->header_len : strlen(m->header);
    spill("model.safetensors", &len, 8, "wb");
    spill("model.safetensors", m->header, strlen(m->header), "ab");
    assert_true(m->cut <= m->data_len);
    spill("model.safetensors", m->data, m->data_len - m->cut, "ab");
}

static void model_free(struct model *m)
{
    free(m->header);
    free(m->data);
}

// Replaces the first `from` by `to`, wherever it stands.
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (!at)
        fail_msg("nothing to replace: %s", from);
    char *out = malloc(strlen(text) + strlen(to) + 1);
    assert_non_null(out);
    memcpy(out, text, (size_t)(at - text));
    strcpy(out + (at - text), to);
    strcat(out, at + strlen(from));
    return out;
}

static struct harness_output run(void)
{
    char program[4096];
    struct harness_output out;
    assert_true(harness_program_path("generate", program, sizeof(program)));
    char *argv[] = {program,
                    (char *)"--local",
                    (char *)"--model",
                    dir,
                    (char *)"--prompt-file",
                    prompt,
                    (char *)"--tokens",
                    (char *)"20",
                    (char *)"--generate",
                    (char *)"4",
                    (char *)"--threads",
                    (char *)"1",
                    (char *)"--no-color",
                    NULL};
    assert_true(harness_run(argv, NULL, 100 * COMMON_NS_PER_S, &out));
    return out;
}

static void accepted(const char *what)
{
    struct harness_output out = run();
    if (out.exit_code != 0)
        fail_msg("%s: exit code %d: %s", what, out.exit_code, out.err);
    assert_true(out.out_len >= 4);
    harness_output_free(&out);
}

static void refused(const char *what, const char *must_name)
{
    struct harness_output out = run();
    char *line = out.err;
    printf("  %-40s %s", what, out.err_len ? line : "(nothing)\n");
    if (out.exit_code != 1)
        fail_msg("%s: exit code %d: %s", what, out.exit_code, out.err);
    if (!strstr(out.err, must_name))
        fail_msg("%s: '%s' is not named: %s", what, must_name, out.err);
    if (strncmp(out.err, "generate: ", 10) != 0 || strchr(out.err, '\n') != out.err + out.err_len - 1)
        fail_msg("%s: not one line: %s", what, out.err);
    assert_int_equal(out.out_len, 0);
    harness_output_free(&out);
}

static void set_config(const char *text)
{
    spill("config.json", text, strlen(text), "wb");
}

static void good_models(void **state)
{
    (void)state;
    static const char *const types[] = {"F32", "F16", "BF16"};
    for (int t = 0; t < 3; t++)
        for (int tied = 0; tied < 2; tied++) {
            struct model m = make(types[t], tied);
            char *config = tied ? strdup(good_config) : replaced(good_config, "true", "false");
            set_config(config);
            write_model(&m);
            accepted(types[t]);
            free(config);
            model_free(&m);
        }
}

static void bad_configs(void **state)
{
    (void)state;
    static const struct {
        const char *what, *from, *to, *names;
    } bad[] = {
        {"not JSON", "}", "", "config.json"},
        {"a list", "{\"model_type\": \"llama\", ", "[", "config.json"},
        {"no hidden_size", "hidden_size", "hidden_sise", "hidden_size"},
        {"hidden_size a text", "\"hidden_size\": 16", "\"hidden_size\": \"16\"", "hidden_size"},
        {"hidden_size 0", "\"hidden_size\": 16", "\"hidden_size\": 0", "hidden_size"},
        {"hidden_size below 0", "\"hidden_size\": 16", "\"hidden_size\": -16", "hidden_size"},
        {"hidden_size 2^40", "\"hidden_size\": 16", "\"hidden_size\": 1099511627776", "hidden_size"},
        {"layers beyond reason", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4000000000",
         "num_hidden_layers"},
        {"more layers than weights", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3",
         "model.layers.2"},
        {"heads that do not divide", "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 3", "heads"},
        {"a head_dim above the limit that the sizes make", "\"hidden_size\": 16", "\"hidden_size\": 4096",
         "head_dim"},
        {"an odd head_dim", "\"hidden_size\": 16", "\"hidden_size\": 16, \"head_dim\": 7", "head_dim"},
        {"another head_dim than the weights'", "\"hidden_size\": 16", "\"hidden_size\": 16, \"head_dim\": 10",
         "q_proj"},
        {"a larger vocabulary than the weights'", "\"vocab_size\": 256", "\"vocab_size\": 300",
         "embed_tokens"},
        {"another activation", "silu", "gelu", "gelu"},
        {"an unknown rope scaling", "\"hidden_size\": 16",
         "\"hidden_size\": 16, \"rope_scaling\": {\"rope_type\": \"yarn\"}", "yarn"},
        {"an impossible rope scaling", "\"hidden_size\": 16",
         "\"hidden_size\": 16, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 0}", "rope_scaling"},
        {"rope_theta 0", "10000.0", "0", "rope_theta"},
        {"rope_theta a text", "10000.0", "\"10000\"", "rope_theta"},
        {"rms_norm_eps below 0", "1e-5", "-1", "rms_norm_eps"},
        {"layers with bias", "\"hidden_size\": 16", "\"hidden_size\": 16, \"attention_bias\": true", "bias"},
        {"untied without an output", "true", "false", "lm_head"},
        {"fewer positions than the prompt", "128", "10", "positions"},
    };
    struct model m = make("F32", true);
    write_model(&m);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        char *config = replaced(good_config, bad[i].from, bad[i].to);
        set_config(config);
        refused(bad[i].what, bad[i].names);
        free(config);
    }
    char path[300];
    snprintf(path, sizeof(path), "%s/config.json", dir);
    unlink(path);
    refused("no config.json", "config.json");
    set_config(good_config);
    model_free(&m);
}

static void bad_weights(void **state)
{
    (void)state;
    static const struct {
        const char *what, *from, *to, *names;
        size_t cut;
        uint64_t header_len;
    } bad[] = {
        {"the last bytes are missing", "{", "{", "layers.1", 10, 0},
        {"half of the data is missing", "{", "{", "tensor", 12000, 0},
        {"a header longer than the file", "{", "{", "header", 0, 1 << 30},
        {"a header length that wraps", "{", "{", "header", 0, UINT64_MAX - 7},
        {"a header cut short", "{", "{", "header", 0, 100},
        {"a tensor that is missing", "model.layers.1.mlp.up_proj", "model.layers.1.mlp.up_broj",
         "model.layers.1.mlp.up_proj", 0, 0},
        {"the norm is missing", "model.norm", "model.form", "model.norm", 0, 0},
        {"a transposed shape", "[24,16]", "[16,24]", "gate_proj", 0, 0},
        {"one dimension too few", "[256,16]", "[4096]", "embed_tokens", 0, 0},
        {"a shape that is not the bytes", "[256,16]", "[256,17]", "embed_tokens", 0, 0},
        {"a shape whose product wraps", "[256,16]", "[4294967296,4294967296]", "embed_tokens", 0, 0},
        {"a dimension below 0", "[256,16]", "[-256,16]", "embed_tokens", 0, 0},
        {"offsets that wrap", "\"data_offsets\":[0,16384]", "\"data_offsets\":[9223372036854775807,16384]",
         "embed_tokens", 0, 0},
        {"offsets below 0", "\"data_offsets\":[0,16384]", "\"data_offsets\":[-16384,0]", "embed_tokens", 0,
         0},
        {"offsets beyond the file", "\"data_offsets\":[0,16384]", "\"data_offsets\":[16777216,16793600]",
         "embed_tokens", 0, 0},
        {"integers for weights", "\"dtype\":\"F32\"", "\"dtype\":\"I32\"", "embed_tokens", 0, 0},
        {"an unknown type", "\"dtype\":\"F32\"", "\"dtype\":\"Q9\"", "embed_tokens", 0, 0},
        {"no JSON", "{\"model", "model", "header", 0, 0},
    };
    set_config(good_config);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct model m = make("F32", true);
        char *header = replaced(m.header, bad[i].from, bad[i].to);
        free(m.header);
        m.header = header;
        m.cut = bad[i].cut;
        m.header_len = bad[i].header_len;
        write_model(&m);
        refused(bad[i].what, bad[i].names);
        model_free(&m);
    }
    spill("model.safetensors", "", 0, "wb");
    refused("an empty file", "model.safetensors");
    char path[300];
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    unlink(path);
    refused("no file", "model.safetensors");
}

// Weights that are not numbers make logits that are not: nothing is invented.
static void weights_that_are_nan(void **state)
{
    (void)state;
    struct model m = make("F32", true);
    memset(m.data, 0xff, 16384);
    set_config(good_config);
    write_model(&m);
    struct harness_output out = run();
    assert_int_equal(out.exit_code, 1);
    assert_non_null(strstr(out.err, "not numbers"));
    harness_output_free(&out);
    model_free(&m);
}

static int start(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/banyan-loader-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(prompt, sizeof(prompt), "%s/prompt", dir);
    spill("prompt", "In the beginning was the Word", 29, "wb");
    return 0;
}

static int stop(void **state)
{
    (void)state;
    static const char *const names[] = {"prompt", "config.json", "model.safetensors"};
    for (int i = 0; i < 3; i++) {
        char path[300];
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        unlink(path);
    }
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_models),
        cmocka_unit_test(bad_configs),
        cmocka_unit_test(bad_weights),
        cmocka_unit_test(weights_that_are_nan),
    };
    return cmocka_run_group_tests_name("loader of models", tests, start, stop);
}
