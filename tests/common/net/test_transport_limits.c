/* If there are too few descriptors or threads, or too little address space, the error has a clear message,
 * and nothing crashes. Each test runs in a separate process. */
#include "tests/common/net/net_test.h"

#include "common/net/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static status use_transport(void)
{
    transport_options options = transport_defaults(0, 2, 1, 1000);
    transport *t;
    int link;
    char url[128];
    net_url("ipc", url, sizeof url);
    TRY(transport_open(&transport_zmq, &options, &t));
    status result = transport_listen(t, url, NULL, 0);
    if (result == STATUS_OK) result = transport_connect(t, 0, url, &link);
    transport_message m;
    for (int i = 0; i < 5 && result == STATUS_OK; i++) {
        result = transport_receive(t, &m);
        if (result == STATUS_AGAIN) result = transport_wait(t, clock_now_ns() + NS_PER_MS);
    }
    transport_close(&t, NS_PER_MS);
    return result;
}

static status use_rendezvous(void)
{
    char url[128];
    net_url("ipc", url, sizeof url);
    const rendezvous_options options = {
        .url = url, .world = 1, .key = TEST_KEY, .program = "", .connect_limit_ns = TEST_LIMIT_NS};
    rendezvous *r = NULL;
    status result = rendezvous_open(&options, &r);
    rendezvous_close(&r);
    return result;
}

/* Runs `use` in a process under a limit. Returns the wait status of the process; its exit code is the status
 * of `use`. */
static int run_limited(status (*use)(void), int resource, rlim_t limit)
{
    pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit both = {limit, limit};
        if (resource == RLIMIT_NPROC && geteuid() == 0 && setresuid(12345, 12345, 12345) != 0)
            _exit(STATUS_SYSTEM);
        setrlimit((__rlimit_resource_t)resource, &both);
        status result = use();
        bool named = result != STATUS_SYSTEM || strstr(error_message(), "descriptor") ||
                     strstr(error_message(), "ZeroMQ") || strstr(error_message(), "threads");
        if (!named) fprintf(stderr, "%s\n", error_message());
        _exit(named ? result : STATUS_MISMATCH);
    }
    int state;
    waitpid(pid, &state, 0);
    return state;
}

static void too_few_descriptors_are_named_and_nothing_crashes(void **state)
{
    (void)state;
    static status (*const uses[])(void) = {use_transport, use_rendezvous};
    for (int u = 0; u < 2; u++) {
        int ok = 0;
        for (rlim_t limit = 4; limit <= 64; limit += limit < 40 ? 1 : 8) {
            int result = run_limited(uses[u], RLIMIT_NOFILE, limit);
            if (!WIFEXITED(result))
                fail_msg("use %d with %d descriptors: signal %d", u, (int)limit, WTERMSIG(result));
            int code = WEXITSTATUS(result);
            if (code != STATUS_OK && code != STATUS_SYSTEM)
                fail_msg("use %d with %d descriptors: status %d", u, (int)limit, code);
            ok += code == STATUS_OK;
        }
        assert_true(ok > 0);
    }
}

static void too_few_threads_are_named_and_nothing_crashes(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__) /* the thread sanitizer runs an additional thread */
    skip();
#endif
    /* The limit counts all processes of a user, so the test needs a user that has no processes. */
    if (geteuid() != 0) skip();
    for (rlim_t limit = 1; limit <= 6; limit++) {
        int result = run_limited(use_transport, RLIMIT_NPROC, limit);
        if (!WIFEXITED(result)) fail_msg("%d threads: signal %d", (int)limit, WTERMSIG(result));
        int expected = limit < 3 ? STATUS_SYSTEM : STATUS_OK;
        if (WEXITSTATUS(result) != expected)
            fail_msg("%d threads: found %d, expected %d", (int)limit, WEXITSTATUS(result), expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_few_descriptors_are_named_and_nothing_crashes),
        cmocka_unit_test(too_few_threads_are_named_and_nothing_crashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
