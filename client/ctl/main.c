// SPDX-License-Identifier: Apache-2.0
// Which command is meant; it is run, or described.
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/complete.h"
#include "client/ctl/ctl.h"
#include "client/ctl/groups.h"
#include "common/log/log.h"

static void print_commands(FILE *to, const char *prefix)
{
    for (size_t g = 0; ctl_groups[g]; g++)
        for (const struct ctl_command *c = ctl_groups[g]; c->name; c++)
            if (strncmp(c->name, prefix, strlen(prefix)) == 0)
                fprintf(to, "  %-18s %s\n", c->name, c->summary);
}

// "fork" of "session fork", where only one command ends so.
static const char *with_this_end(const char *word)
{
    const char *found = NULL;
    for (size_t g = 0; ctl_groups[g]; g++)
        for (const struct ctl_command *c = ctl_groups[g]; c->name; c++) {
            const char *space = strchr(c->name, ' ');
            if (!space || strcmp(space + 1, word) != 0)
                continue;
            if (found)
                return NULL;
            found = c->name;
        }
    return found;
}

static enum ctl_exit unknown(const char *first, const char *second)
{
    char typed[64];
    snprintf(typed, sizeof typed, "%.30s%s%.30s", first, second ? " " : "", second ? second : "");
    const char *nearest = with_this_end(first);
    unsigned best = nearest ? 0 : 4; // more edits are another word
    for (size_t g = 0; ctl_groups[g]; g++)
        for (const struct ctl_command *c = ctl_groups[g]; c->name; c++) {
            bool two_words = strchr(c->name, ' ') != NULL;
            unsigned distance = common_word_distance(two_words && second ? typed : first, c->name);
            if (second && ctl_is_group(first) && !two_words)
                continue;
            if (distance < best) {
                best = distance;
                nearest = c->name;
            }
        }
    if (second && ctl_is_group(first))
        snprintf(typed, sizeof typed, "%.30s %.30s", first, second);
    else
        snprintf(typed, sizeof typed, "%.60s", first);
    if (nearest)
        return ctl_say(CTL_USAGE,
                       "unknown command '%s': did you mean '%s'? 'banyanctl help' lists all commands", typed,
                       nearest);
    return ctl_say(CTL_USAGE, "unknown command '%s': 'banyanctl help' lists all commands", typed);
}

static void print_help(const struct common_command *program)
{
    char *argv[] = {(char *)"banyanctl", (char *)"--help", NULL};
    int rest;
    common_options_parse(program, 2, argv, &rest, NULL);
    printf("\nCommands:\n");
    print_commands(stdout, "");
    printf(
        "\n"
        "'banyanctl help COMMAND' describes one.\n"
        "\n"
        "Exit codes: 0 success, 1 internal error, 2 usage error, 3 not found, 4 wrong input, 5 unavailable,\n"
        "6 timeout, 7 not allowed, 8 exhausted, 9 wrong state, 10 data loss, 11 local file, 12 not "
        "supported.\n");
}

static bool is_of(const struct ctl_command *command, const struct ctl_command *group)
{
    while (group->name && group != command)
        group++;
    return group->name != NULL;
}

// About files of this machine: where a coordinator is does not matter.
static bool asks_nobody(const struct ctl_command *command)
{
    return is_of(command, ctl_context_commands) || is_of(command, ctl_pki_commands) ||
           is_of(command, ctl_trail_commands) || is_of(command, ctl_backup_verify_commands) ||
           is_of(command, ctl_config_commands);
}

// Whether it does so itself, when it likes to, or never.
static bool connects_itself(const struct ctl_command *command)
{
    return asks_nobody(command) || is_of(command, ctl_until_commands) || is_of(command, ctl_top_commands) ||
           is_of(command, ctl_doctor_commands) || is_of(command, ctl_probe_commands) ||
           is_of(command, ctl_version_commands) || is_of(command, ctl_bundle_commands);
}

