// SPDX-License-Identifier: Apache-2.0
// What shells and the build ask of banyanctl: --complete, with which the scripts of client/ctl/completion/
// ask for words; --tables, from which the manual page is made.
#include "client/ctl/complete.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/contexts.h"
#include "client/ctl/ctl.h"
#include "client/ctl/examples.h"
#include "client/ctl/groups.h"
#include "common/base/clock.h"
#include "common/cli/complete.h"
#include "common/cli/tables.h"

#define ASK_NS                                                                                               \
    (400 *                                                                                                   \
     COMMON_NS_PER_MS) // unless BANYAN_COMPLETION_TIMEOUT says so: a cluster that is slower has no names
#define NAMES_MAX 1000 // of sessions; more typing leaves fewer

// ---- names from the cluster -------------------------------------------------------------------------------

static banyan_client *connect_quickly(void)
{
    struct ctl ctl = {0};
    banyan_client *client = NULL;
    const char *given = getenv("BANYAN_COMPLETION_TIMEOUT");
    uint64_t ask_ns;
    if (!given || common_parse_duration(given, &ask_ns) != COMMON_OK || !ask_ns)
        ask_ns = ASK_NS;
    if (ctl_settle(&ctl) != CTL_OK)
        return NULL;
    banyan_options options = ctl_options(&ctl);
    options.timeout_ns = options.connect_timeout_ns = ask_ns;
    return banyan_connect(ctl.endpoint, &options, &client, NULL) == BANYAN_OK ? client : NULL;
}

static void offer_workers(banyan_client *client, const char *text)
{
    banyan_cluster_info info;
    char about[256];
    if (banyan_cluster_get_info(client, &info, NULL) != BANYAN_OK)
        return;
    for (uint32_t i = 0; i < info.n_workers; i++) {
        const banyan_worker_info *w = &info.workers[i];
        snprintf(about, sizeof about, "%s%s, host %s", w->state, w->draining ? ", draining" : "", w->host);
        common_complete_word("", text, w->name, about);
    }
    banyan_cluster_info_free(&info);
}

// By name; by id where there is no name, or where an id is being typed.
static void offer_sessions(banyan_client *client, const char *text)
{
    banyan_session_list list;
    char id[24], about[256];
    if (banyan_session_get_list(client, &list, NULL) != BANYAN_OK)
        return;
    for (uint32_t i = 0, offered = 0; i < list.n && offered < NAMES_MAX; i++) {
        const banyan_session_info *s = &list.sessions[i];
        snprintf(id, sizeof id, "0x%016" PRIx64, s->id);
        bool by_id = !s->name[0] || strncmp(text, "0x", 2) == 0;
        const char *word = by_id ? id : s->name;
        if (strncmp(word, text, strlen(text)) != 0)
            continue;
        snprintf(about, sizeof about, "%s%s%" PRIu64 " tokens, %s", by_id ? s->name : id,
                 by_id && !s->name[0] ? "" : ", ", s->length, s->state);
        common_complete_word("", text, word, about);
        offered++;
    }
    banyan_session_list_free(&list);
}

static void offer_tenants(banyan_client *client, const char *text)
{
    banyan_quota_list list;
    if (banyan_quota_get_list(client, NULL, &list, NULL) != BANYAN_OK)
        return;
    for (uint32_t i = 0, offered = 0; i < list.n && offered < NAMES_MAX; i++) {
        if (strncmp(list.tenants[i].tenant, text, strlen(text)) != 0)
            continue;
        common_complete_word("", text, list.tenants[i].tenant, NULL);
        offered++;
    }
    banyan_quota_list_free(&list);
}

static void offer_prefixes(banyan_client *client, const char *text)
{
    banyan_prefix_list list;
    char id[24], about[64];
    if (banyan_prefix_get_list(client, &list, NULL) != BANYAN_OK)
        return;
    for (uint32_t i = 0; i < list.n && i < NAMES_MAX; i++) {
        snprintf(id, sizeof id, "0x%016" PRIx64, list.prefixes[i].session);
        snprintf(about, sizeof about, "%" PRIu64 " tokens", list.prefixes[i].length);
        common_complete_word("", text, id, about);
    }
    banyan_prefix_list_free(&list);
}

