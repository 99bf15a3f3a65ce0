#include "common/checkpoint/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MOST_LINKS = 40, /* largest number of symbolic links that Linux follows in a path */
    /* Number of attempts to create the partial file while other processes create and remove it. */
    MOST_ATTEMPTS = 100,
    LARGEST_WRITE = 1 << 30 /* largest number of bytes per write, below the system's limit of 2 GiB */
};
#define SUFFIX ".partial"

static status cannot(const atomic_file *f, const char *what)
{
    int e = errno;
    bool storage = e == ENOSPC || e == EDQUOT || e == EIO || e == EFBIG || e == EINTR;
    return fail_errno(storage ? STATUS_IO : STATUS_CANNOT_CREATE, "%.512s: %s", f->path, what);
}

/* ---- the place -------------------------------------------------------------------------------- */

/* Reads the symbolic link at the path `at`, and replaces `at` by the path that the link contains. */
static status follow(const atomic_file *f, char at[PATH_MAX])
{
    char link[PATH_MAX];
    ssize_t length = readlink(at, link, sizeof link);
    if (length < 0) return cannot(f, "its link cannot be read");
    char *slash = strrchr(at, '/');
    size_t folder = link[0] == '/' || !slash ? 0 : (size_t)(slash + 1 - at);
    if (folder + (size_t)length >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return cannot(f, "its link cannot be followed");
    }
    memcpy(at + folder, link, (size_t)length);
    at[folder + (size_t)length] = '\0';
    return STATUS_OK;
}

/* Resolves the path. Follows links one by one, because realpath() would refuse a link to a missing file. */
static status resolve(const atomic_file *f, char out[PATH_MAX])
{
    if (strlen(f->path) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return cannot(f, "cannot be created");
    }
    snprintf(out, PATH_MAX, "%s", f->path);
    for (int i = 0; i < MOST_LINKS; i++) {
        struct stat st;
        if (lstat(out, &st) != 0) return errno == ENOENT ? STATUS_OK : cannot(f, "cannot be created");
        if (S_ISREG(st.st_mode)) return STATUS_OK;
        if (!S_ISLNK(st.st_mode))
            return fail(STATUS_CANNOT_CREATE, "%s: expected a regular file, got a %s", f->path,
                        S_ISDIR(st.st_mode) ? "folder" : "device, pipe or socket");
        TRY(follow(f, out));
    }
    errno = ELOOP;
    return cannot(f, "cannot be created");
}

