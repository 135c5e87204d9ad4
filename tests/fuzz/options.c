// SPDX-License-Identifier: Apache-2.0
// The command lines of both daemons and the file of --config. Input: u8 what, then the file of --config,
// ended by 0, then arguments, each ended by 0. What, bit 0: the worker's; bit 1: with --config; bit 2:
// --print-config. A slash in them is taken out where it would name a file outside of the target's own folder.
#include <string.h>
#include <unistd.h>

#include "coordinator/daemon.h"
#include "tests/fuzz/fuzz.h"
#include "worker/daemon/daemon.h"

enum { ARGS_MAX = 24 };

static char own_folder[64];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_enter_folder();
    fuzz_quiet();
    FUZZ_CHECK(getcwd(own_folder, sizeof own_folder));
    setenv("XDG_STATE_HOME", own_folder, 1);
    unsetenv("CREDENTIALS_DIRECTORY");
    unsetenv("COMP_LINE");
    return 0;
}

// "tcp://" stays; every other slash becomes an underscore, so that files are made here and modules are not
// found elsewhere.
static void tame(char *text)
{
    for (char *c = text; *c; c++)
        if (*c == '/' && !(c > text && c[-1] == ':' && c[1] == '/') && !(c > text && c[-1] == '/'))
            *c = '_';
}

static void as_worker(int argc, char **argv)
{
    struct worker_daemon_options options;
    struct common_error err;
    enum common_code code = worker_daemon_options_parse(argc, argv, &options, &err);
    if (code == COMMON_OK) {
        FUZZ_CHECK(options.config.name[0] && options.config.coordinator && options.config.threads >= 1);
        FUZZ_CHECK(options.config.memory_bytes > 0);
    } else {
        FUZZ_CHECK(code == COMMON_CANCELLED || err.message[0]);
    }
    FUZZ_CHECK(!options.engine); // those come from modules, and none is here
    worker_device_close(options.device);
    worker_place_free(options.place);
    common_daemon_fini(&options.daemon);
}

static void as_coordinator(int argc, char **argv)
{
    struct coordinator_daemon_options options;
    struct common_error err;
    enum common_code code = coordinator_daemon_options_parse(argc, argv, &options, &err);
    if (code == COMMON_OK)
        FUZZ_CHECK(options.config.endpoints && options.config.endpoints[0] && options.config.store_path);
    else
        FUZZ_CHECK(code == COMMON_CANCELLED || err.message[0]);
    coordinator_daemon_options_free(&options);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    uint8_t what = fuzz_u8(&in);
    char *args[ARGS_MAX + 8], *kept[ARGS_MAX + 1];
    int argc = 0, n = 0;
    char *file = kept[n++] = fuzz_text(&in, in.left);
    tame(file);
    args[argc++] = (char *)(what & 1 ? "banyan-worker" : "banyan-coordinator");
    if (what & 2) {
        fuzz_write_file("config", file, strlen(file));
        args[argc++] = (char *)"--config=config";
    }
    if (what & 4)
        args[argc++] = (char *)"--print-config";
    if (what & 8) { // what most command lines of a worker need
        args[argc++] = (char *)"--coordinator=tcp://127.0.0.1:1";
        args[argc++] = (char *)"--memory=1M";
    }
    while (in.left > 0 && n <= ARGS_MAX) {
        tame(kept[n] = fuzz_text(&in, 256));
        args[argc++] = kept[n++];
    }
    args[argc] = NULL;
    if (what & 1)
        as_worker(argc, args);
    else
        as_coordinator(argc, args);
    while (n > 0)
        free(kept[--n]);
    return 0;
}
