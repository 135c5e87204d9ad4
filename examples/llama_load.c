// SPDX-License-Identifier: Apache-2.0
// config.json and model.safetensors into a struct llama, every field and shape checked.
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensor/float16.h"
#include "common/tensor/safetensors.h"
#include "examples/llama.h"

static enum common_code read_u32(const json_t *config, const char *key, uint32_t max, uint32_t *out,
                                 struct common_error *err)
{
    const json_t *value = json_object_get(config, key);
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > (json_int_t)max)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "config.json: %s must be a whole number from 1 to %u", key, max);
    *out = (uint32_t)json_integer_value(value);
    return COMMON_OK;
}

static enum common_code read_scaling(const json_t *config, struct llama_config *c, struct common_error *err)
{
    const json_t *scaling = json_object_get(config, "rope_scaling");
    if (!scaling || json_is_null(scaling))
        return COMMON_OK;
    const char *type = json_string_value(json_object_get(scaling, "rope_type"));
    if (!type)
        type = json_string_value(json_object_get(scaling, "type"));
    if (!type || strcmp(type, "llama3") != 0)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "config.json: rope_scaling of type %s is not supported; only llama3 is",
                                type ? type : "(none)");
    c->scaling.factor = json_number_value(json_object_get(scaling, "factor"));
    c->scaling.low = json_number_value(json_object_get(scaling, "low_freq_factor"));
    c->scaling.high = json_number_value(json_object_get(scaling, "high_freq_factor"));
    c->scaling.original = json_number_value(json_object_get(scaling, "original_max_position_embeddings"));
    if (c->scaling.factor < 1 || c->scaling.low <= 0 || c->scaling.high <= c->scaling.low ||
        c->scaling.original < 1)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "config.json: rope_scaling has impossible factors");
    return COMMON_OK;
}

static enum common_code check_config(const json_t *j, struct llama_config *c, struct common_error *err)
{
    enum common_code code;
    uint32_t positions;
    if ((code = read_u32(j, "hidden_size", 65536, &c->hidden, err)) ||
        (code = read_u32(j, "num_hidden_layers", 1024, &c->layers, err)) ||
        (code = read_u32(j, "num_attention_heads", 1024, &c->q_heads, err)) ||
        (code = read_u32(j, "intermediate_size", 1 << 20, &c->intermediate, err)) ||
        (code = read_u32(j, "vocab_size", 1 << 22, &c->vocab, err)) ||
        (code = read_u32(j, "max_position_embeddings", 1u << 30, &positions, err)))
        return code;
    c->max_positions = positions;
    c->kv_heads = c->q_heads;
    if (json_object_get(j, "num_key_value_heads") &&
        (code = read_u32(j, "num_key_value_heads", 1024, &c->kv_heads, err)))
        return code;
    c->head_dim = c->hidden / c->q_heads;
    const json_t *dim = json_object_get(j, "head_dim");
    if (dim && !json_is_null(dim) && (code = read_u32(j, "head_dim", 1024, &c->head_dim, err)))
        return code;
    if (c->q_heads % c->kv_heads || c->head_dim == 0 || c->head_dim % 2 || c->head_dim > 1024)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "config.json: %u attention heads, %u KV heads, head_dim %u do not match",
                                c->q_heads, c->kv_heads, c->head_dim);
    if (json_is_true(json_object_get(j, "attention_bias")) || json_is_true(json_object_get(j, "mlp_bias")))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "config.json: layers with bias are not supported");
    const char *act = json_string_value(json_object_get(j, "hidden_act"));
    if (act && strcmp(act, "silu") != 0)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "config.json: hidden_act %s is not supported; only silu is", act);
    const json_t *eps = json_object_get(j, "rms_norm_eps"), *theta = json_object_get(j, "rope_theta");
    c->norm_eps = eps ? (float)(json_is_number(eps) ? json_number_value(eps) : -1) : 1e-6f;
    c->rope_theta = theta ? json_number_value(theta) : 10000.0; // 0 for what is not a number
    if (!(c->norm_eps >= 0) || !(c->rope_theta > 1))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "config.json: rms_norm_eps or rope_theta is impossible");
    c->tied = json_is_true(json_object_get(j, "tie_word_embeddings"));
    return read_scaling(j, c, err);
}

