// SPDX-License-Identifier: Apache-2.0
// Commands on contexts: context list|show|use|add|remove. They ask no coordinator.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/contexts.h"
#include "client/ctl/ctl.h"

static bool replace;

// An error of the file's: what it says is wrong, or that it cannot be used.
enum ctl_exit ctl_contexts_fail(const struct common_error *err)
{
    return ctl_say(err->code == COMMON_INVALID_ARGUMENT ? CTL_USAGE : CTL_FILE, "%s", err->message);
}

static enum ctl_exit unknown(const struct ctl_contexts *contexts, const char *name)
{
    return ctl_say(CTL_NOT_FOUND, "there is no context '%.64s' in %s: 'banyanctl context list' lists them",
                   name, contexts->path);
}

// ---- looking ----------------------------------------------------------------------------------------------

static json_t *text_or_null(const char *text)
{
    return text && *text ? json_string(text) : json_null();
}

static enum ctl_exit run_list(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    struct ctl_contexts contexts;
    struct common_error err;
    enum common_code code = ctl_contexts_load(&contexts, &err);
    json_t *rows = json_array();
    for (uint32_t i = 0; code == COMMON_OK && i < contexts.n; i++) {
        const struct ctl_context *c = &contexts.list[i];
        bool current = strcmp(c->name, contexts.current) == 0;
        json_array_append_new(rows, json_pack("{s:s, s:b, s:s, s:s, s:o, s:o}", "name", c->name, "current",
                                              current, "mark", current ? "*" : "", "endpoint", c->endpoint,
                                              "token_file", text_or_null(c->token_file), "timeout_ns",
                                              c->timeout_ns ? ctl_json_u64(c->timeout_ns) : json_null()));
    }
    static const struct ctl_column columns[] = {
        {"mark", "", CTL_TEXT},
        {"name", "NAME", CTL_TEXT},
        {"endpoint", "ENDPOINT", CTL_TEXT},
        {"token_file", "TOKEN FILE", CTL_TEXT},
        {"timeout_ns", "TIMEOUT", CTL_TIME},
        {0},
    };
    for (size_t i = 0; ctl->json && i < json_array_size(rows); i++)
        json_object_del(json_array_get(rows, i), "mark");
    if (code == COMMON_OK && contexts.n == 0)
        fprintf(stderr, "no contexts in %s: 'banyanctl context add NAME --endpoint URL' adds one\n",
                contexts.path);
    ctl_contexts_free(&contexts);
    if (code != COMMON_OK) {
        json_decref(rows);
        return ctl_contexts_fail(&err);
    }
    ctl_print_rows(ctl, rows, columns);
    return CTL_OK;
}

static const struct ctl_column shown[] = {
    {"context", "context", CTL_TEXT},        {"endpoint", "endpoint", CTL_TEXT},
    {"endpoint_from", "  from", CTL_TEXT},   {"token_file", "token file", CTL_TEXT},
    {"token_file_from", "  from", CTL_TEXT}, {"tls_ca", "TLS CA", CTL_TEXT},
    {"tls_cert", "certificate", CTL_TEXT},   {"tls_key", "TLS key", CTL_TEXT},
    {"timeout_ns", "timeout", CTL_TIME},     {0},
};

static void set_tls(json_t *record, const char *ca, const char *cert, const char *key)
{
    if (ca && *ca)
        json_object_set_new(record, "tls_ca", json_string(ca));
    if (cert && *cert)
        json_object_set_new(record, "tls_cert", json_string(cert));
    if (key && *key)
        json_object_set_new(record, "tls_key", json_string(key));
}

