// SPDX-License-Identifier: Apache-2.0
#include "client/snapshot/safetensors_write.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/memory/blob.h"

static bool dtype_of(const struct common_safetensor *t, const char **name, size_t *bytes)
{
    switch (t->dtype) {
    case COMMON_DTYPE_F32:
        *name = "F32";
        *bytes = 4;
        return true;
    case COMMON_DTYPE_F16:
        *name = "F16";
        *bytes = 2;
        return true;
    case COMMON_DTYPE_BF16:
        *name = "BF16";
        *bytes = 2;
        return true;
    case COMMON_DTYPE_I8:
        *name = "I8";
        *bytes = 1;
        return true;
    case COMMON_DTYPE_F8_E4M3:
        *name = "F8_E4M3";
        *bytes = 1;
        return true;
    default:
        return false;
    }
}

static bool shape_fits(const struct common_safetensor *t)
{
    const char *name;
    size_t bytes;
    if (!dtype_of(t, &name, &bytes) || t->n_dims > COMMON_SAFETENSORS_DIMS)
        return false;
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (!common_size_mul(bytes, t->dims[i], &bytes))
            return false;
    return bytes == t->bytes;
}

// NULL: out of memory, or a name that is not UTF-8 or there twice.
static char *make_header(const struct common_safetensor *tensors, size_t n_tensors)
{
    json_t *header = json_object();
    size_t offset = 0;
    for (size_t i = 0; i < n_tensors; i++) {
        const struct common_safetensor *t = &tensors[i];
        const char *dtype;
        size_t element;
        json_t *shape = json_array();
        for (uint32_t d = 0; d < t->n_dims; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->dims[d]));
        json_t *entry = NULL;
        if (dtype_of(t, &dtype, &element) && !json_object_get(header, t->name))
            entry = json_pack("{s:s, s:O, s:[I, I]}", "dtype", dtype, "shape", shape, "data_offsets",
                              (json_int_t)offset, (json_int_t)(offset + t->bytes));
        json_decref(shape);
        if (!entry || json_object_set_new(header, t->name, entry) != 0) {
            json_decref(header);
            return NULL;
        }
        offset += t->bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(header);
    return text;
}

static bool write_all(FILE *file, const void *head, size_t head_len, const struct common_safetensor *tensors,
                      size_t n_tensors)
{
    bool ok = fwrite(head, 1, head_len, file) == head_len;
    for (size_t i = 0; i < n_tensors && ok; i++)
        ok = fwrite(tensors[i].data, 1, tensors[i].bytes, file) == tensors[i].bytes;
    return ok && fflush(file) == 0;
}

enum common_code client_safetensors_head(const struct common_safetensor *tensors, size_t n_tensors,
                                         void **out, size_t *out_len, struct common_error *err)
{
    for (size_t i = 0; i < n_tensors; i++)
        if (!shape_fits(&tensors[i]))
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "tensor '%.64s': type, shape and bytes do not match", tensors[i].name);
    char *header = make_header(tensors, n_tensors);
    if (!header)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "a tensor's name occurs twice, or is not UTF-8");
    size_t len = strlen(header), padded = (len + 7) / 8 * 8;
    uint8_t *head = malloc(8 + padded);
    if (head) {
        for (int i = 0; i < 8; i++)
            head[i] = (uint8_t)((uint64_t)padded >> (8 * i));
        memcpy(head + 8, header, len);
        memset(head + 8 + len, ' ', padded - len);
        *out = head;
        *out_len = 8 + padded;
    }
    free(header);
    return head ? COMMON_OK : common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
}

// A name that stands for something else (a link, a device, a pipe) is written to where it is: to replace it
// would take it away. What a regular file had stays until all that is new is there.
static bool is_replaced(const char *path)
{
    struct stat st;
    return lstat(path, &st) != 0 || S_ISREG(st.st_mode);
}

static FILE *open_new(const char *path, char *temporary, size_t room)
{
    snprintf(temporary, room, "%s.XXXXXX", path);
    int fd = mkstemp(temporary);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && !file) {
        close(fd);
        unlink(temporary);
    }
    return file;
}

static FILE *open_there(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && !file)
        close(fd);
    return file;
}

enum common_code client_safetensors_write(const char *path, const struct common_safetensor *tensors,
                                          size_t n_tensors, struct common_error *err)
{
    void *head = NULL;
    size_t head_len = 0;
    enum common_code code = client_safetensors_head(tensors, n_tensors, &head, &head_len, err);
    if (code != COMMON_OK)
        return code;
    size_t room = strlen(path) + 8;
    char *temporary = malloc(room);
    if (!temporary)
        abort();
    bool replace = is_replaced(path);
    FILE *file = replace ? open_new(path, temporary, room) : open_there(path);
    bool ok = file && write_all(file, head, head_len, tensors, n_tensors);
    if (file)
        ok = fclose(file) == 0 && ok;
    ok = ok && (!replace || rename(temporary, path) == 0);
    if (!ok) {
        code = common_error_set(err, COMMON_INTERNAL, "cannot write %s: %s", path, strerror(errno));
        if (file && replace)
            unlink(temporary);
    }
    free(temporary);
    free(head);
    return code;
}
