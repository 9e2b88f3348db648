#include "base/status.h"

const char *ek_status_name(ek_status status)
{
    switch (status) {
#define EK_STATUS_NAME(name, value, text) \
    case name: return #name;
        EK_STATUS_TABLE(EK_STATUS_NAME)
#undef EK_STATUS_NAME
    default: return "EK_?";
    }
}

const char *ek_status_text(ek_status status)
{
    switch (status) {
#define EK_STATUS_TEXT(name, value, text) \
    case name: return text;
        EK_STATUS_TABLE(EK_STATUS_TEXT)
#undef EK_STATUS_TEXT
    default: return "unknown status";
    }
}
