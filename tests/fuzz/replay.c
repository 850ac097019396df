/* replay.c - feed the harness every file of the folders given, in memory of exactly its size so
 * that a sanitizer sees a read past its end. Fails when it found no file: an empty corpus tests
 * nothing. */
#include "harness.h"

#include <dirent.h>

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) return perror(path), 1;
    fseek(file, 0, SEEK_END);
    const size_t bytes = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(bytes ? bytes : 1);
    if (!data || fread(data, 1, bytes, file) != bytes) {
        fprintf(stderr, "%s: cannot be read\n", path);
        abort();
    }
    fclose(file);
    fprintf(stderr, "%s\n", path); /* the last line names the culprit */
    LLVMFuzzerTestOneInput(data, bytes);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    int replayed = 0, failed = 0;
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        if (!folder) return perror(argv[i]), 1;
        for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
            char path[4096];
            if (entry->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            failed += replay_file(path);
            replayed++;
        }
        closedir(folder);
    }
    printf("replayed %d inputs\n", replayed);
    return replayed == 0 || failed > 0;
}
