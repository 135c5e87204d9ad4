// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/contexts.h"
#include "client/ctl/ctl.h"
#include "client/ctl/examples.h"
#include "common/base/clock.h"
#include "proto/rpc/endpoint.h"

static struct {
    const char *endpoint, *token_file, *context, *output, *columns;
    const char *tls_ca, *tls_cert, *tls_key;
    bool json;
    uint64_t timeout_ns;
} given; // timeout_ns 0: none

#define TIMEOUT_NS (10 * COMMON_NS_PER_S)
#define ENDPOINT   "tcp://127.0.0.1:7412"

static const struct common_option global_options[] = {
    {"endpoint", 'e', COMMON_OPTION_STRING, &given.endpoint, "URL",
     "The coordinator: nng+tcp://HOST:PORT, tcp://HOST:PORT or unix:///PATH, over TLS\n"
     "tls://HOST:PORT or nng+tls://NAME:PORT; several as A,B.\n"
     "Default: BANYAN_ENDPOINT, else the context's, else tcp://127.0.0.1:7412.",
     0, 0},
    {"token-file", 't', COMMON_OPTION_STRING, &given.token_file, "FILE",
     "File with the client token. Default: BANYAN_TOKEN_FILE, else the context's, else none.", 0, 0},
    {"tls-ca", 0, COMMON_OPTION_STRING, &given.tls_ca, "FILE",
     "CA certificates to trust, for tls:// and nng+tls://.\n"
     "Default: BANYAN_TLS_CA, else the context's, else none.",
     0, 0},
    {"tls-cert", 0, COMMON_OPTION_STRING, &given.tls_cert, "FILE",
     "Client certificate, if the cluster requires one.\n"
     "Default: BANYAN_TLS_CERT, else the context's, else none.",
     0, 0},
    {"tls-key", 0, COMMON_OPTION_STRING, &given.tls_key, "FILE",
     "Its key. Default: BANYAN_TLS_KEY, else the context's, else none.", 0, 0},
    {"context", 0, COMMON_OPTION_STRING, &given.context, "CONTEXT",
     "A named set of endpoint, files and timeout, from 'banyanctl context list'; given here,\n"
     "it takes precedence over the environment.\n"
     "Default: BANYAN_CONTEXT, else the one chosen with 'banyanctl context use'.",
     0, 0},
    {"output", 'o', COMMON_OPTION_STRING, &given.output, "table|wide|name|json|yaml",
     "Output format; wide: a table with all columns; name: the first column alone, a line each.\n"
     "Default: table.",
     0, 0},
    {"columns", 0, COMMON_OPTION_STRING, &given.columns, "A,B",
     "Columns of a table, or members of JSON and YAML, in this order: headings or JSON names.\n"
     "Default: all.",
     0, 0},
    {"json", 0, COMMON_OPTION_FLAG, &given.json, NULL, "The same as --output=json.", 0, 0},
    {"timeout", 0, COMMON_OPTION_DURATION, &given.timeout_ns, "TIME",
     "How long to wait for the connection and for each answer.\n"
     "Default: the context's, else 10s; for the connection at most 3s.",
     COMMON_NS_PER_MS, 24 * 3600 * COMMON_NS_PER_S},
    {0},
};

const struct common_option *ctl_global_options(void)
{
    return global_options;
}

static bool has_option(const struct common_option *options, size_t n, const char *name)
{
    size_t i = 0;
    while (i < n && strcmp(options[i].name, name) != 0)
        i++;
    return i < n;
}

void ctl_all_options(const struct ctl_command *command, struct common_option out[CTL_OPTIONS_MAX])
{
    size_t n = 0, own;
    for (const struct common_option *o = command->options; o && o->name && n < CTL_OPTIONS_MAX - 1; o++)
        out[n++] = *o;
    own = n;
    for (const struct common_option *o = global_options; o->name && n < CTL_OPTIONS_MAX - 1; o++)
        if (!has_option(out, own, o->name))
            out[n++] = *o;
    out[n] = (struct common_option){0};
}

static const char *from_env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

