// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/banyanctl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/e2e/support.h"

struct harness_output banyanctl_run(const struct harness_cluster *cluster, const char *line, const char *word)
{
    char program[4096], copy[1024], endpoint[512];
    char *argv[32] = {program}, *env[] = {endpoint, NULL};
    size_t n = 1;
    struct harness_output out = {0};
    assert_true(harness_program_path("banyanctl", program, sizeof program));
    snprintf(copy, sizeof copy, "%s", line);
    snprintf(endpoint, sizeof endpoint, "BANYAN_ENDPOINT=%s", harness_cluster_endpoint(cluster, "unix"));
    for (char *save, *part = strtok_r(copy, " ", &save); part; part = strtok_r(NULL, " ", &save)) {
        assert_true(n < sizeof argv / sizeof *argv - 1);
        argv[n++] = strcmp(part, "%s") == 0 ? (char *)word : part;
    }
    assert_true(harness_run(argv, env, 300 * COMMON_NS_PER_S, &out));
    return out;
}

void banyanctl_expect(const struct harness_cluster *cluster, int code, const char *says, const char *line,
                      const char *word)
{
    struct harness_output out = banyanctl_run(cluster, line, word);
    if (out.exit_code != code || (!strstr(out.out, says) && !strstr(out.err, says)))
        fail_msg("banyanctl %s: exit code %d, expected %d and '%s'; it said: %s%s", line, out.exit_code, code,
                 says, out.out, out.err);
    harness_output_free(&out);
}

void banyanctl_snapshot(const struct harness_cluster *cluster, const banyan_session *session,
                        const char *options, const char *path)
{
    char line[256];
    snprintf(line, sizeof line, "session snapshot %s 0x%016" PRIx64 " %%s", options,
             banyan_session_id(session));
    banyanctl_expect(cluster, 0, " tokens", line, path);
}

banyan_session *banyanctl_restore(const struct harness_cluster *cluster, banyan_client *client,
                                  const char *name, const char *options, const char *path)
{
    char line[256];
    banyan_session *session;
    snprintf(line, sizeof line, "session restore --name %s %s %%s", name, options);
    banyanctl_expect(cluster, 0, "restored", line, path);
    OK(banyan_session_open(client, 0, name, &session, ERR));
    return session;
}
