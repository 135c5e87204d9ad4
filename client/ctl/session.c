// SPDX-License-Identifier: Apache-2.0
// Commands on a session: session show|fork|commit.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/spec.h"

static bool parse_id(const char *text, uint64_t *out)
{
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
        size_t digits = strspn(text + 2, "0123456789abcdefABCDEF");
        if (digits == 0 || digits > 16 || text[2 + digits])
            return false;
        *out = strtoull(text + 2, NULL, 16);
        return true;
    }
    return common_parse_u64(text, out) == COMMON_OK;
}

// A name is looked up in the token's tenant, and lists of operators show all tenants'. True: reported.
static bool is_of_another_tenant(struct ctl *ctl, const char *name)
{
    banyan_session_list list;
    bool found = false;
    if (banyan_session_get_list(ctl->client, &list, NULL) != BANYAN_OK)
        return false;
    for (uint32_t i = 0; i < list.n && !found; i++) {
        found = strcmp(list.sessions[i].name, name) == 0;
        if (found)
            ctl_say(CTL_NOT_FOUND, "the session '%.128s' is of the tenant %s: give its id, 0x%016" PRIx64,
                    name, list.sessions[i].tenant, list.sessions[i].id);
    }
    banyan_session_list_free(&list);
    return found;
}

enum ctl_exit ctl_session_open(struct ctl *ctl, const char *text, banyan_session **out)
{
    uint64_t id = 0;
    banyan_error error;
    bool is_id = parse_id(text, &id);
    if (!*text)
        return ctl_say(CTL_REFUSED,
                       "SESSION is empty: give an id or a name; 'banyanctl sessions' lists them");
    if (is_id && id == 0)
        return ctl_say(CTL_REFUSED, "session 0 is never valid: 'banyanctl sessions' lists the sessions");
    banyan_code code = banyan_session_open(ctl->client, id, is_id ? NULL : text, out, &error);
    if (code == BANYAN_NOT_FOUND && is_id) // a name may look like a number
        code = banyan_session_open(ctl->client, 0, text, out, NULL) == BANYAN_OK ? BANYAN_OK : code;
    if (code == BANYAN_NOT_FOUND && !is_id && is_of_another_tenant(ctl, text))
        return CTL_NOT_FOUND;
    return code == BANYAN_OK ? CTL_OK : ctl_fail(&error);
}

static json_t *members_of(const banyan_session_info *info)
{
    json_t *members = json_array();
    for (uint32_t i = 0; i < info->n_members; i++)
        json_array_append_new(members, json_string(info->members[i]));
    return members;
}

json_t *ctl_session_json(const banyan_session_info *info)
{
    return json_pack("{s:o, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:s*}", "id",
                     ctl_json_id(info->id), "name", info->name, "state", info->state, "length",
                     ctl_json_u64(info->length), "bytes", ctl_json_u64(info->bytes), "chunks",
                     ctl_json_u64(info->chunks), "steps", ctl_json_u64(info->steps), "idle_ns",
                     ctl_json_u64(info->idle_ns), "epoch", ctl_json_u64(info->epoch), "incarnation",
                     ctl_json_u64(info->incarnation), "members", members_of(info), "kept", info->kept,
                     "tenant", *info->tenant ? info->tenant : NULL);
}

static json_t *holes_json(const banyan_session_info *info)
{
    json_t *holes = json_array();
    for (uint32_t i = 0; i < info->n_holes; i++)
        json_array_append_new(holes, json_pack("{s:i, s:o, s:o}", "layer", (int)info->holes[i].layer, "first",
                                               ctl_json_u64(info->holes[i].first), "count",
                                               ctl_json_u64(info->holes[i].count)));
    return holes;
}

// A line a hole, and how many more there are.
static json_t *hole_lines(const banyan_session_info *info)
{
    enum { LINES = 8 };
    json_t *lines = json_array();
    for (uint32_t i = 0; i < info->n_holes && i < LINES; i++) {
        const banyan_hole *hole = &info->holes[i];
        json_array_append_new(lines,
                              json_sprintf("tokens %" PRIu64 " to %" PRIu64 " of layer %u are not committed",
                                           hole->first, hole->first + hole->count - 1, hole->layer));
    }
    if (info->n_holes > LINES)
        json_array_append_new(lines, json_sprintf("and %u more", info->n_holes - LINES));
    return lines;
}

static int compare_holdings(const void *a, const void *b)
{
    const banyan_holding *x = a, *y = b;
    return x->bytes != y->bytes ? (x->bytes < y->bytes) - (x->bytes > y->bytes)
                                : strcmp(x->worker, y->worker);
}

