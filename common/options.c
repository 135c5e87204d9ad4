// SPDX-License-Identifier: Apache-2.0
#include "common/options.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELP_COLUMN_MAX 34 // a longer option stands on a line of its own

static bool takes_value(const struct common_option *option)
{
    return option->type != COMMON_OPTION_FLAG;
}

static void print_entry(const char *left, const char *help, int column)
{
    int width = (int)strlen(left);
    if (width + 2 > column)
        printf("%s\n%*s", left, column, "");
    else
        printf("%-*s", column, left);
    while (help) {
        const char *line_end = strchr(help, '\n');
        if (!line_end) {
            printf("%s\n", help);
            return;
        }
        printf("%.*s\n%*s", (int)(line_end - help), help, column, "");
        help = line_end + 1;
    }
    printf("\n");
}

static const char *entry_of(const struct common_option *option, char *buf, size_t len)
{
    char letter[5] = "    ";
    if (option->letter)
        snprintf(letter, sizeof letter, "-%c, ", option->letter);
    if (takes_value(option))
        snprintf(buf, len, "  %s--%s=%s", letter, option->name, option->arg ? option->arg : "VALUE");
    else
        snprintf(buf, len, "  %s--%s", letter, option->name);
    return buf;
}

static void print_help(const struct common_command *command)
{
    char left[128];
    int column = (int)strlen("  -h, --help") + 2;
    for (const struct common_option *o = command->options; o && o->name; o++) {
        int width = (int)strlen(entry_of(o, left, sizeof left)) + 2;
        if (width > column && width <= HELP_COLUMN_MAX)
            column = width;
    }
    printf("Usage: %s %s\n\n%s\n\nOptions:\n", command->program, command->synopsis, command->about);
    const struct common_option *o = command->options;
    for (; o && o->name; o++)
        print_entry(entry_of(o, left, sizeof left), o->help, column);
    print_entry("  -h, --help", "Print this help and exit.", column);
    print_entry("      --version", "Print the version and exit.", column);
    if (o && o->help)
        printf("\n%s\n", o->help);
    fflush(stdout);
}

static enum common_code refuse(const struct common_command *command, struct common_error *err,
                               const char *shown, const char *reason)
{
    return common_error_set(err, COMMON_INVALID_ARGUMENT, "%s: %s; try '%s --help'", shown, reason,
                            command->program);
}

static enum common_code set_number(const struct common_command *command, const struct common_option *option,
                                   const char *shown, const char *text, struct common_error *err)
{
    uint64_t value;
    enum common_code code;
    const char *kind;
    switch (option->type) {
    case COMMON_OPTION_SIZE:
        code = common_parse_size(text, &value);
        kind = "a size such as 4096, 64K or 2G";
        break;
    case COMMON_OPTION_DURATION:
        code = common_parse_duration(text, &value);
        kind = "a time such as 250us, 10ms or 5s";
        break;
    default:
        code = common_parse_u64(text, &value);
        kind = "a whole number";
        break;
    }
    char reason[160];
    if (code != COMMON_OK) {
        snprintf(reason, sizeof reason, "'%.60s' is not %s", text, kind);
        return refuse(command, err, shown, reason);
    }
    uint64_t max = option->max ? option->max : UINT64_MAX;
    if (value < option->min || value > max) {
        if (option->max)
            snprintf(reason, sizeof reason, "'%.60s' must be between %" PRIu64 " and %" PRIu64, text,
                     option->min, max);
        else
            snprintf(reason, sizeof reason, "'%.60s' is below %" PRIu64, text, option->min);
        return refuse(command, err, shown, reason);
    }
    *(uint64_t *)option->out = value;
    return COMMON_OK;
}

