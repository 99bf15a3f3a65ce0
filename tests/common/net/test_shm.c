#include "tests/common/net/net_test.h"

#include "common/base/random.h"
#include "common/net/key.h"
#include "common/net/shm.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOKEN = 4711, WORLD_MAX = 5, COUNT_MAX = 3 };

static void a_segment_is_zero_and_shared_by_all_who_map_it(void **state)
{
    (void)state;
    shm_segment a = {0}, b = {0};
    assert_ok(shm_create("test", 100000, &a));
    unsigned char *bytes = a.data;
    for (int i = 0; i < 100000; i++) assert_int_equal(bytes[i], 0);
    assert_ok(shm_map(dup(a.fd), 100000, "rank 1", &b));
    bytes[99999] = 7;
    assert_int_equal(((unsigned char *)b.data)[99999], 7);
    shm_close(&a);
    assert_int_equal(((unsigned char *)b.data)[99999], 7);
    shm_close(&b);
    shm_close(&b);
    assert_null(b.data);
}

static void memory_that_is_short_or_not_sealed_is_refused(void **state)
{
    (void)state;
    shm_segment a = {0}, b = {0};
    assert_ok(shm_create("test", 4096, &a));
    assert_fails(shm_map(dup(a.fd), 4097, "rank 3", &b), STATUS_PROTOCOL,
                 "rank 3: got 4096 bytes, expected 4097");
    assert_int_not_equal(ftruncate(a.fd, 100), 0);
    shm_close(&a);
    int fd = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_fails(shm_map(fd, 4096, "rank 3", &b), STATUS_PROTOCOL, "rank 3: not a sealed memfd");
    assert_null(b.data);
}

/* Runs in a separate process, since limits cannot be raised again. */
static int create_under_limit(int resource, rlim_t limit, const char *text)
{
    pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit both = {limit, limit};
        shm_segment segment = {0};
        setrlimit(resource, &both);
        status result = shm_create("ring", 64 << 20, &segment);
        _exit(result == STATUS_SYSTEM && strstr(error_message(), text) ? 0 : 1);
    }
    int state;
    waitpid(pid, &state, 0);
    return state;
}

