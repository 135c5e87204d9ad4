// SPDX-License-Identifier: Apache-2.0
#include "common/cli/tables.h"

#include <stdio.h>
#include <string.h>

json_t *common_tables_options(const struct common_option *options)
{
    json_t *array = json_array();
    for (const struct common_option *o = options; o && o->name; o++) {
        char letter[2] = {o->letter, '\0'};
        const char *arg = o->type == COMMON_OPTION_FLAG ? "" : o->arg ? o->arg : "VALUE";
        json_array_append_new(array, json_pack("{s:s, s:s, s:s, s:s}", "name", o->name, "letter", letter,
                                               "arg", arg, "help", o->help ? o->help : ""));
    }
    return array;
}

json_t *common_tables_command(const struct common_command *command)
{
    json_t *options = common_tables_options(command->options);
    json_t *help = common_tables_options(common_help_options);
    json_array_extend(options, help);
    json_decref(help);
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "program", command->program, "version", BANYAN_VERSION,
                     "synopsis", command->synopsis, "about", command->about, "options", options);
}

void common_tables_print(json_t *tables)
{
    json_dumpf(tables, stdout, JSON_INDENT(1));
    putchar('\n');
    fflush(stdout);
    json_decref(tables);
}

bool common_tables(const struct common_command *command, int argc, char **argv)
{
    if (argc != 2 || strcmp(argv[1], COMMON_TABLES) != 0)
        return false;
    common_tables_print(common_tables_command(command));
    return true;
}
