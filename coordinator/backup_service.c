// SPDX-License-Identifier: Apache-2.0
#include "coordinator/backup_service.h"

#include <inttypes.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/random.h"
#include "common/log/log.h"
#include "coordinator/store/backup.h"
#include "coordinator/sync/restored.h"
#include "proto/model/limits.h"

#define IDLE_NS (10 * COMMON_NS_PER_S)

_Static_assert(PROTO_BACKUP_HEAD == COORDINATOR_BACKUP_HEAD && PROTO_BACKUP_PIECE == COORDINATOR_BACKUP_PIECE,
               "what travels is what is stored");

struct coordinator_backups { // the copy that there is
    struct coordinator *c;
    struct coordinator_backup *copy; // NULL: none
    struct proto_request *request;   // that waits for it; NULL: none
    uint64_t id, used_ns;
};

static void drop(struct coordinator_backups *b)
{
    coordinator_backup_free(b->copy);
    b->copy = NULL;
    b->id = 0;
}

static struct coordinator_backups *backups_of(struct coordinator *c)
{
    if (!c->backups) {
        c->backups = coordinator_alloc(sizeof *c->backups);
        c->backups->c = c;
    }
    return c->backups;
}

static void is_copied(void *arg, enum common_code code, const char *text)
{
    struct coordinator_backups *b = arg;
    struct proto_request *request = b->request;
    b->request = NULL;
    b->used_ns = common_clock_ns();
    if (code != COMMON_OK) {
        if (code != COMMON_CANCELLED)
            coordinator_tell(&b->c->core, BACKUP_FAILED, ERROR, "backup failed: %s", text);
        proto_request_fail(request, code, text, NULL, 0);
        drop(b);
        return;
    }
    COMMON_FAILPOINT("backup_answered");
    const struct coordinator_backup_facts *f = coordinator_backup_facts(b->copy);
    Banyan__Pb__BackupReply reply = BANYAN__PB__BACKUP_REPLY__INIT;
    reply.backup = b->id;
    reply.bytes = f->bytes;
    reply.sum = f->sum;
    reply.head.data = (uint8_t *)f->head;
    reply.head.len = sizeof f->head;
    reply.term = f->term;
    reply.sessions = f->sessions;
    reply.tokens = f->tokens;
    reply.chunks = f->chunks;
    reply.workers = f->workers;
    coordinator_tell(&b->c->core, BACKUP_MADE, INFO,
                     "the store was backed up bytes=%" PRIu64 " sessions=%" PRIu64, f->bytes, f->sessions);
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static void make(struct coordinator_backups *b, struct proto_request *request)
{
    struct common_error err;
    if (b->copy) {
        proto_request_fail(
            request, COMMON_RESOURCE_EXHAUSTED,
            "another backup is running: only one runs at a time; try again when it has finished", NULL, 0);
        return;
    }
    while (!b->id)
        if (!common_random(&b->id, sizeof b->id)) {
            proto_request_fail(request, COMMON_UNAVAILABLE, "cannot get random bytes", NULL, 0);
            return;
        }
    enum common_code code = coordinator_backup_new(b->c->store, is_copied, b, &b->copy, &err);
    if (code != COMMON_OK) {
        b->id = 0;
        proto_request_fail(request, code, err.message, NULL, 0);
        return;
    }
    b->request = request;
    b->used_ns = common_clock_ns();
}

struct accepting {
    struct coordinator *c;
    struct proto_request *request;
};

static void is_accepted(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("accept_stored");
    struct accepting *a = arg;
    if (code != COMMON_OK) {
        proto_request_fail(a->request, code, text, NULL, 0);
    } else {
        Banyan__Pb__BackupReply reply = BANYAN__PB__BACKUP_REPLY__INIT;
        reply.sessions = coordinator_restored_serve(&a->c->sessions);
        COMMON_FAILPOINT("accept_served");
        proto_request_reply(a->request, &reply.base, NULL, 0, NULL, NULL);
    }
    free(a);
}

static void accept_restored(struct coordinator *c, struct proto_request *request, bool without_absent)
{
    struct common_error err;
    enum common_code code = coordinator_restored_check(&c->sessions, without_absent, &err);
    if (code != COMMON_OK) {
        proto_request_fail(request, code, err.message, NULL, 0);
        return;
    }
    struct accepting *a = coordinator_alloc(sizeof *a);
    *a = (struct accepting){.c = c, .request = request};
    coordinator_restored_accept(&c->sessions, is_accepted, a);
}

void coordinator_handle_backup(void *arg, struct proto_request *request)
{
    struct coordinator *c = arg;
    struct coordinator_backups *b = backups_of(c);
    const Banyan__Pb__BackupRequest *m = (const void *)proto_request_message(request)->body;
    if (m->accept) {
        accept_restored(c, request, m->without_absent);
        return;
    }
    if (!m->end) {
        make(b, request);
        return;
    }
    if (b->copy && b->id == m->end && !b->request)
        drop(b);
    Banyan__Pb__BackupReply reply = BANYAN__PB__BACKUP_REPLY__INIT;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static void is_read(void *arg, enum common_code code, const char *text)
{
    struct coordinator_backups *b = arg;
    struct proto_request *request = b->request;
    b->request = NULL;
    b->used_ns = common_clock_ns();
    if (code != COMMON_OK) {
        proto_request_fail(request, code, text, NULL, 0);
        drop(b);
        return;
    }
    COMMON_FAILPOINT("backup_piece_read");
    Banyan__Pb__BackupReadReply reply = BANYAN__PB__BACKUP_READ_REPLY__INIT;
    reply.data.data = (uint8_t *)coordinator_backup_piece(b->copy, &reply.data.len);
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

void coordinator_handle_backup_read(void *arg, struct proto_request *request)
{
    struct coordinator_backups *b = backups_of(arg);
    const Banyan__Pb__BackupReadRequest *m = (const void *)proto_request_message(request)->body;
    if (!b->copy || !m->backup || b->id != m->backup) {
        proto_request_fail(
            request, COMMON_NOT_FOUND,
            "this backup is gone: a backup is dropped when it has not been read for 10 s; make another", NULL,
            0);
        return;
    }
    if (b->request || !coordinator_backup_read(b->copy, m->offset, is_read, b)) {
        proto_request_fail(request, COMMON_INVALID_ARGUMENT,
                           "no piece of the backup begins at this offset, or another piece is being read",
                           NULL, 0);
        return;
    }
    b->request = request;
}

void coordinator_backups_tick(struct coordinator *c, uint64_t now_ns)
{
    struct coordinator_backups *b = c->backups;
    if (!b || !b->copy || b->request || now_ns < b->used_ns + IDLE_NS)
        return;
    common_log_info("a backup that is no longer read is dropped");
    drop(b);
}

void coordinator_backups_stop(struct coordinator *c)
{
    if (c->backups && c->backups->copy && !c->backups->request)
        drop(c->backups);
}
