// SPDX-License-Identifier: Apache-2.0
// Who may be a client: token create, list, revoke.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/careful.h"
#include "common/base/clock.h"

static struct {
    const char *access, *tenant, *out;
    uint64_t expires_ns;
} making;

static const struct common_option create_options[] = {
    {"access", 'a', COMMON_OPTION_STRING, &making.access, "read-only|user|operator|admin",
     "What it permits: docs/operating/tenants.md has the table. Required.", 0, 0},
    {"tenant", 0, COMMON_OPTION_STRING, &making.tenant, "TENANT",
     "Tenant whose sessions it is for; created if it does not exist. Default: default.", 0, 0},
    {"expires", 0, COMMON_OPTION_DURATION, &making.expires_ns, "TIME",
     "Lifetime of the token, 1s or more: 12h, 90d. Default: until revoked. An admin token may\n"
     "expire only beside another one that does not, or with the coordinator's --token-file.",
     COMMON_NS_PER_S, 0},
    {"out", 0, COMMON_OPTION_STRING, &making.out, "FILE",
     "Write the token to this new file, with mode 0600, instead of standard output.", 0, 0},
    {0},
};

static enum ctl_exit check_create(int n_args, char **args)
{
    (void)n_args;
    (void)args;
    if (!making.access)
        return ctl_say(CTL_USAGE, "--access is missing: read-only, user, operator or admin");
    return CTL_OK;
}

// Before the token is made: a file that cannot be written must not cost it.
static enum ctl_exit open_out(int *fd)
{
    *fd = -1;
    if (!making.out)
        return CTL_OK;
    *fd = open(making.out, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return *fd >= 0 ? CTL_OK : ctl_say(CTL_FILE, "cannot create %s: %s", making.out, strerror(errno));
}

static enum ctl_exit write_out(int fd, const char *token)
{
    char line[80];
    int n = snprintf(line, sizeof line, "%s\n", token);
    bool written = write(fd, line, (size_t)n) == n && fsync(fd) == 0;
    explicit_bzero(line, sizeof line);
    return written ? CTL_OK : ctl_say(CTL_FILE, "cannot write %s: %s", making.out, strerror(errno));
}

static void tell_made(const struct ctl *ctl, const char *name, uint64_t id, const char *token)
{
    if (ctl->json)
        ctl_print_json(json_pack("{s:o, s:s, s:s*, s:s*}", "id", ctl_json_id(id), "name", name, "file",
                                 making.out, "token", making.out ? NULL : token));
    else if (making.out)
        printf("%s is in %s\n", name, making.out);
    else
        printf("%s\n", token);
}

static enum ctl_exit run_create(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    char token[65];
    uint64_t id;
    banyan_error error;
    int fd;
    enum ctl_exit exit_code = open_out(&fd);
    if (exit_code != CTL_OK)
        return exit_code;
    if (banyan_token_create(ctl->client, args[0], making.access, making.tenant,
                            making.expires_ns / COMMON_NS_PER_S, token, &id, &error) != BANYAN_OK) {
        exit_code = ctl_fail(&error);
        if (fd >= 0)
            unlink(making.out);
    } else {
        exit_code = fd >= 0 ? write_out(fd, token) : CTL_OK;
        if (exit_code == CTL_OK)
            tell_made(ctl, args[0], id, token);
    }
    explicit_bzero(token, sizeof token);
    if (fd >= 0)
        close(fd);
    return exit_code;
}

static json_t *time_json(const struct ctl *ctl, uint64_t s)
{
    char text[32];
    time_t at = (time_t)s;
    struct tm tm;
    if (ctl->json)
        return s ? ctl_json_u64(s) : json_null();
    if (!s || !gmtime_r(&at, &tm) || !strftime(text, sizeof text, "%Y-%m-%d %H:%MZ", &tm))
        return json_string("-");
    return json_string(text);
}

static enum ctl_exit run_list(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    banyan_token_list list;
    banyan_error error;
    if (banyan_token_get_list(ctl->client, &list, &error) != BANYAN_OK)
        return ctl_fail(&error);
    json_t *rows = json_array();
    for (uint32_t i = 0; i < list.n; i++) {
        const banyan_token_info *t = &list.tokens[i];
        json_array_append_new(
            rows, json_pack("{s:o, s:s, s:s, s:s, s:o, s:o, s:o}", "id", ctl_json_id(t->id), "name", t->name,
                            "tenant", t->tenant, "access", t->access, "created", time_json(ctl, t->created_s),
                            "expires", time_json(ctl, t->expires_s), "used", time_json(ctl, t->used_s)));
    }
    static const struct ctl_column columns[] = {
        {"name", "NAME", CTL_TEXT},       {"tenant", "TENANT", CTL_TEXT},
        {"access", "ACCESS", CTL_TEXT},   {"created", "CREATED", CTL_TEXT},
        {"expires", "EXPIRES", CTL_TEXT}, {"used", "USED", CTL_TEXT},
        {"id", "ID", CTL_TEXT},           {0},
    };
    if (list.n == 0)
        fprintf(stderr, "no tokens\n");
    banyan_token_list_free(&list);
    ctl_print_rows(ctl, rows, columns);
    return CTL_OK;
}

static struct ctl_careful careful;
static const struct common_option revoke_options[] = {
    CTL_CAREFUL_OPTIONS(careful),
    {0},
};

static enum ctl_exit run_revoke(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    banyan_error error;
    enum ctl_exit exit_code;
    char words[128];
    uint64_t id = strncmp(args[0], "0x", 2) == 0 ? strtoull(args[0], NULL, 16) : 0;
    snprintf(words, sizeof words, "revoke the token %.80s", args[0]);
    if (ctl_careful_speaks(&careful) &&
        !ctl_careful_may(ctl, &careful, words,
                         json_pack("{s:s, s:s}", "action", "token revoke", "token", args[0]), &exit_code))
        return exit_code;
    if (banyan_token_revoke(ctl->client, id ? NULL : args[0], id, &error) != BANYAN_OK)
        return ctl_fail(&error);
    if (ctl->json)
        ctl_print_json(json_pack("{s:s}", "revoked", args[0]));
    else
        printf("%s is revoked\n", args[0]);
    return CTL_OK;
}

const struct ctl_command ctl_token_commands[] = {
    {"token create", "NAME", "create a token for clients",
     "Creates a token and prints it once: only its hash is kept. The first one must be an admin's; from then "
     "on every\n"
     "client needs a token. To change a token, create a new one, give it to the clients, then revoke the old "
     "one: both\n"
     "are valid meanwhile.",
     create_options, 1, 1, run_create, check_create},
    {"token list", "", "list tokens",
     "Lists names, tenants, access, and when each token was created, expires and was last used.", NULL, 0, 0,
     run_list, NULL},
    {"token revoke", "NAME|ID", "revoke a token",
     "Clients with this token are refused from now on, and connections that used it are closed.",
     revoke_options, 1, 1, run_revoke, NULL},
    {0},
};
