// SPDX-License-Identifier: Apache-2.0
#include "client/snapshot/snapshot_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zstd.h>

#include "common/base/failpoint.h"
#include "common/hash/hash.h"

#define MANIFEST   "manifest.json"
#define ZSTD_LEVEL 3

struct snapshot_dir {
    int fd;
    char *path;      // as the caller says it
    char *temporary; // while it is made; else NULL
};

// ---- both ways --------------------------------------------------------------------------------------------

static enum common_code failed(const struct snapshot_dir *dir, const char *name, const char *what,
                               struct common_error *err)
{
    int why = errno;
    return common_error_set(err, why == ENOENT ? COMMON_NOT_FOUND : COMMON_INTERNAL, "%s/%s cannot be %s: %s",
                            dir->path, name, what, strerror(why));
}

static enum common_code wrong(const struct snapshot_dir *dir, const char *name, const char *what,
                              struct common_error *err)
{
    return common_error_set(err, COMMON_INVALID_ARGUMENT, "%s/%s: %s", dir->path, name, what);
}

static enum common_code no_memory(struct common_error *err)
{
    return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
}

void snapshot_dir_close(struct snapshot_dir *dir)
{
    if (!dir)
        return;
    if (dir->fd >= 0)
        close(dir->fd);
    free(dir->path);
    free(dir->temporary);
    free(dir);
}

static struct snapshot_dir *dir_new(const char *path)
{
    struct snapshot_dir *dir = calloc(1, sizeof *dir);
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    if (dir)
        dir->fd = -1;
    if (dir && !(dir->path = strndup(path, len))) {
        free(dir);
        return NULL;
    }
    return dir;
}

// ---- writing ----------------------------------------------------------------------------------------------

enum common_code snapshot_dir_make(const char *path, struct snapshot_dir **out, struct common_error *err)
{
    struct stat st;
    struct snapshot_dir *dir = dir_new(path);
    if (!dir)
        return no_memory(err);
    size_t room = strlen(dir->path) + 8;
    enum common_code code = COMMON_OK;
    dir->temporary = malloc(room);
    if (!dir->temporary) {
        code = no_memory(err);
    } else if (lstat(dir->path, &st) == 0) {
        code = common_error_set(err, COMMON_ALREADY_EXISTS,
                                "%s already exists: a snapshot creates its folder", dir->path);
    } else {
        snprintf(dir->temporary, room, "%s.XXXXXX", dir->path);
        bool made = mkdtemp(dir->temporary) != NULL;
        dir->fd = made ? open(dir->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
        if (dir->fd < 0)
            code = common_error_set(err, COMMON_INTERNAL, "%s cannot be created: %s", dir->path,
                                    strerror(errno));
        if (dir->fd < 0 && made)
            rmdir(dir->temporary);
        COMMON_FAILPOINT("snapshot_folder_made");
    }
    if (code != COMMON_OK) {
        snapshot_dir_close(dir);
        return code;
    }
    *out = dir;
    return COMMON_OK;
}

static bool write_all(int fd, const uint8_t *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        data += n;
        len -= (size_t)n;
    }
    return true;
}

static enum common_code write_file(struct snapshot_dir *dir, const char *name, const void *data, size_t len,
                                   struct common_error *err)
{
    int fd = openat(dir->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return failed(dir, name, "written", err);
    enum common_code code = COMMON_OK;
    if (!write_all(fd, data, len) || COMMON_FAILPOINT_FAILS("snapshot_file_written") || fsync(fd) != 0)
        code = failed(dir, name, "written", err);
    if (close(fd) != 0 && code == COMMON_OK)
        code = failed(dir, name, "written", err);
    COMMON_FAILPOINT("snapshot_file_synced");
    return code;
}

static enum common_code compress(const void *data, size_t len, void **out, size_t *out_len,
                                 struct common_error *err)
{
    size_t room = ZSTD_compressBound(len);
    void *packed = malloc(room);
    ZSTD_CCtx *context = ZSTD_createCCtx();
    size_t n = 0;
    enum common_code code = COMMON_OK;
    if (!packed || !context) {
        code = no_memory(err);
    } else {
        ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, ZSTD_LEVEL);
        ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
        n = ZSTD_compress2(context, packed, room, data, len);
        if (ZSTD_isError(n))
            code = common_error_set(err, COMMON_INTERNAL, "zstd: %s", ZSTD_getErrorName(n));
    }
    ZSTD_freeCCtx(context);
    if (code != COMMON_OK) {
        free(packed);
        return code;
    }
    *out = packed;
    *out_len = n;
    return COMMON_OK;
}