static void offer_quarantined(banyan_client *client, const char *worker, const char *text)
{
    banyan_quarantine_list list;
    char id[24];
    if (banyan_quarantine_get_list(client, worker, &list, NULL) != BANYAN_OK)
        return;
    for (uint32_t i = 0; i < list.n; i++) {
        snprintf(id, sizeof id, "0x%016" PRIx64, list.sessions[i].session);
        common_complete_word("", text, id, NULL);
    }
    banyan_quarantine_list_free(&list);
}

// ---- names of contexts ------------------------------------------------------------------------------------

static void offer_contexts(const char *before, const char *text)
{
    struct ctl_contexts contexts;
    common_complete_words();
    if (ctl_contexts_load(&contexts, NULL) == COMMON_OK)
        for (uint32_t i = 0; i < contexts.n; i++)
            common_complete_word(before, text, contexts.list[i].name, contexts.list[i].endpoint);
    ctl_contexts_free(&contexts);
}

// As common_typing_option, which has no contexts.
static bool offer_option(const struct common_typing *typing)
{
    static const char inline_name[] = "--context=";
    const char *text = typing->words[typing->n - 1];
    bool open = typing->open && typing->open->arg && strcmp(typing->open->arg, "CONTEXT") == 0;
    bool is_inline =
        !typing->open && !typing->only_args && strncmp(text, inline_name, strlen(inline_name)) == 0;
    if (!open && !is_inline)
        return common_typing_option(typing);
    offer_contexts(is_inline ? inline_name : "", is_inline ? text + strlen(inline_name) : text);
    return true;
}

// ---- commands ---------------------------------------------------------------------------------------------

static bool in_group(const struct ctl_command *command, const char *group)
{
    size_t len = strlen(group);
    return strncmp(command->name, group, len) == 0 && command->name[len] == ' ';
}

// The word that commands of two have in common, with all second ones; once, for the first of them.
static void offer_group(const char *text, const struct ctl_command *first)
{
    char group[64], about[160] = "";
    size_t used = 0;
    snprintf(group, sizeof group, "%.*s", (int)strcspn(first->name, " "), first->name);
    if (ctl_find(group, NULL))
        return; // a command, too, and offered as that
    for (const struct ctl_command *const *g = ctl_groups; *g; g++)
        for (const struct ctl_command *c = *g; c->name; c++) {
            if (!in_group(c, group))
                continue;
            if (!used && c != first)
                return; // was offered with its first command
            used += (size_t)snprintf(about + used, sizeof about - used, "%s%s", used ? ", " : "",
                                     strchr(c->name, ' ') + 1);
            used = used < sizeof about ? used : sizeof about - 1;
        }
    common_complete_word("", text, group, about);
}

// The first words of all commands, or, with a group, the second ones of its own.
static void offer_commands(const char *group, const char *text)
{
    common_complete_words();
    for (const struct ctl_command *const *g = ctl_groups; *g; g++)
        for (const struct ctl_command *c = *g; c->name; c++) {
            const char *second = strchr(c->name, ' ');
            if (group && in_group(c, group))
                common_complete_word("", text, second + 1, c->summary);
            else if (!group && second)
                offer_group(text, c);
            else if (!group)
                common_complete_word("", text, c->name, c->summary);
        }
}

// The nth argument in "SESSION LENGTH [NAME] --yes", without its brackets; "": there is none. "[COMMAND...]"
// is any.
static void name_of_arg(const char *synopsis, int nth, char *out, size_t size)
{
    out[0] = '\0';
    while (*synopsis) {
        size_t len = strcspn(synopsis, " "), begin = synopsis[0] == '[', end = strcspn(synopsis, " ]");
        bool any = end > 3 && strncmp(synopsis + end - 3, "...", 3) == 0;
        if (strncmp(synopsis + begin, "--", 2) != 0 && (nth-- == 0 || any)) {
            snprintf(out, size, "%.*s", (int)(end - begin), synopsis + begin);
            return;
        }
        synopsis += len + (synopsis[len] == ' ');
    }
}

