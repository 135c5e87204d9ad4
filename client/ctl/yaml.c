// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/yaml.h"

#include <stdbool.h>

static bool is_leaf(const json_t *value)
{
    return !json_is_object(value) && !json_is_array(value) ? true
           : json_is_object(value)                         ? json_object_size(value) == 0
                                                           : json_array_size(value) == 0;
}

static void print_leaf(FILE *to, const json_t *value)
{
    json_dumpf(value, to, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    fputc('\n', to);
}

static void print_block(FILE *to, const json_t *value, int depth, bool begun)
{
    const char *key;
    json_t *item;
    size_t i;
    if (json_is_object(value)) {
        json_object_foreach((json_t *)(size_t)value, key, item)
        {
            fprintf(to, "%*s%s:", begun ? 0 : depth, "", key);
            begun = false;
            fputc(is_leaf(item) ? ' ' : '\n', to);
            if (is_leaf(item))
                print_leaf(to, item);
            else
                print_block(to, item, depth + 2, false);
        }
        return;
    }
    json_array_foreach(value, i, item)
    {
        fprintf(to, "%*s- ", begun ? 0 : depth, "");
        begun = false;
        if (is_leaf(item))
            print_leaf(to, item);
        else
            print_block(to, item, depth + 2, true);
    }
}

void ctl_yaml_print(FILE *to, const json_t *value)
{
    fputs("---\n", to);
    if (is_leaf(value))
        print_leaf(to, value);
    else
        print_block(to, value, 0, false);
}
