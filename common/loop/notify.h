// SPDX-License-Identifier: Apache-2.0
// What a daemon reports to a service manager: sd_notify(3), over the socket that NOTIFY_SOCKET names, and the
// watchdog that it asks for with WATCHDOG_USEC. Where it asks for nothing, nothing is sent. On the loop's
// thread; what is sent never blocks, and what cannot be sent is left out.
#ifndef COMMON_NOTIFY_H
#define COMMON_NOTIFY_H

#include "common/base/status.h"
#include "common/loop/loop.h"

struct common_notify;

// Takes both variables out of the environment. INVALID_ARGUMENT: NOTIFY_SOCKET is no path of a socket.
// RESOURCE_EXHAUSTED.
enum common_code common_notify_new(struct common_loop *loop, struct common_notify **out,
                                   struct common_error *err);
// The daemon serves, and what it does, in a few words for 'systemctl status'. From the first call on the
// watchdog is notified as often as it requires, as long as the loop runs. All but new take NULL, and do
// nothing then.
void common_notify_ready(struct common_notify *notify, const char *status);
// It leaves, which may take so long: a drain.
void common_notify_leaving(struct common_notify *notify, const char *status);
// It reads its configuration again, and has done so.
void common_notify_reloading(struct common_notify *notify);
void common_notify_reloaded(struct common_notify *notify);
void common_notify_free(struct common_notify *notify); // before the loop

#endif
