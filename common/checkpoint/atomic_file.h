/* A file that is written completely or not at all. The data are written to FILE.partial in the same folder.
 * Then the partial file is flushed to the disk (fsync) and renamed to FILE, and the folder is flushed to the
 * disk. After any interruption FILE is either the complete old file or the complete new file.
 *
 * If FILE is a symbolic link, the file to which the link leads is replaced, and the partial file is in the
 * folder of that file. The new file has the permissions rw-rw-rw- minus the umask. FILE.partial is locked
 * while it is written, so a second writer gets an error. A partial file that a killed writer has left is
 * replaced.
 *
 * The functions fail with STATUS_CANNOT_CREATE if the folder is missing or read-only, if FILE is not a
 * regular file, or if another process is writing FILE. They fail with STATUS_IO if the system cannot store
 * FILE (full disk, quota, device error). */
#ifndef COMMON_CHECKPOINT_ATOMIC_FILE_H
#define COMMON_CHECKPOINT_ATOMIC_FILE_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct atomic_file {
    const char *path; /* name of the file in messages; borrowed */
    int fd, folder;
    char *name, *partial; /* names of FILE and FILE.partial within the folder */
} atomic_file;

/* In the name of a file of --save, this word stands for the number of epochs. */
#define ATOMIC_FILE_EPOCH "{epoch}"

/* Returns true if writing FILE would replace `other`, or would use `other` as the partial file. Clears the
 * error record. */
bool atomic_file_replaces(const char *path, const char *other);

/* Opens the partial file for writing. After a failure the caller need not close `out`. */
status atomic_file_open(const char *path, atomic_file *out);

/* Append to the file, or overwrite a part of it. */
status atomic_file_append(atomic_file *f, const void *data, size_t bytes);
status atomic_file_overwrite(atomic_file *f, int64_t offset, const void *data, size_t bytes);

/* Writes a whole file. */
status atomic_file_write(const char *path, const void *data, size_t bytes);

/* Renames the partial file to FILE and closes it. If this fails, removes the partial file. */
status atomic_file_commit(atomic_file *f);

/* Closes and removes the partial file. Does nothing after atomic_file_commit(). */
void atomic_file_abandon(atomic_file *f);

/* Removes the partial file if its writer has been killed. If the writer is still running, the partial file
 * stays. Clears the error record. */
void atomic_file_clean(const char *path);

#endif
