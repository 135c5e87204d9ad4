// SPDX-License-Identifier: Apache-2.0
#include "examples/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static bool next(FILE *file, uint32_t vocab, uint32_t *token)
{
    unsigned id;
    if (vocab != 256)
        return fscanf(file, "%u", &id) == 1 ? (*token = id, true) : false;
    int byte = fgetc(file);
    *token = (uint32_t)byte;
    return byte != EOF;
}

enum common_code text_read(const char *path, uint32_t vocab, uint64_t skip, uint64_t want, uint32_t **out,
                           uint64_t *n, struct common_error *err)
{
    uint32_t *tokens = malloc((want + 1) * sizeof(*tokens));
    FILE *file = fopen(path, "rb");
    enum common_code code = COMMON_OK;
    if (!tokens)
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for %s", path);
    else if (!file)
        code = common_error_set(err, COMMON_NOT_FOUND, "cannot read %s: %m", path);
    if (code == COMMON_OK) {
        uint64_t count = 0;
        uint32_t token;
        for (uint64_t i = 0; i < skip && next(file, vocab, &token); i++)
            ;
        while (count < want && next(file, vocab, &token))
            tokens[count++] = token;
        *out = tokens;
        *n = count;
    } else {
        free(tokens);
    }
    if (file)
        fclose(file);
    return code;
}