void ctl_take_given(struct ctl *ctl)
{
    ctl->endpoint = given.endpoint;
    ctl->endpoint_from = "--endpoint";
    ctl->token_file = given.token_file;
    ctl->token_file_from = given.token_file ? "--token-file" : NULL;
    ctl->tls_ca = given.tls_ca;
    ctl->tls_cert = given.tls_cert;
    ctl->tls_key = given.tls_key;
    ctl->timeout_ns = given.timeout_ns ? given.timeout_ns : TIMEOUT_NS;
    ctl->limit_ns = given.timeout_ns ? given.timeout_ns : UINT64_MAX;
    ctl->wide = given.output && strcmp(given.output, "wide") == 0;
    ctl->names = given.output && strcmp(given.output, "name") == 0;
    bool yaml = given.output && strcmp(given.output, "yaml") == 0;
    ctl->json = given.json || yaml || (given.output && strcmp(given.output, "json") == 0);
    ctl_output_as(yaml && !given.json, given.columns);
}

// The context that says where the coordinator is; *out NULL: none does.
static enum ctl_exit find_context(const struct ctl *ctl, struct ctl_contexts *contexts,
                                  const struct ctl_context **out)
{
    const char *by = given.context ? "--context" : "BANYAN_CONTEXT";
    const char *name = given.context ? given.context : from_env("BANYAN_CONTEXT");
    struct common_error err;
    *out = NULL;
    if (ctl->endpoint || (!given.context && from_env("BANYAN_ENDPOINT")))
        return CTL_OK; // nothing is left for it to say
    if (ctl_contexts_load(contexts, &err) != COMMON_OK)
        return ctl_contexts_fail(&err);
    if (!name && *contexts->current) {
        name = contexts->current;
        by = contexts->path;
    }
    *out = name ? ctl_contexts_find(contexts, name) : NULL;
    if (!name || *out)
        return CTL_OK;
    return ctl_say(CTL_USAGE,
                   "%s names the context '%.64s', which does not exist: 'banyanctl context list' lists all",
                   by, name);
}

// A file's name, where no option has named one: the environment's, unless the context was given as an option.
static void use_context_file(const char **file, const char *of_context, const char *variable)
{
    if (!*file && *of_context && (given.context || !from_env(variable)))
        *file = of_context;
}

static void use_context(struct ctl *ctl, const struct ctl_context *context)
{
    static char from[CTL_CONTEXT_NAME + 16];
    snprintf(from, sizeof from, "context %s", context->name);
    ctl->context = context->name;
    ctl->endpoint = context->endpoint;
    ctl->endpoint_from = from;
    if (!ctl->token_file && *context->token_file && (given.context || !from_env("BANYAN_TOKEN_FILE"))) {
        ctl->token_file = context->token_file;
        ctl->token_file_from = from;
    }
    use_context_file(&ctl->tls_ca, context->tls_ca, "BANYAN_TLS_CA");
    use_context_file(&ctl->tls_cert, context->tls_cert, "BANYAN_TLS_CERT");
    use_context_file(&ctl->tls_key, context->tls_key, "BANYAN_TLS_KEY");
    if (!given.timeout_ns && context->timeout_ns)
        ctl->timeout_ns = context->timeout_ns;
}

static void use_environment(struct ctl *ctl)
{
    if (!ctl->endpoint) {
        ctl->endpoint = from_env("BANYAN_ENDPOINT");
        ctl->endpoint_from = ctl->endpoint ? "BANYAN_ENDPOINT" : "the default";
        ctl->endpoint = ctl->endpoint ? ctl->endpoint : ENDPOINT;
    }
    if (!ctl->token_file && (ctl->token_file = from_env("BANYAN_TOKEN_FILE")))
        ctl->token_file_from = "BANYAN_TOKEN_FILE";
    ctl->tls_ca = ctl->tls_ca ? ctl->tls_ca : from_env("BANYAN_TLS_CA");
    ctl->tls_cert = ctl->tls_cert ? ctl->tls_cert : from_env("BANYAN_TLS_CERT");
    ctl->tls_key = ctl->tls_key ? ctl->tls_key : from_env("BANYAN_TLS_KEY");
}