static enum common_code load_config(const char *dir, struct llama_config *c, struct common_error *err)
{
    char path[4096];
    json_error_t je;
    if (snprintf(path, sizeof(path), "%s/config.json", dir) >= (int)sizeof(path))
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "the model's directory has too long a name");
    FILE *file = fopen(path, "re");
    if (!file)
        return common_error_set(err, COMMON_NOT_FOUND, "cannot read %s: %s", path, strerror(errno));
    json_t *j = json_loadf(file, JSON_REJECT_DUPLICATES, &je);
    fclose(file);
    if (!j)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "%s: %s (line %d)", path, je.text, je.line);
    enum common_code code = check_config(j, c, err);
    json_decref(j);
    return code;
}

// Finds a tensor of exactly this shape and converts it to float32. dim1 0: a vector. The array is the
// caller's to free.
static enum common_code load_tensor(const struct common_safetensors *file, const char *name, uint64_t dim0,
                                    uint64_t dim1, float **out, struct common_error *err)
{
    const struct common_safetensor *t = common_safetensors_find(file, name);
    if (!t)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "model.safetensors: tensor %s is missing",
                                name);
    uint32_t dims = dim1 ? 2 : 1;
    if (t->n_dims != dims || t->dims[0] != dim0 || (dim1 && t->dims[1] != dim1))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "model.safetensors: %s should have shape [%llu%s%.0llu]", name,
                                (unsigned long long)dim0, dim1 ? ", " : "", (unsigned long long)dim1);
    if (t->dtype != COMMON_DTYPE_F32 && t->dtype != COMMON_DTYPE_F16 && t->dtype != COMMON_DTYPE_BF16)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "model.safetensors: %s is not F32, F16 or BF16",
                                name);
    size_t n = dim0 * (dim1 ? dim1 : 1);
    float *w = malloc(n * sizeof(float));
    if (!w)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for %s", name);
    for (size_t i = 0; i < n; i++) { // the file does not align its tensors: memcpy
        uint16_t half;
        if (t->dtype == COMMON_DTYPE_F32) {
            memcpy(&w[i], (const char *)t->data + i * 4, 4);
        } else {
            memcpy(&half, (const char *)t->data + i * 2, 2);
            w[i] = t->dtype == COMMON_DTYPE_F16 ? common_f16_to_float(half) : common_bf16_to_float(half);
        }
    }
    *out = w;
    return COMMON_OK;
}

static enum common_code load_matrix(const struct common_safetensors *file, const char *name, uint32_t out_dim,
                                    uint32_t in_dim, struct matrix *out, struct common_error *err)
{
    float *w;
    enum common_code code = load_tensor(file, name, out_dim, in_dim, &w, err);
    if (code != COMMON_OK)
        return code;
    if (matrix_pack(out, w, out_dim, in_dim))
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for %s", name);
    free(w);
    return code;
}

static enum common_code load_layer(const struct common_safetensors *file, const struct llama_config *c,
                                   uint32_t index, struct llama_layer *layer, struct common_error *err)
{
    uint32_t q = c->q_heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const struct {
        const char *name;
        uint32_t out, in;
        struct matrix *to;
    } matrices[] = {
        {"self_attn.q_proj", q, c->hidden, &layer->q},
        {"self_attn.k_proj", kv, c->hidden, &layer->k},
        {"self_attn.v_proj", kv, c->hidden, &layer->v},
        {"self_attn.o_proj", c->hidden, q, &layer->o},
        {"mlp.gate_proj", c->intermediate, c->hidden, &layer->gate},
        {"mlp.up_proj", c->intermediate, c->hidden, &layer->up},
        {"mlp.down_proj", c->hidden, c->intermediate, &layer->down},
    };
    char name[128];
    enum common_code code = COMMON_OK;
    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]) && code == COMMON_OK; i++) {
        snprintf(name, sizeof(name), "model.layers.%u.%s.weight", index, matrices[i].name);
        code = load_matrix(file, name, matrices[i].out, matrices[i].in, matrices[i].to, err);
    }
    if (code != COMMON_OK)
        return code;
    snprintf(name, sizeof(name), "model.layers.%u.input_layernorm.weight", index);
    if ((code = load_tensor(file, name, c->hidden, 0, &layer->input_norm, err)) != COMMON_OK)
        return code;
    snprintf(name, sizeof(name), "model.layers.%u.post_attention_layernorm.weight", index);
    return load_tensor(file, name, c->hidden, 0, &layer->post_norm, err);
}

