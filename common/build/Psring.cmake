# psring_library(NAME SOURCES file... [DEPENDS library...] [PRIVATE library...])
#
# One static library per folder. DEPENDS are the lower folders that its headers and sources may use, so the link line is
# the layer. PRIVATE are external libraries.
add_library(psring_flags INTERFACE)
target_compile_features(psring_flags INTERFACE c_std_11)
target_compile_definitions(psring_flags INTERFACE _GNU_SOURCE)
target_include_directories(psring_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
target_compile_options(psring_flags INTERFACE
  $<$<AND:$<COMPILE_LANGUAGE:C>,$<C_COMPILER_ID:GNU>>:-Wshadow=local;-Wno-format-truncation>
  $<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wvla;-Wpointer-arith;-Wstrict-prototypes;-Wmissing-prototypes;-Wwrite-strings;-Wundef>
  # The compiler fuses no multiply and add by itself: the vector body and the tail of a loop must round alike, wherever
  # an arena is cut. Kernels use neither errno nor floating-point traps.
  -ffp-contract=off -fno-math-errno -fno-trapping-math)
if(PSRING_WERROR)
  target_compile_options(psring_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-Werror>)
endif()
if(PSRING_SANITIZE STREQUAL "address")
  target_compile_options(psring_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all
                         -fno-omit-frame-pointer)
  target_link_options(psring_flags INTERFACE -fsanitize=address,undefined)
elseif(PSRING_SANITIZE STREQUAL "thread")
  # Functions are instrumented for tests/architecture/test_function_trace.py, which so needs no build of its own.
  target_compile_options(psring_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer
                         $<$<COMPILE_LANGUAGE:C>:-finstrument-functions;-finstrument-functions-exclude-file-list=tests/,isa/>)
  target_link_options(psring_flags INTERFACE -fsanitize=thread)
elseif(PSRING_SANITIZE)
  message(FATAL_ERROR "PSRING_SANITIZE: expected address or thread, got '${PSRING_SANITIZE}'")
endif()

function(psring_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC psring_flags ${arg_DEPENDS} PRIVATE ${arg_PRIVATE})
endfunction()

# psring_protobuf(NAME FILE.proto): generates NAME.pb-c.[ch] into generated/, as library NAME.
function(psring_protobuf name proto)
  get_filename_component(base ${proto} NAME_WE)
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  set(out ${CMAKE_BINARY_DIR}/generated/${folder})
  file(MAKE_DIRECTORY ${out})
  add_custom_command(
    OUTPUT ${out}/${base}.pb-c.c ${out}/${base}.pb-c.h
    COMMAND ${PROTOC_C} --c_out=${out} --proto_path=${CMAKE_CURRENT_SOURCE_DIR}
            ${CMAKE_CURRENT_SOURCE_DIR}/${proto}
    DEPENDS ${proto} VERBATIM)
  add_library(${name} STATIC ${out}/${base}.pb-c.c ${out}/${base}.pb-c.h)
  target_include_directories(${name} PUBLIC ${CMAKE_BINARY_DIR}/generated)
  target_compile_options(${name} PRIVATE -w)
  target_link_libraries(${name} PUBLIC protobuf_c PRIVATE psring_flags)
endfunction()

# psring_kernels(NAME SOURCES file... [PRIVATE library...]): compiles each source once per instruction set, with
# KERNEL_ISA defined to the set's name, for a run-time choice. The sets are those of common/base/processor.h.
set(PSRING_ISAS baseline)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  list(APPEND PSRING_ISAS avx2 avx512)
endif()
set(PSRING_KERNEL_OPTIMIZATION -O3)
if(PSRING_SANITIZE OR PSRING_FUZZ OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(PSRING_KERNEL_OPTIMIZATION)
endif()
set(PSRING_ISA_FLAGS_baseline "")
set(PSRING_ISA_FLAGS_avx2 -march=x86-64-v3)
set(PSRING_ISA_FLAGS_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
function(psring_kernels name)
  cmake_parse_arguments(arg "" "" "SOURCES;PRIVATE" ${ARGN})
  set(objects)
  foreach(isa ${PSRING_ISAS})
    add_library(${name}_${isa} OBJECT ${arg_SOURCES})
    target_link_libraries(${name}_${isa} PRIVATE psring_flags ${arg_PRIVATE})
    target_compile_definitions(${name}_${isa} PRIVATE KERNEL_ISA=${isa})
    target_compile_options(${name}_${isa} PRIVATE ${PSRING_KERNEL_OPTIMIZATION} ${PSRING_ISA_FLAGS_${isa}})
    list(APPEND objects $<TARGET_OBJECTS:${name}_${isa}>)
  endforeach()
  add_library(${name} STATIC ${objects})
endfunction()