enum ctl_exit ctl_settle(struct ctl *ctl)
{
    static struct ctl_contexts contexts; // its strings are used to the end
    const struct ctl_context *context;
    ctl_take_given(ctl);
    if (given.endpoint && given.context)
        return ctl_say(CTL_USAGE,
                       "--endpoint and --context both name the coordinator: give only one of them");
    enum ctl_exit exit_code = find_context(ctl, &contexts, &context);
    if (exit_code != CTL_OK)
        return exit_code;
    if (context)
        use_context(ctl, context);
    use_environment(ctl);
    return ctl_endpoint_check(ctl);
}

enum ctl_exit ctl_endpoint_check(const struct ctl *ctl)
{
    struct proto_endpoint_list parsed;
    struct common_error err;
    if (proto_endpoint_list_parse(ctl->endpoint, &parsed, &err) == COMMON_OK)
        return CTL_OK;
    return ctl_say(CTL_USAGE, "%s: %s", ctl->endpoint_from, err.message);
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

// Its own options; of the global ones, which every command takes, the names.
static void print_own_help(const struct common_command *parser, const struct ctl_command *command)
{
    struct common_option own[CTL_OPTIONS_MAX];
    struct common_command mine = *parser;
    char *ask[] = {(char *)parser->program, (char *)"--help", NULL};
    char names[300] = "Every command also takes:";
    size_t n = 0, len = strlen(names);
    int rest;
    for (const struct common_option *o = command->options; o && o->name && n < CTL_OPTIONS_MAX - 1; o++)
        own[n++] = *o;
    for (const struct common_option *o = global_options; o->name; o++)
        if (!has_option(own, n, o->name))
            len += (size_t)snprintf(names + len, sizeof names - len, " --%s", o->name);
    snprintf(names + len, sizeof names - len, " ('banyanctl --help')");
    own[n] = (struct common_option){.help = names};
    mine.options = own;
    common_options_parse(&mine, 2, ask, &rest, NULL);
    const char *const *lines = ctl_examples(command->name);
    printf("\nExamples:\n");
    for (size_t i = 0; lines && i < CTL_EXAMPLES; i++)
        printf("  banyanctl %s\n", lines[i]);
}

bool ctl_parse(const struct ctl_command *command, int argc, char **argv, struct ctl *ctl, char **args,
               int *n_args, enum ctl_exit *exit_code)
{
    (void)ctl;
    struct common_option options[CTL_OPTIONS_MAX];
    ctl_all_options(command, options);
    char program[64], synopsis[160];
    snprintf(program, sizeof program, "banyanctl %s", command->name);
    snprintf(synopsis, sizeof synopsis, "[options]%s%s", *command->synopsis ? " " : "", command->synopsis);
    const struct common_command parser = {
        .program = program,
        .synopsis = synopsis,
        .about = command->about ? command->about : command->summary,
        .options = options,
    };
    *n_args = 0;
    if (asks_for_help(argc, argv)) {
        print_own_help(&parser, command);
        *exit_code = CTL_OK;
        return false;
    }
    // The parser stops at an argument: take it, and let it stand for the program's name of the next round.
    while (argc > 1) {
        struct common_error err;
        int rest;
        enum common_code code = common_options_parse(&parser, argc, argv, &rest, &err);
        if (code != COMMON_OK) {
            *exit_code = code == COMMON_CANCELLED ? CTL_OK : ctl_say(CTL_USAGE, "%s", err.message);
            return false;
        }
        bool rest_is_args = rest > 1 && strcmp(argv[rest - 1], "--") == 0;
        for (int taken = 0; rest < argc && (rest_is_args || taken == 0); rest++, taken++) {
            if (*n_args == CTL_ARGS_MAX) {
                *exit_code = ctl_say(CTL_USAGE, "too many arguments; try '%s --help'", program);
                return false;
            }
            args[(*n_args)++] = argv[rest];
        }
        if (rest >= argc)
            break;
        argc -= rest - 1;
        argv += rest - 1;
    }
    if (*n_args >= command->min_args && *n_args <= command->max_args)
        return true;
    *exit_code = ctl_say(CTL_USAGE, "%s: %s; usage: %s %s", command->name,
                         *n_args < command->min_args ? "an argument is missing" : "too many arguments",
                         program, synopsis);
    return false;
}
