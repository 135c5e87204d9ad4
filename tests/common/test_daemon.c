// SPDX-License-Identifier: Apache-2.0
// What daemons have in common: paths, keys, the ready file, options, signals.
#include "common/cli/daemon.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

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
    char command[PATH_MAX];
    snprintf(command, sizeof command, "rm -rf '%s'", scratch.dir);
    return system(command);
}

static void set_or_unset(const char *name, const char *value)
{
    assert_int_equal(value ? setenv(name, value, 1) : unsetenv(name), 0);
}

static void test_state_path(void **state)
{
    (void)state;
    static const struct {
        const char *name, *xdg, *home, *path; // path NULL: refused
    } cases[] = {
        {"XDG_STATE_HOME", "/state", "/home/a", "/state/banyan/x.db"},
        {"HOME", NULL, "/home/a", "/home/a/.local/state/banyan/x.db"},
        {"an empty XDG_STATE_HOME", "", "/home/a", "/home/a/.local/state/banyan/x.db"},
        {"a relative XDG_STATE_HOME", "state", "/home/a", "/home/a/.local/state/banyan/x.db"},
        {"a relative HOME", NULL, "a", NULL},
        {"neither", NULL, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path;
        struct common_error err;
        set_or_unset("XDG_STATE_HOME", cases[i].xdg);
        set_or_unset("HOME", cases[i].home);
        enum common_code code = common_daemon_state_path("x.db", "--store", &path, &err);
        if (code != (cases[i].path ? COMMON_OK : COMMON_FAILED_PRECONDITION) ||
            (path && strcmp(path, cases[i].path) != 0))
            fail_msg("%s: %s, %s", cases[i].name, common_code_name(code), path ? path : "no path");
        if (!path)
            assert_non_null(strstr(err.message, "--store"));
        free(path);
    }
}

static void test_keys(void **state)
{
    (void)state;
    struct common_daemon first = {0}, second = {0};
    struct common_error err;
    struct stat st;
    char token[PATH_MAX], folder[PATH_MAX + 16];
    assert_int_equal(setenv("XDG_STATE_HOME", scratch_path(&scratch, "new/state"), 1), 0);
    assert_int_equal(common_daemon_load_keys(&first, &err), COMMON_OK); // makes folders and secret
    snprintf(folder, sizeof folder, "%s/banyan", scratch_path(&scratch, "new/state"));
    assert_int_equal(stat(folder, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_string_equal(first.token, "");
    strcpy(token, scratch_write(&scratch, "token", "eight ch\n", 9, 0600));
    second.token_file = token;
    assert_int_equal(common_daemon_load_keys(&second, &err), COMMON_OK);
    assert_memory_equal(&first.secret, &second.secret, sizeof first.secret);
    assert_string_equal(second.token, "eight ch");
    strcpy(token, scratch_write(&scratch, "token", "short\n", 6, 0600));
    assert_int_equal(common_daemon_load_keys(&second, &err), COMMON_FAILED_PRECONDITION);
}

static void test_ready_file(void **state)
{
    (void)state;
    char path[PATH_MAX], text[64] = "";
    struct common_error err;
    strcpy(path, scratch_write(&scratch, "ready", "what was there before\n", 22, 0600));
    assert_int_equal(common_daemon_write_ready(path, "{\"pid\":1}", &err), COMMON_OK);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fread(text, 1, sizeof text, file), 10);
    fclose(file);
    assert_string_equal(text, "{\"pid\":1}\n");
    assert_int_equal(scratch_count(&scratch), 1); // nothing is left beside it
    assert_int_equal(common_daemon_write_ready("/proc/no/such", "{}", &err), COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "/proc/no/such"));
}

static enum common_code parse(struct common_daemon *daemon, int argc, char **argv, struct common_error *err)
{
    const struct common_option options[] = {
        COMMON_DAEMON_SECRET_OPTION(daemon),           COMMON_DAEMON_TOKEN_OPTION(daemon, "A token."),
        COMMON_DAEMON_READY_OPTION(daemon, "A file."), COMMON_DAEMON_LOG_OPTIONS(daemon),
        COMMON_DAEMON_CONFIG_OPTIONS(daemon),          {0}};
    const struct common_command command = {
        .program = "daemon", .synopsis = "[options]", .about = "A daemon.", .options = options};
    return common_daemon_parse(daemon, &command, argc, argv, err);
}

static void test_options(void **state)
{
    (void)state;
    struct common_daemon daemon = {0};
    struct common_error err;
    char *all[] = {"daemon", "-s", "a", "--token-file=b", "--ready-file", "c", "--log-level", "warn"};
    assert_int_equal(parse(&daemon, 8, all, &err), COMMON_OK);
    assert_string_equal(daemon.secret_file, "a");
    assert_string_equal(daemon.token_file, "b");
    assert_string_equal(daemon.ready_file, "c");
    common_daemon_fini(&daemon);
    char *loud[] = {"daemon", "--log-level", "loud"}, *more[] = {"daemon", "more"};
    assert_int_equal(parse(&daemon, 3, loud, &err), COMMON_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "try 'daemon --help'"));
    daemon = (struct common_daemon){0};
    assert_int_equal(parse(&daemon, 2, more, &err), COMMON_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "try 'daemon --help'"));
    common_daemon_fini(&daemon);
    assert_int_equal(common_daemon_refuse("daemon", COMMON_CANCELLED, &err), COMMON_DAEMON_CLEAN);
    assert_int_equal(common_daemon_refuse("daemon", COMMON_INVALID_ARGUMENT, &err), COMMON_DAEMON_USAGE);
    assert_int_equal(common_daemon_refuse("daemon", COMMON_NOT_FOUND, &err), COMMON_DAEMON_START);
}

