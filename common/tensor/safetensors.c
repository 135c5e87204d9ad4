// SPDX-License-Identifier: Apache-2.0
#include "common/tensor/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/memory/blob.h"

#define HEADER_MAX_BYTES (UINT64_C(64) << 20)
#define PREFIX_BYTES     8

// The file:   | header length: 8 bytes LE | JSON header | data … |
// Offsets in the header count from the first byte of data.
struct common_safetensors {
    const uint8_t *map;
    size_t map_len;
    bool borrowed; // the map is the caller's memory
    const uint8_t *data;
    size_t data_len;
    struct common_safetensor *tensors; // sorted by name
    size_t n_tensors;
};

static const struct {
    const char *name;
    enum common_dtype dtype;
    size_t bytes;
} dtypes[] = {
    {"F32", COMMON_DTYPE_F32, 4},       {"F16", COMMON_DTYPE_F16, 2},
    {"BF16", COMMON_DTYPE_BF16, 2},     {"F64", COMMON_DTYPE_OTHER, 8},
    {"I64", COMMON_DTYPE_OTHER, 8},     {"U64", COMMON_DTYPE_OTHER, 8},
    {"I32", COMMON_DTYPE_OTHER, 4},     {"U32", COMMON_DTYPE_OTHER, 4},
    {"I16", COMMON_DTYPE_OTHER, 2},     {"U16", COMMON_DTYPE_OTHER, 2},
    {"I8", COMMON_DTYPE_I8, 1},         {"U8", COMMON_DTYPE_OTHER, 1},
    {"BOOL", COMMON_DTYPE_OTHER, 1},    {"F8_E4M3", COMMON_DTYPE_F8_E4M3, 1},
    {"F8_E5M2", COMMON_DTYPE_OTHER, 1}, {"F8_E8M0", COMMON_DTYPE_OTHER, 1},
};

static enum common_code bad(struct common_error *err, const char *name, const char *reason)
{
    return common_error_set(err, COMMON_INVALID_ARGUMENT, "tensor '%.120s': %s", name, reason);
}

static bool read_size(const json_t *value, size_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (size_t)json_integer_value(value);
    return true;
}

static enum common_code read_shape(const char *name, const json_t *shape, struct common_safetensor *out,
                                   size_t *n_elements, struct common_error *err)
{
    if (!json_is_array(shape))
        return bad(err, name, "'shape' is not an array");
    if (json_array_size(shape) > COMMON_SAFETENSORS_DIMS)
        return bad(err, name, "more than 8 dimensions");
    size_t n = 1;
    bool empty = false;
    for (size_t i = 0; i < json_array_size(shape); i++) {
        size_t dim;
        if (!read_size(json_array_get(shape, i), &dim))
            return bad(err, name, "a dimension is not a whole number >= 0");
        out->dims[i] = dim;
        if (dim == 0)
            empty = true;
        else if (!common_size_mul(n, dim, &n))
            return bad(err, name, "the product of the dimensions does not fit in 64 bits");
    }
    out->n_dims = (uint32_t)json_array_size(shape);
    *n_elements = empty ? 0 : n;
    return COMMON_OK;
}

static enum common_code read_tensor(const struct common_safetensors *file, const char *name,
                                    const json_t *entry, struct common_safetensor *out,
                                    struct common_error *err)
{
    if (!json_is_object(entry))
        return bad(err, name, "its entry is not an object");
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype)
        return bad(err, name, "'dtype' is missing");
    size_t kind = 0;
    while (kind < sizeof dtypes / sizeof *dtypes && strcmp(dtypes[kind].name, dtype) != 0)
        kind++;
    if (kind == sizeof dtypes / sizeof *dtypes)
        return bad(err, name, "unknown dtype");
    out->dtype = dtypes[kind].dtype;

    size_t n_elements = 0, bytes, begin, end;
    enum common_code code = read_shape(name, json_object_get(entry, "shape"), out, &n_elements, err);
    if (code != COMMON_OK)
        return code;
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (json_array_size(offsets) != 2 || !read_size(json_array_get(offsets, 0), &begin) ||
        !read_size(json_array_get(offsets, 1), &end))
        return bad(err, name, "'data_offsets' is not a pair of whole numbers >= 0");
    if (begin > end || end > file->data_len)
        return bad(err, name, "its data lie outside the file");
    if (!common_size_mul(n_elements, dtypes[kind].bytes, &bytes) || bytes != end - begin)
        return bad(err, name, "its size in bytes does not match its shape");
    out->data = file->data + begin;
    out->bytes = bytes;
    out->name = strdup(name);
    return out->name ? COMMON_OK : common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
}

