/* Finds the command and hands over. */
#include <stdio.h>

int main(void)
{
	return 2;
}
