/* Lab 2: the loop of a parameter server. Write student_serve(); README.md says what it must do. */
#include <lab.h>

#include <stdlib.h>

int student_serve(lab_server *server, int ranks, float *param, size_t n, float lr)
{
    (void)server;
    (void)ranks;
    (void)param;
    (void)n;
    (void)lr;
    return LAB_EMISSING; /* your code here */
}
