/* A save that is killed at any system call leaves either the old file or the new one. A save that fails says
 * why, keeps the old file and leaves no other file behind. */
#include "tests/common/checkpoint/fixture.h"

#include "tests/common/checkpoint/syscalls.h"
#include "tests/support/status_name.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const checkpoint_progress old_progress = {.step = 1, .optimizer_step = 1},
                                 new_progress = {.step = 2, .optimizer_step = 2};

typedef struct two_states {
    rank_state old, new, loaded;
    const char *folder;
    char path[512];
} two_states;

enum {
    TENSORS = 15 + 2 * 9
}; /* Tensors of the small model: 15, and two states of Adam for each of its 9 parameters. */

static void open_states(two_states *s, const char *folder)
{
    rank_open(&s->old, "reference", &small_model, NULL);
    rank_open(&s->new, "reference", &small_model, NULL);
    rank_open(&s->loaded, "reference", &small_model, NULL);
    rank_fill(&s->old, 1);
    rank_fill(&s->new, 2);
    s->folder = folder;
    snprintf(s->path, sizeof s->path, "%s/c", folder);
}

static void close_states(two_states *s)
{
    syscalls_plan(&(syscall_plan){0});
    rank_close(&s->old);
    rank_close(&s->new);
    rank_close(&s->loaded);
}

/* Loads the file. The progress in the file tells whether the file must equal the old or the new state.
 * Compares the file with this state. Returns true if the file holds the new state. */
static bool holds_new(two_states *s)
{
    checkpoint_progress progress;
    syscalls_plan(&(syscall_plan){0});
    must(rank_load(&s->loaded, s->path, &progress));
    bool is_new = progress.step == new_progress.step;
    expect_same_rank(&s->loaded, is_new ? &s->new : &s->old);
    return is_new;
}

/* ---- killed ----------------------------------------------------------------------------------- */

/* Saves the new state in a child process. Returns true if the child was killed. */
static bool save_in_child(two_states *s, const syscall_plan *plan)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        syscalls_plan(plan);
        _exit(rank_save(&s->new, s->path, &new_progress) == STATUS_OK ? 0 : 1);
    }
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    if (WIFEXITED(result))
        assert_int_equal(WEXITSTATUS(result), 0);
    else
        assert_int_equal(WTERMSIG(result), SIGKILL);
    return WIFSIGNALED(result);
}

/* Kills a save at each of its calls. *saw_old and *saw_new count the kills that left the old and the new
 * checkpoint. */
static void kill_everywhere(const char *folder, const char *name, bool half, bool left_over, int *saw_old,
                            int *saw_new)
{
    two_states s;
    *saw_old = *saw_new = 0;
    open_states(&s, folder);
    snprintf(s.path, sizeof s.path, "%s/%s", folder, name);
    for (int n = 1;; n++) {
        must(rank_save(&s.old, s.path, &old_progress));
        assert_int_equal(files_in(folder), 1);
        if (left_over) write_file(path_in(folder, "c.partial"), "what a killed one left", 22);
        if (!save_in_child(&s, &(syscall_plan){.kill_before = n, .half = half})) break;
        if (holds_new(&s))
            ++*saw_new;
        else
            ++*saw_old;
        assert_true(files_in(folder) <= 2);
    }
    assert_true(holds_new(&s));
    assert_int_equal(files_in(folder), 1);
    close_states(&s);
}

static void a_save_killed_at_any_call_leaves_the_old_file_or_the_new(void **state)
{
    int old, new;
    kill_everywhere(*state, "c", false, false, &old, &new);
    /* A kill at any write leaves the old file. There is one write per tensor, and the header is written
     * twice. A kill at a call that opens the file also leaves the old one. */
    assert_true(old > TENSORS + 2);
    assert_true(new >= 2);
}

static void a_save_killed_in_the_middle_of_any_write_leaves_the_old_file(void **state)
{
    int old, new;
    kill_everywhere(*state, "c", true, false, &old, &new);
    assert_true(old > TENSORS + 2);
}

static void a_save_killed_while_it_removes_what_another_left_does_too(void **state)
{
    int old, new;
    kill_everywhere(*state, "c", false, true, &old, &new);
    assert_true(old > TENSORS + 2);
}

