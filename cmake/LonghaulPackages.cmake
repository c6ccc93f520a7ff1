# What is installed beside the program, and packages of it.
#
#     longhaul       program, longhaul-check, plugins, man pages, completion, the systemd unit
#     longhaul-dev   SDK with templates and examples, docs, example jobs with their data, what deploy/ has
#
# cpack -G DEB --config build/release/CPackConfig.cmake makes both. They install into /usr: the program looks for its
# plugins beside its own folder, so nothing of that path is compiled in.

# Made by the program itself from its tables (core/cli/manual.c). A sanitizer's build has none: it is not installed, and its
# program needs an environment of its own to run.
if(TARGET longhaul AND NOT LH_SANITIZE)
  set(manual)
  get_property(plugins GLOBAL PROPERTY LH_PLUGINS)
  # Only what is installed: tests put plugins of their own into the build's folder.
  set(copies)
  foreach(plugin IN LISTS plugins)
    get_target_property(folder ${plugin} LIBRARY_OUTPUT_DIRECTORY)
    string(REPLACE ${PROJECT_BINARY_DIR}/lib/longhaul ${PROJECT_BINARY_DIR}/manual/plugins folder ${folder})
    list(APPEND copies COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
                       COMMAND ${CMAKE_COMMAND} -E copy_if_different $<TARGET_FILE:${plugin}> ${folder})
  endforeach()
  set(copied ${PROJECT_BINARY_DIR}/manual/plugins.copied)
  add_custom_command(OUTPUT ${copied} ${copies} COMMAND chmod -R go-w ${PROJECT_BINARY_DIR}/manual/plugins
                     COMMAND ${CMAKE_COMMAND} -E touch ${copied} DEPENDS ${plugins} VERBATIM)
  foreach(page man:longhaul.1 man-ini:longhaul.ini.5 bash:longhaul zsh:_longhaul)
    string(REPLACE ":" ";" page ${page})
    list(GET page 0 form)
    list(GET page 1 file)
    set(file ${PROJECT_BINARY_DIR}/manual/${file})
    list(APPEND manual ${file})
    add_custom_command(OUTPUT ${file} COMMAND longhaul help --as ${form} --plugins ${PROJECT_BINARY_DIR}/manual/plugins > ${file}.new
                       COMMAND ${CMAKE_COMMAND} -E rename ${file}.new ${file}
                       DEPENDS longhaul ${copied} VERBATIM)
  endforeach()
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/manual)
  add_custom_target(manual ALL DEPENDS ${manual})
  install(FILES ${PROJECT_BINARY_DIR}/manual/longhaul.1 DESTINATION share/man/man1)
  install(FILES ${PROJECT_BINARY_DIR}/manual/longhaul.ini.5 DESTINATION share/man/man5)
  install(FILES ${PROJECT_BINARY_DIR}/manual/longhaul DESTINATION share/bash-completion/completions)
  install(FILES ${PROJECT_BINARY_DIR}/manual/_longhaul DESTINATION share/zsh/vendor-completions)
endif()
# With the program's own path: of another prefix systemd finds the unit, too.
install(CODE "file(READ \"${PROJECT_SOURCE_DIR}/deploy/longhaul@.service\" unit)
string(REPLACE % %% program \"\${CMAKE_INSTALL_PREFIX}/bin/longhaul\")
if(program MATCHES \"[^A-Za-z0-9_./%+-]\")
  set(program \"\\\"\${program}\\\"\")
endif()
string(REPLACE /usr/bin/longhaul \"\${program}\" unit \"\${unit}\")
file(REMOVE \"${PROJECT_BINARY_DIR}/longhaul@.service\") # it may be root's
file(WRITE \"${PROJECT_BINARY_DIR}/longhaul@.service\" \"\${unit}\")")
install(FILES ${PROJECT_BINARY_DIR}/longhaul@.service DESTINATION lib/systemd/system)
install(FILES LICENSE DESTINATION share/doc/longhaul RENAME copyright)
install(DIRECTORY examples/recipes DESTINATION share/longhaul) # which `longhaul new` includes
install(DIRECTORY docs DESTINATION share/doc/longhaul COMPONENT dev)
install(DIRECTORY examples deploy DESTINATION share/doc/longhaul COMPONENT dev)
# The models that docs send an author to.
install(DIRECTORY plugins/models DESTINATION share/doc/longhaul/plugins COMPONENT dev FILES_MATCHING PATTERN "*.c")
install(FILES plugins/devices/cuda/kernels/README.md DESTINATION share/doc/longhaul/plugins/devices/cuda/kernels COMPONENT dev)
install(FILES README.md SECURITY.md CHANGELOG.md DESTINATION share/doc/longhaul COMPONENT dev)
# Behind all that links may lead to, the SDK too: what is installed comes in the order in which it is named.
install(SCRIPT cmake/installed_links.cmake COMPONENT dev)

add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -DMANIFEST=${PROJECT_BINARY_DIR}/install_manifest.txt
                  -P ${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake VERBATIM)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "Longhaul's authors <longhaul@localhost>")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
    WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL runtime dev)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME longhaul)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION science)
# Asked of the files themselves, plugins too: dpkg-shlibdeps reads what each links to.
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
# Opened when they are asked for, so that no link tells: oneDNN by the cpu device, verbs by the transport ib.
set(CPACK_DEBIAN_RUNTIME_PACKAGE_DEPENDS libdnnl2)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SUGGESTS "libibverbs1, librdmacm1")
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "trains large language models on one machine or several sites
Longhaul trains language models on accelerators that stand in several data centres as though they stood in one. One
INI file describes a job, from raw text to a Hugging Face folder.")
set(CPACK_DEBIAN_DEV_PACKAGE_NAME longhaul-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION devel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "longhaul (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_DEV_DESCRIPTION "SDK, documentation and example jobs of longhaul
Headers and templates for plugins, the documentation, example jobs with their data, and what runs them under systemd,
Slurm and Kubernetes.")
include(CPack)
