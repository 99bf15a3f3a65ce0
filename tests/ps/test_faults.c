/* Checks that a fault of one member soon ends the job on all other members, with an error that names the
 * cause. Members are processes. */
#include "common/net/transport_impl.h"
#include "ps/engine_impl.h"
#include "ps/ps.h"
#include "tests/common/net/transport_fault.h"
#include "tests/ps/job.h"
#include "tests/ps/processes.h"
#include "tests/support/check.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { STEPS = 6, FAULTY_STEP = 2, NOBODY = -1 };

typedef struct fault_case {
    const char *name;
    job_config config;
    process_act act;
    int member;                 /* member that has the fault */
    transport_fault_kind fault; /* fault of a message that this member sends */
    bool of_server;             /* true if the server of the member sends this message */
    status code;                /* status with which the other members must end */
    const char *text;           /* text that their messages contain */
    bool all;                   /* true if all messages must contain `text`, false if one is enough */
} fault_case;

static const fault_case cases[] = {
    {"nothing", {.world = 3, .options = "--servers 2"}, .member = NOBODY, .code = STATUS_OK, .text = ""},
    {"a late rank", {.world = 3, .options = "--servers 2"}, ACT_LATE, 1, .code = STATUS_OK, .text = ""},
    {"a late server", {.world = 2}, ACT_LATE, 0, .code = STATUS_OK, .text = ""},
    {"a late server of its own",
     {.world = 2, .options = "--server-placement own --payload zmq"},
     ACT_LATE,
     2,
     .code = STATUS_OK,
     .text = ""},
    {"a killed worker", {.world = 3}, ACT_DIE, 2, .code = STATUS_PEER, .text = "rank 2 is lost", .all = true},
    {"a killed worker, ZeroMQ",
     {.world = 3, .options = "--payload zmq --transport tcp"},
     ACT_DIE,
     1,
     .code = STATUS_PEER,
     .text = "rank 1 is lost",
     .all = true},
    {"a killed worker, ssp",
     {.world = 3, .policy = "ssp"},
     ACT_DIE,
     2,
     .code = STATUS_PEER,
     .text = "rank 2 is lost",
     .all = true},
    {"a killed worker, async",
     {.world = 3, .policy = "async", .options = "--servers 2"},
     ACT_DIE,
     2,
     .code = STATUS_PEER,
     .text = "rank 2 is lost",
     .all = true},
    {"a killed rank with a server",
     {.world = 3},
     ACT_DIE,
     0,
     .code = STATUS_PEER,
     .text = "rank 0 is lost",
     .all = true},
    {"a killed rank with one of three servers",
     {.world = 3, .options = "--servers 3"},
     ACT_DIE,
     1,
     .code = STATUS_PEER,
     .text = "rank 1 is lost",
     .all = true},
    {"a killed server of its own",
     {.world = 2, .options = "--server-placement own --servers 2"},
     ACT_DIE,
     3,
     .code = STATUS_PEER,
     .text = "parameter server 1"},
    {"a frozen worker",
     {.world = 3, .stall_timeout_ns = 2 * NS_PER_S},
     ACT_FREEZE,
     1,
     .code = STATUS_PEER,
     .text = "rank 1 has not pushed",
     .all = true},
    {"a frozen server",
     {.world = 3, .stall_timeout_ns = 2 * NS_PER_S},
     ACT_FREEZE,
     0,
     .code = STATUS_PEER,
     .text = "parameter server 0 in the process of rank 0",
     .all = true},
    {"a worker that leaves",
     {.world = 3},
     ACT_LEAVE,
     1,
     .code = STATUS_PEER,
     .text = "rank 1 has left: it has not pushed",
     .all = true},
    {"a wrong address",
     {.world = 2, .stall_timeout_ns = 2 * NS_PER_S},
     ACT_MISLEAD,
     0,
     .code = STATUS_PEER,
     .text = "-0 was not reached within",
     .all = true},
    {"another configuration",
     {.world = 3},
     ACT_DIFFER,
     1,
     .code = STATUS_PROTOCOL,
     .text = "rank 1 do not fit together: found 'divide after' and 'divide other'",
     .all = true},
    {"a message of a rank dropped",
     {.world = 2, .options = "--payload zmq"},
     .member = 1,
     .fault = TRANSPORT_DROP,
     .code = STATUS_PEER,
     .text = "from rank 1 is missing"},
    {"a message of a server dropped",
     {.world = 2, .options = "--payload zmq"},
     .member = 0,
     .fault = TRANSPORT_DROP,
     .of_server = true,
     .code = STATUS_PEER,
     .text = "from rank 0 is missing"},
    {"a bit of a rank flipped",
     {.world = 2, .options = "--payload zmq"},
     .member = 1,
     .fault = TRANSPORT_FLIP,
     .code = STATUS_IO,
     .text = "damaged on the way"},
    {"a bit of a server flipped",
     {.world = 2, .options = "--payload zmq"},
     .member = 0,
     .fault = TRANSPORT_FLIP,
     .of_server = true,
     .code = STATUS_IO,
     .text = "damaged on the way"},
    {"a message doubled",
     {.world = 2, .options = "--payload zmq"},
     .member = 1,
     .fault = TRANSPORT_DOUBLE,
     .code = STATUS_OK,
     .text = ""},
};

typedef struct fault_job {
    const fault_case *c;
    job job;
    int members;
} fault_job;

