// SPDX-License-Identifier: Apache-2.0
// Edits of the file of contexts: lines are cut out and put in, the others stay as they are.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/contexts.h"
#include "common/base/clock.h"

// ---- writing ----------------------------------------------------------------------------------------------

static enum common_code make_folder(const char *path, struct common_error *err)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = folder + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        if (mkdir(folder, 0700) != 0 && errno != EEXIST)
            return common_error_set(err, COMMON_UNAVAILABLE, "%s cannot be created: %s", folder,
                                    strerror(errno));
        *slash = '/';
    }
    return COMMON_OK;
}

static bool write_all(int fd, const char *text, size_t len)
{
    while (len) {
        ssize_t n = write(fd, text, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        text += n;
        len -= (size_t)n;
    }
    return fsync(fd) == 0;
}

// Beside it, and renamed: the file is the old one or the new one. Where a link stands, what it points to is
// written.
static enum common_code write_file(const char *path, const char *text, size_t len, struct common_error *err)
{
    char real[PATH_MAX], beside[PATH_MAX + 8];
    if (!*path)
        return common_error_set(err, COMMON_UNAVAILABLE,
                                "set HOME or XDG_CONFIG_HOME: they say where contexts are stored");
    enum common_code code = make_folder(path, err);
    if (code != COMMON_OK)
        return code;
    path = realpath(path, real) ? real : path;
    snprintf(beside, sizeof beside, "%s.XXXXXX", path);
    int fd = mkostemp(beside, O_CLOEXEC); // mode 0600
    bool done = fd >= 0 && write_all(fd, text, len) && rename(beside, path) == 0;
    if (!done) {
        code = common_error_set(err, COMMON_UNAVAILABLE, "%s cannot be written: %s", path, strerror(errno));
        if (fd >= 0)
            unlink(beside);
    }
    if (fd >= 0)
        close(fd);
    return code;
}

// ---- pieces -----------------------------------------------------------------------------------------------

struct cut {
    size_t begin, end; // of the text; both 0: nothing
};

// What is written: `first`, the text without the cuts, `last`.
static enum common_code write_pieces(const struct ctl_contexts *c, const char *first, struct cut a,
                                     struct cut b, const char *last, struct common_error *err)
{
    size_t size = strlen(first) + c->len + strlen(last) + 2, n;
    char *text = malloc(size);
    if (!text)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    n = (size_t)snprintf(text, size, "%s", first);
    for (size_t i = 0; i < c->len; i++)
        if ((i < a.begin || i >= a.end) && (i < b.begin || i >= b.end))
            text[n++] = c->text[i];
    if (n && text[n - 1] != '\n')
        text[n++] = '\n';
    n += (size_t)snprintf(text + n, size - n, "%s", last);
    enum common_code code = write_file(c->path, text, n, err);
    free(text);
    return code;
}

static struct cut lines_of(const struct ctl_context *context)
{
    return context ? (struct cut){context->begin, context->end} : (struct cut){0, 0};
}

static struct cut current_line(const struct ctl_contexts *c)
{
    return (struct cut){c->current_begin, c->current_end};
}

// ---- edits ------------------------------------------------------------------------------------------------

enum common_code ctl_contexts_use(const struct ctl_contexts *contexts, const char *name,
                                  struct common_error *err)
{
    char first[CTL_CONTEXT_NAME + 16];
    snprintf(first, sizeof first, "current = %s\n", name);
    return write_pieces(contexts, first, current_line(contexts), (struct cut){0, 0}, "", err);
}

static void format_timeout(uint64_t ns, char *out, size_t size)
{
    if (ns % COMMON_NS_PER_S == 0)
        snprintf(out, size, "%" PRIu64 "s", ns / COMMON_NS_PER_S);
    else
        snprintf(out, size, "%" PRIu64 "ns", ns);
}

enum common_code ctl_contexts_add(const struct ctl_contexts *contexts, const struct ctl_context *context,
                                  struct common_error *err)
{
    char last[CTL_CONTEXT_ENDPOINT + 4 * PATH_MAX + 256], timeout[32];
    const struct {
        const char *key, *file;
    } files[] = {{"token-file", context->token_file},
                 {"tls-ca", context->tls_ca},
                 {"tls-cert", context->tls_cert},
                 {"tls-key", context->tls_key}};
    int n = snprintf(last, sizeof last, "%s[%s]\nendpoint = %s\n", contexts->len ? "\n" : "", context->name,
                     context->endpoint);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (*files[i].file)
            n += snprintf(last + n, sizeof last - (size_t)n, "%s = %s\n", files[i].key, files[i].file);
    if (context->timeout_ns) {
        format_timeout(context->timeout_ns, timeout, sizeof timeout);
        snprintf(last + n, sizeof last - (size_t)n, "timeout = %s\n", timeout);
    }
    return write_pieces(contexts, "", lines_of(ctl_contexts_find(contexts, context->name)),
                        (struct cut){0, 0}, last, err);
}

enum common_code ctl_contexts_remove(const struct ctl_contexts *contexts, const char *name,
                                     struct common_error *err)
{
    bool current = strcmp(contexts->current, name) == 0;
    return write_pieces(contexts, "", lines_of(ctl_contexts_find(contexts, name)),
                        current ? current_line(contexts) : (struct cut){0, 0}, "", err);
}
