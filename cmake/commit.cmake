# cmake -DSOURCE=... -DHEADER=... -P commit.cmake: writes which commit is built into HEADER, and touches it only where
# that has changed, as the program is linked anew then. A tree without git, as of an archive, is "unknown".
cmake_minimum_required(VERSION 3.25)
set(commit unknown)
find_program(git git)
if(git AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${git} -C ${SOURCE} describe --always --dirty=+changed --abbrev=12 --exclude=*
                  OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit ${found})
  endif()
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT "#define LH_COMMIT \"${commit}\"\n" @ONLY)