static void a_first_save_that_is_killed_leaves_no_file_or_a_whole_one(void **state)
{
    two_states s;
    open_states(&s, *state);
    bool seen = false;
    for (int n = 1;; n++) {
        unlink(s.path);
        if (!save_in_child(&s, &(syscall_plan){.kill_before = n})) break;
        bool there = access(s.path, F_OK) == 0;
        if (seen) assert_true(there);
        if (there) assert_true(holds_new(&s));
        seen = there;
    }
    assert_true(seen);
    close_states(&s);
}

/* ---- failing ---------------------------------------------------------------------------------- */

static const struct {
    const char *what;
    syscall_name call;
    int error;
    status code;
    const char *message;
} faults[] = {
    {"a full disk", SYSCALL_WRITE, ENOSPC, STATUS_IO, "cannot be written: No space left on device"},
    {"a quota", SYSCALL_WRITE, EDQUOT, STATUS_IO, "cannot be written: Disk quota exceeded"},
    {"a device error", SYSCALL_WRITE, EIO, STATUS_IO, "cannot be written: Input/output error"},
    {"a device error in the header", SYSCALL_PWRITE, EIO, STATUS_IO, "cannot be written: Input/output error"},
    {"a disk that is full at last", SYSCALL_PWRITE, ENOSPC, STATUS_IO,
     "cannot be written: No space left on device"},
    {"a failing rename", SYSCALL_RENAMEAT, EIO, STATUS_IO, "cannot be put in its place: Input/output error"},
    {"a rename that is not permitted", SYSCALL_RENAMEAT, EPERM, STATUS_CANNOT_CREATE,
     "cannot be put in its place: Operation not permitted"},
    {"a folder that cannot be opened", SYSCALL_OPEN, EACCES, STATUS_CANNOT_CREATE,
     "its folder cannot be opened: Permission denied"},
    {"a read-only file system", SYSCALL_OPENAT, EROFS, STATUS_CANNOT_CREATE,
     "cannot be created: Read-only file system"},
    {"no room for another file", SYSCALL_OPENAT, ENOSPC, STATUS_IO,
     "cannot be created: No space left on device"},
    {"no descriptors", SYSCALL_OPENAT, EMFILE, STATUS_SYSTEM, "cannot be created: Too many open files"},
    {"a file that vanishes", SYSCALL_FSTAT, EIO, STATUS_IO, "cannot be created: Input/output error"},
    {"a folder that vanishes", SYSCALL_FSTATAT, EIO, STATUS_IO, "cannot be created: Input/output error"},
    {"an unreadable path", SYSCALL_LSTAT, EACCES, STATUS_CANNOT_CREATE,
     "cannot be created: Permission denied"},
};

static void a_failure_at_any_call_keeps_the_old_file_and_leaves_nothing_behind(void **state)
{
    two_states s;
    open_states(&s, *state);
    must(rank_save(&s.old, s.path, &old_progress));
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        syscalls_plan(&(syscall_plan){0});
        must(rank_save(&s.old, s.path, &old_progress));
        int calls = syscalls_named(faults[i].call);
        for (int n = 1; n <= calls; n++) {
            syscall_plan plan = {.error = faults[i].error};
            plan.fail_at[faults[i].call] = n;
            syscalls_plan(&plan);
            status rc = rank_save(&s.new, s.path, &new_progress);
            syscalls_plan(&(syscall_plan){0});
            if (rc != faults[i].code) print_error("%s, call %d\n", faults[i].what, n);
            assert_fails(rc, faults[i].code, faults[i].message);
            assert_false(holds_new(&s));
            assert_int_equal(files_in(s.folder), 1);
        }
    }
    close_states(&s);
}

static void a_file_that_cannot_be_synchronized_keeps_the_old_one(void **state)
{
    two_states s;
    open_states(&s, *state);
    must(rank_save(&s.old, s.path, &old_progress));
    for (int n = 1; n <= 2; n++) {
        syscall_plan plan = {.error = EIO};
        plan.fail_at[SYSCALL_FSYNC] = n;
        syscalls_plan(&plan);
        assert_fails(rank_save(&s.new, s.path, &new_progress), STATUS_IO,
                     n == 1 ? "cannot be written: Input/output error"
                            : "written, but its folder cannot be synchronized");
        assert_int_equal(holds_new(&s), n == 2);
        assert_int_equal(files_in(s.folder), 1);
    }
    close_states(&s);
}

static void short_and_interrupted_calls_are_continued(void **state)
{
    static const syscall_plan plans[] = {
        {.most = 1}, {.most = 37}, {.interrupted = true}, {.interrupted = true, .most = 3}};
    two_states s;
    open_states(&s, *state);
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        unlink(s.path);
        syscalls_plan(&plans[i]);
        must(rank_save(&s.new, s.path, &new_progress));
        assert_true(holds_new(&s));
    }
    close_states(&s);
}

