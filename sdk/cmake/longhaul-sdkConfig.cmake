# find_package(longhaul-sdk): lh_sdk, the headers (there is nothing to link), and lh_add_plugin().
get_filename_component(longhaul_sdk_prefix ${CMAKE_CURRENT_LIST_DIR}/../../.. ABSOLUTE)
if(NOT TARGET lh_sdk)
  add_library(lh_sdk INTERFACE IMPORTED)
  set_target_properties(lh_sdk PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES ${longhaul_sdk_prefix}/include)
endif()
set(longhaul_sdk_PLUGIN_FOLDER ${longhaul_sdk_prefix}/lib/longhaul)
include(${CMAKE_CURRENT_LIST_DIR}/LonghaulPlugin.cmake)
