/* Limits with Landlock (Linux 5.13, landlock(7)) which files a process and its children may open, so that
 * neither the compiler nor a student's constructor can read hidden tests. Landlock needs no privilege. */
#include "harness/labs/students.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { READ = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_EXECUTE };
enum { ALL_OF_ABI_1 = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1 };

static int permit(int rules, const char *path, uint64_t access)
{
    struct landlock_path_beneath_attr rule = {.allowed_access = access,
                                              .parent_fd = open(path, O_PATH | O_CLOEXEC)};
    if (rule.parent_fd < 0) return errno == ENOENT ? 0 : -1;
    int rc = (int)syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    close(rule.parent_fd);
    return rc;
}

int limit_files(const grader *g, bool write)
{
    static const char *const folders[] = {"/usr", "/bin", "/lib", "/lib64", "/proc"};
    struct landlock_ruleset_attr attributes = {.handled_access_fs = ALL_OF_ABI_1};
    char labs[PATH_MAX + 8];
    int rules = (int)syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes, 0), rc = 0;
    if (rules < 0) return -1;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) rc |= permit(rules, folders[i], READ);
    snprintf(labs, sizeof labs, "%s/labs", g->data);
    rc |= permit(rules, labs, READ);
    rc |= permit(rules, "/etc/ld.so.cache", LANDLOCK_ACCESS_FS_READ_FILE);
    rc |= permit(rules, "/dev/null", LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE);
    rc |= permit(rules, g->build, write ? ALL_OF_ABI_1 : READ);
    rc |= prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    rc |= (int)syscall(SYS_landlock_restrict_self, rules, 0);
    close(rules);
    return rc;
}