// What another command would use if it was called like this.
static enum ctl_exit show_settled(struct ctl *ctl)
{
    enum ctl_exit exit_code = ctl_settle(ctl);
    if (exit_code != CTL_OK)
        return exit_code;
    json_t *record =
        json_pack("{s:o, s:s, s:s, s:o, s:o, s:o}", "context", text_or_null(ctl->context), "endpoint",
                  ctl->endpoint, "endpoint_from", ctl->endpoint_from, "token_file",
                  text_or_null(ctl->token_file), "token_file_from", text_or_null(ctl->token_file_from),
                  "timeout_ns", ctl_json_u64(ctl->timeout_ns));
    set_tls(record, ctl->tls_ca, ctl->tls_cert, ctl->tls_key);
    ctl_print_record(ctl, record, shown);
    return CTL_OK;
}

static enum ctl_exit run_show(struct ctl *ctl, int n_args, char **args)
{
    struct ctl_contexts contexts;
    struct common_error err;
    if (n_args == 0)
        return show_settled(ctl);
    enum common_code code = ctl_contexts_load(&contexts, &err);
    const struct ctl_context *c = code == COMMON_OK ? ctl_contexts_find(&contexts, args[0]) : NULL;
    enum ctl_exit exit_code = CTL_OK;
    if (code != COMMON_OK)
        exit_code = ctl_contexts_fail(&err);
    else if (!c)
        exit_code = unknown(&contexts, args[0]);
    else {
        json_t *record = json_pack("{s:s, s:s, s:o, s:o}", "context", c->name, "endpoint", c->endpoint,
                                   "token_file", text_or_null(c->token_file), "timeout_ns",
                                   c->timeout_ns ? ctl_json_u64(c->timeout_ns) : json_null());
        set_tls(record, c->tls_ca, c->tls_cert, c->tls_key);
        ctl_print_record(ctl, record, shown);
    }
    ctl_contexts_free(&contexts);
    return exit_code;
}

// ---- edits ------------------------------------------------------------------------------------------------

static enum ctl_exit say_done(const struct ctl *ctl, const char *key, const char *name, const char *sentence)
{
    if (ctl->json)
        ctl_print_json(json_pack("{s:s}", key, name));
    else
        printf(sentence, name);
    return CTL_OK;
}

typedef enum common_code edit_fn(const struct ctl_contexts *contexts, const char *name,
                                 struct common_error *err);

// Of one that must be there.
static enum ctl_exit edit(const struct ctl *ctl, const char *name, edit_fn *fn, const char *key,
                          const char *sentence)
{
    struct ctl_contexts contexts;
    struct common_error err;
    enum ctl_exit exit_code;
    if (ctl_contexts_load(&contexts, &err) != COMMON_OK)
        exit_code = ctl_contexts_fail(&err);
    else if (!ctl_contexts_find(&contexts, name))
        exit_code = unknown(&contexts, name);
    else if (fn(&contexts, name, &err) != COMMON_OK)
        exit_code = ctl_contexts_fail(&err);
    else
        exit_code = say_done(ctl, key, name, sentence);
    ctl_contexts_free(&contexts);
    return exit_code;
}

static enum ctl_exit run_use(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    return edit(ctl, args[0], ctl_contexts_use, "current", "context '%s' is now in use\n");
}

static enum ctl_exit run_remove(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    return edit(ctl, args[0], ctl_contexts_remove, "removed", "context '%s' removed\n");
}

static enum ctl_exit check_name(int n_args, char **args)
{
    (void)n_args;
    if (ctl_context_name_valid(args[0]))
        return CTL_OK;
    return ctl_say(
        CTL_USAGE,
        "'%.80s' is not a valid context name: use 1 to %d letters, digits, dots, dashes and underscores",
        args[0], CTL_CONTEXT_NAME);
}

// Relative to where the user stands now; it need not be there yet.
static enum ctl_exit absolute(const char *option, const char *given, char out[PATH_MAX])
{
    char here[PATH_MAX];
    out[0] = '\0';
    if (!given)
        return CTL_OK;
    if (strpbrk(given, "\n\r") || !*given)
        return ctl_say(CTL_USAGE, "%s is empty or contains a line break", option);
    int n = *given == '/'                       ? snprintf(out, PATH_MAX, "%s", given)
            : getcwd(here, sizeof here) != NULL ? snprintf(out, PATH_MAX, "%s/%s", here, given)
                                                : -1;
    return n > 0 && n < PATH_MAX ? CTL_OK : ctl_say(CTL_USAGE, "%s is too long", option);
}

