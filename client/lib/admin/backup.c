// SPDX-License-Identifier: Apache-2.0
// A copy of the coordinator's store, and the word that one which was made from such a copy is to be served.
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "common/hash/hash.h"
#include "proto/model/limits.h"

struct made {
    uint64_t id;
    banyan_backup backup;
    uint8_t head[PROTO_BACKUP_HEAD];
};

static banyan_code take_made(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    struct made *out = arg;
    const Banyan__Pb__BackupReply *reply = (const Banyan__Pb__BackupReply *)body;
    if (reply->head.len != sizeof out->head || !reply->backup || !reply->bytes)
        return client_error_set(error, BANYAN_INTERNAL, "the coordinator's answer is not a backup");
    out->id = reply->backup;
    out->backup = (banyan_backup){.bytes = sizeof out->head + reply->bytes,
                                  .sum = reply->sum,
                                  .term = reply->term,
                                  .sessions = reply->sessions,
                                  .tokens = reply->tokens,
                                  .chunks = reply->chunks,
                                  .workers = reply->workers};
    memcpy(out->head, reply->head.data, sizeof out->head);
    return BANYAN_OK;
}

struct piece {
    uint8_t *data; // [PROTO_BACKUP_PIECE]
    size_t want;
};

static banyan_code take_piece(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    struct piece *piece = arg;
    const Banyan__Pb__BackupReadReply *reply = (const Banyan__Pb__BackupReadReply *)body;
    if (reply->data.len != piece->want)
        return client_error_set(error, BANYAN_INTERNAL, "a piece of the backup has the wrong bytes");
    memcpy(piece->data, reply->data.data, piece->want);
    return BANYAN_OK;
}

static banyan_code read_all(banyan_client *client, const struct made *made, banyan_backup_write write,
                            void *arg, banyan_error *error)
{
    uint64_t bytes = made->backup.bytes - sizeof made->head, sum = 0;
    struct piece piece = {.data = malloc(PROTO_BACKUP_PIECE)};
    if (!piece.data)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    Banyan__Pb__BackupReadRequest request = BANYAN__PB__BACKUP_READ_REQUEST__INIT;
    request.backup = made->id;
    banyan_code code = BANYAN_OK;
    if (!write(arg, made->head, sizeof made->head))
        code = client_error_set(error, BANYAN_CANCELLED, "the caller stopped the backup");
    for (; code == BANYAN_OK && request.offset < bytes; request.offset += piece.want) {
        uint64_t left = bytes - request.offset;
        piece.want = left < PROTO_BACKUP_PIECE ? (size_t)left : PROTO_BACKUP_PIECE;
        code = client_unary(client, BANYAN__PB__METHOD__METHOD_BACKUP_READ, &request.base, false, 0,
                            take_piece, &piece, error);
        if (code != BANYAN_OK)
            break;
        sum = common_xxh3(piece.data, piece.want, sum);
        if (!write(arg, piece.data, piece.want))
            code = client_error_set(error, BANYAN_CANCELLED, "the caller stopped the backup");
    }
    if (code == BANYAN_OK && sum != made->backup.sum)
        code = client_error_set(error, BANYAN_DATA_LOSS, "the backup was damaged in transit: take it again");
    free(piece.data);
    return code;
}

banyan_code banyan_backup_take(banyan_client *client, banyan_backup_write write, void *arg,
                               banyan_backup *out, banyan_error *error)
{
    if (!client || !write)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    struct made made = {0};
    Banyan__Pb__BackupRequest request = BANYAN__PB__BACKUP_REQUEST__INIT;
    banyan_code code = client_unary(client, BANYAN__PB__METHOD__METHOD_BACKUP, &request.base, false, 0,
                                    take_made, &made, error);
    if (code != BANYAN_OK)
        return code;
    code = read_all(client, &made, write, arg, error);
    request.end = made.id;
    banyan_error unsaid; // it goes by itself, too
    (void)client_unary(client, BANYAN__PB__METHOD__METHOD_BACKUP, &request.base, false, 0, NULL, NULL,
                       &unsaid);
    if (code == BANYAN_OK && out)
        *out = made.backup;
    return code;
}

static banyan_code take_accepted(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    (void)error;
    *(uint64_t *)arg = ((const Banyan__Pb__BackupReply *)body)->sessions;
    return BANYAN_OK;
}

banyan_code banyan_backup_accept(banyan_client *client, bool without_absent, uint64_t *sessions,
                                 banyan_error *error)
{
    if (!client)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    uint64_t served = 0;
    Banyan__Pb__BackupRequest request = BANYAN__PB__BACKUP_REQUEST__INIT;
    request.accept = true;
    request.without_absent = without_absent;
    banyan_code code = client_unary(client, BANYAN__PB__METHOD__METHOD_BACKUP, &request.base, false, 0,
                                    take_accepted, &served, error);
    if (code == BANYAN_OK && sessions)
        *sessions = served;
    return code;
}
