// SPDX-License-Identifier: Apache-2.0
// Command: scrub. The memory of sealed chunks, compared at all their workers with what was sealed.
#include <inttypes.h>
#include <stdio.h>

#include "client/ctl/wait.h"

static struct ctl_wait_given given;

static struct { // of the scrub that is waited for
    uint64_t session;
    uint64_t term; // of the coordinator before it was asked
    banyan_scrub before, now;
} scrub;

static enum ctl_exit look_at_scrub(struct ctl *ctl, const char *name, struct ctl_wait_left *left)
{
    banyan_error error;
    (void)name;
    if (banyan_get_scrub(ctl->client, scrub.session, &scrub.now, &error) != BANYAN_OK)
        return ctl_fail(&error);
    left->over = scrub.now.left == 0;
    left->chunks = scrub.now.left;
    return left->over ? ctl_wait_same_term(ctl, scrub.term, "scrub") : CTL_OK;
}

static void print_scrub(const struct ctl *ctl)
{
    uint64_t compared = scrub.now.compared - scrub.before.compared,
             corrupt = scrub.now.corrupt - scrub.before.corrupt,
             healed = scrub.now.healed - scrub.before.healed;
    if (ctl->json) {
        ctl_print_json(json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "chunks",
                                 ctl_json_u64(scrub.now.chunks), "left", ctl_json_u64(scrub.now.left),
                                 "unsealed", ctl_json_u64(scrub.now.unsealed), "disputed",
                                 ctl_json_u64(scrub.now.differ), "lost", ctl_json_u64(scrub.now.lost),
                                 "compared", ctl_json_u64(compared), "corrupt", ctl_json_u64(corrupt),
                                 "healed", ctl_json_u64(healed)));
        return;
    }
    if (given.wait)
        printf("%" PRIu64 " copies compared: %" PRIu64 " did not match their seal\n", compared, corrupt);
    else
        printf("scrub started for %" PRIu64 " chunks\n", scrub.now.left);
    if (scrub.now.unsealed > scrub.now.differ)
        printf("%" PRIu64 " full chunks have no seal yet\n", scrub.now.unsealed - scrub.now.differ);
    if (scrub.now.differ)
        printf("%" PRIu64
               " chunks are disputed: their workers have different rows, it is unknown whose are right, and\n"
               "  answers over them may be wrong. The coordinator's log names workers and tokens: run "
               "'session truncate' to\n"
               "  before them, and attach them again\n",
               scrub.now.differ);
    if (corrupt)
        printf("those copies are no longer used and are being replaced: the coordinator's log names them\n");
    if (healed)
        printf("%" PRIu64 " copies were wrong and have been repaired from their workers' files\n", healed);
    if (scrub.now.lost)
        printf("%" PRIu64 " chunks are lost: no worker has the sealed rows\n", scrub.now.lost);
}

static enum ctl_exit run_scrub(struct ctl *ctl, int n_args, char **args)
{
    banyan_error error;
    enum ctl_exit exit_code = CTL_OK;
    if (n_args) {
        banyan_session *session;
        exit_code = ctl_session_open(ctl, args[0], &session);
        if (exit_code != CTL_OK)
            return exit_code;
        scrub.session = banyan_session_id(session);
        banyan_session_close(session);
    }
    if (given.wait)
        exit_code = ctl_wait_term(ctl, &scrub.term);
    if (exit_code != CTL_OK)
        return exit_code;
    if (banyan_get_scrub(ctl->client, scrub.session, &scrub.before, &error) != BANYAN_OK ||
        banyan_scrub_begin(ctl->client, scrub.session, &scrub.now, &error) != BANYAN_OK)
        return ctl_fail(&error);
    if (given.wait)
        exit_code = ctl_wait(ctl, "the scrub", "still being compared", "", &given, look_at_scrub);
    if (exit_code != CTL_OK)
        return exit_code;
    print_scrub(ctl);
    bool wrong = scrub.now.corrupt > scrub.before.corrupt || scrub.now.lost || scrub.now.differ;
    return given.wait && wrong ? CTL_DATA_LOSS : CTL_OK;
}

static enum ctl_exit check_scrub(int n_args, char **args)
{
    (void)n_args;
    (void)args;
    return ctl_wait_check(&given);
}

static const struct common_option scrub_options[] = {
    CTL_WAIT_OPTIONS(given,
                     "\nExit with 10 if a copy did not match its seal or chunks are lost or disputed."),
    {0},
};

const struct ctl_command ctl_scrub_commands[] = {
    {"scrub", "[SESSION]", "compare workers' memory with the seals of chunks",
     "Compares the memory of all full chunks, or of those of one session, with their seals now, on all "
     "workers that\n"
     "hold them; the coordinator's --scrub does so periodically. A wrong copy is no longer used, and another "
     "replaces\n"
     "it. Unsealed full chunks whose workers have different rows are disputed: they are compared with each "
     "other again.\n"
     "Sessions stay in use. A restart of the coordinator ends the scrub.",
     scrub_options, 0, 1, run_scrub, check_scrub},
    {0},
};
