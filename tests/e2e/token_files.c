// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/token_files.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/e2e/support.h"

static struct harness_cluster *of;

void token_files_of(struct harness_cluster *cluster)
{
    of = cluster;
}

const char *token_file(const char *name)
{
    static char path[8][512];
    static unsigned at;
    char *out = path[at++ % 8];
    snprintf(out, sizeof path[0], "%s/%s.token", harness_cluster_dir(of), name);
    return out;
}

void token_keep(const char *name, const char *token)
{
    FILE *file = fopen(token_file(name), "w");
    assert_non_null(file);
    fprintf(file, "%s\n", token);
    assert_int_equal(fchmod(fileno(file), 0600), 0);
    fclose(file);
}

void token_make(banyan_client *admin, const char *name, const char *access, const char *tenant)
{
    char token[65];
    OK(banyan_token_create(admin, name, access, tenant, 0, token, NULL, ERR));
    assert_int_equal(strlen(token), 46);
    token_keep(name, token);
}

banyan_code token_connect(const char *name, const char *transport, banyan_client **out)
{
    banyan_options options = {.token_file = name ? token_file(name) : NULL,
                              .timeout_ns = UINT64_C(30000000000),
                              .connect_timeout_ns = UINT64_C(5000000000)};
    return banyan_connect(harness_cluster_endpoint(of, transport), &options, out, ERR);
}

banyan_client *token_client(const char *name, const char *transport)
{
    banyan_client *client;
    OK(token_connect(name, transport, &client));
    return client;
}
