/* Lab 2: student_serve() between drawn arrivals. A rank's gradients are in memory of their own, which the
 * reply frees, so that the sanitizer finds what is read later. */
#include "labs/runner/reducer.h"

#include "labs/lab.h"

#include <stdlib.h>

struct lab_server {
    int ranks;
    float *grad[64];
};

int lab_receive_push(lab_server *server, lab_push *push)
{
    reducer_push head;
    runner_write((runner_message){REDUCER_RECEIVE, 0, 0, 0}, NULL);
    runner_message m = runner_read();
    if (m.code != LAB_OK) return m.code;
    runner_read_data(&head, (int64_t)sizeof head);
    size_t bytes = (size_t)m.bytes - sizeof head;
    float *grad = malloc(bytes ? bytes : 1);
    if (!grad) abort();
    runner_read_data(grad, (int64_t)bytes);
    free(server->grad[head.rank]);
    server->grad[head.rank] = grad;
    *push = (lab_push){(int)head.rank, head.step, head.samples, grad};
    return LAB_OK;
}

int lab_reply(lab_server *server, int rank, const float *param, size_t n)
{
    runner_write((runner_message){REDUCER_REPLY, 0, rank, (int64_t)(n * sizeof *param)}, param);
    int code = runner_read().code;
    if (code == LAB_OK) {
        free(server->grad[rank]);
        server->grad[rank] = NULL;
    }
    return code;
}

void runner_run(char **words, void (*set_up)(void))
{
    (void)words;
    set_up();
    for (;;) {
        runner_message m = runner_read();
        reducer_case c;
        runner_read_data(&c, (int64_t)sizeof c);
        size_t bytes = (size_t)m.bytes - sizeof c;
        float *param = malloc(bytes ? bytes : 1);
        lab_server server = {.ranks = (int)c.ranks};
        if (!param) abort();
        runner_read_data(param, (int64_t)bytes);
        int code = student_serve(&server, (int)c.ranks, param, (size_t)c.n, (float)c.lr);
        runner_write((runner_message){RUNNER_RESULT, code, 0, (int64_t)bytes}, param);
        for (int r = 0; r < server.ranks; r++) free(server.grad[r]);
        free(param);
    }
}
