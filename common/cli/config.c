// SPDX-License-Identifier: Apache-2.0
#include "common/cli/config_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHOWN_BYTES 280
#define PATH_SHOWN  160 // of a path, in an error

static size_t count(const struct common_option *options)
{
    size_t n = 0;
    while (options && options[n].name)
        n++;
    return n;
}

static enum common_code no_memory(struct common_error *err)
{
    return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for a configuration");
}

// ---- the file -----------------------------------------------------------------------------------------------

static enum common_code refuse_file(const char *path, const char *why, struct common_error *err)
{
    return common_error_set(err, COMMON_FAILED_PRECONDITION, "--config %.*s: %s", PATH_SHOWN, path, why);
}

static enum common_code read_all(const char *path, int fd, char *text, struct common_error *err)
{
    size_t len = 0;
    ssize_t n;
    do {
        n = read(fd, text + len, COMMON_CONFIG_BYTES + 1 - len);
        len += n > 0 ? (size_t)n : 0;
    } while ((n > 0 && len <= COMMON_CONFIG_BYTES) || (n < 0 && errno == EINTR));
    if (n < 0)
        return refuse_file(path, strerror(errno), err);
    if (len > COMMON_CONFIG_BYTES)
        return refuse_file(path, "it is longer than 64 KiB and not a configuration", err);
    text[len] = '\0';
    if (strlen(text) != len)
        return refuse_file(path, "it has a zero byte and is not text", err);
    return COMMON_OK;
}

// Opens it so that neither a pipe nor a device makes this process wait.
static enum common_code open_file(const char *path, bool may_be_absent, int *out, struct common_error *err)
{
    struct stat status;
    *out = -1;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && may_be_absent)
        return COMMON_OK;
    if (fd < 0 && errno == EACCES)
        return refuse_file(
            path, "Permission denied: the daemon's user must be able to read it and to search its folders",
            err);
    if (fd < 0)
        return refuse_file(path, strerror(errno), err);
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
        *out = fd;
        return COMMON_OK;
    }
    close(fd);
    return refuse_file(path,
                       S_ISDIR(status.st_mode) ? "it is a folder, not a file" : "it is not a regular file",
                       err);
}

// config->path and config->text stay NULL where there is no file and none has to be.
static enum common_code load(struct common_config *config, const char *path, struct common_error *err)
{
    int fd;
    bool may_be_absent = path[0] == '-';
    enum common_code code = open_file(path + may_be_absent, may_be_absent, &fd, err);
    if (code != COMMON_OK || fd < 0)
        return code;
    config->path = strdup(path + may_be_absent);
    config->text = malloc(COMMON_CONFIG_BYTES + 2);
    code = config->path && config->text ? read_all(config->path, fd, config->text, err) : no_memory(err);
    close(fd);
    return code;
}

// ---- its lines ----------------------------------------------------------------------------------------------

struct line {
    const struct common_command *command;
    const struct common_config_file *file;
    struct common_config *config;
    unsigned number;
};

static enum common_code refuse_line(const struct line *line, const char *name, const char *why,
                                    struct common_error *err)
{
    return common_error_set(err, COMMON_INVALID_ARGUMENT, "%.*s:%u: %s%s%s", PATH_SHOWN, line->config->path,
                            line->number, name ? name : "", name ? ": " : "", why);
}

bool common_config_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

// Without the spaces at both ends, which it ends by a zero byte.
static char *strip(char *text)
{
    while (common_config_space(*text))
        text++;
    size_t len = strlen(text);
    while (len && common_config_space(text[len - 1]))
        len--;
    text[len] = '\0';
    return text;
}

bool common_config_has_control(const char *text)
{
    for (; *text; text++)
        if (((unsigned char)*text < 0x20 && *text != '\t') || *text == 0x7f)
            return true;
    return false;
}

// Takes the quotes off, in place. False: they do not end, or not at the end.
static bool unquote(char *value)
{
    char *to = value, *from = value + 1;
    for (; *from && *from != '"'; from++) {
        if (*from == '\\' && (from[1] == '"' || from[1] == '\\'))
            from++;
        *to++ = *from;
    }
    if (*from != '"' || from[1])
        return false;
    *to = '\0';
    return true;
}

bool common_config_has_comment(const char *value)
{
    for (const char *c = value; *c; c++)
        if (*c == '#' && (c == value || common_config_space(c[-1])))
            return true;
    return false;
}

static enum common_code refuse_name(const struct line *line, const char *name, struct common_error *err)
{
    char shown[44], why[120];
    const char *bare = name + strspn(name, "-"), *near = NULL;
    unsigned best = 4; // more edits are another word
    snprintf(shown, sizeof shown, "%.40s", name);
    for (const struct common_option *o = line->command->options; o && o->name; o++) {
        unsigned distance = common_word_distance(bare, o->name);
        if (distance < best) {
            best = distance;
            near = o->name;
        }
    }
    if (near)
        snprintf(why, sizeof why, "unknown option: did you mean '%.40s'?", near);
    else
        snprintf(why, sizeof why, "unknown option; try '%.40s --help'", line->command->program);
    return refuse_line(line, shown, why, err);
}

