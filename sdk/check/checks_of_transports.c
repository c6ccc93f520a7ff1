#include "check.h"
const check_t checks_of_transports[] = {{0}};
