#include <cmocka.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    return 77;
}