static void the_size_needed_is_named_where_the_system_refuses_it(void **state)
{
    (void)state;
    shm_segment larger = {0};
    assert_fails(shm_create("ring", INT64_MAX, &larger), STATUS_SYSTEM,
                 "shared memory 'ring': expected at most the machine's");
    static const char needs[] = "shared memory 'ring' needs 64.0 MiB";
    assert_int_equal(create_under_limit(RLIMIT_FSIZE, 1 << 20, needs), 0);
    assert_int_equal(create_under_limit(RLIMIT_NOFILE, 3, needs), 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* these need much address space */
    assert_int_equal(create_under_limit(RLIMIT_AS, 64 << 20, "64.0 MiB cannot be mapped"), 0);
#endif
}

typedef struct exchanger {
    shm_exchange_options options;
    int64_t delay_ns;
    shm_segment own[COUNT_MAX], peers[WORLD_MAX * COUNT_MAX];
    status result;
    char message[1024];
    atomic_bool ended;
    pthread_t thread;
} exchanger;

static void *run(void *argument)
{
    exchanger *x = argument;
    shm_exchange_options *o = &x->options;
    error_clear();
    for (int i = 0; i < o->count; i++) {
        int64_t bytes = 1000 * (o->rank + 1) + i;
        if (shm_create("test", bytes, &x->own[i]) != STATUS_OK) abort();
        memset(x->own[i].data, 10 * o->rank + i + 1, (size_t)bytes);
    }
    o->own = x->own;
    clock_sleep_ns(x->delay_ns);
    x->result = shm_exchange(o, x->peers);
    strncpy(x->message, error_message(), sizeof x->message - 1);
    atomic_store(&x->ended, true);
    return NULL;
}

static exchanger exchanger_of(int rank, int world, int count)
{
    return (exchanger){.options = {.name = "test",
                                   .token = TOKEN,
                                   .rank = rank,
                                   .world = world,
                                   .count = count,
                                   .deadline_ns = clock_now_ns() + TEST_LIMIT_NS}};
}

/* Returns whether every segment of every peer has arrived with its size and content. */
static bool complete(const exchanger *x)
{
    const shm_exchange_options *o = &x->options;
    for (int r = 0; r < o->world; r++)
        for (int i = 0; i < o->count; i++) {
            const shm_segment *s = &x->peers[r * o->count + i];
            if (r == o->rank && s->data) return false;
            if (r == o->rank) continue;
            int64_t bytes = 1000 * (r + 1) + i;
            const unsigned char *data = s->data;
            if (!data || s->bytes != bytes || data[0] != 10 * r + i + 1 || data[bytes - 1] != 10 * r + i + 1)
                return false;
        }
    return true;
}

static void release(exchanger *x)
{
    for (int i = 0; i < COUNT_MAX; i++) shm_close(&x->own[i]);
    for (int i = 0; i < WORLD_MAX * COUNT_MAX; i++) shm_close(&x->peers[i]);
}

static int open_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static bool address_left_behind(void)
{
    char line[512], name[64];
    snprintf(name, sizeof name, "@psring-%016" PRIx64, net_public_number(TOKEN, "test"));
    FILE *file = fopen("/proc/net/unix", "r");
    bool found = false;
    while (file && fgets(line, sizeof line, file))
        found = found || (strstr(line, name) && strstr(line, "00010000"));
    if (file) fclose(file);
    return found;
}

static void ranks_as_threads_exchange_in_any_order_of_arrival(void **state)
{
    (void)state;
    int before = open_descriptors();
    for (int world = 1; world <= WORLD_MAX; world++)
        for (int count = 1; count <= COUNT_MAX; count += 2)
            for (int late = 0; late < world; late += 2) {
                exchanger ranks[WORLD_MAX];
                for (int r = 0; r < world; r++) {
                    ranks[r] = exchanger_of(r, world, count);
                    ranks[r].delay_ns = r == late ? 20 * NS_PER_MS : 0;
                    pthread_create(&ranks[r].thread, NULL, run, &ranks[r]);
                }
                for (int r = 0; r < world; r++) pthread_join(ranks[r].thread, NULL);
                for (int r = 0; r < world; r++) {
                    if (ranks[r].result != STATUS_OK) fail_msg("rank %d: %s", r, ranks[r].message);
                    assert_true(complete(&ranks[r]));
                    release(&ranks[r]);
                }
            }
    assert_int_equal(open_descriptors(), before);
    assert_false(address_left_behind());
}

static void ranks_as_processes_exchange(void **state)
{
    (void)state;
    for (int r = 1; r < 3; r++)
        if (fork() == 0) {
            exchanger x = exchanger_of(r, 3, 2);
            run(&x);
            _exit(x.result == STATUS_OK && complete(&x) ? 0 : 1);
        }
    exchanger x = exchanger_of(0, 3, 2);
    run(&x);
    if (x.result != STATUS_OK) fail_msg("rank 0: %s", x.message);
    assert_true(complete(&x));
    release(&x);
    for (int r = 1; r < 3; r++) {
        int result;
        wait(&result);
        assert_int_equal(result, 0);
    }
}

static void missing_ranks_are_named_at_the_deadline(void **state)
{
    (void)state;
    exchanger x = exchanger_of(1, 4, 1);
    x.options.deadline_ns = clock_now_ns() + 100 * NS_PER_MS;
    run(&x);
    assert_int_equal(x.result, STATUS_PEER);
    assert_non_null(strstr(x.message, "shared memory exchange 'test': no answer from ranks 0, 2, 3 in time"));
    release(&x);
}

static bool has_ended(void *flag)
{
    return atomic_load((atomic_bool *)flag);
}

/* The two ranks offer different numbers of segments. The rank that finds this first names the other one and
 * leaves. A stop request then ends the wait of the other rank. */
static void ranks_that_offer_different_numbers_of_segments_are_named(void **state)
{
    (void)state;
    exchanger ranks[2] = {exchanger_of(0, 2, 1), exchanger_of(1, 2, 2)};
    for (int r = 0; r < 2; r++) {
        ranks[r].options.canceled = has_ended;
        ranks[r].options.context = &ranks[1 - r].ended;
    }
    for (int r = 0; r < 2; r++) pthread_create(&ranks[r].thread, NULL, run, &ranks[r]);
    for (int r = 0; r < 2; r++) pthread_join(ranks[r].thread, NULL);
    int named = 0;
    for (int r = 0; r < 2; r++) {
        assert_int_not_equal(ranks[r].result, STATUS_OK);
        named += strstr(ranks[r].message, "segments, rank") != NULL;
        release(&ranks[r]);
    }
    assert_true(named > 0); /* The other rank may have seen only that the first one left. */
}

static bool always(void *context)
{
    (void)context;
    return true;
}

static void a_stop_request_ends_the_exchange(void **state)
{
    (void)state;
    exchanger x = exchanger_of(0, 2, 1);
    x.options.canceled = always;
    run(&x);
    assert_int_equal(x.result, STATUS_STOPPED);
    release(&x);
}

static int connect_to_rank(int rank)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char text[16];
    snprintf(text, sizeof text, "test %d", rank); /* prevents that one rank's name follows from another's */
    int used = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "psring-%016" PRIx64,
                        net_public_number(TOKEN, text));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    for (int64_t until = clock_now_ns() + TEST_LIMIT_NS; clock_now_ns() < until; clock_sleep_ns(NS_PER_MS))
        if (connect(fd, (struct sockaddr *)&address,
                    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used)) == 0)
            return fd;
    abort();
}

