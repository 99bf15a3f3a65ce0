/* Tests that a fault of a worker or of the remote stage soon ends the job on all other members, with a line
 * that names the cause. The faults are those of tests/ps/test_faults.c. Members are processes, and the last
 * one is the remote stage. */
#include "common/base/clock.h"
#include "common/nn/stages.h"
#include "common/pipeline/remote.h"
#include "models/models.h"
#include "tests/common/net/transport_fault.h"
#include "tests/ps/processes.h"
#include "tests/support/check.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 6, MICRO_BATCHES = 2, FAULTY_STEP = 2, BATCH = 3, NOBODY = -1 };

typedef struct fault_case {
    const char *name;
    int workers;
    bool tcp;
    process_act act;
    /* Member that has the fault. The member with the number `workers` is the remote stage. */
    int member;
    transport_fault_kind fault; /* Fault of a message that this member sends. */
    int64_t stall_timeout_ns;
    status code; /* Status with which the other members must end. */
    /* Text that the message of every other member contains. After a wrong message one member with this text
     * is enough, since the link may have become unusable. */
    const char *text;
} fault_case;

static const fault_case cases[] = {
    {"nothing", 3, .member = NOBODY, .text = ""},
    {"nothing, tcp", 2, true, .member = NOBODY, .text = ""},
    {"a late worker", 3, false, ACT_LATE, 1, .text = ""},
    {"a late remote stage", 2, false, ACT_LATE, 2, .text = ""},
    {"a killed worker", 3, false, ACT_DIE, 2, .code = STATUS_PEER, .text = "rank 2 is lost"},
    {"a killed worker, tcp", 3, true, ACT_DIE, 1, .code = STATUS_PEER, .text = "rank 1 is lost"},
    {"a killed remote stage", 2, false, ACT_DIE, 2, .code = STATUS_PEER,
     .text = "remote stage: rank 2 is lost"},
    {"a killed remote stage, tcp", 1, true, ACT_DIE, 1, .code = STATUS_PEER,
     .text = "remote stage: rank 1 is lost"},
    {"a frozen worker", 2, false, ACT_FREEZE, 1, .stall_timeout_ns = 8 * NS_PER_S, .code = STATUS_PEER,
     .text = "rank 1 has sent nothing for 8 s"},
    {"a frozen remote stage", 2, false, ACT_FREEZE, 2, .stall_timeout_ns = 8 * NS_PER_S, .code = STATUS_PEER,
     .text = "remote stage: nothing received for 4 s"},
    {"a worker that leaves", 3, false, ACT_LEAVE, 1, .code = STATUS_PEER,
     .text = "rank 1 has left: others are at step 2"},
    {"a wrong address", 1, false, ACT_MISLEAD, 1, .stall_timeout_ns = 8 * NS_PER_S, .code = STATUS_PEER,
     .text = "remote stage: nothing received for 4 s"},
    {"another configuration", 2, false, ACT_DIFFER, 1, .code = STATUS_PROTOCOL, .text = "rank 1: expected"},
    {"a message of a worker dropped", 2, false, .member = 1, .fault = TRANSPORT_DROP, .code = STATUS_PEER,
     .text = "from rank 1 is missing"},
    {"a message of the remote stage dropped", 1, false, .member = 1, .fault = TRANSPORT_DROP,
     .code = STATUS_PEER, .text = "from rank 1 is missing"},
    {"a bit of a worker flipped", 2, false, .member = 1, .fault = TRANSPORT_FLIP, .code = STATUS_IO,
     .text = "damaged on the way"},
    {"a bit of the remote stage flipped", 1, false, .member = 1, .fault = TRANSPORT_FLIP, .code = STATUS_IO,
     .text = "damaged on the way"},
    {"a message of a worker doubled", 2, false, .member = 1, .fault = TRANSPORT_DOUBLE, .text = ""},
    {"a message of the remote stage doubled", 2, false, .member = 2, .fault = TRANSPORT_DOUBLE, .text = ""},
};

typedef struct fault_job {
    const fault_case *c;
    nn_model *model, *stage;
    uint64_t token;
} fault_job;

