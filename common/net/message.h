/* A message between agents consists of a header, which contains only numbers, and any number of raw tensor
 * frames.
 *
 * In a message of the parameter server, the header contains the sender, the step, the number of the parameter
 * or bucket, and a range of elements. The engine defines the meaning of the other numbers. The transport
 * fills in and checks `sender`, `sequence`, `token`, `frames` and `checksum`. */
#ifndef COMMON_NET_MESSAGE_H
#define COMMON_NET_MESSAGE_H

#include "common/base/status.h"

#include <stddef.h>
#include <stdint.h>

/* The columns are the name of the constant, and the name in error messages. */
#define MESSAGE_KIND_LIST(X)                                                                                 \
    X(NONE, "none")                                                                                          \
    X(HEARTBEAT, "heartbeat") /* has no frames, may arrive at any time, and may be ignored */                \
    X(BYE, "bye")             /* announces an orderly end of the link; sent by the transport */              \
    X(PUSH, "push")           /* sends gradients to a server */                                              \
    X(PULL, "pull")           /* requests parameters from a server */                                        \
    X(PUSH_PULL, "push_pull")                                                                                \
    X(PARAMETERS, "parameters") /* replies to a pull */                                                      \
    X(ACKNOWLEDGE, "acknowledge")                                                                            \
    X(BUFFERS, "buffers")                                                                                    \
    X(INPUTS, "inputs")                                                                                      \
    X(OUTPUTS, "outputs")                                                                                    \
    X(OUTPUT_GRADIENT, "output_gradient")                                                                    \
    X(SUM, "sum") /* contains a few numbers that will be summed over the ranks, or the sums */               \
    X(CONTROL, "control")                                                                                    \
    X(FAILED, "failed") /* says that the sender has failed; the reason is in the status table */             \
    X(INPUT_GRADIENT, "input_gradient")

#define MESSAGE_KIND_ENUM(name, text) MESSAGE_##name,
typedef enum message_kind { MESSAGE_KIND_LIST(MESSAGE_KIND_ENUM) MESSAGE_KIND_COUNT } message_kind;
#undef MESSAGE_KIND_ENUM

const char *message_kind_name(message_kind kind);

enum { MESSAGE_FRAMES_MAX = 1024 };

typedef struct message_header {
    message_kind kind;
    int sender;            /* filled in by the transport */
    uint64_t sequence;     /* filled in by the transport; counts from 0 in each direction of each link */
    uint64_t token;        /* the job's token; filled in by the transport */
    int frames;            /* filled in by the transport */
    int64_t step, key;     /* `key` is the number of a parameter, bucket or shard */
    int64_t offset, count; /* first element of the range, and number of elements */
    int dtype;             /* data type of the elements (common/ops/tensor.h) */
    uint32_t flags;
    int64_t integers[3];
    double doubles[2];
    /* Time at which the sender called transport_send(). The parameter server engine converts `sent_ns` and
     * the four time fields below (ready_ns, arrived_ns, last_ns and pushed_ns) to the clock of rank 0 before
     * it sends them. */
    int64_t sent_ns;
    /* Time at which the sender had computed the data of the message, or 0 if the time is unknown. In a reply,
     * time at which the last contribution to the reply had been computed. */
    int64_t ready_ns;
    int64_t arrived_ns; /* in a reply, time at which the request arrived */
    /* In a reply, time at which the last contribution to the reply was sent, or 0 if the reply needed no
     * contribution. */
    int64_t last_ns;
    uint32_t last_rank; /* in a reply, rank that sent the last contribution */
    /* In a reply that was not requested by a push, time at which the last push of the reply's receiver
     * arrived. */
    int64_t pushed_ns;
    /* message_digest() of header and frames, or 0 if checksums are off; filled in by the transport */
    uint64_t checksum;
} message_header;

/* Raw bytes that follow a header. The sender owns the memory. */
typedef struct message_frame {
    const void *data;
    size_t bytes;
} message_frame;

/* Sets the error of this thread to the error that a FAILED message reports, and returns the error code.
 * `text` is the frame of the message, or an empty frame. */
status message_failure(const message_header *header, message_frame text);

#endif
