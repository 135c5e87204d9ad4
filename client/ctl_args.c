// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl.h"
#include "common/clock.h"
#include "proto/endpoint.h"

#define OPTIONS_MAX 32

static struct {
    const char *endpoint, *token_file, *output;
    bool json;
    uint64_t timeout_ns;
} given = {.timeout_ns = 10 * COMMON_NS_PER_S};

static const struct common_option global_options[] = {
    {"endpoint", 'e', COMMON_OPTION_STRING, &given.endpoint, "URL",
     "The coordinator: nng+tcp://HOST:PORT, tcp://HOST:PORT or unix:///PATH; with those\n"
     "that stand by, A,B.\n"
     "Default: BANYAN_ENDPOINT, else nng+tcp://127.0.0.1:7411.",
     0, 0},
    {"token-file", 't', COMMON_OPTION_STRING, &given.token_file, "FILE",
     "File with the client token. Default: BANYAN_TOKEN_FILE, else none.", 0, 0},
    {"output", 'o', COMMON_OPTION_STRING, &given.output, "FORMAT", "table (default) or json.", 0, 0},
    {"json", 0, COMMON_OPTION_FLAG, &given.json, NULL, "The same as --output=json.", 0, 0},
    {"timeout", 0, COMMON_OPTION_DURATION, &given.timeout_ns, "TIME",
     "How long to wait for an answer. Default: 10s.", COMMON_NS_PER_MS, 24 * 3600 * COMMON_NS_PER_S},
    {0},
};

const struct common_option *ctl_global_options(void)
{
    return global_options;
}

bool ctl_settle(struct ctl *ctl)
{
    const char *token_file = getenv("BANYAN_TOKEN_FILE");
    const char *endpoint = getenv("BANYAN_ENDPOINT");
    struct proto_endpoint_list parsed;
    struct common_error err;
    ctl->endpoint = given.endpoint; // the library knows BANYAN_ENDPOINT
    ctl->token_file = given.token_file ? given.token_file : token_file && *token_file ? token_file : NULL;
    ctl->timeout_ns = given.timeout_ns;
    if (given.endpoint)
        endpoint = given.endpoint;
    if (endpoint && (given.endpoint || *endpoint) &&
        proto_endpoint_list_parse(endpoint, &parsed, &err) != COMMON_OK) {
        ctl_say(CTL_USAGE, "%s: %s", given.endpoint ? "--endpoint" : "BANYAN_ENDPOINT", err.message);
        return false;
    }
    if (given.output && strcmp(given.output, "json") != 0 && strcmp(given.output, "table") != 0) {
        ctl_say(CTL_USAGE, "--output: '%.40s' is neither table nor json", given.output);
        return false;
    }
    ctl->json = given.json || (given.output && strcmp(given.output, "json") == 0);
    return true;
}

bool ctl_parse(const struct ctl_command *command, int argc, char **argv, struct ctl *ctl, char **args,
               int *n_args, enum ctl_exit *exit_code)
{
    (void)ctl;
    struct common_option options[OPTIONS_MAX] = {0};
    size_t n = 0;
    for (const struct common_option *o = command->options; o && o->name && n < OPTIONS_MAX - 1; o++)
        options[n++] = *o;
    for (const struct common_option *o = global_options; o->name && n < OPTIONS_MAX - 1; o++)
        options[n++] = *o;
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

unsigned ctl_distance(const char *a, const char *b)
{
    unsigned row[65];
    size_t len = strnlen(b, 64);
    for (size_t j = 0; j <= len; j++)
        row[j] = (unsigned)j;
    for (size_t i = 0; a[i]; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i + 1;
        for (size_t j = 0; j < len; j++) {
            unsigned change = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            unsigned insert = row[j] + 1, drop = row[j + 1] + 1;
            row[j + 1] = change < insert ? change : insert;
            row[j + 1] = row[j + 1] < drop ? row[j + 1] : drop;
        }
    }
    return row[len];
}
