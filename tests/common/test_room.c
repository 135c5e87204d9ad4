// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/room.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

static void test_files(void **state)
{
    (void)state;
    struct common_room before, after;
    int fds[8];
    common_room_look(NULL, &before);
    assert_true(before.files >= 3 && before.files < before.files_max);
    for (size_t i = 0; i < 8; i++)
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    common_room_look(NULL, &after);
    assert_true(after.files >= before.files + 8); // there may be others behind a gap
    for (size_t i = 0; i < 8; i++)
        close(fds[i]);
    common_room_look(NULL, &after);
    assert_int_equal(after.files, before.files); // it leaves none open
}

static void test_memory_and_disk(void **state)
{
    (void)state;
    struct common_room none, here, later, odd;
    common_room_look(NULL, &none);
    assert_true(none.memory_bytes > 0 && none.memory_available_bytes <= none.memory_bytes);
    assert_int_equal(none.disk_bytes, 0);
    common_room_look("/tmp", &here);
    assert_true(here.disk_bytes > 0 && here.disk_free_bytes <= here.disk_bytes);
    common_room_look("/tmp/not-there-yet/store/banyan.db", &later); // where it will be
    assert_int_equal(later.disk_bytes, here.disk_bytes);
    common_room_look("banyan.db", &odd);
    assert_true(odd.disk_bytes > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_files), cmocka_unit_test(test_memory_and_disk)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
