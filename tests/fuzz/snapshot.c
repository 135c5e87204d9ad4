// SPDX-License-Identifier: Apache-2.0
// client/snapshot/snapshot.c and snapshot_dir.c: a snapshot's manifest, and its files. Input: u8 what, u16
// bytes of the manifest, the manifest, then files: u8 which of those that the manifest names, u16 bytes,
// bytes. What, bit 0: the manifest's sum is put right; bit 1: and those of files.
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/snapshot/snapshot_dir.h"
#include "common/hash/hash.h"
#include "tests/fuzz/fuzz.h"

// Two layers with rows, the second a latent, and one without; a type with scales.
static const struct snapshot_layer layers[3] = {{2, 4, 3, 0}, {0, 0, 0, 0}, {1, 8, 0, 0}};
static const struct snapshot_shape shape = {.n_layers = 3, .dtype = COMMON_DTYPE_I8, .layers = layers};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_enter_folder();
    fuzz_quiet();
    FUZZ_CHECK(mkdir("dir", 0700) == 0);
    return 0;
}

// As a string: up to the first zero, and of its very size. Free it. (strndup looks behind the last byte under
// strict_string_checks.)
static char *text_of(const char *bytes, size_t len)
{
    struct fuzz_input in = {(const uint8_t *)bytes, len};
    return fuzz_text(&in, len);
}

// The manifest with the sum that its contents have; the text itself where it is no object. Free it.
static char *right_sum(const char *text, size_t len)
{
    json_t *manifest = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    char sum[19], *plain, *out = NULL;
    if (json_is_object(manifest)) {
        json_object_del(manifest, "xxh3");
        plain = json_dumps(manifest, JSON_COMPACT | JSON_SORT_KEYS);
        FUZZ_CHECK(plain);
        snprintf(sum, sizeof sum, "0x%016llx", (unsigned long long)common_xxh3(plain, strlen(plain), 0));
        json_object_set_new(manifest, "xxh3", json_string(sum));
        out = json_dumps(manifest, JSON_COMPACT);
        free(plain);
    }
    json_decref(manifest);
    return out ? out : text_of(text, len);
}

static void again(const struct snapshot *snapshot)
{
    struct snapshot second;
    struct common_error err;
    char *text = snapshot_text(snapshot);
    FUZZ_CHECK(text && snapshot_parse(text, strlen(text), &second, &err) == COMMON_OK);
    FUZZ_CHECK(second.length == snapshot->length && second.floor == snapshot->floor &&
               second.zstd == snapshot->zstd && second.n_files == snapshot->n_files);
    for (size_t i = 0; i < second.n_files; i++)
        FUZZ_CHECK(memcmp(&second.files[i], &snapshot->files[i], sizeof *second.files) == 0);
    char *text_again = snapshot_text(&second);
    FUZZ_CHECK(text_again && strcmp(text, text_again) == 0);
    free(text);
    free(text_again);
    snapshot_clear(&second);
}

static void read_files(struct snapshot *snapshot, struct fuzz_input *in, bool right)
{
    struct snapshot_dir *dir;
    struct snapshot_rows rows;
    struct common_error err;
    if (snapshot_dir_open("dir", &dir, &err) != COMMON_OK)
        return;
    for (unsigned i = 0; i < 4 && in->left > 0 && snapshot->n_files > 0; i++) {
        struct snapshot_file *file = &snapshot->files[fuzz_u8(in) % snapshot->n_files];
        char name[SNAPSHOT_NAME_BYTES], path[SNAPSHOT_NAME_BYTES + 8];
        size_t len = fuzz_u16(in);
        const uint8_t *bytes = fuzz_bytes(in, len, &len);
        snapshot_file_name(snapshot, file, name);
        FUZZ_CHECK(!strchr(name, '/'));
        snprintf(path, sizeof path, "dir/%s", name);
        fuzz_write_file(path, bytes, len);
        if (right && !snapshot->zstd)
            file->sum = common_xxh3(bytes, len, 0);
        (void)snapshot_dir_look(dir, snapshot, &err);
        // Memory is taken for what the manifest says, which snapshot_check has compared with the shape: not
        // for gigabytes here.
        if (file->bytes < 1 << 20 && file->stored < 1 << 20 &&
            snapshot_dir_read(dir, snapshot, &shape, file, &rows, &err) == COMMON_OK) {
            FUZZ_CHECK(rows.k);
            free(rows.memory);
        }
        unlink(path);
    }
    snapshot_dir_close(dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct snapshot snapshot;
    struct common_error err;
    uint8_t what = fuzz_u8(&in);
    size_t len = fuzz_u16(&in);
    const uint8_t *text = fuzz_bytes(&in, len, &len);
    char *manifest = what & 1 ? right_sum((const char *)text, len) : text_of((const char *)text, len);
    len = strlen(manifest);
    if (snapshot_parse(manifest, len, &snapshot, &err) != COMMON_OK) {
        FUZZ_CHECK(err.message[0]);
    } else {
        again(&snapshot);
        if (snapshot_check(&snapshot, &shape, &err) == COMMON_OK)
            read_files(&snapshot, &in, what & 2);
        snapshot_clear(&snapshot);
    }
    free(manifest);
    return 0;
}
