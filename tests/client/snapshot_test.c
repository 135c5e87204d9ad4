// SPDX-License-Identifier: Apache-2.0
// Snapshots as files: what was written is read back, and whatever was cut, altered or made up is refused with
// the file and the reason, before memory is taken for what it claims.
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <zstd.h>

#include "client/snapshot/safetensors_write.h"
#include "client/snapshot/snapshot.h"
#include "client/snapshot/snapshot_dir.h"
#include "common/hash/hash.h"

enum { LENGTH = 10, CUT = 6 }; // tokens; of the first file of each layer

// Three layers: two with rows (the second a latent), between them one without; INT8, so that there are
// scales.
static const struct snapshot_layer layers[3] = {{2, 4, 3, 0}, {0, 0, 0, 0}, {1, 8, 0, 0}};
static const struct snapshot_shape shape = {.n_layers = 3, .dtype = COMMON_DTYPE_I8, .layers = layers};

static char folder[64];
static struct common_error err;

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void clean_up(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
    assert_int_equal(mkdir(folder, 0700), 0);
}

// ---- a snapshot that is right -----------------------------------------------------------------------------

struct whole {
    struct snapshot snapshot;
    struct snapshot_file files[4];
    uint8_t *bytes[4]; // the .safetensors
};

static void fill_file(struct whole *w, size_t nth, uint32_t layer, uint64_t first, uint64_t tokens)
{
    struct snapshot_file *file = &w->files[nth];
    struct snapshot_names names;
    struct common_safetensor tensors[4];
    void *head;
    size_t head_len;
    *file = (struct snapshot_file){.layer = layer, .first = first, .tokens = tokens};
    size_t n = snapshot_tensors(&shape, file, &names, tensors);
    assert_int_equal(n, layer == 0 ? 4 : 2);
    assert_int_equal(client_safetensors_head(tensors, n, &head, &head_len, &err), COMMON_OK);
    uint64_t rows = tokens * snapshot_row_bytes(&shape, layer);
    w->bytes[nth] = malloc(head_len + rows);
    memcpy(w->bytes[nth], head, head_len);
    for (uint64_t i = 0; i < rows; i++)
        w->bytes[nth][head_len + i] = (uint8_t)(i * 31 + nth);
    free(head);
    file->bytes = file->stored = head_len + rows;
    file->sum = common_xxh3(w->bytes[nth], file->bytes, 0);
}

static void whole_begin(struct whole *w, bool zstd)
{
    *w = (struct whole){.snapshot = {.zstd = zstd,
                                     .length = LENGTH,
                                     .spec = json_pack("{s:i, s:f}", "layers", 3, "scale", 0.1),
                                     .info = json_pack("{s:s}", "name", "x"),
                                     .n_files = 4,
                                     .files = w->files}};
    fill_file(w, 0, 0, 0, CUT);
    fill_file(w, 1, 0, CUT, LENGTH - CUT);
    fill_file(w, 2, 2, 0, CUT);
    fill_file(w, 3, 2, CUT, LENGTH - CUT);
}

static void whole_end(struct whole *w)
{
    json_decref(w->snapshot.spec);
    json_decref(w->snapshot.info);
    for (size_t i = 0; i < 4; i++)
        free(w->bytes[i]);
}

static void whole_write(struct whole *w, const char *path)
{
    struct snapshot_dir *dir;
    char name[SNAPSHOT_NAME_BYTES];
    assert_int_equal(snapshot_dir_make(path, &dir, &err), COMMON_OK);
    for (size_t i = 0; i < 4; i++) {
        snapshot_file_name(&w->snapshot, &w->files[i], name);
        assert_int_equal(snapshot_dir_write(dir, name, w->bytes[i], w->files[i].bytes, w->snapshot.zstd,
                                            &w->files[i].stored, &err),
                         COMMON_OK);
    }
    char *text = snapshot_text(&w->snapshot);
    assert_int_equal(snapshot_dir_write(dir, "manifest.json", text, strlen(text), false, NULL, &err),
                     COMMON_OK);
    free(text);
    assert_int_not_equal(access(path, F_OK), 0); // it has no name before it is whole
    assert_int_equal(snapshot_dir_finish(dir, &err), COMMON_OK);
}

