// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash/hash.h"
#include "common/tensor/safetensors.h"
#include "tests/common/scratch.h"

static struct scratch scratch;

static int setup(void **state)
{
    (void)state;
    return scratch_init(&scratch);
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(&scratch);
    return 0;
}

// Writes prefix (`claimed` as header length), header and `data_len` bytes 0, 1, 2 …; returns the path.
static const char *write_claiming(uint64_t claimed, const char *header, size_t header_len, size_t data_len)
{
    size_t len = 8 + header_len + data_len;
    uint8_t *file = malloc(len);
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)(claimed >> (8 * i));
    memcpy(file + 8, header, header_len);
    for (size_t i = 0; i < data_len; i++)
        file[8 + header_len + i] = (uint8_t)i;
    const char *path = scratch_write(&scratch, "f.safetensors", file, len, 0600);
    free(file);
    assert_non_null(path);
    return path;
}

static const char *write_file(const char *header, size_t data_len)
{
    return write_claiming(strlen(header), header, strlen(header), data_len);
}

// Expects a refusal that leaves *out alone and says `word`.
static void assert_refused(const char *path, enum common_code code, const char *word)
{
    struct common_safetensors *file = NULL;
    struct common_error err = {0};
    assert_int_equal(common_safetensors_open(path, &file, &err), code);
    assert_null(file);
    assert_int_equal(err.code, code);
    if (!strstr(err.message, word))
        fail_msg("'%s' is not in '%s'", word, err.message);
    assert_int_equal(common_safetensors_open(path, &file, NULL), code);
}

static void test_good_file(void **state)
{
    (void)state;
    const char *path = write_file("{\"__metadata__\":{\"format\":\"pt\",\"n\":\"1\"},"
                                  "\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[3,27]},"
                                  "\"a.b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                                  "\"scalar\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[27,29]},"
                                  "\"none\":{\"dtype\":\"F16\",\"shape\":[0,9],\"data_offsets\":[29,29]},"
                                  "\"half\":{\"dtype\":\"F16\",\"shape\":[1,1],\"data_offsets\":[29,31]}}   ",
                                  31);
    struct common_safetensors *file;
    struct common_error err;
    assert_int_equal(common_safetensors_open(path, &file, &err), COMMON_OK);
    assert_int_equal(common_safetensors_count(file), 5);
    static const char *const names[] = {"a.b", "half", "none", "scalar", "w"};
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(common_safetensors_at(file, i)->name, names[i]);
        assert_ptr_equal(common_safetensors_find(file, names[i]), common_safetensors_at(file, i));
    }
    const struct common_safetensor *w = common_safetensors_find(file, "w");
    assert_int_equal(w->dtype, COMMON_DTYPE_F32);
    assert_int_equal(w->n_dims, 2);
    assert_int_equal(w->dims[0], 2);
    assert_int_equal(w->dims[1], 3);
    assert_int_equal(w->bytes, 24);
    for (size_t i = 0; i < 24; i++)
        assert_int_equal(((const uint8_t *)w->data)[i], 3 + i);
    assert_int_equal(common_safetensors_find(file, "a.b")->dtype, COMMON_DTYPE_OTHER);
    assert_int_equal(common_safetensors_find(file, "scalar")->dtype, COMMON_DTYPE_BF16);
    assert_int_equal(common_safetensors_find(file, "scalar")->n_dims, 0);
    assert_int_equal(common_safetensors_find(file, "none")->bytes, 0);
    assert_int_equal(common_safetensors_find(file, "half")->dtype, COMMON_DTYPE_F16);
    assert_null(common_safetensors_find(file, "__metadata__"));
    assert_null(common_safetensors_find(file, ""));
    assert_null(common_safetensors_at(file, 5));
    common_safetensors_close(file);
    common_safetensors_close(NULL);
}

static void test_empty_header(void **state)
{
    (void)state;
    struct common_safetensors *file;
    assert_int_equal(common_safetensors_open(write_file("{}", 0), &file, NULL), COMMON_OK);
    assert_int_equal(common_safetensors_count(file), 0);
    assert_null(common_safetensors_find(file, "x"));
    assert_null(common_safetensors_at(file, 0));
    common_safetensors_close(file);
}

