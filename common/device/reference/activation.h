/* Activation functions of one value. */
#ifndef COMMON_DEVICE_REFERENCE_ACTIVATION_H
#define COMMON_DEVICE_REFERENCE_ACTIVATION_H

#include "common/ops/op.h"

double reference_activate(activation act, double x);

/* dy * act'(x). `kept` is what backward operations are handed: y for RELU, x for the others. */
double reference_activate_backward(activation act, double kept, double dy);

#endif