/* Objects that a member opens. */
typedef struct member {
    device *device;
    device_stream *stream;
    anatomy *anatomy;
    ledger ledger;
    remote_server *server;
    remote_stage *remote;
    float *values; /* Memory for the values of the largest message. */
} member;

static remote_config config_of(const fault_job *f, int worker, int64_t batch)
{
    const fault_case *c = f->c;
    return (remote_config){.worker = worker,
                           .workers = c->workers,
                           .token = f->token,
                           .frame_bytes = remote_frame_bytes(f->stage, batch, DTYPE_F32),
                           .stall_timeout_ns = c->stall_timeout_ns ? c->stall_timeout_ns : 60 * NS_PER_S};
}

static bool is_mine(const fault_case *c, int number, process_act act)
{
    return number == c->member && c->act == act;
}

/* Exchanges addresses. All members send one, but only the address of the remote stage is used. */
static status exchange(processes *all, int number, const fault_case *c, const char *own, char *url)
{
    sync_blob handshakes[PROCESSES_MAX];
    TRY(processes_exchange(all, number, (sync_blob){(void *)own, strlen(own) + 1}, handshakes));
    snprintf(url, REMOTE_URL_MAX, "%s", (const char *)handshakes[c->workers].data);
    return STATUS_OK;
}

static status serve(fault_job *f, processes *all, member *m)
{
    const fault_case *c = f->c;
    char url[64], bound[REMOTE_URL_MAX], unused[REMOTE_URL_MAX];
    optimizer_options sgd = optimizer_defaults(OPTIMIZER_SGD);
    remote_server_config config = {.remote = config_of(f, c->workers, BATCH),
                                   .device = m->device,
                                   .stream = m->stream,
                                   .model = f->stage,
                                   .batch = BATCH,
                                   .micro_batches = MICRO_BATCHES,
                                   .optimizer = &sgd,
                                   .seed = 1,
                                   .ledger = &m->ledger};
    snprintf(url, sizeof url, c->tcp ? "tcp://127.0.0.1:*" : "ipc://@psring-test-%016llx",
             (unsigned long long)f->token);
    TRY(remote_server_open(&config, &m->server));
    if (c->member == c->workers && c->fault)
        transport_inject(remote_server_transport(m->server), c->fault, 2);
    TRY(remote_server_listen(m->server, url, bound));
    if (is_mine(c, c->workers, ACT_MISLEAD)) memcpy(strstr(bound, "psring"), "nobody", 6);
    TRY(exchange(all, c->workers, c, bound, unused));
    if (is_mine(c, c->workers, ACT_LATE)) clock_sleep_ns(NS_PER_S / 2);
    return remote_server_run(m->server);
}

static void act_in_step(const fault_case *c, processes *all, int number, int64_t step)
{
    int signal = c->act == ACT_DIE ? SIGKILL : c->act == ACT_FREEZE ? SIGSTOP : 0;
    if (step != FAULTY_STEP || !signal) return;
    if (number == c->member) raise(signal);
    if (c->member == c->workers && number == 0) kill(all->pids[c->member], signal); /* the remote stage */
}

static status run_steps(fault_job *f, processes *all, int number, member *m)
{
    const fault_case *c = f->c;
    /* One member has a different configuration. */
    int64_t batch = is_mine(c, number, ACT_DIFFER) ? BATCH + 1 : BATCH;
    remote_tensor in = {m->values, batch * shape_elements(f->stage->layers[0].sample), DTYPE_F32};
    remote_tensor out = {m->values, batch * f->stage->rows_per_sample * f->stage->classes, DTYPE_F32};
    for (int64_t step = 0; step < STEPS; step++)
        for (int64_t micro = 0; micro < MICRO_BATCHES; micro++) {
            if (step == FAULTY_STEP && is_mine(c, number, ACT_LEAVE)) return STATUS_OK;
            TRY(remote_stage_forward(m->remote, step, micro, in, out, m->anatomy));
            act_in_step(c, all, number, step);
            TRY(remote_stage_backward(m->remote, step, micro, 0.01, out, in, m->anatomy));
        }
    return STATUS_OK;
}

