/* intruder TOKEN RANK NAME...: a stranger that connects to a job's sockets. It becomes the user nobody, and
 * connects to each abstract socket NAME as rank RANK of the job with this token would. It reports that the
 * rank has ended, and reads messages that are meant for the rank. Prints "there" after it has tried for a
 * while, then the bytes that it received. Exits with 0 if it received nothing. */
#include "common/base/clock.h"
#include "common/net/message_wire.h"
#include "common/net/zmq_socket.h"

#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <zmq.h>

enum { NOBODY = 65534, MOST_NAMES = 16, QUEUE = 64, SETTLED = 50 };

static bool become_nobody(void)
{
    return setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0;
}

static status connect_all(zsocket_context *context, uint64_t token, int rank, char *names[], int count,
                          zsocket *sockets)
{
    for (int i = 0; i < count; i++) {
        char url[160];
        const zsocket_options options = {
            .type = ZMQ_DEALER, .frame_bytes = 64 << 20, .queue = QUEUE, .token = token, .rank = rank};
        snprintf(url, sizeof url, "ipc://%s", names[i]);
        TRY(zsocket_open(context, &options, url, NULL, 0, &sockets[i]));
    }
    return STATUS_OK;
}

static int disturb(const zsocket *sockets, int count, uint64_t token, int rank)
{
    uint8_t header[MESSAGE_HEADER_BYTES];
    const message_header bye = {.kind = MESSAGE_BYE, .sender = rank, .token = token};
    size_t used = message_pack(&bye, header);
    int received = 0;
    for (int round = 0; round < 300; round++) {
        for (int i = 0; i < count; i++) {
            zmq_send(sockets[i].zmq, header, used, ZMQ_DONTWAIT);
            while (zmq_recv(sockets[i].zmq, NULL, 0, ZMQ_DONTWAIT) >= 0) received++;
        }
        clock_sleep_ns(2 * NS_PER_MS);
        if (round != SETTLED) continue;
        printf("there\n");
        fflush(stdout);
    }
    return received;
}

int main(int argc, char *argv[])
{
    zsocket sockets[MOST_NAMES] = {0};
    zsocket_context *context = NULL;
    int count = argc - 3;
    if (count < 1 || count > MOST_NAMES || !become_nobody()) return status_exit_code(STATUS_USAGE);
    uint64_t token = strtoull(argv[1], NULL, 16);
    int rank = atoi(argv[2]);
    status rc = zsocket_context_open(&context);
    if (rc == STATUS_OK) rc = connect_all(context, token, rank, argv + 3, count, sockets);
    int received = rc == STATUS_OK ? disturb(sockets, count, token, rank) : 0;
    if (rc != STATUS_OK) fprintf(stderr, "intruder: %s\n", error_message());
    printf("received %d\n", received);
    for (int i = 0; i < count; i++) zsocket_close(&sockets[i], 0);
    zsocket_context_close(&context);
    return rc != STATUS_OK ? status_exit_code(rc) : received > 0;
}