static void strangers_are_refused_and_the_exchange_goes_on(void **state)
{
    (void)state;
    exchanger ranks[2] = {exchanger_of(0, 2, 1), exchanger_of(1, 2, 1)};
    pthread_create(&ranks[0].thread, NULL, run, &ranks[0]);
    static const struct {
        uint32_t magic;
        int32_t rank;
        uint64_t token;
    } hellos[] = {{1, 1, TOKEN}, {0x53584731, 1, TOKEN + 1}, {0x53584731, 9, TOKEN}, {0x53584731, 0, TOKEN}};
    int fds[6];
    for (int i = 0; i < 6; i++) {
        fds[i] = connect_to_rank(0);
        unsigned char hello[24] = {0};
        uint64_t name = random_fnv1a64("test");
        if (i < 4) {
            memcpy(hello, &hellos[i], 16);
            memcpy(hello + 16, &name, 8);
        }
        /* The sixth peer sends nothing. */
        if (i < 5) send(fds[i], hello, i == 4 ? 5 : sizeof hello, MSG_NOSIGNAL);
    }
    for (int i = 0; i < 5; i++) {
        char byte;
        assert_true(recv(fds[i], &byte, 1, 0) <= 0); /* The connection is closed, and nothing was sent. */
    }
    pthread_create(&ranks[1].thread, NULL, run, &ranks[1]);
    for (int r = 0; r < 2; r++) pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < 2; r++) {
        if (ranks[r].result != STATUS_OK) fail_msg("rank %d: %s", r, ranks[r].message);
        assert_true(complete(&ranks[r]));
        release(&ranks[r]);
    }
    for (int i = 0; i < 6; i++) close(fds[i]);
}

static bool names_other_user(const exchanger *x, int peer)
{
    char text[64];
    snprintf(text, sizeof text, "rank %d is run by another user", peer);
    return x->result == STATUS_PERMISSION && strstr(x->message, text);
}

static bool has_exited(void *pid)
{
    siginfo_t end = {0};
    return waitid(P_PID, (id_t) * (pid_t *)pid, &end, WEXITED | WNOHANG | WNOWAIT) == 0 && end.si_pid != 0;
}

static bool is_closed(void *fd)
{
    struct pollfd p = {.fd = *(int *)fd};
    return poll(&p, 1, 0) > 0;
}

/* Needs the right to become another user. The rank that connects first names the other rank and leaves. A
 * stop request then ends the wait of the other rank. */
static void another_user_is_refused(void **state)
{
    (void)state;
    if (geteuid() != 0) skip();
    int ready[2], leaves[2];
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(leaves), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(leaves[1]);
        if (setresuid(65534, 65534, 65534) != 0 || write(ready[1], &byte, 1) != 1) _exit(3);
        exchanger x = exchanger_of(1, 2, 1);
        x.options.canceled = is_closed;
        x.options.context = &leaves[0];
        run(&x);
        _exit(names_other_user(&x, 0) ? 0 : x.result == STATUS_STOPPED ? 1 : 2);
    }
    close(ready[1]);
    close(leaves[0]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    exchanger x = exchanger_of(0, 2, 1);
    x.options.canceled = has_exited;
    x.options.context = &pid;
    run(&x);
    close(leaves[1]);
    int end;
    waitpid(pid, &end, 0);
    assert_true(WIFEXITED(end));
    assert_true(x.result == STATUS_PERMISSION || x.result == STATUS_STOPPED);
    assert_in_range(WEXITSTATUS(end), 0, 1); /* Neither rank got a segment. */
    assert_true(WEXITSTATUS(end) == 0 || names_other_user(&x, 1));
    release(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_segment_is_zero_and_shared_by_all_who_map_it),
        cmocka_unit_test(memory_that_is_short_or_not_sealed_is_refused),
        cmocka_unit_test(the_size_needed_is_named_where_the_system_refuses_it),
        cmocka_unit_test(ranks_as_processes_exchange),
        cmocka_unit_test(another_user_is_refused),
        cmocka_unit_test(ranks_as_threads_exchange_in_any_order_of_arrival),
        cmocka_unit_test(missing_ranks_are_named_at_the_deadline),
        cmocka_unit_test(ranks_that_offer_different_numbers_of_segments_are_named),
        cmocka_unit_test(a_stop_request_ends_the_exchange),
        cmocka_unit_test(strangers_are_refused_and_the_exchange_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