static void test_not_a_file(void **state)
{
    (void)state;
    assert_refused(scratch_path(&scratch, "absent"), COMMON_NOT_FOUND, "absent");
    assert_refused(scratch.dir, COMMON_INVALID_ARGUMENT, "regular file");
    const char *fifo = scratch_path(&scratch, "fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_refused(fifo, COMMON_INVALID_ARGUMENT, "regular file");
    assert_refused(scratch_write(&scratch, "empty", "", 0, 0600), COMMON_INVALID_ARGUMENT, "too short");
    assert_refused(scratch_write(&scratch, "seven", "\2\0\0\0\0\0\0", 7, 0600), COMMON_INVALID_ARGUMENT,
                   "too short");
}

static void test_header_length(void **state)
{
    (void)state;
    static const uint64_t claims[] = {3,
                                      4,
                                      UINT64_C(64) << 20,
                                      (UINT64_C(64) << 20) + 1,
                                      UINT32_MAX,
                                      INT64_MAX,
                                      UINT64_C(1) << 63,
                                      UINT64_MAX,
                                      UINT64_MAX - 7,
                                      UINT64_MAX - 8};
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++)
        assert_refused(write_claiming(claims[i], "{}", 2, 0), COMMON_INVALID_ARGUMENT, "header's length");
    // Longer than 64 MiB and truly there (a sparse file).
    const char *path = write_claiming((UINT64_C(64) << 20) + 1, "{}", 2, 0);
    assert_int_equal(truncate(path, 70 << 20), 0);
    assert_refused(path, COMMON_INVALID_ARGUMENT, "header's length");
}

static void test_garbage_headers(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "",
        " ",
        "{",
        "}",
        "{\"a\"",
        "{\"a\":}",
        "nonsense",
        "{}x",
        "{} {}",
        "{\"a\":{},}",
        "\xff\xfe{}",
        "{\"\xff\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
        "{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]}}",
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        assert_refused(write_file(headers[i], 4), COMMON_INVALID_ARGUMENT, "JSON");
    static const char *const others[] = {"[]", "[{}]"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_refused(write_file(others[i], 4), COMMON_INVALID_ARGUMENT, "object");
    assert_refused(write_claiming(3, "{}\0", 3, 0), COMMON_INVALID_ARGUMENT, "JSON");
    char deep[100001];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    assert_refused(write_file(deep, 0), COMMON_INVALID_ARGUMENT, "JSON"); // no deep recursion either
}

// Each tensor named "t" in a file with 16 bytes of data.
static void test_bad_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *entry, *word;
    } cases[] = {
        {"5", "not an object"},
        {"[]", "not an object"},
        {"{}", "dtype"},
        {"{\"dtype\":7,\"shape\":[4],\"data_offsets\":[0,16]}", "dtype"},
        {"{\"dtype\":\"F33\",\"shape\":[4],\"data_offsets\":[0,16]}", "dtype"},
        {"{\"dtype\":\"f32\",\"shape\":[4],\"data_offsets\":[0,16]}", "dtype"},
        {"{\"dtype\":\"F32\",\"data_offsets\":[0,16]}", "shape"},
        {"{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,16]}", "shape"},
        {"{\"dtype\":\"F32\",\"shape\":[4.0],\"data_offsets\":[0,16]}", "dimension"},
        {"{\"dtype\":\"F32\",\"shape\":[\"4\"],\"data_offsets\":[0,16]}", "dimension"},
        {"{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}", "dimension"},
        {"{\"dtype\":\"F32\",\"shape\":[-2,-2],\"data_offsets\":[0,16]}", "dimension"},
        {"{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,4],\"data_offsets\":[0,16]}", "dimensions"},
        {"{\"dtype\":\"F32\",\"shape\":[4]}", "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16]}", "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,8,16]}", "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":{\"0\":0,\"1\":16}}", "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]}", "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0.0,16]}", "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}", "outside"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[1,17]}", "outside"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[9223372036854775807,9223372036854775807]}",
         "outside"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,9223372036854775807]}", "outside"},
        {"{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,16]}", "does not match its shape"},
        {"{\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[0,16]}", "does not match its shape"},
        {"{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,16]}", "does not match its shape"},
        {"{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,16]}", "does not match its shape"},
        {"{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,16]}", "does not match its shape"},
        // Products that wrap: to 4, and to 16 bytes only after the factor of the type.
        {"{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4],\"data_offsets\":[0,16]}", "64 bits"},
        {"{\"dtype\":\"F32\",\"shape\":[4611686018427387905,4],\"data_offsets\":[0,16]}", "64 bits"},
        {"{\"dtype\":\"F32\",\"shape\":[4611686018427387908],\"data_offsets\":[0,16]}",
         "does not match its shape"},
        {"{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,16]}", "64 bits"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char header[512];
        snprintf(header, sizeof header, "{\"t\":%s}", cases[i].entry);
        const char *path = write_file(header, 16);
        assert_refused(path, COMMON_INVALID_ARGUMENT, cases[i].word);
        assert_refused(path, COMMON_INVALID_ARGUMENT, "'t'");
    }
}

