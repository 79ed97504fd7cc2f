# What `cmake --install` lays down: commands, library, headers, find_package(tessera), pkg-config, man
# pages and completion. libtorch is not copied: the library knows where it was built with.
include(CMakePackageConfigHelpers)
set(_sources ${CMAKE_SOURCE_DIR}/src/tessera)
install(TARGETS tessera tessera-tensors RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS tessera_shared EXPORT tessera LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${_sources}/api/tessera.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera)
install(FILES ${_sources}/base/error_type.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera/base)
install(FILES ${_sources}/api/tessera_c.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} RENAME tessera.h)

set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)

# find_package(tessera COMPONENTS plugin): the headers that a plugin includes (nn/plugin.h), of the layers
# whose symbols tessera-tensors shows, apart from the public ones, and the text of the recipe that
# `tessera new` writes
list(TRANSFORM TESSERA_PLUGIN_LAYERS PREPEND ${_sources}/ OUTPUT_VARIABLE _layers)
install(DIRECTORY ${_layers}
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera-plugin/tessera
        FILES_MATCHING PATTERN "*.h" PATTERN "slots.def" PATTERN "operations.def" PATTERN "*_testing.h" EXCLUDE PATTERN "testing.h" EXCLUDE
        PATTERN "*_inl.h" EXCLUDE)
# fmt and nlohmann-json as tessera was compiled with them: another version has another ABI
get_target_property(_fmt fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
get_target_property(_json nlohmann_json::nlohmann_json INTERFACE_INCLUDE_DIRECTORIES)
list(GET _fmt 0 _fmt)
list(GET _json 0 _json)
install(DIRECTORY ${_fmt}/fmt ${_json}/nlohmann DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera-plugin
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(FILES ${CMAKE_SOURCE_DIR}/examples/data/shakespeare.txt DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera)
set(TESSERA_PLUGIN_HEADERS ${CMAKE_INSTALL_INCLUDEDIR}/tessera-plugin)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tesseraPlugin.cmake.in ${CMAKE_BINARY_DIR}/install/tesseraPlugin.cmake
                              INSTALL_DESTINATION ${_package} PATH_VARS TESSERA_PLUGIN_HEADERS NO_CHECK_REQUIRED_COMPONENTS_MACRO)
install(FILES ${CMAKE_BINARY_DIR}/install/tesseraPlugin.cmake DESTINATION ${_package})

install(EXPORT tessera NAMESPACE tessera:: FILE tesseraTargets.cmake DESTINATION ${_package})
file(WRITE ${CMAKE_BINARY_DIR}/install/tesseraConfig.cmake "if(EXISTS \"\${CMAKE_CURRENT_LIST_DIR}/tesseraTargets.cmake\")
  include(\"\${CMAKE_CURRENT_LIST_DIR}/tesseraTargets.cmake\")
elseif(NOT \"plugin\" IN_LIST tessera_FIND_COMPONENTS)
  set(tessera_FOUND FALSE)
  set(tessera_NOT_FOUND_MESSAGE \"the wheel builds plugins alone (COMPONENTS plugin); the C++ and C libraries are those of make install\")
endif()
if(\"plugin\" IN_LIST tessera_FIND_COMPONENTS)
  include(\"\${CMAKE_CURRENT_LIST_DIR}/tesseraPlugin.cmake\")
endif()
")
write_basic_package_version_file(${CMAKE_BINARY_DIR}/install/tesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/install/tesseraConfig.cmake ${CMAKE_BINARY_DIR}/install/tesseraConfigVersion.cmake
        DESTINATION ${_package})

# relative to the file, so that a folder that was moved still works
file(WRITE ${CMAKE_BINARY_DIR}/install/tessera.pc "prefix=\${pcfiledir}/../..
libdir=\${prefix}/${CMAKE_INSTALL_LIBDIR}
includedir=\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}

Name: tessera
Description: Transformer architectures and their successors as data: generation, embeddings, training
Version: ${PROJECT_VERSION}
Libs: -L\${libdir} -ltessera
Cflags: -I\${includedir}
")
install(FILES ${CMAKE_BINARY_DIR}/install/tessera.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(FILES ${CMAKE_SOURCE_DIR}/scripts/completion/tessera.bash
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME tessera)
install(FILES ${CMAKE_SOURCE_DIR}/scripts/completion/_tessera DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${CMAKE_SOURCE_DIR}/scripts/completion/tessera.fish
        DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)

# the help of every verb as a page, where help2man is: the target `man`, which `make install` builds first
find_program(TESSERA_HELP2MAN help2man)
if(TESSERA_HELP2MAN)
  file(STRINGS ${_sources}/cli/verbs.def _verbs REGEX "^TESSERA_[A-Z]+_VERB")
  set(_pages ${CMAKE_BINARY_DIR}/man/tessera.1)
  add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/man/tessera.1 DEPENDS tessera
    COMMAND ${TESSERA_HELP2MAN} --no-info --name "train, run, serve and measure Transformers and their successors"
            --version-string ${PROJECT_VERSION} --output ${CMAKE_BINARY_DIR}/man/tessera.1 $<TARGET_FILE:tessera>)
  foreach(_verb IN LISTS _verbs)
    string(REGEX REPLACE "^[A-Z_]+\\([a-z_0-9]+, \"([a-z-]+)\", .*" "\\1" _name "${_verb}")
    set(_page ${CMAKE_BINARY_DIR}/man/tessera-${_name}.1)
    add_custom_command(OUTPUT ${_page} DEPENDS tessera
      COMMAND ${TESSERA_HELP2MAN} --no-info --name "tessera ${_name}" --version-string ${PROJECT_VERSION}
              --output ${_page} "$<TARGET_FILE:tessera> ${_name}")
    list(APPEND _pages ${_page})
  endforeach()
  add_custom_target(man DEPENDS ${_pages})
  install(FILES ${_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
endif()
