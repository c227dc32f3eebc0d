# One target a folder: althing_folder(NAME [LINK targets…] [EXCLUDE regex]) compiles every .cpp below the folder.
function(althing_folder name)
  cmake_parse_arguments(arg "" "EXCLUDE" "LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  if(arg_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${arg_EXCLUDE}")
  endif()
  add_library(althing_${name} STATIC ${sources})
  target_link_libraries(althing_${name} PUBLIC althing_options ${arg_LINK})
endfunction()

# althing_runner(NAME source… LINK targets…) makes build/<preset>/tests/NAME, a test program with a main of its own.
function(althing_runner name)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE althing_options ${arg_LINK})
endfunction()

# althing_unit_tests(FOLDER LINK targets…) makes build/<preset>/tests/FOLDER_tests of tests/FOLDER/*_test.cpp.
function(althing_unit_tests folder)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*_test.cpp")
  if(NOT sources)
    return()
  endif()
  add_executable(${folder}_tests ${sources} "${CMAKE_CURRENT_SOURCE_DIR}/support/gtest_main.cpp")
  target_link_libraries(${folder}_tests PRIVATE althing_options ${arg_LINK} GTest::gmock GTest::gtest)
  # Two thirds of a test's compile time is reading these headers. Only tests are built so: the product's own files prove that each header stands alone.
  target_precompile_headers(${folder}_tests PRIVATE <gtest/gtest.h> <gmock/gmock.h> <algorithm> <functional> <map> <memory> <optional> <string> <variant> <vector>)
  target_compile_definitions(${folder}_tests PRIVATE ALTHING_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${folder}_tests COMMAND ${folder}_tests)
endfunction()