static int by_data(const void *a, const void *b)
{
    const struct common_safetensor *x = a, *y = b;
    if (x->data != y->data)
        return (const uint8_t *)x->data < (const uint8_t *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
    const struct common_safetensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static enum common_code read_header(struct common_safetensors *file, const json_t *header,
                                    struct common_error *err)
{
    if (!json_is_object(header))
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "the header is not a JSON object");
    file->tensors = calloc(json_object_size(header) + 1, sizeof *file->tensors);
    if (!file->tensors)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    const char *name;
    json_t *entry;
    json_object_foreach((json_t *)header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        enum common_code code = read_tensor(file, name, entry, &file->tensors[file->n_tensors], err);
        if (code != COMMON_OK)
            return code;
        file->n_tensors++;
    }
    qsort(file->tensors, file->n_tensors, sizeof *file->tensors, by_data);
    for (size_t i = 1; i < file->n_tensors; i++) {
        const struct common_safetensor *left = &file->tensors[i - 1], *right = &file->tensors[i];
        if ((const uint8_t *)left->data + left->bytes > (const uint8_t *)right->data)
            return bad(err, right->name, "its data overlap those of another tensor");
    }
    qsort(file->tensors, file->n_tensors, sizeof *file->tensors, by_name);
    return COMMON_OK;
}

static enum common_code map_file(struct common_safetensors *file, const char *path, struct common_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return common_error_set(err, COMMON_NOT_FOUND, "'%.200s' cannot be opened: %s", path,
                                strerror(errno));
    enum common_code code = COMMON_OK;
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        code = common_error_set(err, COMMON_INVALID_ARGUMENT, "'%.200s' is not a regular file", path);
        goto close_fd;
    }
    if ((uint64_t)st.st_size < PREFIX_BYTES) {
        code = common_error_set(err, COMMON_INVALID_ARGUMENT, "'%.200s' is too short for a safetensors file",
                                path);
        goto close_fd;
    }
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "'%.200s' cannot be mapped: %s", path,
                                strerror(errno));
        goto close_fd;
    }
    file->map = map;
    file->map_len = (size_t)st.st_size;
close_fd:
    close(fd);
    return code;
}

static enum common_code parse_file(struct common_safetensors *file, struct common_error *err)
{
    uint64_t header_len = 0;
    for (int i = 0; i < PREFIX_BYTES; i++)
        header_len |= (uint64_t)file->map[i] << (8 * i);
    if (header_len > HEADER_MAX_BYTES || header_len > file->map_len - PREFIX_BYTES)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "the header's length is beyond the file or 64 MiB");
    file->data = file->map + PREFIX_BYTES + header_len;
    file->data_len = file->map_len - PREFIX_BYTES - (size_t)header_len;
    json_error_t jerr;
    json_t *header =
        json_loadb((const char *)file->map + PREFIX_BYTES, (size_t)header_len, JSON_REJECT_DUPLICATES, &jerr);
    if (!header)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "the header is not valid JSON: %s (byte %d)",
                                jerr.text, jerr.position);
    enum common_code code = read_header(file, header, err);
    json_decref(header);
    return code;
}

enum common_code common_safetensors_open(const char *path, struct common_safetensors **out,
                                         struct common_error *err)
{
    struct common_safetensors *file = calloc(1, sizeof *file);
    if (!file)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    enum common_code code = map_file(file, path, err);
    if (code == COMMON_OK) {
        struct common_error inner = {0};
        code = parse_file(file, &inner);
        if (code != COMMON_OK)
            common_error_set(err, code, "'%.120s': %s", path, inner.message);
    }
    if (code != COMMON_OK) {
        common_safetensors_close(file);
        return code;
    }
    *out = file;
    return COMMON_OK;
}

enum common_code common_safetensors_parse(const void *data, size_t len, struct common_safetensors **out,
                                          struct common_error *err)
{
    if (len < PREFIX_BYTES)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "%zu bytes are too few for a safetensors file",
                                len);
    struct common_safetensors *file = calloc(1, sizeof *file);
    if (!file)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    file->map = data;
    file->map_len = len;
    file->borrowed = true;
    enum common_code code = parse_file(file, err);
    if (code == COMMON_OK)
        *out = file;
    else
        common_safetensors_close(file);
    return code;
}

void common_safetensors_close(struct common_safetensors *file)
{
    if (!file)
        return;
    for (size_t i = 0; i < file->n_tensors; i++)
        free((char *)file->tensors[i].name);
    free(file->tensors);
    if (file->map && !file->borrowed)
        munmap((void *)file->map, file->map_len);
    free(file);
}

size_t common_safetensors_count(const struct common_safetensors *file)
{
    return file->n_tensors;
}

const struct common_safetensor *common_safetensors_at(const struct common_safetensors *file, size_t index)
{
    return index < file->n_tensors ? &file->tensors[index] : NULL;
}

const struct common_safetensor *common_safetensors_find(const struct common_safetensors *file,
                                                        const char *name)
{
    struct common_safetensor key = {.name = name};
    if (file->n_tensors == 0)
        return NULL;
    return bsearch(&key, file->tensors, file->n_tensors, sizeof key, by_name);
}
