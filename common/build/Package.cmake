# What is installed besides the program and the data of its folders: its second name, documents, golden files, manual pages
# and completion; and the Debian package that `make deb` builds.
include(GNUInstallDirs)
install(CODE "file(CREATE_LINK harness \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/psring\" SYMBOLIC)
list(APPEND CMAKE_INSTALL_MANIFEST_FILES \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/psring\")")
file(GLOB documents CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/*.md)
install(FILES ${CMAKE_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES ${documents} DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs/figures DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs FILES_MATCHING PATTERN *.svg)
file(GLOB schemas CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/schemas/*.json)
install(FILES ${schemas} DESTINATION ${CMAKE_INSTALL_DATADIR}/psring/schemas)
file(GLOB golden CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/golden/*.json)
install(FILES ${golden} ${CMAKE_SOURCE_DIR}/tests/golden/README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/psring/golden)
foreach(name harness psring)
  install(FILES ${CMAKE_SOURCE_DIR}/common/build/completion/psring.bash
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME ${name})
endforeach()
# Debian's zsh reads no site-functions in /usr, but what packages bring in vendor-completions.
set(zsh site-functions)
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr" AND EXISTS /etc/debian_version)
  set(zsh vendor-completions)
endif()
install(FILES ${CMAKE_SOURCE_DIR}/common/build/completion/_psring DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/${zsh})

# What Debian asks of a package.
set(debian ${CMAKE_BINARY_DIR}/debian)
file(READ ${CMAKE_SOURCE_DIR}/LICENSE license)
file(WRITE ${debian}/copyright "${license}")
string(TIMESTAMP today "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${debian}/changelog "psring (${PROJECT_VERSION}) unstable; urgency=low\n\n  * Built from the source tree.\n
 -- The psring authors <maintainers@psring.example>  ${today}\n")
find_program(GZIP gzip)
if(GZIP)
  execute_process(COMMAND ${GZIP} -9nf ${debian}/changelog)
  install(FILES ${debian}/changelog.gz DESTINATION ${CMAKE_INSTALL_DOCDIR})
endif()
install(FILES ${debian}/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR})

# A manual page per command, from its --help=all, where help2man is installed.
find_program(HELP2MAN help2man)
if(HELP2MAN)
  set(pages ${CMAKE_BINARY_DIR}/man)
  add_custom_target(manual_pages COMMAND sh ${CMAKE_SOURCE_DIR}/common/build/manual-pages.sh $<TARGET_FILE:harness> ${pages}
    DEPENDS harness COMMENT "Manual pages")
  install(DIRECTORY ${pages}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME psring)
set(CPACK_PACKAGE_CONTACT "The psring authors <maintainers@psring.example>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX ${CMAKE_INSTALL_PREFIX})
set(CPACK_STRIP_FILES TRUE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "data-parallel training by parameter server or ring all-reduce")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "Trains the same model with a parameter server and with a ring all-reduce, on
processors, GPUs or in virtual time, and reports where time and memory go.")
include(CPack)
