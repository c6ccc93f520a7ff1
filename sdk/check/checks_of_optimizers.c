#include "check.h"
const check_t checks_of_optimizers[] = {{0}};
