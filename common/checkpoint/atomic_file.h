/* A file that appears whole or not at all: written as FILE.partial in the same folder, synchronized,
 * renamed over FILE, and the folder synchronized. After any interruption FILE is the old one or the new one.
 *
 * Symbolic links are followed: the file that the last one names is replaced, in its own folder. The new
 * file has the permissions that the umask leaves of rw-rw-rw-. FILE.partial is locked while it is written:
 * a second writer is refused, and the partial file of a killed one is replaced.
 *
 * Errors: STATUS_CANNOT_CREATE for a missing or read-only folder, a FILE that is no regular
 * file, or another writer, STATUS_IO where the system cannot store it (full disk, quota, device error). */
#ifndef COMMON_CHECKPOINT_ATOMIC_FILE_H
#define COMMON_CHECKPOINT_ATOMIC_FILE_H

#include "common/base/status.h"

#include <stdint.h>

typedef struct atomic_file {
    const char *path; /* borrowed: what messages call it */
    int fd, folder;
    char *name, *partial; /* within the folder */
} atomic_file;

/* After a failure nothing needs closing. */
status atomic_file_open(const char *path, atomic_file *out);

/* Append to what is written so far; write at an offset in it. */
status atomic_file_append(atomic_file *f, const void *data, size_t bytes);
status atomic_file_overwrite(atomic_file *f, int64_t offset, const void *data, size_t bytes);

/* Puts the file in its place. Closes it, and on failure removes the partial one. */
status atomic_file_commit(atomic_file *f);

/* Closes and removes it; does nothing after a commit. */
void atomic_file_abandon(atomic_file *f);

/* Removes the partial file of a writer that was killed, but not that of one that is writing. The error record
 * is empty afterwards. */
void atomic_file_clean(const char *path);

#endif