// Inverse frequencies; with llama3 scaling long wavelengths are stretched, short ones kept, the middle
// blended.
static enum common_code make_frequencies(struct llama *model, struct common_error *err)
{
    const struct llama_config *c = &model->config;
    model->inv_freq = malloc(c->head_dim / 2 * sizeof(double));
    if (!model->inv_freq)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for the rotary embedding");
    for (uint32_t i = 0; i < c->head_dim / 2; i++) {
        double f = pow(c->rope_theta, -2.0 * i / c->head_dim);
        if (c->scaling.factor > 0) {
            double turns = c->scaling.original * f / (2 * 3.14159265358979323846);
            double keep = (turns - c->scaling.low) / (c->scaling.high - c->scaling.low);
            keep = keep < 0 ? 0 : keep > 1 ? 1 : keep;
            f = (1 - keep) * f / c->scaling.factor + keep * f;
        }
        model->inv_freq[i] = f;
    }
    return COMMON_OK;
}

static enum common_code load_weights(const struct common_safetensors *file, struct llama *model,
                                     struct common_error *err)
{
    const struct llama_config *c = &model->config;
    enum common_code code;
    if ((code =
             load_tensor(file, "model.embed_tokens.weight", c->vocab, c->hidden, &model->embedding, err)) ||
        (code = load_tensor(file, "model.norm.weight", c->hidden, 0, &model->norm, err)))
        return code;
    if ((code = load_matrix(file, c->tied ? "model.embed_tokens.weight" : "lm_head.weight", c->vocab,
                            c->hidden, &model->output, err)))
        return code;
    for (uint32_t l = 0; l < c->layers && code == COMMON_OK; l++)
        code = load_layer(file, c, l, &model->layers[l], err);
    return code;
}

enum common_code llama_load(const char *dir, struct llama **out, struct common_error *err)
{
    char path[4096];
    struct common_safetensors *file = NULL;
    struct llama *model = calloc(1, sizeof(*model));
    if (!model)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for the model");
    enum common_code code = load_config(dir, &model->config, err);
    if (code != COMMON_OK)
        goto fail;
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    if ((code = common_safetensors_open(path, &file, err)) != COMMON_OK)
        goto fail;
    model->layers = calloc(model->config.layers, sizeof(*model->layers));
    if (!model->layers) {
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for the model");
        goto fail;
    }
    if ((code = load_weights(file, model, err)) != COMMON_OK ||
        (code = make_frequencies(model, err)) != COMMON_OK)
        goto fail;
    common_safetensors_close(file);
    *out = model;
    return COMMON_OK;
fail:
    common_safetensors_close(file);
    llama_free(model);
    return code;
}

void llama_free(struct llama *model)
{
    if (!model)
        return;
    for (uint32_t l = 0; model->layers && l < model->config.layers; l++) {
        struct llama_layer *layer = &model->layers[l];
        struct matrix *matrices[] = {&layer->q,    &layer->k,  &layer->v,   &layer->o,
                                     &layer->gate, &layer->up, &layer->down};
        for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++)
            matrix_free(matrices[i]);
        free(layer->input_norm);
        free(layer->post_norm);
    }
    matrix_free(&model->output);
    free(model->layers);
    free(model->embedding);
    free(model->norm);
    free(model->inv_freq);
    free(model);
}