enum common_code snapshot_dir_write(struct snapshot_dir *dir, const char *name, const void *data, size_t len,
                                    bool zstd, uint64_t *stored, struct common_error *err)
{
    void *packed = NULL;
    size_t packed_len = 0;
    enum common_code code = zstd ? compress(data, len, &packed, &packed_len, err) : COMMON_OK;
    if (code == COMMON_OK)
        code = write_file(dir, name, zstd ? packed : data, zstd ? packed_len : len, err);
    free(packed);
    if (code == COMMON_OK && stored)
        *stored = zstd ? packed_len : len;
    return code;
}

static void sync_parent(const char *path)
{
    char *copy = strdup(path), *slash = copy ? strrchr(copy, '/') : NULL;
    if (slash == copy && slash)
        slash[1] = '\0';
    else if (slash)
        *slash = '\0';
    int fd = open(slash ? copy : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!fsync(fd); // some file systems know no fsync of a folder
        close(fd);
    }
    free(copy);
}

static bool rename_new(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return true;
    return (errno == EINVAL || errno == ENOSYS) && rename(from, to) == 0;
}

enum common_code snapshot_dir_finish(struct snapshot_dir *dir, struct common_error *err)
{
    if (fsync(dir->fd) != 0 || COMMON_FAILPOINT_FAILS("snapshot_folder_synced") ||
        !rename_new(dir->temporary, dir->path)) {
        enum common_code code =
            common_error_set(err, errno == EEXIST ? COMMON_ALREADY_EXISTS : COMMON_INTERNAL,
                             "%s cannot be created: %s", dir->path, strerror(errno));
        snapshot_dir_discard(dir);
        return code;
    }
    COMMON_FAILPOINT("snapshot_named");
    sync_parent(dir->path);
    snapshot_dir_close(dir);
    return COMMON_OK;
}

char *snapshot_dir_states(const struct snapshot_dir *dir)
{
    size_t room = strlen(dir->temporary) + sizeof "/" SNAPSHOT_STATES;
    char *path = malloc(room);
    if (path)
        snprintf(path, room, "%s/" SNAPSHOT_STATES, dir->temporary);
    return path;
}

// All files in a folder. Takes fd.
static void remove_files(int fd)
{
    DIR *files = fdopendir(fd);
    struct dirent *entry;
    if (!files && fd >= 0)
        close(fd);
    while (files && (entry = readdir(files))) // cppcheck-suppress readdirCalled ; nothing else has this DIR
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(fd, entry->d_name, 0);
    if (files)
        closedir(files);
}

