// SPDX-License-Identifier: Apache-2.0
// What an operator can do about a failure, below its sentence. A hint belongs to a reason: a status code says
// too little, and what fits one of its failures misleads about the next.
#ifndef CLIENT_CTL_HINTS_H
#define CLIENT_CTL_HINTS_H

#include "client/banyan.h"

// NULL: the sentence says it all. Static storage.
const char *ctl_hint(const banyan_error *error);

#endif
