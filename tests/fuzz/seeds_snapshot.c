// SPDX-License-Identifier: Apache-2.0
// A snapshot of the shape that snapshot.c expects: its manifest and its files, plain and compressed.
#include <string.h>
#include <zstd.h>

#include "client/snapshot/safetensors_write.h"
#include "client/snapshot/snapshot.h"
#include "common/hash/hash.h"
#include "tests/fuzz/seeds.h"

enum { TOKENS = 10, FILES = 2 };

static const struct snapshot_layer layers[3] = {{2, 4, 3, 0}, {0, 0, 0, 0}, {1, 8, 0, 0}}; // snapshot.c
static const struct snapshot_shape shape = {.n_layers = 3, .dtype = COMMON_DTYPE_I8, .layers = layers};

struct bytes {
    uint8_t at[2048];
    size_t len;
};

static void make_file(struct snapshot_file *file, uint32_t layer, bool zstd, struct bytes *out)
{
    struct snapshot_names names;
    struct common_safetensor tensors[4];
    void *head;
    size_t head_len;
    uint8_t plain[2048] = {0};
    *file = (struct snapshot_file){.layer = layer, .tokens = TOKENS};
    size_t n = snapshot_tensors(&shape, file, &names, tensors);
    FUZZ_CHECK(client_safetensors_head(tensors, n, &head, &head_len, NULL) == COMMON_OK);
    file->bytes = head_len + TOKENS * snapshot_row_bytes(&shape, layer);
    FUZZ_CHECK(file->bytes <= sizeof plain);
    memcpy(plain, head, head_len);
    free(head);
    file->sum = common_xxh3(plain, file->bytes, 0);
    if (zstd) {
        out->len = ZSTD_compress(out->at, sizeof out->at, plain, file->bytes, 3);
        FUZZ_CHECK(!ZSTD_isError(out->len));
    } else {
        memcpy(out->at, plain, file->bytes);
        out->len = file->bytes;
    }
    file->stored = out->len;
}

void seed_snapshot(void)
{
    for (int zstd = 0; zstd < 2; zstd++) {
        struct snapshot_file files[FILES];
        struct bytes bytes[FILES];
        struct snapshot snapshot = {.zstd = zstd,
                                    .length = TOKENS,
                                    .spec = json_pack("{s:i, s:f}", "layers", 3, "scale", 0.1),
                                    .info = json_pack("{s:s}", "name", "x"),
                                    .n_files = FILES,
                                    .files = files};
        struct seed seed = {0};
        for (uint32_t i = 0; i < FILES; i++)
            make_file(&files[i], 2 * i, zstd, &bytes[i]);
        char *text = snapshot_text(&snapshot);
        FUZZ_CHECK(text);
        seed_u8(&seed, 3);
        seed_u16(&seed, strlen(text));
        seed_put(&seed, text, strlen(text));
        for (uint8_t i = 0; i < FILES; i++) {
            seed_u8(&seed, i);
            seed_u16(&seed, bytes[i].len);
            seed_put(&seed, bytes[i].at, bytes[i].len);
        }
        seed_write(&seed, "snapshot", zstd ? "zstd" : "plain");
        free(text);
        json_decref(snapshot.spec);
        json_decref(snapshot.info);
    }
}
