#include "tests/common/net/net_test.h"

#include "harness/launch/environment.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const names[] = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "HARNESS_PROCESSORS",
    "HARNESS_JOB",
    "HARNESS_TOKEN",
    "HARNESS_RENDEZVOUS",
    "HARNESS_STATUS_FD",
    "HARNESS_NOTIFY_FD",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_JOB_ID",
    "TORCHELASTIC_RUN_ID",
    "PMIX_NAMESPACE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_STEP_NUM_NODES",
    "HARNESS_KEY",
    "HARNESS_KEY_FILE",
};

static int forget_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
    error_clear();
    return 0;
}

/* Sets the variables of a text like "A=1 B=2". */
static void set_all(const char *text)
{
    char copy[512], *save = NULL;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(word, '=');
        *equals = '\0';
        setenv(word, equals + 1, 1);
    }
}

static void a_process_started_by_hand_knows_nothing(void **state)
{
    (void)state;
    launch_environment e;
    /* Variables of another launcher. The process was not asked to read them. */
    set_all("RANK=3 WORLD_SIZE=4 LOCAL_RANK=0");
    assert_ok(launch_environment_open(false, &e));
    assert_int_equal(e.origin, LAUNCH_BY_HAND);
    assert_int_equal(e.world, 1);
    assert_int_equal(e.rank, 0);
    assert_null(e.table);
    launch_environment_close(&e);
}

static void what_torchrun_mpirun_and_srun_set_is_understood(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=a MASTER_ADDR=h "
        "MASTER_PORT=5",
        ("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "
         "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=a "
         "MASTER_ADDR=h MASTER_PORT=5"),
        "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_JOB_ID=a MASTER_ADDR=h MASTER_PORT=5",
    };
    uint64_t token = 0;
    for (int c = 0; c < 3; c++) {
        launch_environment e;
        forget_all(NULL);
        set_all(cases[c]);
        assert_ok(launch_environment_open(true, &e));
        assert_int_equal(e.origin, LAUNCH_BY_MANAGER);
        assert_int_equal(e.rank, 3);
        assert_int_equal(e.world, 4);
        assert_int_equal(e.local_rank, 1);
        /* The number is unknown, so all ranks may be on this host. */
        assert_int_equal(e.local_world, c < 2 ? 2 : 4);
        assert_int_equal(e.processors, 0);
        assert_string_equal(e.rendezvous, "env://");
        rank_status s;
        status_table_read(e.table, 3, &s);
        assert_int_equal(s.pid, getpid());
        assert_ptr_equal(e.slot, status_table_slot(e.table, 3));
        if (c == 0) token = e.token;
        /* All ranks compute the same token from the same names. */
        assert_true(e.token == token && token != 0);
        launch_environment_close(&e);
        launch_environment other;
        setenv("MASTER_PORT", "6", 1);
        assert_ok(launch_environment_open(true, &other));
        assert_true(other.token != token);
        launch_environment_close(&other);
    }
}

