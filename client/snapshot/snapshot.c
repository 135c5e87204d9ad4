// SPDX-License-Identifier: Apache-2.0
#include "client/snapshot/snapshot.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash/hash.h"

#define FORMAT  "banyan snapshot"
#define VERSION 1 // without a floor
#define FLOORED 2

// ---- sizes ------------------------------------------------------------------------------------------------

static uint64_t element_bytes(enum common_dtype dtype)
{
    return dtype == COMMON_DTYPE_F32 ? 4 : dtype == COMMON_DTYPE_F16 || dtype == COMMON_DTYPE_BF16 ? 2 : 1;
}

static bool is_scaled(enum common_dtype dtype)
{
    return dtype == COMMON_DTYPE_I8 || dtype == COMMON_DTYPE_F8_E4M3;
}

uint64_t snapshot_row_bytes(const struct snapshot_shape *shape, uint32_t layer)
{
    const struct snapshot_layer *l = &shape->layers[layer];
    uint64_t codes = l->kv_heads * ((uint64_t)l->k_dim + l->v_dim) * element_bytes(shape->dtype);
    uint64_t scales = is_scaled(shape->dtype) ? l->kv_heads * sizeof(float) * (l->v_dim ? 2 : 1) : 0;
    return codes + scales;
}

uint64_t snapshot_file_tokens(const struct snapshot_shape *shape, uint32_t layer, uint64_t bytes,
                              uint64_t chunk_tokens)
{
    uint64_t most = bytes / snapshot_row_bytes(shape, layer);
    if (most > chunk_tokens)
        return most / chunk_tokens * chunk_tokens;
    return most > 0 ? most : 1;
}

bool snapshot_plan(struct snapshot *snapshot, const struct snapshot_shape *shape, uint64_t file_bytes,
                   uint64_t chunk_tokens)
{
    for (int counting = 1; counting >= 0; counting--) {
        size_t n = 0;
        for (uint32_t layer = 0; layer < shape->n_layers; layer++) {
            if (!shape->layers[layer].kv_heads)
                continue;
            uint64_t most = snapshot_file_tokens(shape, layer, file_bytes, chunk_tokens), tokens;
            for (uint64_t first = shape->layers[layer].from; first < snapshot->length; first += tokens, n++) {
                tokens = most > chunk_tokens ? most - first % chunk_tokens : most; // the next begins a chunk
                tokens = tokens < snapshot->length - first ? tokens : snapshot->length - first;
                if (!counting)
                    snapshot->files[n] =
                        (struct snapshot_file){.layer = layer, .first = first, .tokens = tokens};
            }
        }
        if (counting)
            snapshot->files = calloc(n + 1, sizeof *snapshot->files);
        if (!snapshot->files)
            return false;
        snapshot->n_files = n;
    }
    return true;
}

const struct snapshot_file *snapshot_nth(const struct snapshot *snapshot, size_t nth)
{
    size_t end = snapshot->n_files - 1, last = end;
    while (last > 0 && snapshot->files[last - 1].layer == snapshot->files[end].layer)
        last--;
    return &snapshot->files[nth == end ? last : nth == last ? end : nth];
}

void snapshot_file_name(const struct snapshot *snapshot, const struct snapshot_file *file,
                        char out[SNAPSHOT_NAME_BYTES])
{
    snprintf(out, SNAPSHOT_NAME_BYTES, "layer-%04" PRIu32 "-%012" PRIu64 ".safetensors%s", file->layer,
             file->first, snapshot->zstd ? ".zst" : "");
}

size_t snapshot_tensors(const struct snapshot_shape *shape, const struct snapshot_file *file,
                        struct snapshot_names *names, struct common_safetensor out[4])
{
    static const char *const kinds[] = {"k_scale", "v_scale", "k", "v"};
    const struct snapshot_layer *l = &shape->layers[file->layer];
    size_t n = 0;
    for (uint32_t i = is_scaled(shape->dtype) ? 0 : 2; i < 4; i++) {
        bool of_v = i % 2 == 1, codes = i >= 2;
        uint32_t dim = of_v ? l->v_dim : l->k_dim;
        if (dim == 0)
            continue;
        snprintf(names->text[n], sizeof names->text[n], "layers.%" PRIu32 ".%s", file->layer, kinds[i]);
        out[n] = (struct common_safetensor){.name = names->text[n],
                                            .dtype = codes ? shape->dtype : COMMON_DTYPE_F32,
                                            .n_dims = codes ? 3 : 2,
                                            .dims = {file->tokens, l->kv_heads, codes ? dim : 0}};
        out[n].bytes =
            file->tokens * l->kv_heads * (codes ? dim * element_bytes(shape->dtype) : sizeof(float));
        n++;
    }
    return n;
}

// ---- text -------------------------------------------------------------------------------------------------

static json_t *hex(uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "0x%016" PRIx64, value);
    return json_string(text);
}

