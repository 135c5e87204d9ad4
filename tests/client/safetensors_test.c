// SPDX-License-Identifier: Apache-2.0
// What the writer writes the reader reads.
#include "client/snapshot/safetensors_write.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/common/group.h"

static char dir[] = "/tmp/banyan-safetensors-XXXXXX";
static char path[64];

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/t.safetensors", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir); // fails when a temporary file was left behind
}

static void test_round_trip(void **state)
{
    (void)state;
    float o[6] = {1, -2, 3.5f, 0, 1e30f, -0.0f};
    uint16_t h[3] = {0x3c00, 0x7c00, 1};
    uint8_t codes[4] = {0x80, 0x7f, 1, 0};
    struct common_safetensor tensors[] = {
        {.name = "o",
         .dtype = COMMON_DTYPE_F32,
         .n_dims = 3,
         .dims = {1, 2, 3},
         .data = o,
         .bytes = sizeof o},
        {.name = "h\"\n", .dtype = COMMON_DTYPE_F16, .n_dims = 1, .dims = {3}, .data = h, .bytes = sizeof h},
        {.name = "b", .dtype = COMMON_DTYPE_BF16, .n_dims = 2, .dims = {3, 1}, .data = h, .bytes = sizeof h},
        {.name = "none", .dtype = COMMON_DTYPE_F32, .n_dims = 2, .dims = {0, 7}, .data = o, .bytes = 0},
        {.name = "i", .dtype = COMMON_DTYPE_I8, .n_dims = 1, .dims = {3}, .data = codes, .bytes = 3},
        {.name = "f", .dtype = COMMON_DTYPE_F8_E4M3, .n_dims = 1, .dims = {4}, .data = codes, .bytes = 4},
    };
    const size_t n = sizeof tensors / sizeof *tensors;
    struct common_error err;
    assert_int_equal(client_safetensors_write(path, tensors, n, &err), COMMON_OK);
    assert_int_equal(client_safetensors_write(path, tensors, n, &err), COMMON_OK); // replaces
    struct common_safetensors *file;
    if (common_safetensors_open(path, &file, &err) != COMMON_OK)
        fail_msg("%s", err.message);
    assert_int_equal(common_safetensors_count(file), n);
    for (size_t i = 0; i < n; i++) {
        const struct common_safetensor *t = common_safetensors_find(file, tensors[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, tensors[i].dtype);
        assert_int_equal(t->n_dims, tensors[i].n_dims);
        assert_memory_equal(t->dims, tensors[i].dims, t->n_dims * sizeof *t->dims);
        assert_int_equal(t->bytes, tensors[i].bytes);
        if (t->bytes > 0)
            assert_memory_equal(t->data, tensors[i].data, t->bytes);
    }
    common_safetensors_close(file);
}

static void test_refusals(void **state)
{
    (void)state;
    float x[2] = {0};
    struct common_safetensor good = {
        .name = "x", .dtype = COMMON_DTYPE_F32, .n_dims = 1, .dims = {2}, .data = x, .bytes = 8};
    struct common_error err;
    struct common_safetensor bad = good;
    bad.bytes = 4;
    assert_int_equal(client_safetensors_write(path, &bad, 1, &err), COMMON_INVALID_ARGUMENT);
    bad = good;
    bad.dtype = COMMON_DTYPE_OTHER;
    assert_int_equal(client_safetensors_write(path, &bad, 1, &err), COMMON_INVALID_ARGUMENT);
    bad = good;
    bad.n_dims = 2;
    bad.dims[0] = UINT64_MAX / 2;
    bad.dims[1] = 8; // the product wraps
    assert_int_equal(client_safetensors_write(path, &bad, 1, &err), COMMON_INVALID_ARGUMENT);
    struct common_safetensor twice[] = {good, good};
    assert_int_equal(client_safetensors_write(path, twice, 2, &err), COMMON_INVALID_ARGUMENT);
    assert_int_equal(client_safetensors_write("/nonexistent/x", &good, 1, &err), COMMON_INTERNAL);
    assert_non_null(strstr(err.message, "/nonexistent/x"));
}

// Nothing but a regular file is replaced: it stands for something else.
static void test_links_and_devices_stay(void **state)
{
    (void)state;
    float x[2] = {1, 2};
    struct common_safetensor tensor = {
        .name = "x", .dtype = COMMON_DTYPE_F32, .n_dims = 1, .dims = {2}, .data = x, .bytes = 8};
    struct common_safetensors *file;
    struct common_error err;
    struct stat st;
    char link[80];
    snprintf(link, sizeof link, "%s/link", dir);
    unlink(path);
    assert_int_equal(symlink(path, link), 0);
    for (int i = 0; i < 2; i++) { // it leads to nothing yet, and then to a file
        assert_int_equal(client_safetensors_write(link, &tensor, 1, &err), COMMON_OK);
        assert_int_equal(lstat(link, &st), 0);
        assert_true(S_ISLNK(st.st_mode));
        assert_int_equal(common_safetensors_open(path, &file, &err), COMMON_OK);
        common_safetensors_close(file);
    }
    unlink(link);
    assert_int_equal(symlink("/dev/full", link), 0);
    assert_int_equal(client_safetensors_write(link, &tensor, 1, &err), COMMON_INTERNAL);
    assert_non_null(strstr(err.message, "No space left"));
    assert_int_equal(stat(link, &st), 0);
    assert_true(S_ISCHR(st.st_mode));
    unlink(link);
    assert_int_equal(mkfifo(link, 0600), 0);
    int reader = open(link, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    uint8_t bytes[512];
    assert_true(reader >= 0);
    assert_int_equal(client_safetensors_write(link, &tensor, 1, &err), COMMON_OK);
    assert_true(read(reader, bytes, sizeof bytes) > 8);
    close(reader);
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    unlink(link);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_links_and_devices_stay),
    };
    return group_run(tests, set_up, tear_down);
}
