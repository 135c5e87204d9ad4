// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/ctl.h"

#include "common/base/clock.h"

#define CONNECT_TIMEOUT_NS (3 * COMMON_NS_PER_S)

banyan_options ctl_options(const struct ctl *ctl)
{
    return (banyan_options){.token_file = ctl->token_file,
                            .tls_ca = ctl->tls_ca,
                            .tls_cert = ctl->tls_cert,
                            .tls_key = ctl->tls_key,
                            .timeout_ns = ctl->timeout_ns};
}

banyan_code ctl_connect(struct ctl *ctl, banyan_error *error)
{
    banyan_options options = ctl_options(ctl);
    bool given = ctl->limit_ns != UINT64_MAX; // by --timeout
    options.connect_timeout_ns =
        given || ctl->timeout_ns < CONNECT_TIMEOUT_NS ? ctl->timeout_ns : CONNECT_TIMEOUT_NS;
    return banyan_connect(ctl->endpoint, &options, &ctl->client, error);
}

enum ctl_exit ctl_connect_fail(const banyan_error *error)
{
    if (error->code == BANYAN_UNAVAILABLE)
        return ctl_say(CTL_UNAVAILABLE,
                       "%s\n  give --endpoint, or set BANYAN_ENDPOINT, if the coordinator is elsewhere",
                       error->message);
    if (error->code == BANYAN_NOT_FOUND) // of all that connecting needs, only files can be missing
        return ctl_say(CTL_FILE, "%s", error->message);
    return ctl_fail(error);
}