// Of the manifest as it is without its sum, in one spelling. False: out of memory.
static bool sum_of(const json_t *manifest, uint64_t *out)
{
    char *text = json_dumps(manifest, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text)
        return false;
    *out = common_xxh3(text, strlen(text), 0);
    free(text);
    return true;
}

static json_t *file_json(const struct snapshot *snapshot, const struct snapshot_file *file)
{
    char name[SNAPSHOT_NAME_BYTES];
    snapshot_file_name(snapshot, file, name);
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:o}", "name", name, "layer", (json_int_t)file->layer,
                     "first", (json_int_t)file->first, "tokens", (json_int_t)file->tokens, "bytes",
                     (json_int_t)file->bytes, "stored", (json_int_t)file->stored, "xxh3", hex(file->sum));
}

char *snapshot_text(const struct snapshot *snapshot)
{
    json_t *files = json_array();
    for (size_t i = 0; i < snapshot->n_files; i++)
        json_array_append_new(files, file_json(snapshot, &snapshot->files[i]));
    json_t *manifest = json_pack("{s:s, s:i, s:O, s:I, s:s, s:O, s:o}", "format", FORMAT, "version",
                                 snapshot->floor ? FLOORED : VERSION, "session", snapshot->info, "length",
                                 (json_int_t)snapshot->length, "compression",
                                 snapshot->zstd ? "zstd" : "none", "spec", snapshot->spec, "files", files);
    uint64_t sum;
    char *text = NULL;
    bool floored = !snapshot->floor ||
                   json_object_set_new(manifest, "floor", json_integer((json_int_t)snapshot->floor)) == 0;
    if (manifest && floored && sum_of(manifest, &sum) && json_object_set_new(manifest, "xxh3", hex(sum)) == 0)
        text = json_dumps(manifest, JSON_INDENT(1));
    json_decref(manifest);
    return text;
}

// ---- reading ----------------------------------------------------------------------------------------------

static enum common_code bad(struct common_error *err, const char *what)
{
    return common_error_set(err, COMMON_INVALID_ARGUMENT, "manifest.json: %s", what);
}

static bool read_number(const json_t *object, const char *key, uint64_t most, uint64_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        (uint64_t)json_integer_value(value) > most)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static bool read_hex(const json_t *value, uint64_t *out)
{
    const char *text = json_string_value(value);
    if (!text || strlen(text) != 18 || strncmp(text, "0x", 2) != 0 ||
        strspn(text + 2, "0123456789abcdef") != 16)
        return false;
    *out = strtoull(text + 2, NULL, 16);
    return true;
}

static enum common_code read_file(const struct snapshot *snapshot, const json_t *from, size_t nth,
                                  struct snapshot_file *to, struct common_error *err)
{
    uint64_t layer = 0, most = SNAPSHOT_ROWS_BYTES + SNAPSHOT_HEAD_BYTES;
    char name[SNAPSHOT_NAME_BYTES], what[160];
    if (!json_is_object(from) || !read_number(from, "layer", UINT16_MAX, &layer) ||
        !read_number(from, "first", SNAPSHOT_LENGTH_MAX, &to->first) ||
        !read_number(from, "tokens", SNAPSHOT_LENGTH_MAX, &to->tokens) ||
        !read_number(from, "bytes", most, &to->bytes) ||
        !read_number(from, "stored", 2 * most, &to->stored) ||
        !read_hex(json_object_get(from, "xxh3"), &to->sum)) {
        snprintf(
            what, sizeof what,
            "entry %zu of 'files' lacks layer, first, tokens, bytes, stored or xxh3, or one is out of range",
            nth);
        return bad(err, what);
    }
    to->layer = (uint32_t)layer;
    const char *given = json_string_value(json_object_get(from, "name"));
    snapshot_file_name(snapshot, to, name);
    if (given && strcmp(given, name) == 0)
        return COMMON_OK;
    snprintf(what, sizeof what, "entry %zu of 'files' is named '%.60s', not '%s'", nth, given ? given : "",
             name);
    return bad(err, what);
}

static enum common_code read_files(struct snapshot *snapshot, const json_t *files, struct common_error *err)
{
    size_t n = json_array_size(files);
    if (!json_is_array(files) || n > SNAPSHOT_FILES_MAX)
        return bad(err, "'files' is not a list, or too long");
    snapshot->files = calloc(n + 1, sizeof *snapshot->files);
    if (!snapshot->files)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    enum common_code code = COMMON_OK;
    for (size_t i = 0; i < n && code == COMMON_OK; i++)
        code = read_file(snapshot, json_array_get(files, i), i, &snapshot->files[i], err);
    snapshot->n_files = n;
    return code;
}

