/* What ranks say to each other, written down as they say it: calls of collectives, and messages. The program
 * is linked with --wrap for the functions that are listened to. */
#ifndef TESTS_HARNESS_SIM_RECORDER_H
#define TESTS_HARNESS_SIM_RECORDER_H

#include <stdint.h>

typedef enum recorded_kind { RECORDED_CALL, RECORDED_MESSAGE } recorded_kind;

typedef struct recorded {
    recorded_kind kind;
    int rank, peer;      /* who, to whom; of a call: -1 */
    int server;          /* the message is a server's */
    int what;            /* collective_kind or message_kind */
    int64_t step_or_tag; /* header.step, or the call's tag */
    int64_t key_or_root;
    int64_t bytes;
} recorded;

enum { RECORDER_MOST = 1 << 16 };

void recorder_start(void);
/* What was recorded since, in order of (rank, server, peer, what) and within that as it was said. The
 * recorder's. */
const recorded *recorder_stop(int *count);

#endif
