/* A file that appears whole or not at all. The data are written to FILE.partial in the same folder. The
 * partial file is synchronized and renamed to FILE, and then the folder is synchronized. After any
 * interruption FILE is either the old file or the new file.
 *
 * Symbolic links are followed. The file that the last link names is replaced, and the partial file is in the
 * folder of that file. The new file has the permissions rw-rw-rw- minus the umask. FILE.partial is locked
 * while it is written. A second writer gets an error. The partial file of a killed writer is replaced.
 *
 * The functions fail with STATUS_CANNOT_CREATE if the folder is missing or read-only, if FILE is not a
 * regular file, or if another process is writing FILE. They fail with STATUS_IO if the system cannot store
 * FILE (full disk, quota, device error). */
#ifndef COMMON_CHECKPOINT_ATOMIC_FILE_H
#define COMMON_CHECKPOINT_ATOMIC_FILE_H

#include "common/base/status.h"

#include <stdint.h>

typedef struct atomic_file {
    const char *path; /* borrowed; the name of the file in messages */
    int fd, folder;
    char *name, *partial; /* names within the folder */
} atomic_file;

/* Opens a file for writing. After a failure there is nothing to close. */
status atomic_file_open(const char *path, atomic_file *out);

/* Append to the file, or overwrite a part of it. */
status atomic_file_append(atomic_file *f, const void *data, size_t bytes);
status atomic_file_overwrite(atomic_file *f, int64_t offset, const void *data, size_t bytes);

/* Renames the partial file to FILE and closes it. Removes the partial file after a failure. */
status atomic_file_commit(atomic_file *f);

/* Closes and removes the partial file. Does nothing after a commit. */
void atomic_file_abandon(atomic_file *f);

/* Removes the partial file of a killed writer, but not of a running writer. Clears the error record. */
void atomic_file_clean(const char *path);

#endif