typedef struct exchanging {
    fault_job *f;
    processes *all;
    int member;
    sync_blob handshakes[PROCESSES_MAX];
} exchanging;

/* Replaces `what` by `by` of the same length in a handshake. */
static void tamper(sync_blob *handshake, const char *what, const char *by)
{
    char *at = memmem(handshake->data, handshake->bytes, what, strlen(what));
    if (at) memcpy(at, by, strlen(by));
}

static status exchange(void *context, sync_blob mine, const sync_blob **handshakes)
{
    exchanging *x = context;
    if (x->member == x->f->c->member && x->f->c->act == ACT_DIFFER)
        tamper(&mine, "divide after", "divide other");
    TRY(processes_exchange(x->all, x->member, mine, x->handshakes));
    bool other = x->member != x->f->c->member;
    if (other && x->f->c->act == ACT_MISLEAD)
        tamper(&x->handshakes[x->f->c->member], "ipc://@psring", "ipc://@nobody");
    *handshakes = x->handshakes;
    return STATUS_OK;
}

static void do_act(const fault_case *c)
{
    if (c->act == ACT_DIE) raise(SIGKILL);
    if (c->act == ACT_FREEZE) raise(SIGSTOP);
}

static void set_fault(const fault_case *c, job_rank *r)
{
    ps_engine *e = (ps_engine *)r->engine;
    ps_port *port = c->of_server ? &e->server->port : &e->worker->shared.port;
    transport_inject(port->transport, c->fault, 2); /* a dropped message is found when later ones arrive */
}

static status run_steps(const fault_case *c, processes *all, job_rank *r)
{
    bool mine = r->rank == c->member;
    bool endless =
        c->act == ACT_DIE && c->member >= r->job->config.world; /* steps until rank 0 kills the server */
    for (int64_t step = 0; step < STEPS || endless; step++) {
        if (mine && step == FAULTY_STEP && c->act == ACT_LEAVE) return STATUS_OK;
        sync_step s = job_begin(r);
        TRY(job_forward(r, &s));
        if (mine && step == FAULTY_STEP) do_act(c);
        if (endless && r->rank == 0 && step == FAULTY_STEP) kill(all->pids[c->member], SIGKILL);
        TRY(job_backward(r, &s));
    }
    return sync_ps.flush(r->engine);
}

static status run_member(processes *all, int member, void *context)
{
    fault_job *f = context;
    const fault_case *c = f->c;
    exchanging x = {.f = f, .all = all, .member = member};
    bool mine = member == c->member;
    if (mine && c->act == ACT_LATE) clock_sleep_ns(NS_PER_S / 2);
    if (member >= f->job.config.world) return job_serve(&f->job, member, exchange, &x);
    job_rank r;
    sync_blob own;
    const sync_blob *handshakes;
    status rc;
    TRY_GOTO(rc, job_rank_open(&f->job, member, &r), out);
    if (mine && c->fault != TRANSPORT_NO_FAULT) set_fault(c, &r);
    TRY_GOTO(rc, sync_ps.handshake(r.engine, &own), out);
    TRY_GOTO(rc, exchange(&x, own, &handshakes), out);
    TRY_GOTO(rc, sync_ps.connect(r.engine, handshakes), out);
    rc = run_steps(c, all, &r);
out:
    job_rank_close(&r);
    return rc;
}

/* Checks that the other members ended as the case expects. */
static void check(const fault_case *c, const processes *all, int world)
{
    int named = 0, others = 0;
    for (int m = 0; m < all->count; m++) {
        const process_outcome *o = &all->members[m];
        if (m == c->member && c->code != STATUS_OK) continue;
        if (m >= world && c->code != STATUS_OK) continue; /* separate servers report through the ranks */
        if (o->code == STATUS_COUNT)
            fail_msg("%s: member %d did not end by itself (wait status %d)", c->name, m, o->wait_status);
        bool says = strstr(o->message, c->text) && o->code == c->code;
        if (c->code == STATUS_OK && o->code != STATUS_OK)
            fail_msg("%s: member %d: %s", c->name, m, o->message);
        if (c->code != STATUS_OK && o->code == STATUS_OK) fail_msg("%s: member %d ended well", c->name, m);
        others++;
        named += says;
        if (c->all && !says)
            fail_msg("%s: member %d: found %s '%s', expected %s '%s'", c->name, m, status_name(o->code),
                     o->message, status_name(c->code), c->text);
    }
    if (named == 0) {
        for (int m = 0; m < all->count; m++) print_message("# member %d: %s\n", m, all->members[m].message);
        fail_msg("%s: none of %d members says %s '%s'", c->name, others, status_name(c->code), c->text);
    }
}

static void failures_end_the_job_on_all_members_and_are_named(void **state)
{
    (void)state;
    const char *only = getenv("FAULT_CASE");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const fault_case *c = &cases[i];
        if (only && strcmp(only, c->name) != 0) continue;
        fault_job f = {.c = c};
        job_config config = c->config;
        config.processes = true;
        job_open(&config, &f.job);
        int servers;
        assert_ok(ps_server_processes(&f.job.options, f.job.config.policy, f.job.config.world, &servers));
        int64_t begin = clock_now_ns();
        processes *all = processes_run(f.job.config.world + servers, run_member, &f, 120);
        assert_non_null(all);
        print_message("# %s: %.2f s\n", c->name, (double)(clock_now_ns() - begin) / 1e9);
        check(c, all, f.job.config.world);
        processes_free(all);
        job_close(&f.job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failures_end_the_job_on_all_members_and_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
