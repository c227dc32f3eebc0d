# Language level, warnings and sanitizers for every target of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# Programs look for libraries in lib/ beside them (tests: beside the program), which is where tools/bundle puts them; in the build tree there is none. The
# old kind of entry, because the new one does not count for what the libraries need themselves.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/lib:$ORIGIN/../lib")
add_link_options(-Wl,--disable-new-dtags)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # Clones in different folders share what they have compiled; the sloppiness is what ccache asks for to work with precompiled headers.
  set(ccache_launcher "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
    "${CCACHE_PROGRAM}")
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ccache_launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()

add_library(althing_options INTERFACE)
target_include_directories(althing_options INTERFACE "${CMAKE_SOURCE_DIR}")
target_compile_options(althing_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror>)
target_compile_definitions(althing_options INTERFACE ALTHING_VERSION="${PROJECT_VERSION}")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_BUILD_TYPE STREQUAL "Release")
  # The hardening list of SECURITY.md; sanitizer builds bring their own checks.
  target_compile_options(althing_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>)
  target_compile_definitions(althing_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:_FORTIFY_SOURCE=2>)
  target_link_options(althing_options INTERFACE -Wl,-z,relro,-z,now)
endif()
if(ALTHING_SANITIZE)
  # CAF's headers bind null references on purpose, which is why null is left out of undefined.
  target_compile_options(althing_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${ALTHING_SANITIZE} -fno-sanitize=null -fno-sanitize-recover=all -fno-omit-frame-pointer>)
  target_link_options(althing_options INTERFACE -fsanitize=${ALTHING_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The checks that sanitizers insert mislead its flow analysis (GCC's manual says so); the release build keeps this warning.
    target_compile_options(althing_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
    # Asio's fences are beside operations that TSan does understand.
    target_compile_options(althing_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>)
  endif()
endif()
# For code that calls and waits more than it computes: under sanitizers it compiles in half the time when it is not optimized.
function(althing_compile_fast target)
  if(ALTHING_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  endif()
endfunction()
if(ALTHING_FUZZ)
  # Clang 14 cannot lay the check of function types in front of the parts that a coroutine is split into.
  target_compile_options(althing_options INTERFACE -fsanitize=fuzzer-no-link -fno-sanitize=function)
endif()
