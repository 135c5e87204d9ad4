// SPDX-License-Identifier: Apache-2.0
// --output=yaml: what --output=json shows, as YAML 1.2 in block style. Texts are JSON strings, which YAML has,
// too.
#ifndef CLIENT_CTL_YAML_H
#define CLIENT_CTL_YAML_H

#include <jansson.h>
#include <stdio.h>

void ctl_yaml_print(FILE *to, const json_t *value); // a document of its own: it begins with "---"

#endif
