// SPDX-License-Identifier: Apache-2.0
// Command: session create.
#include <inttypes.h>
#include <stdlib.h>

#include "client/ctl/layers.h"
#include "client/ctl/spec.h"

static struct {
    uint64_t layers, q_heads, kv_heads, dim, v_dim, window, forget, chunk_tokens, members, replicas, ttl_ns;
    double scale, soft_cap;
    uint64_t mask_chunk;
    bool not_causal, v_in_k;
    const char *type, *spec, *from;
} create;

static const struct common_option create_options[] = {
    {"layers", 0, COMMON_OPTION_U64, &create.layers, "N", "Layers. Default: 1.", 1, 1024},
    {"q-heads", 0, COMMON_OPTION_U64, &create.q_heads, "N", "Query heads (required without --from).", 1,
     1024},
    {"kv-heads", 0, COMMON_OPTION_U64, &create.kv_heads, "N", "KV heads. Default: as many as query heads.", 1,
     1024},
    {"dim", 0, COMMON_OPTION_U64, &create.dim, "N", "Dimension of a key (required without --from).", 1, 1024},
    {"v-dim", 0, COMMON_OPTION_U64, &create.v_dim, "N", "Dimension of a value. Default: that of a key.", 1,
     1024},
    {"kv-type", 0, COMMON_OPTION_STRING, &create.type, "f32|f16|bf16|int8|fp8",
     "Type of the elements of K and V; fp8 is e4m3. Default: bf16.", 0, 0},
    {"scale", 0, COMMON_OPTION_DOUBLE, &create.scale, "X", "Factor of q·k. Default: 1/sqrt(dim).", 0, 0},
    {"soft-cap", 0, COMMON_OPTION_DOUBLE, &create.soft_cap, "X",
     "Limit that logits approach: X·tanh(logit/X). Default: none.", 0, 0},
    {"window", 0, COMMON_OPTION_U64, &create.window, "N", "Tokens that a row sees. Default: all.", 0, 0},
    {"mask-chunk", 0, COMMON_OPTION_U64, &create.mask_chunk, "N",
     "A row sees tokens from the last multiple of N onwards. Default: all.", 0, 0},
    {"forget", 0, COMMON_OPTION_U64, &create.forget, "N",
     "Forget rows behind the window, except those that a truncate by N tokens needs.\nDefault: keep all.", 0,
     0},
    {"not-causal", 0, COMMON_OPTION_FLAG, &create.not_causal, NULL, "Rows also see later tokens.", 0, 0},
    {"v-in-k", 0, COMMON_OPTION_FLAG, &create.v_in_k, NULL,
     "Values are the first elements of their keys and are not stored separately.", 0, 0},
    {"spec", 0, COMMON_OPTION_STRING, &create.spec, "FILE",
     "The whole spec as JSON instead of the options above, in the format of 'session show\n"
     "-o json': for layers that differ.",
     0, 0},
    {"from", 0, COMMON_OPTION_STRING, &create.from, "FILE.safetensors",
     "Attach and commit K and V from a file, in the format of 'attach'. Layers, heads,\n"
     "dimensions and type default to those of the file; query heads to the KV heads.",
     0, 0},
    {"chunk-tokens", 0, COMMON_OPTION_U64, &create.chunk_tokens, "N", "Tokens per chunk. Default: 256.", 16,
     4096},
    {"members", 0, COMMON_OPTION_U64, &create.members, "N",
     "Exactly N workers, or all if there are fewer; more only if memory is short.\n"
     "Default: chosen by the cost model.",
     1, 4096},
    {"replicas", 0, COMMON_OPTION_U64, &create.replicas, "N",
     "Workers that hold each part: losing all but one of them loses nothing.\n"
     "Default: the coordinator's --replicas, else 2 if workers run on two hosts or more.",
     1, 3},
    {"ttl", 0, COMMON_OPTION_DURATION, &create.ttl_ns, "TIME",
     "Delete the session after this long without use. Default: never.", 0, 0},
    {0},
};

static banyan_spec new_spec; // from check_create
static struct snapshot_spec_memory *file_memory;
static struct { // of --from, open from check_create to the end of run_create
    struct common_safetensors *file;
    struct ctl_kv *layers; // [new_spec.layers]
} from;

static void from_free(void)
{
    free(from.layers);
    common_safetensors_close(from.file);
}

