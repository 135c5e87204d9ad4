// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/contexts.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/cli/options.h"
#include "proto/rpc/endpoint.h"

#define TEXT_MAX (256 * 1024)

static enum common_code no_memory(struct common_error *err)
{
    return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
}

// ---- the file ---------------------------------------------------------------------------------------------

static const char *home(void)
{
    const char *from_env = getenv("HOME");
    // cppcheck-suppress getpwuidCalled ; this program has one thread
    const struct passwd *user = from_env && *from_env ? NULL : getpwuid(geteuid());
    return user ? user->pw_dir : from_env;
}

static bool find_path(char path[PATH_MAX])
{
    const char *xdg = getenv("XDG_CONFIG_HOME"), *base = home();
    int n;
    if (xdg && *xdg == '/') // a relative one is to be ignored, as its specification says
        n = snprintf(path, PATH_MAX, "%s/banyan/contexts", xdg);
    else
        n = base && *base == '/' ? snprintf(path, PATH_MAX, "%s/.config/banyan/contexts", base) : -1;
    return n > 0 && n < PATH_MAX;
}

static enum common_code check_file(const char *path, const struct stat *st, struct common_error *err)
{
    if (!S_ISREG(st->st_mode))
        return common_error_set(err, COMMON_PERMISSION_DENIED, "%s is not a regular file", path);
    if (st->st_uid != geteuid() && st->st_uid != 0)
        return common_error_set(err, COMMON_PERMISSION_DENIED,
                                "%s belongs to user %u, not to user %u, who is reading it", path,
                                (unsigned)st->st_uid, (unsigned)geteuid());
    if (st->st_mode & 022)
        return common_error_set(err, COMMON_PERMISSION_DENIED,
                                "%s has mode %04o, so others can change it: use chmod go-w", path,
                                (unsigned)st->st_mode & 07777);
    if (st->st_size > TEXT_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "%s is larger than %d bytes", path, TEXT_MAX);
    return COMMON_OK;
}

