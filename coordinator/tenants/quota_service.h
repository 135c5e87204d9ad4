// SPDX-License-Identifier: Apache-2.0
// QuotaSet and QuotaShow.
#ifndef COORDINATOR_QUOTA_SERVICE_H
#define COORDINATOR_QUOTA_SERVICE_H

#include "coordinator/tenants/quota.h"

// Handlers (proto_method.handle), for whom access.c lets. set: applied when the store has it. show: all
// tenants for operators and admins, their own for others.
void coordinator_handle_quota_set(struct coordinator_quotas *quotas, struct proto_request *request);
void coordinator_handle_quota_show(struct coordinator_quotas *quotas, struct proto_request *request);

#endif
