// SPDX-License-Identifier: Apache-2.0
// audit-log verify: whether the chain of an audit log is whole.
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/trail.h"

#define BAD_MOST 20 // that are reported for a file

static struct {
    bool head;
    const char *contains;
} given;

// ---- files ------------------------------------------------------------------------------------------------

enum ctl_exit ctl_trail_unreadable(const char *path)
{
    return ctl_say(CTL_FILE, "%.200s cannot be read: %s", path, strerror(errno));
}

FILE *ctl_trail_open(const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file)
        ctl_trail_unreadable(path);
    return file;
}

bool ctl_trail_line(FILE *file, struct ctl_trail_line *line)
{
    ssize_t n = getline(&line->text, &line->room, file);
    if (n <= 0)
        return false;
    line->ended = line->text[n - 1] == '\n';
    line->len = (size_t)n - line->ended;
    return true;
}

// ---- verify -----------------------------------------------------------------------------------------------

struct verified {
    struct common_trail_chain chain;
    json_t *bad; // of all files
    bool found;  // --contains
};

static void tell_bad(const struct ctl *ctl, struct verified *v, const char *path)
{
    const struct common_trail_chain *chain = &v->chain;
    if (json_array_size(v->bad) == BAD_MOST)
        return;
    json_array_append_new(v->bad, json_pack("{s:s, s:o, s:o, s:s}", "file", path, "line",
                                            ctl_json_u64(chain->first_line), "lines",
                                            ctl_json_u64(chain->lines), "why", chain->why));
    if (ctl->json || given.head)
        return;
    if (chain->lines > 1)
        printf("%s: lines %" PRIu64 " to %" PRIu64 ": %s\n", path, chain->first_line,
               chain->first_line + chain->lines - 1, chain->why);
    else
        printf("%s: line %" PRIu64 ": %s\n", path, chain->first_line, chain->why);
}

static void tell_torn(const struct ctl *ctl, const struct verified *v, const char *path)
{
    if (!ctl->json && !given.head)
        printf("%s: line %" PRIu64 ": part of a record, left by a crash or a full disk, as record %" PRIu64
               " notes\n",
               path, v->chain.first_line, v->chain.seq);
}

static enum ctl_exit verify_file(const struct ctl *ctl, struct verified *v, const char *path)
{
    struct ctl_trail_line line = {0};
    FILE *file = ctl_trail_open(path);
    if (!file)
        return CTL_FILE;
    common_trail_chain_next_file(&v->chain);
    errno = 0;
    while (ctl_trail_line(file, &line)) {
        enum common_trail_verdict verdict =
            common_trail_chain_take(&v->chain, line.text, line.len, line.ended);
        if (verdict == COMMON_TRAIL_BAD)
            tell_bad(ctl, v, path);
        else if (verdict == COMMON_TRAIL_TORN)
            tell_torn(ctl, v, path);
        v->found = v->found || (given.contains && strcmp(v->chain.head, given.contains) == 0);
    }
    enum ctl_exit exit_code = ferror(file) ? ctl_trail_unreadable(path) : CTL_OK;
    if (common_trail_chain_end(&v->chain) == COMMON_TRAIL_BAD)
        tell_bad(ctl, v, path);
    free(line.text);
    fclose(file);
    return exit_code;
}

static void print_json(const struct verified *v)
{
    const struct common_trail_chain *chain = &v->chain;
    json_t *object = json_pack("{s:b, s:o, s:o, s:o, s:s, s:o, s:O}", "whole", chain->bad == 0, "records",
                               ctl_json_u64(chain->records), "first", ctl_json_u64(chain->first_seq), "last",
                               ctl_json_u64(chain->seq), "head", chain->head, "torn",
                               ctl_json_u64(chain->torn), "bad", v->bad);
    if (given.contains)
        json_object_set_new(object, "contains", json_boolean(v->found));
    ctl_print_json(object);
}

static void print_text(const struct verified *v)
{
    const struct common_trail_chain *chain = &v->chain;
    if (given.head) {
        printf("%" PRIu64 " %s\n", chain->seq, chain->head);
        return;
    }
    if (chain->first_seq > 1)
        printf("begins after record %" PRIu64 ", whose hash is %s: that is in an earlier file\n",
               chain->first_seq - 1, chain->first_prev);
    printf("%s: %" PRIu64 " records, %" PRIu64 " to %" PRIu64 ", head %s\n",
           chain->bad ? "the chain is broken" : "the chain is whole", chain->records, chain->first_seq,
           chain->seq, chain->head);
}

static enum ctl_exit run_verify(struct ctl *ctl, int n_args, char **args)
{
    struct verified v = {.bad = json_array()};
    enum ctl_exit exit_code = CTL_OK;
    common_trail_chain_init(&v.chain);
    for (int i = 0; i < n_args && exit_code == CTL_OK; i++)
        exit_code = verify_file(ctl, &v, args[i]);
    if (exit_code == CTL_OK && !v.chain.begun && !v.chain.bad)
        exit_code = ctl_say(CTL_DATA_LOSS, "it has no records");
    else if (exit_code == CTL_OK)
        ctl->json ? print_json(&v) : print_text(&v);
    if (exit_code == CTL_OK && v.chain.bad)
        exit_code = ctl_say(CTL_DATA_LOSS, "the audit log has been altered");
    if (exit_code == CTL_OK && given.contains && !v.found)
        exit_code = ctl_say(CTL_DATA_LOSS, "no record has this hash: since it was noted, the end of the log "
                                           "was removed or the log was rewritten");
    common_trail_chain_fini(&v.chain);
    json_decref(v.bad);
    return exit_code;
}

static enum ctl_exit check_verify(int n_args, char **args)
{
    (void)n_args;
    (void)args;
    if (given.contains && (strlen(given.contains) != COMMON_TRAIL_HASH ||
                           strspn(given.contains, "0123456789abcdef") != COMMON_TRAIL_HASH))
        return ctl_say(CTL_USAGE, "--contains: a hash is %d hex digits, as --head prints it",
                       COMMON_TRAIL_HASH);
    return CTL_OK;
}

static const struct common_option verify_options[] = {
    {"head", 0, COMMON_OPTION_FLAG, &given.head, NULL,
     "Print only the number and the hash of the last record: kept elsewhere, they reveal later\n"
     "if records were removed.",
     0, 0},
    {"contains", 0, COMMON_OPTION_STRING, &given.contains, "HASH",
     "Fail unless a record has this hash, which an earlier --head printed.", 0, 0},
    {0},
};

const struct ctl_command ctl_trail_commands[] = {
    {"audit-log verify", "FILE [FILE...]", "check that an audit log has not been altered",
     "Follows the chain of hashes through an audit log of the coordinator (--audit-log), or through several "
     "rotated\n"
     "files, the oldest first. Reports which lines were changed and where lines are missing. Contacts no "
     "coordinator.\n"
     "Anyone who can write the file can also write a whole new chain: --head, kept where they cannot write, "
     "and\n"
     "--contains reveal that.",
     verify_options, 1, CTL_ARGS_MAX, run_verify, check_verify},
    {"audit-log show", "FILE [FILE...]", "show the records of an audit log: who changed what",
     "Shows the records of an audit log of the coordinator (--audit-log), or of several files, the oldest "
     "first. Breaks in\n"
     "the chain are reported on standard error. Contacts no coordinator.",
     ctl_trail_show_options, 1, CTL_ARGS_MAX, ctl_trail_show, ctl_trail_show_check},
    {0},
};