static status open_folder(atomic_file *f)
{
    char path[PATH_MAX];
    if (!*f->path) return fail(STATUS_CANNOT_CREATE, "expected the name of a file, got ''");
    TRY(resolve(f, path));
    char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    if (!*name)
        return fail(STATUS_CANNOT_CREATE, "%s: expected the name of a file, got the name of a folder",
                    f->path);
    f->name = strdup(name);
    f->partial = malloc(strlen(name) + sizeof SUFFIX);
    if (!f->name || !f->partial) return fail(STATUS_SYSTEM, "%s: no memory for its name", f->path);
    snprintf(f->partial, strlen(name) + sizeof SUFFIX, "%s" SUFFIX, name);
    if (slash) slash[slash == path] = '\0';
    f->folder = open(slash ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return f->folder < 0 ? cannot(f, "its folder cannot be opened") : STATUS_OK;
}

static void release(atomic_file *f)
{
    if (f->fd >= 0) close(f->fd);
    if (f->folder >= 0) close(f->folder);
    free(f->name);
    free(f->partial);
    *f = (atomic_file){.fd = -1, .folder = -1};
}

static bool is_named(const char *pattern, const char *name)
{
    const char *place = strstr(pattern, ATOMIC_FILE_EPOCH);
    size_t before = place ? (size_t)(place - pattern) : 0;
    if (!place || strncmp(pattern, name, before) != 0) return strcmp(pattern, name) == 0;
    size_t digits = strspn(name + before, "0123456789");
    return digits > 0 && strcmp(place + strlen(ATOMIC_FILE_EPOCH), name + before + digits) == 0;
}

bool atomic_file_replaces(const char *path, const char *other)
{
    atomic_file a = {.path = path, .fd = -1, .folder = -1}, b = {.path = other, .fd = -1, .folder = -1};
    struct stat of_a, of_b;
    bool found = open_folder(&a) == STATUS_OK && open_folder(&b) == STATUS_OK &&
                 fstat(a.folder, &of_a) == 0 && fstat(b.folder, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
                 of_a.st_ino == of_b.st_ino && (is_named(a.name, b.name) || is_named(a.partial, b.name));
    error_clear();
    release(&a);
    release(&b);
    return found;
}

/* ---- the partial file ------------------------------------------------------------------------- */

/* Locks the partial file. Sets *mine to false if the name of the partial file now belongs to another file, or
 * to no file. Returns STATUS_AGAIN if another process holds the lock. The system releases the lock when the
 * process ends. If the file system has no locks, two processes may write the same file. */
static status lock(atomic_file *f, int fd, bool *mine)
{
    struct stat opened, named;
    *mine = false;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return STATUS_AGAIN;
    if (fstat(fd, &opened) != 0) return cannot(f, "cannot be created");
    if (fstatat(f->folder, f->partial, &named, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? STATUS_OK : cannot(f, "cannot be created");
    *mine = opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
    return STATUS_OK;
}

/* Removes the partial file of a killed writer. */
static status remove_left_over(atomic_file *f)
{
    bool mine;
    int fd = openat(f->folder, f->partial, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? STATUS_OK
                               : cannot(f, "the partial file of an earlier writer cannot be opened");
    status rc = lock(f, fd, &mine);
    if (rc == STATUS_AGAIN)
        rc = fail(STATUS_CANNOT_CREATE, "%s: another process is writing it", f->path);
    else if (mine && unlinkat(f->folder, f->partial, 0) != 0)
        rc = cannot(f, "the partial file of an earlier writer cannot be removed");
    close(fd);
    return rc;
}

/* Creates and locks the partial file. Returns STATUS_AGAIN if the caller must try again. This happens if
 * there was a left-over partial file, or if another process mistook the new partial file for a left-over
 * file. */
static status try_to_create(atomic_file *f)
{
    bool mine;
    f->fd = openat(f->folder, f->partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0 && errno != EEXIST) return cannot(f, "cannot be created");
    if (f->fd < 0) {
        TRY(remove_left_over(f));
        return STATUS_AGAIN;
    }
    status rc = lock(f, f->fd, &mine);
    if (mine) return STATUS_OK;
    if (rc != STATUS_OK && rc != STATUS_AGAIN) unlinkat(f->folder, f->partial, 0);
    close(f->fd);
    f->fd = -1;
    return rc == STATUS_OK ? STATUS_AGAIN : rc;
}

static status create_partial(atomic_file *f)
{
    for (int i = 0; i < MOST_ATTEMPTS; i++) {
        status rc = try_to_create(f);
        if (rc != STATUS_AGAIN) return rc;
    }
    return fail(STATUS_CANNOT_CREATE, "%s: other processes keep making and removing its partial file",
                f->path);
}

status atomic_file_open(const char *path, atomic_file *out)
{
    *out = (atomic_file){.path = path, .fd = -1, .folder = -1};
    status rc = open_folder(out);
    if (rc == STATUS_OK) rc = create_partial(out);
    if (rc != STATUS_OK) release(out);
    return rc;
}

/* ---- writing ---------------------------------------------------------------------------------- */

/* Writes all bytes at `offset`, or appends the bytes if `offset` is negative. */
static status write_all(atomic_file *f, int64_t offset, const char *data, size_t bytes)
{
    while (bytes > 0) {
        size_t part = bytes < LARGEST_WRITE ? bytes : LARGEST_WRITE;
        ssize_t count = offset < 0 ? write(f->fd, data, part) : pwrite(f->fd, data, part, offset);
        if (count < 0 && errno == EINTR) continue;
        if (count == 0) errno = ENOSPC;
        if (count <= 0) return fail_errno(STATUS_IO, "%s: cannot be written", f->path);
        data += count;
        bytes -= (size_t)count;
        if (offset >= 0) offset += count;
    }
    return STATUS_OK;
}

status atomic_file_append(atomic_file *f, const void *data, size_t bytes)
{
    return write_all(f, -1, data, bytes);
}

status atomic_file_overwrite(atomic_file *f, int64_t offset, const void *data, size_t bytes)
{
    return write_all(f, offset, data, bytes);
}

static int synchronize(int fd)
{
    int result;
    do result = fsync(fd);
    while (result != 0 && errno == EINTR);
    return result;
}

status atomic_file_commit(atomic_file *f)
{
    status rc = STATUS_OK;
    if (synchronize(f->fd) != 0)
        rc = fail_errno(STATUS_IO, "%s: cannot be written", f->path);
    else if (renameat(f->folder, f->partial, f->folder, f->name) != 0)
        rc = cannot(f, "cannot be put in its place");
    if (rc != STATUS_OK) {
        atomic_file_abandon(f);
        return rc;
    }
    /* EINVAL means that this file system cannot synchronize folders. */
    if (synchronize(f->folder) != 0 && errno != EINVAL)
        rc = fail_errno(STATUS_IO, "%s: written, but its folder cannot be synchronized", f->path);
    release(f);
    return rc;
}

status atomic_file_write(const char *path, const void *data, size_t bytes)
{
    atomic_file file;
    TRY(atomic_file_open(path, &file));
    status rc = atomic_file_append(&file, data, bytes);
    if (rc == STATUS_OK) return atomic_file_commit(&file);
    atomic_file_abandon(&file);
    return rc;
}

void atomic_file_abandon(atomic_file *f)
{
    if (f->fd < 0) return;
    unlinkat(f->folder, f->partial, 0);
    release(f);
}

void atomic_file_clean(const char *path)
{
    atomic_file f = {.path = path, .fd = -1, .folder = -1};
    if (open_folder(&f) == STATUS_OK) remove_left_over(&f);
    error_clear();
    release(&f);
}