static void file_systems_without_locks_or_folder_synchronization_serve_too(void **state)
{
    two_states s;
    open_states(&s, *state);
    syscall_plan plan = {.error = EOPNOTSUPP};
    plan.fail_at[SYSCALL_FLOCK] = 1;
    syscalls_plan(&plan);
    must(rank_save(&s.old, s.path, &old_progress));
    plan = (syscall_plan){.error = EINVAL};
    plan.fail_at[SYSCALL_FSYNC] = 2;
    syscalls_plan(&plan);
    must(rank_save(&s.new, s.path, &new_progress));
    assert_true(holds_new(&s));
    close_states(&s);
}

/* ---- by the kernel ---------------------------------------------------------------------------- */

enum { CHILD_SKIPS = 77 };

/* Runs `body` in a child process and returns the exit code of the child. A check that fails ends the child
 * with 1. */
static int run_in_child(int (*body)(two_states *s), two_states *s)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(body(s));
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    return WEXITSTATUS(result);
}

/* Tries a save that must fail. Returns 0 if it fails with STATUS_IO. */
static int save_that_must_fail(two_states *s, const char *message)
{
    status rc = rank_save(&s->new, s->path, &new_progress);
    bool right = rc == STATUS_IO && strstr(error_message(), message);
    if (!right) print_error("found %s: %s\n", status_name(rc), error_message());
    error_clear();
    return right ? 0 : 1;
}

static int limit_file_size(two_states *s)
{
    enum { LESS = 1000 };
    struct rlimit limit = {LESS, LESS};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return CHILD_SKIPS;
    return save_that_must_fail(s, "cannot be written: File too large");
}

static void a_limit_on_the_size_of_files_keeps_the_old_one(void **state)
{
    two_states s;
    open_states(&s, *state);
    must(rank_save(&s.old, s.path, &old_progress));
    int code = run_in_child(limit_file_size, &s);
    assert_false(holds_new(&s));
    assert_int_equal(files_in(s.folder), 1);
    close_states(&s);
    if (code == CHILD_SKIPS) skip();
    assert_int_equal(code, 0);
}

static int fill_a_small_disk(two_states *s)
{
    bool alone = unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
    if (!alone || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", s->folder, "tmpfs", 0, "size=64k") != 0)
        return CHILD_SKIPS;
    if (rank_save(&s->old, s->path, &old_progress) != STATUS_OK) return 1;
    int ballast = open(path_in(s->folder, "ballast"), O_WRONLY | O_CREAT, 0600);
    char zeros[1024] = {0};
    while (write(ballast, zeros, sizeof zeros) > 0) {
    }
    close(ballast);
    if (save_that_must_fail(s, "No space left on device") != 0) return 1;
    if (files_in(s->folder) != 2 || holds_new(s)) return 1;
    unlink(path_in(s->folder, "ballast"));
    return rank_save(&s->new, s->path, &new_progress) == STATUS_OK && holds_new(s) ? 0 : 1;
}

static void a_full_disk_keeps_the_old_file(void **state)
{
    two_states s;
    open_states(&s, *state);
    int code = run_in_child(fill_a_small_disk, &s);
    close_states(&s);
    if (code == CHILD_SKIPS) {
        print_message("# skipped: a small file system cannot be mounted here\n");
        skip();
    }
    assert_int_equal(code, 0);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_open, folder_close)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_save_killed_at_any_call_leaves_the_old_file_or_the_new),
        IN_FOLDER(a_save_killed_in_the_middle_of_any_write_leaves_the_old_file),
        IN_FOLDER(a_save_killed_while_it_removes_what_another_left_does_too),
        IN_FOLDER(a_first_save_that_is_killed_leaves_no_file_or_a_whole_one),
        IN_FOLDER(a_failure_at_any_call_keeps_the_old_file_and_leaves_nothing_behind),
        IN_FOLDER(a_file_that_cannot_be_synchronized_keeps_the_old_one),
        IN_FOLDER(short_and_interrupted_calls_are_continued),
        IN_FOLDER(file_systems_without_locks_or_folder_synchronization_serve_too),
        IN_FOLDER(a_limit_on_the_size_of_files_keeps_the_old_one),
        IN_FOLDER(a_full_disk_keeps_the_old_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
