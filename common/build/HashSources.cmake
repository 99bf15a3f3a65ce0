# cmake -D FOLDER=source-tree -D VERSION=version -D OUT=header -P HashSources.cmake
#
# Writes the identity of a program whose commit is not known: its version, and a hash of names and contents of its sources.
set(patterns)
foreach(folder common models ps ring harness)
  foreach(ending c h cpp cu cuh proto)
    list(APPEND patterns ${FOLDER}/${folder}/*.${ending})
  endforeach()
endforeach()
file(GLOB_RECURSE sources RELATIVE ${FOLDER} ${patterns})
list(SORT sources)
set(all)
foreach(source ${sources})
  file(SHA256 ${FOLDER}/${source} hash)
  string(APPEND all "${source} ${hash}\n")
endforeach()
string(SHA256 hash "${all}")
string(SUBSTRING ${hash} 0 12 hash)
file(WRITE ${OUT} "#define PROGRAM_IDENTITY \"${VERSION}, sources ${hash}\"\n")