static enum ctl_exit run_command(const struct ctl_command *command, int argc, char **argv, struct ctl *ctl)
{
    char *args[CTL_ARGS_MAX];
    int n_args;
    enum ctl_exit exit_code;
    if (!ctl_parse(command, argc, argv, ctl, args, &n_args, &exit_code))
        return exit_code;
    if (!command->run)
        return command->check(n_args, args);
    ctl_take_given(ctl);
    exit_code = asks_nobody(command) ? CTL_OK : ctl_settle(ctl);
    if (exit_code != CTL_OK)
        return exit_code;
    exit_code = command->check ? command->check(n_args, args) : CTL_OK;
    if (exit_code != CTL_OK)
        return exit_code;
    banyan_error error;
    if (!connects_itself(command) && ctl_connect(ctl, &error) != BANYAN_OK)
        return ctl_connect_fail(&error);
    exit_code = command->run(ctl, n_args, args);
    if (exit_code == CTL_OK)
        exit_code = ctl_output_over();
    banyan_disconnect(ctl->client);
    if (fflush(stdout) != 0 && exit_code == CTL_OK)
        exit_code = ctl_say(CTL_FILE, "cannot write to standard output");
    return exit_code;
}

static enum ctl_exit run_help(const struct common_command *program, int argc, char **argv, struct ctl *ctl)
{
    char *ask[] = {(char *)"banyanctl", (char *)"--help", NULL};
    char *args[CTL_ARGS_MAX];
    int n_args;
    enum ctl_exit exit_code;
    if (argc == 0) {
        print_help(program);
        return CTL_OK;
    }
    bool about_help = strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0;
    const struct ctl_command *command =
        about_help ? ctl_find("help", NULL) : ctl_find(argv[0], argc > 1 ? argv[1] : NULL);
    if (command) {
        ctl_parse(command, 2, ask, ctl, args, &n_args, &exit_code);
        return exit_code;
    }
    if (argc == 1 && ctl_is_group(argv[0])) {
        printf("Commands:\n");
        print_commands(stdout, argv[0]);
        return CTL_OK;
    }
    return unknown(argv[0], argc > 1 ? argv[1] : NULL);
}

int main(int argc, char **argv)
{
    setlocale(LC_CTYPE, "");
    common_log_init("banyanctl");
    common_log_set_level(COMMON_LOG_ERROR);
    const struct common_command program = {
        .program = "banyanctl",
        .synopsis = "[options] COMMAND [arguments]",
        .about = "Inspects and operates a Banyan cluster.",
        .options = ctl_global_options(),
    };
    struct ctl ctl = {0};
    struct common_error err;
    int rest;
    if (ctl_asked(&program, argc, argv))
        return CTL_OK;
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_help(&program);
        return CTL_OK;
    }
    enum common_code code = common_options_parse(&program, argc, argv, &rest, &err);
    if (code == COMMON_CANCELLED)
        return CTL_OK;
    if (code != COMMON_OK)
        return (int)ctl_say(CTL_USAGE, "%s", err.message);
    if (rest >= argc) {
        ctl_say(CTL_USAGE, "give a command:");
        print_commands(stderr, "");
        return CTL_USAGE;
    }
    argc -= rest;
    argv += rest;
    if (strcmp(argv[0], "help") == 0)
        return (int)run_help(&program, argc - 1, argv + 1, &ctl);
    const struct ctl_command *command = ctl_find(argv[0], argc > 1 ? argv[1] : NULL);
    if (!command && ctl_is_group(argv[0]) &&
        (argc == 1 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        FILE *to = argc == 1 ? stderr : stdout;
        if (argc == 1)
            ctl_say(CTL_USAGE, "'%s' needs one more word:", argv[0]);
        print_commands(to, argv[0]);
        return argc == 1 ? CTL_USAGE : CTL_OK;
    }
    if (!command)
        return (int)unknown(argv[0], argc > 1 ? argv[1] : NULL);
    int words = ctl_words(command, argv[0]);
    // The last word of the name stands where the parser expects the program.
    return (int)run_command(command, argc - words + 1, argv + words - 1, &ctl);
}
