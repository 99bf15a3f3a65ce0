/* Lab 6: bounded staleness. Write the four functions; README.md says what they must do. */
#include <lab.h>

#include <stdlib.h>
#include <string.h>

int student_may_begin(const int64_t *clock, int ranks, int rank, int64_t staleness)
{
    (void)clock;
    (void)ranks;
    (void)rank;
    (void)staleness;
    return LAB_EMISSING; /* your code here */
}

int student_serve_stale(lab_server *server, lab_state *state)
{
    (void)server;
    (void)state;
    return LAB_EMISSING; /* your code here */
}

size_t student_save(const lab_state *state, unsigned char *bytes, size_t capacity)
{
    (void)state;
    (void)bytes;
    (void)capacity;
    return 0; /* your code here */
}

int student_load(lab_state *state, const unsigned char *bytes, size_t size)
{
    (void)state;
    (void)bytes;
    (void)size;
    return LAB_EMISSING; /* your code here */
}
