# What `cmake --install` puts on a machine: header, shared and static library, CMake config, ffpa.pc.
# Included from the top CMakeLists.txt once ffpa_shared and FFPA_OBJECTS exist.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Internal functions have short names (plan_get). -fvisibility=hidden keeps them inside the shared
# library; in an archive only a partial link does: all objects become one and its hidden names local.
set(FFPA_MERGED ${PROJECT_BINARY_DIR}/package/ffpa.o)
add_custom_command(OUTPUT ${FFPA_MERGED}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/package
  COMMAND ${CMAKE_LINKER} -r -o ${FFPA_MERGED} ${FFPA_OBJECTS}
  COMMAND ${CMAKE_OBJCOPY} --localize-hidden ${FFPA_MERGED}
  DEPENDS ${FFPA_OBJECTS} COMMAND_EXPAND_LISTS VERBATIM)
add_library(ffpa_archive STATIC ${FFPA_MERGED})
set_source_files_properties(${FFPA_MERGED} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
set_target_properties(ffpa_archive PROPERTIES OUTPUT_NAME ffpa LINKER_LANGUAGE C
  ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/package EXPORT_NAME ffpa_static)
target_include_directories(ffpa_archive PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(ffpa_archive PRIVATE Threads::Threads m)
set_target_properties(ffpa_shared PROPERTIES EXPORT_NAME ffpa)

install(FILES ${PROJECT_SOURCE_DIR}/include/ffpa/ffpa.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ffpa)
install(TARGETS ffpa_shared ffpa_archive EXPORT ffpa
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET ffpa_cli)
  install(TARGETS ffpa_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

set(FFPA_CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/ffpa)
install(EXPORT ffpa NAMESPACE ffpa:: FILE ffpaTargets.cmake DESTINATION ${FFPA_CONFIG_DIR})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ffpaConfig.cmake.in
  ${PROJECT_BINARY_DIR}/package/ffpaConfig.cmake INSTALL_DESTINATION ${FFPA_CONFIG_DIR})
# Before 1.0 a minor version may break; from then on a major one.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/ffpaConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH FFPA_PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /) # an installed tree may be moved
configure_file(${CMAKE_CURRENT_LIST_DIR}/ffpa.pc.in ${PROJECT_BINARY_DIR}/package/ffpa.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/ffpaConfig.cmake
  ${PROJECT_BINARY_DIR}/package/ffpaConfigVersion.cmake DESTINATION ${FFPA_CONFIG_DIR})
install(FILES ${PROJECT_BINARY_DIR}/package/ffpa.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Inside the Python wheel: the library alone, under one plain name, beside the package's modules.
install(FILES $<TARGET_FILE:ffpa_shared> RENAME libffpa.so DESTINATION ffpa COMPONENT python EXCLUDE_FROM_ALL)
