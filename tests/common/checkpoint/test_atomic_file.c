/* Tests in which places a file may be written, what the file replaces, and which permissions it gets. */
#include "tests/common/checkpoint/fixture.h"

#include "common/checkpoint/atomic_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static status save_text(const char *path, const char *text)
{
    atomic_file f;
    TRY(atomic_file_open(path, &f));
    status rc = atomic_file_append(&f, text, strlen(text));
    if (rc == STATUS_OK) return atomic_file_commit(&f);
    atomic_file_abandon(&f);
    return rc;
}

static void expect_text(const char *path, const char *wanted)
{
    size_t size;
    char *found = (char *)read_file(path, &size);
    if (!found) fail_msg("%s is not there", path);
    found[size] = '\0';
    assert_string_equal(found, wanted);
    free(found);
}

static mode_t mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    return st.st_mode;
}

static void a_file_is_created_replaced_and_overwritten_in_place(void **state)
{
    atomic_file f;
    const char *path = path_in(*state, "c");
    must(save_text(path, "one"));
    expect_text(path, "one");
    must(atomic_file_open(path, &f));
    must(atomic_file_append(&f, "____ two ", 9));
    must(atomic_file_append(&f, "three", 5));
    must(atomic_file_overwrite(&f, 0, "head", 4));
    expect_text(path, "one");
    must(atomic_file_commit(&f));
    expect_text(path, "head two three");
    assert_int_equal(files_in(*state), 1);
}

static void an_abandoned_file_leaves_the_old_one_alone(void **state)
{
    atomic_file f;
    const char *path = path_in(*state, "c");
    must(save_text(path, "one"));
    must(atomic_file_open(path, &f));
    must(atomic_file_append(&f, "two", 3));
    atomic_file_abandon(&f);
    expect_text(path, "one");
    assert_int_equal(files_in(*state), 1);
}

static void a_probe_leaves_no_trace(void **state)
{
    const char *path = path_in(*state, "c");
    must(checkpoint_probe(path));
    assert_int_equal(files_in(*state), 0);
    must(save_text(path, "one"));
    must(checkpoint_probe(path));
    expect_text(path, "one");
    assert_fails(checkpoint_probe(path_in(*state, "missing/c")), STATUS_CANNOT_CREATE,
                 "missing/c: its folder cannot be opened: No such");
}

static void permissions_are_what_the_umask_leaves(void **state)
{
    static const struct {
        mode_t mask, wanted;
    } cases[] = {{0022, 0644}, {0077, 0600}, {0, 0666}, {0027, 0640}};
    mode_t before = umask(0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        umask(cases[i].mask);
        must(save_text(path_in(*state, "c"), "text"));
        umask(0);
        assert_int_equal(mode_of(path_in(*state, "c")) & 07777, cases[i].wanted);
    }
    umask(before);
}

static void what_a_killed_writer_left_is_replaced_with_its_permissions(void **state)
{
    write_file(path_in(*state, "c.partial"), "long remains of a killed writer", 31);
    assert_int_equal(chmod(path_in(*state, "c.partial"), 0600), 0);
    mode_t before = umask(0022);
    must(save_text(path_in(*state, "c"), "new"));
    umask(before);
    expect_text(path_in(*state, "c"), "new");
    assert_int_equal(mode_of(path_in(*state, "c")) & 07777, 0644);
    assert_int_equal(files_in(*state), 1);
}

static void a_second_writer_is_refused_until_the_first_is_done(void **state)
{
    atomic_file first, second;
    const char *path = path_in(*state, "c");
    must(atomic_file_open(path, &first));
    must(atomic_file_append(&first, "first", 5));
    assert_fails(atomic_file_open(path, &second), STATUS_CANNOT_CREATE, "c: another process is writing it");
    must(atomic_file_commit(&first));
    expect_text(path, "first");
    must(save_text(path, "second"));
    expect_text(path, "second");
}

/* ---- links ------------------------------------------------------------------------------------ */

static void a_link_stays_and_its_target_is_replaced(void **state)
{
    char folder[512];
    snprintf(folder, sizeof folder, "%s/elsewhere", (char *)*state);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(symlink("elsewhere/c", path_in(*state, "relative")), 0);
    assert_int_equal(symlink(path_in(folder, "c"), path_in(*state, "absolute")), 0);
    assert_int_equal(symlink("relative", path_in(*state, "second")), 0);
    static const char *const names[] = {"relative", "absolute", "second", "relative"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        /* The first save creates the file that the link names. */
        must(save_text(path_in(*state, names[i]), names[i]));
        assert_true(S_ISLNK(mode_of(path_in(*state, names[i]))));
        assert_true(S_ISREG(mode_of(path_in(folder, "c"))));
        expect_text(path_in(folder, "c"), names[i]);
        assert_int_equal(files_in(folder), 1);
    }
    unlink(path_in(folder, "c"));
}