// All that restore does with it. The first failure.
static enum common_code whole_read(const char *path, const struct whole *want)
{
    struct snapshot_dir *dir = NULL;
    struct snapshot s = {0};
    err = (struct common_error){0};
    enum common_code code = snapshot_dir_open(path, &dir, &err);
    if (code == COMMON_OK)
        code = snapshot_dir_manifest(dir, &s, &err);
    if (code == COMMON_OK)
        code = snapshot_check(&s, &shape, &err);
    if (code == COMMON_OK)
        code = snapshot_dir_look(dir, &s, &err);
    for (size_t i = 0; i < s.n_files && code == COMMON_OK; i++) {
        struct snapshot_rows rows;
        code = snapshot_dir_read(dir, &s, &shape, &s.files[i], &rows, &err);
        if (code != COMMON_OK)
            break;
        if (want) {
            assert_memory_equal(rows.memory, want->bytes[i], want->files[i].bytes);
            assert_non_null(rows.k);
            assert_non_null(rows.k_scale);
            assert_int_equal(rows.v == NULL, s.files[i].layer == 2);
            assert_int_equal(rows.v_scale == NULL, s.files[i].layer == 2);
        }
        free(rows.memory);
    }
    snapshot_clear(&s);
    snapshot_dir_close(dir);
    return code;
}

static void written_is_read(void **state)
{
    (void)state;
    for (int zstd = 0; zstd < 2; zstd++) {
        struct whole w;
        whole_begin(&w, zstd);
        whole_write(&w, path_of("s"));
        assert_int_equal(whole_read(path_of("s"), &w), COMMON_OK);
        struct snapshot_dir *dir;
        assert_int_equal(snapshot_dir_make(path_of("s"), &dir, &err), COMMON_ALREADY_EXISTS);
        if (!zstd) { // any reader opens it
            struct common_safetensors *file;
            assert_int_equal(common_safetensors_open(path_of("s/layer-0000-000000000006.safetensors"), &file,
                                                     &err),
                             COMMON_OK);
            const struct common_safetensor *k = common_safetensors_find(file, "layers.0.k");
            assert_int_equal(k->dims[0], LENGTH - CUT);
            assert_int_equal(k->dims[1], 2);
            assert_int_equal(k->dims[2], 4);
            common_safetensors_close(file);
        }
        clean_up();
        whole_end(&w);
    }
}

static void discarded_is_gone(void **state)
{
    (void)state;
    struct snapshot_dir *dir;
    uint64_t stored;
    assert_int_equal(snapshot_dir_make(path_of("s"), &dir, &err), COMMON_OK);
    assert_int_equal(snapshot_dir_write(dir, "a", "abc", 3, false, &stored, &err), COMMON_OK);
    snapshot_dir_discard(dir);
    assert_int_equal(rmdir(folder), 0); // nothing is in it
    assert_int_equal(mkdir(folder, 0700), 0);
    // Another process has made the folder meanwhile
    assert_int_equal(snapshot_dir_make(path_of("s"), &dir, &err), COMMON_OK);
    assert_int_equal(mkdir(path_of("s"), 0700), 0);
    assert_int_equal(snapshot_dir_finish(dir, &err), COMMON_ALREADY_EXISTS);
    assert_int_equal(rmdir(path_of("s")), 0);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(mkdir(folder, 0700), 0);
}

// ---- manifests that make no sense -------------------------------------------------------------------------

// Signs it with its sum, as anyone who makes one up would.
static void write_manifest(json_t *manifest)
{
    char sum[24];
    json_object_del(manifest, "xxh3");
    char *text = json_dumps(manifest, JSON_COMPACT | JSON_SORT_KEYS);
    snprintf(sum, sizeof sum, "0x%016" PRIx64, common_xxh3(text, strlen(text), 0));
    free(text);
    json_object_set_new(manifest, "xxh3", json_string(sum));
    assert_int_equal(json_dump_file(manifest, path_of("s/manifest.json"), 0), 0);
}

struct change {
    const char *key;  // of the manifest, or of a file
    int file;         // -1: of the manifest
    const char *json; // the new value; NULL: taken away
    const char *says;
};

