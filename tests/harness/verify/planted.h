/* Errors planted into operations: every launch of a program that is linked with
 * --wrap=device_launch passes here. */
#ifndef TESTS_HARNESS_VERIFY_PLANTED_H
#define TESTS_HARNESS_VERIFY_PLANTED_H

typedef enum planted_error {
    PLANTED_NOTHING,
    PLANTED_NO_DECAY,          /* No weight decay. */
    PLANTED_MORE_DECAY,        /* 1.1 times the weight decay */
    PLANTED_GRADIENT_OF_LAYER, /* The weight gradient of one layer is 5% too large. */
    PLANTED_GRADIENT_OF_ALL,   /* All gradients are 5% too large when the optimizer reads them. */
    PLANTED_COLORS,            /* Images are in BGR instead of RGB. */
    PLANTED_CHANNELS,          /* Two channels of a BatchNorm's weight gradient are exchanged. */
    PLANTED_BIASED_VARIANCE,   /* the running variance moves towards the biased one */
} planted_error;

/* Plants the error from now on, on all threads. No step may be running. */
void planted_set(planted_error error);
/* Returns how often the error was made since it was planted. */
int planted_count(void);

#endif