// *text stays NULL where there is no file.
static enum common_code read_file(struct ctl_contexts *c, struct common_error *err)
{
    struct stat st;
    int fd = open(c->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return COMMON_OK;
    if (fd < 0)
        return common_error_set(err, COMMON_UNAVAILABLE, "%s cannot be read: %s", c->path, strerror(errno));
    enum common_code code = COMMON_OK;
    if (fstat(fd, &st) != 0)
        code = common_error_set(err, COMMON_UNAVAILABLE, "%s: %s", c->path, strerror(errno));
    else
        code = check_file(c->path, &st, err);
    if (code == COMMON_OK && !(c->text = malloc(TEXT_MAX + 1)))
        code = no_memory(err);
    while (code == COMMON_OK && c->len < TEXT_MAX) {
        ssize_t got = read(fd, c->text + c->len, TEXT_MAX - c->len);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            code =
                common_error_set(err, COMMON_UNAVAILABLE, "%s cannot be read: %s", c->path, strerror(errno));
        if (got <= 0)
            break;
        c->len += (size_t)got;
    }
    if (c->text)
        c->text[c->len] = '\0';
    if (code == COMMON_OK && strlen(c->text) != c->len)
        code = common_error_set(err, COMMON_INVALID_ARGUMENT, "%s is not a text file", c->path);
    close(fd);
    return code;
}

// ---- its lines --------------------------------------------------------------------------------------------

bool ctl_context_name_valid(const char *name)
{
    size_t len = strlen(name);
    return len && len <= CTL_CONTEXT_NAME &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == len;
}

const struct ctl_context *ctl_contexts_find(const struct ctl_contexts *contexts, const char *name)
{
    for (uint32_t i = 0; i < contexts->n; i++)
        if (strcmp(contexts->list[i].name, name) == 0)
            return &contexts->list[i];
    return NULL;
}

struct reading {
    struct ctl_contexts *c;
    unsigned line; // from 1 on
    size_t begin, end;
    struct common_error *err;
};

__attribute__((format(printf, 2, 3))) static enum common_code wrong(const struct reading *r, const char *fmt,
                                                                    ...)
{
    char why[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return common_error_set(r->err, COMMON_INVALID_ARGUMENT, "%s:%u: %s", r->c->path, r->line, why);
}

static enum common_code read_section(struct reading *r, char *line)
{
    struct ctl_contexts *c = r->c;
    char *end = strchr(line, ']');
    if (!end || end[1])
        return wrong(r, "'%.80s' is not a section: write [NAME]", line);
    *end = '\0';
    if (!ctl_context_name_valid(line + 1))
        return wrong(r, "'%.80s' is not a name: 1 to %d letters, digits, dots, dashes and underscores",
                     line + 1, CTL_CONTEXT_NAME);
    if (ctl_contexts_find(c, line + 1))
        return wrong(r, "there are two contexts '%s'", line + 1);
    if (c->n == CTL_CONTEXTS_MAX)
        return wrong(r, "there are more than %d contexts", CTL_CONTEXTS_MAX);
    if (!c->list && !(c->list = calloc(CTL_CONTEXTS_MAX, sizeof *c->list)))
        return no_memory(r->err);
    struct ctl_context *context = &c->list[c->n++];
    snprintf(context->name, sizeof context->name, "%s", line + 1);
    context->begin = r->begin;
    context->end = r->end;
    return COMMON_OK;
}

// Where the name of a file is kept; NULL: this key is none of a file.
static char *file_of(struct ctl_context *context, const char *key)
{
    return strcmp(key, "token-file") == 0 ? context->token_file
           : strcmp(key, "tls-ca") == 0   ? context->tls_ca
           : strcmp(key, "tls-cert") == 0 ? context->tls_cert
           : strcmp(key, "tls-key") == 0  ? context->tls_key
                                          : NULL;
}

static enum common_code read_file_name(struct reading *r, const char *key, char file[PATH_MAX],
                                       const char *value)
{
    const char *base = strncmp(value, "~/", 2) == 0 ? home() : "";
    if (*file)
        return wrong(r, "a second %s", key);
    if (!base || (*value != '/' && strncmp(value, "~/", 2) != 0))
        return wrong(r, "%s '%.200s' does not begin with / or ~/", key, value);
    int n = snprintf(file, PATH_MAX, "%s%s", base, value + (*value == '~'));
    return n < PATH_MAX ? COMMON_OK : wrong(r, "%s is too long", key);
}

static enum common_code read_key(struct reading *r, struct ctl_context *context, const char *key,
                                 const char *value)
{
    struct proto_endpoint_list parsed;
    struct common_error err;
    if (strcmp(key, "endpoint") == 0) {
        if (*context->endpoint)
            return wrong(r, "a second endpoint: write several as A,B on one line");
        if (proto_endpoint_list_parse(value, &parsed, &err) != COMMON_OK)
            return wrong(r, "%s", err.message);
        snprintf(context->endpoint, sizeof context->endpoint, "%s", value);
    } else if (file_of(context, key)) {
        return read_file_name(r, key, file_of(context, key), value);
    } else if (strcmp(key, "timeout") == 0) {
        if (context->timeout_ns)
            return wrong(r, "a second timeout");
        uint64_t ns;
        if (common_parse_duration(value, &ns) != COMMON_OK || ns < COMMON_NS_PER_MS ||
            ns > 24 * 3600 * COMMON_NS_PER_S)
            return wrong(r, "timeout '%.40s' is not a time between 1ms and 24h", value);
        context->timeout_ns = ns;
    } else if (strcmp(key, "token") == 0) {
        return wrong(
            r, "this file holds no secrets: put the token into a file with mode 0600 and name it here as "
               "'token-file = /PATH'");
    } else {
        return wrong(
            r,
            "unknown key '%.80s': the keys are endpoint, token-file, tls-ca, tls-cert, tls-key and timeout",
            key);
    }
    return COMMON_OK;
}

static enum common_code read_current(struct reading *r, const char *key, const char *value)
{
    struct ctl_contexts *c = r->c;
    if (strcmp(key, "current") != 0)
        return wrong(r, "unknown key '%.80s': only current may come before the first [NAME]", key);
    if (*c->current)
        return wrong(r, "a second current");
    if (!ctl_context_name_valid(value))
        return wrong(r, "'%.80s' is not the name of a context", value);
    snprintf(c->current, sizeof c->current, "%s", value);
    c->current_begin = r->begin;
    c->current_end = r->end;
    return COMMON_OK;
}

static char *trim(char *text)
{
    text += strspn(text, " \t\r");
    size_t len = strlen(text);
    while (len && strchr(" \t\r", text[len - 1]))
        text[--len] = '\0';
    return text;
}

static enum common_code read_line(struct reading *r, char *line)
{
    line = trim(line);
    if (!*line || *line == '#')
        return COMMON_OK;
    if (*line == '[')
        return read_section(r, line);
    char *equals = strchr(line, '=');
    if (!equals)
        return wrong(r, "'%.80s' is neither [NAME] nor KEY = VALUE", line);
    *equals = '\0';
    const char *key = trim(line), *value = trim(equals + 1);
    if (!*value)
        return wrong(r, "'%.80s' has no value: leave the line out", key);
    if (!r->c->n)
        return read_current(r, key, value);
    struct ctl_context *context = &r->c->list[r->c->n - 1];
    context->end = r->end;
    return read_key(r, context, key, value);
}

static enum common_code read_lines(struct ctl_contexts *c, struct common_error *err)
{
    struct reading r = {.c = c, .err = err};
    char *copy = strdup(c->text), *at = copy;
    enum common_code code = copy ? COMMON_OK : no_memory(err);
    while (code == COMMON_OK && *at) {
        char *end = at + strcspn(at, "\n");
        bool last = !*end;
        *end = '\0';
        r.line++;
        r.begin = (size_t)(at - copy);
        r.end = (size_t)(end - copy) + !last;
        code = read_line(&r, at);
        at = last ? end : end + 1;
    }
    free(copy);
    for (uint32_t i = 0; code == COMMON_OK && i < c->n; i++)
        if (!*c->list[i].endpoint)
            code = common_error_set(err, COMMON_INVALID_ARGUMENT, "%s: context '%s' has no endpoint", c->path,
                                    c->list[i].name);
    return code;
}

enum common_code ctl_contexts_load(struct ctl_contexts *out, struct common_error *err)
{
    *out = (struct ctl_contexts){0};
    if (!find_path(out->path))
        return COMMON_OK; // no home: there are none
    enum common_code code = read_file(out, err);
    return code == COMMON_OK && out->text ? read_lines(out, err) : code;
}

void ctl_contexts_free(struct ctl_contexts *contexts)
{
    free(contexts->text);
    free(contexts->list);
    contexts->text = NULL;
    contexts->list = NULL;
    contexts->n = 0;
}
