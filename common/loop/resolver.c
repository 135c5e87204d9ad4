// SPDX-License-Identifier: Apache-2.0
#include "common/loop/resolver.h"

#include <event2/dns.h>

bool common_resolver_renew(struct common_loop *loop, struct evdns_base **resolver)
{
    if (*resolver)
        evdns_base_free(*resolver, 0);
    *resolver = evdns_base_new(common_loop_base(loop), EVDNS_BASE_DISABLE_WHEN_INACTIVE);
    if (*resolver) // its outcome says whether there are name servers; there need be none
        (void)evdns_base_resolv_conf_parse(*resolver, DNS_OPTIONS_ALL, "/etc/resolv.conf");
    return *resolver != NULL;
}

static void release(void *resolver)
{
    evdns_base_free(resolver, 0);
}

void common_resolver_free(struct common_loop *loop, struct evdns_base *resolver)
{
    if (resolver && !common_loop_leave_behind(loop, release, resolver))
        release(resolver);
}