static const struct change changes[] = {
    {"format", -1, "\"tar\"", "does not belong to a Banyan snapshot"},
    {"format", -1, NULL, "does not belong to a Banyan snapshot"},
    {"version", -1, "0", "version"},
    {"version", -1, "2", "'floor'"},
    {"version", -1, "3", "version"},
    {"floor", -1, "1", "'floor' needs version 2"},
    {"version", -1, "\"1\"", "version"},
    {"length", -1, "-1", "'length'"},
    {"length", -1, "1e3", "'length'"},
    {"length", -1, "4611686018427387904", "'length'"},
    {"length", -1, "11", "no file has layer 0 from position 10"},
    {"length", -1, "9", "ends past 9 tokens"},
    {"length", -1, "0", "which the session does not have"},
    {"compression", -1, "\"gzip\"", "not none or zstd"},
    {"compression", -1, "\"zstd\"", "is named"},
    {"compression", -1, "null", "not none or zstd"},
    {"spec", -1, "[]", "'spec'"},
    {"session", -1, NULL, "'session'"},
    {"files", -1, "{}", "'files'"},
    {"files", -1, "[]", "no file has layer 0 from position 0"},
    {"files", -1, "[1, 2]", "entry 0 of 'files'"},
    {"name", 0, "\"../../etc/passwd\"", "is named '../../etc/passwd'"},
    {"name", 0, "\"/etc/passwd\"", "is named '/etc/passwd'"},
    {"name", 1, "\"layer-0000-000000000000.safetensors\"", "is named"},
    {"name", 1, NULL, "is named"},
    {"layer", 0, "1", "is named"},
    {"layer", 0, "-1", "entry 0"},
    {"layer", 0, "70000", "entry 0"},
    {"first", 1, "18446744073709551615", ""}, // jansson itself refuses it
    {"first", 1, "9223372036854775807", "entry 1"},
    {"tokens", 0, "0", "0 tokens"},
    {"tokens", 0, "5", "no file has layer 0 from position 5"},
    {"tokens", 0, "9223372036854775807", "entry 0"},
    {"tokens", 0, "1099511627776",
     "1099511627776 tokens"}, // times a row it would wrap no 64 bits, yet is too much
    {"tokens", 1, "5", "ends past 10 tokens"},
    {"bytes", 0, "1", "its rows have"},
    {"bytes", 0, "67112960", "its rows have"},
    {"bytes", 0, "67112961", "entry 0"},
    {"bytes", 0, "1.5", "entry 0"},
    {"stored", 0, "1", "'stored' is not 'bytes'"},
    {"stored", 2, NULL, "entry 2"},
    {"xxh3", 3, "\"0x12\"", "entry 3"},
    {"xxh3", 3, "\"0X000000000000000g\"", "entry 3"},
    {"xxh3", 3, "\"0x0000000000000000\"", "its bytes do not match"},
};

static void made_up_manifests_are_refused(void **state)
{
    (void)state;
    struct whole w;
    whole_begin(&w, false);
    whole_write(&w, path_of("s"));
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const struct change *c = &changes[i];
        char *text = snapshot_text(&w.snapshot);
        json_t *manifest = json_loads(text, 0, NULL);
        json_t *of =
            c->file < 0 ? manifest : json_array_get(json_object_get(manifest, "files"), (size_t)c->file);
        json_t *value = c->json ? json_loads(c->json, JSON_DECODE_ANY, NULL) : NULL;
        if (value)
            json_object_set_new(of, c->key, value);
        else if (!c->json)
            json_object_del(of, c->key);
        if (value || !c->json) {
            write_manifest(manifest);
            enum common_code code = whole_read(path_of("s"), NULL);
            if (code != COMMON_INVALID_ARGUMENT || !strstr(err.message, c->says) ||
                (!strstr(err.message, "manifest.json") && !strstr(err.message, "layer-")))
                fail_msg("%s = %s: %s: '%s' does not say '%s'", c->key, c->json, common_code_name(code),
                         err.message, c->says);
        }
        json_decref(manifest);
        free(text);
    }
    clean_up();
    whole_end(&w);
}

// Entries that are right one by one, and not together.
static void files_that_overlap_or_are_missing_are_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct whole w;
        whole_begin(&w, false);
        struct snapshot_file *f = w.files, saved;
        switch (i) {
        case 0: // twice the same
            f[1] = f[0];
            break;
        case 1: // a gap
            f[1].first = CUT + 1;
            break;
        case 2: // rows of both
            f[1].first = CUT - 1;
            break;
        case 3: // out of order
            saved = f[0];
            f[0] = f[1];
            f[1] = saved;
            break;
        case 4: // of a layer without rows
            f[2].layer = f[3].layer = 1;
            break;
        default: // one layer is missing
            w.snapshot.n_files = 2;
        }
        err = (struct common_error){0};
        assert_int_equal(snapshot_check(&w.snapshot, &shape, &err), COMMON_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, i == 3 ? "from position 0 on" : "manifest.json"));
        whole_end(&w);
    }
}