static void test_duplicates_and_overlaps(void **state)
{
    (void)state;
    assert_refused(write_file("{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                              "\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                              2),
                   COMMON_INVALID_ARGUMENT, "JSON");
    static const char *const ranges[] = {
        "[0,4]|[0,4]", "[0,4]|[3,7]", "[3,7]|[0,4]", "[0,8]|[4,8]", "[0,8]|[2,6]", "[0,1]|[0,8]",
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        int a, b, c, d;
        assert_int_equal(sscanf(ranges[i], "[%d,%d]|[%d,%d]", &a, &b, &c, &d), 4);
        char header[512];
        snprintf(header, sizeof header,
                 "{\"first\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%d,%d]},"
                 "\"second\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%d,%d]}}",
                 b - a, a, b, d - c, c, d);
        assert_refused(write_file(header, 8), COMMON_INVALID_ARGUMENT, "overlap");
    }
}

// A good file cut at every length is refused, never read past its end.
static void test_truncated_everywhere(void **state)
{
    (void)state;
    static const char header[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    size_t whole = 8 + strlen(header) + 8;
    for (size_t len = 0; len < whole; len++) {
        const char *path = write_file(header, 8);
        assert_int_equal(truncate(path, (off_t)len), 0);
        assert_refused(path, COMMON_INVALID_ARGUMENT, "f.safetensors");
    }
}

// Random damage to the header: whatever opens must hold what it promises.
static void test_damaged_headers(void **state)
{
    (void)state;
    static const char good[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                               "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[24,32]}}";
    int opened = 0;
    for (uint64_t i = 0; i < 3000; i++) {
        char header[sizeof good];
        memcpy(header, good, sizeof good);
        static const char letters[] = "0123456789-.,:[]{}\"eE ";
        for (uint64_t k = 0; k <= i % 3; k++) {
            uint64_t r = common_mix64(i * 4 + k);
            header[r % (sizeof good - 1)] = letters[(r >> 32) % (sizeof letters - 1)];
        }
        struct common_safetensors *file;
        if (common_safetensors_open(write_file(header, 32), &file, NULL) != COMMON_OK)
            continue;
        opened++;
        for (size_t t = 0; t < common_safetensors_count(file); t++) {
            const struct common_safetensor *tensor = common_safetensors_at(file, t);
            unsigned sum = 0;
            for (size_t b = 0; b < tensor->bytes; b++)
                sum += ((const uint8_t *)tensor->data)[b];
            assert_true(tensor->bytes <= 32 && sum <= 32 * 31);
        }
        common_safetensors_close(file);
    }
    assert_true(opened > 0 && opened < 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_good_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_empty_header, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_a_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_header_length, setup, teardown),
        cmocka_unit_test_setup_teardown(test_garbage_headers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_tensors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_duplicates_and_overlaps, setup, teardown),
        cmocka_unit_test_setup_teardown(test_truncated_everywhere, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_headers, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
