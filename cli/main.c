/* main.c - `ffpa`: choose a command. */
#include "help.h"
#include "program.h"

#include <string.h>

static const command *command_named(const char *name)
{
    for (const command *c = COMMANDS; c->name; c++)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

static int help(const char *topic)
{
    if (!topic) {
        help_program(stdout);
        return DONE;
    }
    if (strcmp(topic, "problem") == 0) {
        help_problem(stdout);
        return DONE;
    }
    const command *c = command_named(topic);
    if (!c) return complain(BAD_USAGE, "there is no help on '%s'; try `ffpa help`", topic);
    help_command(stdout, c);
    return DONE;
}

static bool flushed(void) { return fflush(stdout) == 0 && !ferror(stdout); }

int main(int argc, char **argv)
{
    int code;
    if (argc < 2) {
        help_program(stderr);
        return BAD_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        code = help(argc > 2 ? argv[2] : NULL);
    } else if (strcmp(name, "--version") == 0) {
        uint32_t v = ffpa_version();
        code = printf("ffpa %u.%u.%u\n", v >> 16, v >> 8 & 255, v & 255) > 0 ? DONE : BAD_FILE;
    } else {
        const command *c = command_named(name);
        if (!c) return complain(BAD_USAGE, "'%s' is not a command; try `ffpa help`", name);
        bool asks = false;
        for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
            asks = asks || strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
        code = asks ? help(name) : c->run(argc - 1, argv + 1);
    }
    if (!flushed() && code == DONE)
        code = complain(BAD_FILE, "cannot write to the standard output");
    return code;
}
