# lh_add_plugin(KIND NAME SOURCES file... [LIBRARIES target...] [NO_INSTALL])
#
# Builds NAME.so (with libm) that exports lh_plugin_v2 and nothing else, links against no host symbol, and lies
# where the loader looks: lib/longhaul/<kind>s/NAME.so (kind parts: lib/longhaul/parts). Works inside
# the tree and against an installed SDK, after find_package(longhaul-sdk). The folder is the one that
# `longhaul` looks into beside its own bin/, so `cmake --install --prefix` of Longhaul's prefix adds it.

set(LH_PLUGIN_EXPORTS ${CMAKE_CURRENT_LIST_DIR}/plugin.version)

function(lh_add_plugin kind name)
  cmake_parse_arguments(P "NO_INSTALL" "" "SOURCES;LIBRARIES" ${ARGN})
  if(kind STREQUAL "parts")
    set(folder parts)
  else()
    set(folder ${kind}s)
  endif()
  add_library(${name}_plugin MODULE ${P_SOURCES})
  target_link_libraries(${name}_plugin PRIVATE lh_sdk m ${P_LIBRARIES})
  # Sanitizer run times are resolved from the host program, so -z defs can't hold there.
  set(defs -Wl,-z,defs)
  if(LH_SANITIZE)
    set(defs "")
  endif()
  target_link_options(${name}_plugin PRIVATE -Wl,--version-script=${LH_PLUGIN_EXPORTS} ${defs})
  set_target_properties(${name}_plugin PROPERTIES
    PREFIX "" OUTPUT_NAME ${name} C_VISIBILITY_PRESET hidden LINK_DEPENDS ${LH_PLUGIN_EXPORTS}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib/longhaul/${folder})
  # The loader refuses what others can write, whatever umask this is built or installed under.
  add_custom_command(TARGET ${name}_plugin POST_BUILD
    COMMAND chmod go-w $<TARGET_FILE_DIR:${name}_plugin> $<TARGET_FILE:${name}_plugin>)
  if(NOT P_NO_INSTALL)
    install(TARGETS ${name}_plugin LIBRARY DESTINATION lib/longhaul/${folder})
    set_property(GLOBAL APPEND PROPERTY LH_PLUGINS ${name}_plugin)
    install(CODE "file(CHMOD \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/longhaul/${folder}\" PERMISSIONS
      OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)")
  endif()
endfunction()