bool common_config_line_only(const struct common_config_file *file, const struct common_option *option)
{
    return option->out == (const void *)&file->path || option->out == (const void *)&file->print;
}

// Where the command line wins the value has to be right all the same: it may be needed the next time.
static enum common_code set(const struct line *line, const struct common_option *option, bool overridden,
                            const char *value, struct common_error *err)
{
    char shown[SHOWN_BYTES];
    union {
        bool flag;
        const char *string;
        uint64_t number;
        double real;
    } nowhere;
    struct common_option copy = *option;
    if (overridden)
        copy.out = &nowhere;
    snprintf(shown, sizeof shown, "%.*s:%u: %.60s", PATH_SHOWN, line->config->path, line->number,
             option->name);
    return common_option_set(line->command, &copy, shown, value, err);
}

static enum common_code read_line(const struct line *line, char *text, struct common_error *err)
{
    char why[80];
    text = strip(text);
    if (!*text || *text == '#')
        return COMMON_OK;
    if (common_config_has_control(text))
        return refuse_line(line, NULL, "there is a control character in this line", err);
    char *equals = strchr(text, '=');
    if (!equals)
        return refuse_line(line, NULL, "this line is neither 'name = value' nor a comment ('# ...')", err);
    *equals = '\0';
    const char *name = strip(text);
    char *value = strip(equals + 1);
    const struct common_option *option = common_option_find(line->command->options, name, strlen(name));
    if (!option && (strcmp(name, "help") == 0 || strcmp(name, "version") == 0))
        return refuse_line(line, name, "belongs on the command line", err);
    if (!option)
        return refuse_name(line, name, err);
    if (common_config_line_only(line->file, option))
        return refuse_line(line, name, "belongs on the command line", err);
    struct setting *setting = &line->config->settings[option - line->command->options];
    if (setting->line) {
        snprintf(why, sizeof why, "is already set in line %u", setting->line);
        return refuse_line(line, name, why, err);
    }
    if (!*value)
        return refuse_line(line, name, "has no value; write an empty value as \"\"", err);
    if (*value == '"') {
        if (!unquote(value))
            return refuse_line(line, name, "its value begins with a quote and does not end with one", err);
    } else if (common_config_has_comment(value)) {
        return refuse_line(line, name, "put a comment on a line of its own and a value with '#' in quotes",
                           err);
    }
    setting->line = line->number;
    enum common_code code = set(line, option, setting->origin == ORIGIN_LINE, value, err);
    if (code == COMMON_OK && setting->origin != ORIGIN_LINE)
        setting->origin = ORIGIN_FILE;
    return code;
}

static enum common_code read_lines(struct line *line, struct common_error *err)
{
    enum common_code code = COMMON_OK;
    char *text = line->config->text;
    while (text && code == COMMON_OK) {
        char *end = strchr(text, '\n');
        if (end)
            *end = '\0';
        line->number++;
        code = read_line(line, text, err);
        text = end ? end + 1 : NULL;
    }
    return code;
}

// ---- all of it ----------------------------------------------------------------------------------------------

struct given {
    struct common_config *config;
    const struct common_option *options;
};

static void on_given(void *arg, const struct common_option *option, const char *value)
{
    struct given *given = arg;
    (void)value;
    given->config->settings[option - given->options].origin = ORIGIN_LINE;
}

static enum common_code keep_values(struct common_config *config, const struct common_option *options,
                                    struct common_error *err)
{
    char buf[COMMON_OPTION_TEXT];
    for (size_t i = 0; i < config->n; i++) {
        const char *value = common_option_text(&options[i], buf);
        config->settings[i].value = value ? strdup(value) : NULL;
        if (value && !config->settings[i].value)
            return no_memory(err);
    }
    return COMMON_OK;
}

enum common_code common_config_read(const struct common_command *command, int argc, char **argv,
                                    const struct common_config_file *file, struct common_config **out,
                                    int *rest, struct common_error *err)
{
    size_t n = count(command->options);
    *out = NULL;
    struct common_config *config = calloc(1, sizeof *config + n * sizeof config->settings[0]);
    if (!config)
        return no_memory(err);
    config->n = n;
    for (size_t i = 0; i < n; i++)
        config->settings[i].name = command->options[i].name;
    struct given given = {.config = config, .options = command->options};
    struct line line = {.command = command, .file = file, .config = config};
    enum common_code code = common_options_walk(command, argc, argv, on_given, &given, rest, err);
    if (code == COMMON_OK && file->path)
        code = load(config, file->path, err);
    if (code == COMMON_OK && config->text)
        code = read_lines(&line, err);
    if (code == COMMON_OK)
        code = keep_values(config, command->options, err);
    if (code != COMMON_OK) {
        common_config_free(config);
        return code;
    }
    *out = config;
    return COMMON_OK;
}

void common_config_free(struct common_config *config)
{
    if (!config)
        return;
    for (size_t i = 0; i < config->n; i++)
        free(config->settings[i].value);
    free(config->path);
    free(config->text);
    free(config);
}

const char *common_config_path(const struct common_config *config)
{
    return config ? config->path : NULL;
}
