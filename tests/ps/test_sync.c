/* Checks that every configuration of policy sync gives results that are bit-identical to plain loops. */
#include "tests/ps/job.h"
#include "tests/support/check.h"

enum { STEPS = 4 };

typedef struct sync_case {
    const char *name;
    job_config config;
} sync_case;

#define MOMENTUM                                                                                             \
    {                                                                                                        \
        .kind = OPTIMIZER_SGD, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01                              \
    }
#define ADAM                                                                                                 \
    {                                                                                                        \
        .kind = OPTIMIZER_ADAM, .lr = 0.001, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8                       \
    }
#define CLIPPED                                                                                              \
    {                                                                                                        \
        .kind = OPTIMIZER_SGD, .lr = 0.1, .momentum = 0.9, .clip_norm = 3                                    \
    }

static const sync_case cases[] = {
    {"one rank", {.world = 1}},
    {"two ranks", {.world = 2, .optimizer = MOMENTUM}},
    {"three ranks", {.world = 3, .optimizer = MOMENTUM}},
    {"three ranks, divided before the sum", {.world = 3, .divide = SHARED_DIVIDE_BEFORE}},
    {"three ranks, Adam", {.world = 3, .optimizer = ADAM}},
    {"five ranks, in float32", {.world = 5, .device = "cpu", .optimizer = MOMENTUM}},
    {"five ranks, in float32, divided before", {.world = 5, .device = "cpu", .divide = SHARED_DIVIDE_BEFORE}},
    {"eight ranks", {.world = 8, .optimizer = MOMENTUM}},
    {"eight ranks, eight servers", {.world = 8, .options = "--servers 8", .optimizer = MOMENTUM}},
    {"three ranks, two servers", {.world = 3, .options = "--servers 2", .optimizer = ADAM}},
    {"four ranks, three servers, odd partitions",
     {.world = 4, .options = "--servers 3 --partition-bytes 1000", .optimizer = MOMENTUM}},
    {"an element a key", {.world = 2, .options = "--partition-bytes 8 --servers 2", .optimizer = MOMENTUM}},
    {"first in, first out",
     {.world = 3, .options = "--priority fifo --partition-bytes 512", .optimizer = MOMENTUM}},
    {"little credit",
     {.world = 2, .processes = true, .options = "--payload zmq --credit-bytes 1 --partition-bytes 512"}},
    {"a server with three threads", {.world = 3, .options = "--server-threads 3", .optimizer = MOMENTUM}},
    {"shared memory among threads",
     {.world = 3, .options = "--payload shm --servers 2", .optimizer = MOMENTUM}},
    {"ipc, shared memory", {.world = 3, .processes = true, .options = "--servers 2", .optimizer = MOMENTUM}},
    {"ipc, all through ZeroMQ",
     {.world = 3, .processes = true, .options = "--payload zmq --servers 2", .optimizer = MOMENTUM}},
    {"tcp, shared memory",
     {.world = 2, .processes = true, .options = "--transport tcp", .optimizer = MOMENTUM}},
    {"tcp, all through ZeroMQ",
     {.world = 2, .processes = true, .options = "--transport tcp --payload zmq", .optimizer = ADAM}},
    {"progressed inline",
     {.world = 3, .inline_progress = true, .options = "--servers 3", .optimizer = MOMENTUM}},
    {"clipped", {.world = 3, .optimizer = CLIPPED}},
    {"ranks update", {.world = 3, .options = "--server-optimizer off", .optimizer = MOMENTUM}},
    {"ranks update, three servers, shared memory",
     {.world = 3, .processes = true, .options = "--server-optimizer off --servers 3", .optimizer = ADAM}},
    {"ranks update, ZeroMQ",
     {.world = 2,
      .processes = true,
      .options = "--server-optimizer off --payload zmq",
      .optimizer = MOMENTUM}},
    {"a server of its own", {.world = 3, .options = "--server-placement own", .optimizer = MOMENTUM}},
    {"more servers than ranks",
     {.world = 2, .options = "--server-placement own --servers 5", .optimizer = ADAM}},
    {"servers of their own, shared memory",
     {.world = 3, .processes = true, .options = "--server-placement own --servers 2", .optimizer = MOMENTUM}},
    {"servers of their own, tcp",
     {.world = 2,
      .processes = true,
      .options = "--server-placement own --servers 3 --transport tcp --payload zmq",
      .optimizer = CLIPPED,
      .scale = 1}}, /* makes sums exact, since the norms of servers are added one after another */
    {"servers of their own that only sum",
     {.world = 2,
      .processes = true,
      .options = "--server-placement own --servers 2 --server-optimizer off",
      .optimizer = MOMENTUM}},
    {"ranks update, clipped",
     {.world = 3, .options = "--server-optimizer off --servers 2", .optimizer = CLIPPED}},
};

static status train(local_ranks *group, job_rank *r)
{
    (void)group;
    job_reference expected;
    job_reference_open(r->job, &expected);
    status rc = STATUS_OK;
    for (int64_t step = 0; step < STEPS && rc == STATUS_OK; step++) {
        rc = job_step(r);
        job_reference_step(r->job, &expected, step);
        if (rc == STATUS_OK && step % 2 == 1) {
            rc = sync_ps.flush(r->engine);
            if (rc == STATUS_OK) job_expect_params(r, expected.params);
            if (rc == STATUS_OK) job_expect_buffers(r, 0, step);
        }
    }
    job_reference_close(&expected);
    return rc;
}

static void parameters_are_those_of_plain_loops(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        job j;
        job_config config = cases[i].config;
        /* The factor 0.3 makes sums round, so that a wrong order changes the result. */
        if (config.scale == 0) config.scale = 0.3;
        job_open(&config, &j);
        status rc = job_run(&j, train);
        if (rc != STATUS_OK) fail_msg("%s: %s: %s", cases[i].name, status_name(rc), error_message());
        job_close(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_those_of_plain_loops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
