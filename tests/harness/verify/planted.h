/* Plants errors into operations. A program that is linked with --wrap=device_launch calls these functions at
 * every launch. */
#ifndef TESTS_HARNESS_VERIFY_PLANTED_H
#define TESTS_HARNESS_VERIFY_PLANTED_H

typedef enum planted_error {
    PLANTED_NOTHING,
    PLANTED_NO_DECAY,          /* Weight decay is missing. */
    PLANTED_MORE_DECAY,        /* Weight decay is 1.1 times as large. */
    PLANTED_GRADIENT_OF_LAYER, /* The weight gradient of one layer is 5% too large. */
    PLANTED_GRADIENT_OF_ALL,   /* All gradients are 5% too large when the optimizer reads them. */
    PLANTED_COLORS,            /* Images are in BGR instead of RGB. */
    PLANTED_CHANNELS,          /* Two channels of a BatchNorm's weight gradient are exchanged. */
    PLANTED_BIASED_VARIANCE,   /* The running variance is averaged from the biased variance. */
} planted_error;

/* Plants the error in all later launches of all threads. No step may be running. */
void planted_set(planted_error error);
/* Returns how often the error was made since it was planted. */
int planted_count(void);

#endif
