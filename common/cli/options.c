// SPDX-License-Identifier: Apache-2.0
#include "common/cli/options.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELP_COLUMN_MAX 34 // a longer option stands on a line of its own

const struct common_option common_help_options[] = {
    {"help", 'h', COMMON_OPTION_FLAG, NULL, NULL, "Print this help and exit.", 0, 0},
    {"version", 0, COMMON_OPTION_FLAG, NULL, NULL, "Print the version and exit.", 0, 0},
    {0},
};

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
    for (const struct common_option *h = common_help_options; h->name; h++)
        print_entry(entry_of(h, left, sizeof left), h->help, column);
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

static void write_number(const struct common_option *option, uint64_t value, char *buf, size_t len)
{
    if (option->type == COMMON_OPTION_SIZE)
        common_write_size(value, buf, len);
    else if (option->type == COMMON_OPTION_DURATION)
        common_write_duration(value, buf, len);
    else
        snprintf(buf, len, "%" PRIu64, value);
}

static bool within(const struct common_option *option, uint64_t value)
{
    return value >= option->min && (!option->max || value <= option->max);
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
    char reason[200], min[COMMON_OPTION_TEXT], max[COMMON_OPTION_TEXT];
    if (code != COMMON_OK) {
        snprintf(reason, sizeof reason, "'%.60s' is not %s", text, kind);
        return refuse(command, err, shown, reason);
    }
    if (!within(option, value)) {
        write_number(option, option->min, min, sizeof min);
        write_number(option, option->max, max, sizeof max);
        if (option->max)
            snprintf(reason, sizeof reason, "'%.60s' must be between %s and %s", text, min, max);
        else
            snprintf(reason, sizeof reason, "'%.60s' is below %s", text, min);
        return refuse(command, err, shown, reason);
    }
    *(uint64_t *)option->out = value;
    return COMMON_OK;
}

// Where the argument's name lists words, it must be one of them.
static enum common_code check_word(const struct common_command *command, const struct common_option *option,
                                   const char *shown, const char *text, struct common_error *err)
{
    char words[160] = "", reason[256];
    size_t len, used = 0;
    bool is_word, any = true;
    const char *part;
    for (size_t i = 0; (part = common_option_part(option->arg, i, &len, &is_word)); i++) {
        if (!is_word || (strlen(text) == len && memcmp(part, text, len) == 0))
            return COMMON_OK;
        any = false;
        used += (size_t)snprintf(words + used, sizeof words - used, "%s%.*s", i ? ", " : "", (int)len, part);
        used = used < sizeof words ? used : sizeof words - 1;
    }
    if (any)
        return COMMON_OK;
    snprintf(reason, sizeof reason, "'%.60s' is not one of %s", text, words);
    return refuse(command, err, shown, reason);
}

static enum common_code set_flag(const struct common_command *command, const struct common_option *option,
                                 const char *shown, const char *text, struct common_error *err)
{
    char reason[120];
    bool value = !text || strcmp(text, "true") == 0;
    if (!value && strcmp(text, "false") != 0) {
        snprintf(reason, sizeof reason, "'%.60s' is not true or false", text);
        return refuse(command, err, shown, reason);
    }
    *(bool *)option->out = value;
    return COMMON_OK;
}

enum common_code common_option_set(const struct common_command *command, const struct common_option *option,
                                   const char *shown, const char *text, struct common_error *err)
{
    enum common_code code;
    switch (option->type) {
    case COMMON_OPTION_FLAG:
        return set_flag(command, option, shown, text, err);
    case COMMON_OPTION_STRING:
        code = check_word(command, option, shown, text, err);
        if (code == COMMON_OK)
            *(const char **)option->out = text;
        return code;
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

const char *common_option_text(const struct common_option *option, char buf[COMMON_OPTION_TEXT])
{
    switch (option->type) {
    case COMMON_OPTION_FLAG:
        return *(const bool *)option->out ? "true" : "false";
    case COMMON_OPTION_STRING:
        return *(const char *const *)option->out;
    case COMMON_OPTION_DOUBLE:
        snprintf(buf, COMMON_OPTION_TEXT, "%.17g", *(const double *)option->out);
        return buf;
    default:
        if (!within(option, *(const uint64_t *)option->out))
            return NULL;
        write_number(option, *(const uint64_t *)option->out, buf, COMMON_OPTION_TEXT);
        return buf;
    }
}

const struct common_option *common_option_find(const struct common_option *options, const char *name,
                                               size_t len)
{
    for (const struct common_option *o = options; o && o->name; o++)
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
    common_option_given_fn given; // may be NULL
    void *arg;
};

static enum common_code take(const struct common_command *command, const struct cursor *cur,
                             const struct common_option *option, const char *shown, const char *value,
                             struct common_error *err)
{
    enum common_code code = common_option_set(command, option, shown, value, err);
    if (code == COMMON_OK && cur->given)
        cur->given(cur->arg, option, value);
    return code;
}

static enum common_code parse_long(const struct common_command *command, struct cursor *cur,
                                   struct common_error *err)
{
    const char *name = cur->argv[cur->at] + 2;
    size_t len = strcspn(name, "=");
    const char *inline_value = name[len] == '=' ? name + len + 1 : NULL;
    char shown[80];
    snprintf(shown, sizeof shown, "--%.*s", len < 70 ? (int)len : 70, name);
    const struct common_option *option = common_option_find(command->options, name, len);
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
        return take(command, cur, option, shown, NULL, err);
    }
    if (!inline_value) {
        if (cur->at + 1 >= cur->argc)
            return refuse(command, err, shown, "needs a value");
        inline_value = cur->argv[++cur->at];
    }
    return take(command, cur, option, shown, inline_value, err);
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
        enum common_code code = take(command, cur, option, shown, value, err);
        if (code != COMMON_OK || value)
            return code;
    }
    return COMMON_OK;
}

enum common_code common_options_walk(const struct common_command *command, int argc, char **argv,
                                     common_option_given_fn given, void *arg, int *rest,
                                     struct common_error *err)
{
    struct cursor cur = {.argc = argc, .at = 1, .argv = argv, .given = given, .arg = arg};
    for (; cur.at < argc; cur.at++) {
        const char *word = argv[cur.at];
        if (word[0] != '-' || word[1] == '\0')
            break;
        if (strcmp(word, "--") == 0) {
            cur.at++;
            break;
        }
        enum common_code code =
            word[1] == '-' ? parse_long(command, &cur, err) : parse_letters(command, &cur, err);
        if (code != COMMON_OK)
            return code;
    }
    if (rest)
        *rest = cur.at < argc ? cur.at : argc;
    return COMMON_OK;
}

enum common_code common_options_parse(const struct common_command *command, int argc, char **argv, int *rest,
                                      struct common_error *err)
{
    return common_options_walk(command, argc, argv, NULL, NULL, rest, err);
}
