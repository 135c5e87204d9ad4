// SPDX-License-Identifier: Apache-2.0
// The shared library exports the public API and nothing else, and has no way to end its host's process.
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/banyan.h"

static void *open_library(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/lib/libbanyan.so.0", getenv("BANYAN_BUILD_DIR"));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail_msg("%s", dlerror());
    return library;
}

static void test_exports(void **state)
{
    (void)state;
    static const char *const there[] = {"banyan_connect",
                                        "banyan_shutdown",
                                        "banyan_attend",
                                        "banyan_attend_async",
                                        "banyan_attend_queue",
                                        "banyan_attach",
                                        "banyan_commit",
                                        "banyan_session_fork",
                                        "banyan_ping",
                                        "banyan_attach_scaled",
                                        "banyan_quantise",
                                        "banyan_kv_scaled",
                                        "banyan_session_watch",
                                        "banyan_mass_free",
                                        "banyan_watch_free",
                                        "banyan_read_rows",
                                        "banyan_session_pin",
                                        "banyan_session_create_at",
                                        "banyan_session_create_from",
                                        "banyan_session_keep",
                                        "banyan_prefix_hashes",
                                        "banyan_prefix_find",
                                        "banyan_prefix_get_list",
                                        "banyan_prefix_list_free",
                                        "banyan_prefix_drop",
                                        "banyan_rebalance",
                                        "banyan_worker_drain",
                                        "banyan_worker_cordon",
                                        "banyan_worker_resume",
                                        "banyan_worker_forget",
                                        "banyan_balance_free",
                                        "banyan_worker_get_drain",
                                        "banyan_partial_free",
                                        "banyan_session_get_kept_step",
                                        "banyan_kept_step_free",
                                        "banyan_scrub_begin",
                                        "banyan_get_scrub",
                                        "banyan_examine",
                                        "banyan_backup_take",
                                        "banyan_backup_accept",
                                        "banyan_events_read",
                                        "banyan_events_free",
                                        "banyan_reason_name",
                                        "banyan_session_snapshot",
                                        "banyan_session_restore",
                                        "banyan_snapshot_check",
                                        "banyan_session_get_memory",
                                        "banyan_session_memory_free"};
    static const char *const hidden[] = {"common_loop_new", "proto_channel_open", "client_call_start",
                                         "banyan__pb__header__init", "common_log"};
    void *library = open_library();
    for (size_t i = 0; i < sizeof there / sizeof *there; i++)
        if (!dlsym(library, there[i]))
            fail_msg("%s is not exported", there[i]);
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (dlsym(library, hidden[i]))
            fail_msg("%s is exported", hidden[i]);
    const char *(*version)(void) = (const char *(*)(void))dlsym(library, "banyan_version");
    const char *(*name)(banyan_code) = (const char *(*)(banyan_code))dlsym(library, "banyan_code_name");
    assert_string_equal(version(), BANYAN_VERSION);
    assert_string_equal(name(BANYAN_DATA_LOSS), "DATA_LOSS");
    dlclose(library);
}

// Failed assertions are our bugs, and end it all the same (__assert_fail); nothing else does.
static void test_ends_no_process(void **state)
{
    (void)state;
    char command[4200], line[512], name[256];
    snprintf(command, sizeof command, "nm -D --undefined-only '%s/lib/libbanyan.so.0'",
             getenv("BANYAN_BUILD_DIR"));
    FILE *symbols = popen(command, "r");
    assert_non_null(symbols);
    unsigned n = 0;
    while (fgets(line, sizeof line, symbols))
        if (sscanf(line, " U %255[^@\n]", name) == 1) {
            static const char *const ends[] = {"abort",      "exit", "_exit", "_Exit",
                                               "quick_exit", "err",  "errx"};
            for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
                if (strcmp(name, ends[i]) == 0)
                    fail_msg("libbanyan calls %s", name);
            n++;
        }
    assert_int_equal(pclose(symbols), 0);
    assert_true(n > 100); // the list is there
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exports),
                                       cmocka_unit_test(test_ends_no_process)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