// Of a session that has forgotten rows: the files of a layer begin where its rows do, and nowhere else.
static void a_floor_is_kept(void **state)
{
    (void)state;
    static const struct snapshot_layer late[3] = {{2, 4, 3, CUT}, {0, 0, 0, 0}, {1, 8, 0, 0}};
    static const struct snapshot_shape of_floor = {.n_layers = 3, .dtype = COMMON_DTYPE_I8, .layers = late};
    static const struct {
        const char *floor, *says;
    } wrong[] = {{"0", "not a position past 0"},     {"-1", "not a position past 0"},
                 {"1.0", "not a position past 0"},   {"\"8\"", "not a position past 0"},
                 {"11", "'floor' is past 'length'"}, {"4611686018427387904", "not a position past 0"},
                 {NULL, "not a position past 0"}};
    struct whole w;
    struct snapshot read = {0};
    whole_begin(&w, false);
    w.snapshot.floor = 8;
    assert_int_equal(snapshot_check(&w.snapshot, &of_floor, &err), COMMON_INVALID_ARGUMENT); // too much
    assert_non_null(strstr(err.message, "no file has layer 0 from position 6 on"));
    w.snapshot.files++; // without the first one
    w.snapshot.n_files--;
    assert_int_equal(snapshot_check(&w.snapshot, &of_floor, &err), COMMON_OK);
    assert_int_equal(snapshot_check(&w.snapshot, &shape, &err), COMMON_INVALID_ARGUMENT); // too little
    assert_non_null(strstr(err.message, "no file has layer 0 from position 0 on"));
    char *text = snapshot_text(&w.snapshot);
    assert_int_equal(snapshot_parse(text, strlen(text), &read, &err), COMMON_OK);
    assert_int_equal(read.floor, 8);
    assert_int_equal(read.length, LENGTH);
    snapshot_clear(&read);
    assert_int_equal(mkdir(path_of("s"), 0700), 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct snapshot_dir *dir;
        json_t *manifest = json_loads(text, 0, NULL);
        if (wrong[i].floor)
            json_object_set_new(manifest, "floor", json_loads(wrong[i].floor, JSON_DECODE_ANY, NULL));
        else
            json_object_del(manifest, "floor");
        write_manifest(manifest);
        assert_int_equal(snapshot_dir_open(path_of("s"), &dir, &err), COMMON_OK);
        assert_int_equal(snapshot_dir_manifest(dir, &read, &err), COMMON_INVALID_ARGUMENT);
        if (!strstr(err.message, wrong[i].says))
            fail_msg("floor %s: %s", wrong[i].floor ? wrong[i].floor : "none", err.message);
        snapshot_dir_close(dir);
        json_decref(manifest);
    }
    free(text);
    // One without is as it was before there were any.
    w.snapshot.floor = 0;
    text = snapshot_text(&w.snapshot);
    assert_non_null(strstr(text, "\"version\": 1,"));
    assert_null(strstr(text, "floor"));
    free(text);
    clean_up();
    whole_end(&w);
}

static void damaged_manifests_are_refused(void **state)
{
    (void)state;
    struct whole w;
    struct snapshot s;
    whole_begin(&w, false);
    char *text = snapshot_text(&w.snapshot);
    size_t len = strlen(text), refused = 0, same = 0;
    assert_int_equal(snapshot_parse(text, len, &s, &err), COMMON_OK);
    snapshot_clear(&s);
    for (size_t cut = 0; cut < len; cut++)
        assert_int_equal(snapshot_parse(text, cut, &s, &err), COMMON_INVALID_ARGUMENT);
    for (size_t i = 0; i < len; i++) { // one bit of each byte
        text[i] ^= (char)(1 << i % 7);
        enum common_code code = snapshot_parse(text, len, &s, &err);
        refused += code == COMMON_INVALID_ARGUMENT;
        if (code == COMMON_OK) { // white space became other white space
            same++;
            assert_int_equal(s.length, LENGTH);
            assert_int_equal(s.files[3].sum, w.files[3].sum);
            assert_true(json_equal(s.spec, w.snapshot.spec));
            snapshot_clear(&s);
        }
        text[i] ^= (char)(1 << i % 7);
    }
    assert_int_equal(refused + same, len);
    assert_true(same < len / 20);
    free(text);
    whole_end(&w);
}