// All that is wrong with the file is found before there is a session.
static enum ctl_exit from_open(void)
{
    uint32_t n_layers;
    struct common_error err = {0};
    enum common_code code = common_safetensors_open(create.from, &from.file, &err);
    if (code != COMMON_OK)
        return ctl_say(code == COMMON_INVALID_ARGUMENT ? CTL_REFUSED : CTL_FILE, "%s", err.message);
    if (!create.spec)
        ctl_layers_shape(from.file, &new_spec);
    from.layers = calloc(new_spec.layers + UINT64_C(1), sizeof *from.layers);
    if (!from.layers)
        return ctl_say(CTL_INTERNAL, "out of memory");
    return ctl_layers_collect(from.file, &new_spec, CTL_LAYERS_ALL, from.layers, &n_layers);
}

// What the options say; 0 if not given.
static void take_options(banyan_spec *spec)
{
    *spec = (banyan_spec){
        .layers = (uint32_t)create.layers,
        .q_heads = (uint32_t)create.q_heads,
        .kv_heads = (uint32_t)create.kv_heads,
        .k_dim = (uint32_t)create.dim,
        .v_dim = (uint32_t)create.v_dim,
        .kv_type = create.type ? snapshot_type_parse(create.type) : (banyan_kv_type)0,
        .scale = (float)create.scale,
        .soft_cap = (float)create.soft_cap,
        .window = create.window,
        .mask_chunk = create.mask_chunk,
        .forget = create.forget,
        .not_causal = create.not_causal,
        .v_in_k = create.v_in_k,
        .chunk_tokens = (uint32_t)create.chunk_tokens,
        .members = (uint32_t)create.members,
        .replicas = (uint32_t)create.replicas,
        .idle_ttl_ns = create.ttl_ns,
    };
}

static enum ctl_exit check_create(int n_args, char **args)
{
    if (n_args > 0 && ctl_name_check(args[0]) != CTL_OK)
        return CTL_USAGE;
    enum ctl_exit exit_code = CTL_OK;
    if (create.spec)
        exit_code = ctl_spec_read(create.spec, &new_spec, &file_memory);
    else
        take_options(&new_spec);
    if (exit_code == CTL_OK && create.from)
        exit_code = from_open();
    if (exit_code != CTL_OK || create.spec || create.from)
        return exit_code;
    if (create.q_heads == 0 || create.dim == 0)
        return ctl_say(CTL_USAGE,
                       "--q-heads and --dim are required, or else --spec or --from; try 'banyanctl session "
                       "create --help'");
    new_spec.layers = new_spec.layers ? new_spec.layers : 1;
    new_spec.kv_heads = new_spec.kv_heads ? new_spec.kv_heads : new_spec.q_heads;
    new_spec.v_dim = new_spec.v_dim ? new_spec.v_dim : new_spec.k_dim;
    new_spec.kv_type = create.type ? new_spec.kv_type : BANYAN_BF16;
    return CTL_OK;
}

// A session without the rows that it was to have is deleted again.
static enum ctl_exit fill(banyan_session *session)
{
    struct ctl_layers_sent sent;
    banyan_error error;
    enum ctl_exit exit_code = ctl_layers_send(session, from.layers, 0, true, &sent);
    if (exit_code != CTL_OK && banyan_session_delete(session, &error) != BANYAN_OK)
        ctl_say(exit_code, "session 0x%016" PRIx64 " was created, but not all of the file was attached: %s",
                banyan_session_id(session), error.message);
    return exit_code;
}

static enum ctl_exit run_create(struct ctl *ctl, int n_args, char **args)
{
    banyan_session *session = NULL;
    banyan_error error;
    enum ctl_exit exit_code = CTL_OK;
    if (banyan_session_create(ctl->client, &new_spec, n_args > 0 ? args[0] : NULL, &session, &error) !=
        BANYAN_OK)
        exit_code = ctl_fail(&error);
    else if (create.from)
        exit_code = fill(session);
    from_free();
    snapshot_spec_free(file_memory);
    if (exit_code == CTL_OK)
        return ctl_session_show(ctl, session);
    banyan_session_close(session);
    return exit_code;
}

const struct ctl_command ctl_create_commands[] = {
    {"session create", "--q-heads=N --dim=N|--spec=FILE|--from=FILE [NAME]",
     "create a session, empty or from a file", NULL, create_options, 0, 1, run_create, check_create},
    {0},
};