void snapshot_dir_discard(struct snapshot_dir *dir)
{
    if (dir) {
        remove_files(openat(dir->fd, SNAPSHOT_STATES, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        unlinkat(dir->fd, SNAPSHOT_STATES, AT_REMOVEDIR);
        remove_files(dup(dir->fd));
    }
    if (dir)
        rmdir(dir->temporary);
    snapshot_dir_close(dir);
}

// ---- reading ----------------------------------------------------------------------------------------------

enum common_code snapshot_dir_open(const char *path, struct snapshot_dir **out, struct common_error *err)
{
    struct snapshot_dir *dir = dir_new(path);
    if (!dir)
        return no_memory(err);
    dir->fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->fd < 0) {
        common_error_set(err, COMMON_NOT_FOUND, "%s cannot be opened: %s", dir->path, strerror(errno));
        snapshot_dir_close(dir);
        return COMMON_NOT_FOUND;
    }
    *out = dir;
    return COMMON_OK;
}

// A regular file, which nothing else stands behind. *size: its bytes.
static enum common_code open_file(const struct snapshot_dir *dir, const char *name, int *fd, uint64_t *size,
                                  struct common_error *err)
{
    struct stat st;
    int opened = openat(dir->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (opened < 0)
        return failed(dir, name, "opened", err);
    if (fstat(opened, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(opened);
        return wrong(dir, name, "it is not a regular file", err);
    }
    *fd = opened;
    *size = (uint64_t)st.st_size;
    return COMMON_OK;
}

static enum common_code check_stored(const struct snapshot_dir *dir, const char *name, uint64_t size,
                                     uint64_t want, struct common_error *err)
{
    if (size == want)
        return COMMON_OK;
    return common_error_set(err, COMMON_INVALID_ARGUMENT,
                            "%s/%s has %" PRIu64 " bytes, but the manifest says %" PRIu64
                            ": it was truncated or altered",
                            dir->path, name, size, want);
}

// Exactly `len` bytes.
static enum common_code read_all(const struct snapshot_dir *dir, const char *name, int fd, uint8_t *to,
                                 size_t len, struct common_error *err)
{
    while (len > 0) {
        ssize_t n = read(fd, to, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return failed(dir, name, "read", err);
        if (n == 0)
            return wrong(dir, name, "it became shorter while being read", err);
        to += n;
        len -= (size_t)n;
    }
    return COMMON_OK;
}

enum common_code snapshot_dir_manifest(struct snapshot_dir *dir, struct snapshot *out,
                                       struct common_error *err)
{
    int fd;
    uint64_t size;
    struct common_error inner = {0};
    enum common_code code = open_file(dir, MANIFEST, &fd, &size, err);
    if (code != COMMON_OK)
        return code;
    uint8_t *text = size <= SNAPSHOT_MANIFEST_MAX ? malloc(size + 1) : NULL;
    if (size > SNAPSHOT_MANIFEST_MAX)
        code = wrong(dir, MANIFEST, "it is too large for a manifest", err);
    else if (!text)
        code = no_memory(err);
    else
        code = read_all(dir, MANIFEST, fd, text, size, err);
    if (code == COMMON_OK) {
        code = snapshot_parse((const char *)text, size, out, &inner);
        if (code != COMMON_OK)
            common_error_set(err, code, "%s/%s", dir->path, inner.message);
    }
    free(text);
    close(fd);
    return code;
}

enum common_code snapshot_dir_look(struct snapshot_dir *dir, const struct snapshot *snapshot,
                                   struct common_error *err)
{
    enum common_code code = COMMON_OK;
    for (size_t i = 0; i < snapshot->n_files && code == COMMON_OK; i++) {
        char name[SNAPSHOT_NAME_BYTES];
        int fd;
        uint64_t size;
        snapshot_file_name(snapshot, &snapshot->files[i], name);
        code = open_file(dir, name, &fd, &size, err);
        if (code != COMMON_OK)
            break;
        close(fd);
        code = check_stored(dir, name, size, snapshot->files[i].stored, err);
    }
    return code;
}

static enum common_code expand(const struct snapshot_dir *dir, const char *name, const void *packed,
                               size_t packed_len, void *to, size_t len, struct common_error *err)
{
    size_t n = ZSTD_decompress(to, len, packed, packed_len); // never writes past len
    if (!ZSTD_isError(n) && n == len)
        return COMMON_OK;
    return common_error_set(err, COMMON_INVALID_ARGUMENT, "%s/%s: it is not zstd of %zu bytes: %s", dir->path,
                            name, len, ZSTD_isError(n) ? ZSTD_getErrorName(n) : "there are fewer");
}

// The .safetensors of the file, whose bytes have the sum that the manifest says.
static enum common_code load(const struct snapshot_dir *dir, const struct snapshot *snapshot,
                             const struct snapshot_file *file, const char *name, uint8_t **out,
                             struct common_error *err)
{
    int fd;
    uint64_t size;
    enum common_code code = open_file(dir, name, &fd, &size, err);
    if (code != COMMON_OK)
        return code;
    uint8_t *stored = NULL, *bytes = NULL;
    code = check_stored(dir, name, size, file->stored, err);
    if (code == COMMON_OK && !(stored = malloc(file->stored + 1)))
        code = no_memory(err);
    if (code == COMMON_OK)
        code = read_all(dir, name, fd, stored, file->stored, err);
    if (code == COMMON_OK && snapshot->zstd && !(bytes = malloc(file->bytes)))
        code = no_memory(err);
    if (code == COMMON_OK && snapshot->zstd)
        code = expand(dir, name, stored, file->stored, bytes, file->bytes, err);
    if (snapshot->zstd) {
        free(stored);
        stored = bytes;
    }
    close(fd);
    if (code == COMMON_OK && common_xxh3(stored, file->bytes, 0) != file->sum)
        code = wrong(dir, name, "its bytes do not match the snapshot (xxh3): it was altered or damaged", err);
    if (code == COMMON_OK)
        *out = stored;
    else
        free(stored);
    return code;
}

// The tensors of the shape, and no others. tensors[i].data: where they lie.
static enum common_code find_tensors(const struct common_safetensors *parsed,
                                     struct common_safetensor *tensors, size_t n, struct common_error *err)
{
    if (common_safetensors_count(parsed) != n)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "it has %zu tensors and should have %zu",
                                common_safetensors_count(parsed), n);
    for (size_t i = 0; i < n; i++) {
        const struct common_safetensor *t = common_safetensors_find(parsed, tensors[i].name);
        bool same = t && t->dtype == tensors[i].dtype && t->n_dims == tensors[i].n_dims &&
                    t->bytes == tensors[i].bytes;
        for (uint32_t d = 0; same && d < t->n_dims; d++)
            same = t->dims[d] == tensors[i].dims[d];
        if (!same)
            return common_error_set(
                err, COMMON_INVALID_ARGUMENT,
                "tensor '%s' is missing or does not have the type and shape that the spec requires",
                tensors[i].name);
        tensors[i].data = t->data;
    }
    return COMMON_OK;
}

// Scales are read as floats: they must lie where floats may.
static enum common_code take_tensors(const struct common_safetensor *tensors, size_t n,
                                     struct snapshot_rows *out, struct common_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *which = strrchr(tensors[i].name, '.') + 1;
        if (tensors[i].n_dims == 2 && (uintptr_t)tensors[i].data % _Alignof(float) != 0)
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "tensor '%s' does not begin at a multiple of 4", tensors[i].name);
        if (strcmp(which, "k") == 0)
            out->k = tensors[i].data;
        else if (strcmp(which, "v") == 0)
            out->v = tensors[i].data;
        else if (strcmp(which, "k_scale") == 0)
            out->k_scale = tensors[i].data;
        else
            out->v_scale = tensors[i].data;
    }
    return COMMON_OK;
}

enum common_code snapshot_dir_read(struct snapshot_dir *dir, const struct snapshot *snapshot,
                                   const struct snapshot_shape *shape, const struct snapshot_file *file,
                                   struct snapshot_rows *out, struct common_error *err)
{
    char name[SNAPSHOT_NAME_BYTES];
    uint8_t *bytes = NULL;
    struct snapshot_names names;
    struct common_safetensor tensors[4];
    struct common_safetensors *parsed = NULL;
    struct common_error inner = {0};
    struct snapshot_rows rows = {0};
    snapshot_file_name(snapshot, file, name);
    enum common_code code = load(dir, snapshot, file, name, &bytes, err);
    if (code != COMMON_OK)
        return code;
    size_t n = snapshot_tensors(shape, file, &names, tensors);
    code = common_safetensors_parse(bytes, file->bytes, &parsed, &inner);
    if (code == COMMON_OK)
        code = find_tensors(parsed, tensors, n, &inner);
    if (code == COMMON_OK)
        code = take_tensors(tensors, n, &rows, &inner);
    common_safetensors_close(parsed);
    if (code != COMMON_OK) {
        free(bytes);
        return common_error_set(err, code, "%s/%s: %s", dir->path, name, inner.message);
    }
    rows.memory = bytes;
    *out = rows;
    return COMMON_OK;
}