static enum common_code read_manifest(json_t *manifest, struct snapshot *out, struct common_error *err)
{
    const char *format = json_string_value(json_object_get(manifest, "format"));
    const char *compression = json_string_value(json_object_get(manifest, "compression"));
    uint64_t version, want, sum;
    if (!format || strcmp(format, FORMAT) != 0)
        return bad(err, "it does not belong to a Banyan snapshot ('format')");
    if (!read_number(manifest, "version", INT32_MAX, &version) || (version != VERSION && version != FLOORED))
        return bad(err, "its version is not 1 or 2: another release of banyanctl wrote it");
    if (!read_hex(json_object_get(manifest, "xxh3"), &want))
        return bad(err, "'xxh3' is missing");
    json_object_del(manifest, "xxh3");
    if (!sum_of(manifest, &sum))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    if (sum != want)
        return bad(err, "its contents do not match its 'xxh3': it was altered or damaged");
    if (!read_number(manifest, "length", SNAPSHOT_LENGTH_MAX, &out->length))
        return bad(err, "'length' is not a number of tokens");
    if (version == VERSION && json_object_get(manifest, "floor"))
        return bad(err, "'floor' needs version 2");
    if (version == FLOORED &&
        (!read_number(manifest, "floor", SNAPSHOT_LENGTH_MAX, &out->floor) || out->floor == 0))
        return bad(err, "'floor' is not a position past 0");
    if (out->floor > out->length)
        return bad(err, "'floor' is past 'length'");
    if (!compression || (strcmp(compression, "none") != 0 && strcmp(compression, "zstd") != 0))
        return bad(err, "'compression' is not none or zstd");
    out->zstd = strcmp(compression, "zstd") == 0;
    out->spec = json_incref(json_object_get(manifest, "spec"));
    out->info = json_incref(json_object_get(manifest, "session"));
    if (!json_is_object(out->spec) || !json_is_object(out->info))
        return bad(err, "'spec' or 'session' is not an object");
    return read_files(out, json_object_get(manifest, "files"), err);
}

enum common_code snapshot_parse(const char *text, size_t len, struct snapshot *out, struct common_error *err)
{
    json_error_t error;
    struct snapshot snapshot = {0};
    json_t *manifest = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (!manifest)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "manifest.json: line %d: %.150s", error.line,
                                error.text);
    enum common_code code =
        json_is_object(manifest) ? read_manifest(manifest, &snapshot, err) : bad(err, "it is not an object");
    json_decref(manifest);
    if (code == COMMON_OK)
        *out = snapshot;
    else
        snapshot_clear(&snapshot);
    return code;
}

// ---- files against the spec -------------------------------------------------------------------------------

static enum common_code check_size(const struct snapshot *snapshot, const struct snapshot_shape *shape,
                                   const struct snapshot_file *file, struct common_error *err)
{
    char name[SNAPSHOT_NAME_BYTES];
    uint64_t row = snapshot_row_bytes(shape, file->layer), most = SNAPSHOT_ROWS_BYTES;
    snapshot_file_name(snapshot, file, name);
    if (file->tokens == 0 || file->tokens > most / row)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "manifest.json: %s has %" PRIu64 " tokens: 1 to %" PRIu64 " are allowed",
                                name, file->tokens, most / row);
    uint64_t rows = file->tokens * row;
    if (file->bytes <= rows || file->bytes - rows > SNAPSHOT_HEAD_BYTES)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "manifest.json: %s has %" PRIu64 " bytes: its rows have %" PRIu64
                                " and its header up to %d more",
                                name, file->bytes, rows, SNAPSHOT_HEAD_BYTES);
    if (!snapshot->zstd && file->stored != file->bytes)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "manifest.json: %s is not compressed, and 'stored' is not 'bytes'", name);
    return COMMON_OK;
}

enum common_code snapshot_check(const struct snapshot *snapshot, const struct snapshot_shape *shape,
                                struct common_error *err)
{
    size_t at = 0;
    for (uint32_t layer = 0; layer < shape->n_layers; layer++) {
        uint64_t end = shape->layers[layer].kv_heads ? snapshot->length : 0;
        for (uint64_t position = shape->layers[layer].from; position < end; at++) {
            const struct snapshot_file *file = &snapshot->files[at];
            if (at == snapshot->n_files || file->layer != layer || file->first != position)
                return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                        "manifest.json: no file has layer %" PRIu32 " from position %" PRIu64
                                        " on in its place: rows are missing, overlap or are out of order",
                                        layer, position);
            enum common_code code = check_size(snapshot, shape, file, err);
            if (code != COMMON_OK)
                return code;
            if (file->tokens > end - position)
                return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                        "manifest.json: a file of layer %" PRIu32 " ends past %" PRIu64
                                        " tokens",
                                        layer, end);
            position += file->tokens;
        }
    }
    if (at == snapshot->n_files)
        return COMMON_OK;
    return common_error_set(err, COMMON_INVALID_ARGUMENT,
                            "manifest.json: a file is for layer %" PRIu32 " from position %" PRIu64
                            ", which the session does not have",
                            snapshot->files[at].layer, snapshot->files[at].first);
}

void snapshot_clear(struct snapshot *snapshot)
{
    json_decref(snapshot->spec);
    json_decref(snapshot->info);
    free(snapshot->files);
    *snapshot = (struct snapshot){0};
}