static enum ctl_exit run_add(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    struct ctl_contexts contexts;
    struct common_error err;
    struct ctl_context context = {.timeout_ns = ctl->limit_ns == UINT64_MAX ? 0 : ctl->limit_ns};
    if (!ctl->endpoint)
        return ctl_say(CTL_USAGE, "context add needs --endpoint: where the coordinator is");
    if (strlen(ctl->endpoint) > CTL_CONTEXT_ENDPOINT)
        return ctl_say(CTL_USAGE, "--endpoint is longer than %d bytes", CTL_CONTEXT_ENDPOINT);
    enum ctl_exit exit_code = ctl_endpoint_check(ctl);
    if (exit_code == CTL_OK)
        exit_code = absolute("--token-file", ctl->token_file, context.token_file);
    if (exit_code == CTL_OK)
        exit_code = absolute("--tls-ca", ctl->tls_ca, context.tls_ca);
    if (exit_code == CTL_OK)
        exit_code = absolute("--tls-cert", ctl->tls_cert, context.tls_cert);
    if (exit_code == CTL_OK)
        exit_code = absolute("--tls-key", ctl->tls_key, context.tls_key);
    if (exit_code != CTL_OK)
        return exit_code;
    snprintf(context.name, sizeof context.name, "%s", args[0]);
    snprintf(context.endpoint, sizeof context.endpoint, "%s", ctl->endpoint);
    if (ctl_contexts_load(&contexts, &err) != COMMON_OK)
        exit_code = ctl_contexts_fail(&err);
    else if (!replace && ctl_contexts_find(&contexts, context.name))
        exit_code = ctl_say(CTL_STATE, "context '%s' already exists; use --replace", context.name);
    else if (!ctl_contexts_find(&contexts, context.name) && contexts.n == CTL_CONTEXTS_MAX)
        exit_code =
            ctl_say(CTL_EXHAUSTED, "the limit of %d contexts is reached: remove one", CTL_CONTEXTS_MAX);
    else if (ctl_contexts_add(&contexts, &context, &err) != COMMON_OK)
        exit_code = ctl_contexts_fail(&err);
    else
        exit_code = say_done(ctl, "added", args[0],
                             "context '%1$s' added; 'banyanctl context use %1$s' selects it\n");
    ctl_contexts_free(&contexts);
    return exit_code;
}

// ---- the table --------------------------------------------------------------------------------------------

static const struct common_option add_options[] = {
    {"replace", 0, COMMON_OPTION_FLAG, &replace, NULL, "Replace a context of the same name.", 0, 0},
    {0},
};

const struct ctl_command ctl_context_commands[] = {
    {"context list", "", "list contexts: names for clusters and how to reach them",
     "Lists the contexts in ~/.config/banyan/contexts (XDG_CONFIG_HOME); * marks the one used if neither\n"
     "options nor the environment name the coordinator.",
     NULL, 0, 0, run_list, NULL},
    {"context show", "[CONTEXT]", "show a context, or what is in use and why",
     "Shows a context; or, without a name, the endpoint, token file and timeout that another command with "
     "these options\n"
     "would use, and where each comes from.",
     NULL, 0, 1, run_show, NULL},
    {"context use", "CONTEXT", "select a context", NULL, NULL, 1, 1, run_use, NULL},
    {"context add", "NAME --endpoint=URL", "add a context",
     "Adds a context with --endpoint, --token-file, --tls-ca, --tls-cert, --tls-key and --timeout. It stores "
     "the names of the\n"
     "files, not their contents.",
     add_options, 1, 1, run_add, check_name},
    {"context remove", "CONTEXT", "remove a context", NULL, NULL, 1, 1, run_remove, NULL},
    {0},
};
