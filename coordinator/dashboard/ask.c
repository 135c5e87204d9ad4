// SPDX-License-Identifier: Apache-2.0
#include "coordinator/dashboard/ask.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/http/http.h"
#include "coordinator/session/table.h"

json_t *coordinator_dashboard_id(uint64_t id)
{
    char text[17];
    snprintf(text, sizeof(text), "%016" PRIx64, id);
    return json_string(text);
}

json_t *coordinator_dashboard_text(const char *text)
{
    json_t *json = json_string(text);
    char *copy = json ? NULL : strdup(text);
    for (char *at = copy; at && *at; at++)
        *at = (unsigned char)*at < 0x80 ? *at : '?';
    if (copy)
        json = json_string(copy);
    free(copy);
    return json ? json : json_null();
}

json_t *coordinator_dashboard_real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

enum common_code coordinator_dashboard_number(const char *query, const char *word, uint64_t absent,
                                              uint64_t least, uint64_t most, uint64_t *out,
                                              struct common_error *err)
{
    char text[24];
    enum common_http_value given = common_http_query(query, word, text, sizeof(text));
    uint64_t n = 0;
    size_t i = 0;
    if (given == COMMON_HTTP_ABSENT) {
        *out = absent;
        return COMMON_OK;
    }
    while (given == COMMON_HTTP_GIVEN && i < 19 && text[i] >= '0' && text[i] <= '9') // 19 digits: below 2^64
        n = n * 10 + (uint64_t)(text[i++] - '0');
    if (given != COMMON_HTTP_GIVEN || !i || text[i] || n < least || n > most)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "%s takes a number from %" PRIu64 " to %" PRIu64, word, least, most);
    *out = n;
    return COMMON_OK;
}

enum common_code coordinator_dashboard_find(const struct coordinator_dashboard *d, uint64_t id,
                                            struct coordinator_session **out, struct common_error *err)
{
    struct coordinator_session *s = coordinator_session_find(&d->c->sessions, id);
    if (!s)
        return common_error_set(err, COMMON_NOT_FOUND, "there is no session %016" PRIx64, id);
    *out = s;
    return COMMON_OK;
}