// Who holds how much, the most first: in a table some lines.
static void add_memory(const struct ctl *ctl, json_t *record, const banyan_session_memory *memory)
{
    enum { LINES = 8 };
    json_t *holdings = json_array(), *lines = json_array();
    char bytes[32];
    if (memory->n_holdings)
        qsort(memory->holdings, memory->n_holdings, sizeof *memory->holdings, compare_holdings);
    for (uint32_t i = 0; i < memory->n_holdings; i++) {
        const banyan_holding *h = &memory->holdings[i];
        json_array_append_new(holdings,
                              json_pack("{s:s, s:o}", "worker", h->worker, "bytes", ctl_json_u64(h->bytes)));
        if (i < LINES)
            json_array_append_new(lines,
                                  json_sprintf("%s at %s", common_format_bytes(h->bytes, bytes, sizeof bytes),
                                               h->worker));
    }
    if (memory->n_holdings > LINES)
        json_array_append_new(lines, json_sprintf("and of %u more", memory->n_holdings - LINES));
    json_object_set_new(record, "shared_bytes", ctl_json_u64(memory->shared_bytes));
    if (ctl->json)
        json_object_set(record, "holdings", holdings);
    else
        json_object_set(record, "holding_lines", lines);
    json_decref(holdings);
    json_decref(lines);
}

enum ctl_exit ctl_session_show(struct ctl *ctl, banyan_session *session)
{
    banyan_session_info info;
    banyan_session_memory memory = {0};
    banyan_error error;
    banyan_code code = banyan_session_get_info(session, &info, &error);
    banyan_code known = code == BANYAN_OK ? banyan_session_get_memory(session, &memory, &error) : code;
    if (code == BANYAN_OK && known != BANYAN_OK && known != BANYAN_UNIMPLEMENTED) {
        banyan_session_info_free(&info);
        code = known;
    }
    if (code != BANYAN_OK) {
        banyan_session_close(session);
        return ctl_fail(&error);
    }
    const banyan_spec *spec = banyan_session_spec(session);
    json_t *record = ctl_session_json(&info);
    json_t *lengths = json_array(), *forgotten = json_array();
    for (uint32_t i = 0; i < info.n_layers; i++) {
        json_array_append_new(lengths, ctl_json_u64(info.layer_lengths[i]));
        json_array_append_new(forgotten, ctl_json_u64(info.layer_forgotten[i]));
    }
    json_object_update_new(record, snapshot_spec_json(spec));
    json_object_set_new(record, "layer_lengths", lengths);
    json_object_set_new(record, "forgotten", ctl_json_u64(info.forgotten));
    json_object_set_new(record, "layer_forgotten", forgotten);
    json_object_set_new(record, "unknown_chunks", ctl_json_u64(info.unknown_chunks));
    if (!ctl->json && !spec->forget) {
        json_object_del(record, "forget");
        json_object_del(record, "layer_forgotten");
    }
    if (ctl->json)
        json_object_set_new(record, "holes", holes_json(&info));
    else
        json_object_set_new(record, "hole_lines", hole_lines(&info));
    if (!ctl->json)
        json_object_set_new(record, "kind_lines", ctl_spec_lines(spec));
    if (known == BANYAN_OK)
        add_memory(ctl, record, &memory);
    banyan_session_memory_free(&memory);
    static const struct ctl_column fields[] = {
        {"id", "session", CTL_TEXT},
        {"name", "name", CTL_TEXT},
        {"tenant", "tenant", CTL_TEXT},
        {"state", "state", CTL_TEXT},
        {"length", "tokens", CTL_COUNT},
        {"layer_lengths", "tokens by layer", CTL_COUNT},
        {"hole_lines", "holes", CTL_LINES},
        {"layer_forgotten", "forgotten by layer", CTL_COUNT},
        {"bytes", "bytes", CTL_BYTES},
        {"shared_bytes", "bytes shared", CTL_BYTES},
        {"holding_lines", "bytes by worker", CTL_LINES},
        {"chunks", "chunks", CTL_COUNT},
        {"members", "workers", CTL_TEXT},
        {"replicas", "holders of each chunk", CTL_COUNT},
        {"steps", "steps", CTL_COUNT},
        {"idle_ns", "idle", CTL_TIME},
        {"epoch", "epoch", CTL_COUNT},
        {"incarnation", "incarnation", CTL_COUNT},
        {"layers", "layers", CTL_COUNT},
        {"q_heads", "query heads", CTL_COUNT},
        {"kv_heads", "KV heads", CTL_COUNT},
        {"k_dim", "key dim", CTL_COUNT},
        {"v_dim", "value dim", CTL_COUNT},
        {"kv_type", "KV type", CTL_TEXT},
        {"scale", "scale", CTL_REAL},
        {"soft_cap", "soft cap", CTL_REAL},
        {"window", "window", CTL_COUNT},
        {"mask_chunk", "mask chunk", CTL_COUNT},
        {"kind_lines", "kinds of layers", CTL_LINES},
        {"forget", "forget margin", CTL_COUNT},
        {"chunk_tokens", "chunk tokens", CTL_COUNT},
        {"idle_ttl_ns", "idle time to live", CTL_TIME},
        {0},
    };
    ctl_print_record(ctl, record, fields);
    banyan_session_info_free(&info);
    banyan_session_close(session);
    return CTL_OK;
}

