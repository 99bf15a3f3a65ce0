#include "tests/support/folder.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int folder_open(void **state)
{
    char name[] = "/tmp/test-psring-XXXXXX";
    if (!mkdtemp(name)) return -1;
    *state = strdup(name);
    return 0;
}

int folder_close(void **state)
{
    chmod(*state, 0700);
    DIR *folder = opendir(*state);
    for (struct dirent *entry; folder && (entry = readdir(folder));) remove(path_in(*state, entry->d_name));
    if (folder) closedir(folder);
    int result = rmdir(*state);
    free(*state);
    return result;
}

const char *path_in(const char *folder, const char *name)
{
    static char paths[8][512];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

void write_file(const char *path, const void *bytes, size_t size)
{
    /* Some file systems write a file to disk immediately if it is truncated and written again. */
    unlink(path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}