static void offer_arg(const struct ctl_command *command, int n_args, const char *const *args,
                      const char *text)
{
    char arg[64];
    name_of_arg(command->synopsis, n_args, arg, sizeof arg);
    if (common_complete_arg(arg, "", text))
        return;
    if (strcmp(arg, "COMMAND...") == 0) {
        offer_commands(args[0], text);
        return;
    }
    if (strcmp(arg, "CONTEXT") == 0) {
        offer_contexts("", text);
        return;
    }
    bool session = strcmp(arg, "SESSION") == 0, worker = strcmp(arg, "WORKER") == 0,
         tenant = strcmp(arg, "TENANT") == 0;
    common_complete_words();
    banyan_client *client = session || worker || tenant ? connect_quickly() : NULL;
    if (!client)
        return;
    if (tenant)
        offer_tenants(client, text);
    else if (worker)
        offer_workers(client, text);
    else if (in_group(command, "prefix"))
        offer_prefixes(client, text);
    else if (in_group(command, "quarantine"))
        offer_quarantined(client, args[0], text);
    else
        offer_sessions(client, text);
    banyan_disconnect(client);
}

// Whether a command's second word begins so.
static bool begins_second(const char *group, const char *text)
{
    for (const struct ctl_command *const *g = ctl_groups; *g; g++)
        for (const struct ctl_command *c = *g; c->name; c++)
            if (*text && in_group(c, group) && strncmp(strchr(c->name, ' ') + 1, text, strlen(text)) == 0)
                return true;
    return false;
}

static void complete(int n, char **words)
{
    struct common_typing typing = {.options = ctl_global_options(), .words = words, .n = n};
    struct common_option options[CTL_OPTIONS_MAX];
    const char *args[CTL_ARGS_MAX] = {0}, *arg, *text = words[n - 1];
    int n_args = 0;
    const char *first = common_typing_next(&typing), *second = NULL;
    if (!first) {
        if (!offer_option(&typing))
            offer_commands(NULL, text);
        return;
    }
    const struct ctl_command *alone = ctl_is_group(first) ? ctl_find(first, NULL) : NULL; // "backup"
    if (ctl_is_group(first) && typing.at == n - 1 && (!alone || begins_second(first, text))) {
        if (!common_typing_option(&(struct common_typing){.words = words, .n = n}))
            offer_commands(first, text);
        return;
    }
    if (ctl_is_group(first) && typing.at < n - 1 && (!alone || ctl_find(first, words[typing.at]) != alone))
        second = words[typing.at++]; // it follows at once
    const struct ctl_command *command = ctl_find(first, second);
    if (!command) {
        common_complete_words();
        return;
    }
    ctl_all_options(command, options);
    typing.options = options;
    while ((arg = common_typing_next(&typing)))
        if (n_args < CTL_ARGS_MAX)
            args[n_args++] = arg;
    if (offer_option(&typing))
        return;
    offer_arg(command, n_args, args, text);
}

// ---- tables -----------------------------------------------------------------------------------------------

static json_t *examples_of(const struct ctl_command *command)
{
    const char *const *lines = ctl_examples(command->name);
    json_t *out = json_array();
    for (size_t i = 0; lines && i < CTL_EXAMPLES; i++)
        json_array_append_new(out, json_string(lines[i]));
    return out;
}

static void print_tables(const struct common_command *program)
{
    json_t *tables = common_tables_command(program), *commands = json_array();
    for (const struct ctl_command *const *g = ctl_groups; *g; g++)
        for (const struct ctl_command *c = *g; c->name; c++)
            json_array_append_new(
                commands, json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:o, s:o}", "name", c->name, "synopsis",
                                    c->synopsis, "summary", c->summary, "about", c->about ? c->about : "",
                                    "min_args", c->min_args, "max_args", c->max_args, "options",
                                    common_tables_options(c->options), "examples", examples_of(c)));
    json_object_set_new(tables, "commands", commands);
    common_tables_print(tables);
}

bool ctl_asked(const struct common_command *program, int argc, char **argv)
{
    bool tables = argc == 2 && strcmp(argv[1], COMMON_TABLES) == 0;
    bool words = argc > 2 && strcmp(argv[1], COMMON_COMPLETE) == 0;
    if (tables)
        print_tables(program);
    if (words)
        complete(argc - 2, argv + 2);
    fflush(stdout);
    return tables || words;
}
