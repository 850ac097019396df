/* shipped_variants.c - the kernels that the planner chooses for a list of problems, as text for a compiler. No GPU.
 *
 * usage: shipped_variants FAMILY ARCH < LIST    (such as sm80 sm_90a < kernels/sm80/shipped_sm80.txt)
 * A line of the list is a problem string, with " any" after it when no operand has aligned rows; '#' begins a
 * comment. Each kernel comes out as a line "FILE NAME SHARED_BYTES" and its config, ended by an empty line. */
#include "core/problem.h"
#include "cuda/families.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void stop(const char *where, const char *why)
{
    fprintf(stderr, "shipped_variants: %s: %s\n", where, why);
    exit(1);
}

static void print_variants(const variant_list *list)
{
    for (int i = 0; i < list->count; i++) {
        const variant *v = &list->v[i];
        if (!config_whole(v)) stop(v->name, "the config is too long");
        printf("%s %s %u\n%s\n", v->file, v->name, list->shared[i], v->config);
    }
}

static void plan(const char *text, bool any_stride, const char *only, const cuda_device *device)
{
    ffpa_problem ask = {.struct_size = sizeof ask};
    problem p;
    char why[300];
    ffpa_report report = {.struct_size = sizeof report};
    if (ffpa_problem_parse(text, &ask) || problem_of_ask(&p, &ask, "shipped_variants"))
        stop(text, ffpa_last_error());
    problem_move(&p, FFPA_CUDA(0));
    if (any_stride) p.aligned = 0;
    const family *f = family_for(&p, device, only, why, sizeof why);
    if (!f) stop(text, why);
    void *choice = calloc(1, f->choice_bytes);
    variant_list *list = calloc(1, sizeof *list);
    if (!choice || !list) abort();
    if (f->choose(&p, device, choice, list, &report)) stop(text, ffpa_last_error());
    print_variants(list);
    free(choice);
    free(list);
}

/* Is there anything of this family for the chip? */
static bool serves(const char *only, const cuda_device *device)
{
    for (const family *f = FAMILIES; f->name; f++)
        if (strcmp(f->name, only) == 0 && device->cc >= f->min_cc && device->cc <= f->max_cc)
            return true;
    return false;
}

int main(int argc, char **argv)
{
    cuda_device device;
    char line[1024];
    if (argc != 3) stop("usage", "shipped_variants FAMILY ARCH < LIST");
    if (cuda_device_of_arch(argv[2], &device)) stop(argv[2], ffpa_last_error());
    if (!serves(argv[1], &device)) return 0;
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "#\n")] = 0;
        const char *text = strtok(line, " "), *word = text ? strtok(NULL, " ") : NULL;
        if (word && strcmp(word, "any") != 0) stop(text, "only 'any' may follow");
        if (text) plan(text, word != NULL, argv[1], &device);
    }
    return 0;
}
