// SPDX-License-Identifier: Apache-2.0
// What differs between two configurations, and --print-config.
#include <stdio.h>
#include <string.h>

#include "common/cli/config_state.h"

// ---- two of them --------------------------------------------------------------------------------------------

static bool other_value(const struct setting *a, const struct setting *b)
{
    return a->value && b->value ? strcmp(a->value, b->value) != 0 : a->value != b->value;
}

bool common_config_differs(const struct common_config *a, const struct common_config *b, const char *name)
{
    for (size_t i = 0; i < a->n; i++)
        if (strcmp(a->settings[i].name, name) == 0)
            return other_value(&a->settings[i], &b->settings[i]);
    return false;
}

static bool is_among(const char *const *names, const char *name)
{
    for (; *names; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

size_t common_config_differences(const struct common_config *a, const struct common_config *b,
                                 const char *const *but, char *names, size_t len)
{
    size_t n = 0, used = 0;
    names[0] = '\0';
    for (size_t i = 0; i < a->n; i++) {
        if (!other_value(&a->settings[i], &b->settings[i]) || is_among(but, a->settings[i].name))
            continue;
        int wrote = snprintf(names + used, len - used, "%s%s", n++ ? ", " : "", a->settings[i].name);
        used = used + (size_t)wrote < len ? used + (size_t)wrote : len - 1;
    }
    return n;
}

// ---- printing -----------------------------------------------------------------------------------------------

static void print_value(FILE *to, const char *value)
{
    size_t len = strlen(value);
    if (len && value[0] != '"' && !common_config_space(value[0]) && !common_config_space(value[len - 1]) &&
        !common_config_has_comment(value)) {
        fprintf(to, "%s\n", value);
        return;
    }
    fputc('"', to);
    for (; *value; value++) {
        if (*value == '"' || *value == '\\')
            fputc('\\', to);
        fputc(*value, to);
    }
    fputs("\"\n", to);
}

// "Default: what this is." of the help, on one line and without the full stop.
static void print_default(FILE *to, const struct common_option *option)
{
    const char *text = option->help ? strstr(option->help, "Default: ") : NULL;
    fputs("# default", to);
    for (text = text ? text + strlen("Default") : ""; *text && strcmp(text, ".") != 0; text++)
        fputc(*text == '\n' ? ' ' : *text, to);
    fputc('\n', to);
}

static void print_path(FILE *to, const char *path)
{
    for (; *path; path++)
        fputc((unsigned char)*path < 0x20 || *path == 0x7f ? '?' : *path, to);
}

enum common_code common_config_print(const struct common_command *command,
                                     const struct common_config_file *file,
                                     const struct common_config *config, FILE *to, struct common_error *err)
{
    for (size_t i = 0; i < config->n; i++)
        if (config->settings[i].value && common_config_has_control(config->settings[i].value))
            return common_error_set(
                err, COMMON_INVALID_ARGUMENT,
                "--print-config: --%s has a control character, which the file cannot contain",
                config->settings[i].name);
    fprintf(to,
            "# %s %s: name = value; '%s --help' explains them.\n"
            "# Options at their defaults are comments.\n",
            command->program, BANYAN_VERSION, command->program);
    for (size_t i = 0; i < config->n; i++) {
        const struct common_option *option = &command->options[i];
        const struct setting *setting = &config->settings[i];
        if (common_config_line_only(file, option))
            continue;
        fputc('\n', to);
        if (setting->origin == ORIGIN_LINE) {
            fputs("# command line\n", to);
        } else if (setting->origin == ORIGIN_FILE) {
            fputs("# ", to);
            print_path(to, config->path);
            fprintf(to, ":%u\n", setting->line);
        } else if (setting->value) {
            fputs("# default\n", to);
        } else {
            print_default(to, option);
        }
        fprintf(to, "%s%s =%s", setting->origin == ORIGIN_DEFAULT ? "#" : "", option->name,
                setting->value ? " " : "\n");
        if (setting->value)
            print_value(to, setting->value);
    }
    return fflush(to) == 0 && !ferror(to)
               ? COMMON_OK
               : common_error_set(err, COMMON_FAILED_PRECONDITION, "--print-config: cannot write it");
}