static void links_in_a_circle_are_refused(void **state)
{
    assert_int_equal(symlink("b", path_in(*state, "a")), 0);
    assert_int_equal(symlink("a", path_in(*state, "b")), 0);
    assert_fails(save_text(path_in(*state, "a"), ""), STATUS_CANNOT_CREATE,
                 "Too many levels of symbolic links");
}

static void a_link_where_the_partial_file_goes_is_not_followed(void **state)
{
    write_file(path_in(*state, "victim"), "text", 4);
    assert_int_equal(symlink("victim", path_in(*state, "c.partial")), 0);
    assert_fails(save_text(path_in(*state, "c"), "new"), STATUS_CANNOT_CREATE,
                 "the partial file of an earlier writer cannot be opened");
    expect_text(path_in(*state, "victim"), "text");
}

/* ---- places that are not fit ------------------------------------------------------------------ */

static void what_is_no_regular_file_is_refused(void **state)
{
    char long_name[5000];
    memset(long_name, 'n', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    assert_int_equal(mkfifo(path_in(*state, "pipe"), 0600), 0);
    assert_int_equal(mkfifo(path_in(*state, "d.partial"), 0600), 0);
    write_file(path_in(*state, "file"), "", 0);
    assert_fails(save_text(*state, ""), STATUS_CANNOT_CREATE, "expected a regular file, got a folder");
    assert_fails(save_text(path_in(*state, "pipe"), ""), STATUS_CANNOT_CREATE,
                 "expected a regular file, got a device, pipe or socket");
    assert_fails(save_text("/dev/null", ""), STATUS_CANNOT_CREATE,
                 "/dev/null: expected a regular file, got a device, pipe or socket");
    assert_fails(save_text(path_in(*state, "d"), ""), STATUS_CANNOT_CREATE,
                 "the partial file of an earlier writer cannot be opened");
    assert_fails(save_text(path_in(*state, "missing/c"), ""), STATUS_CANNOT_CREATE,
                 "its folder cannot be opened: No such file");
    assert_fails(save_text(path_in(*state, "missing/"), ""), STATUS_CANNOT_CREATE,
                 "expected the name of a file, got the name of a folder");
    assert_fails(save_text(path_in(*state, "file/c"), ""), STATUS_CANNOT_CREATE, "Not a directory");
    assert_fails(save_text("", ""), STATUS_CANNOT_CREATE, "expected the name of a file, got ''");
    assert_fails(save_text(long_name, ""), STATUS_CANNOT_CREATE, "File name too long");
    assert_fails(save_text(long_name + 4000 - 1, ""), STATUS_CANNOT_CREATE, "File name too long");
}

static void a_folder_that_cannot_be_written_is_refused(void **state)
{
    enum { NOBODY = 65534 };
    const char *path = path_in(*state, "c");
    must(save_text(path, "one"));
    assert_int_equal(chmod(*state, 0555), 0);
    pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0 && setuid(NOBODY) != 0) _exit(2);
        status rc = save_text(path, "two");
        _exit(rc == STATUS_CANNOT_CREATE && strstr(error_message(), "cannot be created: Permission denied")
                  ? 0
                  : 1);
    }
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(chmod(*state, 0700), 0);
    expect_text(path, "one");
    /* Root in a container may not be allowed to become another user. */
    if (WEXITSTATUS(result) == 2) skip();
    assert_int_equal(result, 0);
}

static void a_name_without_a_folder_is_one_in_the_current_folder(void **state)
{
    char here[4096];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(*state), 0);
    status rc = save_text("c", "text");
    assert_int_equal(chdir(here), 0);
    must(rc);
    expect_text(path_in(*state, "c"), "text");
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_open, folder_close)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_file_is_created_replaced_and_overwritten_in_place),
        IN_FOLDER(an_abandoned_file_leaves_the_old_one_alone),
        IN_FOLDER(a_probe_leaves_no_trace),
        IN_FOLDER(permissions_are_what_the_umask_leaves),
        IN_FOLDER(what_a_killed_writer_left_is_replaced_with_its_permissions),
        IN_FOLDER(a_second_writer_is_refused_until_the_first_is_done),
        IN_FOLDER(a_link_stays_and_its_target_is_replaced),
        IN_FOLDER(links_in_a_circle_are_refused),
        IN_FOLDER(a_link_where_the_partial_file_goes_is_not_followed),
        IN_FOLDER(what_is_no_regular_file_is_refused),
        IN_FOLDER(a_folder_that_cannot_be_written_is_refused),
        IN_FOLDER(a_name_without_a_folder_is_one_in_the_current_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
