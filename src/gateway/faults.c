#include "gateway/faults.h"

#define FAULT_KIND(name, status, type, code, retry) \
    const ek_fault_kind ek_gateway_fault_##name = {status, type, code, retry};
EK_GATEWAY_FAULT_TABLE(FAULT_KIND)
#undef FAULT_KIND