static enum common_code set_value(const struct common_command *command, const struct common_option *option,
                                  const char *shown, const char *text, struct common_error *err)
{
    switch (option->type) {
    case COMMON_OPTION_FLAG:
        *(bool *)option->out = true;
        return COMMON_OK;
    case COMMON_OPTION_STRING:
        *(const char **)option->out = text;
        return COMMON_OK;
    case COMMON_OPTION_DOUBLE: {
        char *end;
        double value = strtod(text, &end);
        if (end == text || *end || !isfinite(value)) {
            char reason[120];
            snprintf(reason, sizeof reason, "'%.60s' is not a finite number", text);
            return refuse(command, err, shown, reason);
        }
        *(double *)option->out = value;
        return COMMON_OK;
    }
    default:
        return set_number(command, option, shown, text, err);
    }
}

static const struct common_option *find_long(const struct common_command *command, const char *name,
                                             size_t len)
{
    for (const struct common_option *o = command->options; o && o->name; o++)
        if (strlen(o->name) == len && memcmp(o->name, name, len) == 0)
            return o;
    return NULL;
}

static const struct common_option *find_letter(const struct common_command *command, char letter)
{
    for (const struct common_option *o = command->options; o && o->name; o++)
        if (o->letter == letter)
            return o;
    return NULL;
}

struct cursor {
    int argc, at; // at: the argument being read
    char **argv;
};

static enum common_code parse_long(const struct common_command *command, struct cursor *cur,
                                   struct common_error *err)
{
    const char *name = cur->argv[cur->at] + 2;
    size_t len = strcspn(name, "=");
    const char *inline_value = name[len] == '=' ? name + len + 1 : NULL;
    char shown[80];
    snprintf(shown, sizeof shown, "--%.*s", len < 70 ? (int)len : 70, name);
    const struct common_option *option = find_long(command, name, len);
    if (!option) {
        if (strcmp(name, "help") == 0) {
            print_help(command);
            return COMMON_CANCELLED;
        }
        if (strcmp(name, "version") == 0) {
            printf("%s %s\n", command->program, BANYAN_VERSION);
            fflush(stdout);
            return COMMON_CANCELLED;
        }
        return refuse(command, err, shown, "unknown option");
    }
    if (!takes_value(option)) {
        if (inline_value)
            return refuse(command, err, shown, "takes no value");
        return set_value(command, option, shown, NULL, err);
    }
    if (!inline_value) {
        if (cur->at + 1 >= cur->argc)
            return refuse(command, err, shown, "needs a value");
        inline_value = cur->argv[++cur->at];
    }
    return set_value(command, option, shown, inline_value, err);
}

// "-v", "-vx" (flags together), "-n5", "-n 5"
static enum common_code parse_letters(const struct common_command *command, struct cursor *cur,
                                      struct common_error *err)
{
    for (const char *c = cur->argv[cur->at] + 1; *c; c++) {
        char shown[3] = {'-', *c, '\0'};
        const struct common_option *option = find_letter(command, *c);
        if (!option && *c == 'h') {
            print_help(command);
            return COMMON_CANCELLED;
        }
        if (!option)
            return refuse(command, err, shown, "unknown option");
        const char *value = NULL;
        if (takes_value(option)) {
            if (c[1])
                value = c + 1;
            else if (cur->at + 1 < cur->argc)
                value = cur->argv[++cur->at];
            else
                return refuse(command, err, shown, "needs a value");
        }
        enum common_code code = set_value(command, option, shown, value, err);
        if (code != COMMON_OK || value)
            return code;
    }
    return COMMON_OK;
}

enum common_code common_options_parse(const struct common_command *command, int argc, char **argv, int *rest,
                                      struct common_error *err)
{
    struct cursor cur = {.argc = argc, .at = 1, .argv = argv};
    for (; cur.at < argc; cur.at++) {
        const char *arg = argv[cur.at];
        if (arg[0] != '-' || arg[1] == '\0')
            break;
        if (strcmp(arg, "--") == 0) {
            cur.at++;
            break;
        }
        enum common_code code =
            arg[1] == '-' ? parse_long(command, &cur, err) : parse_letters(command, &cur, err);
        if (code != COMMON_OK)
            return code;
    }
    if (rest)
        *rest = cur.at < argc ? cur.at : argc;
    return COMMON_OK;
}
