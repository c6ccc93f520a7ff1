# lh_layer(NAME SEES target... LIBRARIES target...): core/NAME becomes the library lh_NAME. Its headers
# are reached as <NAME/file.h>, and only by who links it: a layer that includes one below it does not
# compile. The include root is a folder of the build tree that holds nothing but a link to core/NAME.

add_library(lh_flags INTERFACE)
target_compile_definitions(lh_flags INTERFACE _GNU_SOURCE)
target_compile_options(lh_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror
                                          -fno-omit-frame-pointer)
if(CMAKE_C_COMPILER_ID STREQUAL "Clang")
  target_compile_options(lh_flags INTERFACE -Wno-gnu-zero-variadic-macro-arguments)
endif()
# A plugin is read, hashed and copied whole before it is loaded: most of it would be its debug sections.
add_compile_options(-gz)
add_link_options(-gz)
set(LH_SANITIZE "" CACHE STRING "sanitizers for everything built here: address,undefined or thread")
option(LH_FUZZ "clang only: instrument everything for libFuzzer and link tests/fuzz with it" OFF)
# A check for what is undefined is a branch to ud2 then, and a program ends with SIGILL, whose trace the address sanitizer prints.
# Without it each check has data of its own, with relocations: four fifths of the cpu device and two thirds of the program, which
# every start copies, hashes, relocates and searches for leaks.
option(LH_SANITIZE_TRAP "what is undefined ends a program by a signal; OFF: it is told in words" OFF)
if(LH_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(LH_SANITIZE)
  add_compile_options(-fsanitize=${LH_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LH_SANITIZE})
  if(LH_SANITIZE_TRAP AND LH_SANITIZE MATCHES "undefined")
    add_compile_options(-fsanitize-undefined-trap-on-error)
    add_link_options(-fsanitize-undefined-trap-on-error)
  endif()
endif()

add_library(lh_sdk INTERFACE)
target_include_directories(lh_sdk INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/sdk/include>)
target_link_libraries(lh_sdk INTERFACE lh_flags)

function(lh_layer name)
  cmake_parse_arguments(L "" "" "SEES;LIBRARIES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/core/${name}/*.c)
  list(FILTER sources EXCLUDE REGEX "/main\\.c$")
  set(root ${PROJECT_BINARY_DIR}/layers/${name})
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/core/${name} ${root}/${name} SYMBOLIC)
  if(sources)
    add_library(lh_${name} STATIC ${sources})
    target_include_directories(lh_${name} PUBLIC ${root})
    target_link_libraries(lh_${name} PUBLIC ${L_SEES} PRIVATE ${L_LIBRARIES})
  else()
    add_library(lh_${name} INTERFACE)
    target_include_directories(lh_${name} INTERFACE ${root})
    target_link_libraries(lh_${name} INTERFACE ${L_SEES} ${L_LIBRARIES})
  endif()
endfunction()
