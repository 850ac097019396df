/* help.h - what `ffpa help` prints. */
#ifndef FFPA_CLI_HELP_H
#define FFPA_CLI_HELP_H

#include "program.h"

void help_program(FILE *out);
void help_problem(FILE *out);
void help_command(FILE *out, const command *c);

#endif