// ---- files ------------------------------------------------------------------------------------------------

static void put_bytes(const char *name, const void *bytes, size_t len)
{
    FILE *file = fopen(path_of(name), "w");
    assert_int_equal(fwrite(bytes, 1, len, file), len);
    fclose(file);
}

#define FIRST "s/layer-0000-000000000000.safetensors"

static void refused_with(enum common_code code, const char *says)
{
    assert_int_equal(whole_read(path_of("s"), NULL), code);
    if (!strstr(err.message, says) || !strstr(err.message, "layer-0000-000000000000.safetensors"))
        fail_msg("'%s' does not say '%s'", err.message, says);
}

static void damaged_files_are_refused(void **state)
{
    (void)state;
    struct whole w;
    whole_begin(&w, false);
    whole_write(&w, path_of("s"));
    size_t len = w.files[0].bytes;
    for (size_t i = 0; i < len; i += 7) { // one bit flips anywhere
        w.bytes[0][i] ^= (uint8_t)(1 << i % 8);
        put_bytes(FIRST, w.bytes[0], len);
        refused_with(COMMON_INVALID_ARGUMENT, "xxh3");
        w.bytes[0][i] ^= (uint8_t)(1 << i % 8);
    }
    put_bytes(FIRST, w.bytes[0], len - 1);
    refused_with(COMMON_INVALID_ARGUMENT, "was truncated");
    put_bytes(FIRST, w.bytes[0], 0);
    refused_with(COMMON_INVALID_ARGUMENT, "was truncated");
    unlink(path_of(FIRST));
    refused_with(COMMON_NOT_FOUND, "No such file");
    assert_int_equal(symlink("/etc/passwd", path_of(FIRST)), 0);
    refused_with(COMMON_INTERNAL, "cannot be opened");
    unlink(path_of(FIRST));
    assert_int_equal(mkfifo(path_of(FIRST), 0600), 0); // would block a reader
    refused_with(COMMON_INVALID_ARGUMENT, "not a regular file");
    unlink(path_of(FIRST));
    put_bytes(FIRST, w.bytes[0], len);
    assert_int_equal(whole_read(path_of("s"), &w), COMMON_OK);
    clean_up();
    whole_end(&w);
}

// The manifest's sum is right for each: anyone who makes up a snapshot can do that.
static void made_up_tensors_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"I8\"", "\"U8\"", "type and shape"},
        {"[6,2,4]", "[6,4,2]", "type and shape"},
        {"layers.0.k\"", "layers.1.k\"", "'layers.0.k' is missing"},
        {"[0,48]", "[8,56]", "overlap"},
        {"\"data_offsets\"", "\"data_offsetz\"", "data_offsets"},
        {"{\"", "[\"", "JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct whole w;
        whole_begin(&w, false);
        char *at = memmem(w.bytes[0], w.files[0].bytes, cases[i].from, strlen(cases[i].from));
        assert_non_null(at);
        memcpy(at, cases[i].to, strlen(cases[i].to));
        w.files[0].sum = common_xxh3(w.bytes[0], w.files[0].bytes, 0);
        whole_write(&w, path_of("s"));
        refused_with(COMMON_INVALID_ARGUMENT, cases[i].says);
        clean_up();
        whole_end(&w);
    }
    for (int i = 0; i < 2; i++) { // the header's length: beyond the file, and one that would wrap
        struct whole w;
        whole_begin(&w, false);
        memset(w.bytes[0], i ? 0xff : 0x7f, i ? 8 : 2);
        w.files[0].sum = common_xxh3(w.bytes[0], w.files[0].bytes, 0);
        whole_write(&w, path_of("s"));
        refused_with(COMMON_INVALID_ARGUMENT, "header");
        clean_up();
        whole_end(&w);
    }
}