static enum ctl_exit run_show(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    banyan_session *session;
    enum ctl_exit exit_code = ctl_session_open(ctl, args[0], &session);
    return exit_code == CTL_OK ? ctl_session_show(ctl, session) : exit_code;
}

// A name that is left out is none; an empty one is most often a variable of a script that is not set.
enum ctl_exit ctl_name_check(const char *name)
{
    if (name[strspn(name, " ")] != '\0')
        return CTL_OK;
    return ctl_say(CTL_USAGE, "NAME is empty: omit it for a session without a name");
}

static uint64_t fork_length; // from check_fork

enum ctl_exit ctl_length_parse(const char *text, uint64_t *out)
{
    if (common_parse_u64(text, out) == COMMON_OK)
        return CTL_OK;
    return ctl_say(CTL_USAGE, "'%.40s' is not a number of tokens", text);
}

static enum ctl_exit check_fork(int n_args, char **args)
{
    enum ctl_exit exit_code = ctl_length_parse(args[1], &fork_length);
    return exit_code == CTL_OK && n_args > 2 ? ctl_name_check(args[2]) : exit_code;
}

static enum ctl_exit run_fork(struct ctl *ctl, int n_args, char **args)
{
    banyan_session *session, *fork;
    banyan_error error;
    enum ctl_exit exit_code = ctl_session_open(ctl, args[0], &session);
    if (exit_code != CTL_OK)
        return exit_code;
    banyan_code code = banyan_session_fork(session, fork_length, n_args > 2 ? args[2] : NULL, &fork, &error);
    banyan_session_close(session);
    return code == BANYAN_OK ? ctl_session_show(ctl, fork) : ctl_fail(&error);
}

static uint64_t commit_layer = UINT64_MAX; // all
static uint64_t commit_first, commit_count;

static const struct common_option commit_options[] = {
    {"layer", 0, COMMON_OPTION_U64, &commit_layer, "N", "Only this layer. Default: all that hold rows.", 0,
     1023},
    {0},
};

static enum ctl_exit check_commit(int n_args, char **args)
{
    (void)n_args;
    if (common_parse_u64(args[1], &commit_first) != COMMON_OK)
        return ctl_say(CTL_USAGE, "'%.40s' is not a position: FIRST is the first token's", args[1]);
    if (common_parse_u64(args[2], &commit_count) != COMMON_OK || commit_count == 0)
        return ctl_say(CTL_USAGE, "'%.40s' is not a number of tokens, 1 or more", args[2]);
    return CTL_OK;
}

// Rows of its own, which can be attached.
static bool has_rows(const banyan_spec *spec, uint32_t layer)
{
    return snapshot_layer_kind(spec, layer).q_heads &&
           (!spec->shares || spec->shares[layer] == BANYAN_SHARES_NONE);
}

static enum ctl_exit commit_layers(banyan_session *session)
{
    const banyan_spec *spec = banyan_session_spec(session);
    banyan_error error;
    bool any = false;
    for (uint32_t layer = 0; layer < spec->layers; layer++) {
        if ((commit_layer != UINT64_MAX && commit_layer != layer) || !has_rows(spec, layer))
            continue;
        any = true;
        if (banyan_commit(session, layer, commit_first, commit_count, &error) != BANYAN_OK)
            return ctl_fail(&error);
    }
    if (!any)
        return ctl_say(CTL_REFUSED, "layer %" PRIu64 " holds no rows of its own or does not exist",
                       commit_layer);
    return CTL_OK;
}

static enum ctl_exit run_commit(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    banyan_session *session;
    enum ctl_exit exit_code = ctl_session_open(ctl, args[0], &session);
    if (exit_code != CTL_OK)
        return exit_code;
    exit_code = commit_layers(session);
    if (exit_code == CTL_OK)
        return ctl_session_show(ctl, session);
    banyan_session_close(session);
    return exit_code;
}

const struct ctl_command ctl_session_commands[] = {
    {"session show", "SESSION", "show a session: spec, lengths, workers, memory",
     "Shows a session (id or name): its spec, lengths, workers and memory. 'bytes' counts one copy of each "
     "row;\n"
     "'bytes shared' are those that forks also use. 'bytes by worker' counts all copies.",
     NULL, 1, 1, run_show, NULL},
    {"session fork", "SESSION LENGTH [NAME]", "create a session with the first LENGTH tokens of another",
     "Creates a session with the first LENGTH tokens of another. Full chunks are shared.", NULL, 2, 3,
     run_fork, check_fork},
    {"session commit", "SESSION FIRST COUNT", "make attached tokens visible",
     "Makes COUNT tokens from position FIRST visible that 'attach' sent without --commit. All their rows "
     "must have been\n"
     "attached. If a layer fails, the layers before it stay committed, and the command may be repeated.",
     commit_options, 3, 3, run_commit, check_commit},
    {0},
};