static void only_a_starter_of_several_tasks_counts(void **state)
{
    (void)state;
    static const struct {
        const char *variables;
        bool started;
    } cases[] = {
        {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 TORCHELASTIC_RUN_ID=a", true},
        {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 TORCHELASTIC_RUN_ID=a", false},
        {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1", false}, /* a user's variables */
        {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 PMIX_NAMESPACE=a", true},
        {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_NAMESPACE=a", false},
        {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=7", true},
        {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_JOB_ID=7", false},
        {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_ID=7", false}, /* the script of a batch job */
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        forget_all(NULL);
        set_all(cases[c].variables);
        assert_int_equal(launch_environment_is_started(), cases[c].started);
    }
}

static void the_first_host_of_a_step_of_slurm_is_the_address(void **state)
{
    (void)state;
    static const struct {
        const char *list, *host;
    } cases[] = {
        {"node1", "node1"},
        {"node[01-04,7],gpu1", "node01"},
        {"node[7,1-4]", "node7"},
        {"login,node[1-4]", "login"},
        {"rack[3-5]node[12-14]-ib,x", "rack3node12-ib"},
        {"node[1", "node1"}, /* cut off */
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        launch_environment e;
        forget_all(NULL);
        set_all("SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_JOB_ID=40017 "
                "SLURM_STEP_NUM_NODES=2 SLURM_JOB_NODELIST=others");
        setenv("SLURM_STEP_NODELIST", cases[c].list, 1);
        assert_ok(launch_environment_open(true, &e));
        assert_string_equal(getenv("MASTER_ADDR"), cases[c].host);
        assert_string_equal(getenv("MASTER_PORT"), "10017");
        assert_true(e.several_hosts);
        launch_environment_close(&e);
    }
    launch_environment e;
    setenv("MASTER_ADDR", "mine", 1);
    unsetenv("MASTER_PORT");
    assert_ok(launch_environment_open(true, &e));
    assert_string_equal(getenv("MASTER_ADDR"), "mine");
    assert_string_equal(getenv("MASTER_PORT"), "10017");
    launch_environment_close(&e);
}

static void ranks_are_on_several_hosts_if_not_all_are_here(void **state)
{
    (void)state;
    launch_environment e;
    set_all("RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2");
    assert_ok(launch_environment_open(true, &e));
    assert_true(e.several_hosts);
    launch_environment_close(&e);
    set_all("LOCAL_WORLD_SIZE=4");
    assert_ok(launch_environment_open(true, &e));
    assert_false(e.several_hosts);
    launch_environment_close(&e);
}

static void a_key_is_read_from_a_file_of_its_user(void **state)
{
    (void)state;
    static const char key[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    char path[] = "key-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    setenv("HARNESS_KEY_FILE", path, 1);
    assert_fails(launch_environment_read_key_file(), STATUS_CONFIG,
                 "HARNESS_KEY_FILE: expected 64 hexadecimal digits: openssl rand -hex 32 >key-");
    assert_int_equal(dprintf(fd, "%s\n", key), 65);
    assert_int_equal(fchmod(fd, 0640), 0);
    assert_fails(
        launch_environment_read_key_file(), STATUS_PERMISSION,
        "HARNESS_KEY_FILE: expected a file that only its user can read, got mode 0640: chmod 600 key-");
    assert_null(getenv("HARNESS_KEY"));
    assert_int_equal(fchmod(fd, 0600), 0);
    assert_ok(launch_environment_read_key_file());
    assert_string_equal(getenv("HARNESS_KEY"), key);
    unlink(path);
    assert_ok(launch_environment_read_key_file()); /* the variable comes first */
    unsetenv("HARNESS_KEY");
    assert_fails(launch_environment_read_key_file(), STATUS_CONFIG, "HARNESS_KEY_FILE: key-");
    close(fd);
}

typedef struct refusal {
    const char *variables, *text;
} refusal;

static void expect_refusals(const refusal *cases, size_t count)
{
    for (size_t c = 0; c < count; c++) {
        launch_environment e;
        forget_all(NULL);
        set_all(cases[c].variables);
        assert_fails(launch_environment_open(true, &e), STATUS_CONFIG, cases[c].text);
        launch_environment_close(&e);
    }
}

static void what_is_missing_or_malformed_is_named(void **state)
{
    (void)state;
    static const refusal cases[] = {
        {"", "expected RANK, or the variables of mpirun or srun"},
        {"RANK=0 LOCAL_RANK=0", "WORLD_SIZE is not set"},
        {"RANK=0 WORLD_SIZE=2", "LOCAL_RANK is not set"},
        {"RANK=2 WORLD_SIZE=2 LOCAL_RANK=0", "RANK: expected an integer from 0 to 1, got '2'"},
        {"RANK=x WORLD_SIZE=2 LOCAL_RANK=0", "RANK: expected an integer from 0 to 1, got 'x'"},
        {"RANK=0 WORLD_SIZE=0 LOCAL_RANK=0", "WORLD_SIZE: expected an integer from 1 to 1024, got '0'"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=0",
         "LOCAL_WORLD_SIZE: expected an integer from 1 to 1024, got '0'"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 HARNESS_TOKEN=12",
         "HARNESS_TOKEN: expected 16 hexadecimal digits"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 HARNESS_TOKEN=0000000000000001", "HARNESS_STATUS_FD is not set"},
    };
    expect_refusals(cases, sizeof cases / sizeof cases[0]);
}

static void a_job_too_large_is_refused_before_memory_is_taken_for_it(void **state)
{
    (void)state;
    static const refusal cases[] = {
        {"RANK=0 WORLD_SIZE=1000000000 LOCAL_RANK=0",
         "WORLD_SIZE: expected an integer from 1 to 1024, got '1000000000'"},
        {"RANK=0 WORLD_SIZE=1025 LOCAL_RANK=0", "WORLD_SIZE: expected an integer from 1 to 1024, got '1025'"},
        {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2147483647 OMPI_COMM_WORLD_LOCAL_RANK=0",
         "OMPI_COMM_WORLD_SIZE: expected an integer from 1 to 1024, got '2147483647'"},
        {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=99999999999999999999 SLURM_LOCALID=0",
         "SLURM_STEP_NUM_TASKS: expected an integer from 1 to 1024, got '99999999999999999999'"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=2", "LOCAL_RANK: expected an integer from 0 to 1, got '2'"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2000000000",
         "LOCAL_WORLD_SIZE: expected an integer from 1 to 1024, got '2000000000'"},
        {"RANK=0 WORLD_SIZE=1000000000 LOCAL_RANK=0 HARNESS_TOKEN=0000000000000001",
         "WORLD_SIZE: expected an integer from 1 to 2048, got '1000000000'"},
    };
    struct rlimit limit, small; /* Shared memory belongs to a file, so ulimit -v does not limit it. */
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = (struct rlimit){.rlim_cur = 16 << 20, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    expect_refusals(cases, sizeof cases / sizeof cases[0]);
    status_table *b = NULL;
    assert_fails(status_table_create(1, JOB_MOST_MEMBERS + 1, &b), STATUS_CONFIG,
                 "table: expected 1 to 2048 members, got 2049");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void what_the_launcher_hands_down_is_taken_once(void **state)
{
    (void)state;
    status_table *b;
    char text[512];
    assert_ok(status_table_create(0x12, 2, &b));
    int memory_fd = dup(status_table_memory_fd(b)), notify_fd = dup(status_table_notify_fd(b));
    snprintf(text, sizeof text,
             "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 HARNESS_JOB=ring HARNESS_TOKEN=0000000000000012 "
             "HARNESS_RENDEZVOUS=ipc://@x HARNESS_STATUS_FD=%d HARNESS_NOTIFY_FD=%d HARNESS_PROCESSORS=6",
             memory_fd, notify_fd);
    set_all(text);
    launch_environment e;
    assert_true(launch_environment_is_rank());
    assert_ok(launch_environment_open(false, &e));
    assert_int_equal(e.origin, LAUNCH_BY_HARNESS);
    assert_string_equal(e.job, "ring");
    assert_string_equal(e.rendezvous, "ipc://@x");
    assert_true(e.token == 0x12);
    assert_int_equal(e.processors, 6);
    assert_null(getenv("HARNESS_PROCESSORS"));
    rank_status s;
    status_table_read(b, 1, &s);
    assert_int_equal(s.state, RANK_RUNNING);
    assert_int_equal(s.pid, getpid());
    /* A process that this process starts does not find the variables. */
    assert_false(launch_environment_is_rank());
    assert_true(fcntl(memory_fd, F_GETFD) & FD_CLOEXEC && fcntl(notify_fd, F_GETFD) & FD_CLOEXEC);
    launch_environment_close(&e);
    assert_int_equal(fcntl(memory_fd, F_GETFD), -1);
    status_table_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_process_started_by_hand_knows_nothing, forget_all),
        cmocka_unit_test_setup(what_torchrun_mpirun_and_srun_set_is_understood, forget_all),
        cmocka_unit_test_setup(only_a_starter_of_several_tasks_counts, forget_all),
        cmocka_unit_test_setup(the_first_host_of_a_step_of_slurm_is_the_address, forget_all),
        cmocka_unit_test_setup(ranks_are_on_several_hosts_if_not_all_are_here, forget_all),
        cmocka_unit_test_setup(a_key_is_read_from_a_file_of_its_user, forget_all),
        cmocka_unit_test_setup(what_is_missing_or_malformed_is_named, forget_all),
        cmocka_unit_test_setup(a_job_too_large_is_refused_before_memory_is_taken_for_it, forget_all),
        cmocka_unit_test_setup(what_the_launcher_hands_down_is_taken_once, forget_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
