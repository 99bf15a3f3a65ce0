#include "common/ops/op.h"

const char *op_name(op_kind kind)
{
#define OP_NAME(name, class) [OP_##name] = #name,
    static const char *const names[] = {OP_LIST(OP_NAME)[OP_recorded] = "recorded"};
#undef OP_NAME
    return names[kind];
}

op_class op_class_of(op_kind kind)
{
#define OP_CLASS(name, class) [OP_##name] = OP_CLASS_##class,
    static const op_class classes[] = {OP_LIST(OP_CLASS)[OP_recorded] = OP_CLASS_RECORDED};
#undef OP_CLASS
    return classes[kind];
}

const char *activation_name(activation a)
{
#define ACTIVATION_NAME(name, text) [ACTIVATION_##name] = text,
    static const char *const names[] = {ACTIVATION_LIST(ACTIVATION_NAME)};
#undef ACTIVATION_NAME
    return names[a];
}