// Of a service: the token that systemd hands over counts where no option names another, and an empty line is
// none.
static void test_token_credential(void **state)
{
    (void)state;
    struct common_daemon daemon = {0};
    struct common_error err;
    char *none[] = {"daemon"}, *other[] = {"daemon", "--token-file=b"}, path[PATH_MAX];
    assert_int_equal(setenv("CREDENTIALS_DIRECTORY", scratch.dir, 1), 0);
    assert_int_equal(parse(&daemon, 1, none, &err), COMMON_OK);
    assert_null(daemon.token_file); // there is none
    common_daemon_fini(&daemon);
    strcpy(path, scratch_write(&scratch, "token", "\n", 1, 0400));
    daemon = (struct common_daemon){0};
    assert_int_equal(parse(&daemon, 1, none, &err), COMMON_OK);
    assert_null(daemon.token_file);
    common_daemon_fini(&daemon);
    scratch_write(&scratch, "token", "eight ch\n", 9, 0440);
    daemon = (struct common_daemon){0};
    assert_int_equal(parse(&daemon, 1, none, &err), COMMON_OK);
    assert_string_equal(daemon.token_file, path);
    assert_int_equal(common_token_load(daemon.token_file, daemon.token, &err), COMMON_OK);
    common_daemon_fini(&daemon);
    daemon = (struct common_daemon){0};
    assert_int_equal(parse(&daemon, 2, other, &err), COMMON_OK);
    assert_string_equal(daemon.token_file, "b");
    common_daemon_fini(&daemon);
    unsetenv("CREDENTIALS_DIRECTORY");
}

static void leave(void *arg)
{
    common_loop_stop(arg);
}

static void test_signals(void **state)
{
    (void)state;
    static const int numbers[] = {SIGTERM, SIGINT};
    for (int i = 0; i < 2; i++) {
        struct common_loop *loop;
        struct common_signals *signals;
        assert_int_equal(common_loop_new(&loop), COMMON_OK);
        assert_int_equal(common_signals_new(loop, leave, NULL, loop, &signals), COMMON_OK);
        raise(SIGPIPE); // is ignored
        raise(SIGHUP);  // is only logged: without a handler it would end this process
        raise(numbers[i]);
        common_loop_run(loop); // ends
        common_signals_free(signals);
        common_loop_free(loop);
    }
    common_signals_free(NULL);
}

// The loop ends when the last holder of a pipe's other end has closed it, whatever was written before.
static void test_input(void **state)
{
    (void)state;
    int ends[2], kept = dup(STDIN_FILENO);
    struct common_loop *loop;
    struct common_signals *signals;
    struct common_error err;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
    assert_int_equal(common_loop_new(&loop), COMMON_OK);
    assert_int_equal(common_signals_new(loop, leave, NULL, loop, &signals), COMMON_OK);
    assert_int_equal(common_signals_watch_input(signals, &err), COMMON_OK);
    assert_int_equal(write(ends[1], "more", 4), 4);
    close(ends[1]);
    common_loop_run(loop); // ends
    common_signals_free(signals);
    close(ends[0]);
    int nothing = open("/dev/null", O_RDONLY);
    assert_int_equal(dup2(nothing, STDIN_FILENO), STDIN_FILENO);
    assert_int_equal(common_signals_new(loop, leave, NULL, loop, &signals), COMMON_OK);
    assert_int_equal(common_signals_watch_input(signals, &err), COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "--stop-on-eof: standard input is not a pipe"));
    common_signals_free(signals);
    common_loop_free(loop);
    dup2(kept, STDIN_FILENO);
    close(kept);
    close(nothing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_state_path, setup, teardown),
        cmocka_unit_test_setup_teardown(test_keys, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ready_file, setup, teardown),
        cmocka_unit_test(test_options),
        cmocka_unit_test_setup_teardown(test_token_credential, setup, teardown),
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
