// SPDX-License-Identifier: Apache-2.0
// Backup and BackupRead: a copy of the store (store/backup.h) for one client at a time; and the word that a restored
// store is to be served (sync/restored.h). The copy goes when its client says so, and 10 s after its last call.
#ifndef COORDINATOR_BACKUP_SERVICE_H
#define COORDINATOR_BACKUP_SERVICE_H

#include "coordinator/state.h"

void coordinator_handle_backup(void *arg, struct proto_request *request);      // arg: the coordinator
void coordinator_handle_backup_read(void *arg, struct proto_request *request); // likewise
void coordinator_backups_tick(struct coordinator *c, uint64_t now_ns);
void coordinator_backups_stop(struct coordinator *c); // before the store stops

#endif
