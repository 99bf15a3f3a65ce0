/* A message between agents: a header of numbers, then any number of raw tensor frames.
 *
 * A header of the parameter server contains the sender, the step, the parameter or bucket, and a range of
 * elements. The engine defines the meaning of the other numbers. The transport fills in and checks `sender`,
 * `sequence`, `token`, `frames` and `checksum`. */
#ifndef COMMON_NET_MESSAGE_H
#define COMMON_NET_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

/* Columns: name, name in error messages. */
#define MESSAGE_KIND_LIST(X)                                                                                 \
    X(NONE, "none")                                                                                          \
    X(HEARTBEAT, "heartbeat") /* has no frames, may arrive at any time, and may be ignored */                \
    X(BYE, "bye")             /* orderly end of a link, sent by the transport */                             \
    X(PUSH, "push")           /* gradients to a server */                                                    \
    X(PULL, "pull")           /* request for parameters */                                                   \
    X(PUSH_PULL, "push_pull")                                                                                \
    X(PARAMETERS, "parameters") /* reply to a pull */                                                        \
    X(ACKNOWLEDGE, "acknowledge")                                                                            \
    X(BUFFERS, "buffers")                                                                                    \
    X(INPUTS, "inputs")                                                                                      \
    X(OUTPUTS, "outputs")                                                                                    \
    X(OUTPUT_GRADIENT, "output_gradient")                                                                    \
    X(SUM, "sum") /* a few numbers to sum over the ranks, or their sums */                                   \
    X(CONTROL, "control")                                                                                    \
    X(FAILED, "failed") /* the sender gives up; the reason is in the status table */                         \
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
    uint64_t token;        /* filled in by the transport: the job's token */
    int frames;            /* filled in by the transport */
    int64_t step, key;     /* `key` is the number of a parameter, bucket or shard */
    int64_t offset, count; /* first element and number of elements */
    int dtype;             /* common/ops/tensor.h */
    uint32_t flags;
    int64_t integers[3];
    double doubles[2];
    /* Time of transport_send(). The engine ps sends this time and the next four times as times of rank 0's
     * clock. */
    int64_t sent_ns;
    /* Time at which the sender had computed the data of the message. In a reply, the time at which the last
     * contribution had been computed. 0 if the time is unknown. */
    int64_t ready_ns;
    int64_t arrived_ns; /* in a reply, time at which the request arrived */
    /* In a reply, time at which the last contribution was sent that the reply needed, or 0 if it needed
     * none. */
    int64_t last_ns;
    uint32_t last_rank; /* rank that sent this contribution */
    /* In a reply that was not requested by a push, time at which the last push of the reply's receiver
     * arrived. */
    int64_t pushed_ns;
    uint64_t checksum; /* filled in by the transport: message_digest() over header and frames, or 0 if
                        * checksums are off */
} message_header;

/* Raw bytes that follow a header. The sender owns the memory. */
typedef struct message_frame {
    const void *data;
    size_t bytes;
} message_frame;

#endif