static status work(fault_job *f, processes *all, int number, member *m)
{
    const fault_case *c = f->c;
    char url[REMOTE_URL_MAX];
    int64_t batch = is_mine(c, number, ACT_DIFFER) ? BATCH + 1 : BATCH;
    remote_config config = config_of(f, number, batch);
    m->values = calloc(1, (size_t)config.frame_bytes);
    if (!m->values) return fail(STATUS_SYSTEM, "no memory for a message");
    TRY(anatomy_open(m->stream, NULL, 1, MICRO_BATCHES * STEPS, c->workers + 1, &m->anatomy));
    TRY(exchange(all, number, c, "none", url));
    if (is_mine(c, number, ACT_LATE)) clock_sleep_ns(NS_PER_S / 2);
    TRY(remote_stage_open(&config, url, &m->remote));
    if (c->member == number && c->fault) transport_inject(remote_stage_transport(m->remote), c->fault, 2);
    return run_steps(f, all, number, m);
}

static status run_member(processes *all, int number, void *context)
{
    fault_job *f = context;
    member m = {0};
    device_config device = {.name = "cpu", .rank = number, .world = f->c->workers + 1, .threads = 1};
    status rc = device_open(&device, &m.device);
    if (rc == STATUS_OK) rc = device_stream_open(m.device, DEVICE_STREAM_COMPUTE, &m.stream);
    if (rc == STATUS_OK) rc = number == f->c->workers ? serve(f, all, &m) : work(f, all, number, &m);
    remote_stage_close(&m.remote);
    remote_server_close(&m.server);
    if (m.anatomy) anatomy_close(&m.anatomy);
    device_stream_close(&m.stream);
    device_close(&m.device);
    free(m.values);
    return rc;
}

/* Checks that the other members ended as the case expects. */
static void check(const fault_case *c, const processes *all)
{
    int named = 0;
    for (int m = 0; m < all->count; m++) {
        const process_outcome *o = &all->members[m];
        bool strikes = c->act == ACT_DIE || c->act == ACT_FREEZE || c->act == ACT_LEAVE;
        if (m == c->member && strikes) continue;
        /* No member connects to the remote stage, so it has no error to check. */
        if (c->act == ACT_MISLEAD && m == c->workers) continue;
        if (o->code == STATUS_COUNT)
            fail_msg("%s: member %d did not end by itself (wait status %d)", c->name, m, o->wait_status);
        bool says = o->code == c->code && strstr(o->message, c->text);
        named += says;
        bool may_lose = c->code != STATUS_OK && (c->fault || c->act == ACT_DIFFER);
        if (says || (may_lose && o->code == STATUS_PEER)) continue;
        fail_msg("%s: member %d: found %s '%s', expected %s '%s'", c->name, m, status_name(o->code),
                 o->message, status_name(c->code), c->text);
    }
    if (named == 0) fail_msg("%s: no member says %s '%s'", c->name, status_name(c->code), c->text);
}

static void failures_end_the_job_on_all_members_and_are_named(void **state)
{
    (void)state;
    const char *only = getenv("FAULT_CASE");
    model_options lenet = {.name = "lenet"};
    fault_job f = {0};
    nn_cut cut;
    assert_ok(model_build(&lenet, &f.model));
    assert_ok(nn_cut_model(f.model, 2, &cut));
    assert_ok(nn_stage_model(f.model, &cut, 1, &f.stage));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const fault_case *c = &cases[i];
        if (only && strcmp(only, c->name) != 0) continue;
        f.c = c;
        f.token = (uint64_t)getpid() << 16 | i;
        int64_t begin = clock_now_ns();
        processes *all = processes_run(c->workers + 1, run_member, &f, 120);
        assert_non_null(all);
        print_message("# %s: %.2f s\n", c->name, (double)(clock_now_ns() - begin) / 1e9);
        check(c, all);
        processes_free(all);
    }
    nn_model_free(&f.stage);
    nn_model_free(&f.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failures_end_the_job_on_all_members_and_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