static void damaged_compression_is_refused(void **state)
{
    (void)state;
    static const char first[] = FIRST ".zst";
    struct whole w;
    whole_begin(&w, true);
    whole_write(&w, path_of("s"));
    FILE *file = fopen(path_of(first), "r");
    uint8_t packed[4096];
    size_t len = fread(packed, 1, sizeof packed, file);
    fclose(file);
    assert_int_equal(len, w.files[0].stored);
    put_bytes(first, packed, len - 3);
    refused_with(COMMON_INVALID_ARGUMENT, "was truncated");
    for (size_t i = 0; i < len; i++) {
        packed[i] ^= 0x10;
        put_bytes(first, packed, len);
        enum common_code code =
            whole_read(path_of("s"), &w); // a bit without a meaning may differ: the bytes may not
        assert_true(code == COMMON_INVALID_ARGUMENT || code == COMMON_OK);
        packed[i] ^= 0x10;
    }
    memset(packed, 0, len);
    put_bytes(first, packed, len);
    refused_with(COMMON_INVALID_ARGUMENT, "not zstd");
    clean_up();
    whole_end(&w);
}

// A few bytes that become a gigabyte, or fewer bytes than were said.
static void bombs_do_not_go_off(void **state)
{
    (void)state;
    static const size_t sizes[] = {1 << 30, 1 << 20, 40};
    for (size_t i = 0; i < 3; i++) {
        struct whole w;
        whole_begin(&w, true);
        whole_write(&w, path_of("s"));
        void *zeros = calloc(1, sizes[i]);
        size_t room = ZSTD_compressBound(sizes[i]);
        void *packed = malloc(room);
        size_t len = ZSTD_compress(packed, room, zeros, sizes[i], 1);
        assert_false(ZSTD_isError(len));
        if (len > 128 << 10) // more than a manifest may say: cut in the middle
            len = 128 << 10;
        put_bytes(FIRST ".zst", packed, len);
        w.files[0].stored = len;
        char *text = snapshot_text(&w.snapshot);
        put_bytes("s/manifest.json", text, strlen(text));
        refused_with(COMMON_INVALID_ARGUMENT, "not zstd of");
        free(text);
        free(packed);
        free(zeros);
        clean_up();
        whole_end(&w);
    }
}

static void folders_that_are_none(void **state)
{
    (void)state;
    assert_int_equal(whole_read(path_of("nowhere"), NULL), COMMON_NOT_FOUND);
    assert_non_null(strstr(err.message, "nowhere"));
    assert_int_equal(mkdir(path_of("s"), 0700), 0);
    assert_int_equal(whole_read(path_of("s"), NULL), COMMON_NOT_FOUND);
    assert_non_null(strstr(err.message, "manifest.json"));
    put_bytes("s/manifest.json", "{}", 2);
    assert_int_equal(whole_read(path_of("s"), NULL), COMMON_INVALID_ARGUMENT);
    assert_int_equal(truncate(path_of("s/manifest.json"), (off_t)SNAPSHOT_MANIFEST_MAX + 1),
                     0); // a sparse file
    assert_int_equal(whole_read(path_of("s"), NULL), COMMON_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "too large"));
    clean_up();
}

static void files_have_whole_chunks(void **state)
{
    (void)state;
    uint64_t row = snapshot_row_bytes(&shape, 0);
    assert_int_equal(row, 2 * (4 + 3) + 2 * 2 * 4);
    assert_int_equal(snapshot_row_bytes(&shape, 2), 8 + 4);
    assert_int_equal(snapshot_file_tokens(&shape, 0, row * 1000, 256), 768);
    assert_int_equal(snapshot_file_tokens(&shape, 0, row * 100, 256), 100);
    assert_int_equal(snapshot_file_tokens(&shape, 0, row - 1, 256), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_is_read),
        cmocka_unit_test(discarded_is_gone),
        cmocka_unit_test(made_up_manifests_are_refused),
        cmocka_unit_test(files_that_overlap_or_are_missing_are_refused),
        cmocka_unit_test(a_floor_is_kept),
        cmocka_unit_test(damaged_manifests_are_refused),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(made_up_tensors_are_refused),
        cmocka_unit_test(damaged_compression_is_refused),
        cmocka_unit_test(bombs_do_not_go_off),
        cmocka_unit_test(folders_that_are_none),
        cmocka_unit_test(files_have_whole_chunks),
    };
    snprintf(folder, sizeof folder, "/tmp/banyan-snapshot-test.XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
