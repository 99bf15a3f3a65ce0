/* lab_receive_push() and lab_reply() of labs 2 and 6. The gradients of each rank are in separate memory.
 * lab_reply() frees this memory, so that the sanitizer finds later reads. */
#ifndef LABS_RUNNER_SERVER_H
#define LABS_RUNNER_SERVER_H

#include "labs/lab.h"
#include "labs/runner/runner.h"

#include <stdlib.h>

enum { SERVER_MOST_RANKS = 64 };

struct lab_server {
    float *grad[SERVER_MOST_RANKS];
    void (*save)(void *state); /* answers REDUCER_SAVE */
    void *state;
};

int lab_receive_push(lab_server *server, lab_push *push)
{
    reducer_push head;
    runner_message m;
    do {
        m = runner_ask((runner_message){REDUCER_RECEIVE, 0, 0, 0}, NULL);
        if (m.kind == REDUCER_SAVE) server->save(server->state);
    } while (m.kind == REDUCER_SAVE);
    if (m.code != LAB_OK) return m.code;
    runner_read_data(&head, (int64_t)sizeof head);
    size_t bytes = (size_t)m.bytes - sizeof head;
    float *grad = runner_memory(bytes);
    runner_read_data(grad, (int64_t)bytes);
    free(server->grad[head.rank]);
    server->grad[head.rank] = grad;
    *push = (lab_push){(int)head.rank, head.step, head.samples, grad};
    return LAB_OK;
}

int lab_reply(lab_server *server, int rank, const float *param, size_t n)
{
    int code = runner_ask((runner_message){REDUCER_REPLY, 0, rank, (int64_t)(n * sizeof *param)}, param).code;
    if (code == LAB_OK) {
        free(server->grad[rank]);
        server->grad[rank] = NULL;
    }
    return code;
}

static void server_close(lab_server *server)
{
    for (int r = 0; r < SERVER_MOST_RANKS; r++) free(server->grad[r]);
}

#endif
